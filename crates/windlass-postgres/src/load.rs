//! Loads runs: each with its steps and unread messages, in one snapshot.

use std::collections::HashMap;

use tokio_postgres::types::ToSql;
use uuid::Uuid;
use windlass_kernel::{
    Error, LoadSteps, Loaded, Namespace, Run, RunId, RunKey, RunOverview, Timestamp, WorkflowName,
};

use crate::error::{Failure, call_error, classify};
use crate::rows::{self, Cells, MESSAGE, RUN, STEP};
use crate::store::Shared;

/// The store's clock.
pub(crate) const NOW: &str = "SELECT @schema@.clock_us()";

fn runs_sql() -> String {
    format!("SELECT {RUN} FROM @schema@.runs r WHERE r.run_key = ANY ($1)")
}

fn steps_sql() -> String {
    format!(
        "SELECT {STEP} FROM @schema@.steps s WHERE s.run_key = ANY ($1) \
         ORDER BY s.run_key, s.position, s.step_key"
    )
}

fn open_steps_of_runs_sql() -> String {
    format!(
        "SELECT {STEP} FROM @schema@.steps s WHERE s.run_key = ANY ($1) \
         AND s.status NOT IN ('completed', 'errored', 'skipped', 'cancelled') \
         ORDER BY s.run_key, s.position, s.step_key"
    )
}

// The lateral subqueries run once for each run, and read no bodies.
fn open_and_last_settled_sql() -> String {
    format!(
        "SELECT {STEP} FROM @schema@.runs r LEFT JOIN LATERAL ( \
             SELECT l.step_key FROM @schema@.steps l WHERE l.run_key = r.run_key \
             AND l.status IN ('completed', 'errored', 'skipped', 'cancelled') \
             ORDER BY l.position DESC, l.step_key DESC LIMIT 1) last ON true \
         JOIN @schema@.steps s ON s.run_key = r.run_key \
             AND (s.status NOT IN ('completed', 'errored', 'skipped', 'cancelled') \
             OR s.step_key = last.step_key) \
         WHERE r.run_key = ANY ($1) ORDER BY s.run_key, s.position, s.step_key"
    )
}

fn open_and_from_last_sql() -> String {
    format!(
        "SELECT {STEP} FROM @schema@.runs r CROSS JOIN LATERAL ( \
             SELECT coalesce(max(l.position), 0) AS position FROM @schema@.steps l \
             WHERE l.run_key = r.run_key AND l.kind = $2 \
             AND l.status IN ('completed', 'errored', 'skipped', 'cancelled')) last \
         JOIN @schema@.steps s ON s.run_key = r.run_key \
             AND (s.status NOT IN ('completed', 'errored', 'skipped', 'cancelled') \
             OR s.position >= last.position) \
         WHERE r.run_key = ANY ($1) ORDER BY s.run_key, s.position, s.step_key"
    )
}

// Returns no steps of an ended run.
fn open_steps_sql() -> String {
    format!(
        "SELECT {STEP} FROM @schema@.steps s WHERE s.run_key = $1 \
         AND s.status NOT IN ('completed', 'errored', 'skipped', 'cancelled') \
         AND EXISTS (SELECT FROM @schema@.runs r WHERE r.run_key = $1 AND r.ended_at IS NULL) \
         ORDER BY s.position, s.step_key"
    )
}

fn messages_sql() -> String {
    format!(
        "SELECT {MESSAGE} FROM @schema@.messages m \
         WHERE m.run_key = ANY ($1) AND m.consumed_by IS NULL ORDER BY m.run_key, m.seq"
    )
}

fn find_sql() -> String {
    format!(
        "SELECT {RUN} FROM @schema@.runs r \
         WHERE r.namespace || '' = $1 AND r.workflow = $2 AND r.id = $3 \
         ORDER BY r.generation DESC LIMIT 1"
    )
}

pub(crate) fn statements() -> Vec<(String, String)> {
    let named = |name: &str, text: String| (name.to_owned(), text);
    vec![
        named("load runs", runs_sql()),
        named("load steps", steps_sql()),
        named("load open steps", open_steps_sql()),
        named("load open steps of runs", open_steps_of_runs_sql()),
        named("load open steps and the last settled", open_and_last_settled_sql()),
        named("load open steps and from the last", open_and_from_last_sql()),
        named("load messages", messages_sql()),
        named("find", find_sql()),
    ]
}

/// Reads the store's clock.
pub(crate) async fn now(shared: &Shared) -> Result<Timestamp, Error> {
    let rows = shared.read(NOW, &[]).await?;
    let row =
        rows.first().ok_or_else(|| Error::corrupt("the query for the clock returned no row"))?;
    Cells::of(row).time()
}

/// Loads runs with the selected steps and their unconsumed messages.
pub(crate) async fn load(
    shared: &Shared,
    run_keys: Vec<RunKey>,
    selected: &LoadSteps,
) -> Result<Vec<Loaded>, Error> {
    if run_keys.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<Uuid> = run_keys.iter().map(|key| key.0).collect();
    let mut tries = 0;
    let (runs, steps, messages) = loop {
        match read(shared, &keys, selected).await? {
            Ok(read) => break read,
            Err(error) if classify(&error) == Failure::Lost && tries < 3 => tries += 1,
            Err(error) => return Err(call_error(error)),
        }
    };
    let mut loaded: HashMap<RunKey, Loaded> = HashMap::with_capacity(runs.len());
    for row in &runs {
        let run = rows::run(row)?;
        loaded.insert(run.run_key, Loaded { run, steps: Vec::new(), messages: Vec::new() });
    }
    for row in &steps {
        let step = rows::step(row)?;
        if let Some(loaded) = loaded.get_mut(&step.run_key) {
            loaded.steps.push(step);
        }
    }
    for row in &messages {
        let message = rows::message(row)?;
        if let Some(loaded) = loaded.get_mut(&message.run_key) {
            loaded.messages.push(message);
        }
    }
    Ok(run_keys.iter().filter_map(|key| loaded.get(key).cloned()).collect())
}

type Snapshot = (Vec<tokio_postgres::Row>, Vec<tokio_postgres::Row>, Vec<tokio_postgres::Row>);

// One snapshot for the three reads, in one round trip.
async fn read(
    shared: &Shared,
    keys: &Vec<Uuid>,
    selected: &LoadSteps,
) -> Result<Result<Snapshot, tokio_postgres::Error>, Error> {
    let client = shared.client().await?;
    let (steps_sql, kind) = match selected {
        LoadSteps::All => (steps_sql(), None),
        LoadSteps::Open => (open_steps_of_runs_sql(), None),
        LoadSteps::OpenAndLastSettled => (open_and_last_settled_sql(), None),
        LoadSteps::OpenAndFromLast(kind) => (open_and_from_last_sql(), Some(kind.as_str())),
    };
    let texts = [runs_sql(), steps_sql, messages_sql()].map(|text| shared.sql(&text));
    let run = async {
        let runs = client.prepare_cached(&texts[0]).await?;
        let steps = client.prepare_cached(&texts[1]).await?;
        let messages = client.prepare_cached(&texts[2]).await?;
        let params: [&(dyn ToSql + Sync); 1] = [keys];
        let mut steps_params: Vec<&(dyn ToSql + Sync)> = vec![keys];
        if let Some(kind) = &kind {
            steps_params.push(kind);
        }
        let begin = client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        let end = client.batch_execute("COMMIT");
        let (begun, runs, steps, messages, ended) = tokio::join!(biased;
            begin,
            client.query(&runs, &params),
            client.query(&steps, &steps_params),
            client.query(&messages, &params),
            end,
        );
        begun?;
        let rows = (runs?, steps?, messages?);
        ended?;
        Ok(rows)
    };
    Ok(run.await)
}

/// One generation of a run and its open steps, in one snapshot and one round trip.
pub(crate) async fn run_overview_by_key(
    shared: &Shared,
    run_key: RunKey,
) -> Result<Option<RunOverview>, Error> {
    let mut tries = 0;
    let (runs, steps) = loop {
        match read_open(shared, run_key.0).await? {
            Ok(read) => break read,
            Err(error) if classify(&error) == Failure::Lost && tries < 3 => tries += 1,
            Err(error) => return Err(call_error(error)),
        }
    };
    let Some(run) = runs.first().map(rows::run).transpose()? else { return Ok(None) };
    let open_steps = steps.iter().map(rows::step).collect::<Result<_, _>>()?;
    Ok(Some(RunOverview { run, open_steps }))
}

type Open = (Vec<tokio_postgres::Row>, Vec<tokio_postgres::Row>);

async fn read_open(
    shared: &Shared,
    key: Uuid,
) -> Result<Result<Open, tokio_postgres::Error>, Error> {
    let client = shared.client().await?;
    let texts = [runs_sql(), open_steps_sql()].map(|text| shared.sql(&text));
    let run = async {
        let runs = client.prepare_cached(&texts[0]).await?;
        let steps = client.prepare_cached(&texts[1]).await?;
        let keys = vec![key];
        let (all, one): ([&(dyn ToSql + Sync); 1], [_; 1]) = ([&keys], [&key as _]);
        let (begun, runs, steps, ended) = tokio::join!(biased;
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
            client.query(&runs, &all),
            client.query(&steps, &one),
            client.batch_execute("COMMIT"),
        );
        begun?;
        let rows = (runs?, steps?);
        ended?;
        Ok(rows)
    };
    Ok(run.await)
}

/// Finds the newest generation of a run.
pub(crate) async fn find(
    shared: &Shared,
    namespace: Namespace,
    workflow: WorkflowName,
    id: RunId,
) -> Result<Option<Run>, Error> {
    let params = [namespace.as_str(), workflow.as_str(), id.as_str()];
    let found = shared.read(&find_sql(), &[&params[0], &params[1], &params[2]]).await?;
    found.first().map(rows::run).transpose()
}
