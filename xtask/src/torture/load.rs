//! The workload: clients that create, approve, restart and watch runs over HTTP and log each answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Peer, Reply, request};
use super::log::{Action, Entry, Log, Outcome};
use super::random::Random;
use super::receiver::{ASSEMBLY, CHAIN, Receiver, TALLY};

/// The number of steps of a `fan-out`, and the sum of their squares.
const FAN_OUT_WIDTH: u32 = 10;
pub(crate) const FAN_OUT_SUM: u32 = 285;
/// Clients pause when so many chains have not ended, so that healing does not take forever.
const BACKLOG_MAX: u64 = 300;
/// Each client sends a request about this often.
const PAUSE_MS: u64 = 40;

/// The workflows that a process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The binary: the samples and the relay.
    Server,
    /// The program with workflows of our own.
    Worker,
}

impl Role {
    /// The role of the processes that serve a run.
    pub(crate) fn of(run: &str) -> Self {
        match run.split_once('/') {
            Some((TALLY | ASSEMBLY, _)) => Self::Worker,
            _ => Self::Server,
        }
    }
}

/// A process that clients call.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) peer: Peer,
    pub(crate) role: Role,
}

/// The state that all clients of a phase share.
pub(crate) struct Shared {
    pub(crate) log: Arc<Log>,
    pub(crate) receiver: Receiver,
    pub(crate) targets: Mutex<Vec<Target>>,
    stop: AtomicBool,
    chains: AtomicU64,
}

impl Shared {
    pub(crate) fn new(log: Arc<Log>, receiver: Receiver) -> Self {
        Self {
            log,
            receiver,
            targets: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
            chains: AtomicU64::new(0),
        }
    }

    fn target(&self, random: &mut Random) -> Option<Target> {
        random.pick(&self.targets.lock().expect("no thread panics with the targets")).cloned()
    }

    /// A process that serves a run.
    pub(crate) fn target_of(&self, run: &str, random: &mut Random) -> Option<Peer> {
        let targets = self.targets.lock().expect("no thread panics with the targets");
        let serving: Vec<&Target> =
            targets.iter().filter(|target| target.role == Role::of(run)).collect();
        random.pick(&serving).map(|target| target.peer.clone())
    }

    /// Sends a request that changes something, and logs its outcome.
    fn act(&self, to: &Peer, action: Action, run: &str, body: &Value) -> Option<Outcome> {
        let (workflow, id) = run.split_once('/').expect("a run is `workflow/id`");
        let path = match action {
            Action::Create => format!("/api/workflows/{workflow}/instances"),
            Action::Event => format!("/api/workflows/{workflow}/instances/{id}/events"),
            Action::Restart => format!("/api/workflows/{workflow}/instances/{id}/restart"),
        };
        let (outcome, detail) = outcome(&request(to, "POST", &path, Some(body)))?;
        if action == Action::Event && detail.ends_with("INSTANCE_TERMINAL") {
            // An earlier event whose answer was lost has ended the run.
            return Some(Outcome::Ok);
        }
        self.log.add(Entry::Call { action, run: run.to_owned(), outcome, detail });
        Some(outcome)
    }

    /// Approves an order. The id makes a repeated event the same event.
    fn approve(&self, to: &Peer, run: &str) -> Option<Outcome> {
        let body = json!({ "type": "approval", "id": "approval", "payload": { "approved": true } });
        self.act(to, Action::Event, run, &body)
    }
}

/// The outcome that a caller may conclude from a reply; none if the request was not sent.
fn outcome(reply: &Reply) -> Option<(Outcome, String)> {
    match reply {
        Reply::NotSent => None,
        Reply::Lost(error) => Some((Outcome::Unknown, error.clone())),
        Reply::Answered { status, body } => {
            let code = body["code"].as_str().unwrap_or_default();
            let outcome = match (status, code) {
                (200..=299, _) => Outcome::Ok,
                (408, _) | (_, "STORE_UNKNOWN" | "INTERNAL") => Outcome::Unknown,
                // The docs of every other code say that nothing was written.
                _ if !code.is_empty() => Outcome::Refused,
                _ => Outcome::Unknown,
            };
            Some((outcome, format!("{status} {code}")))
        }
    }
}

/// Running clients. They stop on `stop`.
pub(crate) struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(crate) fn start(shared: &Arc<Shared>, count: u64, seed: u64) -> Self {
        let threads = (0..count).map(|number| {
            let shared = Arc::clone(shared);
            let random = Random::new(seed.wrapping_mul(1_000).wrapping_add(number));
            thread::spawn(move || Client::new(shared, number, random).run())
        });
        Self { shared: Arc::clone(shared), threads: threads.collect() }
    }

    /// Lets each client finish its request.
    pub(crate) fn stop(self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client does not panic");
        }
    }
}

struct Client {
    shared: Arc<Shared>,
    number: u64,
    random: Random,
    created: u64,
    /// Orders whose approval was not acknowledged.
    orders: Vec<String>,
    /// Runs whose steps are logged, one after the other.
    chains: Vec<String>,
}

impl Client {
    fn new(shared: Arc<Shared>, number: u64, random: Random) -> Self {
        Self { shared, number, random, created: 0, orders: Vec::new(), chains: Vec::new() }
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.act();
            thread::sleep(Duration::from_millis(self.random.below(2 * PAUSE_MS)));
        }
    }

    fn act(&mut self) {
        let begun = self.shared.chains.load(Ordering::Relaxed);
        let is_behind = begun.saturating_sub(self.shared.receiver.finished()) > BACKLOG_MAX;
        match self.random.below(10) {
            0 | 1 => self.approve(),
            2 => self.restart(),
            3 => self.watch(),
            _ if is_behind => {}
            _ => self.create(),
        }
    }

    fn create(&mut self) {
        let Some(to) = self.shared.target(&mut self.random) else { return };
        let id = format!("c{}-{}", self.number, self.created);
        self.created += 1;
        let steps = 2 + self.random.below(5);
        let work = json!({ "id": id, "steps": steps, "tokens": [] });
        let (workflow, params) = match (to.role, self.random.below(10)) {
            (Role::Worker, 0..5) => (TALLY, work),
            (Role::Worker, _) => (ASSEMBLY, work),
            (Role::Server, 0 | 1) => ("order", Value::Null),
            (Role::Server, 2) => ("parcel", json!(id)),
            (Role::Server, 3) => ("fan-out", json!(FAN_OUT_WIDTH)),
            (Role::Server, _) => (CHAIN, work),
        };
        let run = format!("{workflow}/{id}");
        let body = json!({ "id": id, "params": params });
        let outcome = self.shared.act(&to.peer, Action::Create, &run, &body);
        match (workflow, outcome) {
            ("order", Some(Outcome::Ok | Outcome::Unknown)) => self.orders.push(run),
            (CHAIN | TALLY | ASSEMBLY, Some(Outcome::Ok)) => {
                self.shared.chains.fetch_add(1, Ordering::Relaxed);
                self.chains.push(run);
            }
            _ => {}
        }
    }

    fn approve(&mut self) {
        let count = self.orders.len() as u64;
        if count == 0 {
            return;
        }
        let at = usize::try_from(self.random.below(count)).unwrap_or_default();
        let Some(to) = self.shared.target_of(&self.orders[at], &mut self.random) else { return };
        match self.shared.approve(&to, &self.orders[at]) {
            Some(Outcome::Ok) => drop(self.orders.swap_remove(at)),
            // Half of the refused events are not repeated: such an order must keep waiting.
            Some(Outcome::Refused) if self.random.below(2) == 0 => {
                self.orders.swap_remove(at);
            }
            _ => {}
        }
    }

    fn restart(&mut self) {
        let Some(run) = self.random.pick(&self.chains) else { return };
        if let Some(to) = self.shared.target_of(run, &mut self.random) {
            self.shared.act(&to, Action::Restart, run, &json!({}));
        }
    }

    /// Looks at a chain. Once its end was seen, none of its steps may be executed again.
    fn watch(&mut self) {
        let Some(run) = self.random.pick(&self.chains) else { return };
        let Some(to) = self.shared.target_of(run, &mut self.random) else { return };
        let Some(seen) = look(&to, run).found() else { return };
        if seen["details"]["status"] == "complete"
            && let Some(run_key) = seen["meta"]["runKey"].as_str()
        {
            self.shared.log.add(Entry::Ended { run_key: run_key.to_owned() });
        }
    }
}

/// The answer to a look at a run.
pub(crate) enum Look {
    Found(Value),
    Absent,
    Unavailable,
}

impl Look {
    fn found(self) -> Option<Value> {
        match self {
            Self::Found(run) => Some(run),
            Self::Absent | Self::Unavailable => None,
        }
    }
}

/// Reads a run.
pub(crate) fn look(to: &Peer, run: &str) -> Look {
    let (workflow, id) = run.split_once('/').expect("a run is `workflow/id`");
    let path = format!("/api/workflows/{workflow}/instances/{id}");
    match request(to, "GET", &path, None) {
        Reply::Answered { status: 200, body } => Look::Found(body),
        Reply::Answered { status: 404, .. } => Look::Absent,
        _ => Look::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_code_that_says_so_means_that_nothing_was_written() {
        let answered = |status, body| Reply::Answered { status, body };
        let coded = |status, code| answered(status, json!({ "code": code }));
        for (reply, expect) in [
            (Reply::NotSent, None),
            (Reply::Lost("reset".into()), Some(Outcome::Unknown)),
            (answered(200, Value::Null), Some(Outcome::Ok)),
            (coded(503, "STORE_UNKNOWN"), Some(Outcome::Unknown)),
            (coded(408, "REQUEST_TIMEOUT"), Some(Outcome::Unknown)),
            (coded(503, "STORE_UNAVAILABLE"), Some(Outcome::Refused)),
            (coded(409, "INSTANCE_TERMINAL"), Some(Outcome::Refused)),
            (answered(502, Value::Null), Some(Outcome::Unknown)),
        ] {
            assert_eq!(outcome(&reply).map(|(outcome, _)| outcome), expect, "{reply:?}");
        }
    }

    #[test]
    fn the_sum_of_the_squares_is_right() {
        assert_eq!((0..FAN_OUT_WIDTH).map(|n| n * n).sum::<u32>(), FAN_OUT_SUM);
    }
}
