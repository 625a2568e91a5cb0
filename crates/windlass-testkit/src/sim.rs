//! The simulator: one seed is one schedule of real engines, clients, faults and virtual time over the
//! reference store. A checker watches every call of the store, and judges the result at the end.
//!
//! To look at a seed, run the test with `WINDLASS_SEED=<seed>`.

pub mod bugs;
pub mod check;
pub mod env;
pub mod executor;
pub mod faults;
pub mod fleet;
pub mod points;
pub mod rng;
pub mod store;
pub mod trace;

pub use check::{Checker, Violation};
pub use executor::{Executor, Handle, NETWORK, NodeId, Signal, Stuck};
pub use faults::{Faults, PlantedBug};
pub use fleet::{Report, run_seed};
pub use points::{POINTS, Reached};
pub use rng::Rng;
pub use store::{FaultyStore, Link, NodeStore, SkewedClock};
pub use trace::Trace;
