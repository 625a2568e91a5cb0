//! How many pages a claim reads, as the database or the kernel of the system counts them.

use std::time::Duration;

use anyhow::{Context as _, anyhow};

use windlass_kernel::Task;

use super::{Bench, claim_request};

/// Claims of one count.
const CLAIMS: usize = 20;
/// Counts on SQLite.
const OPENINGS: usize = 5;
/// PostgreSQL's backends tell what they counted at most this late.
const TOLD_AFTER: Duration = Duration::from_secs(12);
/// A store has done by then what it does on its own after it was opened.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

impl Bench<'_> {
    /// SQLite reads a page of its file once and keeps it. So the store is opened afresh, and the
    /// bytes that this process reads during the first claims are the pages which these touch: the
    /// mean of several claims, and the median of several openings.
    pub(super) async fn pages_sqlite(&mut self) -> anyhow::Result<f64> {
        let page_bytes = f64::from(windlass_sqlite::Options::default().page_bytes);
        let mut counts = Vec::new();
        for _ in 0..OPENINGS {
            self.opened.store().close().await?;
            self.opened = self.place.open("claim").await?;
            let store = self.opened.store();
            // The schema, the statements and the first transaction are not what is measured.
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
            anyhow::ensure!(tasks.len() == self.batch, "a claim came back with {}", tasks.len());
            claimed.extend(tasks);
        }
        Ok(claimed)
    }

    /// PostgreSQL counts each access to a page of a table or an index, found in memory or read: the
    /// mean of several claims. As many go before them, so that the indexes of held tasks are not
    /// empty in one state and grown in the other.
    pub(super) async fn pages_postgres(&mut self) -> anyhow::Result<f64> {
        let monitor = self.place.connect().await?;
        let schema = self.place.schema("claim")?;
        // What the preparation left behind is swept up first, indexes too, as the store does itself
        // in a while. Left to itself, VACUUM spares the indexes if a large table has little to sweep.
        // A store that was just opened still makes partitions ahead; while it does, a VACUUM leaves
        // everything younger as it is, and what a page costs would depend on when it came by.
        tokio::time::sleep(SETTLED_AFTER).await;
        // The pages that autovacuum reads would be counted too, if it came by meanwhile.
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
    tokio::time::sleep(TOLD_AFTER).await;
    let sql = "SELECT coalesce(sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit, 0) \
               + coalesce(idx_blks_read, 0)), 0)::int8 \
               FROM pg_statio_user_tables WHERE schemaname = $1";
    let row = monitor.query_one(sql, &[&schema]).await.context("the counts cannot be read")?;
    Ok(row.get(0))
}

/// Bytes that this process has read with system calls, from files and everything else.
fn bytes_read() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")
        .context("this system does not tell what a process reads")?;
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    let count = line.ok_or_else(|| anyhow!("/proc/self/io has no rchar"))?;
    Ok(count.trim().parse()?)
}
