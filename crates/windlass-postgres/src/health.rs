//! Counts and ages, whose cost does not grow with ended or sleeping runs, and the search for
//! damage.

use std::time::{Duration, Instant};

use windlass_kernel::{Capped, Error, Fact, Health, QueueHealth};

use crate::rows::{self, Cells};
use crate::store::Shared;

const COUNTS: &str = "SELECT namespace, workflow, status, sum(value)::int8 FROM @schema@.counters \
    WHERE name = 'runs' GROUP BY namespace, workflow, status HAVING sum(value) > 0 \
    ORDER BY namespace, workflow, status";

// Every count stops at its bound. The oldest ready turn is the first row of one of the segments.
const QUEUES: &str = "SELECT \
    (SELECT count(*) FROM (SELECT FROM @schema@.runs WHERE turn_ready LIMIT 10001) x), \
    (SELECT min(f.due) FROM (SELECT array_agg(queue) AS queues, array_agg(name) AS names, \
            array_agg(namespace) AS spaces FROM @schema@.turn_routes()) a, \
        LATERAL @schema@.turn_segments(a.queues, a.names, a.spaces) s, \
        LATERAL (SELECT r.turn_due_at AS due FROM @schema@.runs r WHERE r.turn_ready \
            AND r.queue = s.queue AND r.workflow = s.name AND r.namespace = s.namespace \
            AND ((r.limit_key IS NOT NULL)::int4) = s.limited AND r.priority = s.priority \
            AND r.turn_first = s.first_turn ORDER BY r.turn_due_at LIMIT 1) f), \
    (SELECT count(*) FROM (SELECT FROM @schema@.runs WHERE NOT turn_ready \
        AND turn_worker IS NULL AND turn_due_at IS NOT NULL AND status <> 'paused' \
        LIMIT 10001) x), \
    (SELECT turn_due_at FROM @schema@.runs WHERE NOT turn_ready AND turn_worker IS NULL \
        AND turn_due_at IS NOT NULL AND status <> 'paused' ORDER BY turn_due_at LIMIT 1), \
    (SELECT count(*) FROM (SELECT FROM @schema@.runs WHERE turn_worker IS NOT NULL \
        LIMIT 10001) x), \
    (SELECT count(*) FROM (SELECT FROM @schema@.tasks WHERE ready LIMIT 10001) x), \
    (SELECT min(f.due) FROM (SELECT array_agg(queue) AS queues, array_agg(name) AS names, \
            array_agg(namespace) AS spaces FROM @schema@.task_routes()) a, \
        LATERAL @schema@.task_segments(a.queues, a.names, a.spaces) s, \
        LATERAL (SELECT t.due_at AS due FROM @schema@.tasks t WHERE t.ready \
            AND t.queue = s.queue AND t.name = s.name AND t.namespace = s.namespace \
            AND ((t.limit_key IS NOT NULL)::int4) = s.limited AND t.priority = s.priority \
            ORDER BY t.due_at LIMIT 1) f), \
    (SELECT count(*) FROM (SELECT FROM @schema@.tasks WHERE NOT ready AND worker IS NULL \
        AND due_at IS NOT NULL LIMIT 10001) x), \
    (SELECT due_at FROM @schema@.tasks WHERE NOT ready AND worker IS NULL \
        AND due_at IS NOT NULL ORDER BY due_at LIMIT 1), \
    (SELECT count(*) FROM (SELECT FROM @schema@.tasks WHERE worker IS NOT NULL LIMIT 10001) x), \
    (SELECT count(*) FROM (SELECT FROM @schema@.dead_letters WHERE requeued_at IS NULL LIMIT 10001) x), \
    (SELECT count(*) FROM @schema@.workers w, (SELECT @schema@.clock_us() AS now) c \
        WHERE w.status <> 'stopped' AND c.now <= w.renewed_at + w.lease_us), \
    @schema@.clock_us()";

const READY_COUNTS: &str = "SELECT \
    (SELECT count(*) FROM (SELECT FROM @schema@.runs WHERE turn_ready LIMIT $1) x), \
    (SELECT count(*) FROM (SELECT FROM @schema@.tasks WHERE ready LIMIT $1) x)";

// Damage that has caused no error yet: invalid indexes, pages with a wrong checksum, a table
// without its default partition, disabled triggers.
const DAMAGE: &str = "SELECT format('index %s is not valid: drop it and build it again', c.relname) \
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
    JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1 AND NOT (i.indisvalid AND i.indisready) \
    UNION ALL SELECT format('table %s has no default partition: rows outside the others are lost', \
        c.relname) \
    FROM pg_partitioned_table p JOIN pg_class c ON c.oid = p.partrelid \
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND p.partdefid = 0 \
    UNION ALL SELECT format('trigger %s on %s is disabled: the database does not guard its rows', \
        t.tgname, c.relname) \
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid \
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND t.tgenabled = 'D' \
    UNION ALL SELECT format('%s pages of this database failed their checksum, last at %s', \
        checksum_failures, checksum_last_failure) \
    FROM pg_stat_database WHERE datname = current_database() AND checksum_failures > 0 \
    ORDER BY 1";

const FACTS: &str = "SELECT current_setting('server_version'), \
    (SELECT max(version) FROM @schema@.refinery_schema_history), \
    pg_size_pretty(pg_database_size(current_database())), \
    current_setting('synchronous_commit'), current_setting('fsync'), \
    current_setting('full_page_writes')";

// A transaction that is open for long prevents the removal of dead rows, which then slow down
// claims.
const OLD_TRANSACTIONS: &str = "SELECT format('process %s of %s (%s, %s) since %s s', pid, \
        coalesce(usename, '?'), coalesce(nullif(application_name, ''), 'no name'), \
        coalesce(state, '?'), round(extract(epoch FROM clock_timestamp() - xact_start))) \
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
        AND xact_start < clock_timestamp() - interval '1 minute' ORDER BY xact_start LIMIT 20";

// Writes a record to the write-ahead log that nobody reads. The commit waits for the disk like any
// other.
const FLUSH: &str = "SELECT pg_logical_emit_message(true, 'windlass', '')::text";

pub(crate) fn statements() -> Vec<(String, String)> {
    let all = [
        ("counts", COUNTS),
        ("queues", QUEUES),
        ("ready counts", READY_COUNTS),
        ("damage", DAMAGE),
        ("facts", FACTS),
        ("old transactions", OLD_TRANSACTIONS),
        ("flush", FLUSH),
    ];
    all.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec()
}

/// Counts and ages.
pub(crate) async fn health(shared: &Shared) -> Result<Health, Error> {
    let counts = shared.read(COUNTS, &[]).await?;
    let queues = shared.read(QUEUES, &[]).await?;
    let row = queues.first().ok_or_else(|| Error::corrupt("the health query returned no row"))?;
    let mut cells = Cells::of(row);
    let c = &mut cells;
    let mut runs = rows::all(&counts, rows::run_count)?;
    // The kernel orders statuses by declaration, not by name.
    runs.sort();
    Ok(Health {
        runs,
        turns: queue_health(c)?,
        tasks: queue_health(c)?,
        dead_letters: Capped::new(c.count()?),
        workers_live: c.count()?,
        now: c.time()?,
    })
}

/// How many turns and tasks are ready, each counted up to `max`.
pub(crate) async fn ready_counts(shared: &Shared, max: u64) -> Result<(u64, u64), Error> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = shared.read(READY_COUNTS, &[&max]).await?;
    let row = rows.first().ok_or_else(|| Error::corrupt("a count returned no row"))?;
    let mut cells = Cells::of(row);
    Ok((cells.count()?, cells.count()?))
}

fn queue_health(c: &mut Cells<'_>) -> Result<QueueHealth, Error> {
    Ok(QueueHealth {
        ready: Capped::new(c.count()?),
        ready_oldest: c.time_opt()?,
        scheduled: Capped::new(c.count()?),
        scheduled_next: c.time_opt()?,
        held: Capped::new(c.count()?),
    })
}

/// Looks for damage below the level of rows.
pub(crate) async fn check(shared: &Shared) -> Result<Vec<String>, Error> {
    let rows = shared.read(DAMAGE, &[&shared.options.schema]).await?;
    rows.iter().map(|row| Ok(Cells::of(row).text()?.to_owned())).collect()
}

/// How many commits are timed.
const FLUSHES: u32 = 5;

/// Properties of the database.
pub(crate) async fn facts(shared: &Shared) -> Result<Vec<Fact>, Error> {
    let rows = shared.read(FACTS, &[]).await?;
    let row = rows
        .first()
        .ok_or_else(|| Error::corrupt("the query for server settings returned no row"))?;
    let text = |at: usize| row.get::<_, String>(at);
    let version: Option<i32> = row.get(1);
    let version = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
    let off = |at: usize, name: &str| {
        let what = format!("{name} is off: acknowledged commits can be lost if the machine fails");
        (text(at) == "off").then_some(what)
    };
    let mut facts = vec![
        Fact::new("database", format!("PostgreSQL {}", text(0))),
        Fact::new("schema", format!("version {version}")),
        Fact::new("size", text(2)),
        // The committers set this for their own sessions; this is the default of all others.
        Fact::new("synchronous_commit", text(3)),
        Fact::new("fsync", text(4)).warning(off(4, "fsync")),
        Fact::new("full_page_writes", text(5)).warning(off(5, "full_page_writes")),
    ];
    facts.push(flush(shared).await?);
    let panics = shared.panics.count();
    let panicked = "calls of the store panicked; see the log of the process";
    let panicked = (panics > 0).then(|| panicked.to_owned());
    facts.push(Fact::new("panics", panics.to_string()).warning(panicked));
    let old = shared.read(OLD_TRANSACTIONS, &[]).await?;
    if old.is_empty() {
        facts.push(Fact::new("old transactions", "none"));
    }
    for row in &old {
        let warning = "it slows down every claim; end it, or find out why it stays open";
        let fact = Fact::new("old transaction", row.get::<_, String>(0));
        facts.push(fact.warning(Some(warning.to_owned())));
    }
    Ok(facts)
}

#[expect(clippy::disallowed_methods, reason = "measures the disk under the server")]
async fn flush(shared: &Shared) -> Result<Fact, Error> {
    let mut best = Duration::MAX;
    for _ in 0..FLUSHES {
        let started = Instant::now();
        shared.read(FLUSH, &[]).await?;
        best = best.min(started.elapsed());
    }
    let slow = best > Duration::from_millis(20);
    let warning = "every commit waits for this; use a faster disk or a server that is closer";
    let fact = Fact::new("commit", format!("{:.2} ms", best.as_secs_f64() * 1e3));
    Ok(fact.warning(slow.then(|| warning.to_owned())))
}
