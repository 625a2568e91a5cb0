//! Requests to people and writes of records by machines and relays.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::kernel::Subject;
use windlass::machines::{ActivityError, Workflow, WorkflowAction, WorkflowError, WorkflowSignal};
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
use windlass::requests::{
    Decider, InboxOrder, InboxQuery, NewDecision, Quorum, RecordRef, Request, RequestOutcome,
    RequestState, RequestStatus,
};
use windlass::{Engine, ErrorCode, RecordChange};

use crate::harness::{Harness, PATIENCE, on_every_store};

on_every_store!(
    a_machine_asks_people,
    a_machine_withdraws_a_request,
    a_machine_waits_again_for_a_request_that_is_stale,
    a_request_that_nobody_can_answer_blocks_a_machine,
    a_machine_writes_records_and_sees_who_was_first,
    a_machine_that_does_not_handle_a_conflict_fails,
    a_relay_asks_people,
    a_relay_that_fails_after_a_decision_keeps_it,
    a_relay_with_a_bad_request_fails,
);

fn who(text: &str) -> Decider {
    Decider::new(Subject::parse(text).unwrap())
}

async fn opened(engine: &Engine) -> RequestState {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let query = InboxQuery::Status(RequestStatus::Open);
        let page = engine.requests().inbox(&query, InboxOrder::Opened, None, 10).await.unwrap();
        if let Some(request) = page.requests.into_iter().next() {
            return request;
        }
        assert!(tokio::time::Instant::now() < deadline, "no request was opened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_closed(engine: &Engine, id: &str) -> RequestStatus {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let status = engine.requests().get(id).await.unwrap().status;
        if status != RequestStatus::Open {
            return status;
        }
        assert!(tokio::time::Instant::now() < deadline, "the request stays open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asks; the signal `enough` withdraws the question. Ends with who decided.
struct Ask {
    request: Value,
    asked: u32,
}

impl Ask {
    fn ask(&mut self) -> Vec<WorkflowAction> {
        self.asked += 1;
        let request = serde_json::from_value(self.request.clone()).unwrap();
        vec![
            WorkflowAction::request("approve", request),
            WorkflowAction::timer(format!("late {}", self.asked), "30 days"),
        ]
    }
}

impl Workflow for Ask {
    const TYPE: &'static str = "ask";
    type Input = Value;
    type Output = Value;

    fn new(request: Value) -> Self {
        Self { request, asked: 0 }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        self.ask()
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        vec![]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }

    fn on_signal(&mut self, signal: &WorkflowSignal) -> Vec<WorkflowAction> {
        match &*signal.signal_type {
            "enough" => vec![WorkflowAction::WithdrawRequest { request_id: "approve".into() }],
            "end" => vec![WorkflowAction::complete(json!("enough"))],
            _ => vec![],
        }
    }

    fn on_request_closed(&mut self, id: &str, outcome: &RequestOutcome) -> Vec<WorkflowAction> {
        if outcome.status == RequestStatus::Stale && self.asked == 1 {
            self.request["about"] = Value::Null;
            return self.ask();
        }
        let by: Vec<&str> = outcome.decisions.iter().map(|decision| &*decision.by).collect();
        vec![WorkflowAction::complete(json!([id, outcome.status, by]))]
    }
}

async fn a_machine_asks_people(h: Arc<Harness>) {
    let engine = h.engine().await;
    let asks = engine.machine::<Ask>().unwrap();
    let request = json!(Request::to("role:cfo").quorum(2));
    asks.start(request).id("one").await.unwrap();
    let request = opened(&engine).await;
    assert_eq!((&*request.title, &*request.run.step), ("approve", "request/approve"));
    engine.requests().decide(&request.id, &who("ann:cfo"), &NewDecision::approve()).await.unwrap();
    h.stop(&engine).await;

    // The callbacks are replayed by another process.
    let engine = h.engine().await;
    let run = engine.machine::<Ask>().unwrap().get("one").await.unwrap();
    let why = run.why().await.unwrap();
    let text: String = why.reasons.into_iter().map(|reason| reason.text).collect();
    assert!(text.contains("1 of 2 approvals, waits for role cfo since"), "{text}");
    engine.requests().decide(&request.id, &who("bob:cfo"), &NewDecision::approve()).await.unwrap();
    let result = run.result().await.unwrap();
    assert_eq!(result, json!(["approve", "approved", ["ann", "bob"]]));
    let types = types_of(&engine, run.run_key()).await;
    for expect in ["request.opened", "request.decided", "request.closed"] {
        assert!(types.iter().any(|found| found == expect), "{expect}: {types:?}");
    }
}

async fn types_of(engine: &Engine, run_key: windlass::kernel::RunKey) -> Vec<String> {
    let query = windlass::kernel::Query::Events { run_key, from: 0, limit: 500 };
    let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
    events.iter().map(|event| event.event_type.to_string()).collect()
}

async fn a_machine_withdraws_a_request(h: Arc<Harness>) {
    let engine = h.engine().await;
    let asks = engine.machine::<Ask>().unwrap();
    let run = asks.start(json!(Request::to("ann"))).id("one").await.unwrap();
    let request = opened(&engine).await;
    run.send_event("enough", &()).await.unwrap();
    assert_eq!(until_closed(&engine, &request.id).await, RequestStatus::Withdrawn);
    run.send_event("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "enough");

    // The end of the run withdraws it too.
    let run = asks.start(json!(Request::to("ann"))).id("two").await.unwrap();
    let request = opened(&engine).await;
    run.send_event("end", &()).await.unwrap();
    run.result().await.unwrap();
    assert_eq!(until_closed(&engine, &request.id).await, RequestStatus::Withdrawn);
}

async fn a_machine_waits_again_for_a_request_that_is_stale(h: Arc<Harness>) {
    let engine = h.engine().await;
    let invoices = engine.records::<u32>("invoices");
    invoices.put("i", &7).expect_absent().keep().send().await.unwrap();
    let invoice: RecordRef = invoices.get("i").await.unwrap().unwrap().reference();
    let asks = engine.machine::<Ask>().unwrap();
    let request = Request::to("ann").about(&invoice);
    let run = asks.start(json!(request)).id("one").await.unwrap();
    let first = opened(&engine).await;
    invoices.put("i", &8).expect_revision(1).keep().send().await.unwrap();
    let error = engine.requests().decide(&first.id, &who("ann"), &NewDecision::approve()).await;
    assert_eq!(error.unwrap_err().code(), ErrorCode::RequestStale);
    let second = loop {
        let next = opened(&engine).await;
        if next.id != first.id {
            break next;
        }
    };
    assert_eq!(second.run.step, "request/approve#2");
    engine.requests().decide(&second.id, &who("ann"), &NewDecision::reject()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!(["approve", "rejected", ["ann"]]));
}

async fn a_request_that_nobody_can_answer_blocks_a_machine(h: Arc<Harness>) {
    let engine = h.engine().await;
    let asks = engine.machine::<Ask>().unwrap();
    let request = Request::to("role:cfo").quorum(Quorum::All);
    let run = asks.start(json!(request)).id("one").await.unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let why = run.why().await.unwrap();
        let text: String = why.reasons.into_iter().map(|reason| reason.text).collect();
        if text.contains("no directory says who has the role") {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let open = InboxQuery::Status(RequestStatus::Open);
    let page = engine.requests().inbox(&open, InboxOrder::Opened, None, 10).await.unwrap();
    assert!(page.requests.is_empty());
    run.terminate().await.unwrap();
}

/// Takes one of the stock; the revision that it begins with is too old.
struct Take {
    tries: u32,
    forgiving: bool,
}

fn take(revision: u64) -> Vec<WorkflowAction> {
    let change = RecordChange::put("stock", "lamp", &json!({ "taken_at": revision }), revision);
    let log = RecordChange::put("stock", "log", "taken", windlass::kernel::Expect::Absent);
    let changes = [change.unwrap().keep(), log.unwrap()];
    vec![WorkflowAction::write_records("take", changes)]
}

impl Workflow for Take {
    const TYPE: &'static str = "take";
    type Input = bool;
    type Output = u32;

    fn new(forgiving: bool) -> Self {
        Self { tries: 1, forgiving }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        take(1)
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        vec![]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }

    fn on_signal(&mut self, _: &WorkflowSignal) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(json!(self.tries))]
    }

    fn on_records_refused(&mut self, id: &str, error: &WorkflowError) -> Vec<WorkflowAction> {
        assert_eq!(id, "take");
        let details = error.details.clone().unwrap_or_default();
        match details["revision"].as_u64().filter(|_| self.forgiving) {
            Some(revision) => {
                self.tries += 1;
                take(revision)
            }
            None => vec![WorkflowAction::fail(error.clone())],
        }
    }

    fn on_records_written(&mut self, _: &str) -> Vec<WorkflowAction> {
        vec![WorkflowAction::timer("later", "30 days")]
    }
}

async fn a_machine_writes_records_and_sees_who_was_first(h: Arc<Harness>) {
    let engine = h.engine().await;
    let stock = engine.records::<Value>("stock");
    stock.put("lamp", &json!(9)).expect_absent().send().await.unwrap();
    stock.put("lamp", &json!(8)).expect_revision(1).send().await.unwrap();
    let run = engine.machine::<Take>().unwrap().start(true).id("one").await.unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while stock.get("log").await.unwrap().is_none() {
        assert!(tokio::time::Instant::now() < deadline, "nothing was written");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lamp = stock.get("lamp").await.unwrap().unwrap();
    assert_eq!((lamp.revision, lamp.value), (3, json!({ "taken_at": 2 })));
    h.stop(&engine).await;

    let engine = h.engine().await;
    let takes = engine.machine::<Take>().unwrap();
    takes.get("one").await.unwrap().send_event("end", &()).await.unwrap();
    assert_eq!(takes.get("one").await.unwrap().result().await.unwrap(), 2);
    let types = types_of(&engine, run.run_key()).await;
    let records: Vec<&String> = types.iter().filter(|found| found.starts_with("record")).collect();
    let expect = [
        "record.write_tried",
        "record.write_refused",
        "record.written",
        "record.written",
        "record.write_tried",
        "record.write_completed",
    ];
    assert_eq!(records, expect);
}

async fn a_machine_that_does_not_handle_a_conflict_fails(h: Arc<Harness>) {
    let engine = h.engine().await;
    let run = engine.machine::<Take>().unwrap().start(false).id("one").await.unwrap();
    let error = run.result().await.unwrap_err();
    assert!(error.to_string().contains("expected to have revision 1"), "{error}");
    assert!(engine.records::<Value>("stock").get("log").await.unwrap().is_none());
}

struct Pay;

impl StepRunner for Pay {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let text = String::from_utf8_lossy(&step.payload).into_owned();
        if step.step_number == 0 {
            assert!(step.request.is_none());
            let bad = Request::to("role:cfo").quorum(Quorum::All);
            let request = if text == "bad" { bad } else { Request::to("role:cfo") };
            return Ok(StepOutcome::on_request(text, request));
        }
        let outcome = step.request.clone().expect("the outcome of the request");
        if text == "fails" && step.generation == 0 {
            return Err(RelayError::permanent("the bank is closed"));
        }
        Ok(StepOutcome::done(format!("{text} {} {}", outcome.status, outcome.decisions[0].by)))
    }
}

async fn a_relay_asks_people(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("pay", Pay, NoopTerminalHook).build().unwrap();
    relay.start("i-7".into()).id("one").await.unwrap();
    let request = opened(&engine).await;
    assert_eq!((&*request.title, &*request.run.step), ("step 1 of pay", "request/1"));
    h.stop(&engine).await;

    let engine = h.engine().await;
    let relay = engine.relay("pay", Pay, NoopTerminalHook).build().unwrap();
    let run = relay.get("one").await.unwrap();
    let why = run.why().await.unwrap();
    let text: String = why.reasons.into_iter().map(|reason| reason.text).collect();
    assert!(text.contains("0 of 1 approvals, waits for role cfo since"), "{text}");
    engine.requests().decide(&request.id, &who("ann:cfo"), &NewDecision::reject()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "i-7 rejected ann");
}

async fn a_relay_that_fails_after_a_decision_keeps_it(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("pay", Pay, NoopTerminalHook).build().unwrap();
    let run = relay.start("fails".into()).id("one").await.unwrap();
    let request = opened(&engine).await;
    engine.requests().decide(&request.id, &who("ann:cfo"), &NewDecision::approve()).await.unwrap();
    run.result().await.unwrap_err();
    let run = run.retry().await.unwrap();
    assert_eq!(run.result().await.unwrap(), "fails approved ann");
}

async fn a_relay_with_a_bad_request_fails(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("pay", Pay, NoopTerminalHook).build().unwrap();
    let run = relay.start("bad".into()).id("one").await.unwrap();
    let finished = run.finished().await.unwrap();
    assert!(finished.error.unwrap().contains("no directory says who has the role"));
}
