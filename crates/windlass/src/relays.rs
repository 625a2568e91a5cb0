//! `relays`: a payload handed from step to step, with hooks that always fire; and the runner that asks
//! a URL for each step, so that it can be written in any language.

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
