//! Durable workflows in Rust: one SQLite file, or PostgreSQL for many machines.
//!
//! A workflow is an async function. Windlass records the result of each step. If the process ends in the
//! middle, the next process continues after the last recorded step.
//!
//! ```no_run
//! use windlass::{Ctx, Engine, Result};
//!
//! async fn hello(ctx: Ctx, name: String) -> Result<String> {
//!     let text = ctx.step("compose", async || Ok(format!("Hello, {name}!"))).await?;
//!     ctx.sleep("pause for effect", "10 seconds").await?;
//!     Ok(ctx.step("shout", async || Ok(text.to_uppercase())).await?)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<()> {
//!     let engine = Engine::open("sqlite://hello.db").await?;
//!     let hellos = engine.workflow("hello", hello)?;
//!     println!("{}", hellos.start("world".into()).id("hello-world").await?.result().await?);
//!     Ok(())
//! }
//! ```
//!
//! # Where to go
//!
//! - [`Engine`] registers workflows and starts runs; [`Builder`] sets its options.
//! - [`Ctx`] is the first argument of a workflow: steps, sleeps, events, children, activities.
//! - [`WorkflowRef`] starts and finds the runs of a workflow; [`RunHandle`] waits for a run and controls it.
//! - Four more ways to write a workflow: [`machines`] are state machines with callbacks, [`relays`] pass a payload
//!   from step to step, [`agents`] call language models, tools and people, and [`contracts`] move documents
//!   through approvals.
//! - [`requests`] ask people and have the inbox; [`Records`] are documents outside any run.
//! - [`admin`] is for operators, [`model`] for authors of models, [`kernel`] has the rows and the ledger.
//! - The crate `windlass-testkit` tests workflows in virtual time, with a crash at every commit.
//!
//! # Features
//!
//! | feature | what it adds | default |
//! |---|---|---|
//! | `sqlite` | the store in an SQLite file | yes |
//! | `steps` | workflows as async functions: [`Ctx`], [`Engine::workflow`] | yes |
//! | `postgres` | the store in PostgreSQL, for several processes | |
//! | `agents` | [`agents`]: programs that call language models, tools and people | |
//! | `contracts` | [`contracts`]: documents with a lifecycle, approvals and compiled workflows | |
//! | `machines` | [`machines`]: state machines with activities, timers and signals | |
//! | `mcp` | [`agents::McpServer`]: tools of MCP servers for agents; includes `agents` | |
//! | `relays` | [`relays`]: a payload that goes from step to step, with hooks | |
//! | `webhooks` | signed webhooks, steps behind HTTP, safe outbound calls | |
//! | `schemas` | JSON schemas for the answers to [`requests`] | |
//! | `smtp` | the mails of contracts, sent over SMTP; with it comes `contracts` | |
//! | `full` | all of them | |
//!
//! The store in memory (`memory:`) is always there.

#![warn(clippy::missing_errors_doc)]
#![cfg_attr(
    not(all(
        feature = "agents",
        feature = "contracts",
        feature = "machines",
        feature = "relays",
        feature = "steps"
    )),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "links to items of features that are left out"
    )
)]

mod address;
pub mod admin;
#[cfg(feature = "agents")]
pub mod agents;
mod archive;
mod builder;
mod engine;
#[cfg(feature = "smtp")]
pub mod mail;
pub mod model;
#[cfg(feature = "webhooks")]
pub mod outbound;
#[cfg(feature = "relays")]
pub mod relays;
mod runs;
mod store;
#[cfg(any(feature = "agents", feature = "webhooks"))]
mod tls;
#[cfg(feature = "webhooks")]
pub mod webhooks;

pub mod requests;

pub use address::Address;
pub use builder::Builder;
pub use engine::Engine;
pub use runs::{Runs, RunsPage};
pub use windlass_engine::{
    Document, Listing, PutRecord, Receipt, ReceiptError, ReceiptOutcome, RecordChange, Records,
    SendByKey, SentByKey,
};
pub use windlass_engine::{Explanation, Missed, Overlap, Reason, TaskContext, TaskFailure, Why};
pub use windlass_kernel as kernel;
pub use windlass_kernel::{
    Backoff, Error, ErrorCode, ErrorKind, Expect, IntoDuration, Limits, LogLevel, Namespace, Rate,
    RetryLimit, RetryPolicy, Run, RunKey, RunStatus, SqlValue, Store, Timestamp, Uuid,
};
#[cfg(feature = "contracts")]
pub use windlass_models::contracts;
#[cfg(feature = "machines")]
pub use windlass_models::machines;
#[cfg(feature = "steps")]
pub use windlass_models::steps;
#[cfg(feature = "steps")]
pub use windlass_models::steps::{
    Attempt, Ctx, NonRetryable, ReceivedEvent, StepCall, StepError, StepTx,
};
pub use windlass_models::{AnyError, RunHandle, SetSchedule, Start, Status, Value, WorkflowRef};

/// The result of a workflow, a step or an activity; `?` converts any error.
pub type Result<T, E = AnyError> = std::result::Result<T, E>;

#[cfg(doctest)]
mod compile_tests;
#[cfg(doctest)]
mod documents;
