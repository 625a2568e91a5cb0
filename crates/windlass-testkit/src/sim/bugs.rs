//! Planted bugs of the store: commits and answers are changed on their way in and out, so that they
//! look as if the store had the bug.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::FutureExt as _;
use windlass_kernel::{
    ClaimRequest, ClaimedTurn, Claims, Commit, CommitError, Committed, Conflict, Delivery, Expect,
    Head, Hold, Loaded, MemoryStore, MessageId, Namespace, Op, Query, Reaped, RecordWrite,
    RunGuard, RunKey, Store, TaskGuard, TasksQuery, TurnChange, Wake, WorkerKey,
};

use super::executor::locked;
use super::faults::PlantedBug;
use super::fleet;
use super::rng::Rng;

/// The bug of this run, if there is one.
pub struct Bugs {
    bug: Option<PlantedBug>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    shown: BTreeMap<(RunKey, WorkerKey), u64>,
    renamed: u64,
}

impl Bugs {
    /// A store with this bug, or without any.
    pub fn new(bug: Option<PlantedBug>, rng: Rng) -> Self {
        let state = State { rng, shown: BTreeMap::new(), renamed: 0 };
        Self { bug, state: Mutex::new(state) }
    }

    fn rarely(&self) -> bool {
        locked(&self.state).rng.chance(60)
    }

    /// Writes a commit as the store with the bug would.
    pub fn commit(&self, inner: &MemoryStore, sent: &Commit) -> Result<Committed, CommitError> {
        let write = |commit: Commit| {
            let results = inner.commit(vec![commit]).now_or_never();
            results.and_then(|mut results| results.pop()).expect("one answer, at once")
        };
        let Some(bug) = self.bug else { return write(sent.clone()) };
        let mut commit = sent.clone();
        match bug {
            PlantedBug::SkipHeadCheck => skip_head(inner, &mut commit),
            PlantedBug::SkipHoldCheck => skip_hold(inner, &mut commit),
            PlantedBug::SkipRecordCheck => skip_revisions(inner, &mut commit),
            PlantedBug::SkipCheckedRecord => skip_checks(&mut commit),
            PlantedBug::ReleaseIgnoresAccepted => read_all(inner, &mut commit),
            PlantedBug::ForgetTimer if self.rarely() => forget_timer(&mut commit),
            PlantedBug::MessageAcceptedTwice => self.rename_messages(inner, &mut commit),
            PlantedBug::SettleUnguarded => borrow_task(inner, &mut commit),
            PlantedBug::HalfCommit if self.rarely() => halve(&mut commit),
            PlantedBug::EndForgotten if self.rarely() => forget_end(&mut commit),
            PlantedBug::EventRewritten if self.rarely() => rewrite_event(&mut commit),
            PlantedBug::AckWithoutWrite if self.rarely() => return Ok(acknowledge(inner, sent)),
            _ => {}
        }
        let result = write(commit);
        match (bug, &result) {
            (PlantedBug::KeyIgnored, Ok(done))
                if done.repeated && done.run_key == sent.run_key() =>
            {
                Err(CommitError::Conflict(self.refusal(inner, sent)))
            }
            (PlantedBug::ResendAppliedTwice, Ok(done)) if done.repeated && advances(sent) => {
                let mut again = sent.clone();
                skip_hold(inner, &mut again);
                skip_head(inner, &mut again);
                again.ops_mut().retain(|op| matches!(op, Op::SetRun(_) | Op::AppendEvent { .. }));
                for op in again.ops_mut() {
                    // The store refuses a second event with the same id.
                    let id = match op {
                        Op::AppendEvent { event, .. } => &mut event.event_id.0,
                        Op::SetRun(change) => &mut change.cursor.0,
                        _ => continue,
                    };
                    *id = uuid::Uuid::from_u128(!id.as_u128());
                }
                write(again)
            }
            (PlantedBug::ConflictLeaks, Err(CommitError::Conflict(_))) => {
                for message in sent.messages() {
                    let mut message = message.clone();
                    message.required = false;
                    let op = Op::PutMessage(Box::new(message));
                    let _ = write(Commit::new(None, None, vec![op]));
                }
                result
            }
            _ => result,
        }
    }

    fn refusal(&self, inner: &MemoryStore, sent: &Commit) -> Conflict {
        let run_key = sent.run_key().or(sent.messages().next().map(|message| message.run_key));
        let run_key = run_key.unwrap_or(RunKey(uuid::Uuid::nil()));
        match row(inner, run_key) {
            Some(loaded) => Conflict::RunHead { run_key, found: loaded.run.head },
            None => Conflict::RunMissing { run_key },
        }
    }

    fn rename_messages(&self, inner: &MemoryStore, commit: &mut Commit) {
        for op in commit.ops_mut() {
            let Op::PutMessage(message) = op else { continue };
            let query = Query::Messages { run_key: message.run_key, after: 0, limit: 1_000 };
            let rows = inner.list(query).now_or_never().and_then(|rows| rows.ok()?.messages().ok());
            let known = rows
                .is_some_and(|rows| rows.iter().any(|row| row.message_id == message.message_id));
            if known {
                let mut state = locked(&self.state);
                state.renamed += 1;
                let id = format!("{}#{}", message.message_id, state.renamed);
                message.message_id = MessageId::from_stored(id);
            }
        }
    }

    /// The answer of a claim as the store with the bug would give it.
    pub fn claimed(
        &self,
        inner: &MemoryStore,
        request: &ClaimRequest,
        mut claims: Claims,
    ) -> Claims {
        match self.bug {
            Some(PlantedBug::ClaimNumberReused) => {
                let mut state = locked(&self.state);
                for turn in &mut claims.turns {
                    let key = (turn.run_key, request.worker);
                    let shown = *state.shown.entry(key).or_insert(turn.hold.claim_no);
                    turn.hold.claim_no = shown;
                }
            }
            Some(PlantedBug::ClaimGivenTwice) if self.rarely() => {
                let workers = list_workers(inner);
                let other = workers.into_iter().filter(|worker| *worker != request.worker);
                let held = other.flat_map(|worker| held_turns(inner, worker)).next();
                if let Some((run_key, hold)) = held
                    && let Some(loaded) = row(inner, run_key)
                {
                    claims.turns.push(ClaimedTurn {
                        run_key,
                        namespace: loaded.run.namespace,
                        workflow: loaded.run.workflow,
                        status: loaded.run.status,
                        hold: Hold { worker: request.worker, claim_no: hold.claim_no },
                        head: loaded.run.head,
                        accepted: loaded.run.accepted,
                        reclaims: 0,
                    });
                }
            }
            _ => {}
        }
        claims
    }

    /// The rows of runs as the store with the bug would give them.
    pub fn loaded(&self, mut rows: Vec<Loaded>) -> Vec<Loaded> {
        if PlantedBug::StaleLoad.is(self.bug) && locked(&self.state).rng.chance(300) {
            for row in &mut rows {
                let settled = row.steps.iter().filter(|step| step.status.is_settled());
                let last = settled.max_by_key(|step| step.updated_at).map(|s| s.step_key.clone());
                row.steps.retain(|step| Some(&step.step_key) != last.as_ref());
            }
        }
        rows
    }

    /// The holds that the reaper frees in the store with the bug.
    pub fn reaped(&self, inner: &MemoryStore, worker: WorkerKey, mut reaped: Reaped) -> Reaped {
        let (hasty, deadly) = match self.bug {
            Some(PlantedBug::HastyReaper) => (true, false),
            Some(PlantedBug::ReapsTheLiving) => (false, reaped.permitted && self.rarely()),
            _ => return reaped,
        };
        let now = inner.now().now_or_never().and_then(Result::ok).unwrap_or_default();
        let rows = workers(inner);
        for row in rows {
            let victim = row.info.worker;
            let free =
                hasty && !reaped.permitted && !row.is_live(now) || deadly && victim != worker;
            if free {
                reaped.turns.extend(held_turns(inner, victim).iter().map(|(key, _)| *key));
                let held = inner.held(victim).now_or_never().and_then(Result::ok);
                let _ = inner.release(held.unwrap_or_default()).now_or_never();
            }
        }
        reaped
    }

    /// The namespace in which the store with the bug looks.
    pub fn namespace(&self, asked: &Namespace) -> Namespace {
        if PlantedBug::NamespaceMixed.is(self.bug) {
            return Namespace::default_namespace();
        }
        asked.clone()
    }

    /// The slots that the store with the bug keeps.
    pub fn slots(&self, slots: Option<u32>) -> Option<u32> {
        slots.filter(|_| !PlantedBug::LimitIgnored.is(self.bug))
    }
}

fn row(inner: &MemoryStore, run_key: RunKey) -> Option<Loaded> {
    inner.load(vec![run_key]).now_or_never()?.ok()?.pop()
}

fn workers(inner: &MemoryStore) -> Vec<windlass_kernel::Worker> {
    let query = Query::Workers { after: None, limit: 1_000 };
    let rows = inner.list(query).now_or_never().and_then(|rows| rows.ok()?.workers().ok());
    rows.unwrap_or_default()
}

fn list_workers(inner: &MemoryStore) -> Vec<WorkerKey> {
    workers(inner).into_iter().map(|row| row.info.worker).collect()
}

fn held_turns(inner: &MemoryStore, worker: WorkerKey) -> Vec<(RunKey, Hold)> {
    use windlass_kernel::HeldItem;
    let held = inner.held(worker).now_or_never().and_then(Result::ok).unwrap_or_default();
    let turn = |item| match item {
        HeldItem::Turn { run_key, worker, claim_no } => Some((run_key, Hold { worker, claim_no })),
        HeldItem::Task { .. } => None,
    };
    held.into_iter().filter_map(turn).collect()
}

// Chains the events of a stale commit to the head that the row has now; their hashes stay wrong,
// as they would in a store that never looked.
fn skip_revisions(inner: &MemoryStore, commit: &mut Commit) {
    for op in commit.ops_mut() {
        let Op::Record(record) = op else { continue };
        let rows = inner.records(vec![record.key.clone()]).now_or_never();
        let found = rows.and_then(|rows| rows.ok()?.pop().flatten());
        record.expect = found.map_or(Expect::Absent, |found| Expect::At(found.revision));
    }
}

fn skip_checks(commit: &mut Commit) {
    let checks = |op: &Op| matches!(op, Op::Record(op) if matches!(op.write, RecordWrite::Check));
    commit.ops_mut().retain(|op| !checks(op));
}

fn skip_head(inner: &MemoryStore, commit: &mut Commit) {
    let Some(RunGuard::Held { run_key, head, .. } | RunGuard::Free { run_key, head, .. }) =
        &mut commit.run
    else {
        return;
    };
    let Some(loaded) = row(inner, *run_key) else { return };
    let (run_key, mut next) = (*run_key, loaded.run.head.next_ordinal);
    *head = loaded.run.head;
    let mut end = loaded.run.head;
    for op in commit.ops_mut() {
        if let Op::AppendEvent { event, .. } = op
            && event.run_key == run_key
        {
            event.ordinal = next;
            next += 1;
            end = Head { next_ordinal: next, hash: event.hash };
        }
    }
    for op in commit.ops_mut() {
        if let Op::SetRun(change) = op {
            change.head = end;
        }
    }
}

fn skip_hold(inner: &MemoryStore, commit: &mut Commit) {
    let Some(RunGuard::Held { run_key, head, hold }) = commit.run else { return };
    let Some(loaded) = row(inner, run_key).filter(|row| !row.run.status.is_ended()) else { return };
    commit.run = Some(match loaded.run.turn.hold() {
        Some(hold) => RunGuard::Held { run_key, head, hold },
        None => RunGuard::Free { run_key, head, worker: hold.worker },
    });
}

fn advances(commit: &Commit) -> bool {
    let own = |op: &Op| match op {
        Op::AppendEvent { event, .. } => Some(event.run_key) == commit.run_key(),
        _ => true,
    };
    matches!(commit.run, Some(RunGuard::Held { .. })) && commit.ops.iter().all(own)
}

fn turn_change(commit: &mut Commit) -> Option<&mut TurnChange> {
    commit.ops_mut().iter_mut().find_map(|op| match op {
        Op::SetRun(change) => Some(&mut change.turn),
        _ => None,
    })
}

fn read_all(inner: &MemoryStore, commit: &mut Commit) {
    let accepted = commit.run_key().and_then(|key| row(inner, key)).map(|row| row.run.accepted);
    if let (Some(accepted), Some(TurnChange::Release { seen, .. })) =
        (accepted, turn_change(commit))
    {
        *seen = accepted;
    }
}

fn forget_timer(commit: &mut Commit) {
    if let Some(TurnChange::Release { wake: wake @ Wake::At(_), .. }) = turn_change(commit) {
        *wake = Wake::OnMessage;
    }
}

fn borrow_task(inner: &MemoryStore, commit: &mut Commit) {
    let Some(TaskGuard::Held { task_id, hold }) = &mut commit.task else { return };
    for namespace in fleet::namespaces() {
        let query = TasksQuery::all(namespace, 1_000);
        let rows = inner.list(Query::Tasks(query)).now_or_never();
        let tasks = rows.and_then(|rows| rows.ok()?.tasks().ok()).unwrap_or_default();
        let found = tasks.iter().find(|task| task.task_id == *task_id);
        if let Some(found) = found.and_then(|task| task.hold()) {
            *hold = found;
        }
    }
}

fn halve(commit: &mut Commit) {
    let optional = |op: &Op| {
        matches!(
            op,
            Op::PutMessage(_) | Op::Enqueue(_) | Op::PutStep(_) | Op::ConsumeMessage { .. }
        )
    };
    if let Some(place) = commit.ops.iter().rposition(optional) {
        drop(commit.ops_mut().remove(place));
    }
}

fn forget_end(commit: &mut Commit) {
    for op in commit.ops_mut() {
        if let Op::SetRun(change) = op
            && change.status.is_some_and(|status| status.is_ended())
        {
            change.status = None;
            change.ended_at = None;
            change.turn = TurnChange::Release { wake: Wake::Now, seen: 0 };
        }
    }
}

fn rewrite_event(commit: &mut Commit) {
    for op in commit.ops_mut() {
        if let Op::AppendEvent { event, .. } = op {
            event.payload = bytes::Bytes::from_static(b"{}");
        }
    }
}

fn acknowledge(inner: &MemoryStore, sent: &Commit) -> Committed {
    let run = sent.run_key().and_then(|key| row(inner, key));
    Committed {
        run_key: sent.run_key(),
        repeated: false,
        accepted: run.as_ref().map_or(0, |row| row.run.accepted),
        hold: run.and_then(|row| row.run.turn.hold()),
        messages: sent.messages().map(|_| Delivery::Accepted { seq: 1 }).collect(),
        now: inner.now().now_or_never().and_then(Result::ok).unwrap_or_default(),
    }
}
