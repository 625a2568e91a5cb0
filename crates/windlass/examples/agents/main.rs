//! Agents: a chat session, parallel tools, an approval, a router, an orchestrator with workers, and a loop of
//! a writer and an evaluator, a nightly batch, a research tree with a budget, racing agents, and an agent inside a
//! workflow of steps. Without a key they run against a scripted provider on loopback.
//!
//!     cargo run -p windlass --features agents --example agents [name]

#![allow(clippy::disallowed_methods, reason = "the examples live in the real world")]

mod approval;
mod chat;
mod evaluator;
mod nightly;
mod orchestrator;
mod people;
mod provider;
mod race;
mod research;
mod router;
mod tools;
mod triage;

use std::sync::Arc;

use windlass::{Engine, Result};

const NAMES: [&str; 10] = [
    "chat",
    "tools",
    "approval",
    "router",
    "orchestrator",
    "evaluator",
    "nightly",
    "research",
    "race",
    "triage",
];
/// How many documents the nightly batch has, with the script and with a provider that wants money.
const DOCUMENTS: (usize, usize) = (1_000, 3);

#[tokio::main]
async fn main() -> Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let engine = Engine::open("memory:").await?;
    let (provider, server) = provider::start()?;
    let documents = if server.is_some() { DOCUMENTS.0 } else { DOCUMENTS.1 };
    for name in NAMES.iter().filter(|name| asked.is_empty() || asked.iter().any(|a| a == *name)) {
        let provider = Arc::clone(&provider);
        let (_, said) = match *name {
            "chat" => chat::run(&engine, provider, "a windlass").await?,
            "tools" => tools::run(&engine, provider, "a trip").await?,
            "approval" => approval::run(&engine, provider, "the late parcel").await?,
            "router" => router::run(&engine, provider, "I paid twice").await?,
            "orchestrator" => orchestrator::run(&engine, provider, "the sea").await?,
            "evaluator" => evaluator::run(&engine, provider, "a haiku").await?,
            "nightly" => nightly::run(&engine, provider, "the day", documents).await?,
            "research" => research::run(&engine, provider, "the sea").await?,
            "race" => race::run(&engine, provider, "a windlass").await?,
            _ => triage::run(&engine, provider, "my invoice").await?,
        };
        println!("{name}: {said}");
    }
    engine.stop("1 second").await?;
    Ok(())
}
