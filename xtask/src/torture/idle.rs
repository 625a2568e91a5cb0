//! Thousands of connections that nobody uses, while clients work and a load balancer asks for the health.

use std::fs;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Torture;
use super::http::{Peer, Reply, request};
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting, Unavailable};

const CONNECTIONS: usize = 4_000;
/// Each connection is a file of this process and of the server.
const FILES_MIN: u64 = CONNECTIONS as u64 + 500;
const PROBES: usize = 100;
/// 19 of 20 answers come within this time.
const ANSWER_MAX: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) fn run(_: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let files = files_max().unwrap_or(u64::MAX);
    if files < FILES_MIN {
        let message = format!("the limit of open files is {files}; first run `ulimit -n 8192`");
        return Err(Unavailable(message).into());
    }
    let mut phase = Phase::new(setting, "idle")?;
    phase.start_processes(1, 0)?;
    phase.start_clients(setting.lasts);
    let mut times = Vec::new();
    while !phase.is_over() {
        let idle = connect(&mut phase)?;
        for _ in 0..PROBES {
            times.push(probe(&mut phase)?);
        }
        drop(idle);
    }
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    let (median, slow) = (at(50), at(95));
    phase.notes.push(format!(
        "/healthz beside {CONNECTIONS} idle connections: p50 {median:?}, p95 {slow:?}"
    ));
    if slow > ANSWER_MAX {
        phase.problem(format!(
            "/healthz took {slow:?} beside idle connections (limit {ANSWER_MAX:?})"
        ));
    }
    phase.finish()
}

/// Opens the connections. The server may close some of them again.
fn connect(phase: &mut Phase<'_>) -> Result<Vec<TcpStream>> {
    let address = phase.servers[0].address;
    let mut idle = Vec::with_capacity(CONNECTIONS);
    for number in 0..CONNECTIONS {
        if number % 100 == 0 {
            phase.interrupt.check()?;
        }
        idle.push(TcpStream::connect(address).context("could not open a connection")?);
    }
    phase.fault(Entry::Fault { what: format!("{CONNECTIONS} connections are idle") });
    Ok(idle)
}

fn probe(phase: &mut Phase<'_>) -> Result<Duration> {
    phase.sleep(PAUSE)?;
    let peer = Peer::from(phase.servers[0].address);
    let began = Instant::now();
    let reply = request(&peer, "GET", "/healthz", None);
    if !matches!(reply, Reply::Answered { status: 200, .. }) {
        phase.problem(format!("/healthz failed beside idle connections: {reply:?}"));
    }
    Ok(began.elapsed())
}

/// The soft limit of open files of this process, which servers inherit.
fn files_max() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_known() {
        assert!(files_max().is_some_and(|files| files > 0));
    }
}
