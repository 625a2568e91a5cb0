//! The admin API: its names and shapes, and its effect on runs of every model.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use windlass::machines::{
    ActivityError, ActivityOptions, CircuitBreakerConfig, Workflow, WorkflowAction, WorkflowError,
    WorkflowSignal,
};
use windlass::{AnyError, RetryPolicy, TaskContext};
use windlass_server::ServeOptions;

use crate::harness::{Kind, Server, assert_error, on_both_stores, open, read, wait_until};

on_both_stores!(
    responses_have_the_specified_shapes,
    runs_of_every_model_are_listed,
    signals_and_cancellation,
    events_include_their_bodies,
    dead_letters_are_requeued_deleted_and_purged,
    a_retry_marks_the_dead_letter_as_requeued,
    statistics_of_the_last_hour,
    breakers_are_listed_and_closed,
    a_worker_is_drained,
);

/// Weighs, rests, and waits for the signal `go`.
struct Parcel(Value);

impl Workflow for Parcel {
    const TYPE: &'static str = "parcel";
    type Input = Value;
    type Output = Value;

    fn new(input: Value) -> Self {
        Self(input)
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let breaker = CircuitBreakerConfig {
            failure_threshold: 1,
            reset_timeout: Duration::from_secs(600),
            ..CircuitBreakerConfig::default()
        };
        let options = ActivityOptions {
            circuit_breaker: (self.0["guarded"] == true).then_some(breaker),
            priority: self.0["priority"].as_i64().unwrap_or(0) as i16,
            ..ActivityOptions::retrying(RetryPolicy::none())
        };
        let kind = self.0["activity"].as_str().unwrap_or("weigh");
        vec![WorkflowAction::activity_with("scale", kind, self.0.clone(), options)]
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::timer("rest", Duration::from_millis(5))]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(WorkflowError::from(error))]
    }

    fn on_signal(&mut self, signal: &WorkflowSignal) -> Vec<WorkflowAction> {
        match signal.signal_type.as_str() {
            "go" => vec![WorkflowAction::complete(signal.payload.clone())],
            _ => vec![],
        }
    }
}

async fn start(kind: Kind) -> Server {
    let engine = windlass::admin::Options {
        cancel_grace: Duration::from_millis(50),
        ..windlass::admin::Options::default()
    };
    let server = Server::start_as(kind, open(), engine, ServeOptions::default()).await;
    server.engine.machine::<Parcel>().unwrap();
    let tried = Arc::new(Mutex::new(BTreeSet::new()));
    let weigh = move |context: TaskContext, input: Value| {
        let again = !tried.lock().unwrap().insert(context.task_id);
        async move {
            match input["broken"].as_str() {
                Some("once") if again => {
                    context.cancelled().await;
                    Ok(json!({ "kg": 2 }))
                }
                None if input["broken"] != true => Ok(json!({ "kg": 2 })),
                _ => Err::<Value, AnyError>(AnyError::msg("the scale is broken")),
            }
        }
    };
    server.engine.activity("weigh", weigh).unwrap();
    server
}

/// Starts a parcel and returns its run key.
async fn parcel(server: &Server, id: &str, input: Value, status: &str) -> String {
    let run = server.run("parcel", id, input, status).await;
    run["meta"]["runKey"].as_str().unwrap().to_owned()
}

#[track_caller]
fn keys(value: &Value, expect: &str) {
    let found: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let expect: BTreeSet<&str> = expect.split_whitespace().collect();
    assert_eq!(found, expect);
}

const WORKFLOW: &str = "id workflow_type status input result error created_at updated_at \
    started_at completed_at trace_id span_id run_id generation model parent_id labels paused";
const TASK: &str = "id workflow_id activity_id activity_type queue input status priority \
    scheduled_at visible_at claimed_by claimed_at heartbeat_at attempt max_attempts last_error \
    start_to_close_timeout_ms heartbeat_timeout_ms";
const LETTER: &str = "id original_task_id workflow_id activity_id activity_type queue input \
    attempts last_error error_history dead_at requeued_at requeue_count";

async fn responses_have_the_specified_shapes(kind: Kind) {
    let server = start(kind).await;
    server.run("outside", "o-1", json!({}), "waiting").await;
    parcel(&server, "p-1", json!({ "broken": true }), "errored").await;
    let health = server.get_ok("/durable/health").await;
    keys(
        &health,
        "status total_workers active_workers workers_accepting total_capacity current_load \
         load_percentage pending_tasks claimed_tasks queue_depth_by_type running_workflows \
         pending_workflows dlq_size open_circuit_breakers",
    );
    assert_eq!(health["status"], "healthy");
    assert_eq!((&health["total_workers"], &health["workers_accepting"]), (&json!(1), &json!(1)));
    assert_eq!(health["queue_depth_by_type"], json!({ "nobody-does-this": 1 }));
    assert_eq!((&health["pending_tasks"], &health["dlq_size"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&health["running_workflows"], &health["pending_workflows"]),
        (&json!(1), &json!(0))
    );
    assert!(health["total_capacity"].as_u64().unwrap() > 0);

    let workers = server.get_ok("/durable/workers").await;
    keys(&workers, "workers total summary");
    keys(&workers["summary"], "active draining stopped total_capacity total_load");
    let worker = &workers["workers"][0];
    let shape = "id worker_group activity_types max_concurrency current_load status \
        accepting_tasks started_at last_heartbeat_at hostname version tasks_completed tasks_failed \
        avg_task_duration_ms";
    keys(worker, shape);
    assert_eq!(worker["activity_types"], json!(["weigh"]));
    assert_eq!((&worker["status"], &worker["tasks_failed"]), (&json!("active"), &json!(1)));
    let one = format!("/durable/workers/{}", worker["id"].as_str().unwrap());
    keys(&server.get_ok(&one).await, shape);
    assert_error(server.get("/durable/workers/x").await, (404, "WORKER_NOT_FOUND"));
    assert_error(server.get("/durable/workers?status=idle").await, (400, "INVALID_STATUS"));

    let workflows = server.get_ok("/durable/workflows").await;
    keys(&workflows, "workflows total");
    keys(&workflows["workflows"][0], WORKFLOW);
    let tasks = server.get_ok("/durable/tasks").await;
    keys(&tasks, "tasks total");
    keys(&tasks["tasks"][0], TASK);
    let stats = server.get_ok("/durable/tasks/stats").await;
    keys(
        &stats,
        "by_activity_type by_priority oldest_pending_task_age_ms avg_schedule_to_start_ms \
         avg_execution_time_ms",
    );
    keys(
        &stats["by_activity_type"]["nobody-does-this"],
        "pending claimed completed_last_hour failed_last_hour avg_duration_ms p99_duration_ms",
    );
    let dlq = server.get_ok("/durable/dlq").await;
    keys(&dlq, "entries total");
    keys(&dlq["entries"][0], LETTER);
    let metrics = server.request(Method::GET, "/durable/metrics").send().await.unwrap();
    assert!(metrics.text().await.unwrap().contains("# TYPE windlass_"));
    for (path, code) in [
        ("/durable/tasks?limit=0", "INVALID_PAGE_SIZE"),
        ("/durable/dlq?limit=101", "INVALID_PAGE_SIZE"),
        ("/durable/workflows?cursor=x", "INVALID_CURSOR"),
        ("/durable/workflows?status=errored", "INVALID_STATUS"),
        ("/durable/tasks?state=dead", "INVALID_STATUS"),
    ] {
        assert_error(server.get(path).await, (400, code));
    }
    server.stop().await;
}

async fn runs_of_every_model_are_listed(kind: Kind) {
    let server = start(kind).await;
    let first = parcel(&server, "p-1", json!({}), "waiting").await;
    for n in 0..3 {
        server.run("nap", &format!("n-{n}"), json!({}), "waiting").await;
        server.run("greet", &format!("g-{n}"), json!(null), "complete").await;
    }
    let later = json!({ "id": "later", "params": null, "delayMs": 3_600_000 });
    server.post_ok("/workflows/greet/instances", later).await;
    let total = async |query: &str| {
        let page = server.get_ok(&format!("/durable/workflows?limit=100{query}")).await;
        assert_eq!(page["workflows"].as_array().unwrap().len() as u64, page["total"], "{query}");
        page["total"].as_u64().unwrap()
    };
    assert_eq!(total("").await, 8);
    assert_eq!(total("&status=running").await, 4);
    assert_eq!(total("&status=pending").await, 1);
    assert_eq!((total("&status=completed").await, total("&status=failed").await), (3, 0));
    assert_eq!((total("&type=nap").await, total("&type=greet&status=running").await), (3, 0));
    for query in ["", "&status=running"] {
        let whole = server.get_ok(&format!("/durable/workflows?limit=100{query}")).await;
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/durable/workflows?limit=3{query}{cursor}");
            let page = server.get_ok(&path).await;
            seen.extend(page["workflows"].as_array().unwrap().clone());
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(&json!(seen), &whole["workflows"]);
    }
    let one = server.get_ok(&format!("/durable/workflows/{first}")).await;
    assert_eq!((&one["status"], &one["model"]), (&json!("running"), &json!("machines")));
    assert_eq!((&one["workflow_type"], &one["run_id"]), (&json!("parcel"), &json!("p-1")));
    assert_error(server.get("/durable/workflows/p-1").await, (404, "INSTANCE_NOT_FOUND"));
    let health = server.get_ok("/durable/health").await;
    assert_eq!(
        (&health["running_workflows"], &health["pending_workflows"]),
        (&json!(4), &json!(1))
    );
    server.stop().await;
}

async fn signals_and_cancellation(kind: Kind) {
    let server = start(kind).await;
    let key = parcel(&server, "p-1", json!({}), "waiting").await;
    let path = format!("/durable/workflows/{key}");
    let signal = json!({ "signal_type": "go", "payload": { "to": "Rome" } });
    keys(&server.post_ok(&format!("{path}/signal"), signal.clone()).await, WORKFLOW);
    server.wait_for_status("parcel", "p-1", "complete").await;
    let done = server.get_ok(&path).await;
    assert_eq!((&done["status"], &done["result"]), (&json!("completed"), &json!({ "to": "Rome" })));
    assert_error(server.post(&format!("{path}/signal"), signal).await, (409, "INSTANCE_TERMINAL"));
    assert_error(
        server.post(&format!("{path}/cancel"), json!({})).await,
        (409, "INSTANCE_TERMINAL"),
    );
    let run = server.run("approve", "a-1", json!({}), "waiting").await;
    let approve = format!("/durable/workflows/{}", run["meta"]["runKey"].as_str().unwrap());
    for n in [1, 2] {
        let signal = json!({ "signal_type": "approval", "payload": n, "id": format!("s-{n}") });
        server.post_ok(&format!("{approve}/signal"), signal).await;
    }
    let done = server.wait_for_status("approve", "a-1", "complete").await;
    assert_eq!(
        done["details"]["output"],
        json!([1, 2]),
        "the steps model receives a signal as an event"
    );

    // A machine receives the request and is terminated after the grace period; other runs end
    // immediately.
    let machine = parcel(&server, "p-2", json!({}), "waiting").await;
    let nap = server.run("nap", "n-1", json!({}), "waiting").await;
    let nap = nap["meta"]["runKey"].as_str().unwrap().to_owned();
    for key in [&machine, &nap] {
        let path = format!("/durable/workflows/{key}");
        let answer =
            server.post_ok(&format!("{path}/cancel"), json!({ "reason": "too late" })).await;
        assert_eq!(answer["status"], "cancelled", "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("too late"), "{answer}");
        let events = server.get_ok(&format!("{path}/events?limit=100")).await;
        let last = events["events"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["type"], "WorkflowCancelled", "{events}");
        assert_eq!(last["data"], json!({ "reason": "too late" }));
    }
    for (body, code) in [
        (json!({ "signal_type": "" }), "INVALID_EVENT_TYPE"),
        (json!({ "type": "go" }), "INVALID_BODY"),
    ] {
        assert_error(server.post(&format!("{path}/signal"), body).await, (400, code));
    }
    server.stop().await;
}

async fn events_include_their_bodies(kind: Kind) {
    let server = start(kind).await;
    let key = parcel(&server, "p-1", json!({ "kg": 1 }), "waiting").await;
    let events = format!("/durable/workflows/{key}/events");
    wait_until("the timer has fired", async || {
        server.get_ok(&events).await.to_string().contains("TimerFired")
    })
    .await;
    let signal = json!({ "signal_type": "go", "payload": "Rome" });
    server.post_ok(&format!("/durable/workflows/{key}/signal"), signal).await;
    server.wait_for_status("parcel", "p-1", "complete").await;
    let page = server.get_ok(&format!("{events}?limit=100")).await;
    let rows = page["events"].as_array().unwrap();
    keys(&page, "events total");
    keys(&rows[0], "id workflow_id sequence_num type data created_at");
    let words: Vec<&str> = rows.iter().map(|row| row["type"].as_str().unwrap()).collect();
    assert_eq!(
        words,
        [
            "WorkflowStarted",
            "ActivityScheduled",
            "ActivityStarted",
            "ActivityCompleted",
            "TimerStarted",
            "TimerFired",
            "SignalReceived",
            "WorkflowCompleted",
        ]
    );
    let data = |at: usize| &rows[at]["data"];
    assert_eq!(data(0), &json!({ "input": { "kg": 1 } }));
    keys(data(1), "activity_id activity_type input options");
    assert_eq!(
        (&data(1)["activity_id"], &data(1)["input"]),
        (&json!("scale"), &json!({ "kg": 1 }))
    );
    assert_eq!(data(1)["activity_type"], "weigh");
    assert!(data(1)["options"]["queue"].is_string(), "{}", data(1));
    keys(
        &data(1)["options"]["retry_policy"],
        "max_attempts initial_interval_ms max_interval_ms backoff_coefficient jitter non_retryable_errors",
    );
    keys(data(2), "activity_id attempt worker_id");
    assert_eq!(data(2)["worker_id"], server.engine.admin().worker().to_string());
    assert_eq!(data(3), &json!({ "activity_id": "scale", "result": { "kg": 2 } }));
    assert_eq!(data(4), &json!({ "timer_id": "rest", "duration_ms": 5 }));
    assert_eq!(data(5), &json!({ "timer_id": "rest" }));
    let signal = &data(6)["signal"];
    assert_eq!((&signal["signal_type"], &signal["payload"]), (&json!("go"), &json!("Rome")));
    assert_eq!(data(7), &json!({ "result": "Rome" }));
    let first = server.get_ok(&format!("{events}?limit=3")).await;
    assert_eq!((first["total"].as_u64(), page["total"].as_u64()), (Some(8), Some(8)));
    let cursor = first["cursor"].as_str().unwrap();
    let rest = server.get_ok(&format!("{events}?limit=100&cursor={cursor}")).await;
    assert_eq!(rest["events"].as_array().unwrap(), &rows[3..]);

    let failed = parcel(&server, "p-2", json!({ "broken": true }), "errored").await;
    let page = server.get_ok(&format!("/durable/workflows/{failed}/events")).await;
    let find = |word: &str| {
        let rows = page["events"].as_array().unwrap();
        rows.iter().find(|row| row["type"] == word).unwrap()["data"].clone()
    };
    let activity = find("ActivityFailed");
    keys(&activity, "activity_id error will_retry");
    assert_eq!(activity["error"]["message"], "the scale is broken");
    assert_eq!(find("WorkflowFailed")["error"]["message"], "the scale is broken");
    server.run("nap", "n-1", json!({}), "waiting").await;
    let run = server.run("family", "f-1", json!({}), "waiting").await;
    let key = run["meta"]["runKey"].as_str().unwrap();
    let page = server.get_ok(&format!("/durable/workflows/{key}/events")).await;
    let child = page["events"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(child["type"], "ChildWorkflowStarted");
    keys(&child["data"], "workflow_id workflow_type");
    assert_eq!(child["data"]["workflow_type"], "nap");
    server.stop().await;
}

async fn dead_letters_are_requeued_deleted_and_purged(kind: Kind) {
    let server = start(kind).await;
    for n in 0..3 {
        parcel(&server, &format!("p-{n}"), json!({ "broken": true }), "errored").await;
    }
    let page = server.get_ok("/durable/dlq?limit=2").await;
    assert_eq!((page["total"].as_u64(), page["entries"].as_array().unwrap().len()), (Some(3), 2));
    let cursor = page["cursor"].as_str().unwrap();
    let rest = server.get_ok(&format!("/durable/dlq?limit=2&cursor={cursor}")).await;
    assert_eq!(rest["entries"].as_array().unwrap().len(), 1);
    assert!(rest.get("cursor").is_none(), "{rest}");
    let letter = &page["entries"][0];
    assert_eq!(
        (&letter["activity_type"], &letter["activity_id"]),
        (&json!("weigh"), &json!("scale"))
    );
    assert_eq!(letter["last_error"], "the scale is broken");
    assert_eq!(letter["error_history"].as_array().unwrap().len(), 1);
    assert_eq!(letter["input"], json!({ "broken": true }));
    let none = server.get_ok("/durable/dlq?activity_type=other").await;
    assert_eq!((&none["total"], &none["entries"]), (&json!(0), &json!([])));
    assert_eq!(server.get_ok("/durable/dlq?activity_type=weigh&limit=1").await["total"], 3);

    let id = letter["id"].as_str().unwrap();
    let path = format!("/durable/dlq/{id}/requeue");
    let requeued = server.post_ok(&path, json!({})).await;
    keys(&requeued, "requeued task_id workflow_id");
    let run = requeued["workflow_id"].as_str().unwrap();
    assert_eq!(server.get_ok(&format!("/durable/workflows/{run}")).await["generation"], 1);
    assert_error(
        server.post("/durable/dlq/x/requeue", json!({})).await,
        (404, "DEAD_LETTER_NOT_FOUND"),
    );

    let id = page["entries"][1]["id"].as_str().unwrap();
    let delete = || read(server.request(Method::DELETE, &format!("/durable/dlq/{id}")));
    assert_eq!(delete().await, (200, json!({ "deleted": true })));
    assert_error(delete().await, (404, "DEAD_LETTER_NOT_FOUND"));
    let purge = async |older_than: Value| {
        server.post("/durable/dlq/purge", json!({ "older_than": older_than })).await
    };
    assert_eq!(purge(json!("1 hour")).await, (200, json!({ "purged": 0 })));
    assert_eq!(purge(json!(3_600)).await, (200, json!({ "purged": 0 })));
    assert_error(purge(json!("soon")).await, (400, "INVALID_DURATION"));
    assert_error(server.post("/durable/dlq/purge", json!({})).await, (400, "INVALID_BODY"));
    wait_until("the retried run has failed again", async || {
        server.get_ok(&format!("/durable/workflows/{run}")).await["status"] == "failed"
    })
    .await;
    let page = server.get_ok("/durable/dlq").await;
    let same = |row: &&Value| row["id"] == letter["id"];
    let again = page["entries"].as_array().unwrap().iter().find(same).unwrap();
    assert_eq!((&again["requeue_count"], &again["requeued_at"]), (&json!(1), &Value::Null));
    assert_eq!(again["error_history"].as_array().unwrap().len(), 2);
    let left = page["total"].as_u64().unwrap();
    let tomorrow = json!("2999-01-01T00:00:00Z");
    assert_eq!(purge(tomorrow).await, (200, json!({ "purged": left })));
    assert_eq!(server.get_ok("/durable/dlq").await["total"], 0);
    server.stop().await;
}

async fn a_retry_marks_the_dead_letter_as_requeued(kind: Kind) {
    let server = start(kind).await;
    // The second attempt does not finish, so that its dead letter does not change.
    parcel(&server, "p-1", json!({ "broken": "once" }), "errored").await;
    assert_eq!(server.get_ok("/durable/health").await["dlq_size"], 1);
    let letter = server.get_ok("/durable/dlq").await["entries"][0].clone();
    assert_eq!((&letter["requeue_count"], &letter["requeued_at"]), (&json!(0), &Value::Null));
    server.post_ok("/workflows/parcel/instances/p-1/retry", json!({})).await;
    let path = format!("/durable/dlq/{}/requeue", letter["id"].as_str().unwrap());
    assert_error(server.post(&path, json!({})).await, (409, "DEAD_LETTER_REQUEUED"));
    let entries = server.get_ok("/durable/dlq").await["entries"].clone();
    let same = |row: &&Value| row["id"] == letter["id"];
    let marked = entries.as_array().unwrap().iter().find(same).unwrap().clone();
    assert_eq!(marked["requeue_count"], 1);
    assert!(marked["requeued_at"].is_string(), "{marked}");
    server.stop().await;
}

async fn statistics_of_the_last_hour(kind: Kind) {
    let server = start(kind).await;
    for n in 0..3 {
        parcel(&server, &format!("p-{n}"), json!({}), "waiting").await;
    }
    parcel(&server, "p-3", json!({ "broken": true }), "errored").await;
    for (n, priority) in [3, 3, -1].into_iter().enumerate() {
        let input = json!({ "activity": "unserved", "priority": priority });
        parcel(&server, &format!("u-{n}"), input, "waiting").await;
    }
    let tasks = server.get_ok("/durable/tasks?state=pending&activity_type=unserved&limit=2").await;
    assert_eq!((tasks["total"].as_u64(), tasks["tasks"].as_array().unwrap().len()), (Some(3), 2));
    let cursor = tasks["cursor"].as_str().unwrap();
    let rest = server.get_ok(&format!("/durable/tasks?limit=2&cursor={cursor}")).await;
    assert_eq!(rest["tasks"].as_array().unwrap().len(), 1);
    for (query, total) in [("state=claimed", 0), ("queue=other", 0), ("state=ready", 3)] {
        assert_eq!(
            server.get_ok(&format!("/durable/tasks?{query}")).await["total"],
            total,
            "{query}"
        );
    }
    let of_run = rest["tasks"][0]["workflow_id"].as_str().unwrap();
    let of_run = server.get_ok(&format!("/durable/tasks?workflow_id={of_run}")).await;
    assert_eq!((&of_run["total"], &of_run["tasks"]), (&json!(1), &rest["tasks"]));
    let stats = async || server.get_ok("/durable/tasks/stats").await;
    wait_until("the statistics are written", async || {
        stats().await["by_activity_type"]["weigh"]["completed_last_hour"] == 3
    })
    .await;
    let stats = stats().await;
    let weigh = &stats["by_activity_type"]["weigh"];
    assert_eq!((&weigh["failed_last_hour"], &weigh["pending"]), (&json!(1), &json!(0)));
    let p99 = weigh["p99_duration_ms"].as_f64().unwrap();
    let avg = weigh["avg_duration_ms"].as_f64().unwrap();
    assert!(avg > 0.0 && p99 >= avg && p99 < 60_000.0, "{stats}");
    assert!(stats["avg_execution_time_ms"].as_f64().unwrap() > 0.0, "{stats}");
    assert!(stats["avg_schedule_to_start_ms"].as_f64().unwrap() >= 0.0, "{stats}");
    assert_eq!(stats["by_priority"], json!({ "3": 2, "-1": 1 }));
    assert_eq!(stats["by_activity_type"]["unserved"]["pending"], 3);
    assert!(stats["oldest_pending_task_age_ms"].as_u64().unwrap() > 0, "{stats}");
    let worker = server.get_ok("/durable/workers").await["workers"][0].clone();
    assert_eq!((&worker["tasks_completed"], &worker["tasks_failed"]), (&json!(3), &json!(1)));
    assert!(worker["avg_task_duration_ms"].as_f64().unwrap() > 0.0, "{worker}");
    server.stop().await;
}

async fn breakers_are_listed_and_closed(kind: Kind) {
    let server = start(kind).await;
    assert_eq!(
        server.get_ok("/durable/circuit-breakers").await,
        json!({ "circuit_breakers": [], "total": 0 })
    );
    parcel(&server, "p-1", json!({ "broken": true, "guarded": true }), "errored").await;
    let list = server.get_ok("/durable/circuit-breakers").await;
    keys(&list, "circuit_breakers total");
    let breaker = &list["circuit_breakers"][0];
    keys(
        breaker,
        "key state failure_count success_count last_failure_at opened_at half_open_at retry_at \
         updated_at",
    );
    assert_eq!((&breaker["key"], &breaker["state"]), (&json!("activity:weigh"), &json!("open")));
    let health = server.get_ok("/durable/health").await;
    assert_eq!(health["open_circuit_breakers"], json!(["activity:weigh"]));
    assert_eq!(health["status"], "degraded");
    let reset = "/durable/circuit-breakers/activity:weigh/reset";
    assert_eq!(server.post_ok(reset, json!({})).await["state"], "closed");
    assert_eq!(server.get_ok("/durable/health").await["status"], "healthy");
    assert_error(
        server.post("/durable/circuit-breakers/other/reset", json!({})).await,
        (404, "BREAKER_NOT_FOUND"),
    );
    server.stop().await;
}

async fn a_worker_is_drained(kind: Kind) {
    let server = start(kind).await;
    let path = format!("/durable/workers/{}", server.engine.admin().worker());
    let answer = server.post_ok(&format!("{path}/drain"), json!({})).await;
    assert!(answer["status"] == "draining" || answer["status"] == "stopped", "{answer}");
    assert_eq!(answer["accepting_tasks"], false);
    wait_until("the worker has stopped", async || {
        server.get_ok(&path).await["status"] == "stopped"
    })
    .await;
    assert_error(server.post(&format!("{path}/drain"), json!({})).await, (409, "WORKER_STOPPED"));
    let health = server.get_ok("/durable/health").await;
    assert_eq!((&health["status"], &health["total_workers"]), (&json!("unhealthy"), &json!(0)));
    let missing = "/durable/workers/00000000-0000-7000-8000-000000000000/drain";
    assert_error(server.post(missing, json!({})).await, (404, "WORKER_NOT_FOUND"));
    server.stop().await;
}
