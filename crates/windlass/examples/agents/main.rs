//! Agents: a chat session, parallel tools, an approval, a router, an orchestrator with workers, and a loop of
//! a writer and an evaluator. Without a key they run against a scripted provider on loopback.
//!
//!     cargo run -p windlass --features agents --example agents [name]

#![allow(clippy::disallowed_methods, reason = "the examples live in the real world")]

mod approval;
mod chat;
mod evaluator;
mod orchestrator;
mod people;
mod provider;
mod router;
mod tools;

use std::sync::Arc;

use windlass::{Engine, Result};

const NAMES: [&str; 6] = ["chat", "tools", "approval", "router", "orchestrator", "evaluator"];

#[tokio::main]
async fn main() -> Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let engine = Engine::open("memory:").await?;
    let (provider, _server) = provider::start()?;
    for name in NAMES.iter().filter(|name| asked.is_empty() || asked.iter().any(|a| a == *name)) {
        let provider = Arc::clone(&provider);
        let (_, said) = match *name {
            "chat" => chat::run(&engine, provider, "a windlass").await?,
            "tools" => tools::run(&engine, provider, "a trip").await?,
            "approval" => approval::run(&engine, provider, "the late parcel").await?,
            "router" => router::run(&engine, provider, "I paid twice").await?,
            "orchestrator" => orchestrator::run(&engine, provider, "the sea").await?,
            _ => evaluator::run(&engine, provider, "a haiku").await?,
        };
        println!("{name}: {said}");
    }
    engine.stop("1 second").await?;
    Ok(())
}
