//! Records: their guards, their rows and their listings.

use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_kernel::{
    CausalRef, Collection, Commit, Conflict, DeleteRemovedRecords, DeletedRecords, Error,
    Namespace, Query, Record, RecordFound, RecordId, RecordKey, RecordOp, RecordVersion,
    RecordWrite, Rows, Terms, WriteId,
};

use crate::apply::Writer;
use crate::error::{UnitError, sql};
use crate::list::page;
use crate::rows::{self, Blob, Cols, body, count, number};

/// The columns of a record.
const RECORD: &str = "namespace, collection, id, revision, write_id, created_at, updated_at, \
     terms, body_encoding, body";
/// The columns of a kept version.
const VERSION: &str = "namespace, collection, id, revision, digest, actor, caused_by, created_at, \
     body_encoding, body";

// Larger bodies are read by a reader thread, because they would delay the caller's runtime.
const SHORT_BYTES_MAX: i64 = 64 * 1024;

static GET: LazyLock<String> = LazyLock::new(|| {
    format!("SELECT {RECORD} FROM records WHERE namespace = ?1 AND collection = ?2 AND id = ?3")
});
const SIZE: &str = "SELECT coalesce(length(body), 0) FROM records \
     WHERE namespace = ?1 AND collection = ?2 AND id = ?3";
const FIND: &str = "SELECT revision, body_encoding IS NULL FROM records \
     WHERE namespace = ?1 AND collection = ?2 AND id = ?3";
const FIND_WRITE: &str = "SELECT 1 FROM records \
     WHERE namespace = ?1 AND collection = ?2 AND id = ?3 AND write_id = ?4";
const FIND_TERMS: &str = "SELECT rowid, revision, terms, \
     coalesce(body_encoding IN ('json_ref', 'bytes_ref'), 0) FROM records \
     WHERE namespace = ?1 AND collection = ?2 AND id = ?3";
const INSERT: &str = "INSERT INTO records (namespace, collection, id, revision, write_id, \
     created_at, updated_at, terms, body_encoding, body) \
     VALUES (?1, ?2, ?3, ?9, ?4, ?5, ?5, ?6, ?7, ?8)";
const UPDATE: &str = "UPDATE records SET revision = ?7, write_id = ?2, updated_at = ?3, \
     terms = ?4, body_encoding = ?5, body = ?6 WHERE rowid = ?1";
const INSERT_VERSION: &str = "INSERT INTO record_versions (namespace, collection, id, revision, \
     digest, actor, caused_by, created_at, body_encoding, body) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
const INSERT_TERM: &str = "INSERT INTO record_terms (namespace, collection, name, value, id) \
     VALUES (?1, ?2, ?3, ?4, ?5)";
const DELETE_TERM: &str = "DELETE FROM record_terms \
     WHERE namespace = ?1 AND collection = ?2 AND name = ?3 AND value = ?4 AND id = ?5";

// Each name is one search of the index for the first key after the name before.
const COLLECTIONS: &str = "WITH RECURSIVE c (name) AS ( \
         SELECT (SELECT min(collection) FROM records WHERE namespace = ?1 AND collection > ?2) \
         UNION ALL \
         SELECT (SELECT min(collection) FROM records WHERE namespace = ?1 AND collection > c.name) \
         FROM c WHERE c.name IS NOT NULL) \
     SELECT name FROM c WHERE name IS NOT NULL LIMIT ?3";
const REMOVED_RESERVED: &str = "SELECT rowid, namespace, collection, id, updated_at FROM records \
     WHERE body_encoding IS NULL AND (collection, namespace, id) > (?1, ?2, ?3) \
     AND collection < 'windlass/' ORDER BY collection, namespace, id LIMIT ?4";
const REMOVED_OTHERS: &str = "SELECT rowid, namespace, collection, id, updated_at FROM records \
     WHERE body_encoding IS NULL AND (collection, namespace, id) > (?1, ?2, ?3) \
     AND NOT (collection >= 'windlass.' AND collection < 'windlass/') \
     ORDER BY collection, namespace, id LIMIT ?4";
const DELETE_REMOVED: &str = "DELETE FROM records WHERE rowid = ?1 AND NOT EXISTS ( \
         SELECT 1 FROM record_versions WHERE namespace = ?2 AND collection = ?3 AND id = ?4)";

/// Returns the first record that is not as the commit expects.
pub(crate) fn check(w: &Writer<'_>, commit: &Commit) -> Result<Option<Conflict>, UnitError> {
    for op in commit.records() {
        let found = find(w, &op.key)?;
        if !op.holds(found) {
            let RecordKey { collection, id, .. } = op.key.clone();
            return Ok(Some(Conflict::Record { collection, id, expected: op.expect, found }));
        }
    }
    Ok(None)
}

fn find(w: &Writer<'_>, key: &RecordKey) -> Result<RecordFound, UnitError> {
    let read = |row: &Row<'_>| {
        let revision = count(row, 0)?;
        let removed: bool = row.get(1)?;
        Ok(if removed { RecordFound::Removed(revision) } else { RecordFound::At(revision) })
    };
    let mut find = w.conn.prepare_cached(FIND)?;
    let name = params![key.namespace.as_str(), key.collection.as_str(), key.id.as_str()];
    Ok(find.query_row(name, read).optional()?.unwrap_or(RecordFound::Absent))
}

/// Whether the last write of a record is this one.
pub(crate) fn was_written(
    w: &Writer<'_>,
    key: &RecordKey,
    write_id: WriteId,
) -> Result<bool, UnitError> {
    let id = Blob(write_id.as_bytes());
    let name = params![key.namespace.as_str(), key.collection.as_str(), key.id.as_str(), id];
    Ok(w.conn.prepare_cached(FIND_WRITE)?.exists(name)?)
}

/// Writes the record of an op whose expectation holds.
pub(crate) fn write(w: &Writer<'_>, op: &RecordOp) -> Result<(), UnitError> {
    let none = Terms::default();
    let (write_id, document, terms, at) = match &op.write {
        RecordWrite::Check => return Ok(()),
        RecordWrite::Put(put) => (put.write_id, Some(put.body.clone()), &put.terms, put.at),
        RecordWrite::Remove { write_id, at } => (*write_id, None, &none, *at),
    };
    let key = &op.key;
    let (namespace, collection) = (key.namespace.as_str(), key.collection.as_str());
    let id = key.id.as_str();
    let read = |row: &Row<'_>| {
        let had_large = row.get::<_, bool>(3)?;
        Ok((row.get::<_, i64>(0)?, count(row, 1)?, row.get::<_, Option<String>>(2)?, had_large))
    };
    let mut find = w.conn.prepare_cached(FIND_TERMS)?;
    let before = find.query_row(params![namespace, collection, id], read).optional()?;
    let column = terms.to_column();
    let (write_id, at) = (Blob(write_id.as_bytes()), at.as_micros());
    let (encoding, bytes) = body(&document);
    let (revision, old, had_large) = match before {
        None => {
            let revision = op.set_revision().unwrap_or(1);
            let row = params![
                namespace,
                collection,
                id,
                write_id,
                at,
                column,
                encoding,
                bytes,
                number(revision)
            ];
            w.conn.prepare_cached(INSERT)?.execute(row)?;
            (revision, None, false)
        }
        Some((rowid, revision, old, had_large)) => {
            let revision = op.set_revision().unwrap_or(revision + 1);
            let row = params![rowid, write_id, at, column, encoding, bytes, number(revision)];
            w.conn.prepare_cached(UPDATE)?.execute(row)?;
            (revision, old, had_large)
        }
    };
    if old != column {
        replace_terms(w, key, old.as_deref(), terms)?;
    }
    if let Some(version) = op.version(revision) {
        insert_version(w, &version)?;
    }
    // The earlier revision may have been the only one that named its large body.
    if had_large { crate::bodies::forget_unnamed(w, key) } else { Ok(()) }
}

fn replace_terms(
    w: &Writer<'_>,
    key: &RecordKey,
    old: Option<&str>,
    new: &Terms,
) -> Result<(), UnitError> {
    let old = Terms::parse(old)?;
    let (namespace, collection) = (key.namespace.as_str(), key.collection.as_str());
    let mut delete = w.conn.prepare_cached(DELETE_TERM)?;
    for (name, value) in old.iter().filter(|(name, value)| !new.contains(name, value)) {
        delete.execute(params![namespace, collection, name, value, key.id.as_str()])?;
    }
    let mut insert = w.conn.prepare_cached(INSERT_TERM)?;
    for (name, value) in new.iter().filter(|(name, value)| !old.contains(name, value)) {
        insert.execute(params![namespace, collection, name, value, key.id.as_str()])?;
    }
    Ok(())
}

fn insert_version(w: &Writer<'_>, version: &RecordVersion) -> Result<(), UnitError> {
    let RecordKey { namespace, collection, id } = &version.key;
    w.conn.prepare_cached(INSERT_VERSION)?.execute(params![
        namespace.as_str(),
        collection.as_str(),
        id.as_str(),
        number(version.revision),
        Blob(version.digest.as_bytes()),
        version.actor.as_deref(),
        version.caused_by.as_ref().map(CausalRef::canonical),
        version.created_at.as_micros(),
        version.body.column(),
        Blob(&version.body.bytes),
    ])?;
    Ok(())
}

/// Deletes the rows of one page of removed records.
pub(crate) fn delete_removed(
    w: &mut Writer<'_>,
    request: &DeleteRemovedRecords,
) -> Result<DeletedRecords, UnitError> {
    // A page of the engine's collections never begins before them.
    let first = if request.reserved { ("windlass.", "", "") } else { ("", "", "") };
    let after = request.after.as_ref().map_or(first, |key| {
        first.max((key.collection.as_str(), key.namespace.as_str(), key.id.as_str()))
    });
    let sql = if request.reserved { REMOVED_RESERVED } else { REMOVED_OTHERS };
    let mut select = w.conn.prepare_cached(sql)?;
    // One more, to know whether there are others.
    let found = select.query(params![after.0, after.1, after.2, request.limit + 1])?;
    let mut page = rows::collect(found, |row: &Row<'_>| {
        let c = &mut Cols::new(row);
        Ok((c.get::<i64>()?, key(c)?, c.time()?))
    })?;
    drop(select);
    let is_last = page.len() <= request.limit as usize;
    page.truncate(request.limit as usize);
    let by = w.now.minus(request.removed_for);
    let mut deleted = 0;
    for (rowid, key, removed_at) in &page {
        if *removed_at <= by {
            let names =
                params![rowid, key.namespace.as_str(), key.collection.as_str(), key.id.as_str()];
            deleted += w.conn.prepare_cached(DELETE_REMOVED)?.execute(names)? as u64;
        }
    }
    let left = page.len() as u64 - deleted;
    let next = page.pop().map(|(_, key, _)| key).filter(|_| !is_last);
    Ok(DeletedRecords { deleted, left, next })
}

/// Reads records in one snapshot.
pub(crate) fn get(conn: &Connection, keys: &[RecordKey]) -> Result<Vec<Option<Record>>, Error> {
    let tx = conn.unchecked_transaction().map_err(sql)?;
    keys.iter().map(|key| get_one(&tx, key)).collect()
}

/// Reads one record, unless its body is large: then the read belongs to a reader thread.
pub(crate) fn get_short(
    conn: &Connection,
    key: &RecordKey,
) -> Result<Option<Vec<Option<Record>>>, Error> {
    let mut size = conn.prepare_cached(SIZE).map_err(sql)?;
    let name = params![key.namespace.as_str(), key.collection.as_str(), key.id.as_str()];
    let bytes = size.query_row(name, |row| row.get::<_, i64>(0)).optional().map_err(sql)?;
    if bytes.is_some_and(|bytes| bytes > SHORT_BYTES_MAX) {
        return Ok(None);
    }
    Ok(Some(vec![get_one(conn, key)?]))
}

fn get_one(conn: &Connection, key: &RecordKey) -> Result<Option<Record>, Error> {
    let name = params![key.namespace.as_str(), key.collection.as_str(), key.id.as_str()];
    Ok(page(conn, &GET, name, record)?.pop())
}

/// Reads a page of a listing of records.
pub(crate) fn list(conn: &Connection, query: &Query) -> Result<Rows, Error> {
    Ok(match query {
        Query::Records { namespace, collection, term, after, limit } => {
            let after = after.as_ref().map_or("", |id| id.as_str());
            let (namespace, collection) = (namespace.as_str(), collection.as_str());
            Rows::Records(match term {
                None => {
                    let sql = format!(
                        "SELECT {RECORD} FROM records WHERE namespace = ?1 AND collection = ?2 \
                         AND id > ?3 AND body_encoding IS NOT NULL ORDER BY id LIMIT ?4"
                    );
                    page(conn, &sql, params![namespace, collection, after, limit], record)?
                }
                Some((name, value)) => {
                    let sql = format!(
                        "SELECT {} FROM record_terms t CROSS JOIN records r \
                         ON r.namespace = t.namespace AND r.collection = t.collection \
                         AND r.id = t.id WHERE t.namespace = ?1 AND t.collection = ?2 \
                         AND t.name = ?3 AND t.value = ?4 AND t.id > ?5 ORDER BY t.id LIMIT ?6",
                        columns_of("r", RECORD)
                    );
                    let from = params![namespace, collection, &**name, &**value, after, limit];
                    page(conn, &sql, from, record)?
                }
            })
        }
        Query::Collections { namespace, after, limit } => {
            let after = after.as_ref().map_or("", |name| name.as_str());
            let from = params![namespace.as_str(), after, limit];
            Rows::Collections(page(conn, COLLECTIONS, from, |row| {
                Ok(Collection::from_stored(Cols::new(row).text()?))
            })?)
        }
        Query::AllRecords { after, limit } => {
            let sql = format!(
                "SELECT {RECORD} FROM records WHERE (namespace, collection, id) > (?1, ?2, ?3) \
                 ORDER BY namespace, collection, id LIMIT ?4"
            );
            let from = after.as_ref().map_or(("", "", ""), |key| {
                (key.namespace.as_str(), key.collection.as_str(), key.id.as_str())
            });
            Rows::Records(page(conn, &sql, params![from.0, from.1, from.2, limit], record)?)
        }
        Query::RecordVersions { key, before, limit } => {
            let sql = format!(
                "SELECT {VERSION} FROM record_versions WHERE namespace = ?1 AND collection = ?2 \
                 AND id = ?3 AND revision < ?4 ORDER BY revision DESC LIMIT ?5"
            );
            let before = before.map_or(i64::MAX, number);
            let (namespace, collection) = (key.namespace.as_str(), key.collection.as_str());
            let from = params![namespace, collection, key.id.as_str(), before, limit];
            Rows::RecordVersions(page(conn, &sql, from, version)?)
        }
        _ => Rows::Records(Vec::new()),
    })
}

fn columns_of(table: &str, columns: &str) -> String {
    let columns: Vec<_> =
        columns.split(',').map(|column| format!("{table}.{}", column.trim())).collect();
    columns.join(", ")
}

fn key(c: &mut Cols<'_>) -> Result<RecordKey, Error> {
    Ok(RecordKey {
        namespace: Namespace::from_stored(c.text()?),
        collection: Collection::from_stored(c.text()?),
        id: RecordId::from_stored(c.text()?),
    })
}

fn record(row: &Row<'_>) -> Result<Record, Error> {
    let c = &mut Cols::new(row);
    Ok(Record {
        key: key(c)?,
        revision: c.number()?,
        write_id: c.key()?,
        created_at: c.time()?,
        updated_at: c.time()?,
        terms: Terms::parse(c.text_opt()?.as_deref())?,
        body: c.body_opt()?,
    })
}

fn version(row: &Row<'_>) -> Result<RecordVersion, Error> {
    let c = &mut Cols::new(row);
    Ok(RecordVersion {
        key: key(c)?,
        revision: c.number()?,
        digest: c.digest()?,
        actor: c.text_opt()?,
        caused_by: match c.text_opt()? {
            Some(text) => Some(CausalRef::parse(text.as_bytes())?),
            None => None,
        },
        created_at: c.time()?,
        body: c.body()?,
    })
}
