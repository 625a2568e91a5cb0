//! The rules of requests, as tables.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::rules::{self, tally};
use super::*;
use crate::ids::{RunKey, TaskId};
use crate::limits::Limits;

const T0: Timestamp = Timestamp::from_micros(1_000_000_000);

fn at(seconds: u64) -> Timestamp {
    T0.plus(Duration::from_secs(seconds))
}

fn task() -> TaskId {
    TaskId(uuid::Uuid::nil())
}

struct Roles(BTreeMap<&'static str, Vec<&'static str>>);

impl Directory for Roles {
    fn members(&self, role: &str) -> Option<Vec<String>> {
        self.0.get(role).map(|people| people.iter().map(|id| (*id).to_owned()).collect())
    }

    fn has_person(&self, id: &str) -> Option<bool> {
        Some(id != "nobody")
    }
}

fn open_with(request: &Request, directory: &dyn Directory) -> Result<RequestState, Error> {
    request.open(Opening {
        id: "r-1".into(),
        run: RequestRun {
            run_key: RunKey(uuid::Uuid::nil()),
            workflow: "expense".into(),
            id: "e-1".into(),
            step: "approve".into(),
        },
        at: T0,
        due_task: task(),
        directory,
        limits: &Limits::DEFAULT,
    })
}

fn open(request: &Request) -> RequestState {
    open_with(request, &NoDirectory).unwrap()
}

fn person(text: &str) -> Decider {
    Decider::new(Subject::parse(text).unwrap())
}

fn decide(state: &mut RequestState, who: &Decider, new: &NewDecision) -> Result<(), Error> {
    let decision = rules::decision(state, who, new, at(1))?;
    rules::count(state, who, &decision);
    Ok(())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, code: ErrorCode, part: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    assert!(error.message().contains(part), "{error}: {part}");
}

#[test]
fn quorums_become_numbers_when_a_request_opens() {
    let roles = Roles(BTreeMap::from([("cfo", vec!["ann", "bob", "cy"]), ("none", vec![])]));
    let three = || Request::to("ann").and_to("bob").and_to("cy");
    for (request, expect) in [
        (Request::to("role:cfo"), 1),
        (Request::to("role:cfo").quorum(2), 2),
        (Request::to("role:cfo").quorum(Quorum::All), 3),
        (Request::to("role:cfo").quorum(Quorum::Percent(50)), 2),
        (Request::to("role:cfo").requester("ann").quorum(Quorum::All), 2),
        (three().quorum(Quorum::Percent(67)), 3),
        (three().quorum(Quorum::Percent(1)), 1),
    ] {
        assert_eq!(open_with(&request, &roles).unwrap().quorum, expect, "{request:?}");
    }
    let fails =
        |request: Request, code, part: &str| refused(open_with(&request, &roles), code, part);
    fails(Request::to("role:none"), ErrorCode::AssigneeUnknown, "nobody has the role");
    fails(Request::to("nobody"), ErrorCode::AssigneeUnknown, "no such person");
    fails(Request::to("ann").requester("ann"), ErrorCode::AssigneeUnknown, "is excluded");
    fails(three().quorum(4), ErrorCode::InvalidRequest, "3 people can decide");
    fails(three().quorum(0), ErrorCode::InvalidRequest, "use 1 to 100");
    fails(three().quorum(Quorum::Percent(0)), ErrorCode::InvalidRequest, "use 1 to 100");
    let all = Request::to("role:cfo").quorum(Quorum::All);
    refused(open_with(&all, &NoDirectory), ErrorCode::InvalidRequest, "no directory says");
    let left = Request::to("role:cfo").rejection(Rejection::Unreachable);
    refused(open_with(&left, &NoDirectory), ErrorCode::InvalidRequest, "no directory says");
}

#[test]
fn bad_requests_are_refused_and_the_limit_is_named() {
    let many = (0..20).fold(Request::to("x"), |request, n| request.and_to(format!("p{n}")));
    let fails =
        |request: Request, code, part: &str| refused(request.check(&Limits::DEFAULT), code, part);
    fails(many, ErrorCode::InvalidRequest, "at most 16");
    fails(Request::to("role:a b"), ErrorCode::InvalidSubject, "contains ' '");
    fails(Request::to(""), ErrorCode::InvalidSubject, "has 0 bytes");
    fails(Request::to("a").title("x".repeat(201)), ErrorCode::InvalidRequest, "at most 200");
    fails(Request::to("a").due("soon"), ErrorCode::InvalidDuration, "not a duration");
    fails(Request::to("a").due("400 days"), ErrorCode::InvalidRequest, "365 days");
    fails(Request::to("a").on_due(DueAction::Approve), ErrorCode::InvalidRequest, "no due time");
    fails(Request::to("a").due("1 h").due("2 h"), ErrorCode::InvalidRequest, "only the last");
    fails(Request::to("a").escalate("1 h", [""; 0]), ErrorCode::InvalidRequest, "names nobody");
    fails(Request::to("a").choices(["x", "x"]), ErrorCode::InvalidRequest, "twice");
    fails(Request::to("a").choice("no", Verdict::Reject), ErrorCode::InvalidRequest, "rejections");
    fails(Request::to("a").notify("x", &1), ErrorCode::InvalidRequest, "JSON object");
    let large = json!({ "text": "x".repeat(NOTIFY_BYTES_MAX) });
    fails(Request::to("a").notify("x", &large), ErrorCode::InvalidRequest, "at most 16384");
    fails(Request::to("a").label("", "x"), ErrorCode::InvalidRequest, "label");
}

#[test]
fn votes_close_a_request_once_they_decide_it() {
    let people = || Request::to("ann").and_to("bob").and_to("cy");
    type Votes = &'static [(&'static str, bool)];
    let cases: [(Request, Votes, RequestStatus); 7] = [
        (people(), &[("ann", true)], RequestStatus::Approved),
        (people(), &[("ann", false)], RequestStatus::Rejected),
        (people().quorum(2), &[("ann", true)], RequestStatus::Open),
        (people().quorum(2), &[("ann", true), ("cy", true)], RequestStatus::Approved),
        (
            people().quorum(2).rejection(Rejection::Count(2)),
            &[("ann", false), ("bob", true)],
            RequestStatus::Open,
        ),
        (
            people().quorum(2).rejection(Rejection::Unreachable),
            &[("ann", false), ("bob", false)],
            RequestStatus::Rejected,
        ),
        // The rule asks for three rejections, but the quorum cannot be reached any more.
        (
            people().quorum(2).rejection(Rejection::Count(3)),
            &[("ann", false), ("bob", false)],
            RequestStatus::Rejected,
        ),
    ];
    for (request, votes, expect) in cases {
        let mut state = open(&request);
        for (who, approves) in votes {
            let new = if *approves { NewDecision::approve() } else { NewDecision::reject() };
            decide(&mut state, &person(who), &new).unwrap();
        }
        assert_eq!(state.status, expect, "{request:?}");
        assert_eq!(tally(&state).unwrap_or(RequestStatus::Open), expect);
    }
}

#[test]
fn only_those_who_are_asked_decide_and_nobody_who_is_excluded() {
    let mut state =
        open(&Request::to("role:cfo").and_to("dan").requester("ann").exclude("eve").quorum(3));
    let new = NewDecision::approve();
    for (who, code, part) in [
        (person("zoe"), ErrorCode::NotAssigned, "it asks role:cfo, dan"),
        (person("ann:cfo"), ErrorCode::DeciderExcluded, "requester"),
        (person("eve:cfo"), ErrorCode::DeciderExcluded, "excluded by name"),
        (person("bob:cfo").with_key("k-1", Some("ann")), ErrorCode::DeciderExcluded, "API key"),
    ] {
        refused(decide(&mut state, &who, &new), code, part);
    }
    decide(&mut state, &person("bob:cfo").with_key("k-1", Some("root")), &new).unwrap();
    // The creator of a key and the key count once.
    refused(
        decide(&mut state, &person("root:cfo"), &new),
        ErrorCode::DeciderExcluded,
        "a key that they",
    );
    decide(&mut state, &person("dan"), &new).unwrap();
    let with_key = person("fay:cfo").with_key("k-2", Some("dan"));
    refused(decide(&mut state, &with_key, &new), ErrorCode::DeciderExcluded, "has decided already");
    assert_eq!((state.votes.len(), state.status), (2, RequestStatus::Open));
}

#[test]
fn delegations_end_and_have_no_chains() {
    let mut state = open(&Request::to("role:cfo").requester("ann").quorum(2));
    let (bob, cy) = (person("bob:cfo"), person("cy"));
    let give = |state: &mut RequestState, who: &Decider, to: &str, until: u64| {
        rules::delegate(state, who, to, at(until), at(1))
    };
    let no = ErrorCode::DelegationRefused;
    refused(give(&mut state, &bob, "ann", 100), no, "excluded");
    refused(give(&mut state, &bob, "bob", 100), no, "another person");
    refused(give(&mut state, &bob, "cy", 1), no, "within the next 365 days");
    refused(
        give(&mut state, &person("ann:cfo"), "cy", 100),
        ErrorCode::DeciderExcluded,
        "requester",
    );
    refused(give(&mut state, &cy, "dan", 100), ErrorCode::NotAssigned, "it asks role:cfo");
    give(&mut state, &bob, "cy", 100).unwrap();
    refused(give(&mut state, &cy, "dan", 100), no, "was delegated to the caller");
    let new = NewDecision::approve();
    refused(decide(&mut state, &bob, &new), ErrorCode::NotAssigned, "delegated");
    // After its end, the right is back.
    assert!(rules::decision(&state, &cy, &new, at(100)).is_err());
    assert!(rules::decision(&state, &bob, &new, at(100)).is_ok());
    decide(&mut state, &cy, &new).unwrap();
    assert_eq!(state.votes[0].on_behalf_of.as_deref(), Some("bob"));
    // One right gives one vote.
    let late = rules::decision(&state, &bob, &new, at(100));
    refused(late, ErrorCode::NotAssigned, "decided for them");
}

#[test]
fn due_times_escalate_and_end_a_request() {
    let request = Request::to("ann").escalate("10 seconds", ["role:ceo"]).due("5 seconds");
    let mut state = open(&request.on_due(DueAction::Approve));
    assert!(!rules::due(&mut state, at(9), task(), &NoDirectory));
    // The request asks more people and stays open, also if the task of the due time is late.
    rules::check_open(&state, at(11)).unwrap();
    assert!(rules::due(&mut state, at(11), task(), &NoDirectory));
    assert_eq!(state.assignees.len(), 2);
    assert_eq!((state.status, state.due_at), (RequestStatus::Open, Some(at(16))));
    rules::right(&state, &person("zoe:ceo"), at(12)).unwrap();
    refused(rules::check_open(&state, at(16)), ErrorCode::RequestClosed, "was due");
    assert!(rules::due(&mut state, at(16), task(), &NoDirectory));
    assert_eq!(state.status, RequestStatus::Approved);
    assert!(!rules::due(&mut state, at(30), task(), &NoDirectory));
    refused(rules::check_open(&state, at(30)), ErrorCode::RequestClosed, "is approved");
}

#[test]
fn a_decision_must_fit_the_request() {
    let request =
        Request::to("ann").about_snapshot(&json!({ "amount": 7 })).choices(["small", "large"]);
    let mut state = open(&request);
    let digest = state.about.as_ref().unwrap().digest();
    let ann = person("ann");
    let other = NewDecision::new("small").about(Sha256Digest::of(b"other"));
    refused(decide(&mut state, &ann, &other), ErrorCode::RequestStale, "read it again");
    let bad = ErrorCode::InvalidDecision;
    refused(decide(&mut state, &ann, &NewDecision::approve()), bad, "use one of: small, large");
    let long = NewDecision::new("small").comment("x".repeat(4097));
    refused(decide(&mut state, &ann, &long), bad, "use 1 to 4096 bytes");
    let large = NewDecision::new("small").answer(json!("x".repeat(ANSWERS_BYTES_MAX)));
    refused(decide(&mut state, &ann, &large), bad, "are left");
    refused(
        rules::comment(&mut state, &person("zoe"), "hi", at(1)),
        ErrorCode::NotAssigned,
        "neither",
    );
    rules::comment(&mut state, &ann, "hm", at(1)).unwrap();
    decide(&mut state, &ann, &NewDecision::new("large").about(digest)).unwrap();
    refused(rules::comment(&mut state, &ann, "late", at(2)), ErrorCode::RequestClosed, "approved");
}

#[test]
fn terms_find_open_requests_by_those_who_are_asked() {
    let mut state = open(&Request::to("role:cfo").and_to("ann").due("2 days"));
    rules::delegate(&mut state, &person("ann"), "bob", at(100), at(1)).unwrap();
    let terms = state.terms(at(2)).unwrap();
    for (name, value) in
        [("role", "cfo"), ("assignee", "ann"), ("assignee", "bob"), ("status", "open")]
    {
        assert!(terms.contains(name, value), "{name}={value}");
    }
    assert!(terms.contains("due", "1970-01-03"), "{terms:?}");
    assert!(!state.terms(at(101)).unwrap().contains("assignee", "bob"));
    rules::close(&mut state, RequestStatus::Expired, at(3), None, None);
    assert_eq!(state.terms(at(3)).unwrap().len(), 2);
}

#[test]
fn the_outcome_of_the_largest_request_fits_into_a_step() {
    let request =
        Request::to("role:board").quorum(QUORUM_MAX).rejection(Rejection::Count(QUORUM_MAX));
    let mut state = open(&request.choices(["é".repeat(64)]).choice("no", Verdict::Reject));
    let text = |unit: &str, bytes: usize| unit.repeat(bytes / unit.len());
    // A character that takes six bytes in JSON.
    refused(
        rules::comment(&mut state, &person("p0:board"), &text("\u{1}", 1_000), at(1)),
        ErrorCode::InvalidDecision,
        "6000 bytes",
    );
    for _ in 0..COMMENTS_MAX {
        rules::comment(&mut state, &person("p0:board"), &text("x", COMMENT_BYTES_MAX), at(1))
            .unwrap();
    }
    let mut decisions = Vec::new();
    for n in 0..2 * QUORUM_MAX - 1 {
        let id = format!("{n:0>256}");
        let who = Decider::new(Subject::new(&id, ["board"]).unwrap()).with_key("k-1", None);
        let choice = if n % 2 == 0 { "é".repeat(64) } else { "no".into() };
        let new = NewDecision::new(choice);
        let long = new.clone().comment(text("x", COMMENT_BYTES_MAX));
        let decision = rules::decision(&state, &who, &long, at(1))
            .or_else(|_| rules::decision(&state, &who, &new, at(1)))
            .unwrap();
        rules::count(&mut state, &who, &decision);
        decisions.push(decision);
    }
    assert_eq!(state.status, RequestStatus::Approved);
    let bytes = crate::body::Body::of(&state.outcome(decisions).unwrap()).unwrap().len();
    assert!(bytes < Limits::DEFAULT.step_bytes_max, "{bytes}");
    let bytes = crate::body::Body::of(&state).unwrap().len();
    assert!(bytes < Limits::DEFAULT.record_bytes_max, "{bytes}");
}
