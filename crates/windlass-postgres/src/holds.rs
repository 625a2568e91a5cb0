//! Holds: claims, releases, revocations, promotions and limits.

mod vacuum;

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_kernel::{
    BreakerRow, ClaimFilter, ClaimOrder, ClaimRequest, ClaimedTurn, Claims, Error, ErrorCode,
    ErrorKind, Head, Heartbeat, HeldItem, Hold, LimitKey, Namespace, Promoted, QueueName, Route,
    RouteName, RunKey, RunStatus, Task, Timestamp, Wakeup, WorkerKey, WorkflowName, rotation,
};

use crate::error::{Failure, call_error, classify};
use crate::rows::{BREAKER, Cells, TASK, breaker as breaker_row, task};
use crate::store::Shared;

pub(crate) use vacuum::TaskVacuum;

/// How often a claim is tried that loses against another one.
const CLAIM_TRIES_MAX: u32 = 5;

const TURN: &str = "r.run_key, r.namespace, r.workflow, r.status, r.turn_worker, r.turn_claim_no, \
    r.head, r.next_ordinal, r.accepted, r.turn_reclaims, r.priority, r.started_at, r.turn_due_at";

fn claim_turns() -> String {
    format!("SELECT {TURN} FROM @schema@.claim_turns($1, $2, $3, $4, $5, $6, $7) r")
}

fn claim_tasks() -> String {
    format!("SELECT {TASK} FROM @schema@.claim_tasks($1, $2, $3, $4, $5, $6) t")
}

// Whether a route has a ready turn that no limit holds back, also if it is locked.
const ANY_READY: &str = "SELECT EXISTS (SELECT FROM unnest($1::text[], $2::text[]) s (queue, name) \
    CROSS JOIN LATERAL (SELECT FROM @schema@.runs t WHERE t.turn_ready AND t.queue = s.queue \
    AND t.workflow = s.name AND t.limit_key IS NULL LIMIT 1) ready)";

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

const HEARTBEAT: &str = "SELECT task_id FROM @schema@.beat($1, $2, $3, $4, $5) AS task_id";

// The clock comes after the columns of the breaker, even if there is no breaker.
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

const REMOVE_LIMIT: &str = "DELETE FROM @schema@.limits WHERE namespace = $1 AND limit_key = $2";

pub(crate) fn statements() -> Vec<(String, String)> {
    let named = |name: &str, text: String| (name.to_owned(), text);
    vec![
        named("claim turns", claim_turns()),
        named("claim tasks", claim_tasks()),
        named("any ready", ANY_READY.to_owned()),
        named("release", RELEASE.to_owned()),
        named("heartbeat", HEARTBEAT.to_owned()),
        named("breaker", breaker_sql()),
        named("put breaker", PUT_BREAKER.to_owned()),
        named("swap breaker", SWAP_BREAKER.to_owned()),
        named("revoke", revoke_sql()),
        named("promote", PROMOTE.to_owned()),
        named("set limit", SET_LIMIT.to_owned()),
        named("remove limit", REMOVE_LIMIT.to_owned()),
        named("vacuum tasks", vacuum::VACUUM.to_owned()),
    ]
}

/// Claims ready turns, then ready tasks, in one transaction.
pub(crate) async fn claim(shared: &Arc<Shared>, request: ClaimRequest) -> Result<Claims, Error> {
    let max = shared.options.limits.claim_rows_max;
    let requested = request.turns.max.max(request.tasks.max);
    if requested > max {
        let message =
            format!("a claim asks for {requested} turns or tasks; at most {max} are allowed");
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidClaim, message));
    }
    // Concurrent claims scan each other's locked rows: ten at once take longer than ten in
    // sequence.
    let claiming = shared.claiming.lock().await;
    let mut tries = 1;
    let Claimed { turns, tasks, now, any_ready } = loop {
        let client = shared.client().await?;
        match claim_once(shared, &client, &request).await {
            Ok(rows) => break rows,
            // The server rolled back: nothing was claimed.
            Err(error) if classify(&error) == Failure::Retry && tries < CLAIM_TRIES_MAX => {
                drop(client);
                tokio::time::sleep(Duration::from_millis(u64::from(tries))).await;
                tries += 1;
            }
            Err(error) => return Err(call_error(error)),
        }
    };
    let passed_over = any_ready && turns.len() < request.turns.max as usize;
    drop(claiming);
    vacuum::count_claimed(shared, tasks.len());
    let oldest = request.order == ClaimOrder::Oldest;
    Ok(Claims {
        turns: in_order_turns(&turns, oldest, request.turns.after.as_ref()),
        tasks: in_order_tasks(&tasks, oldest, request.tasks.after.as_ref()),
        passed_over,
        now: Cells::of(&now).time()?,
    })
}

struct Claimed {
    turns: Vec<Row>,
    tasks: Vec<Row>,
    now: Row,
    /// Turns are ready that were not claimed. A claim skips locked rows: the sender of many messages
    /// keeps the row of the receiver locked most of the time, and only its first message announces
    /// that the row is ready.
    any_ready: bool,
}

async fn claim_once(
    shared: &Shared,
    client: &deadpool_postgres::Object,
    request: &ClaimRequest,
) -> Result<Claimed, tokio_postgres::Error> {
    let turns = RouteArrays::new(&request.turns);
    let tasks = RouteArrays::new(&request.tasks);
    let oldest = request.order == ClaimOrder::Oldest;
    let offer = crate::retention::micros(request.offer);
    let both = turns.is_some() && tasks.is_some();
    let clock = shared.sql(crate::load::NOW);
    let (turns_sql, tasks_sql) = (shared.sql(&claim_turns()), shared.sql(&claim_tasks()));
    let clock = client.prepare_cached(&clock).await?;
    let turns_sql = client.prepare_cached(&turns_sql).await?;
    let tasks_sql = client.prepare_cached(&tasks_sql).await?;
    let ready_sql = client.prepare_cached(&shared.sql(ANY_READY)).await?;
    // All statements are sent at once: one round trip.
    let begin = async { if both { client.batch_execute("BEGIN").await } else { Ok(()) } };
    let routes = turns.as_ref();
    let turns = async {
        let Some(routes) = routes else { return Ok(Vec::new()) };
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
            &request.worker.0,
            &routes.queues,
            &routes.names,
            &routes.max,
            &oldest,
            &offer,
            &routes.after,
        ];
        client.query(&turns_sql, &params).await
    };
    let tasks = async {
        let Some(routes) = &tasks else { return Ok(Vec::new()) };
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&request.worker.0, &routes.queues, &routes.names, &routes.max, &oldest, &routes.after];
        client.query(&tasks_sql, &params).await
    };
    let any_ready = async {
        let Some(routes) = routes else { return Ok(false) };
        let row = client.query_one(&ready_sql, &[&routes.queues, &routes.names]).await?;
        row.try_get(0)
    };
    let now = client.query_one(&clock, &[]);
    let end = async { if both { client.batch_execute("COMMIT").await } else { Ok(()) } };
    let (begun, turns, tasks, any_ready, now, ended) =
        tokio::join!(biased; begin, turns, tasks, any_ready, now, end);
    begun?;
    let claimed = Claimed { turns: turns?, tasks: tasks?, now: now?, any_ready: any_ready? };
    ended?;
    Ok(claimed)
}

/// Routes as parallel arrays, without duplicates.
struct RouteArrays {
    queues: Vec<String>,
    names: Vec<String>,
    max: i32,
    after: Option<String>,
}

impl RouteArrays {
    fn new(filter: &ClaimFilter) -> Option<Self> {
        if filter.max == 0 || filter.routes.is_empty() {
            return None;
        }
        let routes: std::collections::BTreeSet<&Route> = filter.routes.iter().collect();
        let queues = routes.iter().map(|route| route.queue.as_str().to_owned()).collect();
        let names = routes.iter().map(|route| route.name.as_str().to_owned()).collect();
        let after = filter.after.as_ref().map(|after| after.as_str().to_owned());
        Some(Self { queues, names, max: filter.max as i32, after })
    }
}

// An UPDATE returns its rows in any order; sort them in the order of the claim.
fn in_order_turns(rows: &[Row], oldest: bool, after: Option<&Namespace>) -> Vec<ClaimedTurn> {
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
    in_turns(turns.into_iter().map(|(_, turn)| (turn.namespace.clone(), turn)), after)
}

fn in_turns<T>(rows: impl Iterator<Item = (Namespace, T)>, after: Option<&Namespace>) -> Vec<T> {
    let mut all = Vec::new();
    rotation::in_turns(rotation::by_namespace(rows, after), usize::MAX, |row| {
        all.push(row);
        true
    });
    all
}

// The claim is durable, so one damaged row must not hide the others from their holder. The damaged
// row stays held, so that it is not claimed again and again, until its holder dies or somebody
// repairs it.
fn readable<T>(row: &Row, read: impl Fn(&Row) -> Result<T, Error>) -> Option<T> {
    let unreadable = |error: &Error| {
        let key: Option<Uuid> = row.try_get(0).ok();
        tracing::error!(%error, ?key, "cannot read a claimed row; skipping it");
    };
    read(row).inspect_err(unreadable).ok()
}

fn in_order_tasks(rows: &[Row], oldest: bool, after: Option<&Namespace>) -> Vec<Task> {
    let mut tasks: Vec<Task> = rows.iter().filter_map(|row| readable(row, task)).collect();
    tasks.sort_unstable_by_key(|task| {
        let priority = if oldest { 0 } else { -i32::from(task.priority) };
        (priority, task.due_at, task.task_id)
    });
    in_turns(tasks.into_iter().map(|task| (task.namespace.clone(), task)), after)
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

/// Releases holds without progress.
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
    let released = read_released(&rows)?;
    let wakeups = released.iter().filter_map(|row| row.wakeup.clone()).collect();
    shared.waker.publish(wakeups);
    Ok(released.len() as u32)
}

/// Records heartbeats of tasks that are still held.
pub(crate) async fn heartbeat(
    shared: &Shared,
    heartbeats: Vec<Heartbeat>,
) -> Result<Vec<bool>, Error> {
    let tasks: Vec<Uuid> = heartbeats.iter().map(|heartbeat| heartbeat.task_id.0).collect();
    let workers: Vec<Uuid> = heartbeats.iter().map(|heartbeat| heartbeat.hold.worker.0).collect();
    let claims: Vec<i64> =
        heartbeats.iter().map(|heartbeat| heartbeat.hold.claim_no as i64).collect();
    let details = || heartbeats.iter().map(|heartbeat| heartbeat.details.as_ref());
    let bodies: Vec<Option<&[u8]>> = details().map(|body| body.map(|body| &*body.bytes)).collect();
    let encodings: Vec<Option<&str>> =
        details().map(|body| body.map(|body| body.encoding.as_str())).collect();
    let rows = shared.lease(HEARTBEAT, &[&tasks, &workers, &claims, &bodies, &encodings]).await?;
    let mut held = std::collections::BTreeSet::new();
    for row in &rows {
        held.insert(Cells::of(row).take::<Uuid>()?);
    }
    Ok(tasks.iter().map(|task_id| held.contains(task_id)).collect())
}

/// A turn or a task that was released.
pub(crate) struct Released {
    pub(crate) is_task: bool,
    pub(crate) key: Uuid,
    pub(crate) claimed_at: Option<i64>,
    wakeup: Option<Wakeup>,
}

impl Released {
    /// The wake-up for listeners, if the row is ready.
    pub(crate) fn wakeup(&self) -> Option<Wakeup> {
        self.wakeup.clone()
    }
}

/// Decodes the rows `code, key, n, queue, name, flag` of `release` and `reap`.
pub(crate) fn read_released(rows: &[Row]) -> Result<Vec<Released>, Error> {
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
        all.push(Released { is_task, key, claimed_at, wakeup });
    }
    Ok(all)
}

fn wakeup(is_task: bool, queue: &str, name: &str) -> Wakeup {
    let route = Route { queue: QueueName::from_stored(queue), name: RouteName::from_stored(name) };
    if is_task { Wakeup::Task(route) } else { Wakeup::Turn(route) }
}

/// Takes a turn away from its holder.
pub(crate) async fn revoke(
    shared: &Shared,
    run_key: RunKey,
    worker: WorkerKey,
) -> Result<Option<ClaimedTurn>, Error> {
    let rows = shared.query(&revoke_sql(), &[&run_key.0, &worker.0]).await?;
    rows.first().map(claimed_turn).transpose()
}

/// Makes due turns and tasks ready.
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
    // Thousands of rows may become ready for a few routes.
    wakeups.sort_unstable_by(|a, b| format!("{a:?}").cmp(&format!("{b:?}")));
    wakeups.dedup();
    shared.waker.publish(wakeups);
    Ok(promoted)
}

/// Reads a breaker and the clock.
pub(crate) async fn breaker(
    shared: &Shared,
    namespace: Namespace,
    key: LimitKey,
) -> Result<(Option<BreakerRow>, Timestamp), Error> {
    let (namespace, key) = (namespace.as_str(), key.as_str());
    let rows = shared.query(&breaker_sql(), &[&namespace, &key]).await?;
    let row =
        rows.first().ok_or_else(|| Error::corrupt("the query for a breaker returned no row"))?;
    let now = Timestamp::from_micros(row.get(BREAKER_COLUMNS));
    let found: Option<&str> = row.get(0);
    Ok((found.map(|_| breaker_row(row)).transpose()?, now))
}

/// Replaces the previous version of a breaker.
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

/// Sets or removes a limit.
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
            shared.query(REMOVE_LIMIT, &[&namespace, &key]).await?;
        }
    }
    // The rows that the limit held back are ready already, and the store does not know which they
    // are.
    shared.waker.publish(vec![Wakeup::Missed]);
    Ok(())
}
