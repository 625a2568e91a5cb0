//! Deletes requests and their decisions some time after their runs have ended.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::request::{RequestState, RequestStatus};
use windlass_kernel::{
    Body, Commit, Error, ErrorCode, Expect, Namespace, Op, Record, RecordOp, RecordWrite, Route,
    RouteName, Task, TaskId, Timestamp, WriteId, derive_key,
};

use super::Requests;
use crate::env::new_uuid;
use crate::tasks::{FORGET_REQUEST, internal_queue};
use crate::turn::refusal;

/// How many decisions one commit removes.
const CHUNK: usize = 32;

fn forget_task(
    task_id: TaskId,
    namespace: &Namespace,
    request: &str,
    at: Timestamp,
) -> Result<Task, Error> {
    let route = Route { queue: internal_queue(), name: RouteName::new(FORGET_REQUEST)? };
    let mut task = Task::new(task_id, namespace.clone(), "internal", route, at);
    task.body = Some(Body::of(request)?);
    Ok(task)
}

/// The tasks that an imported request needs. The commit that closes an open one enqueues its task.
pub(crate) fn tasks_of_imported(record: &Record, at: Timestamp) -> Result<Vec<Task>, Error> {
    let Some(body) = &record.body else { return Ok(Vec::new()) };
    let state: RequestState = body.read()?;
    if state.status == RequestStatus::Open {
        return Ok(Vec::new());
    }
    let id = TaskId(derive_key(record.write_id.0, "import"));
    Ok(vec![forget_task(id, &record.key.namespace, &state.id, at)?])
}

impl Requests {
    /// The task that deletes a request, or looks again later.
    pub(super) fn forget_task(
        &self,
        id: &str,
        now: Timestamp,
        after: Duration,
    ) -> Result<Task, Error> {
        let mut task = forget_task(self.core.clock.task_id(), &self.namespace, id, now)?;
        (task.ready, task.due_at) = (false, Some(now.plus(after)));
        Ok(task)
    }

    /// Deletes a request and its decisions if their time is over. Otherwise returns the task that looks
    /// again.
    pub(crate) async fn forget(&self, id: &str) -> Result<Vec<Op>, Error> {
        let found = match self.found(id).await {
            Err(error) if error.code() == ErrorCode::RequestNotFound => return Ok(Vec::new()),
            found => found?,
        };
        let now = self.core.clock.now();
        let until = self.kept_until(&found.state, now).await?;
        if until > now {
            let task = self.forget_task(id, now, until.since(now))?;
            return Ok(vec![Op::Enqueue(Box::new(task))]);
        }
        // The request goes last: a process that dies in between begins again with it.
        let key = |by: &str| found.state.decision_key(&self.namespace, by);
        for votes in found.state.votes.chunks(CHUNK) {
            let keys = votes.iter().map(|vote| key(&vote.by)).collect();
            let rows = self.core.store.records(keys).await?.into_iter().flatten();
            let rows = rows.filter(|row| row.body.is_some());
            let ops: Vec<Op> = rows.map(|row| self.removal(row.key, row.revision, now)).collect();
            self.remove(ops).await?;
        }
        let own = found.state.key(&self.namespace);
        self.remove(vec![self.removal(own, found.revision, now)]).await?;
        Ok(Vec::new())
    }

    // Until when a request is kept. One whose run goes on is looked at again after a whole time.
    async fn kept_until(&self, state: &RequestState, now: Timestamp) -> Result<Timestamp, Error> {
        let retention = self.core.options.request_retention;
        let closed = match (&state.closed, state.status) {
            (Some(closed), status) if status != RequestStatus::Open => closed.at,
            _ => return Ok(now.plus(retention)),
        };
        let overview = self.core.store.run_overview_by_key(state.run.run_key).await?;
        Ok(match overview.map(|overview| overview.run.ended_at) {
            None => closed.plus(retention),
            Some(None) => now.plus(retention),
            Some(Some(ended)) => ended.max(closed).plus(retention),
        })
    }

    fn removal(&self, key: windlass_kernel::RecordKey, revision: u64, at: Timestamp) -> Op {
        let write_id = WriteId(new_uuid(&*self.core.env, at));
        let write = RecordWrite::Remove { write_id, at };
        Op::Record(Box::new(RecordOp { key, expect: Expect::At(revision), write }))
    }

    async fn remove(&self, ops: Vec<Op>) -> Result<(), Error> {
        if ops.is_empty() {
            return Ok(());
        }
        self.core.record_removed.notify_one();
        let commit = Commit::new(None, None, ops);
        Arc::clone(&self.commits).commit(commit).await.map_err(|error| refusal(&error))?;
        Ok(())
    }
}
