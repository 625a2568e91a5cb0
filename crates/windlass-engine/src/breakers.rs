//! Circuit breakers in front of attempts: the kernel decides, the store keeps what all processes know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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
/// How long a process may refuse calls by what the store has said before.
const REFUSED_FOR: Duration = Duration::from_millis(250);

/// The breaker in front of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskBreaker {
    /// What is called: tasks with the same key share a breaker.
    pub key: LimitKey,
    /// When it opens and closes.
    pub policy: BreakerPolicy,
}

/// What the store has just said is not to be called. For a moment it is not asked again; that a call is
/// allowed is never remembered.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<(Namespace, LimitKey), Refusal>>);

struct Refusal {
    heard: Duration,
    until: Timestamp,
}

impl Refusals {
    fn heard(&self, key: (Namespace, LimitKey), heard: Duration, until: Timestamp) {
        let mut refusals = self.0.lock();
        refusals.retain(|_, refusal| heard.saturating_sub(refusal.heard) < REFUSED_FOR);
        refusals.insert(key, Refusal { heard, until });
    }

    fn still(
        &self,
        key: &(Namespace, LimitKey),
        elapsed: Duration,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let refusals = self.0.lock();
        let refusal = refusals.get(key)?;
        let fresh = elapsed.saturating_sub(refusal.heard) < REFUSED_FOR;
        (fresh && now < refusal.until).then_some(refusal.until)
    }

    fn forget(&self) {
        self.0.lock().clear();
    }
}

impl Inner {
    /// Whether a task's attempt may begin. No answer of the store is no permission.
    pub(crate) async fn permit(&self, task: &Task, breaker: &TaskBreaker, max: Duration) -> Permit {
        let mut delay = AGAIN;
        let key = (task.namespace.clone(), breaker.key.clone());
        if let Some(until) = self.refusals.still(&key, self.env.elapsed(), self.clock.now()) {
            return Permit::Wait(until);
        }
        loop {
            let decide =
                |state: &mut Breaker, now| state.permit(&breaker.policy, self.worker, max, now);
            match self.decide(&task.namespace, &breaker.key, decide).await {
                Ok(Permit::Wait(until)) => {
                    self.refusals.heard(key, self.env.elapsed(), until);
                    return Permit::Wait(until);
                }
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
            _ if matches!(permit, Permit::Probe(_)) => {
                let succeed = |state: &mut Breaker, _| state.succeeded(policy, permit);
                self.decide(&task.namespace, &breaker.key, succeed).await
            }
            _ => Ok(()),
        };
        if let Err(error) = reported {
            tracing::warn!(key = %breaker.key, %error, "a breaker was not told of a call");
        }
    }

    /// Tells a breaker that a call which it let through is not made.
    pub(crate) async fn not_called(&self, task: &Task, breaker: &TaskBreaker, permit: Permit) {
        if !matches!(permit, Permit::Probe(_)) {
            return;
        }
        let leave = |state: &mut Breaker, _| state.not_called(permit);
        if let Err(error) = self.decide(&task.namespace, &breaker.key, leave).await {
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
        inner.refusals.forget();
        self.wake();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_for_a_moment_and_not_beyond_its_time() {
        let key = || (Namespace::default_namespace(), LimitKey::new("k").unwrap());
        let (ms, at) = (Duration::from_millis, |ms: i64| Timestamp::from_micros(ms * 1_000));
        let refusals = Refusals::default();
        assert_eq!(refusals.still(&key(), ms(0), at(0)), None);
        refusals.heard(key(), ms(1_000), at(9_000));
        assert_eq!(refusals.still(&key(), ms(1_249), at(5_000)), Some(at(9_000)));
        assert_eq!(refusals.still(&key(), ms(1_250), at(5_000)), None, "the store is asked again");
        assert_eq!(refusals.still(&key(), ms(1_100), at(9_000)), None, "its time has come");
        refusals.forget();
        assert_eq!(refusals.still(&key(), ms(1_100), at(5_000)), None);
    }
}
