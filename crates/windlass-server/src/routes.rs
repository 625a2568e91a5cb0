//! The routes, one file a subject.

pub(crate) mod control;
pub(crate) mod durable;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod index;
pub(crate) mod instances;
pub(crate) mod keys;
pub(crate) mod ledger;
pub(crate) mod live;
pub(crate) mod metrics;
pub(crate) mod queues;
pub(crate) mod result;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod tick;
#[cfg(feature = "webhooks")]
pub(crate) mod webhooks;
pub(crate) mod why;
pub(crate) mod workflows;
