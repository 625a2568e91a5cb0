//! Which refused commits may succeed when they are sent again.

use std::time::Duration;

use futures::FutureExt as _;
use serde_json::json;
use windlass_kernel::{
    Commit, CommitError, Committed, Conflict, Draft, HeldItem, Hold, Limits, MemoryStore,
    Namespace, OnExisting, Run, RunKey, Store, Turn, Wake, WorkerKey,
};

use super::super::super::executor::Executor;
use super::super::load;
use super::{Checker, trace_of};
use crate::events;
use crate::memory::{self, ManualClock};
use crate::world::World;

const RESOLVES_ONCE: &str = "9 an unknown outcome resolves to exactly one of both";

// A store whose commits are checked as those of the simulation are. `world` only makes keys and drafts.
struct Checked {
    world: World,
    store: MemoryStore,
    checker: Checker,
    _executor: Executor,
}

impl Checked {
    fn new() -> Self {
        let at_once = "the memory store answers at once";
        let subject = memory::open().now_or_never().expect(at_once);
        let world = World::new(subject).now_or_never().expect(at_once);
        let store = MemoryStore::new(ManualClock::new().as_clock(), Limits::DEFAULT);
        let executor = Executor::new(1);
        let checker = Checker::new(executor.handle(), vec![Namespace::default_namespace()]);
        Self { world, store, checker, _executor: executor }
    }

    fn send(&self, commit: &Commit) -> Result<Committed, CommitError> {
        let before = self.checker.snapshot(&self.store, commit);
        let answers = self.store.commit(vec![commit.clone()]).now_or_never();
        let answer = answers.expect("the memory store answers at once").remove(0);
        self.checker.commit(&self.store, commit, &before, &answer);
        answer
    }

    fn run(&self, run_key: RunKey) -> Run {
        load(&self.store, vec![run_key]).remove(0).run
    }

    // A run whose turn nobody holds.
    fn idle_run(&self) -> Run {
        let worker = self.world.worker();
        let new = self.world.new_run("r", Turn::held_by(worker));
        let run_key = new.run_key;
        self.send(&self.world.create_commit(new, OnExisting::Refuse)).unwrap();
        let run = self.run(run_key);
        let hold = run.turn.hold().unwrap();
        self.send(&self.world.release_commit(&run, hold, later(), 0)).unwrap();
        self.run(run_key)
    }

    // The commit of a client that takes a free turn, records an event and gives the turn back.
    fn free_commit(&self, run: &Run) -> Commit {
        let mut draft = Draft::free(run, self.world.worker(), run.updated_at);
        draft.event(events::SLEEP_STARTED, &json!({}), self.world.stamp()).unwrap();
        draft.release(later(), run.seen);
        draft.finish()
    }

    // Takes the turn as a worker does that was woken for it.
    fn hold(&self, run_key: RunKey) -> Hold {
        let revoked = self.store.revoke(run_key, self.world.worker()).now_or_never();
        revoked.unwrap().unwrap().unwrap().hold
    }

    fn release(&self, run_key: RunKey, hold: Hold) {
        let item = HeldItem::Turn { run_key, worker: hold.worker, claim_no: hold.claim_no };
        assert_eq!(self.store.release(vec![item]).now_or_never().unwrap().unwrap(), 1);
    }

    // The violation if the store wrote this commit now.
    fn violation_if_written(&self, commit: &Commit) -> Option<&'static str> {
        self.checker.check_key_once(commit, trace_of(&commit.key));
        self.checker.failure().map(|violation| violation.invariant)
    }
}

fn assert_conflict(answer: Result<Committed, CommitError>, is: fn(&Conflict) -> bool) {
    match answer {
        Err(CommitError::Conflict(conflict)) => assert!(is(&conflict), "{conflict}"),
        other => panic!("{other:?}"),
    }
}

// A wake source, which every idle run needs.
fn later() -> Wake {
    Wake::At(ManualClock::new().now().plus(Duration::from_secs(60)))
}

fn is_hold(conflict: &Conflict) -> bool {
    matches!(conflict, Conflict::RunHold { .. })
}

fn is_head(conflict: &Conflict) -> bool {
    matches!(conflict, Conflict::RunHead { .. })
}

/// A worker holds the turn when the commit arrives, the answer is lost, the worker releases the turn
/// without an event, and the commit is sent again.
#[test]
fn a_free_commit_may_pass_after_the_holder_has_released_the_turn() {
    let checked = Checked::new();
    let run = checked.idle_run();
    let commit = checked.free_commit(&run);
    let hold = checked.hold(run.run_key);
    assert_conflict(checked.send(&commit), is_hold);
    checked.release(run.run_key, hold);
    assert!(!checked.send(&commit).unwrap().repeated);
    assert_eq!(checked.checker.failure(), None);
    // It is written once; a third copy finds its key.
    assert!(checked.send(&commit).unwrap().repeated);
    assert_eq!(checked.checker.failure(), None);
}

/// The head has moved on, so the commit can never be written.
#[test]
fn a_free_commit_on_a_stale_head_may_not_pass() {
    let checked = Checked::new();
    let run = checked.idle_run();
    let (stale, other) = (checked.free_commit(&run), checked.free_commit(&run));
    checked.send(&other).unwrap();
    assert_conflict(checked.send(&stale), is_head);
    assert_eq!(checked.violation_if_written(&stale), Some(RESOLVES_ONCE));
}

/// The same while a worker holds the turn: the store reports the hold, and the head decides.
#[test]
fn a_free_commit_on_a_stale_head_may_not_pass_while_the_turn_is_held() {
    let checked = Checked::new();
    let run = checked.idle_run();
    let (stale, other) = (checked.free_commit(&run), checked.free_commit(&run));
    checked.send(&other).unwrap();
    checked.hold(run.run_key);
    assert_conflict(checked.send(&stale), is_hold);
    assert_eq!(checked.violation_if_written(&stale), Some(RESOLVES_ONCE));
}

/// A claim number that was lost never returns.
#[test]
fn a_held_commit_with_another_claim_number_may_not_pass() {
    let checked = Checked::new();
    let run = checked.idle_run();
    let hold = checked.hold(run.run_key);
    let commit = checked.world.release_commit(&run, hold, later(), 0);
    checked.release(run.run_key, hold);
    assert_conflict(checked.send(&commit), is_hold);
    assert_eq!(checked.violation_if_written(&commit), Some(RESOLVES_ONCE));
}

/// A commit of another worker under the same claim number is refused for good.
#[test]
fn a_held_commit_of_another_worker_may_not_pass() {
    let checked = Checked::new();
    let run = checked.idle_run();
    let hold = checked.hold(run.run_key);
    let other = Hold { worker: WorkerKey(checked.world.key()), ..hold };
    let commit = checked.world.release_commit(&run, other, later(), 0);
    assert_conflict(checked.send(&commit), is_hold);
    assert_eq!(checked.violation_if_written(&commit), Some(RESOLVES_ONCE));
}
