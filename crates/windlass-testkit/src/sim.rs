//! The simulator: one seed is one schedule of workers, clients, faults and virtual time over the
//! reference store, checked at every call and judged at the end.
//!
//! `executor`, `store` and `check` know nothing of who drives them. The small `driver` is a worker
//! of its own that tries the corners of the store; the `fleet` is real engines with real workflows.
//! To look at a seed, run the test with `WINDLASS_SEED=<seed>`.

pub mod bugs;
pub mod check;
pub mod driver;
pub mod env;
pub mod executor;
pub mod faults;
pub mod fleet;
pub mod points;
pub mod program;
pub mod rng;
pub mod store;
pub mod trace;
mod world;

pub use check::{Checker, Violation};
pub use executor::{Executor, Handle, NETWORK, NodeId, Signal, Stuck};
pub use faults::{Faults, PlantedBug};
pub use fleet::{FleetBug, run_fleet};
pub use points::{FLEET_POINTS, POINTS, Reached};
pub use rng::Rng;
pub use store::{FaultyStore, Link, NodeStore, SkewedClock};
pub use trace::Trace;
pub use world::{Report, run_seed};
