//! Encodes the records of a batch.

use windlass_kernel::{Expect, RecordOp, RecordWrite, Terms};

use super::encode::Records;

/// Adds a row of `batch_record`.
pub(super) fn encode(to: &mut Records, idx: usize, op: usize, record: &RecordOp) {
    let expect = match record.expect {
        Expect::Absent => 0,
        Expect::At(revision) => revision as i64,
        Expect::Present => -1,
    };
    let put = match &record.write {
        RecordWrite::Put(put) => Some(&**put),
        _ => None,
    };
    let (kind, at) = match &record.write {
        RecordWrite::Check => (0, None),
        RecordWrite::Put(put) => (1, Some(put.at)),
        RecordWrite::Remove { at, .. } => (2, Some(*at)),
    };
    let keep = put.and_then(|put| put.keep.as_ref());
    let terms = put.map(|put| &put.terms).and_then(Terms::to_column);
    // Within a commit, writes are decided before checks.
    let place = op + if record.is_write() { 0 } else { 1 << 20 };
    to.row(18, |row| {
        row.int4(idx)
            .int4(op)
            .int4(place)
            .int2(kind)
            .int8(expect)
            .text(record.key.namespace.as_str())
            .text(record.key.collection.as_str())
            .text(record.key.id.as_str())
            .uuid(record.write_id().map(|id| id.0))
            .time(at)
            .text(terms.as_deref())
            .body(put.map(|put| &put.body))
            .bool(keep.is_some())
            .bytes(keep.map(|keep| &keep.digest.as_bytes()[..]))
            .text(keep.and_then(|keep| keep.actor.as_deref()))
            .cause(keep.and_then(|keep| keep.caused_by.as_ref()))
            .int8(record.set_revision().map(|revision| revision as i64));
    });
}
