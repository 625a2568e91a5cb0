//! Opens a database: file lock, checks that change nothing, pragmas, migrations.

mod migrate;

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use windlass_kernel::{Error, ErrorCode, ErrorKind, Timestamp};

use crate::error;
use crate::options::Options;

/// The oldest supported SQLite. Versions 3.7.0 to 3.51.2 can lose the write-ahead log.
const SQLITE_MIN: i32 = 3_051_003;
/// "WNDL", in the header of every Windlass database.
const APPLICATION_ID: i32 = 0x574e_444c;
/// How long a connection waits for the lock of another one.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Every migration ends by writing its version into the header.
const SCHEMA_VERSION: i32 = migrate::VERSION;

/// An opened database: the write connection and the file lock.
pub(crate) struct Opened {
    pub(crate) conn: Connection,
    pub(crate) path: PathBuf,
    pub(crate) lock: Lock,
    /// The time of the last commit.
    pub(crate) clock: Timestamp,
}

/// The lock on the `.lock` file, held until it is dropped.
pub(crate) struct Lock {
    _file: File,
}

/// Opens a database for writing. Creates it if it does not exist.
pub(crate) fn open(path: &Path, options: &Options) -> Result<Opened, Error> {
    options.validate()?;
    check_version(rusqlite::version_number(), rusqlite::version())?;
    if options.inspect && is_empty(path)? {
        return Err(no_store(path));
    }
    let path = absolute(path)?;
    let lock = lock(&path)?;
    check_owner(&path)?;
    if options.inspect {
        return open_for_inspection(path, lock);
    }
    let mut conn = connect(&path, false)?;
    prepare(&mut conn, options).map_err(error::sql)?;
    migrate(&mut conn)?;
    check_schema(&conn)?;
    let clock = recover(&conn, options).map_err(error::sql)?;
    Ok(Opened { conn, path, lock, clock })
}

// Changes nothing: does not migrate, does not compare the schema, and does not release the holds of
// the last process.
fn open_for_inspection(path: PathBuf, lock: Lock) -> Result<Opened, Error> {
    let conn = open_reader(&path, Duration::from_secs(5))?;
    let (application, version) = ids(&conn).map_err(|source| unreadable(&path, source))?;
    if application != APPLICATION_ID {
        return Err(no_store(&path));
    }
    if version < SCHEMA_VERSION {
        let message = format!(
            "{} has schema version {version}; this build needs {SCHEMA_VERSION}",
            path.display()
        );
        return Err(Error::new(ErrorKind::Closed, ErrorCode::StoreOlder, message));
    }
    let clock = "SELECT value FROM meta WHERE name = 'clock'";
    // A file whose clock cannot be read is damaged; `check` reports that.
    let clock = conn.query_row(clock, [], |row| row.get(0)).unwrap_or(0);
    Ok(Opened { conn, path, lock, clock: Timestamp::from_micros(clock) })
}

fn no_store(path: &Path) -> Error {
    let message = format!("there is no store at {}", path.display());
    Error::new(ErrorKind::NotFound, ErrorCode::StoreNotFound, message)
}

/// Opens a read-only connection.
pub(crate) fn open_reader(path: &Path, wait: Duration) -> Result<Connection, Error> {
    let conn = connect(path, true)?;
    let set = || -> rusqlite::Result<()> {
        conn.busy_timeout(wait)?;
        conn.pragma_update(None, "query_only", true)?;
        conn.pragma_update(None, "cache_size", -8_192)?;
        conn.pragma_update(None, "temp_store", "MEMORY")
    };
    set().map_err(error::sql)?;
    conn.set_prepared_statement_cache_capacity(256);
    Ok(conn)
}

/// Starts a named thread.
#[expect(clippy::disallowed_methods, reason = "SQLite blocks, so each connection has a thread")]
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|source| {
        let message = format!("cannot start the thread {name}");
        Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message).with_source(source)
    })
}

/// Refuses an SQLite that is too old.
fn check_version(found: i32, name: &str) -> Result<(), Error> {
    if found >= SQLITE_MIN {
        return Ok(());
    }
    let min =
        format!("{}.{}.{}", SQLITE_MIN / 1_000_000, SQLITE_MIN / 1_000 % 1_000, SQLITE_MIN % 1_000);
    let message = format!(
        "this program is linked with SQLite {name}, which can lose its write-ahead log; \
         {min} or later is needed"
    );
    Err(Error::new(ErrorKind::Closed, ErrorCode::StoreVersion, message))
}

fn io(path: &Path, action: &str, source: std::io::Error) -> Error {
    let message = format!("cannot {action} {}", path.display());
    Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message).with_source(source)
}

// Resolves the path, so that two spellings of it use the same lock file.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    if let Ok(path) = path.canonicalize() {
        return Ok(path);
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|source| io(parent, "find", source))?;
    let name = path.file_name().ok_or_else(|| {
        let message = format!("{} does not name a file", path.display());
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message)
    })?;
    Ok(parent.join(name))
}

fn lock(database: &Path) -> Result<Lock, Error> {
    let mut path = database.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|source| io(&path, "open", source))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The process id in the file is only for the error message.
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                pid => format!("process {pid}"),
            };
            let message = format!("{} is locked by {holder}", path.display());
            return Err(Error::new(ErrorKind::Closed, ErrorCode::StoreLocked, message));
        }
        Err(TryLockError::Error(source)) => return Err(io(&path, "lock", source)),
    }
    let write = |file: &mut File| -> std::io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write(&mut file).map_err(|source| io(&path, "write", source))?;
    Ok(Lock { _file: file })
}

// Checks that a file is a Windlass database, without changing it.
fn check_owner(path: &Path) -> Result<(), Error> {
    if is_empty(path)? {
        return Ok(());
    }
    let conn = connect(path, true)?;
    let (application, version) = ids(&conn).map_err(|source| unreadable(path, source))?;
    let foreign = |what: String| {
        let message = format!("{} {what}; nothing was changed", path.display());
        Err(Error::new(ErrorKind::Closed, ErrorCode::StoreForeign, message))
    };
    if application != APPLICATION_ID {
        let tables: Vec<String> = names(&conn).map_err(|source| unreadable(path, source))?;
        // If the first opening was interrupted, there is only an empty table of migrations.
        if let Some(table) = tables.iter().find(|name| *name != migrate::TABLE) {
            return foreign(format!(
                "belongs to another program (application id {application}, table {table:?})"
            ));
        }
    } else if version > SCHEMA_VERSION {
        let message = format!(
            "{} has schema version {version}; this build supports {SCHEMA_VERSION}; use a newer build",
            path.display()
        );
        return Err(Error::new(ErrorKind::Closed, ErrorCode::StoreNewer, message));
    }
    Ok(())
}

// Whether the file does not exist or is empty.
fn is_empty(path: &Path) -> Result<bool, Error> {
    match std::fs::metadata(path) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(io(path, "read", source)),
        Ok(found) => Ok(found.len() == 0),
    }
}

fn unreadable(path: &Path, source: rusqlite::Error) -> Error {
    if source.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) {
        let message =
            format!("{} is not a SQLite database, or its header is damaged", path.display());
        return Error::new(ErrorKind::Closed, ErrorCode::StoreForeign, message).with_source(source);
    }
    error::sql(source)
}

fn ids(conn: &Connection) -> rusqlite::Result<(i32, i32)> {
    let pragma = |name: &str| conn.pragma_query_value(None, name, |row| row.get(0));
    Ok((pragma("application_id")?, pragma("user_version")?))
}

fn names(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut select = conn.prepare(
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') \
         AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    select.query_map([], |row| row.get(0))?.collect()
}

/// Opens a connection with the settings that all connections share.
pub(crate) fn connect(path: &Path, read_only: bool) -> Result<Connection, Error> {
    open_connection(path, read_only).map_err(|source| unreadable(path, source))
}

/// Like [`connect`], with the error of SQLite.
pub(crate) fn open_connection(path: &Path, read_only: bool) -> rusqlite::Result<Connection> {
    let mode = if read_only {
        OpenFlags::SQLITE_OPEN_READ_ONLY
    } else {
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE
    };
    // Not as a URI, so that any character is allowed in a path.
    let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    // Check cells when a page is read, so that damage is found at its page. No mmap, because a
    // truncated file would then raise a signal instead of an error.
    conn.pragma_update(None, "cell_size_check", true)?;
    conn.pragma_update(None, "mmap_size", 0)?;
    // Query plans do not depend on bound values. Without this setting, SQLite recompiles statements
    // that could use a partial index for every value (43 % of the time of a read by name).
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

fn failure(code: std::ffi::c_int, message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(message))
}

fn prepare(conn: &mut Connection, options: &Options) -> rusqlite::Result<()> {
    conn.pragma_update(None, "page_size", options.page_bytes)?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let message = format!("cannot enable the write-ahead log: the journal mode stays {mode:?}");
        return Err(failure(rusqlite::ffi::SQLITE_CANTOPEN, message));
    }
    conn.pragma_update(None, "synchronous", "FULL")?;
    // The committer runs checkpoints, never a commit.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    let kib = i64::try_from(options.cache_bytes / 1_024).unwrap_or(i64::MAX);
    conn.pragma_update(None, "cache_size", -kib)?;
    // Shrink the log file after a burst.
    conn.pragma_update(
        None,
        "journal_size_limit",
        i64::try_from(options.wal_bytes_soft).unwrap_or(-1),
    )?;
    conn.set_prepared_statement_cache_capacity(256);
    Ok(())
}

fn migrate(conn: &mut Connection) -> Result<(), Error> {
    let (application, version) = ids(conn).map_err(error::sql)?;
    if application == APPLICATION_ID && version == SCHEMA_VERSION {
        return Ok(());
    }
    migrate::run(conn)
}

// Compares tables, indexes and triggers with those of the migrations, so that a missing trigger or
// a damaged definition is found now and not when it is needed. Users may have added their own.
fn check_schema(conn: &Connection) -> Result<(), Error> {
    match differences(conn)?.into_iter().next() {
        None => Ok(()),
        Some(name) => {
            Err(Error::corrupt(format!("the schema object {name:?} is missing or changed")))
        }
    }
}

/// The tables and views of the migrations, in lower case.
pub(crate) fn own_tables() -> Result<HashSet<String>, Error> {
    let mut model = Connection::open_in_memory().map_err(error::sql)?;
    migrate(&mut model)?;
    let read = || -> rusqlite::Result<HashSet<String>> {
        let sql = "SELECT lower(name) FROM sqlite_schema WHERE type IN ('table', 'view')";
        let mut select = model.prepare(sql)?;
        select.query_map([], |row| row.get(0))?.collect()
    };
    let mut tables = read().map_err(error::sql)?;
    tables.insert(migrate::TABLE.to_owned());
    // Users may read the schema; SQLite itself refuses to write to it.
    tables.retain(|name| !name.starts_with("sqlite_"));
    Ok(tables)
}

/// The names of schema objects that are missing or differ from those of the migrations.
pub(crate) fn differences(conn: &Connection) -> Result<Vec<String>, Error> {
    let definitions = |conn: &Connection| -> rusqlite::Result<Vec<(String, Option<String>)>> {
        let sql = "SELECT name, sql FROM sqlite_schema WHERE name <> ?1 ORDER BY name";
        let mut select = conn.prepare(sql)?;
        let found = select.query_map([migrate::TABLE], |row| Ok((row.get(0)?, row.get(1)?)))?;
        found.collect()
    };
    let mut model = Connection::open_in_memory().map_err(error::sql)?;
    migrate(&mut model)?;
    let (expected, found) = (definitions(&model), definitions(conn));
    let (expected, found) = (expected.map_err(error::sql)?, found.map_err(error::sql)?);
    let differs = expected.into_iter().filter(|definition| !found.contains(definition));
    Ok(differs.map(|(name, _)| name).collect())
}

// Copies the log that an earlier process left into the database, and releases all holds: no other
// process can be alive. After a failed fsync, pages of the log may be clean in the page cache but
// wrong on disk. Copying them into the database and syncing it removes that doubt.
fn recover(conn: &Connection, options: &Options) -> rusqlite::Result<Timestamp> {
    // If this fails, closing the connection must not try it again: see `committer/checkpoint.rs`.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let busy: i64 = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    if busy != 0 {
        let message = "another process reads the file, so its log cannot be checkpointed";
        return Err(failure(rusqlite::ffi::SQLITE_BUSY, message.to_owned()));
    }
    if let Some(pages) = options.pages_max {
        conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    let last: i64 =
        conn.query_row("SELECT value FROM meta WHERE name = 'clock'", [], |r| r.get(0))?;
    let last = Timestamp::from_micros(last);
    let now = (options.clock)().max(last);
    let tx = conn.unchecked_transaction()?;
    tx.execute(
        "UPDATE runs SET turn_worker = NULL, turn_claimed_at = NULL, turn_last = NULL, \
         turn_claim_no = turn_claim_no + 1, turn_reclaims = turn_reclaims + 1, \
         turn_ready = (status <> 'paused' OR accepted > seen), \
         turn_due_at = CASE WHEN started_at IS NULL AND turn_due_at > ?1 THEN turn_due_at \
                       WHEN status = 'paused' AND accepted <= seen THEN turn_due_at \
                       ELSE MIN(COALESCE(turn_due_at, ?1), ?1) END \
         WHERE turn_worker IS NOT NULL",
        [now.as_micros()],
    )?;
    tx.execute(
        "UPDATE tasks SET worker = NULL, claimed_at = NULL, claim_no = claim_no + 1, \
         reclaims = reclaims + 1, ready = 1, due_at = MIN(COALESCE(due_at, ?1), ?1) \
         WHERE worker IS NOT NULL",
        [now.as_micros()],
    )?;
    tx.execute("UPDATE workers SET status = 'stopped' WHERE status <> 'stopped'", [])?;
    crate::workers::delete_old(&tx, now)?;
    tx.commit()?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_sqlite_is_refused() {
        let error = check_version(3_051_002, "3.51.2").unwrap_err();
        assert_eq!(error.code(), "STORE_VERSION");
        assert!(error.message().contains("3.51.2") && error.message().contains("3.51.3"));
        assert!(check_version(3_051_003, "3.51.3").is_ok());
    }

    #[test]
    fn the_newest_migration_is_the_schema_version() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn).unwrap();
        assert_eq!(ids(&conn).unwrap(), (APPLICATION_ID, SCHEMA_VERSION));
    }
}
