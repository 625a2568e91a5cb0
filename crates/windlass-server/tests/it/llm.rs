//! Batches, lanes, budgets and spending over HTTP.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::agents::{
    Agent, AnthropicClient, Budget, CallResult, ClientOptions, Continuation, Lane, LaneOptions,
    LlmRequest, Workflow, prices::PriceTable,
};
use windlass::{RetryLimit, RetryPolicy};
use windlass_server::Options;
use windlass_testkit::scripted_llm::{Lose, Rule, Script, ScriptedLlm};

use crate::harness::{Kind, Server, assert_error, on_every_store, open, wait_until};

on_every_store!(operators_see_and_change_what_calls_cost, a_tree_has_the_prices_of_its_agents);

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    workflow.transcript("chat").push_user("hello")?;
    let request = LlmRequest::new("anthropic", "claude-haiku-4-5").param("max_tokens", 50);
    Ok(next.llm(request.transcript("chat"), "answer", "end"))
}

async fn end(_: &mut Workflow, next: Continuation) -> CallResult {
    Ok(next.halt())
}

async fn operators_see_and_change_what_calls_cost(kind: Kind) {
    let routes = vec![windlass_server::llm::routes()];
    let server = Server::start_with(kind, Options { routes, ..open() }).await;
    let llm = ScriptedLlm::start(Script::echo()).unwrap();
    let client = AnthropicClient::new(ClientOptions::new("key").base_url(llm.url())).unwrap();
    let agent = Agent::new("asker", "ask")
        .function("ask", ask)
        .function("end", end)
        .budget(Budget::usd(1.0))
        .lane(Lane::Batch)
        .lane_options(LaneOptions::default().gather("1 hour").poll("10 ms", "10 ms"))
        .provider(Arc::new(client));
    let askers = server.engine.agent(agent).unwrap();
    let run = askers.start(json!({})).id("a").await.unwrap();
    askers.start(json!({})).id("b").await.unwrap();

    // The calls wait until somebody sends them.
    wait_until("both calls wait in the lane", async || {
        server.get_ok("/lanes").await["lanes"][0]["waiting"] == 2
    })
    .await;
    assert_eq!(server.post_ok("/lanes/anthropic/flush", json!({})).await["asked"], 1);
    server.wait_for_status("asker", "a", "complete").await;
    server.wait_for_status("asker", "b", "complete").await;
    let ended = "/batches?status=ended&limit=10";
    wait_until("the batch has ended", async || {
        server.get_ok(ended).await["batches"].as_array().is_some_and(|found| found.len() == 1)
    })
    .await;
    let batch = server.get_ok(ended).await["batches"][0].clone();
    assert_eq!((&batch["members"], &batch["provider"]), (&json!(2), &json!("anthropic")));
    let intent = batch["intent"].as_str().unwrap();
    assert_eq!(server.get_ok(&format!("/batches/{intent}")).await, batch);
    let cancel = server.post(&format!("/batches/{intent}/cancel"), json!({})).await;
    assert_error(cancel, (409, "BATCH_ENDED"));

    let key = run.run_key();
    let budgets = server.get_ok("/budgets?workflow=asker").await;
    assert_eq!(budgets["budgets"].as_array().unwrap().len(), 2);
    let raise = format!("/budgets/{key}/raise");
    let raised = server.post_ok(&raise, json!({ "usd": 0.5 })).await;
    assert_eq!(raised["limits"]["usd_nanos"], 1_500_000_000_u64, "{raised}");
    assert_eq!(server.get_ok(&format!("/budgets/{key}")).await, raised);
    for wrong in [json!({}), json!({ "usd": -1 }), json!({ "money": 1 }), json!([])] {
        assert_error(server.post(&raise, wrong).await, (400, "INVALID_BUDGET"));
    }

    let spend = server.get_ok("/spend?workflow=asker").await["spend"].clone();
    assert_eq!((spend.as_array().unwrap().len(), &spend[0]["calls"]), (1, &json!(2)));
    assert_eq!(
        (&spend[0]["lane"], &spend[0]["cost"]),
        (&json!("batch"), &json!(llm.report().money))
    );
    assert_eq!(server.get_ok(&format!("/spend/{key}")).await["calls"], 1);

    for (path, expect) in [
        ("/batches/none", (404, "BATCH_NOT_FOUND")),
        ("/batches?limit=0", (400, "INVALID_QUERY")),
        ("/batches?status=ended&provider=x", (400, "INVALID_QUERY")),
        ("/batches?colour=red", (400, "INVALID_QUERY")),
        ("/budgets/none", (404, "BUDGET_NOT_FOUND")),
        ("/spend?day=1", (400, "INVALID_QUERY")),
        ("/spend?from=yesterday", (400, "INVALID_QUERY")),
        ("/spend?to=2026-13-01", (400, "INVALID_QUERY")),
        ("/spend/0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10", (404, "INSTANCE_NOT_FOUND")),
    ] {
        assert_error(server.get(path).await, expect);
    }
    let flush = server.post("/lanes/none/flush", json!({})).await;
    assert_error(flush, (404, "BATCH_NOT_FOUND"));
    server.stop().await;
}

async fn a_tree_has_the_prices_of_its_agents(kind: Kind) {
    let routes = vec![windlass_server::llm::routes()];
    let server = Server::start_with(kind, Options { routes, ..open() }).await;
    // The reply of the first attempt is lost.
    let script = Script::new().rule(Rule::any().text("x").lose(Lose::After).times(1));
    let llm = ScriptedLlm::start(script.rule(Rule::any().text("yes"))).unwrap();
    let client = AnthropicClient::new(ClientOptions::new("key").base_url(llm.url())).unwrap();
    let table = json!({ "version": "own-1", "models": [
        { "model": "claude-haiku-4-5", "input": 1_000.0, "output": 5_000.0 },
    ] });
    let policy = RetryPolicy {
        limit: RetryLimit::Times(2),
        delay: Duration::from_millis(1),
        ..RetryPolicy::none()
    };
    let agent = Agent::new("own", "ask")
        .function("ask", ask)
        .function("end", end)
        .retry_policy(policy)
        .price_table(PriceTable::from_json(&table.to_string()).unwrap())
        .provider(Arc::new(client));
    let run = server.engine.agent(agent).unwrap().start(json!({})).id("a").await.unwrap();
    server.wait_for_status("own", "a", "complete").await;
    let of_day = server.get_ok("/spend?workflow=own").await["spend"][0].clone();
    let of_tree = server.get_ok(&format!("/spend/{}", run.run_key())).await;
    assert_eq!((&of_tree["calls"], &of_tree["uncertain_calls"]), (&json!(1), &json!(1)));
    assert_eq!((&of_tree["prices"], &of_tree["cost"]), (&json!("own-1"), &of_day["cost"]));
    // The most of an attempt without an answer: fifty tokens of output and its request.
    let most = of_tree["uncertain_cost"].as_u64().unwrap();
    assert!(most >= of_day["uncertain_cost"].as_u64().unwrap(), "{of_tree} {of_day}");
    server.stop().await;
}
