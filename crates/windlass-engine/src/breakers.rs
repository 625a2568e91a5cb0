//! Circuit breakers in front of attempts: the kernel decides, the store keeps the state that all
//! processes share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Breaker, BreakerPolicy, BreakerRow, BreakerStatus, Commit, CommitError, Error, ErrorCode,
    ErrorKind, LimitKey, Namespace, Op, Permit, Query, Reschedule, Task, TaskGuard, TaskState,
    TasksQuery, Timestamp, Wake,
};

use crate::core::{Core, after_write};
use crate::env::ThreadPool;
use crate::tasks::{TaskBody, TaskResult};

/// How often an update is repeated because another process changed the breaker meanwhile.
const ATTEMPTS_MAX: u32 = 100;
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// How long a process refuses calls by a cached answer of the store.
const REFUSED_FOR: Duration = Duration::from_millis(250);
/// How many scheduled tasks are read to find those that wait for a breaker. The others ask again by
/// themselves, within a minute.
const SCANNED_MAX: usize = 100_000;

/// The breaker in front of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskBreaker {
    /// Names the callee: tasks with the same key share a breaker.
    pub key: LimitKey,
    /// When it opens and closes.
    pub policy: BreakerPolicy,
}

/// Cached refusals of the store. A permission is never cached.
#[derive(Default)]
struct Refusals(Mutex<BTreeMap<(Namespace, LimitKey), Refusal>>);

struct Refusal {
    received: Duration,
    until: Timestamp,
}

impl Refusals {
    fn insert(&self, key: (Namespace, LimitKey), received: Duration, until: Timestamp) {
        let mut refusals = self.0.lock();
        refusals.retain(|_, refusal| received.saturating_sub(refusal.received) < REFUSED_FOR);
        refusals.insert(key, Refusal { received, until });
    }

    fn get(
        &self,
        key: &(Namespace, LimitKey),
        elapsed: Duration,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let refusals = self.0.lock();
        let refusal = refusals.get(key)?;
        let fresh = elapsed.saturating_sub(refusal.received) < REFUSED_FOR;
        (fresh && now < refusal.until).then_some(refusal.until)
    }

    fn clear(&self) {
        self.0.lock().clear();
    }
}

/// The breakers of all namespaces, as this worker sees them.
pub(crate) struct Breakers {
    core: Arc<Core>,
    refusals: Refusals,
}

impl Breakers {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, refusals: Refusals::default() }
    }

    /// Whether a task's attempt may begin. It waits until the store answers.
    pub(crate) async fn permit(&self, task: &Task, breaker: &TaskBreaker, max: Duration) -> Permit {
        let mut delay = RETRY_DELAY;
        let key = (task.namespace.clone(), breaker.key.clone());
        if let Some(until) = self.refusals.get(&key, self.core.env.elapsed(), self.core.clock.now())
        {
            return Permit::Wait(until);
        }
        loop {
            let decide = |state: &mut Breaker, now| {
                state.permit(&breaker.policy, self.core.worker, max, now)
            };
            match self.decide(&task.namespace, &breaker.key, decide).await {
                Ok(Permit::Wait(until)) => {
                    self.refusals.insert(key, self.core.env.elapsed(), until);
                    return Permit::Wait(until);
                }
                Ok(permit) => return permit,
                Err(error) => {
                    tracing::warn!(
                        key = %breaker.key, %error,
                        "failed to read or update a circuit breaker; retrying"
                    );
                    self.core.env.sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(5));
                }
            }
        }
    }

    /// Reports the outcome of a call. A failure that a retry cannot fix is the caller's fault and does
    /// not count: the callee has answered.
    pub(crate) async fn report(
        &self,
        task: &Task,
        breaker: &TaskBreaker,
        permit: Permit,
        result: &TaskResult,
    ) {
        let policy = &breaker.policy;
        let reported = match result {
            Err(failure) if failure.is_rate_limited() => {
                let after = failure.retry_after.unwrap_or_default();
                let wait = |state: &mut Breaker, now: Timestamp| {
                    state.wait_until(permit, now.plus(after));
                };
                self.decide(&task.namespace, &breaker.key, wait).await
            }
            Err(failure) if failure.retryable => {
                let fail = |state: &mut Breaker, now| state.failed(policy, permit, now);
                self.decide(&task.namespace, &breaker.key, fail).await
            }
            _ if matches!(permit, Permit::Probe(_)) => {
                let succeed = |state: &mut Breaker, _| {
                    state.succeeded(policy, permit);
                    state.status()
                };
                let status = self.decide(&task.namespace, &breaker.key, succeed).await;
                status.map(|status| self.probed(task, breaker, status))
            }
            _ => Ok(()),
        };
        if let Err(error) = reported {
            tracing::warn!(key = %breaker.key, %error, "failed to report a call to a circuit breaker");
        }
    }

    // After a successful probe: the tasks that wait for the breaker begin if it is closed; otherwise
    // one of them is the next probe.
    fn probed(&self, task: &Task, breaker: &TaskBreaker, status: BreakerStatus) {
        let max = match status {
            BreakerStatus::Closed => usize::MAX,
            BreakerStatus::HalfOpen => 1,
            BreakerStatus::Open => return,
        };
        self.refusals.clear();
        let (core, key) = (Arc::clone(&self.core), breaker.key.clone());
        let namespace = task.namespace.clone();
        let work = async move {
            let until = core.env.sleep(REFUSED_FOR);
            core.lifecycle.until_stopped(until).await;
            if let Err(error) = release_waiting(&core, &namespace, &key, max).await {
                tracing::debug!(
                    %key, %error,
                    "failed to release the tasks that wait for a circuit breaker; they ask again later"
                );
            }
        };
        self.core.env.spawn(ThreadPool::Service, Box::pin(work));
    }

    /// Reports that a call which the breaker permitted was not made.
    pub(crate) async fn not_called(&self, task: &Task, breaker: &TaskBreaker, permit: Permit) {
        if !matches!(permit, Permit::Probe(_)) {
            return;
        }
        let leave = |state: &mut Breaker, _| state.not_called(permit);
        if let Err(error) = self.decide(&task.namespace, &breaker.key, leave).await {
            tracing::warn!(key = %breaker.key, %error, "failed to report a call to a circuit breaker");
        }
    }

    /// A page of the breakers of a namespace, by key.
    pub(crate) async fn page(
        &self,
        namespace: Namespace,
        after: Option<LimitKey>,
        limit: u32,
    ) -> Result<Vec<BreakerRow>, Error> {
        self.core.store.list(Query::Breakers { namespace, after, limit }).await?.breakers()
    }

    /// Closes a breaker and makes the tasks due that wait for it. `false` if there is none with this
    /// key.
    pub(crate) async fn reset(&self, namespace: &Namespace, key: &LimitKey) -> Result<bool, Error> {
        if self.core.store.breaker(namespace.clone(), key.clone()).await?.0.is_none() {
            return Ok(false);
        }
        let reset = |state: &mut Breaker, _| *state = Breaker::default();
        self.decide(namespace, key, reset).await.map_err(after_write)?;
        self.refusals.clear();
        // Other processes may postpone tasks by an answer that they got before the reset.
        self.core.env.sleep(REFUSED_FOR).await;
        release_waiting(&self.core, namespace, key, usize::MAX).await.map_err(after_write)?;
        Ok(true)
    }

    // Optimistic update of the store's row: repeats if another process has changed it meanwhile.
    async fn decide<T>(
        &self,
        namespace: &Namespace,
        key: &LimitKey,
        mut decide: impl FnMut(&mut Breaker, Timestamp) -> T,
    ) -> Result<T, Error> {
        for _ in 0..ATTEMPTS_MAX {
            let (row, now) = self.core.store.breaker(namespace.clone(), key.clone()).await?;
            let before = Breaker::of(row.as_ref())?;
            let mut state = before.clone();
            let decided = decide(&mut state, now);
            if state == before {
                return Ok(decided);
            }
            if state.status() != before.status() {
                let (from, to) = (before.status(), state.status());
                tracing::info!(%key, %from, %to, "circuit breaker changed its state");
            }
            let next = state.row(namespace.clone(), key.clone(), row.as_ref(), now)?;
            let opens = opened(&before, &state);
            if self.core.store.swap_breaker(next).await? {
                self.core.metrics.breaker_opens.add(u64::from(opens));
                return Ok(decided);
            }
            self.core
                .env
                .sleep(RETRY_DELAY.mul_f64(1.0 + (self.core.env.random() % 100) as f64 / 50.0))
                .await;
        }
        let message =
            format!("other processes changed circuit breaker {key:?} {ATTEMPTS_MAX} times; retry");
        Err(Error::new(ErrorKind::Unavailable, ErrorCode::BreakerBusy, message))
    }
}

/// The breaker that a task waits for, if it does not let calls through.
pub(crate) async fn refusing(core: &Core, task: &Task) -> Result<Option<BreakerRow>, Error> {
    let Some(breaker) = breaker_of(task) else { return Ok(None) };
    let (row, now) = core.store.breaker(task.namespace.clone(), breaker.key).await?;
    Ok(row.filter(|row| {
        row.status != BreakerStatus::Closed || row.retry_at.is_some_and(|at| at > now)
    }))
}

fn breaker_of(task: &Task) -> Option<TaskBreaker> {
    let body: Option<TaskBody> = task.body.as_ref().and_then(|body| body.read().ok());
    body.and_then(|body| body.breaker)
}

// Makes at most `max` scheduled tasks behind a breaker due now: those that were postponed by it, and
// those that wait for their next attempt, because the callee is available again. A task that a worker
// claims meanwhile is left to it.
async fn release_waiting(
    core: &Core,
    namespace: &Namespace,
    key: &LimitKey,
    max: usize,
) -> Result<(), Error> {
    let limit = core.options.limits.page_rows_max;
    let (mut scanned, mut released) = (0, 0);
    let mut after = None;
    loop {
        let state = Some(TaskState::Scheduled);
        let query = TasksQuery { state, after, ..TasksQuery::all(namespace.clone(), limit) };
        let page = core.store.list(Query::Tasks(query)).await?.tasks()?;
        after = page.last().map(|task| task.task_id);
        scanned += page.len();
        let is_behind = |task: &&Task| breaker_of(task).is_some_and(|found| found.key == *key);
        let waiting = page.iter().filter(is_behind).take(max - released);
        let commits: Vec<Commit> = waiting.map(due_now).collect();
        released += commits.len();
        if !commits.is_empty() {
            for result in core.store.commit(commits).await {
                match result {
                    Ok(_) | Err(CommitError::Conflict(_)) => {}
                    Err(error) => tracing::debug!(%key, %error, "a task stays postponed"),
                }
            }
        }
        if page.len() < limit as usize || released >= max || scanned >= SCANNED_MAX {
            return Ok(());
        }
    }
}

fn due_now(task: &Task) -> Commit {
    let change = Reschedule {
        task_id: task.task_id,
        wake: Wake::Now,
        attempt: task.attempt,
        errors: None,
        untried: true,
    };
    let ops = vec![Op::Reschedule(Box::new(change))];
    Commit::new(None, Some(TaskGuard::unchanged(task)), ops)
}

fn opened(before: &Breaker, after: &Breaker) -> bool {
    after.status() == BreakerStatus::Open && before.status() != BreakerStatus::Open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_cached_for_a_moment_and_not_beyond_its_time() {
        let key = || (Namespace::default_namespace(), LimitKey::new("k").unwrap());
        let (ms, at) = (Duration::from_millis, |ms: i64| Timestamp::from_micros(ms * 1_000));
        let refusals = Refusals::default();
        assert_eq!(refusals.get(&key(), ms(0), at(0)), None);
        refusals.insert(key(), ms(1_000), at(9_000));
        assert_eq!(refusals.get(&key(), ms(1_249), at(5_000)), Some(at(9_000)));
        assert_eq!(refusals.get(&key(), ms(1_250), at(5_000)), None, "the store is asked again");
        assert_eq!(refusals.get(&key(), ms(1_100), at(9_000)), None, "its time has come");
        refusals.clear();
        assert_eq!(refusals.get(&key(), ms(1_100), at(5_000)), None);
    }
}
