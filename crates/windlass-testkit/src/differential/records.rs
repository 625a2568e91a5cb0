//! Random ops on a few records: most expectations hold.

use std::time::Duration;

use windlass_kernel::{
    Body, Collection, DeleteRemovedRecords, Expect, Keep, Namespace, Op, RecordFound, RecordId,
    RecordKey, RecordOp, RecordPut, RecordWrite, Terms, Timestamp, WriteId,
};

use crate::sim::rng::Rng;
use crate::world::World;

/// One or two ops on different records.
pub(super) async fn ops(rng: &mut Rng, world: &World) -> Vec<Op> {
    let first = rng.below(5);
    let mut ids = vec![first];
    if rng.chance(300) {
        ids.push((first + 1) % 5);
    }
    let mut ops = Vec::with_capacity(ids.len());
    for id in ids {
        ops.push(op(rng, world, id).await);
    }
    ops
}

/// A deletion of removed records. They have the time of the epoch, so all of them are old.
pub(super) fn deletion(rng: &mut Rng) -> DeleteRemovedRecords {
    let key = |rng: &mut Rng| {
        let id = rng.below(5);
        key(rng, id)
    };
    let after = rng.chance(300).then(|| key(rng));
    DeleteRemovedRecords {
        reserved: rng.chance(100),
        removed_for: Duration::from_secs(rng.below(2) * 4_000_000_000),
        after,
        limit: rng.range(1, 4) as u32,
    }
}

fn key(rng: &mut Rng, id: u64) -> RecordKey {
    RecordKey {
        namespace: Namespace::new(if rng.chance(300) { "other" } else { "default" }).unwrap(),
        collection: Collection::new("carts").unwrap(),
        id: RecordId::new(format!("r{id}")).unwrap(),
    }
}

async fn op(rng: &mut Rng, world: &World, id: u64) -> Op {
    let key = key(rng, id);
    let found = world.store.records(vec![key.clone()]).await.unwrap().remove(0);
    let found = found.map_or(RecordFound::Absent, |record| record.found());
    let expect = match (rng.below(10), found) {
        (0, _) => Expect::Present,
        (1, _) => Expect::Absent,
        (2, _) => Expect::At(1 + rng.below(4)),
        (_, RecordFound::Absent) => Expect::Absent,
        (_, state) => Expect::At(state.revision()),
    };
    let write = match rng.below(10) {
        0..3 => RecordWrite::Check,
        3..5 => RecordWrite::Remove { write_id: WriteId(world.key()), at: Timestamp::ZERO },
        _ => RecordWrite::Put(Box::new(put(rng, world))),
    };
    Op::Record(Box::new(RecordOp { key, expect, write }))
}

fn put(rng: &mut Rng, world: &World) -> RecordPut {
    let body = Body::json(format!("{}", rng.below(100)));
    let mut terms = Terms::default();
    for value in 0..rng.below(4) {
        terms.add("t", format!("r{value}")).unwrap();
    }
    let keep =
        rng.chance(400).then(|| Keep { digest: body.digest(), actor: None, caused_by: None });
    // As an import does.
    let revision = (rng.below(10) == 0).then(|| 20 + rng.below(20));
    RecordPut { write_id: WriteId(world.key()), body, terms, keep, at: Timestamp::ZERO, revision }
}
