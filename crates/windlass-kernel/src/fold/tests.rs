//! Folded, shuffled within each batch and merged commits must give the same result as applying them
//! one by one.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::body::Body;
use crate::commit::{CommitError, NewMessage, OnExisting, TaskGuard};
use crate::draft::{Draft, End, NewRun};
use crate::ids::{MessageName, ModelName, QueueName, RouteName, StepKey, StepKind, WorkerKey};
use crate::ledger::run_events::WORKFLOW_COMPLETED;
use crate::ledger::{EventType, Stamp};
use crate::limits::Limits;
use crate::query::{Query, RunsQuery, TasksQuery};
use crate::rows::{MessageKind, Route, Run, Step, StepStatus, Task, Turn, Wake};
use crate::store::{BoxFuture, Store};
use crate::stores::memory::MemoryStore;
use crate::time::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1_770_000_000_000_000);
const WORKER: WorkerKey = WorkerKey(Uuid::from_u128(99));

fn key(n: u64) -> Uuid {
    Uuid::from_u128((1_770_000_000_000 << 80) | (7 << 76) | (2 << 62) | u128::from(n))
}

// Polls once: the memory store never waits.
fn now<T>(mut future: BoxFuture<'_, T>) -> T {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store returned a pending future"),
    }
}

fn store() -> MemoryStore {
    MemoryStore::new(Arc::new(|| NOW), Limits::DEFAULT)
}

/// Generates conflicting commits of a few runs.
struct CommitGenerator {
    keys: u64,
    runs: Vec<Run>,
    // The state before the first commit, as a worker with an outdated cache sees it.
    stale: Vec<Run>,
    events: Vec<EventId>,
}

impl CommitGenerator {
    fn new() -> (Self, Vec<Commit>) {
        let mut generator =
            Self { keys: 1_000, runs: Vec::new(), stale: Vec::new(), events: Vec::new() };
        let setup = (0..3).map(|n| generator.create(n, Turn::held_by(WORKER), true)).collect();
        generator.stale = generator.runs.clone();
        (generator, setup)
    }

    fn key(&mut self) -> Uuid {
        self.keys += 1;
        key(self.keys)
    }

    fn stamp(&mut self) -> Stamp {
        let event_id = EventId(self.key());
        self.events.push(event_id);
        Stamp { event_id, at: NOW }
    }

    fn create(&mut self, name: u8, turn: Turn, keep: bool) -> Commit {
        let run_key = RunKey(self.key());
        let new = NewRun {
            run_key,
            namespace: Namespace::default_namespace(),
            workflow: WorkflowName::new("w").unwrap(),
            model: ModelName::new("steps").unwrap(),
            id: RunId::new(format!("run-{name}")).unwrap(),
            generation: 0,
            input: Body::json("{}"),
            parent: None,
            fork: None,
            labels: Default::default(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn,
            caused_by: None,
        };
        let stamp = self.stamp();
        let commit = Draft::create(new, OnExisting::Return, stamp).unwrap().finish();
        if let (true, Op::CreateRun(run)) = (keep, &commit.ops[0]) {
            self.runs.push((**run).clone());
        }
        commit
    }

    fn step(run: &Run, n: u8, settled: bool) -> Step {
        Step {
            run_key: run.run_key,
            step_key: StepKey::new(format!("step-{n}")).unwrap(),
            name: "a step".into(),
            kind: StepKind::from_static("do"),
            status: if settled { StepStatus::Completed } else { StepStatus::Pending },
            position: run.head.next_ordinal,
            attempt: 1,
            attempts_max: None,
            input: None,
            result: settled.then(|| Body::json("1")),
            error: None,
            timeout: None,
            due_at: None,
            wait_for: None,
            created_at: NOW,
            updated_at: NOW,
        }
    }

    fn message(&self, to: usize, id: u8, required: bool) -> NewMessage {
        NewMessage {
            run_key: self.runs[to].run_key,
            message_id: MessageId::new(format!("m-{id}")).unwrap(),
            kind: MessageKind::Signal,
            name: MessageName::new("poke").unwrap(),
            body: None,
            caused_by: None,
            sent_at: NOW,
            required,
        }
    }

    fn task(&self, run: &Run, n: u8) -> Task {
        let route = Route { queue: QueueName::default_queue(), name: RouteName::new("a").unwrap() };
        let task_id = TaskId(key(u64::from(n)));
        Task::new(task_id, run.namespace.clone(), "activity", route, NOW).of_run(run)
    }

    fn commit(&mut self, (what, run, x, y): (u8, u8, u8, u8)) -> Commit {
        let at = usize::from(run) % self.runs.len();
        let other = usize::from(x) % self.runs.len();
        match what {
            0 => return Commit::new(None, None, vec![put(self.message(at, x, y % 2 == 0))]),
            1 => return self.create(run, Turn::held_by(WORKER), false),
            _ => {}
        }
        let row = if what == 2 { self.stale[at].clone() } else { self.runs[at].clone() };
        let hold = Hold { worker: WORKER, claim_no: 1 };
        let mut draft = match what {
            3 => Draft::free(&row, WORKER, NOW),
            _ => Draft::held(&row, hold, NOW),
        };
        let stamp = self.stamp();
        let step = Self::step(&row, x % 4, y % 2 == 0);
        match what {
            4 => drop(draft.send(self.message(other, y, x % 2 == 0))),
            5 => drop(draft.release(Wake::OnMessage, u64::from(x % 3))),
            6 => drop(draft.enqueue(self.task(&row, x % 4))),
            7 => drop(draft.op(Op::Settle { task_id: TaskId(key(u64::from(x % 4))) })),
            8 => {
                let task_id = TaskId(key(u64::from(x % 4)));
                draft.guard_task(TaskGuard::Held { task_id, hold });
            }
            9 if x % 3 == 0 => {
                let end = End::Complete(Body::json("1"));
                draft.end(WORKFLOW_COMPLETED, &json!({}), end, stamp).unwrap();
            }
            10 => {
                let cause = CausalRef::event(self.events[usize::from(y) % self.events.len()]);
                let limits = &Limits::DEFAULT;
                let name = "custom.event";
                draft.record_event_caused_by(name, 1, &json!({}), cause, stamp, limits).unwrap();
            }
            11 => {
                let by = StepKey::new("step-0").unwrap();
                let run_key = row.run_key;
                let seq = u64::from(x % 3) + 1;
                draft.op(Op::ConsumeMessage { run_key, seq, by, at: NOW });
            }
            12 => drop(draft.status(crate::rows::RunStatus::Paused)),
            _ => drop(
                draft
                    .step(EventType::from_static("step.completed"), &json!({}), step, stamp)
                    .unwrap(),
            ),
        }
        let commit = draft.finish();
        if what != 2
            && let Some(change) = commit.run_change()
        {
            change.apply_to(&mut self.runs[at]);
        }
        commit
    }
}

fn put(message: NewMessage) -> Op {
    Op::PutMessage(Box::new(message))
}

// A create that finds another run of its name returns that run's `accepted` counter. The counter
// may be from any moment during the call, so the comparison ignores it.
fn display_answers(commits: &[Commit], results: &[Result<Committed, CommitError>]) -> Vec<String> {
    let one = |(commit, result): (&Commit, &Result<Committed, CommitError>)| match result {
        Ok(found) if found.repeated && found.run_key != commit.run_key() => {
            format!("{:?}", Committed { accepted: 0, ..found.clone() })
        }
        other => format!("{other:?}"),
    };
    commits.iter().zip(results).map(one).collect()
}

// All rows of the store as text.
fn contents(store: &MemoryStore, keys: &[RunKey]) -> Vec<String> {
    let mut all = Vec::new();
    let runs = RunsQuery::all(Namespace::default_namespace(), 1_000);
    all.push(format!("{:#?}", now(store.list(Query::Runs(runs)))));
    for run_key in keys.iter().copied() {
        all.push(format!("{:#?}", now(store.load(vec![run_key]))));
        let events = Query::Events { run_key, from: 0, limit: 1_000 };
        all.push(format!("{:#?}", now(store.list(events))));
        let messages = Query::Messages { run_key, after: 0, limit: 1_000 };
        all.push(format!("{:#?}", now(store.list(messages))));
    }
    let tasks = TasksQuery::all(Namespace::default_namespace(), 1_000);
    all.push(format!("{:#?}", now(store.list(Query::Tasks(tasks)))));
    all
}

// Writes batches as a store may: in any order within a batch, except that messages to one run keep
// theirs. The members of a merged commit that fails are tried one by one.
fn folded(
    store: &MemoryStore,
    commits: &[Commit],
    messages_first: bool,
) -> Vec<Result<Committed, CommitError>> {
    let mut results: Vec<Option<Result<Committed, CommitError>>> =
        commits.iter().map(|_| None).collect();
    for batch in fold(commits) {
        let sends = |group: &&Group| group.commit(commits).messages().next().is_some();
        let (sending, mut others): (Vec<&Group>, Vec<&Group>) = batch.iter().partition(sends);
        others.reverse();
        let order = if messages_first { [sending, others] } else { [others, sending] };
        for group in order.into_iter().flatten() {
            let whole = now(store.commit(vec![group.commit(commits).clone()])).remove(0);
            match whole {
                Ok(whole) if group.is_merged() => {
                    for (index, part) in group.members().iter().zip(group.split(commits, whole)) {
                        results[*index] = Some(Ok(part));
                    }
                }
                Err(_) if group.is_merged() => {
                    for index in group.members() {
                        let one = now(store.commit(vec![commits[*index].clone()])).remove(0);
                        results[*index] = Some(one);
                    }
                }
                one => results[group.members()[0]] = Some(one),
            }
        }
    }
    results.into_iter().map(|result| result.expect("every commit is in a batch")).collect()
}

fn check(actions: Vec<(u8, u8, u8, u8)>) {
    let (mut generator, setup) = CommitGenerator::new();
    let keys: Vec<RunKey> = generator.runs.iter().map(|run| run.run_key).collect();
    let commits: Vec<Commit> = actions.into_iter().map(|action| generator.commit(action)).collect();
    let expect = store();
    assert!(now(expect.commit(setup.clone())).iter().all(Result::is_ok));
    let results = now(expect.commit(commits.clone()));
    for messages_first in [false, true] {
        let found = store();
        now(found.commit(setup.clone()));
        let answers = folded(&found, &commits, messages_first);
        assert_eq!(display_answers(&commits, &answers), display_answers(&commits, &results));
        assert_eq!(contents(&found, &keys), contents(&expect, &keys));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn folding_does_not_change_the_result(
        actions in prop::collection::vec((0_u8..16, 0_u8..4, any::<u8>(), any::<u8>()), 1..24)
    ) {
        check(actions);
    }
}

fn sizes(commits: &[Commit]) -> Vec<Vec<usize>> {
    let size = |group: &Group| group.members().len();
    fold(commits).iter().map(|batch| batch.iter().map(size).collect()).collect()
}

#[test]
fn a_chain_becomes_one_commit_and_unrelated_commits_share_a_batch() {
    let (mut generator, _) = CommitGenerator::new();
    let chain = [(13, 0, 0, 0), (13, 0, 1, 0), (13, 1, 0, 0), (13, 0, 2, 0)];
    let commits: Vec<Commit> = chain.map(|action| generator.commit(action)).to_vec();
    assert_eq!(sizes(&commits), [[3, 1]]);
    let merged = fold(&commits);
    let merged = merged[0][0].commit(&commits);
    assert_eq!(merged.ops.iter().filter(|op| matches!(op, Op::SetRun(_))).count(), 1);
    assert_eq!(merged.run_change().unwrap().head, generator.runs[0].head);
    merged.validate(&Limits::DEFAULT).unwrap();
}

#[test]
fn dependent_commits_go_to_later_batches() {
    let (mut generator, _) = CommitGenerator::new();
    // A release ends the chain, a message to the run comes after it, and two messages share a
    // batch.
    let actions = [(13, 0, 0, 0), (5, 0, 0, 0), (0, 0, 1, 0), (0, 0, 2, 0), (13, 1, 0, 0)];
    let commits: Vec<Commit> = actions.map(|action| generator.commit(action)).to_vec();
    assert_eq!(sizes(&commits), [vec![2, 1], vec![1, 1]]);
    // The same message twice and the same run id twice.
    let twice = [(0, 0, 1, 0), (0, 0, 1, 0), (1, 9, 0, 0), (1, 9, 0, 0)];
    let commits: Vec<Commit> = twice.map(|action| generator.commit(action)).to_vec();
    assert_eq!(sizes(&commits), [[1, 1], [1, 1]]);
}

#[test]
fn user_sql_has_its_own_batch() {
    let (mut generator, _) = CommitGenerator::new();
    let mut commits: Vec<Commit> = [(13, 0, 0, 0), (13, 1, 0, 0), (13, 2, 0, 0)]
        .map(|action| generator.commit(action))
        .to_vec();
    commits[1].ops_mut().push(Op::UserSql(vec![crate::commit::Statement {
        sql: "SELECT 1".into(),
        params: Vec::new(),
    }]));
    assert_eq!(sizes(&commits), [[1], [1], [1]]);
}
