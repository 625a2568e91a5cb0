//! An orchestrator: the model plans topics, one worker for each of them runs as a branch, and the join puts
//! their findings together.

use std::sync::Arc;

use serde_json::json;
use windlass::agents::{Agent, CallResult, Continuation, ForkBranch, Provider, Workflow};
use windlass::{Engine, Result, RunKey};

use super::provider::request;

async fn plan(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let about: String = workflow.get("about")?;
    let text = format!("Name topics to research about {about}, one on each line.");
    workflow.transcript("plan").push_user(&text)?;
    Ok(next.llm(request("plan"), "plan", "fork"))
}

async fn fork(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let topics = workflow.response("plan")?.text()?;
    let branch = |(n, topic): (usize, &str)| {
        ForkBranch::new(format!("worker-{n}"), "research").with("topic", topic).with("n", n)
    };
    // A model may name many topics; a fork has at most 128 branches.
    let branches = topics.lines().take(8).enumerate().map(branch).collect();
    Ok(next.fork_join(branches, "join"))
}

// Each worker takes its own keys out and leaves one: then the join has no conflicts.
async fn research(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let (topic, about): (String, String) = (workflow.take("topic")?, workflow.get("about")?);
    let name = format!("research-{topic}");
    workflow.transcript(&name).push_user(&format!("Tell me about {topic} and {about}."))?;
    let n: usize = workflow.take("n")?;
    Ok(next.llm(request(&name), format!("finding-{n}"), "found"))
}

async fn found(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn join(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let keys: Vec<String> =
        workflow.keys().filter(|k| k.starts_with("finding-")).map(Into::into).collect();
    let mut findings = Vec::new();
    for key in &keys {
        findings.push(workflow.response(key)?.text()?);
    }
    workflow.set("said", &format!("{} findings: {}", findings.len(), findings.join(" ")))?;
    Ok(next.halt())
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let agent = Agent::new("orchestrator", "plan")
        .function("plan", plan)
        .function("fork", fork)
        .function("research", research)
        .function("found", found)
        .function("join", join)
        .output("said")
        .provider(provider);
    let run = engine.agent(agent)?.start(json!({ "about": about })).id("orchestrator-1").await?;
    let said = run.result().await?;
    Ok((run.run_key(), said.as_str().unwrap_or_default().to_owned()))
}
