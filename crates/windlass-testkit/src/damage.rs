//! Damage: flips bits of files and cuts files, and checks that the damage is detected.
//!
//! A store that lives in a file is filled with finished runs and closed. Its file is copied, one
//! bit is flipped or the end cut off, and the copy is opened and read. Either a check reports the
//! damage, or every recorded value is unchanged. A log of commits that were not
//! yet copied into the file may also lose its end, but only its end.

mod journal;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use windlass::admin::{Anchor, verify_store};
use windlass_kernel::{
    Body, BoxFuture, Error, Event, LogLine, Message, Namespace, Query, Run, RunKey, RunStatus,
    RunsQuery, Step, StepKey, StepStatus, Store,
};

use crate::sim::rng::Rng;

pub use journal::{Journal, Remains, examine_log, write_log};
pub use sample::write_sample;

/// Opens the store in a file.
pub type Open =
    Arc<dyn Fn(PathBuf) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> + Send + Sync>;

/// One damage to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One bit is another.
    Flip {
        /// The byte.
        offset: usize,
        /// The bit in it, from 0.
        bit: u8,
    },
    /// Everything from here on is gone.
    Cut {
        /// How many bytes are left.
        length: usize,
    },
}

impl Damage {
    /// Draws a damage for a file of this size: nine flips for one cut.
    pub fn draw(seed: u64, length: usize) -> Self {
        let mut rng = Rng::new(seed);
        let cut = rng.chance(100);
        let at = rng.below(length as u64) as usize;
        match cut {
            true => Self::Cut { length: at },
            false => Self::Flip { offset: at, bit: rng.below(8) as u8 },
        }
    }

    /// The bytes of the file after it.
    pub fn inflict(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match self {
            Self::Flip { offset, bit } => bytes[offset] ^= 1 << bit,
            Self::Cut { length } => bytes.truncate(length),
        }
        bytes
    }
}

/// The check that detected the damage first, if any did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store does not open.
    Open(String),
    /// The store's own check found it.
    Check(String),
    /// The ledger found it.
    Verify(String),
    /// The rows do not read.
    Read(String),
    /// No check, and every row is unchanged.
    Unchanged,
    /// No check, but only values without a guarantee have changed, such as log lines, times and unread
    /// messages: the names of their fields.
    Beside(String),
    /// No check, and a guaranteed value has changed.
    Missed(String),
}

impl Outcome {
    /// A word for a count.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Open(_) => "open",
            Self::Check(_) => "check",
            Self::Verify(_) => "verify",
            Self::Read(_) => "read",
            Self::Unchanged => "unchanged",
            Self::Beside(_) => "beside",
            Self::Missed(_) => "missed",
        }
    }
}

/// Everything that can be read of a store's runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The guaranteed values: ledgers, inputs, outputs, step results, errors and statuses.
    promised: BTreeMap<RunKey, Promised>,
    /// The rest.
    beside: BTreeMap<RunKey, Beside>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Promised {
    name: (Namespace, String, String, u32),
    status: RunStatus,
    input: Body,
    output: Option<Body>,
    error: Option<Body>,
    steps: BTreeMap<StepKey, (StepStatus, Option<Body>, Option<Body>)>,
    events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Beside {
    run: Run,
    steps: Vec<Step>,
    messages: Vec<Message>,
    logs: Vec<LogLine>,
}

const PAGE: u32 = 200;

impl Record {
    /// Reads everything, by every way there is to a run: all runs, those of its namespace, its
    /// name and its key.
    pub async fn read(store: &dyn Store) -> Result<Self, Error> {
        let mut record = Self { promised: BTreeMap::new(), beside: BTreeMap::new() };
        let runs = every_run(store).await?;
        for run in &runs {
            record.read_run(store, run).await?;
        }
        let mut namespaces: Vec<_> = runs.iter().map(|run| run.namespace.clone()).collect();
        namespaces.sort();
        namespaces.dedup();
        let mut listed = 0;
        for namespace in namespaces {
            listed +=
                store.list(Query::Runs(RunsQuery::all(namespace, 1_000))).await?.runs()?.len();
        }
        if listed != runs.len() {
            return Err(Error::corrupt(format!("{listed} of {} runs are listed", runs.len())));
        }
        Ok(record)
    }

    /// How many runs were read.
    pub fn runs(&self) -> usize {
        self.promised.len()
    }

    async fn read_run(&mut self, store: &dyn Store, run: &Run) -> Result<(), Error> {
        let key = run.run_key;
        let absent = || Error::corrupt(format!("run {key} is listed and is not found"));
        let (namespace, workflow, id) = (&run.namespace, &run.workflow, &run.id);
        let found = store.find(namespace.clone(), workflow.clone(), id.clone()).await?;
        found.ok_or_else(absent)?;
        let loaded = store.load(vec![key]).await?.pop().ok_or_else(absent)?;
        let query = Query::Events { run_key: key, from: 0, limit: 1_000 };
        let events = store.list(query).await?.events()?;
        let query = Query::Messages { run_key: key, after: 0, limit: 1_000 };
        let messages = store.list(query).await?.messages()?;
        let level_min = None;
        let query =
            Query::Logs { run_key: key, level_min, category: None, after: None, limit: 1_000 };
        let logs = store.list(query).await?.logs()?;

        let run = loaded.run;
        let step = |step: &Step| {
            (step.step_key.clone(), (step.status, step.result.clone(), step.error.clone()))
        };
        let promised = Promised {
            name: (
                run.namespace.clone(),
                run.workflow.to_string(),
                run.id.to_string(),
                run.generation,
            ),
            status: run.status,
            input: run.input.clone(),
            output: run.output.clone(),
            error: run.error.clone(),
            steps: loaded.steps.iter().map(step).collect(),
            events,
        };
        self.promised.insert(key, promised);
        self.beside.insert(key, Beside { run, steps: loaded.steps, messages, logs });
        Ok(())
    }

    /// The values that have changed.
    fn compare(&self, now: &Self) -> Outcome {
        if self == now {
            return Outcome::Unchanged;
        }
        let keys = self.promised.keys().chain(now.promised.keys());
        for key in keys {
            let (was, is) = (self.promised.get(key), now.promised.get(key));
            if was != is {
                return Outcome::Missed(format!("run {key}: {}", difference(was, is)));
            }
        }
        let mut fields = BTreeSet::new();
        for (key, was) in &self.beside {
            if let Some(is) = now.beside.get(key) {
                was.add_changed(is, &mut fields);
            }
        }
        Outcome::Beside(fields.into_iter().collect::<Vec<_>>().join(", "))
    }
}

impl Beside {
    /// Adds the names of the fields that differ, such as `run.queue`.
    fn add_changed(&self, now: &Self, fields: &mut BTreeSet<String>) {
        add_fields("run", &self.run, &now.run, fields);
        add_rows("step", &self.steps, &now.steps, fields);
        add_rows("message", &self.messages, &now.messages, fields);
        add_rows("log", &self.logs, &now.logs, fields);
    }
}

fn add_rows<T: Debug>(table: &str, was: &[T], is: &[T], fields: &mut BTreeSet<String>) {
    if was.len() != is.len() {
        fields.insert(format!("{table} rows"));
    }
    for (was, is) in was.iter().zip(is) {
        add_fields(table, was, is, fields);
    }
}

/// Compares the fields of two rows as `Debug` prints them: a row has no other list of its fields.
fn add_fields(table: &str, was: &impl Debug, is: &impl Debug, fields: &mut BTreeSet<String>) {
    let fields_of = |row: &dyn Debug| {
        let mut fields: BTreeMap<String, String> = BTreeMap::new();
        let mut last = String::new();
        for line in format!("{row:#?}").lines() {
            // A field of the row itself has one level of indentation; deeper lines belong to it.
            let own =
                line.strip_prefix("    ").filter(|rest| !rest.starts_with([' ', '}', ')', ']']));
            if let Some((name, _)) = own.and_then(|rest| rest.split_once(": ")) {
                last = name.to_owned();
            }
            fields.entry(last.clone()).or_default().push_str(line);
        }
        fields
    };
    let (was, is) = (fields_of(was), fields_of(is));
    for name in was.keys().filter(|name| was.get(*name) != is.get(*name)) {
        fields.insert(format!("{table}.{name}"));
    }
}

fn difference(was: Option<&Promised>, is: Option<&Promised>) -> String {
    let (Some(was), Some(is)) = (was, is) else {
        return if was.is_some() { "it is gone" } else { "it never was" }.to_owned();
    };
    let changed = [
        ("name", was.name != is.name),
        ("status", was.status != is.status),
        ("input", was.input != is.input),
        ("output", was.output != is.output),
        ("error", was.error != is.error),
        ("steps", was.steps != is.steps),
        ("events", was.events != is.events),
    ];
    let changed = changed.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name);
    changed.collect::<Vec<_>>().join(", ")
}

/// Opens a damaged file and returns the check that detects the damage.
pub async fn examine(open: &Open, path: PathBuf, before: &Record) -> Outcome {
    let store = match open(path).await {
        Ok(store) => store,
        Err(error) => return Outcome::Open(error.to_string()),
    };
    let outcome = examine_open(&*store, before).await;
    // Closing may fail on a damaged file. The findings before that count.
    let _ = store.close().await;
    outcome
}

async fn examine_open(store: &dyn Store, before: &Record) -> Outcome {
    if let Some(outcome) = noticed(store).await {
        return outcome;
    }
    match Record::read(store).await {
        Ok(now) => before.compare(&now),
        Err(error) => Outcome::Read(error.to_string()),
    }
}

/// The findings of the store's check and of the ledger, without heads that are stored elsewhere.
async fn noticed(store: &dyn Store) -> Option<Outcome> {
    match store.check().await {
        Ok(findings) if findings.is_empty() => {}
        Ok(findings) => return Some(Outcome::Check(findings.join("; "))),
        Err(error) => return Some(Outcome::Check(error.to_string())),
    }
    match verify_store(store, &[]).await {
        Ok(report) if report.is_clean() => None,
        Ok(report) => {
            let flaws = report.flaws.iter().map(ToString::to_string);
            let records = report.record_flaws.iter().map(ToString::to_string);
            let all: Vec<String> = flaws.chain(records).chain(report.unreadable).collect();
            Some(Outcome::Verify(all.join("; ")))
        }
        Err(error) => Some(Outcome::Verify(error.to_string())),
    }
}

async fn every_run(store: &dyn Store) -> Result<Vec<Run>, Error> {
    let mut runs: Vec<Run> = Vec::new();
    loop {
        let after = runs.last().map(|run| run.run_key);
        let page = store.list(Query::RunKeys { after, limit: PAGE }).await?.run_keys()?;
        let short = page.len() < PAGE as usize;
        runs.extend(store.load(page).await?.into_iter().map(|loaded| loaded.run));
        if short {
            return Ok(runs);
        }
    }
}

/// The heads of all runs, to be kept elsewhere.
pub async fn anchors(store: &dyn Store) -> Result<Vec<Anchor>, Error> {
    let anchor = |run: Run| Anchor {
        run_key: run.run_key,
        next_ordinal: run.head.next_ordinal,
        hash: run.head.hash,
    };
    Ok(every_run(store).await?.into_iter().map(anchor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ManualClock;
    use windlass_kernel::{Limits, MemoryStore};

    async fn sample(runs: usize) -> Record {
        let clock = ManualClock::new();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.as_clock(), Limits::DEFAULT));
        write_sample(store.clone(), runs).await;
        assert_eq!(noticed(&*store).await, None);
        Record::read(&*store).await.unwrap()
    }

    #[tokio::test]
    async fn changed_rows_are_reported() {
        let before = sample(8).await;
        assert_eq!(before.compare(&before), Outcome::Unchanged);
        let gone = before.compare(&sample(7).await);
        assert!(matches!(&gone, Outcome::Missed(what) if what.contains("gone")), "{gone:?}");

        let mut now = before.clone();
        let run = now.promised.values_mut().next().unwrap();
        run.events.pop();
        let cut = before.compare(&now);
        assert!(matches!(&cut, Outcome::Missed(what) if what.ends_with(": events")), "{cut:?}");

        let mut now = before.clone();
        now.beside.values_mut().next().unwrap().run.accepted += 1;
        assert_eq!(before.compare(&now), Outcome::Beside("run.accepted".into()));
    }

    #[test]
    fn a_seed_draws_the_same_wound_within_the_file() {
        let bytes = vec![0_u8; 100];
        let mut cuts = 0;
        for seed in 0..1_000 {
            let damage = Damage::draw(seed, bytes.len());
            assert_eq!(damage, Damage::draw(seed, bytes.len()));
            let after = damage.inflict(&bytes);
            assert_ne!(after, bytes);
            cuts += usize::from(after.len() < bytes.len());
        }
        assert!((50..200).contains(&cuts), "{cuts}");
    }
}
