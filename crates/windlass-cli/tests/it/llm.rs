//! Batches, lanes, budgets and spending of agents on the command line.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::Engine;
use windlass::agents::{
    Agent, AnthropicClient, Budget, CallResult, ClientOptions, Continuation, Lane, LaneOptions,
    LlmRequest, Workflow,
};
use windlass_server::auth::Auth;
use windlass_testkit::scripted_llm::{BatchPlan, Op, Script, ScriptedLlm};

use crate::support::{CommandOutput, run, windlass};

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hello")?;
    let request = LlmRequest::new("anthropic", "claude-haiku-4-5").param("max_tokens", 50);
    Ok(next.llm(request.transcript("chat"), "answer", "end"))
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

/// The command line against the server of a test.
struct Cli(String);

impl Cli {
    async fn run(&self, args: &str) -> CommandOutput {
        let mut command = windlass();
        command.env("WINDLASS_URL", &self.0).args(args.split(' '));
        tokio::task::spawn_blocking(move || run(command)).await.unwrap()
    }

    async fn json(&self, args: &str) -> Value {
        self.run(&format!("{args} -o json")).await.expect(0).json()
    }

    async fn until(&self, args: &str, is: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..600 {
            let found = self.json(args).await;
            if is(&found) {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("windlass {args} does not show what is expected");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_list_flush_cancel_and_count() {
    let slow = BatchPlan { polls: 1_000_000, ..BatchPlan::default() };
    let llm = ScriptedLlm::start(Script::echo().batch(slow).batch(BatchPlan::default())).unwrap();
    let engine = Engine::open("memory:").await.unwrap();
    let client = AnthropicClient::new(ClientOptions::new("key").base_url(llm.url())).unwrap();
    let agent = Agent::new("asker", "ask")
        .function("ask", ask)
        .function("end", end)
        .budget(Budget::usd(1.0))
        .lane(Lane::Batch)
        .lane_options(LaneOptions::default().gather("1 hour").poll("10 ms", "10 ms"))
        .provider(Arc::new(client));
    let askers = engine.agent(agent).unwrap();
    let routes = vec![windlass_server::llm::routes()];
    let options = windlass_server::Options { auth: Auth::Loopback, routes, ..Default::default() };
    let router = windlass_server::router(&engine, options).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let cli = Cli(format!("http://{}/api", listener.local_addr().unwrap()));
    tokio::spawn(windlass_server::serve(listener, router, std::future::pending()));

    let runs = [
        askers.start(json!({})).id("a").await.unwrap(),
        askers.start(json!({})).id("b").await.unwrap(),
    ];
    cli.until("llm lanes", |found| found["lanes"][0]["waiting"] == 2).await;
    let table = cli.run("llm lanes").await.expect(0).stdout;
    assert!(table.contains("anthropic") && table.contains("WAITING"), "{table}");
    let flushed = cli.run("llm flush anthropic").await.expect(0).stdout;
    assert!(flushed.contains("1 lanes send what waits"), "{flushed}");

    // The first batch never ends, so somebody cancels it; its calls go into the next one.
    let in_flight = cli
        .until("llm batches --status in_flight", |found| {
            found["batches"].as_array().is_some_and(|found| found.len() == 1)
        })
        .await;
    let intent = in_flight["batches"][0]["intent"].as_str().unwrap().to_owned();
    let shown = cli.run(&format!("llm batches {intent}")).await.expect(0).stdout;
    assert!(shown.contains("provider_batch_id") && shown.contains(&intent), "{shown}");
    cli.run(&format!("llm cancel {intent}")).await.expect(0);
    cli.until("llm lanes", |found| found["lanes"][0]["waiting"] == 2).await;
    cli.run("llm flush anthropic").await.expect(0);
    for run in &runs {
        let _: Value = run.result().await.unwrap();
    }
    assert_eq!((llm.report().messages, llm.report().count(Op::CreateBatch)), (2, 2));
    cli.run(&format!("llm cancel {intent}")).await.expect(1);
    let table = cli.run("llm batches").await.expect(0).stdout;
    assert!(table.contains("ended") && table.contains(&intent), "{table}");

    let key = runs[0].run_key().to_string();
    let budgets = cli.json("llm budgets --workflow asker").await;
    assert_eq!(budgets["budgets"].as_array().unwrap().len(), 2);
    cli.run(&format!("llm raise {key} --usd 0.5")).await.expect(0);
    let budget = cli.json(&format!("llm budgets {key}")).await;
    assert_eq!(budget["limits"]["usd_nanos"], 1_500_000_000_u64, "{budget}");

    let spend = cli.json("llm spend --workflow asker").await["spend"].clone();
    assert_eq!((&spend[0]["calls"], &spend[0]["lane"]), (&json!(2), &json!("batch")));
    assert_eq!(spend[0]["cost"], json!(llm.report().money));
    let table = cli.run("llm spend").await.expect(0).stdout;
    assert!(table.contains("claude-haiku-4-5") && table.contains("$0.0"), "{table}");
    assert_eq!(cli.json(&format!("llm spend --root {key}")).await["calls"], 1);
    cli.run("llm spend --from yesterday").await.expect(1);
    cli.run("llm batches none").await.expect(3);
    cli.run("llm flush none").await.expect(3);
    engine.stop("5 seconds").await.unwrap();
}
