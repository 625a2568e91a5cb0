//! Workers: leases, holds, and reaping the holds of dead workers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use uuid::Uuid;
use windlass_kernel::{
    BreakerRow, Error, HeldItem, LimitKey, Namespace, RateRow, Reaped, Renewed, RunKey, TaskId,
    Timestamp, Wakeup, WorkerInfo, WorkerKey,
};

use crate::holds::read_released;
use crate::rows::{Cells, routes_text};
use crate::schema::keep_partitions_ahead;
use crate::store::Shared;

const RENEW: &str = "SELECT code, op, n, flag, key, (SELECT min(o.renewed_at + o.lease_us) \
    FROM @schema@.workers o WHERE o.worker <> $1 AND o.status <> 'stopped' \
    AND o.renewed_at + o.lease_us >= @schema@.clock_us()) FROM \
    @schema@.renew($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
    $16, $17, $18)";

// `Worker::steady_with` of the kernel, for a worker that may not reap.
const CONTINUE_SERIES: &str = "UPDATE @schema@.workers w SET steady_since = s.since \
    FROM (SELECT min(o.steady_since) AS since FROM @schema@.workers k \
        JOIN @schema@.workers o ON o.worker <> k.worker AND o.status <> 'stopped' \
        AND o.renewed_at + least(o.lease_us, k.lease_us) / 2 >= k.steady_since \
        WHERE k.worker = $1) s \
    WHERE w.worker = $1 AND s.since < w.steady_since \
    RETURNING w.status <> 'stopped' AND $2 >= w.steady_since + w.lease_us";

const DRAIN: &str = "UPDATE @schema@.workers w SET drain = true \
    WHERE w.worker = $1 AND w.status <> 'stopped' RETURNING true";

const REAP: &str = "SELECT code, key, n, queue, name, flag FROM @schema@.reap($1, $2)";

const HELD: &str = "SELECT false, r.run_key, r.turn_claim_no FROM @schema@.runs r \
    WHERE r.turn_worker = $1 \
    UNION ALL SELECT true, t.task_id, t.claim_no FROM @schema@.tasks t WHERE t.worker = $1 \
    ORDER BY 1, 2";

const RATE: &str = "SELECT @schema@.clock_us(), r.rate_key, r.interval_us, r.burst, r.spent_until, \
    r.queued_until, r.version FROM (SELECT 1) one LEFT JOIN @schema@.rates r \
    ON r.namespace = $1 AND r.rate_key = $2";

const PUT_RATE: &str = "INSERT INTO @schema@.rates VALUES ($1, $2, $3, $4, $5, $6, $7) \
    ON CONFLICT DO NOTHING RETURNING version";

const SWAP_RATE: &str = "UPDATE @schema@.rates r SET interval_us = $3, burst = $4, \
    spent_until = $5, queued_until = $6, version = $7::int8 \
    WHERE r.namespace = $1 AND r.rate_key = $2 AND r.version = $7::int8 - 1 RETURNING r.version";

const DELETE_BREAKERS: &str =
    "DELETE FROM @schema@.breakers b WHERE b.status = 'closed' AND b.updated_at < $1";

const DELETE_RATES: &str = "DELETE FROM @schema@.rates r WHERE r.interval_us = 0 \
    AND r.spent_until < $1 AND r.queued_until < $1";

/// How often old breakers and rates are deleted.
const DELETE_EVERY: Duration = Duration::from_secs(60 * 60);

pub(crate) fn statements() -> Vec<(String, String)> {
    [
        ("renew", RENEW),
        ("continue series", CONTINUE_SERIES),
        ("drain", DRAIN),
        ("rate", RATE),
        ("put rate", PUT_RATE),
        ("swap rate", SWAP_RATE),
        ("reap", REAP),
        ("held", HELD),
    ]
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .to_vec()
}

/// Registers a worker, or renews its lease.
pub(crate) async fn renew(shared: &Shared, info: WorkerInfo) -> Result<Renewed, Error> {
    let lease = i64::try_from(info.lease.as_micros()).unwrap_or(i64::MAX / 4);
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let took = whole(u64::try_from(info.tasks_took.as_micros()).unwrap_or(u64::MAX));
    let (turns, tasks) = (routes_text(&info.turns), routes_text(&info.tasks));
    let rows = shared
        .lease(
            RENEW,
            &[
                &info.worker.0,
                &&*info.name,
                &&*info.version,
                &info.status.as_str(),
                &lease,
                &turns,
                &tasks,
                &i64::from(info.slots),
                &info.note.as_deref(),
                &i64::from(info.load),
                &i64::from(info.task_slots),
                &i64::from(info.task_load),
                &info.accepting,
                &&*info.group,
                &&*info.host,
                &whole(info.tasks_completed),
                &whole(info.tasks_failed),
                &took,
            ],
        )
        .await?;
    let mut renewed = Renewed {
        now: Timestamp::ZERO,
        lapsed: false,
        may_reap: false,
        control: Vec::new(),
        drain: false,
        next_lapse: None,
    };
    for row in &rows {
        let mut cells = Cells::of(row);
        let c = &mut cells;
        let code: i16 = c.take()?;
        let flags: Option<i32> = c.take()?;
        let now: Option<i64> = c.take()?;
        let lapsed: Option<bool> = c.take()?;
        let key: Option<Uuid> = c.take()?;
        if code == 0 {
            renewed.next_lapse = c.time_opt()?;
            renewed.now = Timestamp::from_micros(now.unwrap_or(0));
            renewed.lapsed = lapsed.unwrap_or(false);
            renewed.may_reap = flags.is_some_and(|flags| flags & 1 != 0);
            renewed.drain = flags.is_some_and(|flags| flags & 2 != 0);
        } else {
            renewed.control.extend(key.map(RunKey));
        }
    }
    if !renewed.may_reap {
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
            [&info.worker.0, &renewed.now.as_micros()];
        let rows = shared.lease(CONTINUE_SERIES, &params).await?;
        renewed.may_reap = rows.first().is_some_and(|row| row.get(0));
    }
    if let Err(error) = keep_partitions_ahead(shared, renewed.now).await {
        tracing::warn!(%error, "cannot create partitions; rows go to the default partitions");
    }
    Ok(renewed)
}

/// Asks a worker to drain.
pub(crate) async fn drain(shared: &Shared, worker: WorkerKey) -> Result<bool, Error> {
    let found = !shared.query(DRAIN, &[&worker.0]).await?.is_empty();
    if found {
        shared.waker.publish(vec![Wakeup::Drain(worker)]);
    }
    Ok(found)
}

/// Reads the rate of a key and the clock.
pub(crate) async fn rate(
    shared: &Shared,
    namespace: Namespace,
    key: LimitKey,
) -> Result<(Option<RateRow>, Timestamp), Error> {
    let rows = shared.read(RATE, &[&namespace.as_str(), &key.as_str()]).await?;
    let row = rows.first().ok_or_else(|| Error::corrupt("the query for a rate returned no row"))?;
    let mut cells = Cells::of(row);
    let c = &mut cells;
    let now = c.time()?;
    if c.take::<Option<&str>>()?.is_none() {
        return Ok((None, now));
    }
    let row = RateRow {
        namespace,
        key,
        interval_us: c.count()?,
        burst: c.count32()?,
        spent_until: c.time()?,
        queued_until: c.time()?,
        version: c.count()?,
    };
    Ok((Some(row), now))
}

/// Replaces the previous version of a rate.
pub(crate) async fn swap_rate(shared: &Shared, row: RateRow, notify: bool) -> Result<bool, Error> {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let sql = if row.version == 1 { PUT_RATE } else { SWAP_RATE };
    let (interval, version) = (number(row.interval_us), number(row.version));
    let (spent, queued) = (row.spent_until.as_micros(), row.queued_until.as_micros());
    let (namespace, key, burst) = (row.namespace.as_str(), row.key.as_str(), i64::from(row.burst));
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
        [&namespace, &key, &interval, &burst, &spent, &queued, &version];
    let swapped = !shared.query(sql, &params).await?.is_empty();
    if swapped && notify {
        shared.waker.publish(vec![Wakeup::Missed]);
    }
    Ok(swapped)
}

/// Releases the holds of dead workers.
pub(crate) async fn reap(shared: &Shared, worker: WorkerKey, limit: u32) -> Result<Reaped, Error> {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let rows = shared.query(REAP, &[&worker.0, &limit]).await?;
    let permitted = rows
        .iter()
        .any(|row| row.get::<_, i16>(0) == 0 && row.get::<_, Option<bool>>(5).unwrap_or(false));
    let mut released = read_released(&rows)?;
    released.sort_unstable_by_key(|item| (item.claimed_at, item.key));
    let mut reaped = Reaped { permitted, ..Reaped::default() };
    let mut wakeups = Vec::new();
    for item in &released {
        match item.is_task {
            true => reaped.tasks.push(TaskId(item.key)),
            false => reaped.turns.push(RunKey(item.key)),
        }
        wakeups.extend(item.wakeup());
    }
    shared.waker.publish(wakeups);
    let now = rows.iter().find(|row| permitted && row.get::<_, i16>(0) == 0);
    if let Some(now) = now.and_then(|row| row.get::<_, Option<i64>>(2)) {
        delete_old(shared, Timestamp::from_micros(now)).await?;
    }
    Ok(reaped)
}

// The kernel's `BreakerRow::is_old` and `RateRow::is_old`. Reads both tables, so not at every pass.
async fn delete_old(shared: &Shared, now: Timestamp) -> Result<(), Error> {
    let due_at = shared.delete_old_at.load(Ordering::Acquire);
    if now.as_micros() < due_at {
        return Ok(());
    }
    shared.delete_old_at.store(now.plus(DELETE_EVERY).as_micros(), Ordering::Release);
    shared.query(DELETE_BREAKERS, &[&now.minus(BreakerRow::KEPT_FOR).as_micros()]).await?;
    shared.query(DELETE_RATES, &[&now.minus(RateRow::KEPT_FOR).as_micros()]).await?;
    Ok(())
}

/// Everything that a worker holds.
pub(crate) async fn held(shared: &Shared, worker: WorkerKey) -> Result<Vec<HeldItem>, Error> {
    let rows = shared.read(HELD, &[&worker.0]).await?;
    let item = |row: &tokio_postgres::Row| {
        let mut cells = Cells::of(row);
        let c = &mut cells;
        let is_task: bool = c.take()?;
        let key: Uuid = c.take()?;
        let claim_no = c.count()?;
        Ok(match is_task {
            true => HeldItem::Task { task_id: TaskId(key), worker, claim_no },
            false => HeldItem::Turn { run_key: RunKey(key), worker, claim_no },
        })
    };
    crate::rows::all(&rows, item)
}
