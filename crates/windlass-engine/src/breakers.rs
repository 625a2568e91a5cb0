//! Circuit breakers in front of attempts: the kernel decides, the store keeps what all processes know.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Breaker, BreakerPolicy, BreakerRow, BreakerStatus, Error, ErrorKind, LimitKey, Namespace,
    Permit, Query, Task, Timestamp,
};

use crate::engine::{Engine, Inner};
use crate::settle::RATE_LIMITED;
use crate::tasks::TaskResult;

/// How often a breaker that others change at the same time is decided again.
const ATTEMPTS_MAX: u32 = 100;
const AGAIN: Duration = Duration::from_millis(5);

/// The breaker in front of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskBreaker {
    /// What is called: tasks with the same key share a breaker.
    pub key: LimitKey,
    /// When it opens and closes.
    pub policy: BreakerPolicy,
}

impl Inner {
    /// Whether a task's attempt may begin. No answer of the store is no permission.
    pub(crate) async fn permit(&self, task: &Task, breaker: &TaskBreaker, max: Duration) -> Permit {
        let mut delay = AGAIN;
        loop {
            let decide =
                |state: &mut Breaker, now| state.permit(&breaker.policy, self.worker, max, now);
            match self.decide(&task.namespace, &breaker.key, decide).await {
                Ok(permit) => return permit,
                Err(error) => {
                    tracing::warn!(key = %breaker.key, %error, "a breaker cannot be asked");
                    self.env.sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(5));
                }
            }
        }
    }

    /// Tells a breaker what became of a call. Failures that no other attempt can help are the caller's
    /// fault: the callee has answered.
    pub(crate) async fn report(
        &self,
        task: &Task,
        breaker: &TaskBreaker,
        permit: Permit,
        result: &TaskResult,
    ) {
        let policy = &breaker.policy;
        let reported = match result {
            Err(failure) if failure.name == RATE_LIMITED => {
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
            _ if permit == Permit::Probe => {
                let succeed = |state: &mut Breaker, _| state.succeeded(policy, permit);
                self.decide(&task.namespace, &breaker.key, succeed).await
            }
            _ => Ok(()),
        };
        if let Err(error) = reported {
            tracing::warn!(key = %breaker.key, %error, "a breaker was not told of a call");
        }
    }

    // Decides on the store's state until nobody else has changed it meanwhile.
    async fn decide<T>(
        &self,
        namespace: &Namespace,
        key: &LimitKey,
        mut decide: impl FnMut(&mut Breaker, Timestamp) -> T,
    ) -> Result<T, Error> {
        for _ in 0..ATTEMPTS_MAX {
            let (row, now) = self.store.breaker(namespace.clone(), key.clone()).await?;
            let before = Breaker::of(row.as_ref())?;
            let mut state = before.clone();
            let decided = decide(&mut state, now);
            if state == before {
                return Ok(decided);
            }
            if state.status() != before.status() {
                tracing::info!(%key, from = %before.status(), to = %state.status(), "a breaker");
            }
            let next = state.row(namespace.clone(), key.clone(), row.as_ref(), now)?;
            let opens = opened(&before, &state);
            if self.store.swap_breaker(next).await? {
                self.metrics.breaker_opens.add(u64::from(opens));
                return Ok(decided);
            }
            self.env.sleep(AGAIN.mul_f64(1.0 + (self.env.random() % 100) as f64 / 50.0)).await;
        }
        let message = format!("breaker {key:?} is changed by others all the time");
        Err(Error::new(ErrorKind::Unavailable, "BREAKER_BUSY", message))
    }
}

fn opened(before: &Breaker, after: &Breaker) -> bool {
    after.status() == BreakerStatus::Open && before.status() != BreakerStatus::Open
}

impl Engine {
    /// The circuit breakers of this engine's namespace, by key.
    pub async fn breakers(
        &self,
        after: Option<LimitKey>,
        limit: u32,
    ) -> Result<Vec<BreakerRow>, Error> {
        let query = Query::Breakers { namespace: self.namespace.clone(), after, limit };
        self.store().list(query).await?.breakers()
    }

    /// Closes a circuit breaker. `false` if there is none with this key.
    pub async fn reset_breaker(&self, key: impl AsRef<str>) -> Result<bool, Error> {
        let key = LimitKey::with_limits(key, &self.options().limits)?;
        let found = self.store().breaker(self.namespace.clone(), key.clone()).await?.0;
        if found.is_none() {
            return Ok(false);
        }
        let inner: &Arc<Inner> = &self.inner;
        let reset = |state: &mut Breaker, _| *state = Breaker::default();
        inner.decide(&self.namespace, &key, reset).await?;
        self.wake();
        Ok(true)
    }
}
