//! Requests to people through the engine and `steps`: decisions, quorums, exclusions, stale records, due
//! times, and the end of the run.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::TaskContext;
use windlass::admin::Options;
use windlass::kernel::{Actor, Body, BoxFuture, Subject};
use windlass::model::{TaskHandler, TaskResult};
use windlass::requests::{
    Decider, Directory, DueAction, InboxOrder, InboxQuery, NewDecision, Quorum, RecordRef,
    Rejection, Request, RequestOutcome, RequestState, RequestStatus,
};
use windlass::{Ctx, Engine, ErrorCode, Result};

use crate::harness::{Harness, on_every_store};

on_every_store!(
    people_decide_and_the_run_sees_who_decided_what,
    nobody_approves_their_own_request,
    a_decision_about_a_changed_record_is_refused,
    editors_of_a_record_do_not_decide,
    nobody_decides_while_an_editor_is_unknown,
    due_times_end_and_escalate_requests,
    the_end_of_a_run_withdraws_its_requests,
    a_request_that_lost_a_race_is_withdrawn,
    many_people_decide_at_once_and_each_counts_once,
    bad_requests_are_errors_that_the_code_can_catch,
    a_directory_says_who_can_decide,
    a_forged_message_decides_nothing,
    inboxes_are_paged_by_age_and_by_due_time,
    closed_requests_are_deleted_some_time_after_the_end_of_the_run,
    webhooks_tell_when_a_request_opens_is_due_and_closes,
);

fn who(text: &str) -> Decider {
    Decider::new(Subject::parse(text).unwrap())
}

// Waits until a run has opened its request.
async fn opened(engine: &Engine, count: usize) -> Vec<RequestState> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let query = InboxQuery::Status(RequestStatus::Open);
        let page = engine.requests().inbox(&query, InboxOrder::Opened, None, 100).await.unwrap();
        if page.requests.len() >= count {
            return page.requests;
        }
        assert!(tokio::time::Instant::now() < deadline, "no request was opened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_closed(engine: &Engine, id: &str) -> RequestState {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let state = engine.requests().get(id).await.unwrap();
        if state.status != RequestStatus::Open {
            return state;
        }
        assert!(tokio::time::Instant::now() < deadline, "the request stays open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn ask(ctx: Ctx, request: Request) -> Result<RequestOutcome> {
    Ok(ctx.request("approve", request).await?)
}

async fn people_decide_and_the_run_sees_who_decided_what(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask", ask).unwrap();
    let request = Request::to("role:cfo")
        .title("Pay")
        .schema(json!({ "type": "object", "required": ["limit"] }))
        .about_snapshot(&json!({ "amount": 7 }))
        .quorum(2);
    let run = flow.start(request).id("one").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    let requests = engine.requests();
    let why = run.why().await;
    let text = why.unwrap().reasons.into_iter().map(|reason| reason.text).collect::<String>();
    assert!(text.contains("0 of 2 approvals, waits for role cfo since"), "{text}");

    let answer = NewDecision::approve().answer(json!({ "limit": 9 })).comment("fine");
    let error = requests.decide(&id, &who("ann:cfo"), &NewDecision::approve()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AnswerInvalid);
    let bad = NewDecision::approve().answer(json!({ "limits": 9 }));
    let error = requests.decide(&id, &who("ann:cfo"), &bad).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AnswerInvalid);
    requests.comment(&id, &who("bob:cfo"), "which one?").await.unwrap();
    requests.decide(&id, &who("ann:cfo"), &answer).await.unwrap();
    // The same decision again changes nothing, and another one is refused.
    requests.decide(&id, &who("ann:cfo"), &answer).await.unwrap();
    let error = requests.decide(&id, &who("ann:cfo"), &NewDecision::reject()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DecisionExists);
    assert_eq!(requests.get(&id).await.unwrap().votes.len(), 1);
    requests.decide(&id, &who("bob:cfo"), &answer).await.unwrap();
    let error = requests.decide(&id, &who("cy:cfo"), &answer).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RequestClosed);

    let outcome = run.result().await.unwrap();
    assert!(outcome.is_approved());
    let by: Vec<&str> = outcome.decisions.iter().map(|decision| &*decision.by).collect();
    assert_eq!(by, ["ann", "bob"]);
    assert_eq!(outcome.answer::<serde_json::Value>().unwrap(), Some(json!({ "limit": 9 })));
    assert_eq!(outcome.comments[0].text, "which one?");
}

async fn nobody_approves_their_own_request(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask", ask).unwrap();
    let request = Request::to("role:cfo").and_to("bob").requester("ann");
    let run = flow.start(request).id("one").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    let requests = engine.requests();
    let yes = NewDecision::approve();
    // By role, with another person's key that the requester created, and by delegation.
    for own in [who("ann:cfo"), who("bob").with_key("k1", Some("ann"))] {
        let error = requests.decide(&id, &own, &yes).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::DeciderExcluded, "{own:?}");
    }
    let until = engine.core().clock().now().plus(Duration::from_secs(600));
    let error = requests.delegate(&id, &who("bob"), "ann", until).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DelegationRefused);
    let error = requests.delegate(&id, &who("ann:cfo"), "dan", until).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeciderExcluded);
    let error = requests.decide(&id, &who("zoe"), &yes).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAssigned);
    let error = requests.withdraw(&id, &who("bob"), None).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAssigned);
    assert!(requests.get(&id).await.unwrap().votes.is_empty());
    requests.delegate(&id, &who("bob"), "dan", until).await.unwrap();
    requests.decide(&id, &who("dan").with_key("k2", Some("root")), &yes).await.unwrap();
    let outcome = run.result().await.unwrap();
    let decision = &outcome.decisions[0];
    assert_eq!((&*decision.by, decision.on_behalf_of.as_deref()), ("dan", Some("bob")));
    assert_eq!(decision.key_id.as_deref(), Some("k2"));
}

async fn about_invoice(ctx: Ctx, invoice: RecordRef) -> Result<RequestOutcome> {
    Ok(ctx.request("approve", Request::to("role:cfo").about(&invoice).quorum(2)).await?)
}

async fn a_decision_about_a_changed_record_is_refused(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("invoice", about_invoice).unwrap();
    let invoices = engine.records::<u32>("invoices");
    invoices.put("i-7", &70).expect_absent().keep().send().await.unwrap();
    let invoice = invoices.get("i-7").await.unwrap().unwrap();
    let run = flow.start(invoice.reference()).id("one").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    let requests = engine.requests();
    let yes = NewDecision::approve().about(invoice.digest);
    let other = NewDecision::approve().about(windlass::kernel::Sha256Digest::of(b"x"));
    let error = requests.decide(&id, &who("ann:cfo"), &other).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RequestStale);
    assert_eq!(requests.get(&id).await.unwrap().status, RequestStatus::Open);
    requests.decide(&id, &who("ann:cfo"), &yes).await.unwrap();
    // The same document at a later revision is still what people have seen.
    invoices.put("i-7", &70).expect_revision(1).keep().send().await.unwrap();
    assert_eq!(requests.get(&id).await.unwrap().votes.len(), 1);
    invoices.put("i-7", &71).expect_revision(2).send().await.unwrap();
    let error = requests.decide(&id, &who("bob:cfo"), &yes).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RequestStale);
    let outcome = run.result().await.unwrap();
    assert_eq!((outcome.status, outcome.decisions.len()), (RequestStatus::Stale, 1));

    // The run's own turn closes a request that was stale from the start.
    let run = flow.start(invoice.reference()).id("two").await.unwrap();
    let state = opened(&engine, 1).await.remove(0);
    let handle = run.run().await.unwrap();
    engine.core().pause(&handle, None).await.unwrap();
    engine.core().resume(&handle, None).await.unwrap();
    assert_eq!(until_closed(&engine, &state.id).await.status, RequestStatus::Stale);
    assert_eq!(run.result().await.unwrap().status, RequestStatus::Stale);
}

async fn ask_about(ctx: Ctx, (request, invoice): (Request, RecordRef)) -> Result<RequestOutcome> {
    Ok(ctx.request("approve", request.about(&invoice)).await?)
}

async fn editors_of_a_record_do_not_decide(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask-about", ask_about).unwrap();
    let invoices = engine.records::<u32>("invoices");
    let user = |id: &str| Actor::new("user", id);
    invoices.put("i", &1).expect_absent().keep().by(&user("ann")).send().await.unwrap();
    // A program key that Bob created: he could have used it.
    let key = Actor::new("api_key", "k-1").with_key_creators(["bob"]);
    invoices.put("i", &2).expect_revision(1).keep().by(&key).send().await.unwrap();
    // A version without an author is the work of a program.
    invoices.put("i", &3).expect_revision(2).keep().send().await.unwrap();
    let invoice = invoices.get("i").await.unwrap().unwrap().reference();
    let request = Request::to("role:cfo").and_to("cy");
    let run = flow.start((request, invoice)).id("one").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    let (requests, yes) = (engine.requests(), NewDecision::approve());
    let until = engine.core().clock().now().plus(Duration::from_secs(600));
    for editor in [who("ann:cfo"), who("bob:cfo"), who("eve:cfo").with_key("k-2", Some("ann"))] {
        let error = requests.decide(&id, &editor, &yes).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::DeciderExcluded, "{editor:?}");
        let error = requests.delegate(&id, &editor, "dan", until).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::DeciderExcluded, "{editor:?}");
    }
    // Cy delegates the decision and then writes the same document again, which is not stale.
    requests.delegate(&id, &who("cy"), "dan", until).await.unwrap();
    invoices.put("i", &3).expect_revision(3).keep().by(&user("cy")).send().await.unwrap();
    let error = requests.decide(&id, &who("dan"), &yes).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeciderExcluded);
    // Nor can an editor to whom somebody delegated.
    requests.delegate(&id, &who("fay:cfo"), "ann", until).await.unwrap();
    let error = requests.decide(&id, &who("ann"), &yes).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeciderExcluded);
    assert!(requests.get(&id).await.unwrap().votes.is_empty());
    requests.decide(&id, &who("gus:cfo"), &yes).await.unwrap();
    assert!(run.result().await.unwrap().is_approved());
}

async fn nobody_decides_while_an_editor_is_unknown(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask-about", ask_about).unwrap();
    let invoices = engine.records::<u32>("invoices");
    let ann = Actor::new("user", "ann");
    // The first revision is not kept; the last one is not; the record was removed in between.
    invoices.put("first", &1).send().await.unwrap();
    invoices.put("first", &2).keep().by(&ann).send().await.unwrap();
    invoices.put("last", &1).keep().by(&ann).send().await.unwrap();
    invoices.put("last", &2).send().await.unwrap();
    invoices.put("gone", &1).keep().by(&ann).send().await.unwrap();
    invoices.remove("gone", 1).await.unwrap();
    invoices.put("gone", &2).keep().by(&ann).send().await.unwrap();
    let (requests, yes) = (engine.requests(), NewDecision::approve());
    for (record, revision) in [("first", 1), ("last", 2), ("gone", 2)] {
        let invoice = invoices.get(record).await.unwrap().unwrap().reference();
        let ask = |request| flow.start((request, invoice.clone()));
        let run = ask(Request::to("bob")).id(record).await.unwrap();
        let id = opened(&engine, 1).await[0].id.clone();
        let error = requests.decide(&id, &who("bob"), &yes).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::EditorsUnknown);
        let text = format!("revision {revision} of record invoices/{record}");
        assert!(error.message().contains(&text), "{error}");
        assert!(requests.get(&id).await.unwrap().votes.is_empty());
        requests.withdraw_as_operator(&id, (None, None), None).await.unwrap();
        assert_eq!(run.result().await.unwrap().status, RequestStatus::Withdrawn);
        let open = ask(Request::to("bob").allow_editors()).id(format!("{record}-open"));
        let run = open.await.unwrap();
        let id = opened(&engine, 1).await[0].id.clone();
        requests.decide(&id, &who("bob"), &yes).await.unwrap();
        assert!(run.result().await.unwrap().is_approved());
    }
}

async fn due_times_end_and_escalate_requests(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask", ask).unwrap();
    let soon = Duration::from_millis(50);
    for (id, action, expect) in [
        ("expire", DueAction::Expire, RequestStatus::Expired),
        ("approve", DueAction::Approve, RequestStatus::Approved),
        ("reject", DueAction::Reject, RequestStatus::Rejected),
    ] {
        let request = Request::to("ann").due(soon).on_due(action);
        let outcome = flow.start(request).id(id).await.unwrap().result().await.unwrap();
        assert_eq!(outcome.status, expect);
        assert!(outcome.decisions.is_empty() && outcome.reason.is_some());
    }
    let request = Request::to("ann").escalate(soon, ["role:ceo"]);
    let run = flow.start(request).id("escalate").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while engine.requests().get(&id).await.unwrap().assignees.len() < 2 {
        assert!(tokio::time::Instant::now() < deadline, "the request was not escalated");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.requests().decide(&id, &who("zoe:ceo"), &NewDecision::reject()).await.unwrap();
    assert_eq!(run.result().await.unwrap().status, RequestStatus::Rejected);
}

async fn the_end_of_a_run_withdraws_its_requests(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask", ask).unwrap();
    let request = Request::to("ann").and_to("bob").quorum(2).due("3 days");
    let run = flow.start(request).id("one").await.unwrap();
    let first = opened(&engine, 1).await.remove(0);
    engine.requests().decide(&first.id, &who("bob"), &NewDecision::approve()).await.unwrap();
    run.terminate().await.unwrap();
    // The decision is in the ledger, although the run has not read it.
    let events = run.events().await.unwrap();
    let decided = events.iter().find(|event| event.event_type.as_str() == "request.decided");
    let decided = decided.unwrap().payload_json().unwrap();
    let state = engine.requests().get(&first.id).await.unwrap();
    let decision = engine.requests().decisions(&state).await.unwrap().remove(0);
    let digest = Body::of(&decision).unwrap().digest();
    assert_eq!((&decided["request"], &decided["decision"]), (&json!(first.id), &json!(digest)));
    assert_eq!(decided["actor"], json!(Actor::new("user", "bob")));
    // At once, although the task that withdraws it may not have run.
    let error = engine.requests().decide(&first.id, &who("ann"), &NewDecision::approve()).await;
    assert_eq!(error.unwrap_err().code(), ErrorCode::RequestClosed);
    assert_eq!(until_closed(&engine, &first.id).await.status, RequestStatus::Withdrawn);
    // A restart asks anew.
    let run = run.restart().await.unwrap();
    let second = opened(&engine, 1).await.remove(0);
    assert_ne!(second.id, first.id);
    let (requests, operator) = (engine.requests(), (Some("olga"), Some("k-1")));
    requests.withdraw_as_operator(&second.id, operator, Some("never mind")).await.unwrap();
    let closed = requests.get(&second.id).await.unwrap().closed.unwrap();
    assert_eq!((closed.by.as_deref(), closed.key_id.as_deref()), operator);
    let outcome = run.result().await.unwrap();
    assert_eq!(
        (outcome.status, outcome.reason.as_deref()),
        (RequestStatus::Withdrawn, Some("never mind"))
    );
}

async fn race(ctx: Ctx, _: ()) -> Result<bool> {
    // The block drops the request that has lost.
    let lost = {
        let ask = std::pin::pin!(ctx.request("approve", Request::to("ann")));
        let sleep = std::pin::pin!(ctx.sleep("wait", Duration::from_millis(50)));
        matches!(futures::future::select(ask, sleep).await, futures::future::Either::Right(_))
    };
    let _: () = ctx.event("more", "go").await?;
    Ok(lost)
}

async fn a_request_that_lost_a_race_is_withdrawn(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("race", race).unwrap();
    let run = flow.start(()).id("one").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    let closed = until_closed(&engine, &id).await;
    assert_eq!(closed.status, RequestStatus::Withdrawn);
    run.send_event("go", &()).await.unwrap();
    assert!(run.result().await.unwrap());
}

async fn many_people_decide_at_once_and_each_counts_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask", ask).unwrap();
    let run = flow.start(Request::to("role:all").quorum(6)).id("one").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    // Each of eight people sends the same decision twice at the same time.
    let mut calls = Vec::new();
    for n in 0..16 {
        let (requests, id) = (engine.requests(), id.clone());
        calls.push(tokio::spawn(async move {
            let who = who(&format!("p{}:all", n % 8));
            requests.decide(&id, &who, &NewDecision::approve()).await
        }));
    }
    let mut refused = 0;
    for call in calls {
        if let Err(error) = call.await.unwrap() {
            assert_eq!(error.code(), ErrorCode::RequestClosed);
            refused += 1;
        }
    }
    let outcome = run.result().await.unwrap();
    let mut by: Vec<&str> = outcome.decisions.iter().map(|decision| &*decision.by).collect();
    by.sort_unstable();
    by.dedup();
    assert_eq!((by.len(), outcome.decisions.len()), (6, 6));
    assert!(refused >= 2, "two people came too late: {refused}");
}

async fn catches(ctx: Ctx, request: Request) -> Result<String> {
    let error = ctx.request("ask", request).await.unwrap_err();
    Ok(format!("{} {} {}", error.code, error.name, error.message))
}

async fn bad_requests_are_errors_that_the_code_can_catch(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("catches", catches).unwrap();
    let all = Request::to("role:cfo").quorum(Quorum::All);
    let schema = Request::to("ann").schema(json!({ "type": 7 }));
    let title = Request::to("ann").title("x".repeat(201));
    let notify = Request::to("ann").notify("mail", &json!({ "text": "x".repeat(20 << 10) }));
    for (id, request, part) in [
        ("all", all, "no directory"),
        ("schema", schema, "JSON schema"),
        ("title", title, "at most 200"),
        ("notify", notify, "at most 16384"),
    ] {
        let text = flow.start(request).id(id).await.unwrap().result().await.unwrap();
        assert!(text.contains(part), "{text}");
    }
    let open = InboxQuery::Status(RequestStatus::Open);
    let page = engine.requests().inbox(&open, InboxOrder::Opened, None, 10).await.unwrap();
    assert!(page.requests.is_empty());
    let error = engine.requests().get("no-such").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RequestNotFound);
}

async fn a_forged_message_decides_nothing(h: Arc<Harness>) {
    use windlass::kernel::{MessageId, MessageKind, MessageName};
    let engine = h.engine().await;
    let flow = engine.workflow("ask", ask).unwrap();
    let run = flow.start(Request::to("ann")).id("one").await.unwrap();
    let state = opened(&engine, 1).await.remove(0);
    let forged = Body::of(&json!({ "request": state.id, "status": "approved" })).unwrap();
    let name = MessageName::new("request").unwrap();
    let (key, kind) = (state.run.run_key, MessageKind::Decision);
    engine.core().send_message(key, kind, name.clone(), Some(forged), None).await.unwrap();
    // A run accepts each message id once: nobody else takes that of the decision.
    for kind in [MessageKind::Event, MessageKind::Signal] {
        let id = MessageId::new(format!("request:{}", state.id)).unwrap();
        let sent = engine.core().send_message(key, kind, name.clone(), None, Some(id)).await;
        assert_eq!(sent.unwrap_err().code(), ErrorCode::InvalidEventId);
    }
    // The run has read the forged message when it reads the one of the decision.
    engine.requests().decide(&state.id, &who("ann"), &NewDecision::reject()).await.unwrap();
    assert_eq!(run.result().await.unwrap().status, RequestStatus::Rejected);
}

async fn inboxes_are_paged_by_age_and_by_due_time(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask", ask).unwrap();
    for (id, request) in [
        ("a", Request::to("ann").due("3 days")),
        ("b", Request::to("role:cfo").due("1 day")),
        ("c", Request::to("bob")),
        ("d", Request::to("ann").and_to("role:cfo")),
    ] {
        flow.start(request).id(id).await.unwrap();
    }
    opened(&engine, 4).await;
    let requests = engine.requests();
    let mine = InboxQuery::Of(Subject::parse("ann:cfo").unwrap());
    for (query, order, expect) in [
        (&mine, InboxOrder::Due, "b a d"),
        (&InboxQuery::Role("cfo".into()), InboxOrder::Due, "b d"),
        (&InboxQuery::Person("bob".into()), InboxOrder::Opened, "c"),
        (&InboxQuery::Person("eve".into()), InboxOrder::Opened, ""),
    ] {
        let (mut after, mut runs) = (None, Vec::new());
        loop {
            let page = requests.inbox(query, order, after.as_deref(), 1).await.unwrap();
            runs.extend(page.requests.into_iter().map(|state| state.run.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(runs.join(" "), expect, "{query:?}");
    }
    let mut all: Vec<String> = Vec::new();
    let page = requests.inbox(&mine, InboxOrder::Opened, None, 2).await.unwrap();
    all.extend(page.requests.iter().map(|state| state.run.id.clone()));
    let page = requests.inbox(&mine, InboxOrder::Opened, page.next.as_deref(), 2).await.unwrap();
    all.extend(page.requests.iter().map(|state| state.run.id.clone()));
    all.sort_unstable();
    assert_eq!((all.join(" "), page.next), ("a b d".into(), None));
    // Another tenant sees none of them.
    let other = engine.in_namespace("other").unwrap().requests();
    let open = InboxQuery::Status(RequestStatus::Open);
    assert!(other.inbox(&open, InboxOrder::Opened, None, 9).await.unwrap().requests.is_empty());
}

async fn closed_requests_are_deleted_some_time_after_the_end_of_the_run(h: Arc<Harness>) {
    let retention = Duration::from_secs(1);
    let engine = h.engine_with(|options| Options { request_retention: retention, ..options }).await;
    let flow = engine.workflow("race", race).unwrap();
    let asks = engine.workflow("ask", ask).unwrap();
    // Withdrawn, and its run goes on: the request stays.
    let live = flow.start(()).id("live").await.unwrap();
    let kept = opened(&engine, 1).await.remove(0);
    until_closed(&engine, &kept.id).await;
    let run = asks.start(Request::to("role:cfo").quorum(2)).id("one").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    let requests = engine.requests();
    for person in ["ann:cfo", "bob:cfo"] {
        requests.decide(&id, &who(person), &NewDecision::approve()).await.unwrap();
    }
    let state = requests.get(&id).await.unwrap();
    let decisions = async || requests.decisions(&state).await.unwrap().len();
    assert_eq!((run.result().await.unwrap().decisions.len(), decisions().await), (2, 2));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while requests.get(&id).await.is_ok() || decisions().await > 0 {
        assert!(tokio::time::Instant::now() < deadline, "the request was not deleted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(requests.get(&kept.id).await.unwrap().status, RequestStatus::Withdrawn);
    live.send_event("go", &()).await.unwrap();
    live.result().await.unwrap();
}

struct Tell(Arc<parking_lot::Mutex<Vec<serde_json::Value>>>);

impl TaskHandler for Tell {
    fn run(&self, _: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        self.0.lock().push(input.read().unwrap());
        Box::pin(std::future::ready(Ok(Body::json("null"))))
    }
}

async fn webhooks_tell_when_a_request_opens_is_due_and_closes(h: Arc<Harness>) {
    let told = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let engine = h.engine().await;
    engine.serve_effects("tell", Arc::new(Tell(Arc::clone(&told)))).unwrap();
    let flow = engine.workflow("ask", ask).unwrap();
    let soon = Duration::from_millis(20);
    let request = Request::to("ann")
        .title("Pay")
        .label("amount", "7")
        .escalate(soon, ["role:ceo"])
        .notify("tell", &json!({ "channel": "finance" }));
    let run = flow.start(request).id("one").await.unwrap();
    let id = opened(&engine, 1).await[0].id.clone();
    let types = || {
        let mut types: Vec<String> =
            told.lock().iter().map(|input| input["type"].as_str().unwrap().to_owned()).collect();
        types.sort_unstable();
        types
    };
    let until = async |count: usize| {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while types().len() < count {
            assert!(tokio::time::Instant::now() < deadline, "{:?}", types());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until(2).await;
    let answer = NewDecision::approve().answer(json!("a secret")).comment("also secret");
    engine.requests().decide(&id, &who("zoe:ceo"), &answer).await.unwrap();
    run.result().await.unwrap();
    until(3).await;
    assert_eq!(types(), ["request.closed", "request.due", "request.opened"]);
    for input in told.lock().iter() {
        assert_eq!((&input["channel"], &input["data"]["request"]), (&json!("finance"), &json!(id)));
        assert_eq!(input["data"]["labels"]["amount"], "7");
        assert!(!input.to_string().contains("secret"), "{input}");
    }
}

struct Staff;

impl Directory for Staff {
    fn members(&self, role: &str) -> Option<Vec<String>> {
        let members: &[&str] = match role {
            "cfo" => &["ann", "bob", "cy"],
            _ => &[],
        };
        Some(members.iter().map(|member| (*member).to_owned()).collect())
    }

    fn has_person(&self, id: &str) -> Option<bool> {
        Some(["ann", "bob", "cy"].contains(&id))
    }
}

async fn a_directory_says_who_can_decide(h: Arc<Harness>) {
    let set = |options| Options { directory: Some(Arc::new(Staff)), ..options };
    let engine = h.engine_with(set).await;
    let flow = engine.workflow("catches", catches).unwrap();
    for (id, request) in [
        ("nobody has it", Request::to("role:ceo")),
        ("no such person", Request::to("zoe")),
        ("only the requester", Request::to("ann").requester("ann")),
    ] {
        let text = flow.start(request).id(id.replace(' ', "-")).await.unwrap();
        let text = text.result().await.unwrap();
        assert!(text.starts_with("REQUEST_FAILED ASSIGNEE_UNKNOWN "), "{id}: {text}");
    }
    let open = InboxQuery::Status(RequestStatus::Open);
    let page = engine.requests().inbox(&open, InboxOrder::Opened, None, 10).await.unwrap();
    assert!(page.requests.is_empty());

    // Of three people one is excluded, so two thirds of the rest are two; a rejection makes that impossible.
    let flow = engine.workflow("ask", ask).unwrap();
    let request = Request::to("role:cfo").requester("cy").quorum(Quorum::Percent(67));
    let run = flow.start(request.rejection(Rejection::Unreachable)).id("one").await.unwrap();
    let state = opened(&engine, 1).await.remove(0);
    assert_eq!((state.quorum, state.people), (2, Some(2)));
    let requests = engine.requests();
    requests.decide(&state.id, &who("ann:cfo"), &NewDecision::approve()).await.unwrap();
    requests.decide(&state.id, &who("bob:cfo"), &NewDecision::reject()).await.unwrap();
    assert_eq!(run.result().await.unwrap().status, RequestStatus::Rejected);
}
