//! Rates in front of attempts: the kernel decides, the store keeps what all processes have used up.
//!
//! An attempt asks for each of its keys. Those that ask at the same time are one request, so that a
//! rate costs a process one call at a time. A key without a rate is remembered until the store says that
//! something has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use windlass_kernel::{
    Error, ErrorKind, LimitKey, Namespace, Rate, RateRow, RateSlot, Task, Timestamp,
};

use crate::engine::{Engine, Inner};
use crate::env::Lane;

const TRIES_MAX: u32 = 100;
const AGAIN: Duration = Duration::from_millis(2);
/// How many keys without a rate are remembered.
const FREE_MAX: usize = 10_000;

type Key = (Namespace, LimitKey);

#[derive(Default)]
struct Free {
    keys: BTreeSet<Key>,
    // How often it was forgotten: an answer from before does not count.
    changes: u64,
}

#[derive(Default)]
pub(crate) struct Rates {
    free: Mutex<Free>,
    // Those that wait for an answer, by key; as long as a key is here, somebody asks for them.
    asking: Mutex<BTreeMap<Key, Vec<Asking>>>,
}

struct Asking {
    put_back: bool,
    answer: oneshot::Sender<Option<RateSlot>>,
}

impl Rates {
    /// What was known of keys may be wrong.
    pub(crate) fn forget(&self) {
        let mut free = self.free.lock();
        free.keys.clear();
        free.changes += 1;
    }

    fn is_free(&self, key: &Key, changes: u64) {
        let mut free = self.free.lock();
        if free.changes == changes {
            if free.keys.len() >= FREE_MAX {
                free.keys.clear();
            }
            free.keys.insert(key.clone());
        }
    }
}

// The most special one first: whoever is held up by it has used up no slot of those that others wait
// for, too.
fn keys(task: &Task) -> Vec<LimitKey> {
    let shared = [activity_key(task.name.as_str()), queue_key(task.queue.as_str())];
    task.limit_key.clone().into_iter().chain(shared).collect()
}

fn queue_key(queue: &str) -> LimitKey {
    LimitKey::from_stored(format!("queue:{queue}"))
}

fn activity_key(name: &str) -> LimitKey {
    LimitKey::from_stored(format!("activity:{name}"))
}

impl Inner {
    /// Waits until an attempt may begin. An answer is the time to which it is to be put back.
    pub(crate) async fn rate(self: &Arc<Self>, task: &Task) -> Option<Timestamp> {
        let put_back = task.due_at.is_some_and(|due| due > task.created_at);
        let mut begin = None;
        for key in keys(task) {
            let key = (task.namespace.clone(), key);
            if self.rates.free.lock().keys.contains(&key) {
                continue;
            }
            match self.ask_rate(key, put_back).await {
                Some(RateSlot::Later(until)) => return Some(until),
                Some(RateSlot::At(at)) => begin = begin.max(Some(at)),
                None => {}
            }
        }
        let wait = begin.map(|begin| begin.since(self.clock.now())).unwrap_or_default();
        if !wait.is_zero() {
            self.env.sleep(wait).await;
        }
        None
    }

    async fn ask_rate(self: &Arc<Self>, key: Key, put_back: bool) -> Option<RateSlot> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut asking = self.rates.asking.lock();
            let is_first = !asking.contains_key(&key);
            asking.entry(key.clone()).or_default().push(Asking { put_back, answer });
            is_first
        };
        if is_first {
            self.env.spawn(Lane::Service, Box::pin(Arc::clone(self).ask_for_all(key)));
        }
        // Without an answer the engine is stopping, and so is whoever asked.
        answered.await.ok().flatten()
    }

    async fn ask_for_all(self: Arc<Self>, key: Key) {
        let mut delay = AGAIN;
        while !self.is_stopped() {
            let mut asking = {
                let mut all = self.rates.asking.lock();
                let asking = all.get_mut(&key).map(std::mem::take).unwrap_or_default();
                if asking.is_empty() {
                    all.remove(&key);
                    return;
                }
                asking
            };
            asking.sort_by_key(|asking| !asking.put_back);
            let put_back = asking.iter().filter(|asking| asking.put_back).count();
            let fresh = asking.len() - put_back;
            let take = |row: &mut RateRow, now| {
                (!row.is_idle(now)).then(|| row.take(now, put_back, fresh))
            };
            let changes = self.rates.free.lock().changes;
            match self.change_rate(&key, false, take).await {
                Ok(None) => {
                    self.rates.is_free(&key, changes);
                    for asking in asking {
                        let _ = asking.answer.send(None);
                    }
                }
                Ok(Some(slots)) => {
                    for (asking, slot) in asking.into_iter().zip(slots) {
                        let _ = asking.answer.send(Some(slot));
                    }
                }
                Err(error) => {
                    // No answer of the store is no permission.
                    tracing::warn!(key = %key.1, %error, "a rate cannot be asked");
                    self.rates.asking.lock().entry(key.clone()).or_default().extend(asking);
                    self.env.sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(5));
                }
            }
        }
        self.rates.asking.lock().remove(&key);
    }

    /// A callee said that nothing is to be tried before a time: that holds for all workers.
    pub(crate) async fn close_key(&self, task: &Task, after: Duration) {
        let key = task.limit_key.clone().unwrap_or_else(|| activity_key(task.name.as_str()));
        let key = (task.namespace.clone(), key);
        let close = |row: &mut RateRow, now: Timestamp| row.close_until(now.plus(after));
        if let Err(error) = self.change_rate(&key, true, close).await {
            tracing::warn!(key = %key.1, %error, "that a callee is to be left alone was not written");
        }
    }

    /// The rate under which a task was put back, if there is one that holds it.
    pub(crate) async fn holding_rate(&self, task: &Task) -> Result<Option<LimitKey>, Error> {
        for key in keys(task) {
            let (row, now) = self.store.rate(task.namespace.clone(), key.clone()).await?;
            if row.is_some_and(|row| row.next(now) > now || row.queued_until > now) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    // Decides on the store's row until nobody else has changed it meanwhile.
    async fn change_rate<T>(
        &self,
        (namespace, key): &Key,
        tell: bool,
        mut change: impl FnMut(&mut RateRow, Timestamp) -> T,
    ) -> Result<T, Error> {
        for _ in 0..TRIES_MAX {
            let (found, now) = self.store.rate(namespace.clone(), key.clone()).await?;
            let before = found.unwrap_or_else(|| RateRow::new(namespace.clone(), key.clone()));
            let mut row = before.clone();
            let changed = change(&mut row, now);
            if row == before {
                return Ok(changed);
            }
            row.version += 1;
            if self.store.swap_rate(row, tell).await? {
                return Ok(changed);
            }
            self.env.sleep(AGAIN.mul_f64(1.0 + (self.env.random() % 100) as f64 / 50.0)).await;
        }
        let message = format!("the rate of {key:?} is changed by others all the time");
        Err(Error::new(ErrorKind::Unavailable, "RATE_BUSY", message))
    }
}

impl Engine {
    /// Sets how often attempts at tasks under a key of the user's may begin, over all processes; `None`
    /// lifts the rate. What does not fit waits without spending an attempt.
    pub async fn set_rate(&self, key: impl AsRef<str>, rate: Option<Rate>) -> Result<(), Error> {
        let key = LimitKey::with_limits(key, &self.options().limits)?;
        self.put_rate(key, rate).await
    }

    /// As [`Engine::set_rate`], for all tasks of a queue.
    pub async fn set_queue_rate(&self, queue: &str, rate: Option<Rate>) -> Result<(), Error> {
        self.put_rate(queue_key(queue), rate).await
    }

    /// As [`Engine::set_rate`], for all activities of a type.
    pub async fn set_activity_rate(&self, name: &str, rate: Option<Rate>) -> Result<(), Error> {
        self.put_rate(activity_key(name), rate).await
    }

    async fn put_rate(&self, key: LimitKey, rate: Option<Rate>) -> Result<(), Error> {
        rate.as_ref().map(Rate::validate).transpose()?;
        let key = (self.namespace.clone(), key);
        self.inner.change_rate(&key, true, |row, _| row.set(rate.as_ref())).await?;
        self.inner.rates.forget();
        Ok(())
    }
}
