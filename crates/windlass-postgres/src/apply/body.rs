//! Encodes the large bodies of a batch.

use windlass_kernel::{BodyOwner, BodySource, PutBody};

use super::encode::Records;

/// Adds a body to the batch.
pub(super) fn encode(rows: &mut Records, idx: usize, put: &PutBody) {
    let (run_key, owner) = match put.owner() {
        BodyOwner::Run(run_key) => (Some(run_key.0), None),
        BodyOwner::Record(key) => (None, Some(key.body_owner())),
    };
    let (bytes, source) = match put.source() {
        BodySource::Bytes(bytes) => (Some(&bytes[..]), None),
        BodySource::Tree(from) => (None, Some(from.0)),
    };
    rows.row(6, |row| {
        row.int4(idx)
            .uuid(run_key)
            .bytes(owner.as_ref().map(|owner| &owner.as_bytes()[..]))
            .bytes(&put.digest().as_bytes()[..])
            .bytes(bytes)
            .uuid(source);
    });
}
