//! The schema: migrations under an advisory lock, partitions ahead of time, the clock of tests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use refinery::{Migration, Runner};
use tokio_postgres::Client;
use windlass_kernel::{Error, ErrorKind, Timestamp};

use crate::error::{of_call, said};
use crate::store::Shared;

/// The migrations, oldest first. One that was released never changes.
const MIGRATIONS: [(&str, &str); 4] = [
    ("V1__kernel", include_str!("../migrations/V1__kernel.sql")),
    ("V2__commit", include_str!("../migrations/V2__commit.sql")),
    ("V3__holds", include_str!("../migrations/V3__holds.sql")),
    ("V4__retention", include_str!("../migrations/V4__retention.sql")),
];

/// What this build knows.
const VERSION: i32 = MIGRATIONS.len() as i32;

/// The oldest server that works: row triggers on partitioned tables and `pg_current_xact_id`.
const SERVER_VERSION_MIN: i32 = 130_000;

/// Attach partitions again when they end in less than this.
const PARTITIONS_AHEAD_MIN: Duration = Duration::from_secs(45 * 24 * 60 * 60);

/// Makes the schema what this build needs, or says why it cannot.
pub(crate) async fn prepare(shared: &Shared) -> Result<(), Error> {
    let mut client = shared.connector.client().await?;
    check_server(&client).await?;
    if shared.options.inspect {
        return look(version(&client, shared).await?, &shared.options.schema);
    }
    // Twenty processes that start at once: all but the first find it done, most without waiting.
    if version(&client, shared).await? != Some(VERSION) {
        migrate_locked(&mut client, shared).await?;
    }
    ensure_partitions(shared, &client).await
}

// Says what there is instead of making what there should be.
fn look(found: Option<i32>, schema: &str) -> Result<(), Error> {
    match found {
        Some(VERSION) => Ok(()),
        Some(found) => {
            let message =
                format!("schema {schema:?} is at version {found}; this build needs {VERSION}");
            Err(Error::new(ErrorKind::Closed, "STORE_OLDER", message))
        }
        None => {
            let message = format!("there is no store: the database has no schema {schema:?}");
            Err(Error::new(ErrorKind::NotFound, "STORE_NOT_FOUND", message))
        }
    }
}

async fn check_server(client: &Client) -> Result<(), Error> {
    let row = client
        .query_one("SELECT current_setting('server_version_num')::int4, version()", &[])
        .await
        .map_err(of_call)?;
    let (number, text): (i32, String) = (row.get(0), row.get(1));
    if number < SERVER_VERSION_MIN {
        let message = format!("Windlass needs PostgreSQL 13 or later; this is {text}");
        return Err(Error::new(ErrorKind::Closed, "STORE_VERSION", message));
    }
    Ok(())
}

// The last migration that was applied; none if the schema is not there. Tables of somebody else in
// the schema, or migrations of a newer build, are refused.
async fn version(client: &Client, shared: &Shared) -> Result<Option<i32>, Error> {
    let schema = &shared.options.schema;
    let sql = "SELECT count(*) FILTER (WHERE c.relname = 'refinery_schema_history'), \
         count(*) FILTER (WHERE c.relname IN ('runs', 'steps', 'events', 'tasks')) \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')";
    let row = client.query_one(sql, &[schema]).await.map_err(of_call)?;
    let (history, tables): (i64, i64) = (row.get(0), row.get(1));
    if history == 0 {
        if tables > 0 {
            let message = format!(
                "schema {schema:?} has tables that Windlass did not make; choose another schema"
            );
            return Err(Error::new(ErrorKind::Closed, "STORE_FOREIGN", message));
        }
        return Ok(None);
    }
    let sql = shared.sql("SELECT max(version) FROM @schema@.refinery_schema_history");
    let found: Option<i32> = client.query_one(&sql, &[]).await.map_err(of_call)?.get(0);
    if let Some(found) = found.filter(|found| *found > VERSION) {
        let message = format!(
            "schema {schema:?} is at version {found}, which is newer than the {VERSION} this build knows; use a newer build"
        );
        return Err(Error::new(ErrorKind::Closed, "STORE_NEWER", message));
    }
    Ok(found)
}

async fn migrate_locked(client: &mut Client, shared: &Shared) -> Result<(), Error> {
    // The lock is the session's: should this process die, the server gives it back.
    let lock = "SELECT pg_advisory_lock(hashtextextended($1, 20260713))";
    let name = format!("windlass migrations of {}", shared.options.schema);
    client
        .batch_execute("SET lock_timeout = 0; SET statement_timeout = 0")
        .await
        .map_err(of_call)?;
    client.query(lock, &[&name]).await.map_err(of_call)?;
    let result = migrate(client, shared).await;
    let unlock = "SELECT pg_advisory_unlock(hashtextextended($1, 20260713))";
    client.query(unlock, &[&name]).await.map_err(of_call)?;
    result
}

async fn migrate(client: &mut Client, shared: &Shared) -> Result<(), Error> {
    if version(client, shared).await? == Some(VERSION) {
        return Ok(());
    }
    let create = shared.sql("CREATE SCHEMA IF NOT EXISTS @schema@");
    client.batch_execute(&create).await.map_err(failed)?;
    let literal = format!("'{}'", shared.options.schema);
    let mut migrations = Vec::with_capacity(MIGRATIONS.len());
    for (name, text) in MIGRATIONS {
        let sql = shared.sql(&text.replace("@schema_literal@", &literal));
        let migration = Migration::unapplied(name, &sql).map_err(|error| {
            Error::new(ErrorKind::Internal, "INTERNAL", "a migration has no version")
                .with_source(error)
        })?;
        migrations.push(migration);
    }
    let mut runner = Runner::new(&migrations);
    runner.set_migration_table_name(shared.sql("@schema@.refinery_schema_history"));
    runner.run_async(client).await.map_err(|error| {
        let message = format!("the schema could not be migrated: {error}");
        Error::new(ErrorKind::Closed, "STORE_MIGRATION", message).with_source(error)
    })?;
    Ok(())
}

fn failed(error: tokio_postgres::Error) -> Error {
    let message = format!("the schema could not be made: {}", said(&error));
    Error::new(ErrorKind::Closed, "STORE_MIGRATION", message).with_source(error)
}

async fn ensure_partitions(shared: &Shared, client: &Client) -> Result<(), Error> {
    let name = format!("windlass partitions of {}", shared.options.schema);
    // In one statement and so one transaction: the lock goes with it.
    let sql = shared.sql(
        "SELECT @schema@.ensure_partitions($2) \
         FROM (SELECT pg_advisory_xact_lock(hashtextextended($1, 20260713))) locked",
    );
    let months = shared.options.partition_months as i32;
    let row = client.query_one(&sql, &[&name, &months]).await.map_err(of_call)?;
    shared.partitions_until.store(row.get(0), Ordering::Release);
    Ok(())
}

/// Attaches partitions if the last ones come near. Called after renewals, never by a commit.
pub(crate) async fn keep_partitions_ahead(shared: &Shared, now: Timestamp) -> Result<(), Error> {
    let until = Timestamp::from_micros(shared.partitions_until.load(Ordering::Acquire));
    if now.plus(PARTITIONS_AHEAD_MIN) < until {
        return Ok(());
    }
    // Should it fail, the default partition takes the rows; the next day tries again.
    let tomorrow = now.plus(PARTITIONS_AHEAD_MIN + Duration::from_secs(24 * 60 * 60));
    shared.partitions_until.store(tomorrow.as_micros(), Ordering::Release);
    ensure_partitions(shared, &shared.connector.client().await?).await
}

/// Puts another clock into the schema of a test: frozen at a time if one is given, and moved
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
    client.batch_execute(&format!("{sql} {frozen}; COMMIT")).await.map_err(of_call)
}
