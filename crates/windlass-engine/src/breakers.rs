//! Circuit breakers in front of attempts: the kernel decides, the store keeps the state that all
//! processes share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Breaker, BreakerPolicy, BreakerRow, BreakerStatus, Error, ErrorCode, ErrorKind, LimitKey,
    Namespace, Permit, Query, Task, Timestamp,
};

use crate::core::{Core, after_write};
use crate::engine::Engine;
use crate::tasks::TaskResult;

/// How often an update is repeated because another process changed the breaker meanwhile.
const ATTEMPTS_MAX: u32 = 100;
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// How long a process refuses calls by a cached answer of the store.
const REFUSED_FOR: Duration = Duration::from_millis(250);

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
                let succeed = |state: &mut Breaker, _| state.succeeded(policy, permit);
                self.decide(&task.namespace, &breaker.key, succeed).await
            }
            _ => Ok(()),
        };
        if let Err(error) = reported {
            tracing::warn!(key = %breaker.key, %error, "failed to report a call to a circuit breaker");
        }
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

    async fn reset(&self, namespace: &Namespace, key: &LimitKey) -> Result<(), Error> {
        let reset = |state: &mut Breaker, _| *state = Breaker::default();
        self.decide(namespace, key, reset).await?;
        self.refusals.clear();
        Ok(())
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
        self.parts.breakers().reset(&self.namespace, &key).await.map_err(after_write)?;
        self.wake();
        Ok(true)
    }
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
