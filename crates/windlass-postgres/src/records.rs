//! Reads of records.

use tokio_postgres::Row;
use windlass_kernel::{
    Collection, Error, Namespace, Query, Record, RecordId, RecordKey, RecordVersion, Rows, Terms,
    WriteId,
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
