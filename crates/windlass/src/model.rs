//! For authors of models and of servers: the engine with all its parts.
//!
//! A model is a way to write workflows, such as `steps`. It implements [`Model`] and [`Program`], and registers
//! itself with [`Engine::register`]; [`crate::Engine::core`] gives the [`Engine`]. Rows, commits and the ledger are in
//! [`crate::kernel`]. Programs that only use workflows need nothing of this module.

pub use windlass_engine::*;
pub use windlass_kernel::{Draft, End, EventType, NewRun, StepKind};
pub use windlass_models::{MODELS, kit};
