//! For authors of models and of servers: the engine with all its parts.
//!
//! A model is a way to write workflows, such as `steps`. It implements [`Model`] and [`Program`], and registers
//! itself with [`Engine::register`]; [`crate::Engine::core`] gives the [`Engine`]. Rows, commits and the ledger are in
//! [`crate::kernel`].
//!
//! A model that keeps large values (a transcript, values of an environment) stores each once with
//! [`Draft::put_body`], names the digests in the state of the run, and reads them with [`Turn::bodies`]. All runs of a
//! tree share these bodies, so a branch or the retry of a child names them without a copy. A retried or restarted
//! root gets copies of the bodies that [`ModelDescription::bodies_of_state`] names.
//!
//! Programs that only use workflows need nothing of this module.

pub use windlass_engine::*;
pub use windlass_kernel::{Draft, End, EventType, NewRun, StepKind};
pub use windlass_models::{MODELS, kit};
