//! `agents`: continuation-passing programs that call language models, tools and people.
//!
//! [`AnthropicClient`] and [`OpenaiClient`] are the providers that this crate brings.

mod account;
mod anthropic;
mod assemble;
pub mod batches;
mod client;
mod failure;
mod headers;
mod limited;
#[cfg(feature = "mcp")]
mod mcp;
mod openai;
mod sse;

pub use anthropic::AnthropicClient;
pub use client::{ApiKey, ClientOptions};
pub use limited::LimitedProvider;
#[cfg(feature = "mcp")]
pub use mcp::{McpOptions, McpServer};
pub use openai::OpenaiClient;
pub use windlass_models::agents::*;
