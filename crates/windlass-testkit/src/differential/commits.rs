//! Random commits: mostly plausible, often stale, sometimes wrong.

use std::collections::BTreeMap;

use serde_json::json;
use windlass_kernel::{
    Body, CausalRef, Commit, DeadLetter, Draft, End, EventId, HeldItem, Hold, LimitKey, Limits,
    Loaded, LogId, LogLevel, LogLine, MessageKind, Namespace, NewMessage, NewRun, OnExisting, Op,
    Query, Reschedule, Run, RunId, RunKey, RunStatus, StepKey, StepStatus, Task, TaskGuard,
    TasksQuery, Turn, Wake, WorkerKey, WorkflowName,
};

use super::calls::Call;
use super::records;
use crate::events;
use crate::sim::rng::Rng;
use crate::world::World;

/// Writes commits, and remembers what it wrote.
pub(super) struct Author {
    pub(super) rng: Rng,
    // Of calls beside the others: they do not change what comes of a seed.
    pub(super) beside: Rng,
    workers: Vec<WorkerKey>,
    runs: Vec<RunKey>,
    events: Vec<EventId>,
    stale: Vec<Loaded>,
    sent: Vec<Commit>,
    letters: Vec<windlass_kernel::TaskId>,
    answers: BTreeMap<String, u32>,
}

impl Author {
    pub(super) fn new(rng: Rng) -> Self {
        Self {
            beside: rng.clone().fork(),
            rng,
            workers: Vec::new(),
            runs: Vec::new(),
            events: Vec::new(),
            stale: Vec::new(),
            sent: Vec::new(),
            letters: Vec::new(),
            answers: BTreeMap::new(),
        }
    }

    /// Remembers a call and what kinds of answers there were.
    pub(super) fn learn(&mut self, call: &Call, answers: &[String]) {
        let Call::Commit(commits) = call else { return };
        for (commit, answer) in commits.iter().zip(answers) {
            let word = answer.split([' ', '{']).next().unwrap_or_default().to_owned();
            let repeated = answer.contains("repeated: true");
            *self
                .answers
                .entry(if repeated { "repeated".to_owned() } else { word })
                .or_default() += 1;
            self.sent.push(commit.clone());
        }
    }

    /// A test whose commits all hold, or all fail, would show little.
    pub(super) fn assert_covered(&self) {
        let good = self.answers.get("Committed").copied().unwrap_or(0);
        let all: u32 = self.answers.values().sum();
        let kinds = self.answers.len();
        let balanced = good * 4 > all && good < all && kinds >= 6;
        assert!(all < 200 || balanced, "the generator is lopsided: {:?}", self.answers);
    }

    pub(super) fn worker(&mut self, world: &World) -> WorkerKey {
        if self.workers.len() < 4 {
            self.workers.push(world.worker());
        }
        let n = self.rng.below(self.workers.len() as u64) as usize;
        self.workers[n]
    }

    pub(super) fn known_worker(&mut self) -> Option<WorkerKey> {
        let n = self.beside.below(self.workers.len() as u64 + 1) as usize;
        self.workers.get(n).copied()
    }

    pub(super) fn namespace(&mut self) -> Namespace {
        Namespace::new(if self.rng.chance(300) { "other" } else { "default" }).unwrap()
    }

    pub(super) fn run_key(&mut self, world: &World) -> RunKey {
        if self.runs.is_empty() || self.rng.chance(20) {
            return RunKey(world.key());
        }
        // Recent runs are more likely to be alive.
        let n = self.runs.len() as u64;
        let back = self.rng.below(n.min(12));
        self.runs[(n - 1 - back) as usize]
    }

    pub(super) fn stale_hold(&mut self) -> Option<HeldItem> {
        let n = self.rng.below(self.stale.len() as u64 + 1) as usize;
        let run = &self.stale.get(n)?.run;
        let Hold { worker, claim_no } = run.turn.hold()?;
        Some(HeldItem::Turn { run_key: run.run_key, worker, claim_no })
    }

    /// One commit, or a chain of two.
    pub(super) async fn commits(&mut self, world: &World) -> Vec<Commit> {
        let mut commits = match self.rng.below(100) {
            0..22 => vec![self.create(world)],
            22..66 => self.advance(world).await,
            66..82 => vec![self.send(world)],
            82..93 => self.task_work(world).await.into_iter().collect(),
            _ => return self.again().into_iter().collect(),
        };
        if self.beside.chance(300)
            && let Some(last) = commits.last_mut()
        {
            let mut ops = last.ops.to_vec();
            ops.extend(records::ops(&mut self.beside, world).await);
            *last = Commit::new(last.run.clone(), last.task, ops);
        }
        if self.beside.chance(200) {
            let ops = records::ops(&mut self.beside, world).await;
            commits.push(Commit::new(None, None, ops));
        }
        // Most bodies have one to three bytes.
        for commit in &mut commits {
            if self.beside.chance(400) {
                *commit = commit.with_large_bodies_apart(self.beside.below(3) as usize);
            }
        }
        commits
    }

    fn again(&mut self) -> Option<Commit> {
        let n = self.sent.len() as u64;
        let back = self.rng.below(n.min(30));
        self.sent.get((n.checked_sub(1)? - back) as usize).cloned()
    }

    fn new_run(&mut self, world: &World) -> NewRun {
        let id = format!("r{}", self.rng.below(40));
        let turn = match self.rng.below(4) {
            0 => Turn::ready(),
            1 => Turn::due_at(windlass_kernel::Timestamp::from_micros(
                1_770_000_000_000_000 + self.rng.below(60_000_000) as i64,
            )),
            _ => Turn::held_by(self.worker(world)),
        };
        let limit_key = self.rng.chance(200).then(|| LimitKey::new("l1").unwrap());
        let priority = self.rng.below(3) as i16 - 1;
        let labels = ["a", "b"].into_iter().filter(|_| self.rng.chance(300));
        let labels = labels.map(|key| (key.to_owned(), "x".to_owned())).collect();
        NewRun {
            namespace: self.namespace(),
            workflow: WorkflowName::new(if self.rng.chance(300) { "v" } else { "w" }).unwrap(),
            id: RunId::new(&id).unwrap(),
            generation: u32::from(self.rng.chance(100)),
            input: Body::json(if self.rng.chance(200) { "[]" } else { "{}" }),
            labels,
            turn: Turn { limit_key, priority, ..turn },
            caused_by: self.rng.chance(100).then(|| self.cause(world)),
            headers: self.rng.chance(200).then(|| r#"{"k":"v"}"#.into()),
            on_end: self.rng.chance(200).then(|| on_end("{}")),
            ..world.new_run("x", Turn::ready())
        }
    }

    fn cause(&mut self, world: &World) -> CausalRef {
        let n = self.rng.below(self.events.len() as u64 + 1) as usize;
        match self.events.get(n) {
            _ if self.rng.chance(200) => CausalRef::run(self.run_key(world)),
            Some(event_id) => CausalRef::event(*event_id),
            None => CausalRef::event(EventId(world.key())),
        }
    }

    fn create(&mut self, world: &World) -> Commit {
        let new = self.new_run(world);
        self.runs.push(new.run_key);
        let run_key = new.run_key;
        let on_existing =
            if self.rng.chance(500) { OnExisting::Return } else { OnExisting::Refuse };
        let stamp = world.stamp();
        self.events.push(stamp.event_id);
        let mut draft = Draft::create(new, on_existing, stamp).unwrap();
        if self.rng.chance(150) {
            draft.send(world.message(run_key, "born"));
        }
        draft.finish()
    }

    async fn advance(&mut self, world: &World) -> Vec<Commit> {
        let run_key = self.run_key(world);
        let loaded = world.store.load(vec![run_key]).await.unwrap().pop();
        let stale = self.rng.below(self.stale.len() as u64 + 1) as usize;
        let loaded = match self.stale.get(stale) {
            Some(stale) if self.rng.chance(120) => Some(stale.clone()),
            _ => loaded,
        };
        let Some(mut loaded) = loaded else { return Vec::new() };
        if self.rng.chance(100) {
            self.stale.push(loaded.clone());
        }
        let hold = match loaded.run.turn.hold() {
            Some(mut hold) => {
                hold.claim_no += u64::from(self.rng.chance(60));
                Some(hold)
            }
            None => None,
        };
        let mut commits = Vec::new();
        for _ in 0..if self.rng.chance(250) { 2 } else { 1 } {
            let commit = self.turn(world, &loaded, hold).await;
            if let Some(change) = commit.run_change() {
                change.apply_to(&mut loaded.run);
            }
            commits.push(commit);
        }
        commits
    }

    async fn turn(&mut self, world: &World, loaded: &Loaded, hold: Option<Hold>) -> Commit {
        let run = &loaded.run;
        let mut draft = match hold {
            Some(hold) => Draft::held(run, hold, run.created_at),
            None => Draft::free(run, self.worker(world), run.created_at),
        };
        for _ in 0..self.rng.below(4) {
            self.write(world, loaded, &mut draft).await;
        }
        let stamp = world.stamp();
        self.events.push(stamp.event_id);
        let seen = run.accepted.saturating_sub(u64::from(self.rng.chance(200)));
        let later =
            world.now().await.plus(std::time::Duration::from_millis(self.rng.below(20_000)));
        match self.rng.below(12) {
            0 => drop(draft.end(
                events::WORKFLOW_COMPLETED,
                &json!({}),
                End::Complete(Body::json("1")),
                stamp,
            )),
            1 => drop(draft.end(
                events::WORKFLOW_FAILED,
                &json!({}),
                End::Errored(Body::bytes("e")),
                stamp,
            )),
            2 => {
                draft.event(events::WORKFLOW_PAUSED, &json!({}), stamp).unwrap();
                draft.status(RunStatus::Paused).release(Wake::At(later), seen);
            }
            3..6 => {
                draft.event(events::SLEEP_STARTED, &json!({}), stamp).unwrap();
                draft.status(RunStatus::Waiting).release(Wake::At(later), seen);
            }
            6 => {
                draft.event(events::EVENT_AWAITED, &json!({}), stamp).unwrap();
                draft.status(RunStatus::Waiting).release(Wake::OnMessage, seen);
            }
            7 => {
                draft.event(events::TIMER_FIRED, &json!({}), stamp).unwrap();
                draft.status(RunStatus::Active).release(Wake::Now, seen);
            }
            _ => drop(draft.event(events::TIMER_STARTED, &json!({}), stamp)),
        }
        draft.finish()
    }

    async fn write(&mut self, world: &World, loaded: &Loaded, draft: &mut Draft) {
        let run = &loaded.run;
        match self.rng.below(9) {
            0..3 => self.write_step(world, run, draft),
            3 => {
                let stamp = world.stamp();
                self.events.push(stamp.event_id);
                let cause = self.cause(world);
                let limits = Limits::DEFAULT;
                draft.record_event_caused_by("x.y", 2, &json!(1), cause, stamp, &limits).unwrap();
            }
            4 => drop(draft.enqueue(self.task(world, Some(run)))),
            5 => {
                let mut message = self.message(world);
                message.required = self.rng.chance(300);
                draft.send(message);
            }
            6 => {
                let seq = match loaded.messages.first() {
                    Some(message) if self.rng.chance(850) => message.seq,
                    _ => self.rng.below(3),
                };
                let by = StepKey::new("reader").unwrap();
                draft.op(Op::ConsumeMessage { run_key: run.run_key, seq, by, at: run.created_at });
            }
            7 => drop(draft.log(LogLine {
                log_id: LogId(world.key()),
                run_key: run.run_key,
                step_key: None,
                attempt: None,
                level: LogLevel::Info,
                category: "c".into(),
                message: "m".into(),
                data: None,
                replay: false,
                created_at: run.created_at,
            })),
            _ => match tasks(world, run).await.first() {
                Some(task) => drop(draft.op(Op::Settle { task_id: task.task_id })),
                None => {
                    let mut child = self.new_run(world);
                    child.parent = Some((run.root, run.run_key));
                    child.caused_by = Some(draft.cursor());
                    child.namespace = run.namespace.clone();
                    self.runs.push(child.run_key);
                    draft.also_create(child, world.stamp()).unwrap();
                }
            },
        }
    }

    fn write_step(&mut self, world: &World, run: &Run, draft: &mut Draft) {
        let key = ["a", "b", "c", "d", "ä"][self.rng.below(5) as usize];
        let status = StepStatus::ALL[self.rng.below(StepStatus::ALL.len() as u64) as usize];
        let mut step = world.step(run, key, status, status.is_settled().then_some("1"));
        step.attempt = self.rng.below(4) as u32;
        step.error = self.rng.chance(300).then(|| Body::bytes("oops"));
        if status.is_settled() {
            draft.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap();
        } else {
            draft.open_step(step);
        }
    }

    fn task(&mut self, world: &World, run: Option<&Run>) -> Task {
        let now = 1_770_000_000_000_000 + self.rng.below(60_000_000) as i64;
        let due_at = self.rng.chance(400).then(|| windlass_kernel::Timestamp::from_micros(now));
        Task {
            namespace: run.map_or_else(|| self.namespace(), |run| run.namespace.clone()),
            priority: self.rng.below(3) as i16,
            limit_key: self.rng.chance(300).then(|| LimitKey::new("l2").unwrap()),
            due_at,
            ready: due_at.is_none(),
            ..world.task(run)
        }
    }

    fn message(&mut self, world: &World) -> NewMessage {
        let kind = MessageKind::ALL[self.rng.below(MessageKind::ALL.len() as u64) as usize];
        let id = format!("m{}", self.rng.below(12));
        NewMessage { kind, ..world.message(self.run_key(world), &id) }
    }

    // One that was written down, requeued or not; sometimes one that is nowhere.
    fn letter_id(&mut self, world: &World) -> windlass_kernel::TaskId {
        let n = self.letters.len() as u64;
        match n {
            _ if self.rng.chance(100) => windlass_kernel::TaskId(world.key()),
            0 => windlass_kernel::TaskId(world.key()),
            n => self.letters[self.rng.below(n) as usize],
        }
    }

    fn send(&mut self, world: &World) -> Commit {
        let mut ops = Vec::new();
        for _ in 0..self.rng.range(1, 3) {
            ops.push(match self.rng.below(9) {
                8 => Op::Requeue {
                    task_id: self.letter_id(world),
                    at: windlass_kernel::Timestamp::from_micros(1_770_000_000_000_000),
                },
                0 => Op::Enqueue(Box::new(self.task(world, None))),
                _ => Op::PutMessage(Box::new(self.message(world))),
            });
        }
        Commit::new(None, None, ops)
    }

    async fn task_work(&mut self, world: &World) -> Option<Commit> {
        let namespace = self.namespace();
        let query = TasksQuery {
            state: self.rng.chance(850).then_some(windlass_kernel::TaskState::Held),
            ..TasksQuery::all(namespace, 5)
        };
        let tasks = world.store.list(Query::Tasks(query)).await.unwrap().tasks().unwrap();
        let task = tasks.get(self.rng.below(tasks.len() as u64) as usize)?.clone();
        let hold = task.hold().unwrap_or(Hold { worker: self.worker(world), claim_no: 1 });
        let claim_no = hold.claim_no + u64::from(self.rng.chance(80));
        let task_id = task.task_id;
        let guard = match task.worker {
            // Another claim number than the row has must fail.
            None if hold.claim_no == claim_no => TaskGuard::unchanged(&task),
            None => TaskGuard::Unheld { task_id, claim_no: task.claim_no + 1 },
            Some(_) => TaskGuard::Held { task_id, hold: Hold { claim_no, ..hold } },
        };
        let mut ops = match self.rng.below(4) {
            0 => {
                let later = world.now().await.plus(std::time::Duration::from_secs(5));
                let wake = if self.rng.chance(500) { Wake::Now } else { Wake::At(later) };
                let errors = self.rng.chance(500).then(|| Body::json("[1]"));
                let attempt = task.attempt + 1;
                let untried = attempt % 2 == 0;
                let change = Reschedule { task_id, wake, attempt, errors, untried };
                vec![Op::Reschedule(Box::new(change))]
            }
            1 => {
                self.letters.push(task_id);
                vec![Op::Settle { task_id }, Op::DeadLetter(Box::new(letter(&task)))]
            }
            _ => vec![Op::Settle { task_id }],
        };
        if self.rng.chance(500) {
            let mut message = self.message(world);
            message.message_id =
                windlass_kernel::MessageId::new(format!("{task_id}-{claim_no}")).unwrap();
            message.required = false;
            ops.push(Op::PutMessage(Box::new(message)));
        }
        Some(Commit::new(None, Some(guard), ops))
    }
}

async fn tasks(world: &World, run: &Run) -> Vec<Task> {
    let query =
        TasksQuery { run_key: Some(run.run_key), ..TasksQuery::all(run.namespace.clone(), 1) };
    world.store.list(Query::Tasks(query)).await.unwrap().tasks().unwrap()
}

fn on_end(body: &str) -> std::sync::Arc<str> {
    format!(r#"{{"queue":"effects","name":"hook","body":{body}}}"#).into()
}

fn letter(task: &Task) -> DeadLetter {
    DeadLetter {
        task_id: task.task_id,
        namespace: task.namespace.clone(),
        run_key: task.run_key,
        step_key: task.step_key.clone(),
        kind: task.kind.clone(),
        queue: task.queue.clone(),
        name: task.name.clone(),
        attempt: task.attempt,
        body: task.body.clone(),
        errors: task.errors.clone(),
        reason: "given up".into(),
        dead_at: task.created_at,
        requeues: 0,
        requeued_at: None,
    }
}
