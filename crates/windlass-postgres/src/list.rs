//! Listings: each walks along an index, starting after the key of the previous page.

mod readable;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;
use windlass_kernel::{
    Capped, Error, LimitKey, LimitState, LogLevel, Order, Query, Rows, Run, RunKey, RunStatus,
    RunsQuery, Task, TaskState, TasksQuery,
};

use self::readable::Readable;
use crate::retention;
use crate::rows::{
    self, BREAKER, Cells, DEAD_LETTER, EVENT, LOG, MESSAGE, RUN, STEP, TASK, WORKER,
};
use crate::store::Shared;

/// Reads one page.
pub(crate) async fn list(shared: &Shared, query: Query) -> Result<Rows, Error> {
    query.validate(&shared.options.limits)?;
    let limit = i64::from(query.limit());
    let page = Page { shared, limit };
    match query {
        Query::Runs(query) => page.runs(query).await.map(Rows::Runs),
        Query::RunKeys { after, .. } => {
            let found = page.query(RUN_KEYS, &[&after_key(after.map(|key| key.0)), &limit]).await?;
            rows::all(&found, |row| Ok(RunKey(Cells::of(row).take()?))).map(Rows::RunKeys)
        }
        Query::Generations { namespace, workflow, id, before, .. } => {
            let before = before.map_or(i64::MAX, i64::from);
            let names = [namespace.as_str(), workflow.as_str(), id.as_str()];
            page.runs_by(&generations(), &[&names[0], &names[1], &names[2], &before, &limit]).await
        }
        Query::Tree { root, after, .. } => {
            page.runs_by(&tree(), &[&root.0, &after_key(after.map(|key| key.0)), &limit]).await
        }
        Query::Steps { run_key, after, .. } => {
            let (position, key) = match &after {
                Some((position, key)) => (*position as i64, key.as_str()),
                None => (-1, ""),
            };
            let found = page.query(&steps(), &[&run_key.0, &position, &key, &limit]).await?;
            rows::all(&found, rows::step).map(Rows::Steps)
        }
        Query::Events { run_key, from, .. } => {
            page.events_by(&events(), &[&run_key.0, &(from as i64), &limit]).await
        }
        Query::RootEvents { root, after, .. } => {
            let (at, id) = match after {
                Some((at, id)) => (at.as_micros(), id.0),
                None => (i64::MIN, Uuid::nil()),
            };
            page.events_by(&root_events(), &[&root.0, &at, &id, &limit]).await
        }
        Query::Event { event_id } => page.events_by(&event(), &[&event_id.0]).await,
        Query::Messages { run_key, after, .. } => {
            let found = page.query(&messages(), &[&run_key.0, &(after as i64), &limit]).await?;
            rows::all(&found, rows::message).map(Rows::Messages)
        }
        Query::Tasks(query) => page.tasks(query).await.map(Rows::Tasks),
        Query::Logs { run_key, level_min, category, after, .. } => {
            let levels =
                LogLevel::ALL.iter().filter(|level| level_min.is_none_or(|min| **level >= min));
            let levels: Vec<&str> = levels.map(|level| level.as_str()).collect();
            let category = category.as_deref();
            let after = after_key(after.map(|key| key.0));
            let found =
                page.query(&logs(), &[&run_key.0, &levels, &category, &after, &limit]).await?;
            rows::all(&found, rows::log).map(Rows::Logs)
        }
        Query::Workers { after, .. } => {
            let mut found = Readable::new(shared, "workers", 1, limit);
            let mut after = after_key(after.map(|key| key.0));
            loop {
                let rows = page.query(&workers(), &[&after, &found.missing()]).await?;
                match found.add(&rows, rows::worker)? {
                    Some(last) => after = Cells::of(last).take()?,
                    None => return Ok(Rows::Workers(found.rows)),
                }
            }
        }
        Query::DeadLetters { namespace, queue, after, .. } => {
            let queue = queue.as_ref().map(|queue| queue.as_str());
            let mut after = after_key(after.map(|key| key.0));
            let mut found = Readable::new(shared, "dead_letters", 1, limit);
            loop {
                let from: [&(dyn ToSql + Sync); 4] =
                    [&namespace.as_str(), &queue, &after, &found.missing()];
                let rows = page.query(&dead_letters(), &from).await?;
                match found.add(&rows, rows::dead_letter)? {
                    Some(last) => after = Cells::of(last).take()?,
                    None => return Ok(Rows::DeadLetters(found.rows)),
                }
            }
        }
        Query::DeadLetter { task_id } => {
            let found = page.query(&dead_letter(), &[&task_id.0]).await?;
            rows::all(&found, rows::dead_letter).map(Rows::DeadLetters)
        }
        Query::DeadLettersOfRun { run_key, .. } => {
            let found = page.query(&dead_letters_of_run(), &[&run_key.0, &limit]).await?;
            rows::all(&found, rows::dead_letter).map(Rows::DeadLetters)
        }
        Query::LabelCounts { namespace, label: (key, value), .. } => {
            let found =
                page.query(LABEL_COUNTS, &[&namespace.as_str(), &key, &value, &limit]).await?;
            rows::all(&found, rows::run_count).map(Rows::Counts)
        }
        Query::Expired { namespace, workflow, ended_for, after, .. } => {
            let names = (namespace.as_str(), workflow.as_str());
            let ended_for = retention::micros(ended_for);
            let after = after_key(after.map(|key| key.0));
            let from: [&(dyn ToSql + Sync); 5] = [&names.0, &names.1, &ended_for, &after, &limit];
            let found = page.query(EXPIRED, &from).await?;
            rows::all(&found, |row| Ok(RunKey(Cells::of(row).take()?))).map(Rows::RunKeys)
        }
        Query::Settings { kind, after, .. } => {
            let mut after = after.as_deref().unwrap_or("").to_owned();
            let mut found = Readable::new(shared, "settings", 2, limit);
            loop {
                let rows = page.query(SETTINGS, &[&&*kind, &after, &found.missing()]).await?;
                match found.add(&rows, rows::setting)? {
                    Some(last) => after = last.try_get(1).map_err(rows::undecoded)?,
                    None => return Ok(Rows::Settings(found.rows)),
                }
            }
        }
        Query::Breakers { namespace, after, .. } => {
            let after = after.as_ref().map_or("", |after| after.as_str());
            let found = page.query(&breakers(), &[&namespace.as_str(), &after, &limit]).await?;
            rows::all(&found, rows::breaker).map(Rows::Breakers)
        }
        Query::Rates { namespace, after, .. } => {
            let after = after.as_ref().map_or("", |after| after.as_str());
            let found = page.query(RATES, &[&namespace.as_str(), &after, &limit]).await?;
            rows::all(&found, rows::rate).map(Rows::Rates)
        }
        Query::Bodies { owner, after, limit } => {
            crate::bodies::list(page.shared, &owner, after, limit).await.map(Rows::Bodies)
        }
        query @ (Query::Records { .. }
        | Query::Collections { .. }
        | Query::AllRecords { .. }
        | Query::RecordVersions { .. }) => crate::records::list(page.shared, &query).await,
        Query::Limits { namespace, after, .. } => {
            let after = after.as_ref().map_or("", |after| after.as_str());
            let found = page.query(LIMITS, &[&namespace.as_str(), &after, &limit]).await?;
            rows::all(&found, limit_state).map(Rows::Limits)
        }
    }
}

// Every key is greater than the nil UUID and less than the maximal one. A bound, instead of "OR $n
// IS NULL", keeps the generic plan on the index.
fn after_key(key: Option<Uuid>) -> Uuid {
    key.unwrap_or(Uuid::nil())
}

struct Page<'a> {
    shared: &'a Shared,
    limit: i64,
}

impl Page<'_> {
    async fn query(&self, text: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.shared.read(text, params).await
    }

    async fn runs_by(&self, text: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Rows, Error> {
        rows::all(&self.query(text, params).await?, rows::run).map(Rows::Runs)
    }

    async fn events_by(&self, text: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Rows, Error> {
        rows::all(&self.query(text, params).await?, rows::event).map(Rows::Events)
    }

    async fn runs(&self, mut query: RunsQuery) -> Result<Vec<Run>, Error> {
        let mut found = Readable::new(self.shared, "runs", 1, self.limit);
        loop {
            let rows = self.rows_of_runs(&query, found.missing()).await?;
            match found.add(&rows, rows::run)? {
                Some(last) => query.after = Some(RunKey(Cells::of(last).take()?)),
                None => return Ok(found.rows),
            }
        }
    }

    async fn rows_of_runs(&self, query: &RunsQuery, limit: i64) -> Result<Vec<Row>, Error> {
        let (lower, upper) = query.key_range();
        let lower = lower.map_or(Uuid::nil(), |key| key.0);
        let upper = upper.map_or(Uuid::max(), |key| key.0);
        let namespace = query.namespace.as_str();
        let workflow = query.workflow.as_ref().map(|workflow| workflow.as_str());
        if let Some((key, value)) = &query.label {
            let status = query.status.map(RunStatus::as_str);
            let params: [&(dyn ToSql + Sync); 8] =
                [&namespace, key, value, &lower, &upper, &workflow, &status, &limit];
            return self.query(&runs_by_label(query.order), &params).await;
        }
        let statuses: Vec<&str> = match query.status {
            Some(status) => vec![status.as_str()],
            None => RunStatus::ALL.iter().map(|status| status.as_str()).collect(),
        };
        match workflow {
            Some(workflow) => {
                let params: [&(dyn ToSql + Sync); 6] =
                    [&namespace, &statuses, &lower, &upper, &limit, &workflow];
                self.query(&runs_by_workflow(query.order), &params).await
            }
            None => {
                let params: [&(dyn ToSql + Sync); 5] =
                    [&namespace, &statuses, &lower, &upper, &limit];
                self.query(&runs_by_status(query.order), &params).await
            }
        }
    }

    async fn tasks(&self, query: TasksQuery) -> Result<Vec<Task>, Error> {
        let namespace = query.namespace.as_str();
        let mut after = after_key(query.after.map(|key| key.0));
        let queue = query.queue.as_ref().map(|queue| queue.as_str());
        let name = query.name.as_ref().map(|name| name.as_str());
        let state = query.state.map(|state| match state {
            TaskState::Ready => "ready",
            TaskState::Scheduled => "scheduled",
            TaskState::Held => "held",
        });
        if let Some(run_key) = query.run_key {
            let params: [&(dyn ToSql + Sync); 7] =
                [&namespace, &after, &queue, &name, &state, &self.limit, &run_key.0];
            return rows::all(&self.query(&tasks_by_run(), &params).await?, rows::task);
        }
        let mut found = Readable::new(self.shared, "tasks", 1, self.limit);
        loop {
            let params: [&(dyn ToSql + Sync); 6] =
                [&namespace, &after, &queue, &name, &state, &found.missing()];
            let rows = self.query(&tasks(), &params).await?;
            match found.add(&rows, rows::task)? {
                Some(last) => after = Cells::of(last).take()?,
                None => return Ok(found.rows),
            }
        }
    }
}

fn limit_state(row: &Row) -> Result<LimitState, Error> {
    let mut cells = Cells::of(row);
    let c = &mut cells;
    Ok(LimitState {
        key: LimitKey::from_stored(c.text()?),
        slots: c.count()? as u32,
        held: c.count()? as u32,
        waiting: Capped::new(c.count()?),
    })
}

fn direction(order: Order) -> &'static str {
    match order {
        Order::Ascending => "ASC",
        Order::Descending => "DESC",
    }
}

// One index walk for each status, merged by key: no index has the run key directly after the
// namespace, and none is needed.
fn runs_by(filter: &str, order: Order) -> String {
    let direction = direction(order);
    format!(
        "SELECT {RUN} FROM (SELECT k.run_key FROM unnest($2::text[]) s (status) \
         CROSS JOIN LATERAL (SELECT i.run_key FROM @schema@.runs i \
             WHERE i.namespace = $1 {filter} AND i.status = s.status \
                 AND i.run_key > $3 AND i.run_key < $4 \
             ORDER BY i.run_key {direction} LIMIT $5) k \
         ORDER BY k.run_key {direction} LIMIT $5) page \
         JOIN @schema@.runs r ON r.run_key = page.run_key ORDER BY r.run_key {direction}"
    )
}

fn runs_by_status(order: Order) -> String {
    runs_by("", order)
}

fn runs_by_workflow(order: Order) -> String {
    runs_by("AND i.workflow = $6", order)
}

fn runs_by_label(order: Order) -> String {
    let direction = direction(order);
    format!(
        "SELECT {RUN} FROM @schema@.labels l JOIN @schema@.runs r ON r.run_key = l.run_key \
         WHERE l.namespace = $1 AND l.key = $2 AND l.value = $3 \
             AND l.run_key > $4 AND l.run_key < $5 \
             AND ($6::text IS NULL OR r.workflow = $6) AND ($7::text IS NULL OR r.status = $7) \
         ORDER BY l.run_key {direction} LIMIT $8"
    )
}

// A run cannot end before it is created, so later keys are not read. Runs that were created long
// ago but ended recently are few; this skips them.
const EXPIRED: &str = "SELECT k.run_key \
         FROM unnest('{complete,errored,terminated}'::text[]) s (status) \
         CROSS JOIN LATERAL (SELECT i.run_key FROM @schema@.runs i \
             WHERE i.namespace = $1 AND i.workflow = $2 AND i.status = s.status \
                 AND i.run_key > $4 \
                 AND i.run_key < (lpad(to_hex(greatest((@schema@.clock_us() - $3) / 1000 + 1, 0)), \
                     12, '0') || repeat('0', 20))::uuid \
                 AND i.root = i.run_key AND i.ended_at <= @schema@.clock_us() - $3 \
                 AND (i.retention_until IS NULL OR i.retention_until <= @schema@.clock_us()) \
             ORDER BY i.run_key LIMIT $5) k \
         ORDER BY k.run_key LIMIT $5";

const SETTINGS: &str = "SELECT s.kind, s.name, s.value, s.value_encoding, s.updated_at \
    FROM @schema@.settings s WHERE s.kind = $1 AND s.name > $2 ORDER BY s.name LIMIT $3";

fn breakers() -> String {
    format!(
        "SELECT {BREAKER} FROM @schema@.breakers b WHERE b.namespace = $1 AND b.breaker_key > $2 \
         ORDER BY b.breaker_key LIMIT $3"
    )
}

const RATES: &str = "SELECT r.namespace, r.rate_key, r.interval_us, r.burst, r.spent_until, \
    r.queued_until, r.version FROM @schema@.rates r WHERE r.namespace = $1 AND r.rate_key > $2 \
    ORDER BY r.rate_key LIMIT $3";

const RUN_KEYS: &str =
    "SELECT r.run_key FROM @schema@.runs r WHERE r.run_key > $1 ORDER BY r.run_key LIMIT $2";

fn generations() -> String {
    format!(
        "SELECT {RUN} FROM @schema@.runs r \
         WHERE r.namespace || '' = $1 AND r.workflow = $2 AND r.id = $3 AND r.generation < $4 \
         ORDER BY r.generation DESC LIMIT $5"
    )
}

fn tree() -> String {
    format!(
        "SELECT {RUN} FROM (SELECT i.run_key FROM @schema@.runs i \
             WHERE i.run_key = $1 AND i.root = $1 AND i.run_key > $2 \
         UNION ALL (SELECT i.run_key FROM @schema@.runs i \
             WHERE i.root = $1 AND i.root <> i.run_key AND i.run_key > $2 \
             ORDER BY i.run_key LIMIT $3) \
         ORDER BY run_key LIMIT $3) page \
         JOIN @schema@.runs r ON r.run_key = page.run_key ORDER BY r.run_key"
    )
}

fn steps() -> String {
    format!(
        "SELECT {STEP} FROM @schema@.steps s \
         WHERE s.run_key = $1 AND (s.position, s.step_key) > ($2, $3) \
         ORDER BY s.position, s.step_key LIMIT $4"
    )
}

fn events() -> String {
    format!(
        "SELECT {EVENT} FROM @schema@.events e WHERE e.run_key = $1 AND e.ordinal >= $2 \
         ORDER BY e.ordinal LIMIT $3"
    )
}

fn root_events() -> String {
    format!(
        "SELECT {EVENT} FROM (SELECT i.run_key FROM @schema@.runs i \
             WHERE i.run_key = $1 AND i.root = $1 \
         UNION ALL SELECT i.run_key FROM @schema@.runs i \
             WHERE i.root = $1 AND i.root <> i.run_key) tree \
         JOIN @schema@.events e ON e.run_key = tree.run_key \
         WHERE (e.created_at, e.event_id) > ($2, $3) \
         ORDER BY e.created_at, e.event_id LIMIT $4"
    )
}

fn event() -> String {
    format!("SELECT {EVENT} FROM @schema@.events e WHERE e.event_id = $1 LIMIT 1")
}

fn messages() -> String {
    format!(
        "SELECT {MESSAGE} FROM @schema@.messages m WHERE m.run_key = $1 AND m.seq > $2 \
         ORDER BY m.seq LIMIT $3"
    )
}

const TASK_FILTER: &str = "($3::text IS NULL OR t.queue = $3) \
    AND ($4::text IS NULL OR t.name = $4) \
    AND ($5::text IS NULL OR $5 = CASE WHEN t.worker IS NOT NULL THEN 'held' \
        WHEN t.ready THEN 'ready' ELSE 'scheduled' END)";

/// The states of a task, and the condition of the index for each.
const TASK_STATES: [(&str, &str); 3] = [
    ("held", "t.worker IS NOT NULL"),
    ("ready", "t.ready"),
    ("scheduled", "NOT t.ready AND t.worker IS NULL"),
];

// One index walk for each state, as for runs; a state that is not wanted is not walked. A task has
// exactly one state, so no walk repeats a row of another.
fn tasks() -> String {
    let walk = |(state, condition): &(&str, &str)| {
        format!(
            "(SELECT t.* FROM @schema@.tasks t WHERE ($5::text IS NULL OR $5 = '{state}') \
             AND {condition} AND t.namespace = $1 AND t.task_id > $2 \
             AND ($3::text IS NULL OR t.queue = $3) AND ($4::text IS NULL OR t.name = $4) \
             ORDER BY t.task_id LIMIT $6)"
        )
    };
    let walks = TASK_STATES.iter().map(walk).collect::<Vec<_>>().join(" UNION ALL ");
    format!("SELECT {TASK} FROM ({walks}) t ORDER BY t.task_id LIMIT $6")
}

fn tasks_by_run() -> String {
    format!(
        "SELECT {TASK} FROM @schema@.tasks t WHERE t.run_key = $7 AND t.namespace = $1 \
         AND t.task_id > $2 AND {TASK_FILTER} ORDER BY t.task_id LIMIT $6"
    )
}

fn logs() -> String {
    format!(
        "SELECT {LOG} FROM @schema@.logs l WHERE l.run_key = $1 AND l.level = ANY ($2) \
         AND ($3::text IS NULL OR l.category = $3) AND l.log_id > $4 \
         ORDER BY l.log_id LIMIT $5"
    )
}

fn workers() -> String {
    format!(
        "SELECT {WORKER} FROM @schema@.workers w WHERE w.worker > $1 ORDER BY w.worker LIMIT $2"
    )
}

fn dead_letters() -> String {
    format!(
        "SELECT {DEAD_LETTER} FROM @schema@.dead_letters d WHERE d.namespace = $1 \
         AND ($2::text IS NULL OR d.queue = $2) AND d.task_id > $3 ORDER BY d.task_id LIMIT $4"
    )
}

fn dead_letter() -> String {
    format!("SELECT {DEAD_LETTER} FROM @schema@.dead_letters d WHERE d.task_id = $1")
}

fn dead_letters_of_run() -> String {
    format!(
        "SELECT {DEAD_LETTER} FROM @schema@.dead_letters d WHERE d.run_key = $1 \
         ORDER BY d.task_id LIMIT $2"
    )
}

// Only an ended generation can have a later one.
const LABEL_COUNTS: &str = "SELECT r.namespace, r.workflow, r.status, count(*) \
    FROM @schema@.labels l JOIN @schema@.runs r ON r.run_key = l.run_key \
    WHERE l.namespace = $1 AND l.key = $2 AND l.value = $3 AND NOT EXISTS ( \
        SELECT FROM @schema@.runs n WHERE n.namespace || '' = r.namespace AND n.workflow = r.workflow \
        AND n.id = r.id AND n.generation = r.generation + 1) \
    GROUP BY r.namespace, r.workflow, r.status ORDER BY r.workflow, r.status LIMIT $4";

const LIMITS: &str = "SELECT l.limit_key, l.slots, \
    (SELECT count(*) FROM @schema@.runs r WHERE r.turn_worker IS NOT NULL \
        AND r.namespace = l.namespace AND r.limit_key = l.limit_key) \
    + (SELECT count(*) FROM @schema@.tasks t WHERE t.worker IS NOT NULL \
        AND t.namespace = l.namespace AND t.limit_key = l.limit_key), \
    (SELECT count(*) FROM (SELECT FROM @schema@.runs r WHERE r.turn_ready \
        AND r.namespace = l.namespace AND r.limit_key = l.limit_key LIMIT 10001) w) \
    + (SELECT count(*) FROM (SELECT FROM @schema@.tasks t WHERE t.ready \
        AND t.namespace = l.namespace AND t.limit_key = l.limit_key LIMIT 10001) w) \
    FROM @schema@.limits l WHERE l.namespace = $1 AND l.limit_key > $2 \
    ORDER BY l.limit_key LIMIT $3";

pub(crate) fn statements() -> Vec<(String, String)> {
    let named = |name: &str, text: String| (format!("list {name}"), text);
    vec![
        named("runs by status", runs_by_status(Order::Ascending)),
        named("runs by status, newest first", runs_by_status(Order::Descending)),
        named("runs by workflow", runs_by_workflow(Order::Ascending)),
        named("runs by workflow, newest first", runs_by_workflow(Order::Descending)),
        named("runs by label", runs_by_label(Order::Ascending)),
        named("runs by label, newest first", runs_by_label(Order::Descending)),
        named("run keys", RUN_KEYS.to_owned()),
        named("generations", generations()),
        named("tree", tree()),
        named("steps", steps()),
        named("events", events()),
        named("events of a root", root_events()),
        named("event", event()),
        named("messages", messages()),
        named("tasks", tasks()),
        named("tasks of a run", tasks_by_run()),
        named("logs", logs()),
        named("workers", workers()),
        named("dead letters", dead_letters()),
        named("dead letter", dead_letter()),
        named("dead letters of a run", dead_letters_of_run()),
        named("counts by label", LABEL_COUNTS.to_owned()),
        named("limits", LIMITS.to_owned()),
        named("expired", EXPIRED.to_owned()),
        named("settings", SETTINGS.to_owned()),
        named("breakers", breakers()),
        named("rates", RATES.to_owned()),
    ]
}
