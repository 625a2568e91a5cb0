//! Wake-ups: listeners of this process are called at once, other processes get a NOTIFY.
//!
//! NOTIFY takes a server-wide lock when its transaction commits, so it is never part of a commit of
//! the store. One task sends all collected wake-ups in one statement. The more wake-ups there were,
//! the longer it then collects more, up to a few milliseconds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;
use windlass_kernel::{QueueName, Route, RouteName, Timestamp, WakeSink, Wakeup};

use crate::error::error_text;
use crate::options::Connector;
use crate::store::Shared;

/// PostgreSQL accepts payloads of less than 8,000 bytes.
const PAYLOAD_BYTES_MAX: usize = 7_900;

/// The most payloads in one statement; they can name about 3,000 runs. If there are more, one
/// `Missed` is sent instead, because checking everything is then cheaper for listeners than reading
/// all names.
const PAYLOADS_MAX: usize = 16;

/// The pause after a statement for each wake-up in it. A single wake-up hardly waits; at more than
/// one per millisecond they are collected.
const PAUSE_EACH: Duration = Duration::from_millis(1);

/// Distributes wake-ups.
pub(crate) struct Waker {
    sinks: Mutex<Vec<WakeSink>>,
    // Wake-ups that were not sent yet, as lines of a payload.
    pending: Mutex<BTreeSet<String>>,
    // How many wake-ups came since the last statement, including duplicates.
    collected: AtomicU32,
    due: Mutex<Option<Timestamp>>,
    has_pending: Notify,
    notify: bool,
    // Identifies this process, to ignore its own notifications.
    origin: String,
}

impl Waker {
    pub(crate) fn new(notify: bool) -> Self {
        let origin = random_name();
        Self {
            sinks: Mutex::default(),
            pending: Mutex::default(),
            collected: AtomicU32::new(0),
            due: Mutex::default(),
            has_pending: Notify::new(),
            notify,
            origin,
        }
    }

    /// Adds a listener.
    pub(crate) fn add(&self, sink: WakeSink) {
        lock(&self.sinks).push(sink);
    }

    /// Removes all listeners. A listener may own the store, and keeping it would leak both.
    pub(crate) fn clear(&self) {
        lock(&self.sinks).clear();
    }

    /// Calls the listeners of this process, and queues a NOTIFY for the others.
    pub(crate) fn publish(&self, wakeups: Vec<Wakeup>) {
        if wakeups.is_empty() {
            return;
        }
        if self.notify {
            self.collect(&wakeups);
        }
        self.call_sinks(&wakeups);
    }

    fn call_sinks(&self, wakeups: &[Wakeup]) {
        let sinks = lock(&self.sinks).clone();
        for sink in &sinks {
            for wakeup in wakeups {
                // A panic in one listener must not keep wake-ups from the others.
                let call = std::panic::AssertUnwindSafe(|| sink(wakeup.clone()));
                if std::panic::catch_unwind(call).is_err() {
                    tracing::error!("a wake-up listener panicked");
                }
            }
        }
    }

    fn collect(&self, wakeups: &[Wakeup]) {
        let mut pending = lock(&self.pending);
        for wakeup in wakeups {
            match wakeup {
                // The first of many due times is enough; a promotion at that time finds the next
                // one.
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
        self.collected
            .fetch_add(u32::try_from(wakeups.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.has_pending.notify_one();
    }

    // Takes the collected wake-ups as payloads.
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

    fn receive(&self, payload: &str) {
        let mut lines = payload.split('\n');
        if lines.next() == Some(self.origin.as_str()) {
            return;
        }
        let wakeups: Vec<Wakeup> =
            lines.map(|line| parse(line).unwrap_or(Wakeup::Missed)).collect();
        self.call_sinks(&wakeups);
    }
}

// A random name of this process among those that share a channel.
fn random_name() -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{random:016x}")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// Names contain no control characters, so a tab ends a queue's name and a newline ends a line.
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

/// The NOTIFY channel of a schema.
pub(crate) fn channel(schema: &str) -> String {
    format!("windlass_{schema}")
}

/// Sends payloads.
pub(crate) const NOTIFY: &str = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) payload";

/// Sends collected wake-ups until it is aborted.
pub(crate) async fn notify_loop(shared: Arc<Shared>) {
    let channel = channel(&shared.options.schema);
    loop {
        shared.waker.has_pending.notified().await;
        let payloads = shared.waker.payloads();
        if payloads.is_empty() {
            continue;
        }
        let count = shared.waker.collected.swap(0, Ordering::Relaxed);
        // A lost wake-up is found by the next periodic scan; commits must not wait for it.
        if let Err(error) = shared.query(NOTIFY, &[&channel, &payloads]).await {
            tracing::debug!(%error, "failed to send wake-ups (NOTIFY)");
        }
        tokio::time::sleep(pause(count, shared.options.notify_every)).await;
    }
}

fn pause(collected: u32, max: Duration) -> Duration {
    PAUSE_EACH.saturating_mul(collected).min(max)
}

/// Listens, and reconnects when the connection is lost, until it is aborted.
pub(crate) async fn listen_loop(shared: Arc<Shared>) {
    let channel = channel(&shared.options.schema);
    let mut pause = Duration::from_millis(50);
    loop {
        match listen_once(&shared.connector, &channel, &shared.waker).await {
            Ok(()) => pause = Duration::from_millis(50),
            Err(error) => {
                tracing::warn!(error, "LISTEN failed; wake-ups of other processes are delayed")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

// Ends with the connection. `Ok` if LISTEN had succeeded.
async fn listen_once(connector: &Connector, channel: &str, waker: &Waker) -> Result<(), String> {
    let (client, messages) = connector.connect().await.map_err(|error| error.to_string())?;
    let listen = async {
        let sql = format!("LISTEN \"{channel}\"");
        client.batch_execute(&sql).await.map_err(|error| error_text(&error))?;
        // Wake-ups before LISTEN were missed.
        waker.call_sinks(&[Wakeup::Missed]);
        Ok::<_, String>(())
    };
    let receiving =
        messages.take_while(|message| std::future::ready(message.is_ok())).for_each(|message| {
            if let Ok(AsyncMessage::Notification(notification)) = message {
                waker.receive(notification.payload());
            }
            std::future::ready(())
        });
    tokio::pin!(receiving);
    // The connection makes progress only while its messages are polled.
    tokio::select! {
        result = listen => result?,
        () = &mut receiving => return Err("the connection was closed".to_owned()),
    }
    receiving.await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_parse_back() {
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
    fn one_wakeup_hardly_waits_and_many_are_collected() {
        let max = Duration::from_millis(5);
        for (collected, expect_ms) in [(0, 0), (1, 1), (3, 3), (5, 5), (1_000, 5), (u32::MAX, 5)] {
            assert_eq!(pause(collected, max), Duration::from_millis(expect_ms));
        }
    }

    #[test]
    fn many_wakeups_fit_few_payloads_and_too_many_become_missed() {
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

        // Control messages name their runs, so that the holders need not search for them.
        let key = |n: u128| windlass_kernel::RunKey(uuid::Uuid::from_u128(n));
        waker.publish((0..2_000).map(|n| Wakeup::Control(key(n))).collect());
        let payloads = waker.payloads();
        assert!(payloads.iter().all(|payload| payload.len() <= PAYLOAD_BYTES_MAX));
        let lines = payloads.iter().flat_map(|payload| payload.split('\n').skip(1));
        let sent: BTreeSet<String> = lines.map(str::to_owned).collect();
        assert_eq!(sent, (0..2_000).map(|n| line(&Wakeup::Control(key(n)))).collect());

        waker.publish((0..10_000).map(|n| Wakeup::Task(route(n))).collect());
        assert_eq!(waker.payloads(), [format!("{}\nm", waker.origin)]);
    }
}
