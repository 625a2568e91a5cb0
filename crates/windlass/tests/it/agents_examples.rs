//! The examples of agents on every store: what they say, that their ledgers show nothing of it, and that each event
//! has a chain of causes to the first one.

use std::sync::Arc;

use windlass::agents::{Provider, batches, budgets};
use windlass::kernel::{LoadSteps, Query};
use windlass::{Engine, RunKey};
use windlass_testkit::scripted_llm::{Op, ScriptedLlm};

use crate::agents_fixtures::{assert_redacted, tree_events};
use crate::harness::{Harness, on_every_store, until};

#[path = "../../examples/agents/approval.rs"]
mod approval;
#[path = "../../examples/agents/chat.rs"]
mod chat;
#[path = "../../examples/agents/evaluator.rs"]
mod evaluator;
#[path = "../../examples/agents/nightly.rs"]
mod nightly;
#[path = "../../examples/agents/orchestrator.rs"]
mod orchestrator;
#[path = "../../examples/agents/people.rs"]
mod people;
#[path = "../../examples/agents/provider.rs"]
#[allow(dead_code, reason = "the tests always use the script")]
mod provider;
#[path = "../../examples/agents/race.rs"]
mod race;
#[path = "../../examples/agents/research.rs"]
mod research;
#[path = "../../examples/agents/router.rs"]
mod router;
#[path = "../../examples/agents/tools.rs"]
mod tools;
#[path = "../../examples/agents/triage.rs"]
mod triage;

on_every_store!(
    a_chat_session,
    parallel_tools,
    an_approval,
    a_router,
    an_orchestrator_with_workers,
    an_evaluator_loop,
    a_nightly_batch,
    a_research_tree_with_a_budget,
    racing_agents,
    an_agent_inside_a_workflow_of_steps,
);

/// In the input, the prompts, the tools, the answers of people and, because the script repeats it, in the
/// text of the model.
const SECRET: &str = "s3cr3t-plan";
/// Other texts of the script and values of the functions.
const SAID: [&str; 5] =
    ["You said", "Tell me about", "snow, for", "fine, about", "one on each line"];

struct Setup {
    engine: Engine,
    provider: Arc<dyn Provider>,
    server: ScriptedLlm,
}

async fn setup(h: &Harness) -> Setup {
    let server = ScriptedLlm::start(provider::script()).unwrap();
    let provider = provider::client(&server).unwrap();
    Setup { engine: h.engine().await, provider, server }
}

// The rows have the secret, the ledger has not.
async fn check(engine: &Engine, run: RunKey) {
    let events = tree_events(engine, run).await;
    assert_redacted(&events, &[SECRET]);
    assert_redacted(&events, &SAID);
    let query = Query::Tree { root: run, after: None, limit: 100 };
    let runs = engine.admin().store().list(query).await.unwrap().runs().unwrap();
    let keys = runs.iter().map(|run| run.run_key).collect();
    let loaded = engine.admin().store().load_with(keys, LoadSteps::All).await.unwrap();
    let steps = loaded.iter().flat_map(|loaded| &loaded.steps);
    let mut bodies = steps.flat_map(|step| [&step.input, &step.result]).flatten();
    assert!(
        bodies.any(|body| String::from_utf8_lossy(&body.bytes).contains(SECRET)),
        "the secret is nowhere, so the scan shows nothing"
    );
}

async fn a_chat_session(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = chat::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    assert_eq!(said, format!("You said: And who uses {SECRET}?"));
    check(&it.engine, run).await;
    let transcripts = windlass::agents::transcripts(it.engine.core(), run).await.unwrap();
    assert_eq!(transcripts["chat"].len(), 4);
}

async fn parallel_tools(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = tools::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    assert!(said.starts_with("You said: "), "{said}");
    let transcripts = windlass::agents::transcripts(it.engine.core(), run).await.unwrap();
    let results = transcripts["chat"][2].get();
    assert!(results.contains(&format!("snow, for {SECRET}")), "{results}");
    assert!(results.contains("no station in Bergen"), "{results}");
    check(&it.engine, run).await;
}

async fn an_approval(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = approval::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    assert_eq!(said, "sent as tc_");
    check(&it.engine, run).await;
}

async fn a_router(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = router::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    assert_eq!(said, format!("You said: {SECRET}"));
    check(&it.engine, run).await;
}

async fn an_orchestrator_with_workers(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = orchestrator::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    assert!(said.starts_with("3 findings: "), "{said}");
    for topic in ["tides", "winds", "salt"] {
        assert!(said.contains(&format!("Tell me about {topic} and {SECRET}.")), "{said}");
    }
    check(&it.engine, run).await;
}

async fn an_evaluator_loop(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = evaluator::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    assert!(said.starts_with("after "), "{said}");
    check(&it.engine, run).await;
    // The compaction is a step with the summary and the range that was kept.
    let store = it.engine.admin().store();
    let loaded = store.load_with(vec![run], LoadSteps::All).await.unwrap();
    let steps = loaded[0].steps.iter();
    let compactions: Vec<_> = steps.filter(|step| step.kind.as_str() == "compaction").collect();
    assert!(!compactions.is_empty());
    for step in compactions {
        let record: serde_json::Value = step.result.as_ref().unwrap().read().unwrap();
        assert_eq!(record["transcript"], "judge", "{record}");
        assert!(record["dropped"].as_u64().unwrap() > 0, "{record}");
    }
}

async fn a_nightly_batch(h: Arc<Harness>) {
    let it = setup(&h).await;
    let nightly = nightly::run(&it.engine, it.provider.clone(), SECRET, 1_000).await;
    let (run, said) = nightly.unwrap();
    let report = it.server.report();
    assert_eq!(said, format!("1000 summaries for {}", report.money));
    assert_eq!((report.messages, report.count(Op::Live)), (1_000, 0));
    check(&it.engine, run).await;
    let batches = batches(it.engine.core(), None, None, 100).await.unwrap();
    assert_eq!(batches.iter().map(|batch| batch.members).sum::<u64>(), 1_000);
    assert_eq!(batches.len() as u64, report.count(Op::CreateBatch));
}

async fn a_research_tree_with_a_budget(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = research::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    // Two calls of the lead, and one of each researcher.
    assert!(said.starts_with("4 calls: You said: "), "{said}");
    assert!(said.contains("How salty is it?") || said.contains("When is high tide?"), "{said}");
    check(&it.engine, run).await;
    let accounts = budgets(it.engine.core(), None, None, 10).await.unwrap();
    // One of the run, and one of each researcher.
    assert_eq!(accounts.len(), 3, "{accounts:?}");
    assert!(accounts.iter().all(|named| named.account.reserved.is_empty()));
    let whole = accounts.iter().find(|named| named.id == run.to_string()).unwrap();
    assert_eq!(whole.account.spent.usd_nanos, it.server.report().money);
}

async fn racing_agents(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = race::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    assert_eq!(said, format!("the quick one: You said: Explain {SECRET}. Be brief."));
    let store = it.engine.admin().store();
    until("the one that lost has ended", || async {
        let query = Query::Tree { root: run, after: None, limit: 10 };
        let runs = store.list(query).await.unwrap().runs().unwrap();
        let lost = runs.iter().filter(|run| run.status.is_ended() && run.output.is_none()).count();
        runs.len() == 3 && lost == 1
    })
    .await;
    check(&it.engine, run).await;
}

async fn an_agent_inside_a_workflow_of_steps(h: Arc<Harness>) {
    let it = setup(&h).await;
    let (run, said) = triage::run(&it.engine, it.provider.clone(), SECRET).await.unwrap();
    assert_eq!(said, "assigned to billing");
    check(&it.engine, run).await;
}
