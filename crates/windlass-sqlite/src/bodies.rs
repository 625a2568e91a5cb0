//! Large bodies: rows of their own, each once for an owner.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use windlass_kernel::{
    BodyKey, BodyOwner, BodyRef, BodySource, Error, PutBody, RecordKey, RunKey, Sha256Digest,
};

use crate::apply::Writer;
use crate::error::{UnitError, sql};
use crate::list::page;
use crate::rows::{Blob, Cols};

const ROOT: &str = "SELECT root FROM runs WHERE run_key = ?1";
const EXISTS: &str = "SELECT 1 FROM bodies WHERE owner = ?1 AND digest = ?2";
const INSERT: &str = "INSERT INTO bodies (owner, digest, bytes) VALUES (?1, ?2, ?3)";
const COPY: &str = "INSERT INTO bodies (owner, digest, bytes) \
     SELECT t.root, b.digest, b.bytes FROM runs t JOIN runs f ON f.namespace = t.namespace \
     JOIN bodies b ON b.owner = f.root AND b.digest = ?3 \
     WHERE t.run_key = ?1 AND f.run_key = ?2 ON CONFLICT DO NOTHING";
const GET: &str = "SELECT bytes FROM bodies WHERE owner = ?1 AND digest = ?2";
const LIST: &str = "SELECT digest, length(bytes) FROM bodies \
     WHERE owner = ?1 AND digest > ?2 ORDER BY digest LIMIT ?3";
const DELETE: &str = "DELETE FROM bodies WHERE owner = ?1";
// The first 32 bytes of a reference are the digest.
const FORGET: &str = "DELETE FROM bodies WHERE owner = ?1 AND digest NOT IN ( \
     SELECT substr(body, 1, 32) FROM records WHERE namespace = ?2 AND collection = ?3 AND id = ?4 \
     AND body_encoding IN ('json_ref', 'bytes_ref') \
     UNION ALL SELECT digest FROM record_versions \
     WHERE namespace = ?2 AND collection = ?3 AND id = ?4 \
     AND body_encoding IN ('json_ref', 'bytes_ref'))";

/// Stores a body, unless its owner has it.
pub(crate) fn put(w: &mut Writer<'_>, put: &PutBody) -> Result<(), UnitError> {
    let digest = put.digest();
    match (put.source(), put.owner()) {
        (BodySource::Tree(from), BodyOwner::Run(to)) => {
            let keys = [Blob(to.as_bytes()), Blob(from.as_bytes()), Blob(digest.as_bytes())];
            w.conn.prepare_cached(COPY)?.execute(keys)?;
        }
        (BodySource::Tree(_), BodyOwner::Record(_)) => {}
        (BodySource::Bytes(bytes), owner) => {
            let Some(owner) = owner_column(w.conn, owner)? else { return Ok(()) };
            let (owner, digest) = (Blob(&owner), Blob(digest.as_bytes()));
            // An INSERT that does nothing would bind, and so copy, the bytes before it finds out.
            if !w.conn.prepare_cached(EXISTS)?.exists(params![owner, digest])? {
                let mut insert = w.conn.prepare_cached(INSERT)?;
                insert.execute(params![owner, digest, Blob(bytes)])?;
            }
        }
    }
    Ok(())
}

// `None` if the run does not exist.
fn owner_column(conn: &Connection, owner: &BodyOwner) -> rusqlite::Result<Option<Vec<u8>>> {
    match owner {
        BodyOwner::Record(key) => Ok(Some(key.body_owner().as_bytes().to_vec())),
        BodyOwner::Run(run_key) => {
            let mut root = conn.prepare_cached(ROOT)?;
            root.query_row([Blob(run_key.as_bytes())], |row| row.get(0)).optional()
        }
    }
}

/// Deletes the bodies of a record that neither its row nor a kept version names.
pub(crate) fn forget_unnamed(w: &Writer<'_>, key: &RecordKey) -> Result<(), UnitError> {
    let owner = key.body_owner();
    let (namespace, collection) = (key.namespace.as_str(), key.collection.as_str());
    let names = params![Blob(owner.as_bytes()), namespace, collection, key.id.as_str()];
    w.conn.prepare_cached(FORGET)?.execute(names)?;
    Ok(())
}

/// Deletes the bodies of a tree whose runs are deleted.
pub(crate) fn delete_of_tree(w: &Writer<'_>, root: RunKey) -> Result<(), UnitError> {
    w.conn.prepare_cached(DELETE)?.execute([Blob(root.as_bytes())])?;
    Ok(())
}

/// Reads bodies.
pub(crate) fn get(conn: &Connection, keys: &[BodyKey]) -> Result<Vec<Option<Bytes>>, Error> {
    let one = |key: &BodyKey| {
        let Some(owner) = owner_column(conn, &key.owner).map_err(sql)? else { return Ok(None) };
        let mut select = conn.prepare_cached(GET).map_err(sql)?;
        let found = select.query_row(params![Blob(&owner), Blob(key.digest.as_bytes())], |row| {
            row.get::<_, Vec<u8>>(0)
        });
        Ok(found.optional().map_err(sql)?.map(Bytes::from))
    };
    keys.iter().map(one).collect()
}

/// Lists the digests and sizes of the bodies of an owner.
pub(crate) fn list(
    conn: &Connection,
    owner: &BodyOwner,
    after: Option<Sha256Digest>,
    limit: u32,
) -> Result<Vec<BodyRef>, Error> {
    let Some(owner) = owner_column(conn, owner).map_err(sql)? else { return Ok(Vec::new()) };
    let after = after.as_ref().map_or(&[][..], |after| &after.as_bytes()[..]);
    page(conn, LIST, params![Blob(&owner), Blob(after), limit], |row| {
        let c = &mut Cols::new(row);
        Ok(BodyRef { digest: c.digest()?, len: c.number()? })
    })
}
