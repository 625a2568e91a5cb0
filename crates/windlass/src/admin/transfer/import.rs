//! Writing an exported run into a store, through commits alone.
//!
//! A run may have more rows than one commit takes, and its messages can only be sent to a run that
//! has not ended. So it is created paused and held, grows commit by commit as it once grew, and its
//! last commit makes it what it was: its status, its result, and when its turn is next. Until then its
//! `seen` is beyond anything that was accepted, which no other run's ever is. An import that was
//! interrupted is known by that, and the next one carries it on.
//!
//! A run that the store would refuse in its middle is refused before its first commit: the importer
//! writes it into an empty store in memory first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use windlass_engine::{Env, new_uuid};
use windlass_kernel::{
    Body, BodyOwner, BodySource, CauseCheck, Commit, CommitError, Committed, Conflict, Error,
    ErrorCode, ErrorKind, Event, Head, Hold, Limits, LogId, LogLine, MemoryStore, Message,
    NewMessage, OnExisting, Op, PutBody, Query, Run, RunChange, RunGuard, RunKey, RunStatus, Step,
    Store, Task, TaskId, Turn, TurnChange, Wake, WorkerInfo, WorkerKey, WorkerStatus,
};

use super::{PAGE, Parts, RunExport, read_logs, read_tasks};
use crate::admin::verify::verify_whole;

/// Ops of one commit.
const OPS_MAX: usize = 1_000;
/// Bytes of bodies in one commit, beyond which the next begins.
const BYTES_MAX: usize = 4 << 20;
/// `seen` of a run that is being imported.
const UNFINISHED: u64 = i64::MAX as u64;
/// How long the store believes in an importer that does not renew: longer than one run takes.
const LEASE: Duration = Duration::from_secs(30 * 60);
/// How often a commit is sent again when the store could not say what became of it.
const SENDS_MAX: usize = 5;

/// The result of importing a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// It was written.
    Written,
    /// It was there already.
    Skipped,
    /// An import that was interrupted had begun it; now it is whole.
    Completed,
}

/// Writes exported runs into a store.
pub struct Importer {
    pub(super) store: Arc<dyn Store>,
    pub(super) worker: WorkerKey,
    pub(super) limits: Limits,
}

impl Importer {
    /// Begins to import into a store.
    ///
    /// ```
    /// # async fn example(line: &str) -> windlass::Result<()> {
    /// use windlass::admin::transfer::{Importer, RunExport};
    /// use windlass::model::TokioEnv;
    ///
    /// let store = windlass::admin::open_store("sqlite://new.db").await?;
    /// let importer = Importer::begin(store, &*TokioEnv::new()?).await?;
    /// # drop((importer, line));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn begin(store: Arc<dyn Store>, env: &dyn Env) -> Result<Self, Error> {
        let worker = WorkerKey(new_uuid(env, store.now().await?));
        let importer = Self { store, worker, limits: Limits::DEFAULT };
        importer.renew(WorkerStatus::Active).await?;
        Ok(importer)
    }

    /// The limits of the store, if it was opened with others than the defaults. A run beyond them is
    /// refused before anything is written.
    ///
    /// ```
    /// # async fn example(store: std::sync::Arc<dyn windlass::Store>) -> windlass::Result<()> {
    /// use windlass::admin::transfer::Importer;
    /// use windlass::kernel::Limits;
    /// use windlass::model::TokioEnv;
    ///
    /// let limits = Limits { step_bytes_max: 4 << 20, ..Limits::DEFAULT };
    /// let importer = Importer::begin(store, &*TokioEnv::new()?).await?.limits(limits);
    /// # drop(importer);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Ends the import: what it still holds is given back.
    ///
    /// ```
    /// # async fn example(line: &str) -> windlass::Result<()> {
    /// use windlass::admin::transfer::{Importer, RunExport};
    /// use windlass::model::TokioEnv;
    ///
    /// let store = windlass::admin::open_store("sqlite://new.db").await?;
    /// let importer = Importer::begin(store, &*TokioEnv::new()?).await?;
    /// # let _ = (RunExport::parse, line);
    /// importer.finish().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn finish(self) -> Result<(), Error> {
        let held = self.store.held(self.worker).await?;
        if !held.is_empty() {
            self.store.release(held).await?;
        }
        self.renew(WorkerStatus::Stopped).await
    }

    // On a store that several processes share, what an unknown worker holds is taken from it.
    async fn renew(&self, status: WorkerStatus) -> Result<(), Error> {
        let info = WorkerInfo {
            worker: self.worker,
            name: "windlass import".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            status,
            lease: LEASE,
            turns: Vec::new(),
            tasks: Vec::new(),
            slots: 0,
            note: None,
            load: 0,
            task_slots: 0,
            task_load: 0,
            tasks_completed: 0,
            tasks_failed: 0,
            tasks_took: Duration::ZERO,
            accepting: false,
            group: "import".into(),
            host: "".into(),
        };
        self.store.renew(info).await.map(|_| ())
    }

    /// Writes one run. A run that is there already is left as it is; one whose ledger does not verify
    /// is refused.
    ///
    /// ```
    /// # async fn example(line: &str) -> windlass::Result<()> {
    /// use windlass::admin::transfer::{Importer, RunExport};
    /// use windlass::model::TokioEnv;
    ///
    /// let store = windlass::admin::open_store("sqlite://new.db").await?;
    /// let importer = Importer::begin(store, &*TokioEnv::new()?).await?;
    /// importer.import(RunExport::parse(line)?).await?;
    /// importer.finish().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidExport`] if the rows do not fit together, a conflict if the store has another run with
    /// this name, or the store cannot be written.
    pub async fn import(&self, export: RunExport) -> Result<Imported, Error> {
        let name = export.name();
        // A value that does not parse is a damage of the line, not of a store.
        let parts = export.parts().map_err(|error| {
            let message = format!("{name} is not what was exported: {}", error.message());
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidExport, message)
        })?;
        verify_whole(&parts.whole).map_err(|flaw| {
            let message = format!("{name} is not what was exported: {flaw}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidExport, message)
        })?;
        let run_key = parts.whole.run.run_key;
        let Some(found) = self.store.load(vec![run_key]).await?.pop() else {
            self.rehearse(&name, parts.clone()).await?;
            return self.create(&name, parts).await;
        };
        if found.run.seen != UNFINISHED {
            return self.same(&name, &parts, &found.run);
        }
        let claimed = self.store.revoke(run_key, self.worker).await?;
        let Some(claimed) = claimed else { return Err(exists(&name, run_key)) };
        // A commit of the interrupted import may have landed between the load above and the revoke.
        // From here on none can, so what is there is read again.
        let found = self.store.load(vec![run_key]).await?.pop();
        let Some(found) = found else { return Err(exists(&name, run_key)) };
        if found.run.seen != UNFINISHED {
            return self.same(&name, &parts, &found.run);
        }
        let growing =
            Growing { head: claimed.head, hold: claimed.hold, accepted: found.run.accepted };
        let have = self.have(&found.run, found.steps).await?;
        self.grow(parts, growing, &have).await?;
        Ok(Imported::Completed)
    }

    // The same run that has gone on since is still that run; any other under its key is not.
    fn same(&self, name: &str, parts: &Parts, found: &Run) -> Result<Imported, Error> {
        let run = &parts.whole.run;
        let named = |run: &Run| (run.namespace.clone(), run.workflow.clone(), run.id.clone());
        if named(found) == named(run) && found.generation == run.generation {
            return Ok(Imported::Skipped);
        }
        Err(exists(name, found.run_key))
    }

    // The commits of a run in a store that is thrown away. All stores refuse the same commits.
    async fn rehearse(&self, name: &str, parts: Parts) -> Result<(), Error> {
        let now = self.store.now().await?;
        let store = MemoryStore::new(Arc::new(move || now), self.limits.clone());
        let (store, limits) = (Arc::new(store), self.limits.clone());
        let importer = Self { store, worker: self.worker, limits };
        importer.create(name, parts).await.map(|_| ())
    }

    async fn create(&self, name: &str, parts: Parts) -> Result<Imported, Error> {
        let run = &parts.whole.run;
        let run_key = run.run_key;
        let (first, head) = first_events(&parts.whole.events);
        let cursor = first.last().map_or(run.cursor, |event| event.event_id);
        let mut row = run.clone();
        row.status = RunStatus::Paused;
        (row.output, row.error, row.state) = (None, None, None);
        (row.head, row.cursor) = (head, cursor);
        (row.ended_at, row.retention_until) = (None, None);
        (row.accepted, row.seen) = (0, UNFINISHED);
        let held = Turn::held_by(self.worker);
        row.turn = Turn { worker: held.worker, claim_no: held.claim_no, ready: false, ..row.turn };
        row.turn.due_at = None;
        let mut ops = vec![Op::CreateRun(Box::new(row))];
        ops.extend(first.iter().cloned().map(append));
        let guard = RunGuard::Absent { run_key, on_existing: OnExisting::Refuse };
        match self.send(Commit::new(Some(guard), None, ops)).await {
            Ok(_) => {}
            Err(CommitError::Conflict(Conflict::RunExists { run_key: found, .. })) => {
                return Err(exists(name, found));
            }
            Err(error) => return Err(refused(error)),
        }
        let hold = Hold { worker: self.worker, claim_no: 1 };
        let growing = Growing { head, hold, accepted: 0 };
        self.grow(parts, growing, &Have::default()).await?;
        Ok(Imported::Written)
    }

    // The rows of an interrupted import.
    async fn have(&self, run: &Run, steps: Vec<Step>) -> Result<Have, Error> {
        let run_key = run.run_key;
        let logs = read_logs(&*self.store, run_key).await?;
        let tasks = read_tasks(&*self.store, run).await?;
        let mut consumed = HashSet::new();
        let mut after = 0;
        loop {
            let query = Query::Messages { run_key, after, limit: PAGE };
            let page = self.store.list(query).await?.messages()?;
            after = page.last().map_or(after, |message| message.seq);
            let read = page.iter().filter(|message| message.consumed.is_some());
            consumed.extend(read.map(|message| message.seq));
            if page.len() < PAGE as usize {
                break;
            }
        }
        Ok(Have {
            steps: steps
                .into_iter()
                .map(|step| (step.step_key.as_str().to_owned(), step))
                .collect(),
            logs: logs.into_iter().map(|line| line.log_id).collect(),
            tasks: tasks.into_iter().map(|task| task.task_id).collect(),
            consumed,
        })
    }

    // From where the run is to what it was.
    async fn grow(&self, parts: Parts, mut at: Growing, have: &Have) -> Result<(), Error> {
        let Parts { whole, tasks, logs, bodies } = parts;
        let run = whole.run;
        let owner = BodyOwner::Run(run.run_key);
        let put = |body: Body| Op::PutBody(Box::new(PutBody::new(owner.clone(), body.bytes)));
        let mut rows: Vec<Op> = bodies.into_iter().map(put).collect();
        let next = at.head.next_ordinal;
        rows.extend(whole.events.iter().filter(|event| event.ordinal >= next).cloned().map(append));
        let missing = |step: &&Step| have.steps.get(step.step_key.as_str()) != Some(*step);
        let steps = whole.steps.iter().filter(missing);
        rows.extend(steps.map(|step| Op::PutStep(Box::new(step.clone()))));
        let unsent = whole.messages.iter().filter(|message| message.seq > at.accepted);
        rows.extend(unsent.map(send_again));
        let lines = logs.into_iter().filter(|line| !have.logs.contains(&line.log_id));
        rows.extend(lines.map(|line: LogLine| Op::PutLog(Box::new(line))));
        let tasks = tasks.into_iter().filter(|task| !have.tasks.contains(&task.task_id));
        rows.extend(tasks.map(|task: Task| Op::Enqueue(Box::new(task))));
        self.write(&run, &mut at, rows).await?;
        // A message is consumed in a later commit than the one that sends it.
        let read = whole.messages.iter().filter(|message| !have.consumed.contains(&message.seq));
        let consumes: Vec<Op> = read.filter_map(consume).collect();
        self.write(&run, &mut at, consumes).await?;
        self.end(run, &at).await
    }

    async fn write(&self, run: &Run, at: &mut Growing, ops: Vec<Op>) -> Result<(), Error> {
        let mut ops = ops.into_iter().peekable();
        while ops.peek().is_some() {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while chunk.len() < OPS_MAX && bytes < BYTES_MAX {
                let Some(op) = ops.next() else { break };
                bytes += weight(&op);
                chunk.push(op);
            }
            let before = at.head;
            let mut cursor = run.cursor;
            for op in &chunk {
                if let Op::AppendEvent { event, .. } = op {
                    at.head = Head { next_ordinal: event.ordinal + 1, hash: event.hash };
                    cursor = event.event_id;
                }
            }
            let change = RunChange::new(run.run_key, at.head, cursor, run.updated_at);
            chunk.push(Op::SetRun(Box::new(change)));
            let guard = RunGuard::Held { run_key: run.run_key, head: before, hold: at.hold };
            self.send(Commit::new(Some(guard), None, chunk)).await.map_err(refused)?;
        }
        Ok(())
    }

    async fn end(&self, run: Run, at: &Growing) -> Result<(), Error> {
        let wake = match (run.turn.ready, run.turn.due_at) {
            (true, _) => Wake::Now,
            (false, Some(due_at)) => Wake::At(due_at),
            (false, None) => Wake::OnMessage,
        };
        let change = RunChange {
            status: Some(run.status),
            output: run.output,
            error: run.error,
            state: run.state,
            started_at: run.started_at,
            ended_at: run.ended_at,
            retention_until: run.retention_until,
            turn: TurnChange::Release { wake, seen: run.seen },
            ..RunChange::new(run.run_key, at.head, run.cursor, run.updated_at)
        };
        let guard = RunGuard::Held { run_key: run.run_key, head: at.head, hold: at.hold };
        let commit = Commit::new(Some(guard), None, vec![Op::SetRun(Box::new(change))]);
        self.send(commit).await.map_err(refused).map(|_| ())
    }

    // The same commit again answers as the first would have.
    pub(super) async fn send(&self, commit: Commit) -> Result<Committed, CommitError> {
        let mut sends = 0;
        let commit = commit.with_large_bodies_apart(self.limits.inline_bytes_max);
        loop {
            sends += 1;
            let answer = self.store.commit(vec![commit.clone()]).await.pop();
            match answer.expect("one answer for one commit") {
                Err(error) if error.is_retryable() && sends < SENDS_MAX => {}
                answer => return answer,
            }
        }
    }
}

/// Where a run is on its way to what it was.
struct Growing {
    head: Head,
    hold: Hold,
    accepted: u64,
}

/// The existing rows.
#[derive(Default)]
struct Have {
    steps: HashMap<String, Step>,
    logs: HashSet<LogId>,
    tasks: HashSet<TaskId>,
    consumed: HashSet<u64>,
}

// As many events as the commit that creates the run takes beside it, and where they end.
fn first_events(events: &[Event]) -> (&[Event], Head) {
    let first = &events[..events.len().min(OPS_MAX - 1)];
    let last = first.last().expect("a run that verifies has an event");
    (first, Head { next_ordinal: last.ordinal + 1, hash: last.hash })
}

fn append(event: Event) -> Op {
    Op::AppendEvent { event, cause: CauseCheck::Known }
}

fn send_again(message: &Message) -> Op {
    Op::PutMessage(Box::new(NewMessage {
        run_key: message.run_key,
        message_id: message.message_id.clone(),
        kind: message.kind,
        name: message.name.clone(),
        body: message.body.clone(),
        caused_by: message.caused_by,
        sent_at: message.sent_at,
        required: true,
    }))
}

fn consume(message: &Message) -> Option<Op> {
    let consumed = message.consumed.as_ref()?;
    Some(Op::ConsumeMessage {
        run_key: message.run_key,
        seq: message.seq,
        by: consumed.by.clone(),
        at: consumed.at,
    })
}

fn weight(op: &Op) -> usize {
    let of = |body: &Option<windlass_kernel::Body>| body.as_ref().map_or(0, |body| body.len());
    match op {
        Op::AppendEvent { event, .. } => event.payload.len(),
        Op::PutStep(step) => of(&step.input) + of(&step.result) + of(&step.error),
        Op::PutMessage(message) => of(&message.body),
        Op::Enqueue(task) => of(&task.body) + of(&task.errors),
        Op::PutLog(line) => line.message.len() + of(&line.data),
        Op::PutBody(put) => match put.source() {
            BodySource::Bytes(bytes) => bytes.len(),
            BodySource::Tree(_) => 0,
        },
        _ => 0,
    }
}

fn exists(name: &str, found: RunKey) -> Error {
    let message = format!("{name} is another run in this store: {found} has its name or key");
    Error::new(ErrorKind::Conflict, ErrorCode::RunExists, message)
}

pub(super) fn refused(error: CommitError) -> Error {
    let message = format!("the store does not take it: {error}");
    Error::new(error.kind(), ErrorCode::ImportRefused, message)
}
