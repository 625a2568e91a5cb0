//! The user's own statements: run in a transaction of the commit that carries them, fenced in.
//!
//! SQLite asks an authorizer when a statement is prepared. It is installed once and says yes to
//! everything while the fence is down: installing it anew would make SQLite prepare all of the
//! store's statements again. The user's statements are prepared while the fence is up, are never
//! cached, and so can never be taken for one of the store's.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql};
use windlass_kernel::{CommitError, SqlValue, Statement};

use crate::error::{Fail, is_environment, is_unique};

/// Tables and views that are the store's own, and names that later versions need.
const OWN: [&str; 26] = [
    "runs",
    "steps",
    "events",
    "messages",
    "tasks",
    "workers",
    "logs",
    "labels",
    "limits",
    "dead_letters",
    "counters",
    "meta",
    "run_view",
    "step_view",
    "event_view",
    "schedules",
    "breakers",
    "tallies",
    "rates",
    "definitions",
    "documents",
    "document_versions",
    "approvals",
    "provider_batches",
    "windlass_migrations",
    "dbstat",
];

// How many steps of SQLite's machine pass between two looks at the clock.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

/// What keeps user SQL away from the kernel's tables, and from running for ever.
pub(crate) struct Fence {
    up: Arc<AtomicBool>,
    // Microseconds after `start` at which the user's statements are cut off.
    until: Arc<AtomicI64>,
    start: Instant,
    span: Duration,
}

impl Fence {
    /// Installs the fence on a connection; it is down.
    #[expect(
        clippy::disallowed_methods,
        reason = "bounds how long a statement runs, decides nothing"
    )]
    pub(crate) fn install(conn: &mut Connection, span: Duration) -> rusqlite::Result<Self> {
        let up = Arc::new(AtomicBool::new(false));
        let until = Arc::new(AtomicI64::new(i64::MAX));
        let start = Instant::now();
        let asked = up.clone();
        let indexes = own_indexes(conn)?;
        conn.authorizer(Some(move |context: AuthContext<'_>| {
            if asked.load(Ordering::Relaxed) && !is_allowed(&context, &indexes) {
                return Authorization::Deny;
            }
            Authorization::Allow
        }))?;
        let (asked, cut) = (up.clone(), until.clone());
        let interrupt =
            move || asked.load(Ordering::Relaxed) && passed(start) > cut.load(Ordering::Relaxed);
        conn.progress_handler(STEPS_BETWEEN_LOOKS, Some(interrupt))?;
        Ok(Self { up, until, start, span })
    }

    fn raise(&self) -> Raised<'_> {
        let span = i64::try_from(self.span.as_micros()).unwrap_or(i64::MAX);
        self.until.store(passed(self.start).saturating_add(span), Ordering::Relaxed);
        self.up.store(true, Ordering::Relaxed);
        Raised(self)
    }
}

#[expect(clippy::disallowed_methods, reason = "as in `install`")]
fn passed(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_micros()).unwrap_or(i64::MAX)
}

// Lowers the fence however the user's statements end.
struct Raised<'f>(&'f Fence);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.up.store(false, Ordering::Relaxed);
    }
}

fn is_own(name: &str) -> bool {
    OWN.iter().any(|own| own.eq_ignore_ascii_case(name))
}

fn own_indexes(conn: &Connection) -> rusqlite::Result<HashSet<String>> {
    let mut select =
        conn.prepare("SELECT name, tbl_name FROM sqlite_schema WHERE type = 'index'")?;
    let found = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let found: Vec<(String, String)> = found.collect::<rusqlite::Result<_>>()?;
    Ok(found.into_iter().filter(|(_, table)| is_own(table)).map(|(name, _)| name).collect())
}

fn is_allowed(context: &AuthContext<'_>, own_indexes: &HashSet<String>) -> bool {
    // A table of the user in another schema could stand before one of ours.
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
        | AuthAction::DropTrigger { table_name, .. } => !is_own(table_name),
        AuthAction::CreateView { view_name } | AuthAction::DropView { view_name } => {
            !is_own(view_name)
        }
        // Asked when an index is made, too.
        AuthAction::Reindex { index_name } => !own_indexes.contains(index_name),
        // ATTACH, DETACH, PRAGMA, BEGIN, SAVEPOINT; temporary things, which would outlive the
        // transaction; ANALYZE, which would change the plans of the store's own statements;
        // virtual tables; and whatever a later SQLite thinks up.
        _ => false,
    }
}

/// Runs the user's statements in order. The transaction is the caller's to undo.
pub(crate) fn run_statements<'s>(
    conn: &Connection,
    fence: &Fence,
    statements: impl Iterator<Item = &'s Statement>,
) -> Result<(), Fail> {
    let mut statements = statements.peekable();
    if statements.peek().is_none() {
        return Ok(());
    }
    let _raised = fence.raise();
    for statement in statements {
        run_one(conn, statement).map_err(|error| failed(error, fence))?;
    }
    Ok(())
}

fn run_one(conn: &Connection, statement: &Statement) -> rusqlite::Result<()> {
    // A second statement behind the first is an error of `prepare`.
    let mut prepared = conn.prepare(&statement.sql)?;
    let params = statement.params.iter().map(Param);
    let mut rows = prepared.query(rusqlite::params_from_iter(params))?;
    while rows.next()?.is_some() {}
    Ok(())
}

fn failed(error: rusqlite::Error, fence: &Fence) -> Fail {
    if is_environment(&error) {
        return Fail::Sql(error);
    }
    let interrupted =
        error.sqlite_error_code().is_some_and(|code| code == ErrorCode::OperationInterrupted);
    let message = match &error {
        _ if interrupted => format!("it ran longer than {:?}", fence.span),
        rusqlite::Error::MultipleStatement => "one statement at a time, please".to_owned(),
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        other => other.to_string(),
    };
    Fail::Answer(CommitError::UserSql { unique: is_unique(&error), message })
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
