//! Workers: their leases, what they hold, and what becomes of it when they are gone.

use uuid::Uuid;
use windlass_kernel::{
    Error, HeldItem, Reaped, Renewed, RunKey, TaskId, Timestamp, Wakeup, WorkerInfo, WorkerKey,
};

use crate::holds::freed;
use crate::rows::{Cells, routes_text};
use crate::schema::keep_partitions_ahead;
use crate::store::Shared;

const RENEW: &str = "SELECT code, op, n, flag, key FROM \
    @schema@.renew($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
    $16, $17, $18)";

const DRAIN: &str = "UPDATE @schema@.workers w SET drain = true \
    WHERE w.worker = $1 AND w.status <> 'stopped' RETURNING true";

const REAP: &str = "SELECT code, key, n, queue, name, flag FROM @schema@.reap($1, $2)";

const HELD: &str = "SELECT false, r.run_key, r.turn_claim_no FROM @schema@.runs r \
    WHERE r.turn_worker = $1 \
    UNION ALL SELECT true, t.task_id, t.claim_no FROM @schema@.tasks t WHERE t.worker = $1 \
    ORDER BY 1, 2";

pub(crate) fn statements() -> Vec<(String, String)> {
    [("renew", RENEW), ("drain", DRAIN), ("reap", REAP), ("held", HELD)]
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
        .query(
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
    };
    for row in &rows {
        let mut cells = Cells::of(row);
        let c = &mut cells;
        let code: i16 = c.take()?;
        let facts: Option<i32> = c.take()?;
        let now: Option<i64> = c.take()?;
        let lapsed: Option<bool> = c.take()?;
        let key: Option<Uuid> = c.take()?;
        if code == 0 {
            renewed.now = Timestamp::from_micros(now.unwrap_or(0));
            renewed.lapsed = lapsed.unwrap_or(false);
            renewed.may_reap = facts.is_some_and(|facts| facts & 1 != 0);
            renewed.drain = facts.is_some_and(|facts| facts & 2 != 0);
        } else {
            renewed.control.extend(key.map(RunKey));
        }
    }
    if let Err(error) = keep_partitions_ahead(shared, renewed.now).await {
        tracing::warn!(%error, "partitions could not be attached; the default ones take the rows");
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

/// Frees what dead workers hold.
pub(crate) async fn reap(shared: &Shared, worker: WorkerKey, limit: u32) -> Result<Reaped, Error> {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let rows = shared.query(REAP, &[&worker.0, &limit]).await?;
    let permitted = rows
        .iter()
        .any(|row| row.get::<_, i16>(0) == 0 && row.get::<_, Option<bool>>(5).unwrap_or(false));
    let mut freed = freed(&rows)?;
    freed.sort_unstable_by_key(|freed| (freed.claimed_at, freed.key));
    let mut reaped = Reaped { permitted, ..Reaped::default() };
    let mut wakeups = Vec::new();
    for item in &freed {
        match item.is_task {
            true => reaped.tasks.push(TaskId(item.key)),
            false => reaped.turns.push(RunKey(item.key)),
        }
        wakeups.extend(item.wakeup());
    }
    shared.waker.publish(wakeups);
    Ok(reaped)
}

/// Everything that a worker's key holds.
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
