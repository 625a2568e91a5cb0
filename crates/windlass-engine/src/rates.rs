//! Rates in front of attempts: the kernel decides, the store keeps the state that all processes share.
//!
//! An attempt needs a permission for each of its keys. Attempts that ask for one key at the same time
//! share one request, so a process sends at most one request for each key at a time. A key without a
//! rate is cached until the store reports a change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use windlass_kernel::{
    Error, ErrorCode, ErrorKind, LimitKey, Namespace, Rate, RateDecision, RateRow, Task, Timestamp,
};

use crate::core::Core;
use crate::env::ThreadPool;

const TRIES_MAX: u32 = 100;
const RETRY_DELAY: Duration = Duration::from_millis(2);
/// How many keys without a rate are cached.
const UNLIMITED_MAX: usize = 10_000;

type Key = (Namespace, LimitKey);

pub(crate) struct Rates {
    core: Arc<Core>,
    unlimited: Mutex<Unlimited>,
    // The attempts that wait for an answer, by key. As long as a key is here, a task asks the store.
    waiting: Mutex<BTreeMap<Key, Vec<Waiter>>>,
}

/// Keys without a rate.
#[derive(Default)]
struct Unlimited {
    keys: BTreeSet<Key>,
    // How often the keys were cleared: an answer from before a clearing is not cached.
    version: u64,
}

struct Waiter {
    // The attempt was postponed before, so it comes before new ones.
    postponed: bool,
    answer: oneshot::Sender<Option<RateDecision>>,
}

impl Unlimited {
    fn clear(&mut self) {
        self.keys.clear();
        self.version += 1;
    }

    fn insert(&mut self, key: &Key, version: u64) {
        if self.version == version {
            if self.keys.len() >= UNLIMITED_MAX {
                self.keys.clear();
            }
            self.keys.insert(key.clone());
        }
    }
}

// The most specific key first: a task that has to wait for it has used up nothing of the shared ones.
fn keys(task: &Task) -> Vec<LimitKey> {
    let shared = [activity_key(task.name.as_str()), queue_key(task.queue.as_str())];
    task.limit_key.clone().into_iter().chain(shared).collect()
}

pub(crate) fn queue_key(queue: &str) -> LimitKey {
    LimitKey::from_stored(format!("queue:{queue}"))
}

pub(crate) fn activity_key(name: &str) -> LimitKey {
    LimitKey::from_stored(format!("activity:{name}"))
}

impl Rates {
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self { core, unlimited: Mutex::default(), waiting: Mutex::default() })
    }

    /// Clears the cache: rates may have changed.
    pub(crate) fn clear_cache(&self) {
        self.unlimited.lock().clear();
    }

    /// Waits until an attempt may begin. Returns a time if the task is to be postponed to it.
    pub(crate) async fn wait(self: &Arc<Self>, task: &Task) -> Option<Timestamp> {
        let postponed = task.due_at.is_some_and(|due| due > task.created_at);
        let mut begin = None;
        for key in keys(task) {
            let key = (task.namespace.clone(), key);
            if self.unlimited.lock().keys.contains(&key) {
                continue;
            }
            match self.request(key, postponed).await {
                Some(RateDecision::Later(until)) => return Some(until),
                Some(RateDecision::At(at)) => begin = begin.max(Some(at)),
                None => {}
            }
        }
        let wait = begin.map(|begin| begin.since(self.core.clock.now())).unwrap_or_default();
        if !wait.is_zero() {
            self.core.env.sleep(wait).await;
        }
        None
    }

    async fn request(self: &Arc<Self>, key: Key, postponed: bool) -> Option<RateDecision> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting.lock();
            let is_first = !waiting.contains_key(&key);
            waiting.entry(key.clone()).or_default().push(Waiter { postponed, answer });
            is_first
        };
        if is_first {
            self.core
                .env
                .spawn(ThreadPool::Service, Box::pin(Arc::clone(self).request_for_all(key)));
        }
        // Without an answer the engine is stopping, and so is the attempt.
        answered.await.ok().flatten()
    }

    async fn request_for_all(self: Arc<Self>, key: Key) {
        let mut delay = RETRY_DELAY;
        while !self.core.lifecycle.is_stopped() {
            let mut waiters = {
                let mut waiting = self.waiting.lock();
                let waiters = waiting.get_mut(&key).map(std::mem::take).unwrap_or_default();
                if waiters.is_empty() {
                    waiting.remove(&key);
                    return;
                }
                waiters
            };
            waiters.sort_by_key(|waiter| !waiter.postponed);
            let postponed = waiters.iter().filter(|waiter| waiter.postponed).count();
            let fresh = waiters.len() - postponed;
            let take = |row: &mut RateRow, now| {
                (!row.is_idle(now)).then(|| row.take(now, postponed, fresh))
            };
            let version = self.unlimited.lock().version;
            match self.change(&key, false, take).await {
                Ok(None) => {
                    self.unlimited.lock().insert(&key, version);
                    for waiter in waiters {
                        let _ = waiter.answer.send(None);
                    }
                }
                Ok(Some(taken)) => {
                    for (waiter, permit) in waiters.into_iter().zip(taken) {
                        let _ = waiter.answer.send(Some(permit));
                    }
                }
                Err(error) => {
                    // An attempt must not begin without the store's permission.
                    tracing::warn!(key = %key.1, %error, "failed to read or update a rate; retrying");
                    self.waiting.lock().entry(key.clone()).or_default().extend(waiters);
                    self.core.env.sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(5));
                }
            }
        }
        self.waiting.lock().remove(&key);
    }

    /// Stores that a callee asked for no calls for a while. This applies to all workers.
    pub(crate) async fn back_off(&self, task: &Task, after: Duration) {
        let key = task.limit_key.clone().unwrap_or_else(|| activity_key(task.name.as_str()));
        let key = (task.namespace.clone(), key);
        let close = |row: &mut RateRow, now: Timestamp| row.block_until(now.plus(after));
        if let Err(error) = self.change(&key, true, close).await {
            tracing::warn!(key = %key.1, %error, "failed to store rate-limit backoff");
        }
    }

    /// Asks the store whether one call may begin; else how long it must wait at least. An answer is never
    /// cached, so a block counts from the next call on in every process.
    pub(crate) async fn ask(&self, key: &Key, again: bool) -> Result<Option<Duration>, Error> {
        let (postponed, fresh) = if again { (1, 0) } else { (0, 1) };
        let take = |row: &mut RateRow, now: Timestamp| {
            let decision = (!row.is_idle(now)).then(|| row.take(now, postponed, fresh))?.pop()?;
            let (RateDecision::At(at) | RateDecision::Later(at)) = decision;
            let is_reserved = matches!(decision, RateDecision::At(_));
            Some((is_reserved, at.since(now)))
        };
        match self.change(key, false, take).await? {
            None => Ok(None),
            Some((true, wait)) => {
                if !wait.is_zero() {
                    self.core.env.sleep(wait).await;
                }
                Ok(None)
            }
            Some((false, wait)) => Ok(Some(wait.max(RETRY_DELAY))),
        }
    }

    /// Blocks a key for a while, for all workers.
    pub(crate) async fn close(&self, key: &Key, after: Duration) -> Result<(), Error> {
        let close = |row: &mut RateRow, now: Timestamp| row.block_until(now.plus(after));
        self.change(key, true, close).await?;
        self.clear_cache();
        Ok(())
    }

    /// The key whose rate a postponed task waits for, if there is one.
    pub(crate) async fn limiting_key(&self, task: &Task) -> Result<Option<LimitKey>, Error> {
        for key in keys(task) {
            let (row, now) = self.core.store.rate(task.namespace.clone(), key.clone()).await?;
            if row.is_some_and(|row| row.next(now) > now || row.queued_until > now) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Sets or removes the rate of a key.
    pub(crate) async fn set(&self, key: Key, rate: Option<Rate>) -> Result<(), Error> {
        rate.as_ref().map(Rate::validate).transpose()?;
        self.change(&key, true, |row, _| row.set(rate.as_ref())).await?;
        self.clear_cache();
        Ok(())
    }

    // Optimistic update of the store's row: repeats if another process has changed it meanwhile.
    async fn change<T>(
        &self,
        (namespace, key): &Key,
        announce: bool,
        mut change: impl FnMut(&mut RateRow, Timestamp) -> T,
    ) -> Result<T, Error> {
        let Core { store, env, .. } = &*self.core;
        for _ in 0..TRIES_MAX {
            let (found, now) = store.rate(namespace.clone(), key.clone()).await?;
            let before = found.unwrap_or_else(|| RateRow::new(namespace.clone(), key.clone()));
            let mut row = before.clone();
            let changed = change(&mut row, now);
            if row == before {
                return Ok(changed);
            }
            row.version += 1;
            if store.swap_rate(row, announce).await? {
                return Ok(changed);
            }
            env.sleep(RETRY_DELAY.mul_f64(1.0 + (env.random() % 100) as f64 / 50.0)).await;
        }
        let message = format!("other processes changed the rate {key:?} {TRIES_MAX} times; retry");
        Err(Error::new(ErrorKind::Unavailable, ErrorCode::RateBusy, message))
    }
}

#[cfg(test)]
mod tests {
    use windlass_kernel::{QueueName, Route, RouteName, TaskId};

    use super::*;

    fn key(text: &str) -> Key {
        (Namespace::default_namespace(), LimitKey::from_stored(text))
    }

    #[test]
    fn the_most_specific_key_comes_first() {
        let route =
            Route { queue: QueueName::from_stored("mail"), name: RouteName::from_stored("send") };
        let (id, namespace) = (TaskId(uuid::Uuid::nil()), Namespace::default_namespace());
        let task = Task::new(id, namespace, "activity", route, Timestamp::ZERO);
        let limited = Task { limit_key: Some(LimitKey::from_stored("smtp")), ..task.clone() };
        for (task, expect) in [
            (task, vec!["activity:send", "queue:mail"]),
            (limited, vec!["smtp", "activity:send", "queue:mail"]),
        ] {
            let found = keys(&task);
            assert_eq!(found.iter().map(|key| key.as_str()).collect::<Vec<_>>(), expect);
        }
    }

    #[test]
    fn an_answer_from_before_a_clearing_is_not_cached() {
        let mut unlimited = Unlimited::default();
        let version = unlimited.version;
        unlimited.insert(&key("a"), version);
        assert!(unlimited.keys.contains(&key("a")));
        unlimited.clear();
        assert!(unlimited.keys.is_empty());
        unlimited.insert(&key("a"), version);
        assert!(unlimited.keys.is_empty(), "the answer is older than the clearing");
        for index in 0..=UNLIMITED_MAX {
            unlimited.insert(&key(&index.to_string()), unlimited.version);
        }
        assert_eq!(unlimited.keys.len(), 1, "a full cache starts over");
    }
}
