//! Reads of large bodies.

use bytes::Bytes;
use uuid::Uuid;
use windlass_kernel::{BodyKey, BodyOwner, BodyRef, Error, Sha256Digest};

use crate::rows::{self, Cells};
use crate::store::Shared;

/// The owner is that of a record, or the root of a run's tree.
const GET: &str = "SELECT x.place, b.bytes FROM unnest($1::uuid[], $2::bytea[], $3::bytea[]) \
         WITH ORDINALITY x (run_key, owner, digest, place) \
     LEFT JOIN @schema@.runs r ON r.run_key = x.run_key \
     JOIN @schema@.bodies b ON b.owner = coalesce(x.owner, uuid_send(r.root)) AND b.digest = x.digest";
const LIST: &str = "SELECT b.digest, octet_length(b.bytes)::int8 FROM @schema@.bodies b \
     WHERE b.owner = coalesce($2::bytea, \
         (SELECT uuid_send(r.root) FROM @schema@.runs r WHERE r.run_key = $1::uuid)) \
     AND b.digest > $3::bytea ORDER BY b.digest LIMIT $4";

pub(crate) fn statements() -> Vec<(String, String)> {
    vec![
        ("bodies by key".to_owned(), GET.to_owned()),
        ("bodies of an owner".to_owned(), LIST.to_owned()),
    ]
}

fn owner_columns(owner: &BodyOwner) -> (Option<Uuid>, Option<Vec<u8>>) {
    match owner {
        BodyOwner::Run(run_key) => (Some(run_key.0), None),
        BodyOwner::Record(key) => (None, Some(key.body_owner().as_bytes().to_vec())),
    }
}

/// Reads bodies, in the order of their keys; `None` for one that does not exist.
pub(crate) async fn get(shared: &Shared, keys: Vec<BodyKey>) -> Result<Vec<Option<Bytes>>, Error> {
    let (runs, owners): (Vec<_>, Vec<_>) = keys.iter().map(|key| owner_columns(&key.owner)).unzip();
    let digests: Vec<&[u8]> = keys.iter().map(|key| &key.digest.as_bytes()[..]).collect();
    let found = shared.read(GET, &[&runs, &owners, &digests]).await?;
    let mut bodies = vec![None; keys.len()];
    for row in &found {
        let mut cells = Cells::of(row);
        let place = usize::try_from(cells.count()?).unwrap_or(usize::MAX);
        let bytes: &[u8] = cells.take()?;
        if let Some(body) = bodies.get_mut(place.wrapping_sub(1)) {
            *body = Some(Bytes::copy_from_slice(bytes));
        }
    }
    Ok(bodies)
}

/// Lists the digests and sizes of the bodies of an owner.
pub(crate) async fn list(
    shared: &Shared,
    owner: &BodyOwner,
    after: Option<Sha256Digest>,
    limit: u32,
) -> Result<Vec<BodyRef>, Error> {
    let (run_key, owner) = owner_columns(owner);
    let after = after.as_ref().map_or(&[][..], |after| &after.as_bytes()[..]);
    let found = shared.read(LIST, &[&run_key, &owner, &after, &i64::from(limit)]).await?;
    rows::all(&found, |row| {
        let mut cells = Cells::of(row);
        Ok(BodyRef { digest: cells.digest()?, len: cells.count()? })
    })
}
