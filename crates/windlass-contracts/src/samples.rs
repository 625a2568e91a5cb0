//! The contract and the definition that unit tests use.

use crate::templates;
use crate::types::LifecycleContract;

/// The contract of the template for invoices.
pub(crate) fn invoice() -> LifecycleContract {
    templates::all().remove(0).contract
}
