//! Nodes of documents that wait for events, deliveries and chains of people, and that send mail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use windlass::contracts::language::approvers::{Directory, Person};
use windlass::contracts::language::types::LifecycleContract;
use windlass::contracts::{
    ActionCall, ActionOutcome, ApprovalStatus, Chain, Contracts, EVENT_TYPE, MAIL_EFFECT,
    WEBHOOK_EFFECT, WebhookInput,
};
use windlass::kernel::{Body, BoxFuture, MessageName};
use windlass::mail::{Mailer, SmtpOptions, SmtpTls};
use windlass::model::TaskHandler;
use windlass::{
    Engine, ErrorCode, Expect, ReceiptOutcome, RecordChange, RunStatus, TaskContext, TaskFailure,
};

use crate::contracts::{
    SLOT, TYPE, approve, contract, directory, document, edge, invoice, node, open_request, person,
    publish, refused, role, same_when_rebuilt, submitted, until_run, until_state,
};
use crate::harness::{Harness, on_every_store, until};

on_every_store!(
    case_28_an_event_comes_before_or_after_its_wait_and_counts_once,
    a_wait_that_times_out_takes_another_edge,
    a_retry_waits_for_the_same_event,
    values_that_do_not_fit_are_refused_and_can_come_again,
    case_25_a_notification_does_not_win_and_use_case_b_is_fulfilled,
    case_30_a_webhook_that_fails_is_dead_and_delivered_by_a_requeue,
    an_awaited_webhook_is_delivered_before_the_run_goes_on,
    chains_ask_one_stage_after_the_other,
    mails_go_to_the_addresses_of_people,
    stuck_documents_are_found_and_advance_again,
    an_action_creates_and_submits_another_document,
);

/// The contract for invoices without obligations, with context variables.
fn free_contract() -> LifecycleContract {
    let mut free = contract();
    free.obligations.clear();
    free.schemas.context = json!({"type": "object", "properties": {
        "reserved": {"type": "boolean"}, "checked": {"type": "boolean"}, "by": {"type": "string"},
    }});
    free
}

async fn open_free(h: &Harness) -> (Engine, Contracts) {
    let engine = h.engine().await;
    let reserve = |_: &ActionCall<'_>| Ok(ActionOutcome::none().result(json!({"ok": true})));
    let builder = Contracts::builder().action("stock.reserve", Arc::new(reserve)).webhooks().mail();
    let contracts = builder.open(engine.core()).await.unwrap();
    contracts.publish_type(&free_contract(), &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    (engine, contracts)
}

fn labelled(id: &str, source: &str, target: &str, label: &str) -> Value {
    let mut edge = edge(id, source, target);
    edge["label"] = json!(label);
    edge
}

fn slot(nodes: Value, edges: Value) -> Value {
    json!({SLOT: {"nodes": nodes, "edges": edges, "exitEdgeMode": "join"}})
}

/// Waits until the run of a document waits at a node.
async fn until_at(contracts: &Contracts, id: &str, name: &str) {
    let end = format!(":{name}");
    until(name, || async {
        let position = contracts.position(TYPE, id).await.unwrap();
        position.open.iter().any(|row| row.node.ends_with(&end))
    })
    .await;
}

async fn case_28_an_event_comes_before_or_after_its_wait_and_counts_once(h: Arc<Harness>) {
    let (engine, contracts) = open_free(&h).await;
    let waits = |name: &str| node(name, "wait_event", json!({"eventKey": "pod:{entity.id}"}));
    let nodes = json!([waits("one"), waits("two")]);
    publish(&contracts, slot(nodes, json!([edge("e", "one", "two")]))).await;
    // Two documents wait for the same key: the first before the event, the second after it.
    submitted(&contracts, "a", 10).await;
    until_at(&contracts, "a", "one").await;
    for _ in 0..2 {
        engine.send_by_key(EVENT_TYPE, "pod:i-1", &json!({"n": 1})).id("e-1").await.unwrap();
    }
    until_at(&contracts, "a", "two").await;
    submitted(&contracts, "b", 10).await;
    until_at(&contracts, "b", "two").await;
    // An event of the run itself is none: only the engine sends events by key.
    let run = contracts.run(TYPE, "a").await.unwrap();
    let name = MessageName::new(EVENT_TYPE).unwrap();
    let body = Some(Body::of(&json!({"n": 2})).unwrap());
    engine.core().send_event(run.run_key, name, body, None).await.unwrap();
    until("the message is read", || async {
        let run = contracts.run(TYPE, "a").await.unwrap();
        run.seen == run.accepted && run.status == RunStatus::Waiting
    })
    .await;
    assert_eq!(document(&contracts, "a").await.row.state, "submitted");
    engine.send_by_key(EVENT_TYPE, "pod:i-1", &json!({"n": 2})).id("e-2").await.unwrap();
    until_state(&contracts, "a", "active").await;
    until_state(&contracts, "b", "active").await;
    same_when_rebuilt(&contracts, "a").await;
}

async fn a_wait_that_times_out_takes_another_edge(h: Arc<Harness>) {
    let (_engine, contracts) = open_free(&h).await;
    // Use case D: a delivery that nobody confirms is escalated.
    let wait = json!({"eventKey": "delivery:pod:{entity.id}", "timeout": "1 ms"});
    let late = json!({"channel": "in_app", "to": {"strategy": "role", "role": "cfo"},
                      "subject": "Shipment {entity.id} is unconfirmed"});
    let nodes = json!([
        node("pod", "wait_event", wait),
        node("tell", "notification", late),
        node("manager", "approval", role("cfo")),
        node("confirmed", "script", json!({"writes": {"checked": "true"}})),
    ]);
    let edges = json!([
        edge("ok", "pod", "confirmed"),
        labelled("late", "pod", "tell", "timeout"),
        edge("ask", "tell", "manager"),
    ]);
    publish(&contracts, slot(nodes, edges)).await;
    submitted(&contracts, "d", 10).await;
    let request = open_request(&contracts, "d", 1).await;
    approve(&contracts, &request, "cleo").await.unwrap();
    until_state(&contracts, "d", "active").await;
    same_when_rebuilt(&contracts, "d").await;
}

async fn a_retry_waits_for_the_same_event(h: Arc<Harness>) {
    let (engine, contracts) = open_free(&h).await;
    let mut only_large = edge("large", "none", "more");
    only_large["condition"] = json!("entity.total > 1000");
    let nodes = json!([
        node("fork", "parallel_split", json!({})),
        node("wait", "wait_event", json!({"eventKey": "paid:{entity.id}"})),
        node("none", "condition", json!({})),
        node("more", "script", json!({"writes": {"checked": "true"}})),
        node("both", "parallel_join", json!({"mode": "all"})),
    ]);
    let edges = json!([
        edge("f1", "fork", "wait"),
        edge("f2", "fork", "none"),
        only_large,
        edge("j1", "wait", "both"),
        edge("j2", "more", "both"),
    ]);
    publish(&contracts, slot(nodes, edges)).await;
    submitted(&contracts, "e", 10).await;
    until_run(&contracts, "e", RunStatus::Errored).await;
    // The wait ended with the run. The event comes while nothing waits.
    engine.send_by_key(EVENT_TYPE, "paid:i-1", &json!({})).await.unwrap();
    let version = document(&contracts, "e").await.row.version;
    let larger = invoice(5_000);
    contracts.edit(TYPE, "e", version, &larger, &person("rita"), None).await.unwrap();
    let position = contracts.advance_again(TYPE, "e").await.unwrap();
    assert_eq!(position.generation, 1);
    until_state(&contracts, "e", "amended").await;
    contracts.act(TYPE, "e", "submit", &person("rita"), None).await.unwrap();
    until_state(&contracts, "e", "active").await;
    same_when_rebuilt(&contracts, "e").await;
}

async fn values_that_do_not_fit_are_refused_and_can_come_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    let fits = Arc::new(AtomicBool::new(false));
    let is_fixed = Arc::clone(&fits);
    let rate = move |_: &ActionCall<'_>| {
        let change = RecordChange::put("ratings", "i-1", &1, Expect::Absent);
        let result = if is_fixed.load(Ordering::SeqCst) { json!("good") } else { json!(5) };
        let outcome = ActionOutcome::none().record(change.map_err(|error| error.to_string())?);
        Ok(outcome.result(json!({ "rating": result })))
    };
    let builder = Contracts::builder().action("vendor.rate", Arc::new(rate));
    let contracts = builder.open(engine.core()).await.unwrap();
    contracts.publish_type(&free_contract(), &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    let go = json!({"eventKey": "go:{entity.id}", "writes": {"checked": "ok"}});
    let vendor = json!({"mutation": {"actionType": "vendor.rate"}, "writes": {"by": "rating"}});
    let nodes = json!([node("go", "wait_event", go), node("rate", "action", vendor)]);
    publish(&contracts, slot(nodes, json!([edge("e", "go", "rate")]))).await;
    submitted(&contracts, "v", 10).await;
    let failed = async |node: &str| {
        until_run(&contracts, "v", RunStatus::Errored).await;
        let run = contracts.run(TYPE, "v").await.unwrap();
        let error: Value = run.error.as_ref().unwrap().read().unwrap();
        assert_eq!(error["name"], "WORKFLOW_RESULT_INVALID", "{error}");
        assert!(error["message"].as_str().unwrap().contains(node), "{error}");
        contracts.advance_again(TYPE, "v").await.unwrap();
    };
    let send = async |payload: Value| {
        until_at(&contracts, "v", "go").await;
        until_run(&contracts, "v", RunStatus::Waiting).await;
        engine.send_by_key(EVENT_TYPE, "go:i-1", &payload).await.unwrap();
    };
    send(json!({"ok": "yes"})).await;
    failed(":go").await;
    send(json!({"ok": true})).await;
    failed(":rate").await;
    // The engine calls the action again, and nothing of the first call was written.
    until_run(&contracts, "v", RunStatus::Errored).await;
    let ratings = engine.records::<Value>("ratings");
    assert!(ratings.get("i-1").await.unwrap().is_none());
    assert_eq!(document(&contracts, "v").await.row.state, "submitted");
    fits.store(true, Ordering::SeqCst);
    contracts.advance_again(TYPE, "v").await.unwrap();
    until_state(&contracts, "v", "active").await;
    assert_eq!(ratings.get("i-1").await.unwrap().unwrap().revision, 1);
    same_when_rebuilt(&contracts, "v").await;
}

async fn case_25_a_notification_does_not_win_and_use_case_b_is_fulfilled(h: Arc<Harness>) {
    let (engine, contracts) = open_free(&h).await;
    let notify = json!({"channel": "in_app", "to": {"strategy": "role", "role": "cfo"},
                        "subject": "Order {entity.id}"});
    let credit = json!({"eventKey": "credit:{entity.id}", "writes": {"checked": "ok"}});
    let accept = "context.checked == true";
    let nodes = json!([
        node("split", "parallel_split", json!({})),
        node("notify", "notification", notify),
        node("credit", "wait_event", credit),
        node("other", "wait_event", json!({"eventKey": "other:{entity.id}"})),
        node("join", "parallel_join", json!({"mode": "any", "accept": accept})),
        node("pay", "wait_event", json!({"eventKey": "paid:{entity.id}"})),
        node("done", "script", json!({"writes": {"reserved": "true"}})),
    ]);
    let edges = json!([
        edge("s1", "split", "notify"),
        edge("s2", "split", "credit"),
        edge("s3", "split", "other"),
        edge("j1", "notify", "join"),
        edge("j2", "credit", "join"),
        edge("j3", "other", "join"),
        edge("go", "join", "done"),
        labelled("no", "join", "pay", "exhausted"),
    ]);
    publish(&contracts, slot(nodes, edges)).await;
    submitted(&contracts, "f", 10).await;
    until_at(&contracts, "f", "credit").await;
    assert_eq!(document(&contracts, "f").await.row.state, "submitted", "the notification won");
    let send = |key: &'static str, ok: bool| {
        let engine = engine.clone();
        async move { engine.send_by_key(EVENT_TYPE, key, &json!({"ok": ok})).await.unwrap() }
    };
    send("credit:i-1", true).await;
    until_state(&contracts, "f", "active").await;
    until_run(&contracts, "f", RunStatus::Complete).await;
    same_when_rebuilt(&contracts, "f").await;
    // Nobody is accepted: the run waits for the payment.
    let mut content = invoice(10);
    content["id"] = json!("i-2");
    submitted_as(&contracts, "g", &content).await;
    send("credit:i-2", false).await;
    send("other:i-2", true).await;
    until_at(&contracts, "g", "pay").await;
    assert_eq!(document(&contracts, "g").await.row.state, "submitted");
    send("paid:i-2", true).await;
    until_state(&contracts, "g", "active").await;
    same_when_rebuilt(&contracts, "g").await;
}

async fn submitted_as(contracts: &Contracts, id: &str, content: &Value) {
    contracts.create(TYPE, id, content, &person("rita")).await.unwrap();
    contracts.act(TYPE, id, "submit", &person("rita"), None).await.unwrap();
}

/// Delivers effects: fails as often as it is told, and keeps what it got.
#[derive(Clone, Default)]
struct Sink {
    got: Arc<Mutex<Vec<WebhookInput>>>,
    failures: Arc<Mutex<Vec<TaskFailure>>>,
}

impl TaskHandler for Sink {
    fn run(&self, _: TaskContext, input: Body) -> BoxFuture<'static, Result<Body, TaskFailure>> {
        let this = self.clone();
        Box::pin(async move {
            if let Some(failure) = this.failures.lock().pop() {
                return Err(failure);
            }
            this.got.lock().push(input.read().unwrap());
            Ok(Body::json("null"))
        })
    }
}

fn hook(awaits: bool) -> Value {
    let mut config =
        json!({"url": "https://example.org/hook", "payloadTemplate": {"n": "entity.total"}});
    if awaits {
        config["await"] = json!("delivered");
    }
    node("hook", "webhook_out", config)
}

/// How often the receiver of case 30 is down.
const ATTEMPTS: u32 = 6;

async fn case_30_a_webhook_that_fails_is_dead_and_delivered_by_a_requeue(h: Arc<Harness>) {
    let (engine, contracts) = open_free(&h).await;
    let sink = Sink::default();
    let gone = || TaskFailure::new("GONE", "the receiver is gone", false);
    sink.failures.lock().extend((0..ATTEMPTS).map(|_| gone()));
    engine.core().serve_effects(WEBHOOK_EFFECT, Arc::new(sink.clone())).unwrap();
    publish(&contracts, slot(json!([hook(false)]), json!([]))).await;
    submitted(&contracts, "h", 10).await;
    until_run(&contracts, "h", RunStatus::Complete).await;
    let run = contracts.run(TYPE, "h").await.unwrap();
    let receipts = || async { contracts.engine().receipts(run.run_key, None, 10).await.unwrap() };
    until("the webhook is dead", || async { !receipts().await.is_empty() }).await;
    // The receiver is down for all attempts, and the receipt counts each of them.
    for attempt in 1..ATTEMPTS {
        let dead = receipts().await.remove(0);
        assert_eq!((dead.outcome, dead.attempts), (ReceiptOutcome::Dead, attempt));
        assert_eq!(dead.error.as_ref().unwrap().name, "GONE");
        contracts.engine().requeue(dead.task_id, None).await.unwrap();
        until("it was tried again", || async { receipts().await[0].attempts > attempt }).await;
    }
    let dead = receipts().await.remove(0);
    assert_eq!((dead.outcome, dead.attempts), (ReceiptOutcome::Dead, ATTEMPTS));
    assert_eq!(contracts.run(TYPE, "h").await.unwrap().status, RunStatus::Complete);
    assert_eq!(contracts.health().await.unwrap().dead_effects, 1);
    contracts.engine().requeue(dead.task_id, None).await.unwrap();
    until("it is delivered", || async { receipts().await[0].outcome == ReceiptOutcome::Delivered })
        .await;
    let got = sink.got.lock().clone();
    assert_eq!((got.len(), &got[0].body["n"], &*got[0].document), (1, &json!(10), "h"));
    let delivered = receipts().await.remove(0);
    assert_eq!((delivered.attempts, delivered.requeues), (ATTEMPTS + 1, ATTEMPTS));
}

async fn an_awaited_webhook_is_delivered_before_the_run_goes_on(h: Arc<Harness>) {
    let (engine, contracts) = open_free(&h).await;
    let sink = Sink::default();
    sink.failures.lock().push(TaskFailure::new("GONE", "the receiver is gone", false));
    engine.core().serve_effects(WEBHOOK_EFFECT, Arc::new(sink.clone())).unwrap();
    publish(&contracts, slot(json!([hook(true)]), json!([]))).await;
    submitted(&contracts, "i", 10).await;
    let letters = || async { contracts.engine().dead_letters(None, None, 10).await.unwrap() };
    until("the webhook is dead", || async { !letters().await.is_empty() }).await;
    assert_eq!(document(&contracts, "i").await.row.state, "submitted");
    contracts.engine().requeue(letters().await[0].task_id, None).await.unwrap();
    until_state(&contracts, "i", "active").await;
    same_when_rebuilt(&contracts, "i").await;
}

async fn chains_ask_one_stage_after_the_other(h: Arc<Harness>) {
    let (_engine, contracts) = open_free(&h).await;
    let review = node("review", "approval", json!({"chain": "two_steps"}));
    let definition = json!({"baseRef": {"entityType": TYPE, "envelopeVersion": 1},
                            "slots": slot(json!([review]), json!([]))});
    contracts.put_draft(TYPE, &serde_json::from_value(definition).unwrap()).await.unwrap();
    // A chain that does not exist is refused.
    refused(contracts.publish(TYPE, &person("dana")).await, ErrorCode::ContractInvalid);
    let chain: Chain = serde_json::from_value(json!({"stages": [
        {"approvers": {"strategy": "role", "role": "finance_manager"}},
        {"approvers": {"strategy": "direct", "users": ["fay", "cleo"]}},
    ]}))
    .unwrap();
    contracts.put_chain("two_steps", &chain, &person("olga")).await.unwrap();
    contracts.publish(TYPE, &person("dana")).await.unwrap();
    submitted(&contracts, "k", 10).await;
    let first = open_request(&contracts, "k", 1).await;
    refused(approve(&contracts, &first, "cleo").await, ErrorCode::ApprovalRefused);
    approve(&contracts, &first, "fay").await.unwrap();
    let inbox = |who: &'static str| {
        let contracts = contracts.clone();
        async move { contracts.inbox(&person(who), None, 10).await.unwrap() }
    };
    until("cleo is asked", || async { !inbox("cleo").await.is_empty() }).await;
    assert!(inbox("fay").await.is_empty(), "fay has decided in the first stage");
    assert!(inbox("fred").await.is_empty(), "the first stage is over");
    refused(approve(&contracts, &first, "fred").await, ErrorCode::ApprovalRefused);
    assert_eq!(document(&contracts, "k").await.row.state, "submitted");
    approve(&contracts, &inbox("cleo").await[0], "cleo").await.unwrap();
    until_state(&contracts, "k", "active").await;
    same_when_rebuilt(&contracts, "k").await;
    // The second stage rejects, although the first one has approved.
    submitted(&contracts, "l", 10).await;
    let request = open_request(&contracts, "l", 1).await;
    approve(&contracts, &request, "fred").await.unwrap();
    until("cleo is asked again", || async { !inbox("cleo").await.is_empty() }).await;
    let verdict = windlass::contracts::language::tokens::Verdict::Rejected;
    contracts
        .decide_approval(&request.id, verdict, request.digest, &person("cleo"), None)
        .await
        .unwrap();
    until_state(&contracts, "l", "draft").await;
    assert_eq!(contracts.approval(&request.id).await.unwrap().status, ApprovalStatus::Closed);
}

/// A mail server on loopback that accepts everything and keeps the text.
async fn smtp_sink() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mails = Arc::<Mutex<Vec<String>>>::default();
    let kept = Arc::clone(&mails);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let (read, mut write) = stream.into_split();
                let mut lines = BufReader::new(read).lines();
                let mut mail: Option<String> = None;
                write.write_all(b"220 sink\r\n").await.ok()?;
                while let Ok(Some(line)) = lines.next_line().await {
                    let answer = match &mut mail {
                        Some(text) if line == "." => {
                            kept.lock().push(std::mem::take(text));
                            mail = None;
                            "250 kept\r\n"
                        }
                        Some(text) => {
                            text.push_str(&line);
                            text.push('\n');
                            continue;
                        }
                        None if line == "DATA" => {
                            mail = Some(String::new());
                            "354 go on\r\n"
                        }
                        None if line == "QUIT" => "221 bye\r\n",
                        None => "250 ok\r\n",
                    };
                    write.write_all(answer.as_bytes()).await.ok()?;
                }
                Some(())
            });
        }
    });
    (port, mails)
}

async fn mails_go_to_the_addresses_of_people(h: Arc<Harness>) {
    let (engine, contracts) = open_free(&h).await;
    let (port, mails) = smtp_sink().await;
    let options = SmtpOptions {
        port: Some(port),
        tls: SmtpTls::Off,
        ..SmtpOptions::new("127.0.0.1", "Invoices <invoices@example.org>")
    };
    Mailer::new(options).unwrap().serve(&engine).unwrap();
    let mail = json!({"channel": "email", "to": {"strategy": "role", "role": "cfo"},
                      "subject": "Invoice {entity.note}", "body": "Total {entity.total}"});
    publish(&contracts, slot(json!([node("mail", "notification", mail)]), json!([]))).await;
    // Nobody has an address: the run stops with the reason.
    let mut content = invoice(10);
    content["note"] = json!("seven\r\nBcc: x@example.org");
    submitted_as(&contracts, "m", &content).await;
    until_run(&contracts, "m", RunStatus::Errored).await;
    let run = contracts.run(TYPE, "m").await.unwrap();
    let error: Value = run.error.as_ref().unwrap().read().unwrap();
    assert!(error["message"].as_str().unwrap().contains("no address"), "{error}");
    let mut people = directory();
    let with_mail = Person {
        roles: ["cfo".to_owned()].into(),
        email: Some("Cleo <cleo@example.org>".to_owned()),
        ..Person::default()
    };
    people.people.insert("cleo".to_owned(), with_mail);
    let people: Directory = people;
    contracts.put_directory(&people).await.unwrap();
    contracts.advance_again(TYPE, "m").await.unwrap();
    until_state(&contracts, "m", "active").await;
    until("the mail is sent", || async { !mails.lock().is_empty() }).await;
    let text = mails.lock()[0].clone();
    assert!(
        text.contains("To: Cleo <cleo@example.org>") || text.contains("To: \"Cleo\""),
        "{text}"
    );
    assert!(text.contains("Total 10"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("Bcc:")), "{text}");
    assert!(text.contains("@windlass>"), "{text}");
    let again = engine.serve_effects(MAIL_EFFECT, Arc::new(Sink::default()));
    refused(again, ErrorCode::ActivityExists);
}

async fn stuck_documents_are_found_and_advance_again(h: Arc<Harness>) {
    let (_engine, contracts) = open_free(&h).await;
    publish(&contracts, slot(json!([node("one", "approval", role("nobody"))]), json!([]))).await;
    submitted(&contracts, "n", 10).await;
    until_run(&contracts, "n", RunStatus::Errored).await;
    let stuck = contracts.stuck().await.unwrap();
    assert_eq!((stuck.len(), &*stuck[0].id, &*stuck[0].run_status), (1, "n", "errored"));
    assert!(stuck[0].reason.contains("APPROVER_UNKNOWN"), "{stuck:?}");
    let mut people = directory();
    let nobody = Person { roles: ["nobody".to_owned()].into(), ..Person::default() };
    people.people.insert("ned".to_owned(), nobody);
    contracts.put_directory(&people).await.unwrap();
    contracts.advance_again(TYPE, "n").await.unwrap();
    let request = open_request(&contracts, "n", 1).await;
    assert!(contracts.stuck().await.unwrap().is_empty());
    let health = contracts.health().await.unwrap();
    assert_eq!((health.pending, health.stuck), (1, 0), "{health:?}");
    assert!(health.oldest_pending_seconds.is_some() && health.advances > 0, "{health:?}");
    // An operator ends the run; the document keeps its state and passes the gate again.
    contracts.force_fail(TYPE, "n", &person("olga"), "wrong approver").await.unwrap();
    refused(approve(&contracts, &request, "ned").await, ErrorCode::ApprovalWithdrawn);
    let stuck = contracts.stuck().await.unwrap();
    assert_eq!(
        (stuck.len(), &*stuck[0].run_status, &*stuck[0].state),
        (1, "terminated", "submitted")
    );
    contracts.advance_again(TYPE, "n").await.unwrap();
    until("it asks again", || async {
        let all = contracts.approvals_of(TYPE, "n", None, 10).await.unwrap();
        all.iter().any(|one| one.id != request.id && one.status == ApprovalStatus::Open)
    })
    .await;
    let again = contracts.inbox(&person("ned"), None, 10).await.unwrap();
    let again = again.iter().find(|one| one.id != request.id).unwrap();
    approve(&contracts, again, "ned").await.unwrap();
    until_state(&contracts, "n", "active").await;
}

async fn an_action_creates_and_submits_another_document(h: Arc<Harness>) {
    let (_engine, contracts) = open_free(&h).await;
    let action = |name: &str, action_type: &str, payload: Value| {
        let mutation =
            json!({"actionType": action_type, "payloadTemplate": payload, "runAs": "system"});
        node(name, "action", json!({"mutation": mutation}))
    };
    let call = json!({"type": "'invoice'", "id": "entity.note", "action": "'submit'"});
    let nodes = json!([action("send", "document.transition", call)]);
    let patch = slot(nodes, json!([]));
    publish(&contracts, patch).await;
    // The other document stands still until the first one calls its action.
    let mut content = invoice(5);
    // It has the same workflow, so it calls an action as well: of a document that does not exist.
    content["note"] = json!("nobody");
    contracts.create(TYPE, "other", &content, &person("rita")).await.unwrap();
    let mut content = invoice(10);
    content["note"] = json!("other");
    submitted_as(&contracts, "caller", &content).await;
    until_state(&contracts, "caller", "active").await;
    until("the other document is submitted", || async {
        document(&contracts, "other").await.row.state != "draft"
    })
    .await;
    let requester = document(&contracts, "other").await.row.requester;
    assert_eq!(requester, "system");
}
