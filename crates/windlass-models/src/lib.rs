//! The models of Windlass: ways to write a workflow, each on the same kernel and engine.

#[cfg(any(feature = "machines", feature = "relays", feature = "steps"))]
mod effects;
mod run;

#[cfg(feature = "machines")]
pub mod machines;
#[cfg(feature = "relays")]
pub mod relays;
#[cfg(feature = "steps")]
pub mod steps;

pub use run::{RunHandle, Status};

use windlass_engine::Manners;
use windlass_kernel::ModelName;

/// How runs of a model are asked to end, for processes that do not serve their workflow and so cannot ask the
/// model. A model that is not of this crate has the default.
pub fn manners(model: &ModelName) -> Manners {
    match model.as_str() {
        #[cfg(feature = "machines")]
        name if name == machines::model_name().as_str() => machines::MANNERS,
        _ => Manners::default(),
    }
}
