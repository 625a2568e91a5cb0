//! Settings, and the deletion of expired runs.

use rusqlite::{OptionalExtension, Row, params};
use windlass_kernel::{
    Body, DeleteTrees, Deleted, Namespace, RunKey, RunStatus, SettingName, TaskId, WorkflowName,
};

use crate::apply::Writer;
use crate::error::UnitError;
use crate::rows::{self, Blob};

const PUT: &str = "INSERT INTO settings (kind, name, value_encoding, value, updated_at) \
     VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET \
     value_encoding = excluded.value_encoding, value = excluded.value, \
     updated_at = excluded.updated_at";
const DELETE_SETTING: &str = "DELETE FROM settings WHERE kind = ?1 AND name = ?2";

/// The runs of a tree and whether each may be deleted. The root is not in the index of trees.
const TREE: &str = "SELECT run_key, namespace, workflow, status, \
     ended_at IS NOT NULL AND ended_at <= ?2 \
     AND (retention_until IS NULL OR retention_until <= ?3) \
     AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.run_key = r.run_key) \
     FROM (SELECT * FROM runs WHERE run_key = ?1 AND root = ?1 UNION ALL \
           SELECT * FROM runs INDEXED BY runs_root WHERE root = ?1 AND root <> run_key) r";
const EARLIER: &str = "SELECT 1 FROM runs r JOIN runs e INDEXED BY runs_name \
     ON e.namespace = r.namespace AND e.workflow = r.workflow AND e.id = r.id \
     AND e.generation < r.generation WHERE r.run_key = ?1 LIMIT 1";

/// A newer generation of a root, or a run of its tree, that may not be deleted yet.
const NEWER: &str = "SELECT 1 FROM runs r JOIN runs n INDEXED BY runs_name \
     ON n.namespace = r.namespace AND n.workflow = r.workflow AND n.id = r.id \
     AND n.generation > r.generation \
     WHERE r.run_key = ?1 AND EXISTS (SELECT 1 FROM (SELECT n.ended_at, n.retention_until \
           UNION ALL SELECT m.ended_at, m.retention_until FROM runs m INDEXED BY runs_root \
           WHERE m.root = n.run_key AND m.root <> m.run_key) \
         WHERE ended_at IS NULL OR ended_at > ?2 OR retention_until > ?3) LIMIT 1";

/// Rows that are deleted with a run, besides its labels and events.
const REST: [&str; 4] = [
    "DELETE FROM steps WHERE run_key = ?1",
    "DELETE FROM messages WHERE run_key = ?1",
    "DELETE FROM logs WHERE run_key = ?1",
    "DELETE FROM dead_letters WHERE run_key = ?1",
];

/// Stores or deletes a setting.
pub(crate) fn put_setting(
    w: &mut Writer<'_>,
    name: &SettingName,
    value: Option<&Body>,
) -> Result<(), UnitError> {
    let (kind, text) = (&*name.kind, &*name.name);
    match value {
        Some(value) => {
            let (encoding, bytes) = (value.encoding.as_str(), Blob(&value.bytes));
            let now = w.now.as_micros();
            w.conn.prepare_cached(PUT)?.execute(params![kind, text, encoding, bytes, now])?
        }
        None => w.conn.prepare_cached(DELETE_SETTING)?.execute(params![kind, text])?,
    };
    Ok(())
}

/// Deletes whole trees that have expired.
pub(crate) fn delete_trees(
    w: &mut Writer<'_>,
    request: &DeleteTrees,
) -> Result<Deleted, UnitError> {
    let mut deleted = Deleted::default();
    for root in &request.roots {
        let members = members(w, *root, request)?;
        let earlier = w.conn.prepare_cached(EARLIER)?.exists(params![Blob(root.as_bytes())])?;
        if members.is_empty() || earlier || members.iter().any(|member| !member.expired) {
            continue;
        }
        if request.keep_for_newer && is_read(w, *root, request)? {
            continue;
        }
        for member in &members {
            delete(w, member, request.keep_ledger)?;
        }
        crate::bodies::delete_of_tree(w, *root)?;
        deleted.roots.push(*root);
        deleted.runs += members.len() as u64;
    }
    Ok(deleted)
}

fn is_read(w: &Writer<'_>, root: RunKey, request: &DeleteTrees) -> Result<bool, UnitError> {
    let by = w.now.minus(request.ended_for).as_micros();
    let key = Blob(root.as_bytes());
    Ok(w.conn.prepare_cached(NEWER)?.exists(params![key, by, w.now.as_micros()])?)
}

struct Member {
    run_key: RunKey,
    namespace: Namespace,
    workflow: WorkflowName,
    status: RunStatus,
    expired: bool,
}

fn members(w: &Writer<'_>, root: RunKey, request: &DeleteTrees) -> Result<Vec<Member>, UnitError> {
    let by = w.now.minus(request.ended_for).as_micros();
    let mut select = w.conn.prepare_cached(TREE)?;
    let found = select.query(params![Blob(root.as_bytes()), by, w.now.as_micros()])?;
    Ok(rows::collect(found, |row: &Row<'_>| {
        let c = &mut rows::Cols::new(row);
        Ok(Member {
            run_key: c.key()?,
            namespace: Namespace::from_stored(c.text()?),
            workflow: WorkflowName::from_stored(c.text()?),
            status: c.word(RunStatus::parse)?,
            expired: c.get()?,
        })
    })?)
}

// Deletes the run first: triggers protect its steps and events as long as it exists.
fn delete(w: &mut Writer<'_>, member: &Member, keep_ledger: bool) -> Result<(), UnitError> {
    let key = Blob(member.run_key.as_bytes());
    let sql = "DELETE FROM runs WHERE run_key = ?1 RETURNING labels";
    let mut first = w.conn.prepare_cached(sql)?;
    let labels: Option<Option<String>> =
        first.query_row(params![key], |row| row.get(0)).optional()?;
    drop(first);
    if let Some(Some(labels)) = labels {
        let sql = "DELETE FROM labels WHERE namespace = ?1 AND run_key = ?3 \
                   AND (key, value) IN (SELECT key, value FROM json_each(?2))";
        let from = params![member.namespace.as_str(), labels, key];
        w.conn.prepare_cached(sql)?.execute(from)?;
    }
    let events: &[&str] =
        if keep_ledger { &[] } else { &["DELETE FROM events WHERE run_key = ?1"] };
    for sql in REST.iter().chain(events) {
        w.conn.prepare_cached(sql)?.execute(params![key])?;
    }
    w.runs.remove(member.run_key);
    w.count((&member.namespace, &member.workflow), member.status, -1);
    Ok(())
}

/// Deletes dead letters of a namespace. Returns how many existed.
pub(crate) fn delete_dead_letters(
    w: &mut Writer<'_>,
    namespace: &Namespace,
    task_ids: &[TaskId],
) -> Result<u64, UnitError> {
    let sql = "DELETE FROM dead_letters WHERE task_id = ?1 AND namespace = ?2";
    let mut deleted = 0;
    for task_id in task_ids {
        let key = Blob(task_id.as_bytes());
        deleted += w.conn.prepare_cached(sql)?.execute(params![key, namespace.as_str()])?;
    }
    Ok(deleted as u64)
}
