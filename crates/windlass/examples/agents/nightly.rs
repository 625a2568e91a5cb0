//! A nightly batch: a thousand documents, each a run of its own, whose calls go into batches of the provider at half
//! the price.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, CallResult, Continuation, Lane, LaneOptions, Provider, SpendQuery, Workflow, spend,
};
use windlass::{Engine, Result, RunKey};

use super::provider::request;

async fn summarise(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let document: String = workflow.get("document")?;
    workflow.transcript("summary").push_user(&format!("Summarise: {document}"))?;
    Ok(next.llm(request("summary"), "summary", "done"))
}

async fn done(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let text = workflow.response("summary")?.text()?;
    workflow.set("said", &text)?;
    Ok(next.halt())
}

pub(crate) async fn run(
    engine: &Engine,
    provider: Arc<dyn Provider>,
    about: &str,
    documents: usize,
) -> Result<(RunKey, String)> {
    // Until eight in the morning there is time for batches. Calls that are late go live.
    let options = LaneOptions::default().gather("1 second").poll("100 ms", "1 minute");
    let agent = Agent::new("nightly", "summarise")
        .function("summarise", summarise)
        .function("done", done)
        .output("said")
        .lane(Lane::within("8 hours")?)
        .lane_options(options)
        .provider(provider);
    let nightly = engine.agent(agent)?;
    let input = |n: usize| json!({ "document": format!("document {n} about {about}") });
    let inputs = (0..documents).map(|n| (format!("nightly-{n}"), input(n)));
    let runs = nightly.start_batch(inputs).await?;
    let mut summaries = 0;
    for run in &runs {
        let said: Value = run.result().await?;
        summaries += usize::from(said.as_str().is_some_and(|text| text.contains(about)));
    }
    let query = SpendQuery { workflow: Some("nightly".into()), ..SpendQuery::default() };
    let figures = spend(engine.core(), &query).await?;
    let cost = figures.iter().fold(Default::default(), |sum, day| day.cost.plus(sum));
    Ok((runs[0].run_key(), format!("{summaries} summaries for {cost}")))
}
