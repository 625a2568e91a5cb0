//! Reads of records.

use tokio_postgres::Row;
use windlass_kernel::{
    Collection, DeleteRemovedRecords, DeletedRecords, Error, Namespace, Query, Record, RecordId,
    RecordKey, RecordVersion, Rows, Terms, WriteId,
};

use crate::rows::{self, Cells};
use crate::store::Shared;

/// The columns of a record, from a table with the alias `r`.
const RECORD: &str = "r.namespace, r.collection, r.id, r.revision, r.write_id, r.created_at, \
    r.updated_at, r.terms, r.body, r.body_encoding";
/// The columns of a kept version, from a table with the alias `v`.
const VERSION: &str = "v.namespace, v.collection, v.id, v.revision, v.digest, v.actor, \
    v.caused_by, v.created_at, v.body, v.body_encoding";

fn by_keys() -> String {
    format!(
        "SELECT {RECORD} FROM unnest($1::text[], $2::text[], $3::text[]) \
             WITH ORDINALITY x (namespace, collection, id, place) \
         JOIN @schema@.records r ON r.namespace = x.namespace AND r.collection = x.collection \
             AND r.id = x.id ORDER BY x.place"
    )
}

fn in_collection() -> String {
    format!(
        "SELECT {RECORD} FROM @schema@.records r WHERE r.namespace = $1 AND r.collection = $2 \
         AND r.id > $3 AND r.body_encoding IS NOT NULL ORDER BY r.id LIMIT $4"
    )
}

// The subquery keeps the order of the index of terms, so that a page reads only its own records.
fn by_term() -> String {
    format!(
        "SELECT {RECORD} FROM (SELECT t.namespace, t.collection, t.id FROM @schema@.record_terms t \
             WHERE t.namespace = $1 AND t.collection = $2 AND t.name = $3 AND t.value = $4 \
             AND t.id > $5 ORDER BY t.id LIMIT $6) t \
         JOIN @schema@.records r ON r.namespace = t.namespace AND r.collection = t.collection \
             AND r.id = t.id ORDER BY t.id"
    )
}

// Each name is one search of the index for the first key after the name before.
fn collections() -> String {
    let next = |after: &str| {
        format!(
            "SELECT (SELECT r.collection FROM @schema@.records r WHERE r.namespace = $1 \
             AND r.collection > {after} ORDER BY r.namespace, r.collection LIMIT 1)"
        )
    };
    format!(
        "WITH RECURSIVE c (name) AS ({} UNION ALL {} FROM c WHERE c.name IS NOT NULL) \
         SELECT c.name FROM c WHERE c.name IS NOT NULL LIMIT $3",
        next("$2"),
        next("c.name")
    )
}

// Rows that a batch holds are skipped: this statement waits for nobody, so it cannot deadlock.
fn delete_removed(reserved: bool) -> String {
    let range = match reserved {
        true => "r.collection < 'windlass/'",
        false => "NOT (r.collection >= 'windlass.' AND r.collection < 'windlass/')",
    };
    format!(
        "WITH seen AS MATERIALIZED (SELECT r.namespace, r.collection, r.id, r.updated_at \
             FROM @schema@.records r WHERE r.body_encoding IS NULL \
             AND (r.collection, r.namespace, r.id) > ($1::text, $2::text, $3::text) AND {range} \
             ORDER BY r.collection, r.namespace, r.id LIMIT $4), \
         page AS MATERIALIZED (SELECT * FROM seen ORDER BY collection, namespace, id LIMIT $4 - 1), \
         locked AS MATERIALIZED (SELECT r.namespace, r.collection, r.id \
             FROM page p JOIN @schema@.records r ON r.namespace = p.namespace \
                 AND r.collection = p.collection AND r.id = p.id \
             WHERE r.body_encoding IS NULL AND r.updated_at <= @schema@.clock_us() - $5 \
             AND NOT EXISTS (SELECT FROM @schema@.record_versions v WHERE v.namespace = r.namespace \
                 AND v.collection = r.collection AND v.id = r.id) \
             FOR UPDATE OF r SKIP LOCKED), \
         gone AS (DELETE FROM @schema@.records r USING locked l WHERE r.namespace = l.namespace \
             AND r.collection = l.collection AND r.id = l.id RETURNING 1) \
         SELECT p.namespace, p.collection, p.id, (SELECT count(*) FROM gone), \
             (SELECT count(*) FROM page), (SELECT count(*) FROM seen) = $4 \
         FROM page p ORDER BY p.collection DESC, p.namespace DESC, p.id DESC LIMIT 1"
    )
}

fn all() -> String {
    format!(
        "SELECT {RECORD} FROM @schema@.records r \
         WHERE (r.namespace, r.collection, r.id) > ($1::text, $2::text, $3::text) \
         ORDER BY r.namespace, r.collection, r.id LIMIT $4"
    )
}

fn versions() -> String {
    format!(
        "SELECT {VERSION} FROM @schema@.record_versions v WHERE v.namespace = $1 \
         AND v.collection = $2 AND v.id = $3 AND v.revision < $4 ORDER BY v.revision DESC LIMIT $5"
    )
}

pub(crate) fn statements() -> Vec<(String, String)> {
    let named = |name: &str, text: String| (format!("records {name}"), text);
    vec![
        named("by key", by_keys()),
        named("of a collection", in_collection()),
        named("by term", by_term()),
        named("collections", collections()),
        named("removed of the engine", delete_removed(true)),
        named("removed of others", delete_removed(false)),
        named("of all namespaces", all()),
        named("versions", versions()),
    ]
}

/// Reads records in one snapshot, in the order of their keys; `None` for one that never existed.
pub(crate) async fn get(
    shared: &Shared,
    keys: Vec<RecordKey>,
) -> Result<Vec<Option<Record>>, Error> {
    let namespaces: Vec<&str> = keys.iter().map(|key| key.namespace.as_str()).collect();
    let collections: Vec<&str> = keys.iter().map(|key| key.collection.as_str()).collect();
    let ids: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
    let found = shared.read(&by_keys(), &[&namespaces, &collections, &ids]).await?;
    let mut found = rows::all(&found, record)?.into_iter().peekable();
    Ok(keys.iter().map(|key| found.next_if(|record| record.key == *key)).collect())
}

/// Deletes the rows of one page of removed records.
pub(crate) async fn delete_removed_records(
    shared: &Shared,
    request: DeleteRemovedRecords,
) -> Result<DeletedRecords, Error> {
    request.validate(&shared.options.limits)?;
    // A page of the engine's collections never begins before them.
    let first = if request.reserved { ("windlass.", "", "") } else { ("", "", "") };
    let (collection, namespace, id) = request.after.as_ref().map_or(first, |key| {
        first.max((key.collection.as_str(), key.namespace.as_str(), key.id.as_str()))
    });
    // One more, to know whether there are others.
    let limit = i64::from(request.limit) + 1;
    let removed_for = crate::retention::micros(request.removed_for);
    let sql = delete_removed(request.reserved);
    let found = shared.query(&sql, &[&collection, &namespace, &id, &limit, &removed_for]).await?;
    let Some(row) = found.first() else { return Ok(DeletedRecords::default()) };
    let c = &mut Cells::of(row);
    let (last, deleted, seen) = (key(c)?, c.count()?, c.count()?);
    let (left, has_more) = (seen.saturating_sub(deleted), c.take::<bool>()?);
    Ok(DeletedRecords { deleted, left, next: has_more.then_some(last) })
}

/// Reads a page of a listing of records.
pub(crate) async fn list(shared: &Shared, query: &Query) -> Result<Rows, Error> {
    let limit = i64::from(query.limit());
    match query {
        Query::Records { namespace, collection, term, after, .. } => {
            let (namespace, collection) = (namespace.as_str(), collection.as_str());
            let after = after.as_ref().map_or("", |id| id.as_str());
            let found = match term {
                None => {
                    shared.read(&in_collection(), &[&namespace, &collection, &after, &limit]).await
                }
                Some((name, value)) => {
                    let (name, value) = (&**name, &**value);
                    let from: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
                        [&namespace, &collection, &name, &value, &after, &limit];
                    shared.read(&by_term(), &from).await
                }
            };
            rows::all(&found?, record).map(Rows::Records)
        }
        Query::Collections { namespace, after, .. } => {
            let after = after.as_ref().map_or("", |name| name.as_str());
            let found = shared.read(&collections(), &[&namespace.as_str(), &after, &limit]).await?;
            rows::all(&found, |row| Ok(Collection::from_stored(Cells::of(row).text()?)))
                .map(Rows::Collections)
        }
        Query::AllRecords { after, .. } => {
            let (namespace, collection, id) = after.as_ref().map_or(("", "", ""), |key| {
                (key.namespace.as_str(), key.collection.as_str(), key.id.as_str())
            });
            let found = shared.read(&all(), &[&namespace, &collection, &id, &limit]).await?;
            rows::all(&found, record).map(Rows::Records)
        }
        Query::RecordVersions { key, before, .. } => {
            let before = before.map_or(i64::MAX, |before| before as i64);
            let (namespace, collection) = (key.namespace.as_str(), key.collection.as_str());
            let id = key.id.as_str();
            let found =
                shared.read(&versions(), &[&namespace, &collection, &id, &before, &limit]).await?;
            rows::all(&found, version).map(Rows::RecordVersions)
        }
        _ => Ok(Rows::Records(Vec::new())),
    }
}

fn key(c: &mut Cells<'_>) -> Result<RecordKey, Error> {
    Ok(RecordKey {
        namespace: Namespace::from_stored(c.text()?),
        collection: Collection::from_stored(c.text()?),
        id: RecordId::from_stored(c.text()?),
    })
}

fn record(row: &Row) -> Result<Record, Error> {
    let c = &mut Cells::of(row);
    Ok(Record {
        key: key(c)?,
        revision: c.count()?,
        write_id: WriteId(c.take()?),
        created_at: c.time()?,
        updated_at: c.time()?,
        terms: Terms::parse(c.take()?)?,
        body: c.body()?,
    })
}

fn version(row: &Row) -> Result<RecordVersion, Error> {
    let c = &mut Cells::of(row);
    Ok(RecordVersion {
        key: key(c)?,
        revision: c.count()?,
        digest: c.digest()?,
        actor: c.shared()?,
        caused_by: c.cause()?,
        created_at: c.time()?,
        body: c.body()?.ok_or_else(|| Error::corrupt("a kept version has no body"))?,
    })
}
