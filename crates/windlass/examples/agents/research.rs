//! A research tree with a budget: a lead asks researchers, which run at the same time. Each has a share, and all of
//! them together stay below the budget of the run.

use std::sync::Arc;

use serde_json::json;
use windlass::agents::{Agent, AgentLoop, Budget, Provider, SubAgent, budgets};
use windlass::{Engine, Result, RunKey};

const MODEL: &str = "claude-haiku-4-5";

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
) -> Result<(RunKey, String)> {
    let researcher = SubAgent::new("researcher", "Finds out one fact.", "researcher")
        .budget(Budget::usd(0.05).calls(5));
    let lead = AgentLoop::new("lead", "anthropic", MODEL)
        .param("max_tokens", 1_024)
        .system("You ask researchers and put their findings together.")
        .turns_max(10)
        .sub_agent(researcher);
    let researcher = AgentLoop::new("researcher", "anthropic", MODEL).param("max_tokens", 512);
    // A run that needs more asks somebody with this role, and waits.
    let budget = Budget::usd(0.5).calls(40).ask("role:owner");
    let agent = Agent::new("research", "lead")
        .agent_loop(lead)
        .agent_loop(researcher)
        .output("answer")
        .budget(budget)
        .provider(provider);
    let prompt = json!({ "prompt": format!("Find out about {about}.") });
    let run = engine.agent(agent)?.start(prompt).id("research-1").await?;
    let said = run.result().await?;
    let root = run.run_key().to_string();
    let accounts = budgets(engine.core(), Some(("run", "research-1")), None, 10).await?;
    let spent = accounts.iter().find(|named| named.id == root).map(|named| &named.account.spent);
    let calls = spent.map_or(0, |spent| spent.calls);
    Ok((run.run_key(), format!("{calls} calls: {}", said.as_str().unwrap_or_default())))
}
