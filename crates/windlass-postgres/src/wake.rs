//! Wake-ups: listeners of this process are called at once, others hear through NOTIFY.
//!
//! NOTIFY takes a lock of the whole server when it commits, so it never rides in a commit of
//! work: one task sends what has gathered in one statement, and the more there was the longer it waits
//! for more, up to a few milliseconds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;
use windlass_kernel::{QueueName, Route, RouteName, Timestamp, WakeSink, Wakeup};

use crate::error::said;
use crate::options::Connector;
use crate::store::Shared;

/// PostgreSQL takes less than 8,000 bytes.
const PAYLOAD_BYTES_MAX: usize = 7_900;

/// So many payloads are sent at once, which name about 3,000 runs. What does not go into them is one
/// word, for which listeners look at everything: by then that is cheaper than to read so many names.
const PAYLOADS_MAX: usize = 16;

/// The rest after a statement, for each wake-up that came into it. A single wake-up now and then never waits;
/// where more than one comes in each millisecond, they gather.
const REST_EACH: Duration = Duration::from_millis(1);

/// Where wake-ups go.
pub(crate) struct Waker {
    sinks: Mutex<Vec<WakeSink>>,
    // What others have not been told yet, in the form of a payload's lines.
    pending: Mutex<BTreeSet<String>>,
    // How many came since the last statement, the same ones too.
    gathered: AtomicU32,
    due: Mutex<Option<Timestamp>>,
    rung: Notify,
    notify: bool,
    // Tells our own notifications from those of others.
    origin: String,
}

impl Waker {
    pub(crate) fn new(notify: bool) -> Self {
        let origin = uuid_like();
        Self {
            sinks: Mutex::default(),
            pending: Mutex::default(),
            gathered: AtomicU32::new(0),
            due: Mutex::default(),
            rung: Notify::new(),
            notify,
            origin,
        }
    }

    /// Adds a listener.
    pub(crate) fn add(&self, sink: WakeSink) {
        lock(&self.sinks).push(sink);
    }

    /// Forgets all listeners: one may own the store, and would keep it open for ever.
    pub(crate) fn clear(&self) {
        lock(&self.sinks).clear();
    }

    /// Tells the listeners here, and later those elsewhere.
    pub(crate) fn publish(&self, wakeups: Vec<Wakeup>) {
        if wakeups.is_empty() {
            return;
        }
        if self.notify {
            self.gather(&wakeups);
        }
        self.tell(&wakeups);
    }

    fn tell(&self, wakeups: &[Wakeup]) {
        let sinks = lock(&self.sinks).clone();
        for sink in &sinks {
            for wakeup in wakeups {
                sink(wakeup.clone());
            }
        }
    }

    fn gather(&self, wakeups: &[Wakeup]) {
        let mut pending = lock(&self.pending);
        for wakeup in wakeups {
            match wakeup {
                // The first of many due times is enough: the others are found when it comes.
                Wakeup::Due(at) => {
                    let mut due = lock(&self.due);
                    *due = Some(due.map_or(*at, |due| due.min(*at)));
                }
                other => {
                    pending.insert(line(other));
                }
            }
        }
        drop(pending);
        self.gathered
            .fetch_add(u32::try_from(wakeups.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.rung.notify_one();
    }

    // What has gathered, as payloads; none if nothing has.
    fn payloads(&self) -> Vec<String> {
        let pending = std::mem::take(&mut *lock(&self.pending));
        let due = lock(&self.due).take().map(|at| line(&Wakeup::Due(at)));
        let mut payloads: Vec<String> = Vec::new();
        for line in pending.iter().chain(due.iter()) {
            let fits = |payload: &String| payload.len() + 1 + line.len() <= PAYLOAD_BYTES_MAX;
            if !payloads.last().is_some_and(fits) {
                if payloads.len() == PAYLOADS_MAX {
                    return vec![format!("{}\n{}", self.origin, line_missed())];
                }
                payloads.push(self.origin.clone());
            }
            if let Some(payload) = payloads.last_mut() {
                payload.push('\n');
                payload.push_str(line);
            }
        }
        payloads
    }

    fn heard(&self, payload: &str) {
        let mut lines = payload.split('\n');
        if lines.next() == Some(self.origin.as_str()) {
            return;
        }
        let wakeups: Vec<Wakeup> =
            lines.map(|line| parse(line).unwrap_or(Wakeup::Missed)).collect();
        self.tell(&wakeups);
    }
}

// A name for this process among those that share a channel; nothing but luck is asked of it.
fn uuid_like() -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{random:016x}")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// Names hold no control characters, so a tab ends a queue's name and a newline a line.
fn line(wakeup: &Wakeup) -> String {
    match wakeup {
        Wakeup::Turn(route) => format!("r{}\t{}", route.queue, route.name),
        Wakeup::Task(route) => format!("t{}\t{}", route.queue, route.name),
        Wakeup::Due(at) => format!("d{}", at.as_micros()),
        Wakeup::Control(run_key) => format!("c{run_key}"),
        Wakeup::Drain(worker) => format!("w{worker}"),
        Wakeup::Missed => line_missed(),
    }
}

fn line_missed() -> String {
    "m".to_owned()
}

fn parse(line: &str) -> Option<Wakeup> {
    let (kind, rest) = line.split_at_checked(1)?;
    let route = || {
        let (queue, name) = rest.split_once('\t')?;
        let queue = QueueName::from_stored(queue);
        Some(Route { queue, name: RouteName::from_stored(name) })
    };
    match kind {
        "r" => route().map(Wakeup::Turn),
        "t" => route().map(Wakeup::Task),
        "c" => rest.parse().ok().map(Wakeup::Control),
        "w" => rest.parse().ok().map(Wakeup::Drain),
        "d" => Some(Wakeup::Due(Timestamp::from_micros(rest.parse().ok()?))),
        _ => None,
    }
}

/// The channel of a schema.
pub(crate) fn channel(schema: &str) -> String {
    format!("windlass_{schema}")
}

/// Sends payloads.
pub(crate) const NOTIFY: &str = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) payload";

/// Sends what gathers, until it is aborted.
pub(crate) async fn notify_loop(shared: Arc<Shared>) {
    let channel = channel(&shared.options.schema);
    loop {
        shared.waker.rung.notified().await;
        let payloads = shared.waker.payloads();
        if payloads.is_empty() {
            continue;
        }
        let count = shared.waker.gathered.swap(0, Ordering::Relaxed);
        // A hint that is lost is found by the next safety scan; commits must not wait for it.
        if let Err(error) = shared.query(NOTIFY, &[&channel, &payloads]).await {
            tracing::debug!(%error, "a wake-up was not sent");
        }
        tokio::time::sleep(rest(count, shared.options.notify_every)).await;
    }
}

fn rest(gathered: u32, max: Duration) -> Duration {
    REST_EACH.saturating_mul(gathered).min(max)
}

/// Listens, and listens again when the connection is lost, until it is aborted.
pub(crate) async fn listen_loop(shared: Arc<Shared>) {
    let channel = channel(&shared.options.schema);
    let mut pause = Duration::from_millis(50);
    loop {
        match listen_once(&shared.connector, &channel, &shared.waker).await {
            Ok(()) => pause = Duration::from_millis(50),
            Err(error) => tracing::warn!(error, "LISTEN is down"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

// Ends when the connection does; `Ok` if it had been up.
async fn listen_once(connector: &Connector, channel: &str, waker: &Waker) -> Result<(), String> {
    let (client, messages) = connector.connect().await.map_err(|error| error.to_string())?;
    let listen = async {
        let sql = format!("LISTEN \"{channel}\"");
        client.batch_execute(&sql).await.map_err(|error| said(&error))?;
        // Whatever happened before LISTEN was up was not heard.
        waker.tell(&[Wakeup::Missed]);
        Ok::<_, String>(())
    };
    let heard =
        messages.take_while(|message| std::future::ready(message.is_ok())).for_each(|message| {
            if let Ok(AsyncMessage::Notification(notification)) = message {
                waker.heard(notification.payload());
            }
            std::future::ready(())
        });
    tokio::pin!(heard);
    // The connection works only while its messages are polled.
    tokio::select! {
        result = listen => result?,
        () = &mut heard => return Err("the connection was closed".to_owned()),
    }
    heard.await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back() {
        let route = || Route {
            queue: QueueName::new("default").unwrap(),
            name: RouteName::new("Größe \u{2028}漢字").unwrap(),
        };
        let due = Wakeup::Due(Timestamp::from_micros(42));
        let control = Wakeup::Control(windlass_kernel::RunKey(uuid::Uuid::from_u128(7)));
        let drain = Wakeup::Drain(windlass_kernel::WorkerKey(uuid::Uuid::from_u128(8)));
        for wakeup in [Wakeup::Turn(route()), Wakeup::Task(route()), due, control, drain] {
            assert_eq!(parse(&line(&wakeup)), Some(wakeup));
        }
        assert_eq!(parse(""), None);
        assert_eq!(parse("x"), None);
        assert_eq!(parse("dnever"), None);
    }

    #[test]
    fn one_wakeup_does_not_wait_and_many_gather() {
        let max = Duration::from_millis(5);
        for (gathered, expect_ms) in [(0, 0), (1, 1), (3, 3), (5, 5), (1_000, 5), (u32::MAX, 5)] {
            assert_eq!(rest(gathered, max), Duration::from_millis(expect_ms));
        }
    }

    #[test]
    fn many_wakeups_are_few_payloads_and_too_many_are_one_word() {
        let waker = Waker::new(true);
        let route = |n: usize| Route {
            queue: QueueName::new("default").unwrap(),
            name: RouteName::new(format!("workflow-{n}")).unwrap(),
        };
        let due = |micros| Wakeup::Due(Timestamp::from_micros(micros));
        waker.publish(vec![Wakeup::Turn(route(1)), Wakeup::Turn(route(1)), due(9), due(7)]);
        let payloads = waker.payloads();
        assert_eq!(payloads.len(), 1, "{payloads:?}");
        assert!(payloads[0].ends_with("\nrdefault\tworkflow-1\nd7"), "{payloads:?}");
        assert!(waker.payloads().is_empty());

        // Requests of many runs are told by name, so that whoever holds them need not look for them.
        let key = |n: u128| windlass_kernel::RunKey(uuid::Uuid::from_u128(n));
        waker.publish((0..2_000).map(|n| Wakeup::Control(key(n))).collect());
        let payloads = waker.payloads();
        assert!(payloads.iter().all(|payload| payload.len() <= PAYLOAD_BYTES_MAX));
        let lines = payloads.iter().flat_map(|payload| payload.split('\n').skip(1));
        let told: BTreeSet<String> = lines.map(str::to_owned).collect();
        assert_eq!(told, (0..2_000).map(|n| line(&Wakeup::Control(key(n)))).collect());

        waker.publish((0..10_000).map(|n| Wakeup::Task(route(n))).collect());
        assert_eq!(waker.payloads(), [format!("{}\nm", waker.origin)]);
    }
}
