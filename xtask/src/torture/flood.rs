//! One tenant floods the mailbox of a run and keeps slow connections open; another tenant works as
//! usual. The flood must be refused with a code, and nothing of the other tenant may be lost.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Torture;
use super::http::{Peer, Reply, request};
use super::load::{Role, Target};
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting};

/// The key that creates the key of the other tenant.
const ADMIN_KEY: &str = "torture-torture-torture-torture-torture";
const NOISY: &str = "noisy";
/// A run of the noisy tenant that never consumes these events.
const MAILBOX: &str = "/api/workflows/order/instances/mailbox/events";
const EVENT_BYTES: usize = 1_000_000;
const FLOODERS: usize = 4;
/// Connections that send a head or a body one byte at a time.
const SLOW: usize = 300;
const SLOW_PAUSE: Duration = Duration::from_millis(500);
/// The well-behaved tenant measures one run at a time.
const PROBE: &str = "/api/workflows/fan-out/instances?waitMs=30000";
const PROBE_PAUSE: Duration = Duration::from_millis(20);
/// During the flood, the 99th percentile of the other tenant may be this many times the one before.
const SLOWER_MAX: u32 = 2;
/// A shorter time of a quiet server is noise.
const QUIET_MIN: Duration = Duration::from_millis(50);
/// Fewer runs have no 99th percentile.
const PROBES_MIN: usize = 50;
const MEMORY_KIB_MAX: u64 = 1 << 20;

pub(crate) fn run(_: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "flood")?;
    let server = phase.add_server()?;
    server.auth = ["--auth", "keys"].map(str::to_owned).to_vec();
    server.variables = vec![("WINDLASS_ADMIN_KEY".to_owned(), ADMIN_KEY.to_owned())];
    let address = server.address;
    phase.servers[0].start(phase.interrupt)?;
    let peer = |key: &str| Peer { address, bearer: Some(key.into()) };
    phase.set_targets(vec![Target { peer: peer(ADMIN_KEY), role: Role::Server }]);
    let noisy = peer(&create_tenant(&peer(ADMIN_KEY))?);
    phase.start_clients(setting.lasts);

    let quiet = probe_for(&mut phase, &peer(ADMIN_KEY), setting.lasts / 3)?;
    let flood = Arc::new(Flood::default());
    let threads = start(&flood, &noisy);
    let measured = probe_for(&mut phase, &peer(ADMIN_KEY), setting.lasts * 2 / 3);
    flood.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let _ = thread.join();
    }
    report(&mut phase, &flood, &quiet, &measured?);
    phase.finish()
}

/// Creates a key of the noisy tenant, and the run whose mailbox it floods.
fn create_tenant(admin: &Peer) -> Result<String> {
    let body =
        json!({ "name": NOISY, "namespace": NOISY, "scopes": ["read", "create", "send-event"] });
    let reply = request(admin, "POST", "/api/keys", Some(&body));
    let Reply::Answered { status: 200, body } = &reply else { bail!("no key: {reply:?}") };
    let key = body["secret"].as_str().or_else(|| body["key"].as_str());
    let key = key.with_context(|| format!("no secret in {body}"))?.to_owned();
    let noisy = Peer { address: admin.address, bearer: Some(key.as_str().into()) };
    let create = json!({ "id": "mailbox" });
    match request(&noisy, "POST", "/api/workflows/order/instances", Some(&create)) {
        Reply::Answered { status: 200..=299, .. } => Ok(key),
        reply => bail!("no mailbox: {reply:?}"),
    }
}

/// The counts of a flood.
#[derive(Default)]
struct Flood {
    stop: AtomicBool,
    accepted: AtomicUsize,
    refused: AtomicUsize,
    /// Answers that are neither a success nor a 429 with a code.
    other: AtomicUsize,
    slow: AtomicUsize,
}

impl Flood {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn start(flood: &Arc<Flood>, noisy: &Peer) -> Vec<thread::JoinHandle<()>> {
    let events = (0..FLOODERS).map(|number| {
        let (flood, noisy) = (Arc::clone(flood), noisy.clone());
        thread::spawn(move || send_events(&flood, &noisy, number))
    });
    let slow = {
        let (flood, noisy) = (Arc::clone(flood), noisy.clone());
        thread::spawn(move || keep_slow(&flood, &noisy))
    };
    events.chain([slow]).collect()
}

/// Sends large events to the mailbox, one after the other.
fn send_events(flood: &Flood, noisy: &Peer, number: usize) {
    let payload = "x".repeat(EVENT_BYTES);
    for at in 0.. {
        if flood.is_over() {
            return;
        }
        let body = json!({ "type": "spam", "id": format!("{number}-{at}"), "payload": payload });
        let counter = match request(noisy, "POST", MAILBOX, Some(&body)) {
            Reply::Answered { status: 200..=299, .. } => &flood.accepted,
            Reply::Answered { status: 429, body } if body["code"].is_string() => &flood.refused,
            _ => &flood.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Keeps connections open that send one byte at a time; half of them have sent their head.
fn keep_slow(flood: &Flood, noisy: &Peer) {
    let key = noisy.bearer.as_deref().unwrap_or_default();
    let head = format!(
        "POST {MAILBOX} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: 100000\r\n\r\n"
    );
    let mut open: Vec<TcpStream> = Vec::new();
    while !flood.is_over() {
        while open.len() < SLOW && !flood.is_over() {
            let Ok(mut stream) = TcpStream::connect(noisy.address) else { break };
            let first =
                if open.len().is_multiple_of(2) { "GET /api/runs HTTP/1.1\r\n" } else { &head };
            if stream.write_all(first.as_bytes()).is_err() {
                break;
            }
            open.push(stream);
            flood.slow.fetch_add(1, Ordering::Relaxed);
        }
        thread::sleep(SLOW_PAUSE);
        open.retain_mut(|stream| stream.write_all(b"x").is_ok());
    }
}

/// Starts runs of the well-behaved tenant and waits for each. Returns the times, sorted.
fn probe_for(phase: &mut Phase<'_>, peer: &Peer, lasts: Duration) -> Result<Vec<Duration>> {
    let until = Instant::now() + lasts;
    let mut times = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        match request(peer, "POST", PROBE, Some(&json!({ "params": 1 }))) {
            Reply::Answered { status: 200..=299, body } if is_complete(&body) => {
                times.push(began.elapsed());
            }
            reply => phase.problem(format!("a run of the well-behaved tenant failed: {reply:?}")),
        }
        phase.sleep(PROBE_PAUSE)?;
    }
    times.sort();
    Ok(times)
}

fn is_complete(body: &Value) -> bool {
    [&body["details"]["status"], &body["status"]].iter().any(|status| **status == "complete")
}

fn report(phase: &mut Phase<'_>, flood: &Flood, quiet: &[Duration], flooded: &[Duration]) {
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let (accepted, refused) = (count(&flood.accepted), count(&flood.refused));
    let (other, slow) = (count(&flood.other), count(&flood.slow));
    for _ in 0..refused {
        phase.fault(Entry::Fault { what: "an event was refused".into() });
    }
    if other > 0 {
        phase.problem(format!("{other} events of the flood got neither a success nor a 429"));
    }
    let memory = phase.servers[0].pid().and_then(peak_memory);
    for problem in exceeded(quiet, flooded, memory) {
        phase.problem(problem);
    }
    let memory = memory.map_or("unknown".into(), |kib| format!("{} MiB", kib >> 10));
    phase.notes.extend([
        format!("events of 1 MB: {accepted} accepted, {refused} refused; {slow} slow connections"),
        format!("start to result, quiet:   {}", percentiles(quiet)),
        format!("start to result, flooded: {}", percentiles(flooded)),
        format!("peak memory of the server: {memory}"),
    ]);
}

/// The promises that the flood broke.
fn exceeded(quiet: &[Duration], flooded: &[Duration], peak_kib: Option<u64>) -> Vec<String> {
    let mut problems = Vec::new();
    let fewest = quiet.len().min(flooded.len());
    if fewest < PROBES_MIN {
        problems.push(format!(
            "only {fewest} runs of the well-behaved tenant were measured, at least {PROBES_MIN} are needed"
        ));
    } else {
        let (before, during) = (percentile(quiet, 99), percentile(flooded, 99));
        if during > before.max(QUIET_MIN) * SLOWER_MAX {
            problems.push(format!(
                "p99 of the well-behaved tenant rose from {before:?} to {during:?}, by more than {SLOWER_MAX} times"
            ));
        }
    }
    match peak_kib {
        None => problems.push("the memory of the server could not be read".into()),
        Some(kib) if kib >= MEMORY_KIB_MAX => {
            problems.push(format!("the server used {} MiB of memory", kib >> 10));
        }
        Some(_) => {}
    }
    problems
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

fn percentiles(sorted: &[Duration]) -> String {
    let at = |percent| percentile(sorted, percent).as_millis();
    format!("p50 {} ms, p99 {} ms of {} runs", at(50), at(99), sorted.len())
}

/// The peak memory of a process in KiB.
fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_that_slows_others_down_or_takes_memory_fails() {
        let runs = |count: usize, ms: u64| vec![Duration::from_millis(ms); count];
        let kib = 1 << 19;
        for (quiet, flooded, peak, expect) in [
            (runs(50, 60), runs(50, 120), Some(kib), ""),
            (runs(50, 60), runs(50, 121), Some(kib), "rose"),
            (runs(50, 1), runs(50, 100), Some(kib), ""),
            (runs(50, 1), runs(50, 101), Some(kib), "rose"),
            (runs(50, 60), runs(49, 60), Some(kib), "only 49 runs"),
            (runs(50, 60), runs(50, 60), Some(1 << 20), "1024 MiB"),
            (runs(50, 60), runs(50, 60), None, "could not be read"),
        ] {
            let found = exceeded(&quiet, &flooded, peak).concat();
            assert_eq!(found.is_empty(), expect.is_empty(), "{found}");
            assert!(found.contains(expect), "{found}");
        }
        assert!(peak_memory(std::process::id()).is_some_and(|kib| kib > 0));
    }

    #[test]
    fn percentiles_of_few_and_of_many() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentiles(&times), "p50 101 ms, p99 199 ms of 200 runs");
        assert_eq!(percentiles(&times[..1]), "p50 1 ms, p99 1 ms of 1 runs");
        assert_eq!(percentiles(&[]), "p50 0 ms, p99 0 ms of 0 runs");
    }
}
