//! `cargo xtask torture`: faults against the real binary, and a checker that does not trust it.
//!
//! Each phase starts servers, lets clients work, injects one kind of fault, heals, and compares what
//! the servers acknowledged and what steps did with what the store holds. docs/torture.md describes
//! the phases.

mod bits;
mod builds;
mod check;
mod clock;
mod crash;
mod disk;
mod failover;
mod flood;
mod freeze;
mod fsync;
mod http;
mod idle;
mod kill;
mod load;
mod log;
mod phase;
mod proxy;
mod random;
mod receiver;
mod recovery;
mod report;
mod server;
mod snapshot;

use std::cell::{OnceCell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use self::phase::{Outcomes, Setting};
use self::report::{Floor, Report};
use self::server::Binary;
use crate::interrupt::{Interrupt, Interrupted};
use crate::postgres::Cluster;
use crate::{process, workspace};

/// The duration of the faults of one phase in the short form.
const SHORT: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct TortureArgs {
    /// The time for faults, divided equally among the phases. Healing and checking come on top.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Run only this phase. Can be repeated.
    #[arg(long, value_enum)]
    only: Vec<Fault>,
    /// The seed of the random choices. [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// The short form of `cargo xtask ci`: fewer phases, a few seconds each.
    #[arg(long, conflicts_with = "only")]
    short: bool,
    /// Use this `windlass` binary. [default: build the debug binary]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The `windlass` binary of an earlier commit, for the phases of two builds on one store.
    #[arg(long, value_name = "FILE")]
    previous: Option<PathBuf>,
}

impl TortureArgs {
    /// The arguments of `cargo xtask ci`, with the binary that the tests built.
    pub(crate) fn short(root: &Path) -> Self {
        let binary = Some(binary_path(&workspace::target_dir(root)));
        Self { minutes: 1, only: Vec::new(), seed: None, short: true, binary, previous: None }
    }
}

/// The phases, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// SIGKILL in a loop, SQLite.
    KillSqlite,
    /// SIGKILL in a loop of a program with workflows of our own, SQLite.
    KillWorker,
    /// SIGKILL in a loop, two servers and two workers on one PostgreSQL.
    KillPostgres,
    /// PostgreSQL stops at once (`-m immediate`) and starts again, in a loop.
    CrashPostgres,
    /// SIGSTOP past the lease, two servers and two workers on one PostgreSQL.
    Freeze,
    /// A proxy drops the answers to commits, two servers and two workers on one PostgreSQL.
    LostAnswers,
    /// The disk is full, then has room again, SQLite.
    DiskFull,
    /// fsync fails with an I/O error, SQLite.
    FsyncError,
    /// The primary of PostgreSQL crashes and its synchronous standby takes over, in a loop.
    Failover,
    /// The system clock is set by an hour, SQLite.
    ClockSqlite,
    /// The system clocks of servers and workers are set by an hour, PostgreSQL.
    ClockPostgres,
    /// A snapshot is held open, PostgreSQL.
    OldSnapshot,
    /// The previous and the current build in turn, SQLite.
    BuildsSqlite,
    /// The previous and the current build at once, PostgreSQL.
    BuildsPostgres,
    /// A tenant floods a mailbox and keeps slow connections, SQLite.
    Flood,
    /// 4,000 connections are open and idle, SQLite.
    Idle,
    /// Bits of the file are flipped, SQLite.
    BitFlips,
}

impl Plan {
    /// The least for a phase of this length. It grows half as fast as the length, because faults of a long
    /// phase leave more behind that slows the next ones down.
    fn floor(&self, lasts: Duration) -> Floor {
        let grown = |min: usize| {
            let times = lasts.as_secs_f64() / SHORT.as_secs_f64();
            (min as f64 * (1.0 + (times - 1.0).max(0.0) / 2.0)) as usize
        };
        Floor { operations: grown(self.operations_min), faults: grown(self.faults_min) }
    }
}

type Run = fn(&Torture<'_>, &Setting<'_>) -> Result<Outcomes>;

/// A phase with the least number of acknowledged operations and of faults. A phase that did less has
/// tested nothing, and fails. The numbers are for a short phase on a busy machine; a longer phase must do more.
struct Plan {
    fault: Fault,
    run: Run,
    operations_min: usize,
    faults_min: usize,
    in_short: bool,
}

const PLANS: &[Plan] = &[
    Plan {
        fault: Fault::KillSqlite,
        run: kill::sqlite,
        operations_min: 50,
        faults_min: 3,
        in_short: true,
    },
    Plan {
        fault: Fault::KillWorker,
        run: kill::worker,
        operations_min: 50,
        faults_min: 3,
        in_short: true,
    },
    Plan {
        fault: Fault::KillPostgres,
        run: kill::postgres,
        operations_min: 50,
        faults_min: 3,
        in_short: true,
    },
    Plan {
        fault: Fault::CrashPostgres,
        run: crash::run,
        operations_min: 50,
        faults_min: 3,
        in_short: true,
    },
    Plan {
        fault: Fault::Freeze,
        run: freeze::run,
        operations_min: 50,
        faults_min: 2,
        in_short: false,
    },
    Plan {
        fault: Fault::LostAnswers,
        run: proxy::run,
        operations_min: 50,
        faults_min: 3,
        in_short: false,
    },
    Plan {
        fault: Fault::DiskFull,
        run: disk::run,
        operations_min: 50,
        faults_min: 3,
        in_short: false,
    },
    Plan {
        fault: Fault::FsyncError,
        run: fsync::run,
        operations_min: 20,
        faults_min: 1,
        in_short: false,
    },
    Plan {
        fault: Fault::Failover,
        run: failover::run,
        operations_min: 50,
        faults_min: 1,
        in_short: false,
    },
    Plan {
        fault: Fault::ClockSqlite,
        run: clock::sqlite,
        operations_min: 50,
        faults_min: 3,
        in_short: false,
    },
    Plan {
        fault: Fault::ClockPostgres,
        run: clock::postgres,
        operations_min: 50,
        faults_min: 3,
        in_short: false,
    },
    Plan {
        fault: Fault::OldSnapshot,
        run: snapshot::run,
        operations_min: 50,
        faults_min: 2,
        in_short: false,
    },
    Plan {
        fault: Fault::BuildsSqlite,
        run: builds::sqlite,
        operations_min: 50,
        faults_min: 3,
        in_short: false,
    },
    Plan {
        fault: Fault::BuildsPostgres,
        run: builds::postgres,
        operations_min: 50,
        faults_min: 3,
        in_short: false,
    },
    Plan {
        fault: Fault::Flood,
        run: flood::run,
        operations_min: 50,
        faults_min: 10,
        in_short: false,
    },
    Plan { fault: Fault::Idle, run: idle::run, operations_min: 20, faults_min: 1, in_short: false },
    Plan {
        fault: Fault::BitFlips,
        run: bits::run,
        operations_min: 1000,
        faults_min: 1000,
        in_short: false,
    },
];

/// The parts that phases share.
pub(crate) struct Torture<'a> {
    root: PathBuf,
    target: PathBuf,
    interrupt: &'a Interrupt,
    cluster: OnceCell<Cluster>,
    last_database: RefCell<Option<String>>,
}

impl Torture<'_> {
    /// The PostgreSQL that phases share. It starts when the first phase needs it.
    pub(crate) fn cluster(&self) -> Result<&Cluster> {
        if let Some(cluster) = self.cluster.get() {
            return Ok(cluster);
        }
        let cluster = Cluster::start(&self.target, self.interrupt)?;
        Ok(self.cluster.get_or_init(|| cluster))
    }

    /// Creates a database and returns its address. Drops the database of the phase before: a crash
    /// takes longer to recover from with every file that PostgreSQL has.
    pub(crate) fn database(&self, name: &str) -> Result<String> {
        let cluster = self.cluster()?;
        if let Some(old) = self.last_database.replace(Some(name.to_owned())) {
            cluster.drop_database(&old)?;
        }
        cluster.create_database(name)
    }
}

/// Builds the binary and runs the phases.
pub(crate) fn run(root: &Path, args: &TortureArgs, interrupt: &Interrupt) -> Result<ExitCode> {
    let target = workspace::target_dir(root);
    let binary = match &args.binary {
        Some(path) => inspect(path)?,
        None => build(root, &target, interrupt)?,
    };
    let previous = args.previous.as_deref().map(inspect).transpose()?;
    let worker = build_worker(root, &target, interrupt)?;
    let directory = target.join("torture");
    fs::create_dir_all(&directory).context("could not create the directory of the logs")?;
    let seed = args.seed.unwrap_or_else(seed_of_the_clock);
    let plans: Vec<&Plan> = PLANS.iter().filter(|plan| is_chosen(plan, args)).collect();
    let lasts = match args.short {
        true => SHORT,
        false => {
            Duration::from_secs(args.minutes * 60) / u32::try_from(plans.len()).unwrap_or(1).max(1)
        }
    };
    println!("{} phases of {} s, seed {seed}", plans.len(), lasts.as_secs());
    println!("logs in {}", directory.display());
    let torture = Torture {
        root: root.to_owned(),
        target,
        interrupt,
        cluster: OnceCell::new(),
        last_database: RefCell::default(),
    };
    let mut reports = Vec::new();
    for plan in plans {
        interrupt.check()?;
        let setting = Setting {
            root: &directory,
            binary: &binary,
            worker: &worker,
            previous: previous.as_ref(),
            lasts,
            faults_min: plan.floor(lasts).faults,
            seed,
            interrupt,
        };
        let is_named = args.only.contains(&plan.fault);
        reports.push(run_phase(&torture, plan, &setting, is_named)?);
    }
    print!("{}", report::table(&reports));
    match reports.iter().all(Report::is_clean) {
        true => Ok(ExitCode::SUCCESS),
        false => {
            eprintln!("error: violations; the logs are in {}", directory.display());
            Ok(ExitCode::FAILURE)
        }
    }
}

fn is_chosen(plan: &Plan, args: &TortureArgs) -> bool {
    match args.short {
        true => plan.in_short,
        false => args.only.is_empty() || args.only.contains(&plan.fault),
    }
}

fn run_phase(
    torture: &Torture<'_>,
    plan: &Plan,
    setting: &Setting<'_>,
    is_named: bool,
) -> Result<Report> {
    let name = plan
        .fault
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned());
    println!("\n== {name}");
    let began = Instant::now();
    let outcomes = match (plan.run)(torture, setting) {
        Err(error) if error.is::<Interrupted>() => return Err(error),
        outcomes => outcomes,
    };
    let floor = plan.floor(setting.lasts);
    let report = Report::new(name, outcomes, began.elapsed(), floor, is_named);
    print!("{}", report.details());
    Ok(report)
}

fn inspect(path: &Path) -> Result<Binary> {
    let path = path.canonicalize().with_context(|| format!("no binary {}", path.display()))?;
    Binary::inspect(path)
}

/// Builds the binary that the tests use too.
fn build(root: &Path, target: &Path, interrupt: &Interrupt) -> Result<Binary> {
    cargo_build(root, &["--package", "windlass-cli"], interrupt)?;
    Binary::inspect(binary_path(target))
}

/// Builds the program with workflows of our own. `cargo test` builds it too.
fn build_worker(root: &Path, target: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let args = ["--package", "windlass-server", "--example", "torture_worker"];
    cargo_build(root, &args, interrupt)?;
    Ok(target.join("debug").join("examples").join("torture_worker"))
}

fn cargo_build(root: &Path, args: &[&str], interrupt: &Interrupt) -> Result<()> {
    let mut cargo = workspace::cargo(root);
    cargo.args(["build", "--quiet"]).args(args).stdin(Stdio::null());
    let status = process::run(&mut cargo, interrupt)?;
    if !status.success() {
        bail!("`cargo build {}` failed ({status})", args.join(" "));
    }
    Ok(())
}

fn binary_path(target: &Path) -> PathBuf {
    target.join("debug").join("windlass")
}

fn seed_of_the_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_one_plan_and_the_short_form_has_some() {
        for fault in Fault::value_variants() {
            assert_eq!(PLANS.iter().filter(|plan| plan.fault == *fault).count(), 1, "{fault:?}");
        }
        assert!(PLANS.iter().any(|plan| is_chosen(plan, &TortureArgs::short(Path::new(".")))));
        assert!(PLANS.iter().all(|plan| plan.operations_min > 0 && plan.faults_min > 0));
    }

    #[test]
    fn a_longer_phase_must_do_more() {
        let plan = PLANS.iter().find(|plan| plan.fault == Fault::KillSqlite).unwrap();
        let floor = |secs| {
            let Floor { operations, faults } = plan.floor(Duration::from_secs(secs));
            (operations, faults)
        };
        assert_eq!(
            [floor(5), floor(10), floor(30), floor(110)],
            [(50, 3), (50, 3), (100, 6), (300, 18)]
        );
    }
}
