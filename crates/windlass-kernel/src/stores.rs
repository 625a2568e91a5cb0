//! Stores that need nothing but the kernel.

pub mod memory;
