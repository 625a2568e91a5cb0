//! Tables of all transitions, and of what the core does with sequences of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use uuid::Uuid;
use windlass_kernel::{Limits, MessageName, RunKey, Step, StepStatus, WorkflowName};

use super::*;
use crate::fixtures::{self, run};

const AT: Timestamp = Timestamp::from_millis(5_000);
const DUE: Timestamp = Timestamp::from_millis(9_000);
const RECORDED: Intent = Intent::Recorded;
const UNKNOWN: Intent = Intent::Unknown;

fn outcome(text: &'static str) -> Outcome {
    Ok(Body::json(text))
}

fn record() -> Record {
    Record { outcome: outcome("1"), at: AT }
}

fn wait() -> Wait {
    Wait { due: Some(DUE), wait_for: None, child: None, request: None, keyed: None }
}

fn all_states() -> Vec<State> {
    let intents = [Intent::None, RECORDED, UNKNOWN];
    let mut states = vec![
        State::WaitLoaded(wait()),
        State::Asked,
        State::Waiting(wait()),
        State::Recorded(record()),
        State::Carried(record()),
        State::Awaited(record()),
        State::SetAside(record()),
        State::Delivered(outcome("1")),
    ];
    for intent in intents {
        states.extend([
            State::Idle { intent },
            State::RetryLoaded { due: DUE, intent },
            State::Deferred { after: 3, intent },
            State::Starting { intent },
            State::Running { intent },
            State::Ended { intent },
            State::Retrying { due: DUE, intent },
        ]);
    }
    states
}

fn all_inputs() -> Vec<Input> {
    vec![
        Input::Claim { kind: Kind::Do, appended: 7 },
        Input::Claim { kind: Kind::Sleep, appended: 7 },
        Input::Drop,
        Input::Intent { after: 8 },
        Input::Start,
        Input::Run,
        Input::End { intent: Intent::None },
        Input::End { intent: UNKNOWN },
        Input::RetryAt(DUE),
        Input::RetryDue { appended: 7 },
        Input::Wait(wait()),
        Input::Record { outcome: outcome("2"), at: AT },
        Input::Deliver,
        Input::Cancel,
    ]
}

// One word for a state or an input, with the part of it that a transition depends on.
fn short(intent: Intent) -> &'static str {
    match intent {
        Intent::None => "",
        Intent::Recorded => "+recorded",
        Intent::Unknown => "+unknown",
    }
}

fn state_name(state: &State) -> String {
    match state {
        State::Idle { intent } => format!("Idle{}", short(*intent)),
        State::RetryLoaded { intent, due } => {
            format!("RetryLoaded{}@{}", short(*intent), secs(*due))
        }
        State::WaitLoaded(_) => "WaitLoaded".into(),
        State::Deferred { after, intent } => format!("Deferred{}>{after}", short(*intent)),
        State::Starting { intent } => format!("Starting{}", short(*intent)),
        State::Running { intent } => format!("Running{}", short(*intent)),
        State::Ended { intent } => format!("Ended{}", short(*intent)),
        State::Retrying { intent, due } => format!("Retrying{}@{}", short(*intent), secs(*due)),
        State::Asked => "Asked".into(),
        State::Waiting(wait) => format!("Waiting@{}", wait.due.map_or(0, secs)),
        State::Recorded(_) => "Recorded".into(),
        State::Carried(_) => "Carried".into(),
        State::Awaited(_) => "Awaited".into(),
        State::SetAside(_) => "SetAside".into(),
        State::Delivered(Ok(body)) => {
            format!("Delivered={}", String::from_utf8_lossy(&body.bytes))
        }
        State::Delivered(Err(failure)) => format!("Delivered={}", failure.name),
    }
}

fn secs(at: Timestamp) -> i64 {
    at.as_millis() / 1_000
}

fn input_name(input: &Input) -> &'static str {
    match input {
        Input::Claim { kind: Kind::Do, .. } => "Claim",
        Input::Claim { .. } => "ClaimWait",
        Input::Drop => "Drop",
        Input::Intent { .. } => "Intent",
        Input::Start => "Start",
        Input::Run => "Run",
        Input::End { intent: Intent::Unknown } => "EndUnknown",
        Input::End { .. } => "End",
        Input::RetryAt(_) => "RetryAt",
        Input::RetryDue { .. } => "RetryDue",
        Input::Wait(_) => "Wait",
        Input::Record { .. } => "Record",
        Input::Deliver => "Deliver",
        Input::Cancel => "Cancel",
    }
}

/// Every legal transition: state, input, next state, change. All others are illegal. `*` stands for
/// every intent, `AnyClaim` for a claim of a step and of a wait.
const LEGAL: &str = "
    Idle*            Claim       Deferred*>7          Defer
    Idle*            ClaimWait   Asked                OpenWait
    RetryLoaded*@9   AnyClaim    Retrying*@9          OpenWait
    WaitLoaded       AnyClaim    Waiting@9            OpenWait
    Ended*           AnyClaim    Ended*               Nothing
    Retrying*@9      AnyClaim    Retrying*@9          Nothing
    Waiting@9        AnyClaim    Waiting@9            Nothing
    Recorded         AnyClaim    Awaited              Nothing
    Carried          AnyClaim    Awaited              Nothing
    Awaited          AnyClaim    Awaited              Nothing
    SetAside         AnyClaim    SetAside             Redeliver
    Delivered=1      AnyClaim    Delivered=1          Redeliver

    Starting            Drop     Idle                 StopBody
    Starting+recorded   Drop     Idle+unknown         StopBody
    Starting+unknown    Drop     Idle+unknown         StopBody
    Running             Drop     Idle                 StopBody
    Running+recorded    Drop     Idle+unknown         StopBody
    Running+unknown     Drop     Idle+unknown         StopBody
    Deferred*>3         Drop     Idle*                Nothing
    Asked               Drop     Idle                 CloseWait
    Waiting@9           Drop     Waiting@9            DropWait
    Retrying*@9         Drop     Retrying*@9          DropWait
    Idle*               Drop     Idle*                Nothing
    RetryLoaded*@9      Drop     RetryLoaded*@9       Nothing
    WaitLoaded          Drop     WaitLoaded           Nothing
    Ended*              Drop     Ended*               Nothing
    Recorded            Drop     Recorded             Nothing
    Carried             Drop     Carried              Nothing
    Awaited             Drop     Awaited              Nothing
    SetAside            Drop     SetAside             Nothing
    Delivered=1         Drop     Delivered=1          Nothing

    Deferred>3       Intent      Deferred+recorded>8  Nothing
    Deferred*>3      Start       Starting*            StartBody
    Starting*        Run         Running*             Nothing
    Running*         End         Ended                StopBody
    Running*         EndUnknown  Ended+unknown        StopBody
    Ended*           RetryAt     Retrying*@9          OpenWait
    Retrying*@9      RetryDue    Deferred*>7          Defer

    Asked            Wait        Waiting@9            Nothing
    Asked            Record      Delivered=2          Deliver@5
    Waiting@9        Record      Delivered=2          Deliver@5
    Ended*           Record      Delivered=2          Deliver@5
    Waiting@9        Cancel      Idle                 CloseWait
    Retrying*@9      Cancel      Idle*                CloseWait

    Carried          Deliver     SetAside             Nothing
    Awaited          Deliver     Delivered=1          Deliver@5
    SetAside         Deliver     Delivered=1          Deliver@5
    Delivered=1      Deliver     Delivered=1          Wake
";

fn legal() -> Vec<[String; 4]> {
    let mut lines = Vec::new();
    for line in LEGAL.lines().filter(|line| !line.trim().is_empty()) {
        let inputs: &[&str] =
            if line.contains("AnyClaim") { &["Claim", "ClaimWait"] } else { &["AnyClaim"] };
        let intents: &[&str] =
            if line.contains('*') { &["", "+recorded", "+unknown"] } else { &[""] };
        for (input, intent) in inputs.iter().flat_map(|i| intents.iter().map(move |n| (i, n))) {
            let line = line.replace("AnyClaim", input).replace('*', intent);
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            lines.push(words.try_into().expect("a line of the table has four words"));
        }
    }
    lines
}

#[test]
fn every_pair_of_a_state_and_an_input_is_in_the_table_or_illegal() {
    let mut legal = legal();
    for state in all_states() {
        for input in all_inputs() {
            let pair = (state_name(&state), input_name(&input));
            let at = legal.iter().position(|line| line[0] == pair.0 && line[1] == pair.1);
            let expected = at.map(|at| legal.swap_remove(at));
            match (expected, state.clone().on(input.clone())) {
                (Some([_, _, next, change]), Ok((found, changed))) => {
                    let changed = match changed {
                        Change::Deliver(at) => format!("Deliver@{}", secs(at)),
                        changed => format!("{changed:?}"),
                    };
                    assert_eq!((state_name(&found), changed), (next, change), "{pair:?}");
                }
                (None, Err(illegal)) => {
                    assert_eq!(*illegal, Illegal { state: state.clone(), input });
                }
                (Some(line), Err(_)) => panic!("{pair:?} must give {line:?}, and is illegal"),
                (None, Ok(found)) => panic!("{pair:?} must be illegal, and gives {found:?}"),
            }
        }
    }
    assert_eq!(legal, Vec::<[String; 4]>::new(), "lines of the table that match no pair");
}

#[test]
fn only_recorded_waits_and_retries_are_due_and_only_records_have_a_result() {
    let has_result = ["Recorded", "Carried", "Awaited", "SetAside", "Delivered"];
    for state in all_states() {
        let name = state_name(&state);
        let is_due = name.starts_with("Waiting") || name.starts_with("Retrying");
        assert_eq!(state.due(), is_due.then_some(DUE), "{name}");
        let expect = has_result.iter().any(|word| name.starts_with(word));
        assert_eq!(state.has_result(), expect, "{name}");
    }
}

#[test]
fn an_illegal_input_changes_nothing() {
    for state in all_states() {
        for input in all_inputs() {
            let mut entry = Entry { state: state.clone(), ..Entry::new(Kind::Do) };
            if entry.on(input).is_err() {
                assert_eq!(entry.state, state);
            }
        }
    }
}

// Counts wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Bench {
    core: Core,
    wakes: Arc<Count>,
}

impl Bench {
    fn new(steps: &[Step]) -> Self {
        let limits = Limits { steps_per_run_max: 4, ..Limits::DEFAULT };
        let core = Core::new(&run(), steps, &limits).expect("the steps load");
        Self { core, wakes: Arc::default() }
    }

    fn claim(&mut self, key: &str, plan: Plan) -> Result<(), ErrorCode> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.core.claim(&key.into(), plan, |_| Ok(()), &waker).map_err(|error| error.code)
    }

    // Polls an operation that was claimed.
    fn poll(&mut self, key: &str) -> String {
        let waker = Waker::from(Arc::clone(&self.wakes));
        match self.core.poll(&key.into(), &waker) {
            Found::Pending => "pending".into(),
            Found::Start { attempt, probe } => format!("start {attempt} probe={probe}"),
            Found::Ready(Ok(body)) => String::from_utf8_lossy(&body.bytes).into_owned(),
            Found::Ready(Err(failure)) => failure.name,
        }
    }

    fn start(&mut self) -> String {
        match self.core.start_deferred(|| true) {
            Started::Bodies(count) => format!("{count} bodies"),
            Started::Intent(key) => format!("intent {key}"),
            Started::NoPermit => "no permit".into(),
        }
    }

    fn end(&mut self, key: &str, unknown: bool) {
        let (outcome, writes) = (outcome("1"), Default::default());
        let took = std::time::Duration::ZERO;
        let completion = Completion { key: key.into(), attempt: 1, took, outcome, unknown, writes };
        self.core.completed(completion);
    }

    fn state(&self, key: &str) -> String {
        state_name(&self.core.entry(&key.into()).expect("the key has an entry").state)
    }

    fn open(&self) -> Vec<&str> {
        self.core.open().map(|(key, _)| &**key).collect()
    }

    fn fault(&mut self) -> String {
        self.core.fault.take().map(|fault| fault.message().to_owned()).unwrap_or_default()
    }
}

// A stored step, settled at a second of the run's life if its status is a settled one.
fn step(key: &str, kind: Kind, status: StepStatus, at_secs: i64) -> Step {
    Step {
        position: 6,
        attempt: 1,
        result: (status == StepStatus::Completed).then(|| Body::json(format!("\"{key}\""))),
        updated_at: Timestamp::from_millis(at_secs * 1_000),
        ..fixtures::step(key, kind.as_str(), status)
    }
}

fn done(key: &str, at_secs: i64) -> Step {
    step(key, Kind::Do, StepStatus::Completed, at_secs)
}

fn body() -> Plan {
    Plan::Do { policy: super::super::description::RETRY, timeout: None, intent: false }
}

fn body_with_intent() -> Plan {
    Plan::Do { policy: super::super::description::RETRY, timeout: None, intent: true }
}

fn sleep() -> Plan {
    Plan::SleepFor(Duration::from_secs(1))
}

#[test]
fn a_row_is_loaded_into_the_state_that_it_stands_for() {
    let intent = Some(Body::json("{\"intent\":true}"));
    let due = Some(DUE);
    let open = |kind, status| step("k", kind, status, 2);
    let failed = Some(Failure::new("Declined", "no", false).body().expect("JSON"));
    let child = ChildRef {
        workflow: WorkflowName::new("w").expect("a valid name"),
        id: "c".into(),
        run_key: RunKey(Uuid::from_u128(2)),
    };
    let child_input = Some(Body::of(&child).expect("JSON"));
    let check = |step: Step, expected: &str, attempts: u32| {
        let place = Place { position: step.position, created_at: step.created_at };
        let (shown, bench) = (format!("{step:?}"), Bench::new(&[step]));
        assert_eq!(bench.state("k"), expected, "{shown}");
        let entry = bench.core.entry(&"k".into()).expect("the key has an entry");
        assert_eq!(entry.attempt, attempts, "{shown}");
        assert_eq!(entry.row, Row::Stored(place), "{shown}");
    };
    use StepStatus::{Cancelled, Completed, Errored, Pending, Running, Skipped, Waiting};
    check(open(Kind::Do, Completed), "Recorded", 1);
    check(open(Kind::Sleep, Errored), "Recorded", 1);
    check(open(Kind::Child, Skipped), "Recorded", 1);
    check(open(Kind::Activity, Cancelled), "Recorded", 1);
    check(Step { error: failed, ..open(Kind::Do, Errored) }, "Recorded", 1);
    let earlier = Timestamp::from_millis(999);
    check(Step { created_at: earlier, ..open(Kind::Do, Completed) }, "Carried", 1);
    check(Step { created_at: run().created_at, ..open(Kind::Do, Completed) }, "Recorded", 1);
    check(open(Kind::Do, Running), "Idle", 0);
    check(Step { input: intent.clone(), ..open(Kind::Do, Running) }, "Idle+unknown", 0);
    check(open(Kind::Do, Pending), "Idle", 1);
    check(Step { due_at: due, ..open(Kind::Do, Waiting) }, "RetryLoaded@9", 1);
    let probed = Step { due_at: due, input: intent, ..open(Kind::Do, Waiting) };
    check(probed, "RetryLoaded+unknown@9", 1);
    check(Step { due_at: due, ..open(Kind::Sleep, Waiting) }, "WaitLoaded", 1);
    check(Step { wait_for: Some("x".into()), ..open(Kind::Event, Waiting) }, "WaitLoaded", 1);
    check(
        Step { wait_for: Some("activity".into()), ..open(Kind::Activity, Pending) },
        "WaitLoaded",
        1,
    );
    check(open(Kind::Event, Pending), "Idle", 1);

    let waiting =
        Step { input: child_input, wait_for: Some("child".into()), ..open(Kind::Child, Waiting) };
    let bench = Bench::new(&[waiting]);
    let state = &bench.core.entry(&"k".into()).expect("the key has an entry").state;
    let wait = Wait {
        due: None,
        wait_for: Some("child".into()),
        child: Some(child),
        request: None,
        keyed: None,
    };
    assert_eq!(state, &State::WaitLoaded(wait));
}

#[test]
fn an_unknown_kind_does_not_load() {
    let row = Step { kind: windlass_kernel::StepKind::from_static("dance"), ..done("k", 2) };
    let error = Core::new(&run(), &[row], &Limits::DEFAULT).err().expect("it does not load");
    assert_eq!(error.code(), ErrorCode::NonDeterminism);
}

#[test]
fn one_result_is_delivered_at_a_time_in_the_order_of_the_record() {
    let mut bench = Bench::new(&[done("b", 4), done("a", 3), done("c", 5)]);
    for key in ["c", "b", "a"] {
        bench.claim(key, body()).expect("a claim");
    }
    for (at, expected) in [
        (3, ["Delivered", "Awaited", "Awaited"]),
        (4, ["Delivered", "Delivered", "Awaited"]),
        (5, ["Delivered", "Delivered", "Delivered"]),
    ] {
        assert!(bench.core.deliver_next());
        for (key, expected) in ["a", "b", "c"].into_iter().zip(expected) {
            assert!(bench.state(key).starts_with(expected), "{key} at {at}");
        }
        assert_eq!(secs(bench.core.queues.replay.now), at);
    }
    assert!(!bench.core.deliver_next());
    assert_eq!(bench.wakes.0.load(Ordering::Relaxed), 3);
    assert_eq!(bench.fault(), "");
}

#[test]
fn a_record_that_the_code_does_not_claim_is_a_fault() {
    let mut bench = Bench::new(&[done("a", 3)]);
    bench.claim("other", body()).expect("a claim");
    assert!(bench.core.deliver_next());
    let fault = bench.fault();
    assert!(fault.contains("\"a\" next") && fault.contains("but for \"other\""), "{fault}");
}

#[test]
fn a_carried_record_is_set_aside_until_the_code_claims_it() {
    let carried = Step { created_at: Timestamp::ZERO, ..done("a", 3) };
    let mut bench = Bench::new(&[carried]);
    assert!(bench.core.deliver_next());
    assert_eq!((bench.state("a"), bench.fault()), ("SetAside".to_owned(), String::new()));
    assert!(!bench.core.deliver_next());
    bench.claim("a", body()).expect("a claim");
    assert_eq!(bench.poll("a"), "pending");
    assert!(bench.core.deliver_next());
    assert_eq!(bench.poll("a"), "\"a\"");
}

#[test]
fn a_delivered_result_is_delivered_again_to_a_second_claim_but_not_at_its_first_poll() {
    let mut bench = Bench::new(&[done("a", 3)]);
    bench.claim("a", body()).expect("a claim");
    bench.core.deliver_next();
    assert_eq!(bench.poll("a"), "\"a\"");
    bench.claim("a", body()).expect("a second claim");
    assert_eq!(bench.poll("a"), "pending");
    assert!(bench.core.deliver_next());
    assert_eq!(bench.poll("a"), "\"a\"");
}

#[test]
fn the_end_of_the_replay_misses_open_rows_that_the_code_did_not_claim() {
    let open = |key: &str, kind, due_at| Step { due_at, ..step(key, kind, StepStatus::Waiting, 2) };
    let rows = [
        open("sleep", Kind::Sleep, Some(DUE)),
        open("retry", Kind::Do, Some(DUE)),
        open("dropped", Kind::Event, None),
    ];
    let mut bench = Bench::new(&rows);
    bench.claim("sleep", sleep()).expect("a claim");
    bench.core.end_replay();
    assert!(bench.fault().starts_with("\"do\" step \"retry\" is open in the record"));
    bench.claim("retry", body()).expect("a claim");
    bench.core.end_replay();
    assert_eq!(bench.fault(), "");
    assert!(!bench.core.queues.replay.active);
    assert_eq!(bench.open(), ["sleep", "retry"]);
    assert_eq!(bench.core.next_due(), Some(DUE));
}

#[test]
fn a_claim_is_refused_for_a_live_key_another_kind_and_too_many_steps() {
    let mut bench = Bench::new(&[]);
    bench.claim("a", body()).expect("a claim");
    assert_eq!(bench.claim("a", body()), Err(ErrorCode::DuplicateStep));
    bench.core.drop_operation(&"a".into());
    bench.claim("a", body()).expect("the key is free again");
    bench.core.drop_operation(&"a".into());
    bench.claim("a", sleep()).expect("the fault says it");
    assert!(bench.fault().contains("recorded as \"do\""));
    for key in ["b", "c", "d"] {
        bench.claim(key, body()).expect("a claim");
    }
    assert_eq!(bench.claim("e", body()), Err(ErrorCode::StepLimit));
    bench.claim("f", sleep()).expect("the limit counts steps only");
}

#[test]
fn a_body_starts_after_its_causes_are_durable() {
    let mut bench = Bench::new(&[]);
    bench.core.records.appended = 2;
    bench.claim("a", body()).expect("a claim");
    assert_eq!(bench.start(), "0 bodies");
    bench.core.records.durable = 2;
    assert!(matches!(bench.core.start_deferred(|| false), Started::NoPermit));
    assert!(bench.core.has_deferred() && !bench.core.queues.bodies.is_running());
    assert_eq!(bench.start(), "1 bodies");
    assert!(!bench.core.has_deferred() && bench.core.queues.bodies.is_running());
    assert_eq!(bench.poll("a"), "start 1 probe=false");
    assert_eq!(bench.poll("a"), "pending");
    bench.end("a", false);
    assert!(!bench.core.queues.bodies.is_running());
    bench.core.recorded(&"a".into(), outcome("1"), AT);
    assert_eq!(bench.poll("a"), "1");
    assert_eq!(bench.core.records.appended, 3);
}

#[test]
fn a_dropped_body_leaves_no_completion_and_a_deferred_one_does_not_start() {
    let mut bench = Bench::new(&[]);
    bench.claim("a", body()).expect("a claim");
    bench.claim("b", body()).expect("a claim");
    bench.core.drop_operation(&"b".into());
    assert_eq!(bench.start(), "1 bodies");
    bench.poll("a");
    bench.core.drop_operation(&"a".into());
    bench.end("a", false);
    assert!(bench.core.queues.bodies.completions.is_empty());
    assert!(!bench.core.queues.bodies.is_running() && !bench.core.has_deferred());
}

#[test]
fn a_dropped_operation_adopts_the_completion_of_its_key() {
    let mut bench = Bench::new(&[]);
    bench.claim("a", body()).expect("a claim");
    bench.start();
    bench.poll("a");
    bench.end("a", false);
    bench.core.drop_operation(&"a".into());
    bench.claim("a", body()).expect("a second claim");
    assert_eq!(bench.poll("a"), "pending");
    bench.core.recorded(&"a".into(), outcome("1"), AT);
    assert_eq!(bench.poll("a"), "1");
}

#[test]
fn an_intent_is_recorded_before_the_body_and_a_body_cut_off_is_probed() {
    let mut bench = Bench::new(&[]);
    bench.claim("a", body_with_intent()).expect("a claim");
    assert_eq!(bench.start(), "intent a");
    bench.core.place_row(&"a".into(), Place { position: 4, created_at: AT });
    bench.core.intent_recorded(&"a".into());
    assert_eq!(bench.start(), "0 bodies");
    bench.core.records.durable = 1;
    assert_eq!(bench.start(), "1 bodies");
    assert_eq!(bench.poll("a"), "start 1 probe=false");
    bench.end("a", true);
    bench.core.retry_at(&"a".into(), DUE);
    assert_eq!(bench.state("a"), "Retrying+unknown@9");
    bench.core.records.durable = 2;
    bench.core.set_attempt(&"a".into(), 1);
    bench.core.retry_due(&"a".into());
    assert_eq!(bench.start(), "1 bodies");
    assert_eq!(bench.poll("a"), "start 2 probe=true");
    let next = Place { position: 9, created_at: DUE };
    let (_, place) = bench.core.place_row(&"a".into(), next);
    assert_eq!(place, Place { position: 4, created_at: AT }, "a stored row keeps its place");
}

#[test]
fn a_body_without_an_intent_is_never_probed() {
    let mut bench = Bench::new(&[]);
    bench.claim("a", body()).expect("a claim");
    bench.start();
    bench.poll("a");
    bench.end("a", true);
    assert_eq!(bench.state("a"), "Ended");
}

#[test]
fn a_row_of_a_commit_that_failed_gets_a_new_place() {
    let mut bench = Bench::new(&[]);
    bench.claim("a", body()).expect("a claim");
    let key: Key = "a".into();
    let (first, second) =
        (Place { position: 4, created_at: AT }, Place { position: 5, created_at: DUE });
    assert_eq!(bench.core.place_row(&key, first).1, first);
    assert_eq!(bench.core.place_row(&key, second).1, second);
    bench.core.row_stored(&key);
    assert_eq!(bench.core.place_row(&key, first).1, second);
}

#[test]
fn a_dropped_wait_is_cancelled_unless_the_code_claims_it_again() {
    let mut bench = Bench::new(&[]);
    let name = MessageName::new("paid").expect("a valid name");
    let timeout = Duration::from_secs(1);
    let event = Plan::Event { name, key: None, timeout, with_meta: false };
    for (key, plan) in [("asked", sleep()), ("kept", sleep()), ("dropped", event)] {
        bench.claim(key, plan).expect("a claim");
    }
    bench.core.drop_operation(&"asked".into());
    assert_eq!(bench.open(), ["kept", "dropped"]);
    for key in ["kept", "dropped"] {
        bench.core.wait_recorded(&key.into(), wait());
        bench.core.drop_operation(&key.into());
    }
    assert_eq!(bench.core.next_due(), None, "a dropped wait does not wake the run");
    bench.claim("kept", sleep()).expect("a second claim");
    let dropped = bench.core.queues.waits.take_dropped();
    assert_eq!(dropped.iter().map(|key| &**key).collect::<Vec<_>>(), ["dropped"]);
    bench.core.wait_cancelled(&"dropped".into());
    assert_eq!((bench.open(), bench.state("dropped")), (vec!["kept"], "Idle".to_owned()));
}

#[test]
fn a_retry_of_a_dropped_operation_is_cancelled() {
    let mut bench = Bench::new(&[]);
    bench.claim("a", body()).expect("a claim");
    bench.start();
    bench.poll("a");
    bench.end("a", false);
    bench.core.drop_operation(&"a".into());
    bench.core.retry_at(&"a".into(), DUE);
    assert_eq!(bench.core.queues.waits.take_dropped().len(), 1);
}

#[test]
fn a_run_that_leaves_memory_keeps_its_waits() {
    let mut bench = Bench::new(&[]);
    bench.claim("a", sleep()).expect("a claim");
    bench.core.wait_recorded(&"a".into(), wait());
    bench.core.closed = true;
    bench.core.drop_operation(&"a".into());
    assert!(bench.core.queues.waits.take_dropped().is_empty());
}

#[test]
fn a_replay_skips_the_custom_events_that_are_recorded() {
    let event = |outside_step| PendingEvent {
        event_id: windlass_kernel::EventId(Uuid::nil()),
        event_type: "order.seen".into(),
        version: 1,
        payload: serde_json::Value::Null,
        caused_by: None,
        outside_step,
    };
    let mut outbox = Outbox::new(Snapshot { custom_events: 1, origin: None });
    outbox.push_event(event(false));
    outbox.push_event(event(true));
    assert_eq!(outbox.events.len(), 1, "the one outside a step is recorded already");
    outbox.push_event(event(true));
    assert_eq!(outbox.events.len(), 2);
    assert_eq!(outbox.take_changed_snapshot(), None);
    outbox.count_event();
    assert_eq!(outbox.take_changed_snapshot(), Some(Snapshot { custom_events: 2, origin: None }));
    assert_eq!(outbox.take_changed_snapshot(), None);
}
