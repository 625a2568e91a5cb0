//! Copies of a document that waits for an approval, written with commits of the store and not by the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use windlass::RecordChange;
use windlass::contracts::{Approval, Contracts, DocumentRow};
use windlass_kernel::{
    Body, Commit, Draft, EventId, EventType, Expect, Hold, NewRun, OnExisting, Run, RunId, RunKey,
    RunStatus, Sha256Digest, Stamp, Step, Store, Turn, Wake, WorkerKey,
};

use crate::generator::{RunGenerator, now};

/// Documents whose commits are sent together.
const SENT_AT_ONCE: u64 = 64;
/// How many of these groups are in flight.
const GROUPS: usize = 4;
const LOADED: EventType = EventType::from_static("node.completed");

/// Copies one document.
pub(super) struct Loader {
    store: Arc<dyn Store>,
    generator: RunGenerator,
    worker: WorkerKey,
    run: Run,
    steps: Vec<Step>,
    row: DocumentRow,
    approval: Approval,
}

impl Loader {
    /// Copies the document with this id, whose run waits for an approval.
    pub(super) async fn of(contracts: &Contracts, id: &str) -> anyhow::Result<Self> {
        let store = Arc::clone(contracts.engine().store());
        let run = contracts.run(super::TYPE, id).await?;
        ensure!(run.status == RunStatus::Waiting, "the copied run is {}", run.status);
        let loaded = store.load(vec![run.run_key]).await?.pop().context("the run has no steps")?;
        let row = contracts.document(super::TYPE, id).await?.row;
        let approvals = contracts.approvals_of(super::TYPE, id, None, 1).await?;
        let approval = approvals.into_iter().next().context("nobody is asked")?;
        let generator = RunGenerator::new(0)?;
        let worker = WorkerKey(generator.key(now()));
        Ok(Self { store, generator, worker, run, steps: loaded.steps, row, approval })
    }

    /// Writes the copies with the numbers `from..to`.
    pub(super) async fn fill(self: &Arc<Self>, from: u64, to: u64) -> anyhow::Result<()> {
        let next = Arc::new(AtomicU64::new(from));
        let groups: Vec<_> = (0..GROUPS)
            .map(|_| {
                let (loader, next) = (Arc::clone(self), Arc::clone(&next));
                tokio::spawn(async move {
                    loop {
                        let first = next.fetch_add(SENT_AT_ONCE, Ordering::Relaxed);
                        if first >= to {
                            return anyhow::Ok(());
                        }
                        loader.group(first, (first + SENT_AT_ONCE).min(to)).await?;
                    }
                })
            })
            .collect();
        for group in groups {
            group.await.context("a loader panicked")??;
        }
        Ok(())
    }

    async fn group(&self, from: u64, to: u64) -> anyhow::Result<()> {
        let (mut runs, mut created) = (Vec::new(), Vec::new());
        for n in from..to {
            let (run, commit) = self.create(n)?;
            runs.push((n, run));
            created.push(commit);
        }
        self.send(created).await?;
        let waiting: anyhow::Result<Vec<Commit>> =
            runs.into_iter().map(|(n, run)| self.wait(n, &run)).collect();
        self.send(waiting?).await
    }

    async fn send(&self, commits: Vec<Commit>) -> anyhow::Result<()> {
        for result in self.store.commit(commits).await {
            result.context("a document was not loaded")?;
        }
        Ok(())
    }

    fn stamp(&self) -> Stamp {
        let at = now();
        Stamp { event_id: EventId(self.generator.key(at)), at }
    }

    fn create(&self, n: u64) -> anyhow::Result<(Run, Commit)> {
        let stamp = self.stamp();
        let id = document(n);
        let input =
            serde_json::json!({"type": super::TYPE, "document": id, "artefact": self.row.artefact});
        let new = NewRun {
            run_key: RunKey(self.generator.key(stamp.at)),
            namespace: self.run.namespace.clone(),
            workflow: self.run.workflow.clone(),
            model: self.run.model.clone(),
            id: RunId::new(id)?,
            generation: 0,
            input: Body::of(&input)?,
            parent: None,
            fork: None,
            labels: std::collections::BTreeMap::new(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: Turn::held_by(self.worker),
            caused_by: None,
        };
        let draft = Draft::create(new, OnExisting::Refuse, stamp)?;
        let run = draft.created().context("the draft creates no run")?.clone();
        Ok((run, draft.finish()))
    }

    /// The commit with which the run begins to wait: its steps, its state, the document and the request.
    fn wait(&self, n: u64, run: &Run) -> anyhow::Result<Commit> {
        let hold = Hold { worker: self.worker, claim_no: run.turn.claim_no };
        let mut draft = Draft::held(run, hold, now());
        for step in &self.steps {
            let stamp = self.stamp();
            let step = Step {
                run_key: run.run_key,
                position: draft.head().next_ordinal,
                created_at: stamp.at,
                updated_at: stamp.at,
                ..step.clone()
            };
            let payload = serde_json::json!({"key": step.step_key.as_str()});
            draft.step(LOADED, &payload, step, stamp)?;
        }
        let state: String = match &self.run.state {
            Some(state) => String::from_utf8(state.bytes.to_vec())?,
            None => anyhow::bail!("the copied run has no state"),
        };
        let state = state.replace(&self.run.run_key.to_string(), &run.run_key.to_string());
        draft.state(Body::json(state), self.stamp());
        let (id, namespace) = (document(n), &run.namespace);
        for change in [self.document_change(&id, run.run_key)?, self.approval_change(&id)?] {
            let stamp = self.stamp();
            draft.record(change.op(namespace, stamp), stamp)?;
        }
        draft.release(Wake::OnMessage, run.accepted);
        Ok(draft.finish())
    }

    fn document_change(&self, id: &str, run: RunKey) -> anyhow::Result<RecordChange> {
        let mut row = self.row.clone();
        (row.id, row.run) = (id.to_owned(), Some(run));
        let (collection, state) = ("windlass.documents", format!("{}:{}", super::TYPE, row.state));
        let record = format!("{}/{id}", super::TYPE);
        let change = RecordChange::put_own(collection, record, &row, Expect::Absent)?;
        Ok(change.term("type", super::TYPE)?.term("state", &state)?.keep())
    }

    fn approval_change(&self, id: &str) -> anyhow::Result<RecordChange> {
        let mut approval = self.approval.clone();
        let parts: [&[u8]; 2] = [id.as_bytes(), approval.step.as_bytes()];
        approval.id = Sha256Digest::of_parts(&parts).to_string();
        approval.document = id.to_owned();
        let collection = "windlass.approvals";
        let change = RecordChange::put_own(collection, &approval.id, &approval, Expect::Absent)?;
        let mut change =
            change.term("status", "open")?.term("document", &format!("{}/{id}", super::TYPE))?;
        for asked in &approval.asked {
            change = change.term("assignee", &asked.person)?;
        }
        Ok(change.keep())
    }
}

fn document(n: u64) -> String {
    format!("loaded-{n:09}")
}
