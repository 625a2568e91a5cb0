//! `windlass doctor` and `windlass migrate`: whether a store and the machine under it are well.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass::kernel::Fact;
use windlass::{Address, Store};

use super::{Opened, look, open};
use crate::args::InspectArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, now, plain};
use crate::shown::without_password;

/// How far the clocks of the store and of this machine may be apart.
const CLOCK_APART_MAX: Duration = Duration::from_secs(1);
/// Less room than this is a worry.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// A disk that takes longer makes every commit slow.
const FSYNC_MAX: Duration = Duration::from_millis(20);
const FSYNCS: u32 = 10;

pub(crate) async fn doctor(InspectArgs { store: arg, output }: InspectArgs) -> Outcome {
    let opened = look(&arg).await?;
    let (store, shown) = (&opened.store, opened.shown());
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
        let worry = "restore from a backup, or export what still reads";
        facts.push(Fact::new("damage", sentence).worry(Some(worry.to_owned())));
    }
    match queues(&**store).await {
        Ok(found) => facts.extend(found),
        // An index may be missing: that has been said, and the rest is told all the same.
        Err(failure) => {
            facts.push(Fact::new("queues", "do not read").worry(Some(failure.to_string())));
        }
    }
    store.close().await?;
    let worries = facts.iter().filter(|fact| fact.worry.is_some()).count();
    let out = Out::new(output.output);
    match out.is_text() {
        true => print(out, &facts, worries)?,
        false => out.list(&document(&facts, worries), "facts")?,
    }
    Ok(if worries == 0 { Exit::Ok } else { Exit::Error })
}

fn print(out: Out, facts: &[Fact], worries: usize) -> Result<(), Failure> {
    for fact in facts {
        let mark = out.mark(fact.worry.is_none());
        let name = out.bold(&format!("{:<18}", fact.name));
        out.line(&format!("{mark} {name} {}", plain(&fact.value)))?;
        if let Some(worry) = &fact.worry {
            out.line(&format!("   {}", plain(worry)))?;
        }
    }
    match worries {
        0 => out.line("all is well"),
        1 => out.line("1 worry"),
        many => out.line(&format!("{many} worries")),
    }
}

fn document(facts: &[Fact], worries: usize) -> Value {
    let fact = |fact: &Fact| {
        let mut row = json!({ "name": fact.name, "value": fact.value });
        if let Some(worry) = &fact.worry {
            row["worry"] = worry.as_str().into();
        }
        row
    };
    json!({ "facts": facts.iter().map(fact).collect::<Vec<_>>(), "worries": worries })
}

// Due times follow the store's clock; people read this machine's.
async fn clock(store: &dyn Store) -> Result<Fact, Failure> {
    let before = Instant::now();
    let theirs = store.now().await?;
    let trip = before.elapsed();
    let ours = now().as_microsecond();
    // The answer was on its way for half of the round trip.
    let half = i64::try_from(trip.as_micros() / 2).unwrap_or(0);
    let apart = Duration::from_micros((ours - half).abs_diff(theirs.as_micros()));
    let shown = format!("{:.3} s apart from this machine's", apart.as_secs_f64());
    let worry = "set the clocks of both machines by NTP; timers follow the store's";
    let too_far = apart > CLOCK_APART_MAX;
    Ok(Fact::new("clock", shown).worry(too_far.then(|| worry.to_owned())))
}

fn disk(folder: &Path) -> Result<Fact, Failure> {
    let found = rustix::fs::statvfs(folder).map_err(std::io::Error::from)?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let shown = format!("{:.1} GiB free", free as f64 / f64::from(1 << 30));
    let worry = "a full disk stops every commit; make room";
    Ok(Fact::new("disk", shown).worry((free < FREE_BYTES_MIN).then(|| worry.to_owned())))
}

// What a commit pays for: a few bytes, and the disk's word that it has them.
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
    // Whether or not it could be measured, nothing is left behind.
    let _ = std::fs::remove_file(&path);
    let best = measured?;
    let worry = "every commit waits for this; use a faster disk";
    let shown = format!("{:.2} ms", best.as_secs_f64() * 1e3);
    Ok(Fact::new("fsync", shown).worry((best > FSYNC_MAX).then(|| worry.to_owned())))
}

async fn queues(store: &dyn Store) -> Result<Vec<Fact>, Failure> {
    let health = store.health().await?;
    let waiting = health.turns.ready.count > 0 || health.tasks.ready.count > 0;
    let nobody = waiting && health.workers_live == 0;
    let worry = "work is ready and no live worker takes it; start a program that serves it";
    let ready = format!("{} turns and {} tasks ready", health.turns.ready, health.tasks.ready);
    let letters = health.dead_letters;
    let dead = (letters.count > 0).then(|| "tasks were given up; look at their errors".to_owned());
    Ok(vec![
        Fact::new("workers", format!("{} live, {ready}", health.workers_live))
            .worry(nobody.then(|| worry.to_owned())),
        Fact::new("dead letters", letters.to_string()).worry(dead),
    ])
}

/// Opening a store is what brings its schema up to date; this says so and nothing else.
pub(crate) async fn migrate(InspectArgs { store: arg, output }: InspectArgs) -> Outcome {
    let Opened { store, address } = open(&arg).await?;
    let facts = store.facts().await?;
    let schema = facts.into_iter().find(|fact| fact.name == "schema").map(|fact| fact.value);
    let schema = schema.unwrap_or_default();
    store.close().await?;
    let (out, shown) = (Out::new(output.output), without_password(&address));
    match out.is_text() {
        true => out.line(&format!("{shown} has the schema of this build: {schema}"))?,
        false => out.value(&json!({ "store": shown, "schema": schema }))?,
    }
    Ok(Exit::Ok)
}
