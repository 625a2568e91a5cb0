//! `flips`: flips bits and truncates files. The store must detect each damage, or be unaffected by
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use windlass_kernel::Store;
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::damage::{
    Damage, Journal, Open, Outcome, Record, Remains, examine, examine_log, write_log, write_sample,
};

use crate::backend::directory;
use crate::report::Report;

/// Options of `flips`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of damaged copies of the closed file.
    #[arg(long, default_value_t = 10_000)]
    flips: u64,
    /// The number of damaged copies of the log of an open store.
    #[arg(long, default_value_t = 1_000)]
    log_flips: u64,
    /// The first seed; each copy uses the next one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of finished runs in the file.
    #[arg(long, default_value_t = 60)]
    runs: usize,
    /// The number of commits in the log.
    #[arg(long, default_value_t = 300)]
    commits: usize,
    /// The directory for the copies. Default: `target`.
    #[arg(long)]
    path: Option<PathBuf>,
}

/// The number of concurrent examinations.
const CONCURRENCY: u64 = 2;
/// The time limit of one examination.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The maximum number of printed failures.
const PRINTED_MAX: usize = 20;

/// Damages closed files, then logs.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let directory = directory(args.path.as_deref())?;
    let mut report = Report::default();
    report.put("seed", args.seed);
    files(args, directory.path(), &mut report).await?;
    logs(args, directory.path(), &mut report).await?;
    Ok(report)
}

/// Opens a store with one reader: the copies are small, and threads cost more than they gain.
fn open_sqlite() -> Open {
    Arc::new(|path| {
        Box::pin(async move {
            let options = Options { readers: 1, ..Options::default() };
            let store: Arc<dyn Store> = SqliteStore::open(path, options)?;
            Ok(store)
        })
    })
}

async fn files(args: &Args, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let open = open_sqlite();
    let path = directory.join("sample.db");
    let store = open(path.clone()).await?;
    write_sample(store.clone(), args.runs).await;
    let record = Record::read(&*store).await?;
    store.close().await?;
    drop(store);
    report.put("close_log_bytes", fs::metadata(log_of(&path)).map_or(0, |log| log.len()));
    copy_log(&path)?;
    let bytes = fs::read(&path).context("failed to read the sample")?;
    // The undamaged copy must be unchanged, or the test is invalid.
    let copy = Copy::new(directory, "control")?;
    let control = examine(&open, copy.write(&bytes, &[])?, &record).await;
    anyhow::ensure!(control == Outcome::Unchanged, "without damage: {control:?}");

    report.put("file_bytes", bytes.len()).put("file_runs", record.runs());
    let length = bytes.len();
    let shared = Arc::new((open, bytes, record));
    let outcomes = examine_all(args.flips, args.seed, directory, "file", move |seed, copy| {
        let shared = shared.clone();
        async move {
            let (open, bytes, record) = &*shared;
            let damage = Damage::draw(seed, length);
            let path = copy.write(&damage.inflict(bytes), &[])?;
            let outcome = examine(open, path, record).await;
            let bad = match &outcome {
                Outcome::Missed(what) => Some(format!("MISSED {damage:?}: {what}")),
                _ => None,
            };
            let word = match &outcome {
                Outcome::Beside(fields) => format!("beside {fields}"),
                outcome => outcome.word().to_owned(),
            };
            Ok((word, bad))
        }
    });
    let counts = outcomes.await?;
    for word in ["open", "check", "verify", "read", "unchanged", "missed"] {
        report.put(&format!("file_{word}"), counts.count(word));
    }
    // The fields that no check covers, one by one.
    for (word, count) in counts.words.iter().filter(|(word, _)| word.starts_with("beside")) {
        report.put(&format!("file_{word}"), count);
    }
    counts.fail(report, "file");
    Ok(())
}

/// Checkpoints the log of a closed store, so that one file is left to damage.
fn copy_log(path: &Path) -> anyhow::Result<()> {
    let connection = rusqlite::Connection::open(path)?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}

async fn logs(args: &Args, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let open = open_sqlite();
    let path = directory.join("logged.db");
    let store = open(path.clone()).await?;
    let journal: Journal = write_log(store.clone(), args.commits, args.seed).await;
    // There are no writers now, so the two files are what a crash at this moment would leave.
    let bytes = fs::read(&path).context("failed to read the file")?;
    let log = fs::read(log_of(&path)).context("failed to read the log")?;
    store.close().await?;
    anyhow::ensure!(!log.is_empty(), "the log of the store is empty");
    let copy = Copy::new(directory, "control-log")?;
    let control = examine_log(&open, copy.write(&bytes, &log)?, &journal).await;
    let all = Remains::Prefix(journal.commits());
    anyhow::ensure!(control == all, "without damage: {control:?}");

    report.put("log_bytes", log.len()).put("log_commits", journal.commits());
    let commits = journal.commits();
    let shared = Arc::new((open, bytes, log, journal));
    let counts = examine_all(args.log_flips, args.seed, directory, "log", move |seed, copy| {
        let shared = shared.clone();
        async move {
            let (open, bytes, log, journal) = &*shared;
            let damage = Damage::draw(seed, log.len());
            let path = copy.write(bytes, &damage.inflict(log))?;
            Ok(match examine_log(open, path, journal).await {
                Remains::Refused(_) => ("refused".to_owned(), None),
                Remains::Noticed(_) => ("noticed".to_owned(), None),
                Remains::Prefix(found) if found == commits => ("whole".to_owned(), None),
                Remains::Prefix(_) => ("prefix".to_owned(), None),
                Remains::Missed(what) => {
                    ("missed".to_owned(), Some(format!("MISSED {damage:?}: {what}")))
                }
            })
        }
    });
    let counts = counts.await?;
    for word in ["refused", "noticed", "whole", "prefix", "missed"] {
        report.put(&format!("log_{word}"), counts.count(word));
    }
    counts.fail(report, "log");
    Ok(())
}

/// The number of each outcome, and the failures.
#[derive(Default)]
struct Counts {
    words: BTreeMap<String, u64>,
    bad: Vec<String>,
}

impl Counts {
    fn count(&self, word: &str) -> u64 {
        self.words.get(word).copied().unwrap_or(0)
    }

    fn fail(&self, report: &mut Report, what: &str) {
        for bad in self.bad.iter().take(PRINTED_MAX) {
            report.fail(format!("{what}: {bad}"));
        }
        if self.bad.len() > PRINTED_MAX {
            report.fail(format!("{what}: and {} more", self.bad.len() - PRINTED_MAX));
        }
    }
}

/// Examines a number of seeds, a few concurrently. A panic or a timeout counts like an undetected
/// damage.
async fn examine_all<F, A>(
    count: u64,
    first: u64,
    directory: &Path,
    name: &str,
    examine_one: F,
) -> anyhow::Result<Counts>
where
    F: Fn(u64, Copy) -> A + Clone + Send + 'static,
    A: Future<Output = anyhow::Result<(String, Option<String>)>> + Send + 'static,
{
    let mut lanes = Vec::new();
    for lane in 0..CONCURRENCY {
        let (directory, name) = (directory.to_owned(), format!("{name}-{lane}"));
        let examine_one = examine_one.clone();
        lanes.push(tokio::spawn(async move {
            let mut counts = Counts::default();
            let mut seed = first + lane;
            while seed < first + count {
                // A separate directory, because a store that hangs keeps its files open.
                let copy = Copy::new(&directory, &format!("{name}-{seed}"))?;
                let used = copy.0.clone();
                let one = tokio::spawn(examine_one(seed, copy));
                let (word, bad) = match tokio::time::timeout(TIME_LIMIT, one).await {
                    Ok(Ok(answer)) => answer?,
                    Ok(Err(panic)) => ("missed".to_owned(), Some(format!("panic: {panic}"))),
                    Err(_) => ("missed".to_owned(), Some("timeout".to_owned())),
                };
                *counts.words.entry(word).or_default() += 1;
                counts.bad.extend(bad.map(|bad| format!("seed {seed}: {bad}")));
                fs::remove_dir_all(&used).context("failed to remove a copy")?;
                seed += CONCURRENCY;
            }
            anyhow::Ok(counts)
        }));
    }
    let mut all = Counts::default();
    for lane in lanes {
        let counts = lane.await.context("an examination task panicked")??;
        for (word, count) in counts.words {
            *all.words.entry(word).or_default() += count;
        }
        all.bad.extend(counts.bad);
    }
    Ok(all)
}

/// A directory for one damaged copy.
struct Copy(PathBuf);

impl Copy {
    fn new(directory: &Path, name: &str) -> anyhow::Result<Self> {
        let path = directory.join(name);
        fs::create_dir_all(&path).context("failed to create a directory")?;
        Ok(Self(path))
    }

    /// Writes the file, and its log if there is one.
    fn write(&self, bytes: &[u8], log: &[u8]) -> anyhow::Result<PathBuf> {
        let path = self.0.join("copy.db");
        fs::write(&path, bytes).context("failed to write a copy")?;
        if !log.is_empty() {
            fs::write(log_of(&path), log).context("failed to write a log")?;
        }
        Ok(path)
    }
}

fn log_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}
