//! Who holds what: claims, releases, revocations, promotions and limits.

mod sweep;

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_kernel::{
    Beat, BreakerRow, ClaimOrder, ClaimRequest, ClaimedTurn, Claims, Error, ErrorKind, Head,
    HeldItem, Hold, LimitKey, Namespace, Promoted, QueueName, Route, RouteName, RunKey, RunStatus,
    Task, Timestamp, Wakeup, Want, WorkerKey, WorkflowName,
};

use crate::error::{Failure, classify, of_call};
use crate::rows::{BREAKER, Cells, TASK, breaker as breaker_row, task};
use crate::store::Shared;

pub(crate) use sweep::Sweeper;

/// How often a claim runs again that lost against another one.
const CLAIM_TRIES_MAX: u32 = 5;

const TURN: &str = "r.run_key, r.namespace, r.workflow, r.status, r.turn_worker, r.turn_claim_no, \
    r.head, r.next_ordinal, r.accepted, r.turn_reclaims, r.priority, r.started_at, r.turn_due_at";

fn claim_turns() -> String {
    format!("SELECT {TURN} FROM @schema@.claim_turns($1, $2, $3, $4, $5, $6) r")
}

fn claim_tasks() -> String {
    format!("SELECT {TASK} FROM @schema@.claim_tasks($1, $2, $3, $4, $5) t")
}

const RELEASE: &str = "SELECT code, key, n, queue, name, flag FROM \
    @schema@.release($1, $2, $3, $4, $5, $6)";

fn revoke_sql() -> String {
    format!(
        "UPDATE @schema@.runs r SET turn_worker = $2, turn_claim_no = r.turn_claim_no + 1, \
         turn_claimed_at = @schema@.clock_us(), turn_ready = false \
         WHERE r.run_key = $1 AND r.status NOT IN ('complete', 'errored', 'terminated') \
         RETURNING {TURN}"
    )
}

const BEAT: &str = "SELECT task_id FROM @schema@.beat($1, $2, $3, $4, $5) AS task_id";

// The clock stands behind the breaker's columns, also when there is no breaker.
const BREAKER_COLUMNS: usize = 8;

fn breaker_sql() -> String {
    format!(
        "SELECT {BREAKER}, @schema@.clock_us() FROM (SELECT 1) one LEFT JOIN @schema@.breakers b \
         ON b.namespace = $1 AND b.breaker_key = $2"
    )
}

const PUT_BREAKER: &str = "INSERT INTO @schema@.breakers (namespace, breaker_key, status, \
    retry_at, data, data_encoding, version, updated_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, @schema@.clock_us()) ON CONFLICT DO NOTHING \
    RETURNING version";

const SWAP_BREAKER: &str = "UPDATE @schema@.breakers b SET status = $3, retry_at = $4, data = $5, \
    data_encoding = $6, version = $7::int8, updated_at = @schema@.clock_us() \
    WHERE b.namespace = $1 AND b.breaker_key = $2 AND b.version = $7::int8 - 1 RETURNING b.version";

const PROMOTE: &str = "SELECT code, n, queue, name, due FROM @schema@.promote($1)";

const SET_LIMIT: &str = "INSERT INTO @schema@.limits VALUES ($1, $2, $3) \
    ON CONFLICT (namespace, limit_key) DO UPDATE SET slots = excluded.slots";

const LIFT_LIMIT: &str = "DELETE FROM @schema@.limits WHERE namespace = $1 AND limit_key = $2";

pub(crate) fn statements() -> Vec<(String, String)> {
    let named = |name: &str, text: String| (name.to_owned(), text);
    vec![
        named("claim turns", claim_turns()),
        named("claim tasks", claim_tasks()),
        named("release", RELEASE.to_owned()),
        named("beat", BEAT.to_owned()),
        named("breaker", breaker_sql()),
        named("put breaker", PUT_BREAKER.to_owned()),
        named("swap breaker", SWAP_BREAKER.to_owned()),
        named("revoke", revoke_sql()),
        named("promote", PROMOTE.to_owned()),
        named("set limit", SET_LIMIT.to_owned()),
        named("lift limit", LIFT_LIMIT.to_owned()),
        named("sweep", sweep::SWEEP.to_owned()),
    ]
}

/// Takes ready turns, then ready tasks, in one transaction.
pub(crate) async fn claim(shared: &Arc<Shared>, request: ClaimRequest) -> Result<Claims, Error> {
    let max = shared.options.limits.claim_rows_max;
    let asked = request.turns.max.max(request.tasks.max);
    if asked > max {
        let message = format!("a claim asks for {asked} turns or tasks; at most {max} are allowed");
        return Err(Error::new(ErrorKind::Invalid, "INVALID_CLAIM", message));
    }
    // Claims at the same time walk over each other's locked rows: ten take longer than one after another.
    let claiming = shared.claiming.lock().await;
    let mut tries = 1;
    let (turns, tasks, now) = loop {
        let client = shared.client().await?;
        match claim_once(shared, &client, &request).await {
            Ok(rows) => break rows,
            // Nothing was taken: the server has undone all of it.
            Err(error) if classify(&error) == Failure::Again && tries < CLAIM_TRIES_MAX => {
                drop(client);
                tokio::time::sleep(Duration::from_millis(u64::from(tries))).await;
                tries += 1;
            }
            Err(error) => return Err(of_call(error)),
        }
    };
    drop(claiming);
    sweep::claimed(shared, tasks.len());
    let oldest = request.order == ClaimOrder::Oldest;
    Ok(Claims {
        turns: in_order_turns(&turns, oldest),
        tasks: in_order_tasks(&tasks, oldest),
        now: Cells::of(&now).time()?,
    })
}

async fn claim_once(
    shared: &Shared,
    client: &deadpool_postgres::Object,
    request: &ClaimRequest,
) -> Result<(Vec<Row>, Vec<Row>, Row), tokio_postgres::Error> {
    let turns = Asked::new(&request.turns);
    let tasks = Asked::new(&request.tasks);
    let oldest = request.order == ClaimOrder::Oldest;
    let offer = crate::retention::micros(request.offer);
    let both = turns.is_some() && tasks.is_some();
    let clock = shared.sql(crate::load::NOW);
    let (turns_sql, tasks_sql) = (shared.sql(&claim_turns()), shared.sql(&claim_tasks()));
    let clock = client.prepare_cached(&clock).await?;
    let turns_sql = client.prepare_cached(&turns_sql).await?;
    let tasks_sql = client.prepare_cached(&tasks_sql).await?;
    // All are sent at once: one round trip, whatever is asked for.
    let begin = async { if both { client.batch_execute("BEGIN").await } else { Ok(()) } };
    let turns = async {
        let Some(asked) = &turns else { return Ok(Vec::new()) };
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&request.worker.0, &asked.queues, &asked.names, &asked.max, &oldest, &offer];
        client.query(&turns_sql, &params).await
    };
    let tasks = async {
        let Some(asked) = &tasks else { return Ok(Vec::new()) };
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&request.worker.0, &asked.queues, &asked.names, &asked.max, &oldest];
        client.query(&tasks_sql, &params).await
    };
    let now = client.query_one(&clock, &[]);
    let end = async { if both { client.batch_execute("COMMIT").await } else { Ok(()) } };
    let (begun, turns, tasks, now, ended) = tokio::join!(biased; begin, turns, tasks, now, end);
    begun?;
    let rows = (turns?, tasks?, now?);
    ended?;
    Ok(rows)
}

/// Routes as arrays, without those that are named twice.
struct Asked {
    queues: Vec<String>,
    names: Vec<String>,
    max: i32,
}

impl Asked {
    fn new(want: &Want) -> Option<Self> {
        if want.max == 0 || want.routes.is_empty() {
            return None;
        }
        let routes: std::collections::BTreeSet<&Route> = want.routes.iter().collect();
        let queues = routes.iter().map(|route| route.queue.as_str().to_owned()).collect();
        let names = routes.iter().map(|route| route.name.as_str().to_owned()).collect();
        Some(Self { queues, names, max: want.max as i32 })
    }
}

// An update answers its rows in any order; the order of the claim is in the rows.
fn in_order_turns(rows: &[Row], oldest: bool) -> Vec<ClaimedTurn> {
    let mut turns = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(turn) = readable(row, claimed_turn) else { continue };
        let priority: i16 = row.get(10);
        let first = row.get::<_, Option<i64>>(11).is_none();
        let due: Option<i64> = row.get(12);
        let rank = if oldest { (0, false) } else { (-i32::from(priority), first) };
        turns.push(((rank, due, turn.run_key), turn));
    }
    turns.sort_unstable_by_key(|(rank, _)| *rank);
    turns.into_iter().map(|(_, turn)| turn).collect()
}

// The claim is durable: one bad row must not hide the others from their holder. It stays held, so
// that nobody meets it at each claim, until its holder is gone or somebody has mended it.
fn readable<T>(row: &Row, read: impl Fn(&Row) -> Result<T, Error>) -> Option<T> {
    let unreadable = |error: &Error| {
        let key: Option<Uuid> = row.try_get(0).ok();
        tracing::error!(%error, ?key, "a claimed row does not read and is passed over");
    };
    read(row).inspect_err(unreadable).ok()
}

fn in_order_tasks(rows: &[Row], oldest: bool) -> Vec<Task> {
    let mut tasks: Vec<Task> = rows.iter().filter_map(|row| readable(row, task)).collect();
    tasks.sort_unstable_by_key(|task| {
        let priority = if oldest { 0 } else { -i32::from(task.priority) };
        (priority, task.due_at, task.task_id)
    });
    tasks
}

fn claimed_turn(row: &Row) -> Result<ClaimedTurn, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(ClaimedTurn {
        run_key: RunKey(c.take()?),
        namespace: Namespace::from_stored(c.text()?),
        workflow: WorkflowName::from_stored(c.text()?),
        status: RunStatus::parse(c.text()?)?,
        hold: {
            let worker = WorkerKey(c.take()?);
            Hold { worker, claim_no: c.count()? }
        },
        head: {
            let hash = c.digest()?;
            Head { next_ordinal: c.count()?, hash }
        },
        accepted: c.count()?,
        reclaims: c.count()? as u32,
    })
}

/// Gives back holds without progress.
pub(crate) async fn release(shared: &Shared, items: Vec<HeldItem>) -> Result<u32, Error> {
    let (mut runs, mut run_workers, mut run_claims) = (Vec::new(), Vec::new(), Vec::new());
    let (mut tasks, mut task_workers, mut task_claims) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        match item {
            HeldItem::Turn { run_key, worker, claim_no } => {
                runs.push(run_key.0);
                run_workers.push(worker.0);
                run_claims.push(claim_no as i64);
            }
            HeldItem::Task { task_id, worker, claim_no } => {
                tasks.push(task_id.0);
                task_workers.push(worker.0);
                task_claims.push(claim_no as i64);
            }
        }
    }
    let rows = shared
        .query(RELEASE, &[&runs, &run_workers, &run_claims, &tasks, &task_workers, &task_claims])
        .await?;
    let freed = freed(&rows)?;
    let wakeups = freed.iter().filter_map(|freed| freed.wakeup.clone()).collect();
    shared.waker.publish(wakeups);
    Ok(freed.len() as u32)
}

/// Notes signs of life of tasks that are still held.
pub(crate) async fn beat(shared: &Shared, beats: Vec<Beat>) -> Result<Vec<bool>, Error> {
    let tasks: Vec<Uuid> = beats.iter().map(|beat| beat.task_id.0).collect();
    let workers: Vec<Uuid> = beats.iter().map(|beat| beat.hold.worker.0).collect();
    let claims: Vec<i64> = beats.iter().map(|beat| beat.hold.claim_no as i64).collect();
    let details = || beats.iter().map(|beat| beat.details.as_ref());
    let bodies: Vec<Option<&[u8]>> = details().map(|body| body.map(|body| &*body.bytes)).collect();
    let encodings: Vec<Option<&str>> =
        details().map(|body| body.map(|body| body.encoding.as_str())).collect();
    let rows = shared.lease(BEAT, &[&tasks, &workers, &claims, &bodies, &encodings]).await?;
    let mut held = std::collections::BTreeSet::new();
    for row in &rows {
        held.insert(Cells::of(row).take::<Uuid>()?);
    }
    Ok(tasks.iter().map(|task_id| held.contains(task_id)).collect())
}

/// A turn or a task that lost its holder.
pub(crate) struct Freed {
    pub(crate) is_task: bool,
    pub(crate) key: Uuid,
    pub(crate) claimed_at: Option<i64>,
    wakeup: Option<Wakeup>,
}

impl Freed {
    /// What listeners are told.
    pub(crate) fn wakeup(&self) -> Option<Wakeup> {
        self.wakeup.clone()
    }
}

/// Reads the rows `code, key, n, queue, name, flag` of `release` and `reap`.
pub(crate) fn freed(rows: &[Row]) -> Result<Vec<Freed>, Error> {
    let mut all = Vec::with_capacity(rows.len());
    for row in rows {
        let mut cells = Cells::of(row);
        let c = &mut cells;
        let code: i16 = c.take()?;
        if code == 0 {
            continue;
        }
        let key: Uuid = c.take()?;
        let claimed_at = c.take()?;
        let (queue, name) = (c.text()?, c.text()?);
        let ready: bool = c.take()?;
        let is_task = code == 5;
        let wakeup = ready.then(|| wakeup(is_task, queue, name));
        all.push(Freed { is_task, key, claimed_at, wakeup });
    }
    Ok(all)
}

fn wakeup(is_task: bool, queue: &str, name: &str) -> Wakeup {
    let route = Route { queue: QueueName::from_stored(queue), name: RouteName::from_stored(name) };
    if is_task { Wakeup::Task(route) } else { Wakeup::Turn(route) }
}

/// Takes a turn from whoever holds it.
pub(crate) async fn revoke(
    shared: &Shared,
    run_key: RunKey,
    worker: WorkerKey,
) -> Result<Option<ClaimedTurn>, Error> {
    let rows = shared.query(&revoke_sql(), &[&run_key.0, &worker.0]).await?;
    rows.first().map(claimed_turn).transpose()
}

/// Readies what is due.
pub(crate) async fn promote(shared: &Shared, limit: u32) -> Result<Promoted, Error> {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let rows = shared.query(PROMOTE, &[&limit]).await?;
    let mut promoted = Promoted { turns: 0, tasks: 0, next_due: None, now: Timestamp::ZERO };
    let mut wakeups = Vec::new();
    for row in &rows {
        let mut cells = Cells::of(row);
        let c = &mut cells;
        let code: i16 = c.take()?;
        let now: Option<i64> = c.take()?;
        let (queue, name): (Option<&str>, Option<&str>) = (c.take()?, c.take()?);
        let due = c.time_opt()?;
        match code {
            0 => promoted.now = Timestamp::from_micros(now.unwrap_or(0)),
            6 => promoted.next_due = due,
            _ => {
                let is_task = code == 5;
                *if is_task { &mut promoted.tasks } else { &mut promoted.turns } += 1;
                wakeups.push(wakeup(is_task, queue.unwrap_or(""), name.unwrap_or("")));
            }
        }
    }
    // Thousands may become ready for a handful of routes.
    wakeups.sort_unstable_by(|a, b| format!("{a:?}").cmp(&format!("{b:?}")));
    wakeups.dedup();
    shared.waker.publish(wakeups);
    Ok(promoted)
}

/// A breaker as it is, and the clock.
pub(crate) async fn breaker(
    shared: &Shared,
    namespace: Namespace,
    key: LimitKey,
) -> Result<(Option<BreakerRow>, Timestamp), Error> {
    let (namespace, key) = (namespace.as_str(), key.as_str());
    let rows = shared.query(&breaker_sql(), &[&namespace, &key]).await?;
    let row = rows.first().ok_or_else(|| Error::corrupt("the clock does not answer"))?;
    let now = Timestamp::from_micros(row.get(BREAKER_COLUMNS));
    let found: Option<&str> = row.get(0);
    Ok((found.map(|_| breaker_row(row)).transpose()?, now))
}

/// Puts a breaker in the place of the version before it.
pub(crate) async fn swap_breaker(shared: &Shared, row: BreakerRow) -> Result<bool, Error> {
    let (namespace, key) = (row.namespace.as_str(), row.key.as_str());
    let (status, retry_at) = (row.status.as_str(), row.retry_at.map(|at| at.as_micros()));
    let (data, encoding) = (&row.data.bytes[..], row.data.encoding.as_str());
    let version = row.version as i64;
    let sql = if row.version == 1 { PUT_BREAKER } else { SWAP_BREAKER };
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
        [&namespace, &key, &status, &retry_at, &data, &encoding, &version];
    Ok(!shared.query(sql, &params).await?.is_empty())
}

/// Sets or lifts a limit.
pub(crate) async fn set_limit(
    shared: &Shared,
    namespace: Namespace,
    key: LimitKey,
    slots: Option<u32>,
) -> Result<(), Error> {
    let (namespace, key) = (namespace.as_str(), key.as_str());
    match slots {
        Some(slots) => {
            shared.query(SET_LIMIT, &[&namespace, &key, &i64::from(slots)]).await?;
        }
        None => {
            shared.query(LIFT_LIMIT, &[&namespace, &key]).await?;
        }
    }
    // Nobody keeps a list of what a limit held back.
    shared.waker.publish(vec![Wakeup::Missed]);
    Ok(())
}
