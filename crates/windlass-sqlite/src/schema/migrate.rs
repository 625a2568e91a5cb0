//! Migrations: creates the tables of a new database and upgrades those of an older one.
//!
//! The table of applied migrations has the columns and checksums of the crate refinery, which wrote
//! it in earlier builds. This build does not use refinery, because it depends on 45 other crates:
//! `docs/decisions/0021-build-time.md`.

use std::hash::{Hash as _, Hasher as _};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use siphasher::sip::SipHasher13;
use windlass_kernel::{Error, ErrorCode, ErrorKind};

/// The table of applied migrations.
pub(crate) const TABLE: &str = "windlass_migrations";

/// The version of the newest migration.
pub(crate) const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The migrations, oldest first. A released migration never changes: its checksum is stored.
const MIGRATIONS: [Migration; 3] = [
    Migration { version: 1, name: "kernel", sql: include_str!("../../migrations/V1__kernel.sql") },
    Migration {
        version: 2,
        name: "records",
        sql: include_str!("../../migrations/V2__records.sql"),
    },
    Migration { version: 3, name: "bodies", sql: include_str!("../../migrations/V3__bodies.sql") },
];

struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

impl Migration {
    fn checksum(&self) -> String {
        let mut hasher = SipHasher13::new();
        self.name.hash(&mut hasher);
        self.version.hash(&mut hasher);
        self.sql.hash(&mut hasher);
        hasher.finish().to_string()
    }
}

/// Applies the missing migrations in one transaction.
pub(crate) fn run(conn: &mut Connection) -> Result<(), Error> {
    run_all(conn, &MIGRATIONS)
}

fn run_all(conn: &mut Connection, migrations: &[Migration]) -> Result<(), Error> {
    let failed = |source: rusqlite::Error| {
        let message = "cannot create or migrate the tables";
        Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message).with_source(source)
    };
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let applied = applied(&tx).map_err(failed)?;
    let newest = applied.last().map_or(0, |row| row.version);
    check(&applied, migrations)?;
    for migration in migrations.iter().filter(|migration| migration.version > newest) {
        apply(&tx, migration).map_err(failed)?;
    }
    tx.commit().map_err(failed)
}

#[derive(Debug, PartialEq)]
struct Applied {
    version: i32,
    name: String,
    checksum: String,
}

fn applied(tx: &Transaction<'_>) -> rusqlite::Result<Vec<Applied>> {
    tx.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {TABLE}(
             version int4 PRIMARY KEY,
             name VARCHAR(255),
             applied_on VARCHAR(255),
             checksum VARCHAR(255));"
    ))?;
    let sql = format!("SELECT version, name, checksum FROM {TABLE} ORDER BY version");
    let mut select = tx.prepare(&sql)?;
    let rows = select.query_map([], |row| {
        Ok(Applied { version: row.get(0)?, name: row.get(1)?, checksum: row.get(2)? })
    })?;
    rows.collect()
}

// The applied migrations must be a prefix of those of this build. Tables with another history would
// cause errors that are harder to understand later.
fn check(applied: &[Applied], migrations: &[Migration]) -> Result<(), Error> {
    for (index, row) in applied.iter().enumerate() {
        let same = migrations.get(index).is_some_and(|migration| {
            migration.version == row.version
                && migration.name == row.name
                && migration.checksum() == row.checksum
        });
        if !same {
            let message = format!(
                "cannot migrate the tables: migration {} ({}) of the database differs from the one \
                 of this build",
                row.version, row.name
            );
            return Err(Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message));
        }
    }
    Ok(())
}

fn apply(tx: &Transaction<'_>, migration: &Migration) -> rusqlite::Result<()> {
    tx.execute_batch(migration.sql)?;
    let sql = format!(
        "INSERT INTO {TABLE} (version, name, applied_on, checksum) \
         VALUES (?1, ?2, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?3)"
    );
    tx.execute(&sql, (migration.version, migration.name, migration.checksum()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(conn: &mut Connection) -> Vec<Applied> {
        applied(&conn.transaction().unwrap()).unwrap()
    }

    fn two() -> [Migration; 2] {
        let first = Migration { version: 1, name: "first", sql: "CREATE TABLE a (x); " };
        [first, Migration { version: 2, name: "second", sql: "ALTER TABLE a ADD y;" }]
    }

    #[test]
    fn the_row_matches_the_one_of_refinery() {
        let mut conn = Connection::open_in_memory().unwrap();
        run(&mut conn).unwrap();
        let expected =
            Applied { version: 1, name: "kernel".into(), checksum: "17948001945730301093".into() };
        assert_eq!(rows(&mut conn)[..1], [expected]);
        let on: String = conn
            .query_row("SELECT applied_on FROM windlass_migrations", [], |row| row.get(0))
            .unwrap();
        assert!(on.starts_with("20") && on.ends_with('Z') && on.len() == 24, "{on}");
    }

    #[test]
    fn an_older_database_gets_only_the_missing_migrations() {
        let mut conn = Connection::open_in_memory().unwrap();
        run_all(&mut conn, &two()[..1]).unwrap();
        for _ in 0..2 {
            run_all(&mut conn, &two()).unwrap();
            assert_eq!(rows(&mut conn).len(), 2);
        }
        conn.execute("INSERT INTO a (x, y) VALUES (1, 2)", []).unwrap();
    }

    #[test]
    fn a_failed_migration_is_rolled_back() {
        let mut conn = Connection::open_in_memory().unwrap();
        let broken = Migration { version: 2, name: "broken", sql: "CREATE TABLE b (x); nonsense;" };
        let [first, _] = two();
        assert!(run_all(&mut conn, &[first, broken]).is_err());
        let tables = "SELECT count(*) FROM sqlite_schema";
        assert_eq!(conn.query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    }

    #[test]
    fn another_history_is_refused() {
        for (version, name, sql) in [
            (1, "first", "CREATE TABLE a (z);"),
            (1, "other", two()[0].sql),
            (3, "first", two()[0].sql),
        ] {
            let mut conn = Connection::open_in_memory().unwrap();
            run_all(&mut conn, &[Migration { version, name, sql }]).unwrap();
            let error = run_all(&mut conn, &two()).unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn versions_have_no_gaps() {
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version, index as i32 + 1);
        }
    }
}
