//! User SQL: runs in the transaction of its commit, inside a sandbox.
//!
//! SQLite calls an authorizer when a statement is prepared. It is installed once and allows
//! everything while the sandbox is not active, because installing it again would make SQLite
//! prepare all statements of the store again. User statements are prepared while the sandbox is
//! active. They are never cached, so they cannot be confused with a statement of the store.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql};
use windlass_kernel::{CommitError, Error, SqlValue, Statement};

use crate::error::{UnitError, is_environment, is_unique, sql};
use crate::schema;

/// Names that later versions of the store need, and a virtual table of SQLite that shows all pages.
const RESERVED: [&str; 7] = [
    "schedules",
    "definitions",
    "documents",
    "document_versions",
    "approvals",
    "provider_batches",
    "dbstat",
];

// How many instructions of SQLite's virtual machine run between two checks of the clock.
const STEPS_BETWEEN_CHECKS: i32 = 10_000;

/// Keeps user SQL away from the store's tables and limits its run time.
pub(crate) struct Sandbox {
    active: Arc<AtomicBool>,
    // Microseconds after `start` at which user statements are interrupted.
    until: Arc<AtomicI64>,
    start: Instant,
    span: Duration,
}

impl Sandbox {
    /// Installs the sandbox on a connection. It is not active.
    #[expect(
        clippy::disallowed_methods,
        reason = "limits how long a statement runs, decides nothing"
    )]
    pub(crate) fn install(conn: &mut Connection, span: Duration) -> Result<Self, Error> {
        let active = Arc::new(AtomicBool::new(false));
        let until = Arc::new(AtomicI64::new(i64::MAX));
        let start = Instant::now();
        let is_active = active.clone();
        let own = OwnNames::read(conn)?;
        conn.authorizer(Some(move |context: AuthContext<'_>| {
            if is_active.load(Ordering::Relaxed) && !is_allowed(&context, &own) {
                return Authorization::Deny;
            }
            Authorization::Allow
        }))
        .map_err(sql)?;
        let (is_active, deadline) = (active.clone(), until.clone());
        let interrupt = move || {
            is_active.load(Ordering::Relaxed) && passed(start) > deadline.load(Ordering::Relaxed)
        };
        conn.progress_handler(STEPS_BETWEEN_CHECKS, Some(interrupt)).map_err(sql)?;
        Ok(Self { active, until, start, span })
    }

    fn enter(&self) -> SandboxGuard<'_> {
        let span = i64::try_from(self.span.as_micros()).unwrap_or(i64::MAX);
        self.until.store(passed(self.start).saturating_add(span), Ordering::Relaxed);
        self.active.store(true, Ordering::Relaxed);
        SandboxGuard(self)
    }
}

#[expect(clippy::disallowed_methods, reason = "same as in `install`")]
fn passed(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_micros()).unwrap_or(i64::MAX)
}

// Deactivates the sandbox however the user statements end.
struct SandboxGuard<'s>(&'s Sandbox);

impl Drop for SandboxGuard<'_> {
    fn drop(&mut self) {
        self.0.active.store(false, Ordering::Relaxed);
    }
}

// The tables, views and indexes of the store, in lower case.
struct OwnNames {
    tables: HashSet<String>,
    indexes: HashSet<String>,
}

impl OwnNames {
    // The tables come from the migrations, so a new table is never forgotten here.
    fn read(conn: &Connection) -> Result<Self, Error> {
        let mut tables = schema::own_tables()?;
        tables.extend(RESERVED.map(str::to_owned));
        let indexes = || -> rusqlite::Result<Vec<(String, String)>> {
            let text =
                "SELECT lower(name), lower(tbl_name) FROM sqlite_schema WHERE type = 'index'";
            let mut select = conn.prepare(text)?;
            select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        let indexes = indexes().map_err(sql)?.into_iter();
        let indexes = indexes.filter(|(_, table)| tables.contains(table)).map(|(name, _)| name);
        Ok(Self { indexes: indexes.collect(), tables })
    }

    fn has_table(&self, name: &str) -> bool {
        self.tables.contains(&name.to_ascii_lowercase())
    }
}

fn is_allowed(context: &AuthContext<'_>, own: &OwnNames) -> bool {
    // A user table in another schema could hide one of the store's tables.
    if context.database_name.is_some_and(|name| name != "main") {
        return false;
    }
    match context.action {
        AuthAction::Select | AuthAction::Recursive => true,
        AuthAction::Function { function_name } => {
            !function_name.eq_ignore_ascii_case("load_extension")
        }
        AuthAction::Read { table_name, .. }
        | AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name }
        | AuthAction::CreateTable { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::DropTrigger { table_name, .. } => !own.has_table(table_name),
        AuthAction::CreateView { view_name } | AuthAction::DropView { view_name } => {
            !own.has_table(view_name)
        }
        // SQLite also asks this when an index is created.
        AuthAction::Reindex { index_name } => {
            !own.indexes.contains(&index_name.to_ascii_lowercase())
        }
        // Denied: ATTACH, DETACH, PRAGMA, BEGIN, SAVEPOINT; temporary objects, which would outlive
        // the transaction; ANALYZE, which would change the query plans of the store; virtual
        // tables; and all actions of later SQLite versions.
        _ => false,
    }
}

/// Runs user statements in order. The caller rolls back the transaction on an error.
pub(crate) fn run_statements<'s>(
    conn: &Connection,
    sandbox: &Sandbox,
    statements: impl Iterator<Item = &'s Statement>,
) -> Result<(), UnitError> {
    let mut statements = statements.peekable();
    if statements.peek().is_none() {
        return Ok(());
    }
    let _guard = sandbox.enter();
    for statement in statements {
        run_one(conn, statement).map_err(|error| failed(error, sandbox))?;
    }
    Ok(())
}

fn run_one(conn: &Connection, statement: &Statement) -> rusqlite::Result<()> {
    // `prepare` refuses a text with a second statement.
    let mut prepared = conn.prepare(&statement.sql)?;
    let params = statement.params.iter().map(Param);
    let mut rows = prepared.query(rusqlite::params_from_iter(params))?;
    while rows.next()?.is_some() {}
    Ok(())
}

fn failed(error: rusqlite::Error, sandbox: &Sandbox) -> UnitError {
    if is_environment(&error) {
        return UnitError::Sql(error);
    }
    let interrupted =
        error.sqlite_error_code().is_some_and(|code| code == ErrorCode::OperationInterrupted);
    let message = match &error {
        _ if interrupted => format!("it ran longer than {:?}", sandbox.span),
        rusqlite::Error::MultipleStatement => {
            "the text has more than one statement; pass one statement at a time".to_owned()
        }
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        other => other.to_string(),
    };
    UnitError::Commit(CommitError::UserSql { unique: is_unique(&error), message })
}

struct Param<'v>(&'v SqlValue);

impl ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            SqlValue::Null => ToSqlOutput::Owned(Value::Null),
            SqlValue::Bool(value) => ToSqlOutput::Owned(Value::Integer(i64::from(*value))),
            SqlValue::Int(value) => ToSqlOutput::Owned(Value::Integer(*value)),
            SqlValue::Float(value) => ToSqlOutput::Owned(Value::Real(*value)),
            SqlValue::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            SqlValue::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}
