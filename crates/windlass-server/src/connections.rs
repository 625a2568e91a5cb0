//! The open connections of a server: their limits, in total and for each client address, and the
//! connections that are idle and give way to new ones.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It receives a request head, which must be complete at this time.
    Head(Instant),
    /// A request is in progress.
    Busy,
    /// It waits for the next request.
    Idle,
    /// It was closed to make room for another one.
    Evicted,
}

/// The open connections of a server.
pub(crate) struct Connections {
    max: usize,
    per_address_max: usize,
    head_timeout: Duration,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    open: usize,
    by_address: HashMap<IpAddr, usize>,
    next: u64,
    /// The idle connections, the longest idle first.
    idle: BTreeMap<u64, Arc<Connection>>,
}

impl State {
    fn remove(&mut self, address: IpAddr) {
        self.open -= 1;
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Closes the connection that has been idle for the longest time, of one address or of all.
    fn evict(&mut self, address: Option<IpAddr>) -> bool {
        let of = |connection: &Connection| address.is_none_or(|is| connection.address == is);
        let oldest = self.idle.iter().find(|(_, connection)| of(connection)).map(|(at, _)| *at);
        let Some(connection) = oldest.and_then(|at| self.idle.remove(&at)) else { return false };
        self.remove(connection.address);
        connection.phase.send_replace(Phase::Evicted);
        true
    }
}

/// An open connection.
pub(crate) struct Connection {
    address: IpAddr,
    phase: watch::Sender<Phase>,
    place: Mutex<Option<u64>>,
}

/// Removes a connection when it ends.
pub(crate) struct Open {
    connections: Arc<Connections>,
    pub(crate) connection: Arc<Connection>,
}

impl Connections {
    pub(crate) fn new(max: usize, per_address_max: usize, head_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            max,
            per_address_max,
            head_timeout,
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Waits until a connection can be accepted: there is room, or an idle one that gives way.
    pub(crate) async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.lock();
                if state.open < self.max || !state.idle.is_empty() {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Adds an accepted connection. `None` if its address has too many connections with requests in
    /// progress.
    pub(crate) fn add(self: &Arc<Self>, address: IpAddr) -> Option<Open> {
        let mut state = self.state.lock();
        let of_address = state.by_address.get(&address).copied().unwrap_or_default();
        if of_address >= self.per_address_max && !state.evict(Some(address)) {
            return None;
        }
        if state.open >= self.max {
            state.evict(None);
        }
        state.open += 1;
        *state.by_address.entry(address).or_default() += 1;
        let (phase, _) = watch::channel(Phase::Head(Instant::now() + self.head_timeout));
        let connection = Arc::new(Connection { address, phase, place: Mutex::default() });
        Self::set_idle(&mut state, &connection);
        drop(state);
        Some(Open { connections: Arc::clone(self), connection })
    }

    fn set_idle(state: &mut State, connection: &Arc<Connection>) {
        let at = state.next;
        state.next += 1;
        state.idle.insert(at, Arc::clone(connection));
        *connection.place.lock() = Some(at);
    }

    fn begin_request(&self, connection: &Connection) {
        let mut state = self.state.lock();
        if let Some(at) = connection.place.lock().take() {
            state.idle.remove(&at);
        }
        connection.enter(Phase::Busy);
    }

    fn end_request(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock();
        if connection.enter(Phase::Idle) {
            Self::set_idle(&mut state, connection);
        }
        drop(state);
        self.changed.notify_one();
    }
}

impl Connection {
    // An evicted connection stays evicted.
    fn enter(&self, next: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let changes = *phase != Phase::Evicted;
            if changes {
                *phase = next;
            }
            changes
        })
    }
}

impl Open {
    /// Bytes have arrived: if the connection was idle, they begin a request head.
    pub(crate) fn received(&self) {
        if *self.connection.phase.borrow() == Phase::Idle {
            self.connection.enter(Phase::Head(Instant::now() + self.connections.head_timeout));
        }
    }

    /// A request head is complete. The request ends when the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> RequestGuard {
        self.connections.begin_request(&self.connection);
        RequestGuard(Arc::clone(self))
    }

    /// Completes when the connection must close: it was evicted, or a head took too long.
    pub(crate) async fn must_close(self: Arc<Self>) -> &'static str {
        let mut phase = self.connection.phase.subscribe();
        loop {
            let now = *phase.borrow_and_update();
            match now {
                Phase::Evicted => return "it was idle, and another client needed the connection",
                Phase::Head(until) => {
                    if tokio::time::timeout_at(until, phase.changed()).await.is_err() {
                        return "the request head did not arrive in time";
                    }
                }
                Phase::Busy | Phase::Idle => drop(phase.changed().await),
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.connections.state.lock();
        if let Some(at) = self.connection.place.lock().take() {
            state.idle.remove(&at);
        }
        if *self.connection.phase.borrow() != Phase::Evicted {
            state.remove(self.connection.address);
        }
        drop(state);
        self.connections.changed.notify_one();
    }
}

/// A request in progress.
pub(crate) struct RequestGuard(Arc<Open>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.connections.end_request(&self.0.connection);
    }
}

/// The body of a response. The request ends with it.
pub(crate) struct GuardedBody {
    body: axum::body::Body,
    _guard: RequestGuard,
}

impl GuardedBody {
    pub(crate) fn new(body: axum::body::Body, guard: RequestGuard) -> Self {
        Self { body, _guard: guard }
    }
}

impl Body for GuardedBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    fn opened(connections: &Arc<Connections>, last: u8) -> Option<Arc<Open>> {
        connections.add(address(last)).map(Arc::new)
    }

    fn is_evicted(open: &Open) -> bool {
        *open.connection.phase.borrow() == Phase::Evicted
    }

    #[test]
    fn the_longest_idle_connection_gives_way() {
        let connections = Connections::new(2, 2, Duration::from_secs(10));
        let first = opened(&connections, 1).unwrap();
        let second = opened(&connections, 2).unwrap();
        let request = first.begin_request();
        let third = opened(&connections, 3).unwrap();
        assert!(is_evicted(&second) && !is_evicted(&first) && !is_evicted(&third));
        drop(request);
        let _fourth = opened(&connections, 4).unwrap();
        assert!(is_evicted(&third), "it has been idle for longer than the first");
        drop((first, second, third));
        assert_eq!(connections.state.lock().open, 1, "each connection is counted once");
    }

    #[test]
    fn an_address_with_too_many_requests_is_refused() {
        let connections = Connections::new(10, 2, Duration::from_secs(10));
        let first = opened(&connections, 1).unwrap();
        let second = opened(&connections, 1).unwrap();
        let requests = (first.begin_request(), second.begin_request());
        assert!(opened(&connections, 1).is_none());
        assert!(opened(&connections, 2).is_some(), "another address is not affected");
        drop(requests);
        assert!(opened(&connections, 1).is_some());
        assert!(is_evicted(&first) && !is_evicted(&second));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_a_deadline_and_an_idle_connection_has_none() {
        let connections = Connections::new(10, 10, Duration::from_secs(10));
        let open = opened(&connections, 1).unwrap();
        assert!(Arc::clone(&open).must_close().await.contains("head"));
        let open = opened(&connections, 1).unwrap();
        drop(open.begin_request());
        let closing = Arc::clone(&open).must_close();
        let mut closing = std::pin::pin!(closing);
        let day = Duration::from_secs(86_400);
        assert!(tokio::time::timeout(day, closing.as_mut()).await.is_err(), "it is idle");
        open.received();
        assert!(closing.await.contains("head"));
    }
}
