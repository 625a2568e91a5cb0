//! One phase: servers, clients and a fault; then healing, checking and verifying.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::check::{self, FinalRun, Findings};
use super::load::{Clients, Look, Shared, look};
use super::log::{Entry, Log, Outcome};
use super::random::Random;
use super::receiver::Receiver;
use super::server::{Binary, Server};
use crate::interrupt::Interrupt;
use crate::process;

const CLIENTS: u64 = 4;
/// Healing has failed if no run ends for this long. It is far longer than any lease or retry.
const HANG: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(100);

/// The error of a phase that this machine cannot run, with the reason.
#[derive(Debug)]
pub(crate) struct Unavailable(pub(crate) String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// A running phase. A fault uses `servers`, `random` and `log`.
pub(crate) struct Phase<'a> {
    pub(crate) directory: PathBuf,
    pub(crate) binary: Binary,
    pub(crate) store: String,
    pub(crate) servers: Vec<Server>,
    pub(crate) random: Random,
    pub(crate) shared: Arc<Shared>,
    pub(crate) interrupt: &'a Interrupt,
    clients: Option<Clients>,
    seed: u64,
    faults: usize,
    /// Findings of a fault itself: processes that ended, or that did not end.
    problems: Vec<String>,
    ends_at: Instant,
}

/// The parts of a phase that its fault does not change.
pub(crate) struct Setting<'a> {
    /// The directory of all phases; each has its own below it.
    pub(crate) root: &'a Path,
    pub(crate) binary: &'a Binary,
    pub(crate) lasts: Duration,
    pub(crate) seed: u64,
    pub(crate) interrupt: &'a Interrupt,
}

/// The work and the findings of a phase.
pub(crate) struct Outcomes {
    pub(crate) acknowledged: usize,
    pub(crate) refused: usize,
    pub(crate) unknown: usize,
    pub(crate) effects: usize,
    pub(crate) faults: usize,
    /// Findings of the fault itself, such as processes that ended without a reason.
    pub(crate) problems: Vec<String>,
    pub(crate) findings: Findings,
    /// The output of `windlass verify`, if it found a flaw.
    pub(crate) flaw: Option<String>,
}

impl<'a> Phase<'a> {
    /// Creates the directory of a phase, without servers.
    pub(crate) fn new(setting: &Setting<'a>, name: &str) -> Result<Self> {
        let directory = setting.root.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory).context("could not delete the last run")?;
        }
        fs::create_dir_all(&directory)
            .with_context(|| format!("could not create {}", directory.display()))?;
        let log = Arc::new(Log::create(&directory.join("log.jsonl"))?);
        let receiver = Receiver::start(Arc::clone(&log), setting.seed)?;
        Ok(Self {
            store: format!("sqlite:{}", directory.join("store.db").display()),
            directory,
            binary: setting.binary.clone(),
            servers: Vec::new(),
            random: Random::new(setting.seed),
            shared: Arc::new(Shared::new(log, receiver)),
            interrupt: setting.interrupt,
            clients: None,
            seed: setting.seed,
            faults: 0,
            problems: Vec::new(),
            ends_at: Instant::now() + setting.lasts,
        })
    }

    /// Starts servers `a`, `b`, … on the store, and waits until they are ready.
    pub(crate) fn start_servers(&mut self, count: u8) -> Result<()> {
        for letter in (b'a'..).take(count.into()) {
            let name = char::from(letter).to_string();
            let interrupt = self.interrupt;
            self.add_server(&name)?.start(interrupt)?;
        }
        Ok(())
    }

    /// Adds a server that clients call, without starting it.
    pub(crate) fn add_server(&mut self, name: &str) -> Result<&mut Server> {
        let receiver = self.shared.receiver.address;
        let server =
            Server::new(name, self.binary.clone(), &self.store, &self.directory, receiver)?;
        self.shared.targets.lock().expect("no client panics").push(server.address);
        self.servers.push(server);
        Ok(self.servers.last_mut().expect("a server was added"))
    }

    /// Starts the clients. The time of the phase counts from here.
    pub(crate) fn start_clients(&mut self, lasts: Duration) {
        self.ends_at = Instant::now() + lasts;
        self.clients = Some(Clients::start(&self.shared, CLIENTS, self.seed));
    }

    pub(crate) fn log(&self) -> &Log {
        &self.shared.log
    }

    /// Replaces the servers that clients call, and returns the former ones.
    pub(crate) fn set_targets(&self, targets: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut current = self.shared.targets.lock().expect("no client panics");
        std::mem::replace(&mut *current, targets.to_vec())
    }

    /// Counts a fault and logs it.
    pub(crate) fn fault(&mut self, entry: Entry) {
        self.faults += 1;
        self.log().add(entry);
    }

    /// Adds a violation that the checker cannot see.
    pub(crate) fn problem(&mut self, problem: String) {
        self.log().add(Entry::Fault { what: problem.clone() });
        self.problems.push(problem);
    }

    /// Whether the time of the phase is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.ends_at
    }

    /// Waits for a random time up to a limit. Returns false if the time of the phase is over.
    pub(crate) fn pause(&mut self, min: Duration, max: Duration) -> Result<bool> {
        let spread = u64::try_from((max - min).as_millis()).unwrap_or(u64::MAX).max(1);
        let extra = Duration::from_millis(self.random.below(spread));
        self.sleep(min + extra)?;
        self.note_exits()?;
        Ok(!self.is_over())
    }

    /// Sleeps, unless the user interrupts.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.interrupt.check()?;
            thread::sleep(POLL.min(until - Instant::now()));
        }
        Ok(())
    }

    /// Notes servers that ended by themselves, and starts them again as a supervisor does.
    fn note_exits(&mut self) -> Result<()> {
        for server in &mut self.servers {
            if let Some(status) = server.ended()? {
                let process = server.process();
                self.problems.push(format!("{process} ended by itself ({status})"));
                self.shared.log.add(Entry::Halted { process });
                server.spawn()?;
            }
        }
        Ok(())
    }

    /// Starts servers that are not running, and waits until all are ready.
    pub(crate) fn heal(&mut self) -> Result<()> {
        for server in &mut self.servers {
            if !server.is_running()? {
                server.spawn()?;
            }
        }
        for server in &mut self.servers {
            server.wait_until_ready(self.interrupt)?;
        }
        Ok(())
    }

    /// Stops the clients, heals, waits for all runs, checks the log and verifies the store.
    pub(crate) fn finish(mut self) -> Result<Outcomes> {
        if let Some(clients) = self.clients.take() {
            clients.stop();
        }
        self.note_exits()?;
        self.heal()?;
        let runs = self.wait_for_runs()?;
        let lines = self.log().lines();
        let findings = check::check(&lines, &runs);
        for server in &mut self.servers {
            server.stop()?;
        }
        let flaw = self.verify();
        let count = |outcome: Outcome| {
            let wanted = |entry: &Entry| matches!(entry, Entry::Call { outcome: given, .. } if *given == outcome);
            self.log().count(wanted)
        };
        Ok(Outcomes {
            acknowledged: count(Outcome::Ok),
            refused: count(Outcome::Refused),
            unknown: count(Outcome::Unknown),
            effects: self.log().count(|entry| matches!(entry, Entry::Effect(_))),
            faults: self.faults,
            problems: self.problems,
            findings,
            flaw,
        })
    }

    /// Reads every run that may exist until it has ended, or waits for an event that was not
    /// acknowledged. Gives up when no run ends for a long time; the checker reports the rest.
    fn wait_for_runs(&mut self) -> Result<BTreeMap<String, FinalRun>> {
        let mut pending = check::created(&self.log().lines());
        let mut runs = BTreeMap::new();
        let mut until = Instant::now() + HANG;
        loop {
            let mut open = Vec::new();
            let before = pending.len();
            for (name, may_wait) in pending {
                self.interrupt.check()?;
                let Some(to) = self.shared.target(&mut self.random) else {
                    bail!("a phase has no server")
                };
                match look(to, &name) {
                    Look::Absent => continue,
                    Look::Found(run) => {
                        let run = final_run(&run);
                        let is_settled = run.has_ended() || (may_wait && run.status == "waiting");
                        runs.insert(name.clone(), run);
                        if is_settled {
                            continue;
                        }
                    }
                    Look::Unavailable => {}
                }
                open.push((name, may_wait));
            }
            if open.is_empty() {
                return Ok(runs);
            }
            if open.len() < before {
                until = Instant::now() + HANG;
            }
            if Instant::now() > until {
                return Ok(runs);
            }
            pending = open;
            thread::sleep(POLL);
        }
    }

    /// Runs `windlass verify`, as an operator would after an incident.
    fn verify(&self) -> Option<String> {
        let mut verify = Command::new(&self.binary.path);
        verify.args(["verify", "--store", &self.store]).current_dir(&self.directory);
        process::capture(&mut verify).err().map(|error| format!("{error:#}"))
    }
}

fn final_run(run: &serde_json::Value) -> FinalRun {
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::Null => String::new(),
        value => value.to_string(),
    };
    let problems = [text(&run["details"]["error"]), text(&run["meta"]["blocked"])];
    FinalRun {
        status: run["details"]["status"].as_str().unwrap_or_default().to_owned(),
        generation: run["meta"]["runNumber"].as_u64().unwrap_or_default(),
        output: run["details"]["output"].clone(),
        problem: problems.concat(),
    }
}
