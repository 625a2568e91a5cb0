//! Requests in the turn of the run that waits for them.

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_kernel::request::{
    About, Decision, Opening, Request, RequestOutcome, RequestRun, RequestState, RequestStatus,
};
use windlass_kernel::{
    Actor, Body, Draft, Error, ErrorCode, ErrorKind, Expect, Message, RecordOp, RecordPut,
    RecordWrite, Stamp, Step, StepKey, StepStatus, Task, TaskId, Timestamp, WriteId,
};

use super::{Requests, due_task, internal, notify, schema};
use crate::events;
use crate::model::TurnError;
use crate::tasks::WITHDRAW_REQUEST;
use crate::turn::Turn;

/// The most open requests of a run whose decisions the end of the run records.
const REQUESTS_MAX: usize = 32;

/// The request that a step waits for, as the input of the step's row has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRef {
    /// The id of the request.
    pub request: String,
}

impl RequestRef {
    /// Reads the request of a step.
    pub fn of(step: &Step) -> Option<Self> {
        step.input.as_ref().and_then(|input| input.read().ok())
    }
}

/// The message about the end of a request. It says which request has ended and nothing else: the run reads
/// the request.
#[derive(Clone, Debug, Deserialize)]
pub struct RequestMessage {
    /// The request.
    pub request: String,
}

impl RequestMessage {
    /// Reads a message.
    pub fn of(message: &Message) -> Option<Self> {
        message.body.as_ref().and_then(|body| body.read().ok())
    }
}

/// A request that has ended.
#[derive(Clone, Debug)]
pub struct ClosedRequest {
    /// How.
    pub outcome: RequestOutcome,
    due_task: Option<TaskId>,
}

/// Records a decision: who and about what, as digests.
fn record_decision(
    draft: &mut Draft,
    step: &StepKey,
    decision: &Decision,
    stamp: Stamp,
) -> Result<(), Error> {
    let payload = json!({
        "key": step,
        "request": decision.request,
        "actor": Actor::new("user", &decision.by),
        "on_behalf_of": decision.on_behalf_of.as_deref().map(|id| Actor::new("user", id)),
        "verdict": decision.verdict,
        "about": decision.about,
        "decision": Body::of(decision)?.digest(),
        "at": decision.at.to_string(),
    });
    draft.event(events::REQUEST_DECIDED, &payload, stamp).map(|_| ())
}

impl Requests {
    /// Records the decisions about the open requests of a run in the commit that ends it from outside: no turn will
    /// read them. The commit checks the requests, so that no decision comes in between.
    pub(crate) async fn record_decisions(
        &self,
        draft: &mut Draft,
        open: &[Step],
        mut stamp: impl FnMut() -> Stamp,
    ) -> Result<(), Error> {
        let name = super::REQUEST_MESSAGE;
        let asks = open.iter().filter(|step| step.wait_for.as_deref() == Some(name.as_str()));
        let max = REQUESTS_MAX.min(self.core.options.limits.records_per_commit_max);
        for step in asks.take(max) {
            let Some(RequestRef { request }) = RequestRef::of(step) else { continue };
            let found = match self.found(&request).await {
                Err(error) if error.code() == ErrorCode::RequestNotFound => continue,
                found => found?,
            };
            if found.state.run.run_key != step.run_key {
                continue;
            }
            for decision in self.decisions(&found.state).await? {
                record_decision(draft, &step.step_key, &decision, stamp())?;
            }
            let (key, expect) = (found.state.key(&self.namespace), Expect::At(found.revision));
            draft.record(RecordOp { key, expect, write: RecordWrite::Check }, stamp())?;
        }
        Ok(())
    }
}

impl Turn {
    pub(crate) fn requests(&self) -> Requests {
        let (core, commits) = self.request_parts();
        Requests { core, commits, namespace: self.run.namespace.clone() }
    }

    /// Opens a request in the commit that records the step that waits for it: the record, the event
    /// `request.opened`, the step's row, the task of its due time and its notifications. Returns the row as it is
    /// written.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidRequest`] or [`ErrorCode::AssigneeUnknown`] if the request cannot be opened; the
    /// draft is as it was.
    pub fn open_request(
        &mut self,
        draft: &mut Draft,
        mut row: Step,
        request: &Request,
        stamp: Stamp,
    ) -> Result<Step, Error> {
        let requests = self.requests();
        let id = stamp.event_id.to_string();
        let state = self.new_request(request, &row.step_key, stamp)?;
        let namespace = &self.run.namespace;
        row.status = StepStatus::Waiting;
        row.wait_for = Some(super::REQUEST_MESSAGE.as_str().into());
        row.input = Some(Body::of(&RequestRef { request: id.clone() })?);
        let body = Body::of(&state)?;
        let payload = json!({
            "key": row.step_key,
            "request": id,
            "about": state.about.as_ref().map(About::digest),
            "digest": body.digest(),
            "assignees": state.assignees.len(),
            "quorum": state.quorum,
            "due_at": state.due_at.map(|due| due.to_string()),
            "requester": state.requester.as_deref().map(|id| Actor::new("user", id)),
        });
        let put = RecordPut {
            write_id: WriteId(stamp.event_id.0),
            body,
            terms: state.terms(stamp.at)?,
            keep: None,
            at: stamp.at,
            revision: None,
        };
        let op = RecordOp {
            key: state.key(namespace),
            expect: Expect::Absent,
            write: RecordWrite::Put(Box::new(put)),
        };
        let tasks = notify::tasks(&requests.core, namespace, "request.opened", &state, stamp.at)?;
        let due = due_task(namespace, &state, stamp.at)?;
        draft.step_with_record(events::REQUEST_OPENED, &payload, row.clone(), op, stamp)?;
        for task in tasks.into_iter().chain(due) {
            draft.enqueue(task);
        }
        Ok(row)
    }

    /// Refuses a request that cannot be opened, for models that check all of a commit before they build it.
    ///
    /// # Errors
    ///
    /// As [`Turn::open_request`].
    pub fn check_request(&mut self, request: &Request, step: &StepKey) -> Result<(), Error> {
        let stamp = self.stamp();
        self.new_request(request, step, stamp).map(|_| ())
    }

    fn new_request(
        &self,
        request: &Request,
        step: &StepKey,
        stamp: Stamp,
    ) -> Result<RequestState, Error> {
        schema::check_schema(request)?;
        let state = request.open(Opening {
            id: stamp.event_id.to_string(),
            run: RequestRun::new(&self.run, step),
            at: stamp.at,
            due_task: self.new_task_id(),
            directory: super::directory(&self.requests().core),
            limits: self.limits(),
        })?;
        let (bytes, max) = (Body::of(&state)?.len(), self.limits().record_bytes_max);
        if bytes > max {
            let message = format!(
                "the request is not valid: its record has {bytes} bytes; at most {max} are allowed"
            );
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidRequest, message));
        }
        Ok(state)
    }

    /// Reads a request and its decisions; none if it is open or does not exist. A request about a record that has
    /// changed is closed first.
    ///
    /// # Errors
    ///
    /// [`TurnError::Store`] if the store does not answer.
    pub async fn closed_request(&self, id: &str) -> Result<Option<ClosedRequest>, TurnError> {
        let requests = self.requests();
        let state = match requests.get(id).await {
            Ok(state) => state,
            Err(error) if error.code() == ErrorCode::RequestNotFound => return Ok(None),
            Err(error) => return Err(TurnError::Store(error)),
        };
        if state.run.run_key != self.run.run_key || state.status == RequestStatus::Open {
            return Ok(None);
        }
        let decisions = requests.decisions(&state).await.map_err(TurnError::Store)?;
        let due_task = state.due_task;
        Ok(state.outcome(decisions).map(|outcome| ClosedRequest { outcome, due_task }))
    }

    /// Closes an open request of this run if the record that it is about has changed; the run then gets the
    /// message about its end.
    ///
    /// # Errors
    ///
    /// [`TurnError::Store`] if the store does not answer.
    pub async fn close_stale_request(&self, id: &str) -> Result<bool, TurnError> {
        match self.requests().close_stale(id).await {
            Err(error) if error.code() == ErrorCode::RequestNotFound => Ok(false),
            closed => closed.map_err(TurnError::Store),
        }
    }

    /// Records the end of a request in the commit that settles its step: `request.decided` for each decision, then
    /// `request.closed`. The row gets the outcome as its result.
    ///
    /// # Errors
    ///
    /// An event is too large.
    pub fn close_request(
        &mut self,
        draft: &mut Draft,
        mut row: Step,
        message: &Message,
        closed: &ClosedRequest,
    ) -> Result<Step, Error> {
        let outcome = &closed.outcome;
        for decision in &outcome.decisions {
            record_decision(draft, &row.step_key, decision, self.stamp())?;
        }
        if let Some(task) = closed.due_task {
            draft.settle(task);
        }
        let stamp = self.stamp();
        row.status = StepStatus::Completed;
        row.result = Some(Body::of(outcome)?);
        row.input = Some(Body::of(&RequestRef { request: outcome.request.clone() })?);
        row.updated_at = stamp.at;
        let payload = json!({
            "key": row.step_key,
            "request": outcome.request,
            "status": outcome.status,
            "decisions": outcome.decisions.len(),
            "message": message.seq,
        });
        draft.consume_into_step(events::REQUEST_CLOSED, &payload, message, row.clone(), stamp)?;
        Ok(row)
    }

    /// An internal task that withdraws a request for which this run no longer waits.
    ///
    /// # Errors
    ///
    /// The task cannot be built.
    pub fn withdraw_request(&self, id: &str, at: Timestamp) -> Result<Task, Error> {
        let (task_id, run) = (self.new_task_id(), &self.run);
        internal(&run.namespace, task_id, WITHDRAW_REQUEST, id, run.run_key, at, at)
    }
}
