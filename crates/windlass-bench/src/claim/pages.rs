//! Counts the pages that a claim reads, with the statistics of the database or the operating
//! system.

use std::time::Duration;

use anyhow::Context as _;

use windlass_kernel::Task;

use super::{Bench, claim_request};
use crate::backend::bytes_read;

/// The number of claims of one count.
const CLAIMS: usize = 20;
/// The number of counts on SQLite.
const OPENINGS: usize = 5;
/// The maximum delay of PostgreSQL's statistics.
const STATISTICS_DELAY: Duration = Duration::from_secs(12);
/// The time in which a store finishes its own work after it was opened.
const STARTUP_DELAY: Duration = Duration::from_secs(3);

impl Bench<'_> {
    /// SQLite reads each page of its file once and caches it. Therefore this opens the store again,
    /// and counts the bytes that the process reads during the first claims. Returns the median over
    /// several openings of the mean over several claims.
    pub(super) async fn pages_sqlite(&mut self) -> anyhow::Result<f64> {
        let page_bytes = f64::from(windlass_sqlite::Options::default().page_bytes);
        let mut counts = Vec::new();
        for _ in 0..OPENINGS {
            self.opened.store().close().await?;
            self.opened = self.place.open("claim").await?;
            let store = self.opened.store();
            // Loads the schema and the statements, which are not measured.
            store.claim(claim_request(self.worker, "nothing", self.batch)).await?;
            let before = bytes_read()?;
            let claimed = self.claim_several().await?;
            let after = bytes_read()?;
            counts.push((after - before) as f64 / page_bytes / CLAIMS as f64);
            let count = claimed.len();
            self.settle(claimed).await?;
            self.enqueue(count, None).await?;
        }
        counts.sort_by(f64::total_cmp);
        Ok(counts[OPENINGS / 2])
    }

    async fn claim_several(&self) -> anyhow::Result<Vec<Task>> {
        let mut claimed = Vec::new();
        for _ in 0..CLAIMS {
            let (tasks, _) = self.claim().await?;
            anyhow::ensure!(tasks.len() == self.batch, "a claim returned {} tasks", tasks.len());
            claimed.extend(tasks);
        }
        Ok(claimed)
    }

    /// PostgreSQL counts each access to a page of a table or index, cached or not. Returns the mean
    /// of several claims. The same number of claims runs before them, so that the indexes of held
    /// tasks are not empty in one state and large in the other.
    pub(super) async fn pages_postgres(&mut self) -> anyhow::Result<f64> {
        let monitor = self.place.connect().await?;
        let schema = self.place.schema("claim")?;
        // Vacuums the preparation first, including the indexes, like the store does after a while.
        // By default VACUUM skips the indexes if a large table has few dead rows. A store that was
        // just opened still creates partitions; meanwhile a VACUUM keeps newer dead rows, and the
        // result would depend on its timing.
        tokio::time::sleep(STARTUP_DELAY).await;
        // Autovacuum would add page reads to the count.
        let table = format!("ALTER TABLE \"{schema}\".tasks");
        monitor.batch_execute(&format!("{table} SET (autovacuum_enabled = off)")).await?;
        let sweep = format!("VACUUM (ANALYZE, INDEX_CLEANUP ON) \"{schema}\".tasks");
        monitor.batch_execute(&sweep).await?;
        let mut claimed = self.claim_several().await?;
        let before = accesses(&monitor, &schema).await?;
        claimed.extend(self.claim_several().await?);
        let after = accesses(&monitor, &schema).await?;
        monitor.batch_execute(&format!("{table} RESET (autovacuum_enabled)")).await?;
        let count = claimed.len();
        self.settle(claimed).await?;
        self.enqueue(count, None).await?;
        Ok((after - before) as f64 / CLAIMS as f64)
    }
}

async fn accesses(monitor: &tokio_postgres::Client, schema: &str) -> anyhow::Result<i64> {
    tokio::time::sleep(STATISTICS_DELAY).await;
    let sql = "SELECT coalesce(sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit, 0) \
               + coalesce(idx_blks_read, 0)), 0)::int8 \
               FROM pg_statio_user_tables WHERE schemaname = $1";
    let row = monitor.query_one(sql, &[&schema]).await.context("failed to read the page counts")?;
    Ok(row.get(0))
}
