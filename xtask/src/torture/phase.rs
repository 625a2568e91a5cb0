//! One phase: servers, clients and a fault; then healing, checking and verifying.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::check::{self, FinalRun, Findings};
use super::load::{Clients, Look, Role, Shared, Target, look};
use super::log::{Entry, Log, Outcome};
use super::random::Random;
use super::receiver::{ASSEMBLY, Receiver, TALLY};
use super::recovery;
use super::server::{Binary, Program, Server};
use crate::interrupt::Interrupt;
use crate::process;

const CLIENTS: u64 = 4;
/// A phase with workers must see at least this many attempts of each of their workflows.
const WORKER_EFFECTS_MIN: usize = 10;
/// Healing has failed if no run ends for this long. It is far longer than any lease or retry.
const HANG: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(100);
/// A phase on a busy machine may last this much longer to reach its least number of faults.
const EXTRA_MAX: Duration = Duration::from_secs(60);

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
    worker: PathBuf,
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
    /// Facts for the reader, such as measured times.
    pub(crate) notes: Vec<String>,
    ends_at: Instant,
    faults_min: usize,
}

/// The parts of a phase that its fault does not change.
pub(crate) struct Setting<'a> {
    /// The directory of all phases; each has its own below it.
    pub(crate) root: &'a Path,
    pub(crate) binary: &'a Binary,
    /// The program `torture_worker`.
    pub(crate) worker: &'a Path,
    /// The binary of `--previous`.
    pub(crate) previous: Option<&'a Binary>,
    pub(crate) lasts: Duration,
    /// A phase lasts longer until it has injected this many faults.
    pub(crate) faults_min: usize,
    pub(crate) seed: u64,
    pub(crate) interrupt: &'a Interrupt,
}

/// The work and the findings of a phase.
#[derive(Default)]
pub(crate) struct Outcomes {
    pub(crate) acknowledged: usize,
    pub(crate) refused: usize,
    pub(crate) unknown: usize,
    pub(crate) effects: usize,
    pub(crate) faults: usize,
    /// Findings of the fault itself, such as processes that ended without a reason.
    pub(crate) problems: Vec<String>,
    /// Facts for the reader.
    pub(crate) notes: Vec<String>,
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
            worker: setting.worker.to_owned(),
            servers: Vec::new(),
            random: Random::new(setting.seed),
            shared: Arc::new(Shared::new(log, receiver)),
            interrupt: setting.interrupt,
            clients: None,
            seed: setting.seed,
            faults: 0,
            problems: Vec::new(),
            notes: Vec::new(),
            ends_at: Instant::now() + setting.lasts,
            faults_min: setting.faults_min,
        })
    }

    /// Starts servers and workers `a`, `b`, … on the store, and waits until they are ready.
    pub(crate) fn start_processes(&mut self, servers: usize, workers: usize) -> Result<()> {
        for number in 0..servers + workers {
            let interrupt = self.interrupt;
            let is_server = number < servers;
            let server = if is_server { self.add_server()? } else { self.add_worker()? };
            server.start(interrupt)?;
        }
        Ok(())
    }

    /// Adds a server that clients call, without starting it.
    pub(crate) fn add_server(&mut self) -> Result<&mut Server> {
        self.add(Program::Binary(self.binary.clone()))
    }

    /// Adds a worker that clients call, without starting it.
    pub(crate) fn add_worker(&mut self) -> Result<&mut Server> {
        self.add(Program::Worker(self.worker.clone()))
    }

    fn add(&mut self, program: Program) -> Result<&mut Server> {
        let letters = b'a'..=b'z';
        let letter = letters.clone().nth(self.servers.len()).context("too many servers")?;
        let name = char::from(letter).to_string();
        let receiver = self.shared.receiver.address;
        let server = Server::new(&name, program, &self.store, &self.directory, receiver)?;
        self.shared.targets.lock().expect("no client panics").push(target(&server));
        self.servers.push(server);
        Ok(self.servers.last_mut().expect("a server was added"))
    }

    /// A random server or worker.
    pub(crate) fn random_server(&mut self) -> usize {
        let count = self.servers.len() as u64;
        usize::try_from(self.random.below(count)).unwrap_or_default()
    }

    /// Kills a process and logs it. The caller starts the next one.
    pub(crate) fn kill(&mut self, at: usize) -> Result<()> {
        let process = self.servers[at].process();
        self.servers[at].kill()?;
        self.fault(Entry::Halted { process });
        Ok(())
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
    pub(crate) fn set_targets(&self, targets: Vec<Target>) -> Vec<Target> {
        let mut current = self.shared.targets.lock().expect("no client panics");
        std::mem::replace(&mut *current, targets)
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
        let now = Instant::now();
        now >= self.ends_at && (self.faults >= self.faults_min || now >= self.ends_at + EXTRA_MAX)
    }

    /// Notes how long restarted processes took until they did work, and, with a bound, fails if half of
    /// them took longer.
    pub(crate) fn note_recovery(&mut self, bound: Option<Duration>) {
        let times = recovery::of(&self.log().lines());
        self.notes.push(format!("from the restart to the next work: {times}"));
        if let (Some(bound), Some(median)) = (bound, times.median())
            && median > bound
        {
            self.problem(format!(
                "restarted processes did no work for {median:?} (bound {bound:?})"
            ));
        }
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
        self.check_workers();
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
            notes: self.notes,
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
                let Some(to) = self.shared.target_of(&name, &mut self.random) else {
                    bail!("no process of the phase serves {name}")
                };
                match look(&to, &name) {
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

    /// A phase whose workers did little has tested no steps and no machines.
    fn check_workers(&mut self) {
        if self.servers.iter().all(|server| server.program.role() != Role::Worker) {
            return;
        }
        for workflow in [TALLY, ASSEMBLY] {
            let is_of = |run: &str| run.split_once('/').is_some_and(|(name, _)| name == workflow);
            let done = self
                .log()
                .count(|entry| matches!(entry, Entry::Effect(effect) if is_of(&effect.run)));
            if done < WORKER_EFFECTS_MIN {
                self.problems.push(format!(
                    "only {done} steps of {workflow} began, at least {WORKER_EFFECTS_MIN} are needed"
                ));
            }
        }
    }

    /// Runs `windlass verify`, as an operator would after an incident.
    fn verify(&self) -> Option<String> {
        let mut verify = Command::new(&self.binary.path);
        verify.args(["verify", "--store", &self.store]).current_dir(&self.directory);
        process::capture(&mut verify).err().map(|error| format!("{error:#}"))
    }
}

/// A process as clients call it.
pub(crate) fn target(server: &Server) -> Target {
    Target { peer: server.address.into(), role: server.program.role() }
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
