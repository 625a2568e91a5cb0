//! `sequential`: one run at a time, compared with fsync on SQLite, or with five commits of one-row
//! INSERTs on PostgreSQL.

use std::io::Write as _;
use std::time::Instant;

use anyhow::Context as _;
use windlass::admin::Options;

use super::{engine, few_steps};
use crate::backend::{Databases, Target, directory};
use crate::report::{Report, Times};

/// Options of `sequential`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of runs.
    #[arg(long, default_value_t = 500)]
    runs: u64,
    /// Steps of a run.
    #[arg(long, default_value_t = 3)]
    steps: usize,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Databases::new(&args.target)?;
    let opened = place.open("sequential").await?;
    let engine = engine(&opened, Options::default()).await?;
    let workflow = few_steps(&engine, args.steps)?;
    let mut times = Times::default();
    let before = engine.admin().metrics().commits.get();
    for n in 0..args.runs {
        let started = Instant::now();
        let run = workflow.start(n).await?;
        run.result().await?;
        times.add(started.elapsed());
    }
    let commits = engine.admin().metrics().commits.get() - before + args.runs;
    engine.stop(std::time::Duration::from_secs(1)).await?;
    let p50 = times.percentile_ms(0.5);
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("runs", args.runs)
        .put("steps", args.steps)
        .put("p50_ms", p50)
        .put("p99_ms", times.percentile_ms(0.99))
        .put("commits_per_run", commits as f64 / args.runs as f64);
    match &place {
        Databases::Sqlite(_) => {
            let sync = sync_p50_ms(args)?;
            report.put("fdatasync_p50_ms", sync).put("run_in_fdatasyncs", p50 / sync);
        }
        Databases::Postgres { .. } => {
            let inserts = five_inserts_p50_ms(&place, args).await?;
            report.put("five_inserts_p50_ms", inserts).put("ratio", p50 / inserts);
        }
        Databases::Memory => {}
    }
    place.remove().await?;
    Ok(report)
}

// The fsync after an append of one page, in the same directory.
fn sync_p50_ms(args: &Args) -> anyhow::Result<f64> {
    let folder = directory(args.target.path())?;
    let mut file =
        std::fs::File::create(folder.path().join("sync")).context("failed to create a file")?;
    let mut times = Times::default();
    for _ in 0..args.runs.clamp(100, 1_000) {
        let started = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.add(started.elapsed());
    }
    Ok(times.percentile_ms(0.5))
}

async fn five_inserts_p50_ms(place: &Databases, args: &Args) -> anyhow::Result<f64> {
    let client = place.connect().await?;
    let schema = place.schema("inserts")?;
    client
        .batch_execute(&format!(
            "CREATE SCHEMA \"{schema}\"; CREATE TABLE \"{schema}\".t (id bigint PRIMARY KEY, v text)"
        ))
        .await?;
    let insert =
        client.prepare(&format!("INSERT INTO \"{schema}\".t VALUES ($1, 'a value')")).await?;
    let mut times = Times::default();
    for n in 0..args.runs as i64 {
        let started = Instant::now();
        for place in 0..5_i64 {
            client.execute(&insert, &[&(n * 5 + place)]).await?;
        }
        times.add(started.elapsed());
    }
    Ok(times.percentile_ms(0.5))
}
