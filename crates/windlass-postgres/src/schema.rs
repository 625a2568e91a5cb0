//! The schema: migrations under an advisory lock, partitions for future months, the clock of tests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use refinery_core::{Migration, Runner};
use tokio_postgres::{Client, SimpleQueryMessage};
use windlass_kernel::{Error, ErrorCode, ErrorKind, Timestamp};

use crate::error::{call_error, error_text};
use crate::store::Shared;

/// The migrations, oldest first. A released migration never changes, because its checksum is
/// stored.
const MIGRATIONS: [(&str, &str); 7] = [
    ("V1__kernel", include_str!("../migrations/V1__kernel.sql")),
    ("V2__commit", include_str!("../migrations/V2__commit.sql")),
    ("V3__holds", include_str!("../migrations/V3__holds.sql")),
    ("V4__retention", include_str!("../migrations/V4__retention.sql")),
    ("V5__records", include_str!("../migrations/V5__records.sql")),
    ("V6__bodies", include_str!("../migrations/V6__bodies.sql")),
    ("V7__readers", include_str!("../migrations/V7__readers.sql")),
];

/// The schema version of this build.
const VERSION: i32 = MIGRATIONS.len() as i32;

/// The oldest supported server: it needs row triggers on partitioned tables and
/// `pg_current_xact_id`.
const SERVER_VERSION_MIN: i32 = 130_000;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Create partitions again when the existing ones end in less than this.
const PARTITIONS_AHEAD_MIN: Duration = Duration::from_secs(45 * 24 * 60 * 60);

/// How long the check for a connection pooler may take.
const POOLER_PROBE_MAX: Duration = Duration::from_secs(10);

/// How often the check is made.
const POOLER_PROBES: u32 = 4;

/// Migrates the schema to the version of this build.
pub(crate) async fn prepare(shared: &Shared) -> Result<(), Error> {
    let mut client = shared.connector.client().await?;
    check_server(&client).await?;
    check_session(shared, &client).await?;
    if shared.options.inspect {
        return check_version(version(&client, shared).await?, &shared.options.schema);
    }
    // If many processes start at once, all but the first usually find the schema migrated without
    // waiting.
    if version(&client, shared).await? != Some(VERSION) {
        migrate_locked(&mut client, shared).await?;
    }
    ensure_partitions(shared, &client).await
}

// Checks the version without migrating.
fn check_version(found: Option<i32>, schema: &str) -> Result<(), Error> {
    match found {
        Some(VERSION) => Ok(()),
        Some(found) => {
            let message =
                format!("schema {schema:?} is at version {found}; this build needs {VERSION}");
            Err(Error::new(ErrorKind::Closed, ErrorCode::StoreOlder, message))
        }
        None => {
            let message = format!("there is no store: the database has no schema {schema:?}");
            Err(Error::new(ErrorKind::NotFound, ErrorCode::StoreNotFound, message))
        }
    }
}

async fn check_server(client: &Client) -> Result<(), Error> {
    let row = client
        .query_one("SELECT current_setting('server_version_num')::int4, version()", &[])
        .await
        .map_err(call_error)?;
    let (number, text): (i32, String) = (row.get(0), row.get(1));
    if number < SERVER_VERSION_MIN {
        let message = format!("Windlass needs PostgreSQL 13 or later; this is {text}");
        return Err(Error::new(ErrorKind::Closed, ErrorCode::StoreVersion, message));
    }
    Ok(())
}

// Refuses a connection pooler that gives each transaction another session. The store sets durability
// and timeouts per session, keeps prepared statements, and listens for notifications. All of that
// would fail silently or at random. While a second client holds a transaction open, such a pooler
// must run the next statement of the first client in another session.
async fn check_session(shared: &Shared, first: &Client) -> Result<(), Error> {
    let second = shared.connector.client().await?;
    let pid = || async {
        // Not prepared: a statement that is dropped sends a message, which the pooler may run beside
        // the transaction of the second client.
        let answer = first.simple_query("SELECT pg_backend_pid()").await.map_err(call_error)?;
        let row = answer.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok::<Option<String>, Error>(row)
    };
    let probe = async {
        let before = pid().await?;
        let mut is_same = true;
        // More than once, because the second client may happen to get another session. A pooler that
        // takes its sessions in turn needs an odd number of statements between two probes.
        for probe in 0..POOLER_PROBES {
            if probe % 2 == 1 {
                second.batch_execute("SELECT 1").await.map_err(call_error)?;
            }
            second.batch_execute("BEGIN; SELECT 1").await.map_err(call_error)?;
            is_same &= pid().await? == before;
            second.batch_execute("ROLLBACK").await.map_err(call_error)?;
            is_same &= pid().await? == before;
        }
        Ok::<bool, Error>(is_same)
    };
    // A pooler with a single session never answers the first client.
    let probed = tokio::time::timeout(POOLER_PROBE_MAX, probe).await.unwrap_or(Ok(false));
    match probed {
        Ok(true) => Ok(()),
        Ok(false) => Err(pooled()),
        // In this mode a pooler forgets the prepared statements of its clients.
        Err(error) if error.message().contains("prepared statement") => Err(pooled()),
        Err(error) => Err(error),
    }
}

fn pooled() -> Error {
    let message = "the connection string leads to a connection pooler in transaction mode (PgBouncer \
                   pool_mode = transaction or statement), which Windlass does not support, because it \
                   needs its own sessions; connect to PostgreSQL directly, or use pool_mode = session";
    Error::new(ErrorKind::Closed, ErrorCode::StorePooled, message)
}

// The last applied migration, or `None` if the schema does not exist. Refuses a schema with foreign
// tables or with migrations of a newer build.
async fn version(client: &Client, shared: &Shared) -> Result<Option<i32>, Error> {
    let schema = &shared.options.schema;
    let sql = "SELECT count(*) FILTER (WHERE c.relname = 'refinery_schema_history'), \
         count(*) FILTER (WHERE c.relname IN ('runs', 'steps', 'events', 'tasks')) \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')";
    let row = client.query_one(sql, &[schema]).await.map_err(call_error)?;
    let (history, tables): (i64, i64) = (row.get(0), row.get(1));
    if history == 0 {
        if tables > 0 {
            let message = format!(
                "schema {schema:?} has tables that Windlass did not create; choose another schema"
            );
            return Err(Error::new(ErrorKind::Closed, ErrorCode::StoreForeign, message));
        }
        return Ok(None);
    }
    let sql = shared.sql("SELECT max(version) FROM @schema@.refinery_schema_history");
    let found: Option<i32> = client.query_one(&sql, &[]).await.map_err(call_error)?.get(0);
    if let Some(found) = found.filter(|found| *found > VERSION) {
        let message = format!(
            "schema {schema:?} is at version {found}, but this build supports {VERSION}; use a newer build"
        );
        return Err(Error::new(ErrorKind::Closed, ErrorCode::StoreNewer, message));
    }
    Ok(found)
}

async fn migrate_locked(client: &mut Client, shared: &Shared) -> Result<(), Error> {
    // A session lock: if this process dies, the server releases it.
    let lock = "SELECT pg_advisory_lock(hashtextextended($1, 20260713))";
    let name = format!("windlass migrations of {}", shared.options.schema);
    client
        .batch_execute("SET lock_timeout = 0; SET statement_timeout = 0")
        .await
        .map_err(call_error)?;
    client.query(lock, &[&name]).await.map_err(call_error)?;
    let result = migrate(client, shared).await;
    let unlock = "SELECT pg_advisory_unlock(hashtextextended($1, 20260713))";
    client.query(unlock, &[&name]).await.map_err(call_error)?;
    result
}

async fn migrate(client: &mut Client, shared: &Shared) -> Result<(), Error> {
    if version(client, shared).await? == Some(VERSION) {
        return Ok(());
    }
    create_schema(client, shared).await?;
    let literal = format!("'{}'", shared.options.schema);
    let mut migrations = Vec::with_capacity(MIGRATIONS.len());
    for (name, text) in MIGRATIONS {
        let sql = shared.sql(&text.replace("@schema_literal@", &literal));
        let migration = Migration::unapplied(name, &sql).map_err(|error| {
            Error::new(ErrorKind::Internal, ErrorCode::Internal, "a migration has no version")
                .with_source(error)
        })?;
        migrations.push(migration);
    }
    let mut runner = Runner::new(&migrations);
    runner.set_migration_table_name(shared.sql("@schema@.refinery_schema_history"));
    runner.run_async(client).await.map_err(|error| {
        let message = format!("cannot migrate the schema: {error}");
        Error::new(ErrorKind::Closed, ErrorCode::StoreMigration, message).with_source(error)
    })?;
    Ok(())
}

// `IF NOT EXISTS` would need the right to create schemas even if the schema is there.
async fn create_schema(client: &Client, shared: &Shared) -> Result<(), Error> {
    let exists = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    let row = client.query_one(exists, &[&shared.options.schema]).await.map_err(call_error)?;
    if !row.get::<_, bool>(0) {
        client.batch_execute(&shared.sql("CREATE SCHEMA @schema@")).await.map_err(failed)?;
    }
    Ok(())
}

fn failed(error: tokio_postgres::Error) -> Error {
    let message = format!("cannot create the schema: {}", error_text(&error));
    Error::new(ErrorKind::Closed, ErrorCode::StoreMigration, message).with_source(error)
}

async fn ensure_partitions(shared: &Shared, client: &Client) -> Result<(), Error> {
    let name = format!("windlass partitions of {}", shared.options.schema);
    // One statement is one transaction, which releases the lock at its end.
    let sql = shared.sql(
        "SELECT @schema@.ensure_partitions($2) \
         FROM (SELECT pg_advisory_xact_lock(hashtextextended($1, 20260713))) locked",
    );
    let months = shared.options.partition_months as i32;
    let row = client.query_one(&sql, &[&name, &months]).await.map_err(call_error)?;
    let until: i64 = row.get(0);
    let sql = shared.sql(PARTITIONS_MISSING);
    let row = client.query_one(&sql, &[&shared.options.schema, &months]).await;
    let row = row.map_err(call_error)?;
    let (missing, now): (i64, i64) = (row.get(0), row.get(1));
    // A month that was busy, or has rows in the default partition, was skipped. Try it tomorrow.
    let until = match missing {
        0 => until,
        _ => Timestamp::from_micros(now).plus(PARTITIONS_AHEAD_MIN + DAY).as_micros(),
    };
    shared.partitions_until.store(until, Ordering::Release);
    Ok(())
}

// How many of the partitions that `ensure_partitions` makes do not exist, and the clock.
const PARTITIONS_MISSING: &str = "SELECT count(*) FILTER (WHERE NOT EXISTS (SELECT FROM pg_class c \
         JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relispartition AND c.relname = p.parent \
             || to_char(date_trunc('month', to_timestamp(@schema@.clock_us() / 1000000.0) \
                 AT TIME ZONE 'UTC') + make_interval(months => m), '\"_\"YYYY\"_\"MM'))), \
     min(@schema@.clock_us()) \
     FROM unnest(ARRAY['steps', 'events']) p (parent) CROSS JOIN generate_series(0, $2::int4) m";

/// Creates partitions if the last ones end soon. Called after renewals, never during a commit.
pub(crate) async fn keep_partitions_ahead(shared: &Shared, now: Timestamp) -> Result<(), Error> {
    let until = Timestamp::from_micros(shared.partitions_until.load(Ordering::Acquire));
    if now.plus(PARTITIONS_AHEAD_MIN) < until {
        return Ok(());
    }
    // If this fails, the default partition takes the rows, and the next day tries again.
    let tomorrow = now.plus(PARTITIONS_AHEAD_MIN + DAY);
    shared.partitions_until.store(tomorrow.as_micros(), Ordering::Release);
    ensure_partitions(shared, &shared.connector.client().await?).await
}

/// Replaces the clock of a test's schema: freezes it at a time if one is given, otherwise moves it
/// forward.
pub(crate) async fn set_clock(
    shared: &Shared,
    frozen: Option<Timestamp>,
    by: Duration,
) -> Result<(), Error> {
    let client = shared.client().await?;
    let sql = shared.sql(
        "BEGIN; \
         SELECT pg_advisory_xact_lock(20260714); \
         CREATE TABLE IF NOT EXISTS @schema@.test_clock (frozen_us int8, offset_us int8 NOT NULL); \
         INSERT INTO @schema@.test_clock SELECT NULL, 0 \
             WHERE NOT EXISTS (SELECT FROM @schema@.test_clock); \
         CREATE OR REPLACE FUNCTION @schema@.clock_us() RETURNS int8 LANGUAGE sql VOLATILE AS \
         $$ SELECT coalesce(frozen_us, (extract(epoch FROM clock_timestamp()) * 1000000)::int8) \
             + offset_us FROM @schema@.test_clock $$; \
         UPDATE @schema@.test_clock SET",
    );
    let frozen = match frozen {
        Some(at) => format!("frozen_us = {}, offset_us = 0", at.as_micros()),
        None => format!("offset_us = offset_us + {}", by.as_micros()),
    };
    client.batch_execute(&format!("{sql} {frozen}; COMMIT")).await.map_err(call_error)
}
