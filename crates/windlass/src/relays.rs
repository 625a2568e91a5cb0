//! `relays`: a payload that goes from step to step, with a hook at the end of every run; and a runner that calls
//! a URL for each step, so that steps can be written in any language.

#[cfg(feature = "webhooks")]
mod http;
#[cfg(feature = "webhooks")]
mod payload;

pub use bytes::Bytes;
#[cfg(feature = "webhooks")]
pub use http::{HttpRunner, HttpRunnerOptions};
#[cfg(feature = "webhooks")]
pub(crate) use payload::Payload;
pub use windlass_models::relays::*;
