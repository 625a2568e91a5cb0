//! Stores that are part of the kernel.

pub mod memory;
