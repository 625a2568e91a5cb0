//! Opening: the lock, the checks that touch nothing, the pragmas, the migrations.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use windlass_kernel::{Error, ErrorKind, Timestamp};

use crate::error;
use crate::options::Options;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The oldest SQLite whose write-ahead log can be trusted: 3.7.0 to 3.51.2 can lose it.
const SQLITE_MIN: i32 = 3_051_003;
/// "WNDL", in the header of every database of ours.
const APPLICATION_ID: i32 = 0x574e_444c;
/// The version of the newest migration.
const SCHEMA_VERSION: i32 = 1;
const MIGRATIONS: &str = "windlass_migrations";

/// A database that was opened: the connection that writes, and the lock.
pub(crate) struct Opened {
    pub(crate) conn: Connection,
    pub(crate) path: PathBuf,
    pub(crate) lock: Lock,
    /// The time of the last commit.
    pub(crate) clock: Timestamp,
}

/// The lock on the side file: held until dropped.
pub(crate) struct Lock {
    _file: File,
}

/// Opens a database for writing, and makes it if there is none.
pub(crate) fn open(path: &Path, options: &Options) -> Result<Opened, Error> {
    options.validate()?;
    check_version(rusqlite::version_number(), rusqlite::version())?;
    if options.inspect && is_empty(path)? {
        return Err(no_store(path));
    }
    let path = absolute(path)?;
    let lock = lock(&path)?;
    inspect(&path)?;
    if options.inspect {
        return look(path, lock);
    }
    let mut conn = connect(&path, false)?;
    prepare(&mut conn, options).map_err(error::sql)?;
    migrate(&mut conn)?;
    compare(&conn)?;
    let clock = start(&conn, options).map_err(error::sql)?;
    Ok(Opened { conn, path, lock, clock })
}

// As it is: neither migrated, nor compared with what the migrations make, nor freed of what its last
// process held.
fn look(path: PathBuf, lock: Lock) -> Result<Opened, Error> {
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
        return Err(Error::new(ErrorKind::Closed, "STORE_OLDER", message));
    }
    let clock = "SELECT value FROM meta WHERE name = 'clock'";
    // A file whose clock does not read is damaged, and that is for `check` to say.
    let clock = conn.query_row(clock, [], |row| row.get(0)).unwrap_or(0);
    Ok(Opened { conn, path, lock, clock: Timestamp::from_micros(clock) })
}

fn no_store(path: &Path) -> Error {
    let message = format!("there is no store at {}", path.display());
    Error::new(ErrorKind::NotFound, "STORE_NOT_FOUND", message)
}

/// Opens a connection that only reads.
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

/// Starts a thread with a name.
#[expect(clippy::disallowed_methods, reason = "SQLite blocks, so each connection has a thread")]
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|source| {
        let message = format!("the thread {name} cannot be started");
        Error::new(ErrorKind::Unavailable, "STORE_UNAVAILABLE", message).with_source(source)
    })
}

/// Refuses a SQLite that is too old.
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
    Err(Error::new(ErrorKind::Closed, "STORE_VERSION", message))
}

fn io(path: &Path, what: &str, source: std::io::Error) -> Error {
    let message = format!("{} cannot be {what}", path.display());
    Error::new(ErrorKind::Unavailable, "STORE_UNAVAILABLE", message).with_source(source)
}

// One name for one file, so that two spellings of it find the same lock.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    if let Ok(path) = path.canonicalize() {
        return Ok(path);
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|source| io(parent, "found", source))?;
    let name = path.file_name().ok_or_else(|| {
        let message = format!("{} does not name a file", path.display());
        Error::new(ErrorKind::Invalid, "INVALID_OPTION", message)
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
        .map_err(|source| io(&path, "opened", source))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // What the holder wrote is a help to people, not part of the lock.
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                pid => format!("the process {pid}"),
            };
            let message = format!("{} is locked by {holder}", path.display());
            return Err(Error::new(ErrorKind::Closed, "STORE_LOCKED", message));
        }
        Err(TryLockError::Error(source)) => return Err(io(&path, "locked", source)),
    }
    let write = |file: &mut File| -> std::io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write(&mut file).map_err(|source| io(&path, "written", source))?;
    Ok(Lock { _file: file })
}

// Looks whether a file is ours, without changing it.
fn inspect(path: &Path) -> Result<(), Error> {
    if is_empty(path)? {
        return Ok(());
    }
    let conn = connect(path, true)?;
    let (application, version) = ids(&conn).map_err(|source| unreadable(path, source))?;
    let foreign = |what: String| {
        let message = format!("{} {what}; nothing was changed", path.display());
        Err(Error::new(ErrorKind::Closed, "STORE_FOREIGN", message))
    };
    if application != APPLICATION_ID {
        let tables: Vec<String> = names(&conn).map_err(|source| unreadable(path, source))?;
        // An interrupted first opening leaves an empty table of migrations behind.
        if let Some(table) = tables.iter().find(|name| *name != MIGRATIONS) {
            return foreign(format!(
                "belongs to another program (application id {application}, table {table:?})"
            ));
        }
    } else if version > SCHEMA_VERSION {
        let message = format!(
            "{} has schema version {version}; this build knows {SCHEMA_VERSION}; use a newer one",
            path.display()
        );
        return Err(Error::new(ErrorKind::Closed, "STORE_NEWER", message));
    }
    Ok(())
}

// Whether there is no file yet, or nothing in it.
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
        return Error::new(ErrorKind::Closed, "STORE_FOREIGN", message).with_source(source);
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

/// Opens a connection with what all of them have in common.
pub(crate) fn connect(path: &Path, read_only: bool) -> Result<Connection, Error> {
    let mode = if read_only {
        OpenFlags::SQLITE_OPEN_READ_ONLY
    } else {
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE
    };
    // No URI: a path is a path, whatever characters it has.
    let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let open = || -> rusqlite::Result<Connection> {
        let conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(Duration::from_secs(5))?;
        conn.pragma_update(None, "trusted_schema", false)?;
        // Damage is found where it is met, not three pages later. No mmap: there a truncated
        // file would be a signal instead of an error.
        conn.pragma_update(None, "cell_size_check", true)?;
        conn.pragma_update(None, "mmap_size", 0)?;
        // Plans do not depend on bound values; without this, statements that could use a partial
        // index are compiled again for every value (43 % of the time of a read by name).
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        Ok(conn)
    };
    open().map_err(|source| unreadable(path, source))
}

fn failure(code: std::ffi::c_int, message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(message))
}

fn prepare(conn: &mut Connection, options: &Options) -> rusqlite::Result<()> {
    conn.pragma_update(None, "page_size", options.page_bytes)?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let message = format!("the file cannot have a write-ahead log: its journal stays {mode:?}");
        return Err(failure(rusqlite::ffi::SQLITE_CANTOPEN, message));
    }
    conn.pragma_update(None, "synchronous", "FULL")?;
    // Checkpoints are the committer's business: none inside a commit.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    let kib = i64::try_from(options.cache_bytes / 1_024).unwrap_or(i64::MAX);
    conn.pragma_update(None, "cache_size", -kib)?;
    // After a burst the log gives its space back.
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
    let mut runner = embedded::migrations::runner().set_grouped(true);
    runner.set_migration_table_name(MIGRATIONS);
    runner.run(conn).map_err(|source| {
        let message = "the tables cannot be made or brought up to date";
        Error::new(ErrorKind::Unavailable, "STORE_UNAVAILABLE", message).with_source(source)
    })?;
    Ok(())
}

// Compares tables, indexes and triggers with what the migrations make: a missing trigger or a
// damaged definition is found now and not when it was needed. Users may have added their own.
fn compare(conn: &Connection) -> Result<(), Error> {
    match differences(conn)?.into_iter().next() {
        None => Ok(()),
        Some(name) => {
            Err(Error::corrupt(format!("{name:?} of the database is missing or changed")))
        }
    }
}

/// The names of what the migrations make and the database does not have as they made it.
pub(crate) fn differences(conn: &Connection) -> Result<Vec<String>, Error> {
    let definitions = |conn: &Connection| -> rusqlite::Result<Vec<(String, Option<String>)>> {
        let sql = "SELECT name, sql FROM sqlite_schema WHERE name <> ?1 ORDER BY name";
        let mut select = conn.prepare(sql)?;
        let found = select.query_map([MIGRATIONS], |row| Ok((row.get(0)?, row.get(1)?)))?;
        found.collect()
    };
    let mut model = Connection::open_in_memory().map_err(error::sql)?;
    migrate(&mut model)?;
    let (expected, found) = (definitions(&model), definitions(conn));
    let (expected, found) = (expected.map_err(error::sql)?, found.map_err(error::sql)?);
    let differs = expected.into_iter().filter(|definition| !found.contains(definition));
    Ok(differs.map(|(name, _)| name).collect())
}

// Makes durable what an earlier process left in the log, and frees what it held: nobody else can
// be alive. After a failed fsync the log's pages may be clean in memory and wrong on the disk;
// copying them into the database and syncing that leaves nothing to trust.
fn start(conn: &Connection, options: &Options) -> rusqlite::Result<Timestamp> {
    let busy: i64 = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if busy != 0 {
        let message = "somebody else reads the file, so its log cannot be copied into it";
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
         turn_due_at = CASE WHEN status = 'paused' AND accepted <= seen THEN turn_due_at \
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
    tx.commit()?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_sqlite_is_refused_by_name() {
        let error = check_version(3_051_002, "3.51.2").unwrap_err();
        assert_eq!(error.code(), "STORE_VERSION");
        assert!(error.message().contains("3.51.2") && error.message().contains("3.51.3"));
        assert!(check_version(3_051_003, "3.51.3").is_ok());
    }

    #[test]
    fn the_newest_migration_is_the_schema_version() {
        let runner = embedded::migrations::runner();
        let newest = runner.get_migrations().iter().map(|m| m.version()).max();
        assert_eq!(newest, Some(SCHEMA_VERSION));
    }
}
