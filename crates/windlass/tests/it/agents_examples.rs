//! The examples of agents on every store: what they say, that their ledgers show nothing of it, and that each event
//! has a chain of causes to the first one.

use std::sync::Arc;

use windlass::agents::Provider;
use windlass::kernel::{LoadSteps, Query};
use windlass::{Engine, RunKey};
use windlass_testkit::scripted_llm::ScriptedLlm;

use crate::agents_fixtures::{assert_redacted, tree_events};
use crate::harness::{Harness, on_every_store};

#[path = "../../examples/agents/approval.rs"]
mod approval;
#[path = "../../examples/agents/chat.rs"]
mod chat;
#[path = "../../examples/agents/evaluator.rs"]
mod evaluator;
#[path = "../../examples/agents/orchestrator.rs"]
mod orchestrator;
#[path = "../../examples/agents/people.rs"]
mod people;
#[path = "../../examples/agents/provider.rs"]
#[allow(dead_code, reason = "the tests always use the script")]
mod provider;
#[path = "../../examples/agents/router.rs"]
mod router;
#[path = "../../examples/agents/tools.rs"]
mod tools;

on_every_store!(
    a_chat_session,
    parallel_tools,
    an_approval,
    a_router,
    an_orchestrator_with_workers,
    an_evaluator_loop,
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
    _server: ScriptedLlm,
}

async fn setup(h: &Harness) -> Setup {
    let server = ScriptedLlm::start(provider::script()).unwrap();
    let provider = provider::client(&server).unwrap();
    Setup { engine: h.engine().await, provider, _server: server }
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
