//! Limits on calls to one callee, shared by all processes on a store, for calls that are no tasks.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{Error, LimitKey, Namespace};

use crate::rates::Rates;

/// Asks whether a callee may be called, and closes it for all processes. It does not keep the engine
/// running, so a component of the engine may own it.
#[derive(Clone)]
pub struct Callees {
    pub(crate) rates: Arc<Rates>,
}

impl Callees {
    /// Asks the store whether a call may begin. A duration says when to ask again. `again`: the call was
    /// postponed before and comes before new ones.
    ///
    /// # Errors
    ///
    /// The store does not answer; the call must not be made.
    pub async fn ask(&self, key: &LimitKey, again: bool) -> Result<Option<Duration>, Error> {
        self.rates.ask(&scope(key), again).await
    }

    /// Closes a callee for a while, for all processes.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn close(&self, key: &LimitKey, for_how_long: Duration) -> Result<(), Error> {
        self.rates.close(&scope(key), for_how_long).await
    }

    /// Opens a callee again, for all processes.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn open(&self, key: &LimitKey) -> Result<(), Error> {
        self.rates.set(scope(key), None).await
    }
}

// A callee knows nothing about namespaces: whoever has its key shares its limits.
fn scope(key: &LimitKey) -> (Namespace, LimitKey) {
    (Namespace::default_namespace(), key.clone())
}
