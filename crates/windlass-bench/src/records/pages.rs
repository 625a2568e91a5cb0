//! Counts the pages that reads and writes of records touch, with the statistics of the database or of the
//! operating system.

use std::time::Duration;

use anyhow::Context as _;

use super::{Bench, place_of};
use crate::backend::{Databases, bytes_read};

/// The number of openings for each kind of call on SQLite. Each opening measures one call.
const OPENINGS: u64 = 9;
/// The maximum delay of PostgreSQL's statistics.
const STATISTICS_DELAY: Duration = Duration::from_secs(12);
/// The time in which a store finishes its own work after it was opened.
const STARTUP_DELAY: Duration = Duration::from_secs(3);

const CALLS: [&str; 3] = ["get", "put", "page"];

/// The pages of a get, a put and a page by term, if the database reports them.
pub(super) async fn count(
    place: &Databases,
    count: u64,
    samples: u64,
) -> anyhow::Result<Option<Vec<(&'static str, f64)>>> {
    match place {
        Databases::Sqlite(_) => sqlite(place, count).await.map(Some),
        Databases::Postgres { .. } => postgres(place, count, samples.min(count)).await.map(Some),
        Databases::Memory => Ok(None),
    }
}

async fn call(bench: &Bench, name: &str, n: u64, revision: u64) -> anyhow::Result<()> {
    match name {
        "get" => bench.get(n).await.map(drop),
        "put" => bench.replace(n, revision).await,
        _ => bench.page(n).await,
    }
}

// A connection reads each page once and caches it, so each call has a store that was just opened. Returns
// the median.
async fn sqlite(place: &Databases, count: u64) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let page_bytes = f64::from(windlass_sqlite::Options::default().page_bytes);
    let mut counted = Vec::new();
    for name in CALLS {
        let mut found = Vec::new();
        for opening in 0..OPENINGS {
            let n = place_of(opening + 5_000, count);
            let opened = place.open("full").await?;
            let bench = Bench::new(opened.store())?;
            // The writer has a connection of its own, so this read warms up no put.
            let revision = if name == "put" { bench.get(n).await? } else { 0 };
            // Loads the schema, which is not measured.
            opened.store().now().await?;
            let before = bytes_read()?;
            call(&bench, name, n, revision).await?;
            found.push((bytes_read()? - before) as f64 / page_bytes);
            opened.store().close().await?;
        }
        found.sort_by(f64::total_cmp);
        counted.push((name, found[found.len() / 2]));
    }
    Ok(counted)
}

// PostgreSQL counts each access to a page of a table or an index, cached or not. Returns the mean.
async fn postgres(
    place: &Databases,
    count: u64,
    samples: u64,
) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let monitor = place.connect().await?;
    let schema = place.schema("full")?;
    let opened = place.open("full").await?;
    let bench = Bench::new(opened.store())?;
    tokio::time::sleep(STARTUP_DELAY).await;
    for table in ["records", "record_terms"] {
        let table = format!("\"{schema}\".{table}");
        let off = format!("ALTER TABLE {table} SET (autovacuum_enabled = off)");
        monitor.batch_execute(&off).await?;
        monitor.batch_execute(&format!("VACUUM (ANALYZE, INDEX_CLEANUP ON) {table}")).await?;
    }
    let mut counted = Vec::new();
    for name in CALLS {
        let mut revisions = Vec::new();
        for sample in 0..samples {
            let n = place_of(sample + 5_000, count);
            revisions.push((n, if name == "put" { bench.get(n).await? } else { 0 }));
        }
        revisions.sort_unstable();
        revisions.dedup_by_key(|(n, _)| *n);
        let before = accesses(&monitor, &schema).await?;
        for (n, revision) in &revisions {
            call(&bench, name, *n, *revision).await?;
        }
        let after = accesses(&monitor, &schema).await?;
        counted.push((name, (after - before) as f64 / revisions.len() as f64));
    }
    opened.store().close().await?;
    Ok(counted)
}

async fn accesses(monitor: &tokio_postgres::Client, schema: &str) -> anyhow::Result<i64> {
    tokio::time::sleep(STATISTICS_DELAY).await;
    let sql = "SELECT coalesce(sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit, 0) \
               + coalesce(idx_blks_read, 0)), 0)::int8 FROM pg_statio_user_tables \
               WHERE schemaname = $1 AND relname LIKE 'record%'";
    let row = monitor.query_one(sql, &[&schema]).await.context("failed to read the page counts")?;
    Ok(row.get(0))
}
