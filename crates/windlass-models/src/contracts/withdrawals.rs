//! Withdraws the requests of runs that nobody continues.
//!
//! A run withdraws its own requests while it lives. A run that was terminated, and one that failed and was
//! restarted, can no longer do so. The commit that terminates a run, and the first commit of a restarted one,
//! therefore enqueue an effect, which closes what is left.

use std::sync::{Arc, Weak};

use serde_json::value::RawValue;
use windlass_engine::{
    EFFECTS_QUEUE, Engine, TaskBody, TaskContext, TaskFailure, TaskHandler, TaskResult, WeakEngine,
    conflict_delay, refusal,
};
use windlass_kernel::{
    Body, BoxFuture, CommitError, Conflict, Error, ErrorCode, ErrorKind, Expect, OnEnd, QueueName,
    RetryPolicy, RouteName, RunKey, RunStatus,
};

use super::approvals::{Approval, ApprovalStatus};
use super::handle::Contracts;
use super::names::{APPROVALS, WORKFLOW_PREFIX};
use super::shared::Shared;

/// The effect that withdraws the requests which the earlier runs of a document have left.
pub(crate) const WITHDRAW_EFFECT: &str = "contracts.withdraw";

/// How many requests are read at once.
const PAGE: u32 = 100;

/// The task that the commit which terminates a run enqueues.
pub(crate) fn on_end() -> Result<Arc<str>, Error> {
    let body = TaskBody {
        input: RawValue::NULL.to_owned(),
        retry: RetryPolicy::webhooks(),
        start_to_close_ms: None,
        heartbeat_ms: None,
        close_by: None,
        breaker: None,
        receipt: false,
        wakes_run: false,
    };
    let body = serde_json::value::to_raw_value(&body).map_err(|source| {
        let message = "cannot serialize the task that withdraws requests";
        Error::new(ErrorKind::Internal, ErrorCode::Internal, message).with_source(source)
    })?;
    let (queue, name) =
        (QueueName::from_stored(EFFECTS_QUEUE), RouteName::from_stored(WITHDRAW_EFFECT));
    OnEnd { queue, name, body }.to_json()
}

/// Carries out the effects. It does not keep the engine alive.
pub(crate) struct Withdrawals {
    engine: WeakEngine,
    shared: Weak<Shared>,
}

impl Withdrawals {
    /// Serves the effects of an engine. A second handle on one engine shares the service of the first.
    pub(crate) fn serve(engine: &Engine, shared: &Arc<Shared>) -> Result<(), Error> {
        let handler = Self { engine: engine.downgrade(), shared: Arc::downgrade(shared) };
        match engine.serve_effects(WITHDRAW_EFFECT, Arc::new(handler)) {
            Err(error) if error.code() == ErrorCode::ActivityExists => Ok(()),
            served => served,
        }
    }
}

impl TaskHandler for Withdrawals {
    fn run(&self, context: TaskContext, _: Body) -> BoxFuture<'static, TaskResult> {
        let (engine, shared) = (self.engine.upgrade(), self.shared.upgrade());
        Box::pin(async move {
            let (Some(engine), Some(shared)) = (engine, shared) else {
                return Err(TaskFailure::not_here("the engine stops"));
            };
            let contracts = Contracts::new(engine.in_namespace(context.namespace.clone()), shared);
            let done = match context.run_key {
                Some(run) => contracts.withdraw_left(run).await,
                None => Ok(()),
            };
            done.map_err(|error| {
                TaskFailure::new(error.code().as_str(), error.to_string(), error.is_retryable())
            })?;
            Ok(Body::json("null"))
        })
    }
}

impl Contracts {
    /// Withdraws the open requests that the run of a document and its earlier generations have left.
    async fn withdraw_left(&self, run: RunKey) -> Result<(), Error> {
        let Some(found) = self.engine.store().run_overview_by_key(run).await? else {
            return Ok(());
        };
        let Some(entity_type) = found.run.workflow.as_str().strip_prefix(WORKFLOW_PREFIX) else {
            return Ok(());
        };
        self.withdraw_ended(entity_type, found.run.id.as_str()).await
    }

    /// Withdraws the open requests about a document that no run waits for.
    pub(crate) async fn withdraw_ended(&self, entity_type: &str, id: &str) -> Result<(), Error> {
        let namespace = self.engine.namespace();
        let Some(document) = self.shared.document(namespace, entity_type, id).await? else {
            return Ok(());
        };
        let mut last = None;
        if let Some(run) = document.row.run {
            last = self.engine.store().run_overview_by_key(run).await?;
        }
        // A failed run can be retried, which goes on with its requests. A terminated one cannot.
        let is_over = last.is_some_and(|found| found.run.status == RunStatus::Terminated);
        let origin = document.row.run_origin;
        let is_left = |approval: &Approval| {
            approval.status == ApprovalStatus::Open
                && (approval.origin < origin || (approval.origin == origin && is_over))
        };
        let mut after: Option<String> = None;
        loop {
            let page = self.approvals_of(entity_type, id, after.as_deref(), PAGE).await?;
            for approval in page.iter().filter(|approval| is_left(approval)) {
                self.withdraw(&approval.id).await?;
            }
            if page.len() < PAGE as usize {
                return Ok(());
            }
            after = page.last().map(|approval| approval.id.clone());
        }
    }

    async fn withdraw(&self, id: &str) -> Result<(), Error> {
        let mut losses = 0;
        loop {
            let found =
                self.shared.read::<Approval>(self.engine.namespace(), APPROVALS, id).await?;
            let Some((mut approval, revision)) = found else { return Ok(()) };
            if approval.status != ApprovalStatus::Open {
                return Ok(());
            }
            approval.status = ApprovalStatus::Withdrawn;
            let change = approval.put(Expect::At(revision))?;
            match self.engine.commit_with(&[change], Vec::new()).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict(Conflict::Record { .. })) => {
                    losses += 1;
                    let env = self.engine.env();
                    env.sleep(conflict_delay(env.random(), losses)).await;
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
    }
}
