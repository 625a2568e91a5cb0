//! `windlass doctor` and `windlass migrate`: checks a store and its machine, and migrates the
//! schema.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass::kernel::Fact;
use windlass::{Address, Store};

use super::{Opened, open, open_read_only};
use crate::args::InspectArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, now, sanitize};
use crate::redact::without_password;

/// The maximum difference between the clocks of the store and of this machine.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(1);
/// Less free space is reported as a problem.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// A slower fsync is reported as a problem: every commit waits for one.
const FSYNC_MAX: Duration = Duration::from_millis(20);
const FSYNCS: u32 = 10;

pub(crate) async fn doctor(InspectArgs { store: arg, output }: InspectArgs) -> Outcome {
    let opened = open_read_only(&arg).await?;
    let (store, shown) = (&opened.store, opened.display());
    let mut facts = vec![Fact::new("store", shown)];
    facts.extend(store.facts().await?);
    facts.push(clock(&**store).await?);
    if let Ok(Address::Sqlite(path)) = opened.address.parse() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        facts.push(disk(folder)?);
        facts.push(fsync(folder)?);
    }
    let damage = store.check().await?;
    if damage.is_empty() {
        facts.push(Fact::new("damage", "none found"));
    }
    for sentence in damage {
        let worry = "restore a backup, or export the runs that are still readable";
        facts.push(Fact::new("damage", sentence).warning(Some(worry.to_owned())));
    }
    match queues(&**store).await {
        Ok(found) => facts.extend(found),
        // A missing index makes this fail; the schema check already reported it.
        Err(failure) => {
            facts.push(Fact::new("queues", "unreadable").warning(Some(failure.to_string())));
        }
    }
    store.close().await?;
    let worries = facts.iter().filter(|fact| fact.warning.is_some()).count();
    let out = Out::new(output.output);
    match out.is_text() {
        true => print(out, &facts, worries)?,
        false => out.list(&document(&facts, worries), "facts")?,
    }
    Ok(if worries == 0 { Exit::Ok } else { Exit::Error })
}

fn print(out: Out, facts: &[Fact], worries: usize) -> Result<(), Failure> {
    for fact in facts {
        let mark = out.check_mark(fact.warning.is_none());
        let name = out.bold(&format!("{:<18}", fact.name));
        out.line(&format!("{mark} {name} {}", sanitize(&fact.value)))?;
        if let Some(worry) = &fact.warning {
            out.line(&format!("   {}", sanitize(worry)))?;
        }
    }
    match worries {
        0 => out.line("no problems found"),
        1 => out.line("1 problem"),
        many => out.line(&format!("{many} problems")),
    }
}

fn document(facts: &[Fact], worries: usize) -> Value {
    let fact = |fact: &Fact| {
        let mut row = json!({ "name": fact.name, "value": fact.value });
        if let Some(worry) = &fact.warning {
            row["worry"] = worry.as_str().into();
        }
        row
    };
    json!({ "facts": facts.iter().map(fact).collect::<Vec<_>>(), "worries": worries })
}

// Timers use the clock of the store; users read the clock of this machine.
async fn clock(store: &dyn Store) -> Result<Fact, Failure> {
    let before = Instant::now();
    let theirs = store.now().await?;
    let trip = before.elapsed();
    let ours = now().as_microsecond();
    // Assumes that the response took half of the round trip.
    let half = i64::try_from(trip.as_micros() / 2).unwrap_or(0);
    let apart = Duration::from_micros((ours - half).abs_diff(theirs.as_micros()));
    let shown = format!("{:.3} s difference to this machine", apart.as_secs_f64());
    let worry = "synchronize both clocks with NTP; timers use the clock of the store";
    let too_far = apart > CLOCK_DIFFERENCE_MAX;
    Ok(Fact::new("clock", shown).warning(too_far.then(|| worry.to_owned())))
}

fn disk(folder: &Path) -> Result<Fact, Failure> {
    let found = rustix::fs::statvfs(folder).map_err(std::io::Error::from)?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let shown = format!("{:.1} GiB free", free as f64 / f64::from(1 << 30));
    let worry = "a full disk stops all commits; free some space";
    Ok(Fact::new("disk", shown).warning((free < FREE_BYTES_MIN).then(|| worry.to_owned())))
}

// Measures the cost of a commit: a small write and an fsync.
fn fsync(folder: &Path) -> Result<Fact, Failure> {
    let path = folder.join(format!("windlass-doctor-{}", std::process::id()));
    let measure = || -> std::io::Result<Duration> {
        let mut file = File::create(&path)?;
        let mut best = Duration::MAX;
        for _ in 0..FSYNCS {
            file.write_all(&[0; 4_096])?;
            let started = Instant::now();
            file.sync_data()?;
            best = best.min(started.elapsed());
        }
        Ok(best)
    };
    let measured = measure();
    // Removes the file even if the measurement failed.
    let _ = std::fs::remove_file(&path);
    let best = measured?;
    let worry = "every commit waits for this; use a faster disk";
    let shown = format!("{:.2} ms", best.as_secs_f64() * 1e3);
    Ok(Fact::new("fsync", shown).warning((best > FSYNC_MAX).then(|| worry.to_owned())))
}

async fn queues(store: &dyn Store) -> Result<Vec<Fact>, Failure> {
    let health = store.health().await?;
    let waiting = health.turns.ready.count > 0 || health.tasks.ready.count > 0;
    let nobody = waiting && health.workers_live == 0;
    let worry = "work is ready, but no worker is live; start a program that serves it";
    let ready = format!("{} turns and {} tasks ready", health.turns.ready, health.tasks.ready);
    let letters = health.dead_letters;
    let dead = (letters.count > 0)
        .then(|| "tasks failed permanently; see their errors with `windlass dlq list`".to_owned());
    Ok(vec![
        Fact::new("workers", format!("{} live, {ready}", health.workers_live))
            .warning(nobody.then(|| worry.to_owned())),
        Fact::new("dead letters", letters.to_string()).warning(dead),
    ])
}

/// Migrates the schema, which happens on open, and prints the version.
pub(crate) async fn migrate(InspectArgs { store: arg, output }: InspectArgs) -> Outcome {
    let Opened { store, address } = open(&arg).await?;
    let facts = store.facts().await?;
    let schema = facts.into_iter().find(|fact| fact.name == "schema").map(|fact| fact.value);
    let schema = schema.unwrap_or_default();
    store.close().await?;
    let (out, shown) = (Out::new(output.output), without_password(&address));
    match out.is_text() {
        true => out.line(&format!("the schema of {shown} is up to date: {schema}"))?,
        false => out.value(&json!({ "store": shown, "schema": schema }))?,
    }
    Ok(Exit::Ok)
}
