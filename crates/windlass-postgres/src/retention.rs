//! Settings, and the deletion of expired runs.

use std::time::Duration;

use windlass_kernel::{Body, DeleteTrees, Deleted, Error, Namespace, RunKey, SettingName, TaskId};

use crate::rows::Cells;
use crate::store::Shared;

const PUT: &str = "INSERT INTO @schema@.settings (kind, name, value, value_encoding, updated_at) \
    VALUES ($1, $2, $3, $4, @schema@.clock_us()) ON CONFLICT (kind, name) DO UPDATE SET \
    value = excluded.value, value_encoding = excluded.value_encoding, \
    updated_at = excluded.updated_at";
const DELETE_SETTING: &str = "DELETE FROM @schema@.settings WHERE kind = $1 AND name = $2";
const DELETE_TREES: &str = "SELECT root, runs FROM @schema@.delete_trees($1, $2, $3, $4)";
const DELETE_DEAD_LETTERS: &str = "DELETE FROM @schema@.dead_letters \
    WHERE task_id = ANY($1) AND namespace = $2 RETURNING task_id";

/// Stores or deletes a setting.
pub(crate) async fn put_setting(
    shared: &Shared,
    name: SettingName,
    value: Option<Body>,
) -> Result<(), Error> {
    name.validate(value.as_ref(), &shared.options.limits)?;
    let (kind, text) = (&*name.kind, &*name.name);
    match &value {
        Some(value) => {
            let (bytes, encoding) = (&value.bytes[..], value.encoding.as_str());
            shared.query(PUT, &[&kind, &text, &bytes, &encoding]).await?;
        }
        None => {
            shared.query(DELETE_SETTING, &[&kind, &text]).await?;
        }
    }
    Ok(())
}

/// Deletes whole trees that have expired.
pub(crate) async fn delete_trees(shared: &Shared, request: DeleteTrees) -> Result<Deleted, Error> {
    request.validate(&shared.options.limits)?;
    let roots: Vec<uuid::Uuid> = request.roots.iter().map(|root| root.0).collect();
    let ended_for = micros(request.ended_for);
    let DeleteTrees { keep_ledger, keep_for_newer, .. } = request;
    let rows =
        shared.query(DELETE_TREES, &[&roots, &ended_for, &keep_ledger, &keep_for_newer]).await?;
    let mut deleted = Deleted::default();
    for row in &rows {
        let mut cells = Cells::of(row);
        deleted.roots.push(RunKey(cells.take()?));
        deleted.runs += cells.count()?;
    }
    Ok(deleted)
}

/// Deletes dead letters of a namespace. Returns how many existed.
pub(crate) async fn delete_dead_letters(
    shared: &Shared,
    namespace: Namespace,
    task_ids: Vec<TaskId>,
) -> Result<u64, Error> {
    let ids: Vec<uuid::Uuid> = task_ids.iter().map(|id| id.0).collect();
    let deleted = shared.query(DELETE_DEAD_LETTERS, &[&ids, &namespace.as_str()]).await?;
    Ok(deleted.len() as u64)
}

/// A duration in microseconds. It is capped so that the database can subtract it from the clock
/// without overflow.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
