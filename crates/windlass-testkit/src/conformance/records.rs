//! Records: expectations, revisions, kept versions, terms, and commits that are sent again.

use std::time::Duration;

use windlass_kernel::{
    Body, CausalRef, Collection, Commit, CommitError, Conflict, DeleteRemovedRecords,
    DeletedRecords, Delivery, ErrorCode, Expect, Keep, Limits, Namespace, OnExisting, Op, Query,
    Record, RecordFound, RecordId, RecordKey, RecordOp, RecordPut, RecordVersion, RecordWrite,
    Terms, Turn, WriteId,
};

use crate::world::World;

/// The record `id` of the collection `carts`.
pub fn record_key(id: &str) -> RecordKey {
    RecordKey {
        namespace: Namespace::default_namespace(),
        collection: Collection::new("carts").unwrap(),
        id: RecordId::new(id).unwrap(),
    }
}

/// An op that puts a record with a term, and keeps the version if `keep` is set.
pub fn put_op(world: &World, id: &str, expect: Expect, body: &str, keep: bool) -> Op {
    let mut terms = Terms::default();
    terms.add("customer", "u-1").unwrap();
    let body = Body::json(body.to_owned());
    let keep = keep.then(|| Keep {
        digest: body.digest(),
        actor: Some("{\"kind\":\"user\"}".into()),
        caused_by: Some(CausalRef::run(windlass_kernel::RunKey(uuid::Uuid::from_u128(9)))),
    });
    let put =
        RecordPut { write_id: WriteId(world.key()), body, terms, keep, at: at(5), revision: None };
    let write = RecordWrite::Put(Box::new(put));
    Op::Record(Box::new(RecordOp { key: record_key(id), expect, write }))
}

/// An op that only checks a record.
pub fn check_op(id: &str, expect: Expect) -> Op {
    Op::Record(Box::new(RecordOp { key: record_key(id), expect, write: RecordWrite::Check }))
}

fn remove_op(world: &World, id: &str, expect: Expect) -> Op {
    let write = RecordWrite::Remove { write_id: WriteId(world.key()), at: at(7) };
    Op::Record(Box::new(RecordOp { key: record_key(id), expect, write }))
}

fn at(seconds: i64) -> windlass_kernel::Timestamp {
    windlass_kernel::Timestamp::from_micros(1_770_000_000_000_000 + seconds * 1_000_000)
}

fn bare(op: Op) -> Commit {
    Commit::new(None, None, vec![op])
}

async fn get(world: &World, id: &str) -> Option<Record> {
    world.store.records(vec![record_key(id)]).await.unwrap().remove(0)
}

async fn found(world: &World, id: &str) -> RecordFound {
    get(world, id).await.map_or(RecordFound::Absent, |record| record.found())
}

async fn versions(world: &World, id: &str) -> Vec<RecordVersion> {
    let query = Query::RecordVersions { key: record_key(id), before: None, limit: 100 };
    world.store.list(query).await.unwrap().record_versions().unwrap()
}

async fn ids(world: &World, term: Option<(&str, &str)>, after: Option<&str>) -> Vec<String> {
    let query = Query::Records {
        namespace: Namespace::default_namespace(),
        collection: Collection::new("carts").unwrap(),
        term: term.map(|(name, value)| (name.into(), value.into())),
        after: after.map(|id| RecordId::new(id).unwrap()),
        limit: 2,
    };
    let rows = world.store.list(query).await.unwrap().records().unwrap();
    rows.iter().map(|record| record.key.id.to_string()).collect()
}

#[track_caller]
fn conflict(answer: Result<windlass_kernel::Committed, CommitError>) -> (Expect, RecordFound) {
    match answer {
        Err(CommitError::Conflict(Conflict::Record { collection, id, expected, found })) => {
            assert_eq!((collection.as_str(), id.as_str()), ("carts", "c"));
            (expected, found)
        }
        other => panic!("{other:?}"),
    }
}

/// Each put increases the revision, and keeps the time of the first one.
pub async fn revisions_rise_with_each_write(world: World) {
    assert_eq!(get(&world, "c").await, None);
    world.ok(bare(put_op(&world, "c", Expect::Absent, "1", false))).await;
    world.ok(bare(put_op(&world, "c", Expect::At(1), "2", false))).await;
    let record = get(&world, "c").await.unwrap();
    assert_eq!((record.revision, record.body), (2, Some(Body::json("2"))));
    assert_eq!((record.created_at, record.updated_at), (at(5), at(5)));
    assert!(record.terms.contains("customer", "u-1"));
    assert!(versions(&world, "c").await.is_empty(), "only kept versions are stored");
    world.ok(bare(remove_op(&world, "c", Expect::At(2)))).await;
    let removed = get(&world, "c").await.unwrap();
    assert_eq!((removed.found(), removed.updated_at), (RecordFound::Removed(3), at(7)));
    assert!(ids(&world, None, None).await.is_empty());
    assert!(ids(&world, Some(("customer", "u-1")), None).await.is_empty());
}

/// A failed expectation names what was found and writes nothing, for every kind of write.
pub async fn expectations_are_guards(world: World) {
    let check = |expect| bare(check_op("c", expect));
    let put = |expect| bare(put_op(&world, "c", expect, "9", true));
    let remove = |expect| bare(remove_op(&world, "c", expect));
    for commit in [check(Expect::At(1)), put(Expect::At(1)), remove(Expect::At(1))] {
        let answer = world.commit(commit).await;
        assert_eq!(conflict(answer), (Expect::At(1), RecordFound::Absent));
    }
    let answer = world.commit(check(Expect::Present)).await;
    assert_eq!(conflict(answer), (Expect::Present, RecordFound::Absent));
    world.ok(check(Expect::Absent)).await;
    world.ok(put(Expect::Absent)).await;
    world.ok(check(Expect::Present)).await;
    world.ok(check(Expect::At(1))).await;
    for commit in [check(Expect::Absent), put(Expect::Absent)] {
        let answer = world.commit(commit).await;
        assert_eq!(conflict(answer), (Expect::Absent, RecordFound::At(1)));
    }
    for commit in [check(Expect::At(2)), put(Expect::At(2)), remove(Expect::At(2))] {
        let answer = world.commit(commit).await;
        assert_eq!(conflict(answer), (Expect::At(2), RecordFound::At(1)));
    }
    assert_eq!(versions(&world, "c").await.len(), 1);
    assert_eq!(found(&world, "c").await, RecordFound::At(1));
}

/// A removed record is absent for checks, and written again only at the revision of its removal.
pub async fn a_removed_record_never_repeats_a_revision(world: World) {
    world.ok(bare(put_op(&world, "c", Expect::Absent, "1", true))).await;
    world.ok(bare(remove_op(&world, "c", Expect::At(1)))).await;
    world.ok(bare(check_op("c", Expect::Absent))).await;
    for op in [
        check_op("c", Expect::At(2)),
        check_op("c", Expect::Present),
        put_op(&world, "c", Expect::Absent, "2", false),
        put_op(&world, "c", Expect::At(1), "2", false),
        remove_op(&world, "c", Expect::At(2)),
    ] {
        let (_, found) = conflict(world.commit(bare(op)).await);
        assert_eq!(found, RecordFound::Removed(2));
    }
    world.ok(bare(put_op(&world, "c", Expect::At(2), "3", true))).await;
    assert_eq!(found(&world, "c").await, RecordFound::At(3));
    let kept: Vec<_> = versions(&world, "c").await.iter().map(|kept| kept.revision).collect();
    assert_eq!(kept, [3, 1], "kept versions outlive a removal");
}

/// A record and a run are written together or not at all.
pub async fn a_run_and_a_record_in_one_commit(world: World) {
    world.ok(bare(put_op(&world, "c", Expect::Absent, "1", false))).await;
    let create = |id: &str, expect| {
        let new = world.new_run(id, Turn::held_by(world.worker()));
        let mut commit = world.create_commit(new, OnExisting::Refuse);
        commit.ops_mut().push(put_op(&world, "c", expect, "2", false));
        commit
    };
    let lost = create("one", Expect::At(7));
    let run_key = lost.run_key().unwrap();
    assert_eq!(conflict(world.commit(lost).await), (Expect::At(7), RecordFound::At(1)));
    assert!(world.store.load(vec![run_key]).await.unwrap().is_empty());
    world.ok(create("one", Expect::At(1))).await;
    assert_eq!(found(&world, "c").await, RecordFound::At(2));
    // A run that exists is named before a record that is not as expected.
    assert_eq!(world.code(create("one", Expect::At(1))).await, ErrorCode::RunExists);

    let (run, hold) = world.create_held("two").await;
    let step = |expect| {
        let mut commit = world.step_commit(&run, hold, "s", "1");
        commit.ops_mut().push(put_op(&world, "c", expect, "3", false));
        commit
    };
    assert_eq!(conflict(world.commit(step(Expect::At(1))).await).1, RecordFound::At(2));
    assert!(world.load(run.run_key).await.steps.is_empty());
    let answer = world.ok(step(Expect::Present)).await;
    assert_eq!(answer.hold, Some(hold), "a conflict about a record costs no hold");
    assert_eq!(found(&world, "c").await, RecordFound::At(3));
}

/// A bare write that is sent again is found by its write id, until another write replaces it.
pub async fn a_lost_answer_is_found(world: World) {
    for commit in [
        bare(put_op(&world, "c", Expect::Absent, "1", true)),
        bare(put_op(&world, "c", Expect::At(1), "2", true)),
        bare(remove_op(&world, "c", Expect::At(2))),
        bare(put_op(&world, "c", Expect::At(3), "4", true)),
    ] {
        assert!(!world.ok(commit.clone()).await.repeated);
        let before = get(&world, "c").await;
        assert!(world.ok(commit.clone()).await.repeated);
        assert_eq!(get(&world, "c").await, before);
    }
    let lost = bare(put_op(&world, "c", Expect::At(4), "5", false));
    world.ok(lost.clone()).await;
    // Its successor does not know that it was written, but nobody else can have written revision 5.
    world.ok(bare(put_op(&world, "c", Expect::At(5), "6", false))).await;
    let Err(CommitError::Conflict(conflict)) = world.commit(lost.clone()).await else {
        panic!("the write id is gone")
    };
    assert!(lost.is_outcome_open(&conflict), "{conflict}");
    let other = bare(put_op(&world, "c", Expect::At(5), "7", false));
    let Err(CommitError::Conflict(conflict)) = world.commit(other.clone()).await else {
        panic!("the revision is 6")
    };
    assert!(!other.is_outcome_open(&conflict), "revision 6 has another write id");
}

/// Of many writers in one call, one holds for each revision; checks do not exclude each other.
pub async fn one_writer_of_a_record_in_a_batch(world: World) {
    world.ok(bare(put_op(&world, "c", Expect::Absent, "1", false))).await;
    let commits = vec![
        bare(check_op("c", Expect::At(1))),
        bare(put_op(&world, "c", Expect::At(1), "2", false)),
        bare(put_op(&world, "c", Expect::At(1), "2", false)),
        bare(check_op("c", Expect::At(2))),
        bare(check_op("c", Expect::At(1))),
        bare(put_op(&world, "c", Expect::At(2), "3", true)),
        bare(put_op(&world, "d", Expect::Absent, "1", false)),
        bare(put_op(&world, "d", Expect::Absent, "1", false)),
    ];
    let answers = world.store.commit(commits).await;
    let held: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(held, [true, true, false, true, false, true, true, false]);
    assert_eq!(found(&world, "c").await, RecordFound::At(3));
    assert_eq!(found(&world, "d").await, RecordFound::At(1));
}

/// Writers of one record from many tasks: each revision is written exactly once.
pub async fn racing_writers_write_each_revision_once(world: World) {
    let writer = |_| async {
        let mut written = 0;
        while written < 5 {
            let expect = match found(&world, "c").await {
                RecordFound::Absent => Expect::Absent,
                state => Expect::At(state.revision()),
            };
            let commit = bare(put_op(&world, "c", expect, "1", true));
            match world.commit(commit).await {
                Ok(_) => written += 1,
                Err(error) => assert_eq!(error.code(), ErrorCode::RecordConflict),
            }
        }
    };
    futures::future::join_all((0..8).map(writer)).await;
    assert_eq!(found(&world, "c").await, RecordFound::At(40));
    assert_eq!(versions(&world, "c").await.len(), 40);
}

/// Of writers that create and keep the same record at once, one holds and the others conflict.
pub async fn one_of_racing_creators_holds(world: World) {
    for round in 0..20 {
        let id = format!("r{round}");
        let create = |_| world.commit(bare(put_op(&world, &id, Expect::Absent, "1", true)));
        let answers = futures::future::join_all((0..4).map(create)).await;
        let lost: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert_eq!(lost.len(), 3, "{answers:?}");
        for error in lost {
            assert_eq!(error.code(), ErrorCode::RecordConflict, "{error}");
        }
    }
}

/// A write that is sent again while another writer follows it is never answered as a conflict with its
/// own revision.
pub async fn a_lost_answer_is_found_beside_other_writers(world: World) {
    world.ok(bare(put_op(&world, "c", Expect::Absent, "0", false))).await;
    for round in 0..30 {
        let revision = 1 + 2 * round;
        let lost = bare(put_op(&world, "c", Expect::At(revision), "1", false));
        world.ok(lost.clone()).await;
        let next = bare(put_op(&world, "c", Expect::At(revision + 1), "2", false));
        let (again, next) = futures::future::join(world.commit(lost), world.commit(next)).await;
        next.unwrap();
        match again {
            Ok(committed) => assert!(committed.repeated),
            Err(CommitError::Conflict(Conflict::Record { found, .. })) => {
                assert_eq!(found, RecordFound::At(revision + 2), "it is the other writer's");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A message that another commit has sent does not make a commit look written whose record conflicts.
pub async fn a_message_does_not_stand_for_a_record(world: World) {
    let run = world.create(world.new_run("a", Turn::ready())).await;
    let close = |expect, body| {
        let send = Op::PutMessage(Box::new(world.message(run.run_key, "closed")));
        Commit::new(None, None, vec![put_op(&world, "c", expect, body, false), send])
    };
    let first = close(Expect::Absent, "1");
    world.ok(first.clone()).await;
    let answer = world.commit(close(Expect::Absent, "2")).await;
    assert_eq!(conflict(answer), (Expect::Absent, RecordFound::At(1)));
    // The first one is found, with its message.
    let again = world.ok(first).await;
    assert!(again.repeated);
    assert!(matches!(again.messages[..], [Delivery::Duplicate { seq: 1 }]), "{again:?}");
}

/// Two commits that each write what the other expects to be absent: only one of them holds.
pub async fn absence_is_checked_against_racing_writers(world: World) {
    for round in 0..20 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        let commit = |put: &str, absent: &str| {
            let ops = vec![
                put_op(&world, put, Expect::Absent, "1", false),
                check_op(absent, Expect::Absent),
            ];
            Commit::new(None, None, ops)
        };
        let (one, other) = (world.commit(commit(&a, &b)), world.commit(commit(&b, &a)));
        let (one, other) = futures::future::join(one, other).await;
        assert!(one.is_ok() != other.is_ok(), "round {round}: {one:?} {other:?}");
    }
}

/// Pages by id, by term and over all namespaces; a put replaces the terms.
pub async fn pages_by_id_and_by_term(world: World) {
    for id in ["a", "b", "c", "ä", "漢"] {
        world.ok(bare(put_op(&world, id, Expect::Absent, "1", false))).await;
    }
    assert_eq!(ids(&world, None, None).await, ["a", "b"]);
    assert_eq!(ids(&world, None, Some("b")).await, ["c", "ä"]);
    let term = Some(("customer", "u-1"));
    assert_eq!(ids(&world, term, Some("c")).await, ["ä", "漢"], "ids are sorted by their bytes");
    let mut other = put_op(&world, "b", Expect::At(1), "2", false);
    if let Op::Record(record) = &mut other
        && let RecordWrite::Put(put) = &mut record.write
    {
        let mut terms = Terms::default();
        terms.add("customer", "u-2").unwrap();
        terms.add("state", "\"quoted\\").unwrap();
        put.terms = terms;
    }
    world.ok(bare(other)).await;
    assert_eq!(ids(&world, term, None).await, ["a", "c"]);
    assert_eq!(ids(&world, Some(("customer", "u-2")), None).await, ["b"]);
    assert_eq!(ids(&world, Some(("state", "\"quoted\\")), None).await, ["b"]);
    world.ok(bare(remove_op(&world, "b", Expect::At(2)))).await;
    assert!(ids(&world, Some(("customer", "u-2")), None).await.is_empty());
    assert_eq!(ids(&world, None, None).await, ["a", "c"]);

    let all = |after| async {
        let query = Query::AllRecords { after, limit: 3 };
        let rows = world.store.list(query).await.unwrap().records().unwrap();
        rows.into_iter().map(|record| record.key).collect::<Vec<_>>()
    };
    let first = all(None).await;
    assert_eq!(first, ["a", "b", "c"].map(record_key), "removed records are listed for exports");
    assert_eq!(all(first.last().cloned()).await, ["ä", "漢"].map(record_key));
    let keys = ["x", "c", "a", "c"].map(record_key).to_vec();
    let several = world.store.records(keys).await.unwrap();
    let several: Vec<_> = several.iter().map(|one| one.as_ref().map(|one| &one.key)).collect();
    let (a, c) = (record_key("a"), record_key("c"));
    assert_eq!(several, [None, Some(&c), Some(&a), Some(&c)]);
}

/// Versions come back as they were kept, newest first, page by page.
pub async fn versions_are_listed(world: World) {
    for revision in 0..5_u64 {
        let expect = if revision == 0 { Expect::Absent } else { Expect::At(revision) };
        let body = format!("\"v{}\"", revision + 1);
        world.ok(bare(put_op(&world, "c", expect, &body, revision != 2))).await;
    }
    let all = versions(&world, "c").await;
    assert_eq!(all.iter().map(|kept| kept.revision).collect::<Vec<_>>(), [5, 4, 2, 1]);
    let last = &all[3];
    assert_eq!((&last.body, last.digest), (&Body::json("\"v1\""), last.body.digest()));
    assert_eq!(last.actor.as_deref(), Some("{\"kind\":\"user\"}"));
    assert!(last.caused_by.is_some());
    assert_eq!(last.created_at, at(5));
    let query = Query::RecordVersions { key: record_key("c"), before: Some(4), limit: 1 };
    let page = world.store.list(query).await.unwrap().record_versions().unwrap();
    assert_eq!(page[..], all[2..3]);
}

/// A write can set a later revision than the next, as an import does, and never an earlier one.
pub async fn a_write_sets_a_later_revision(world: World) {
    let set = |expect, revision, keep| {
        let mut op = put_op(&world, "c", expect, "1", keep);
        if let Op::Record(record) = &mut op
            && let RecordWrite::Put(put) = &mut record.write
        {
            put.revision = Some(revision);
        }
        bare(op)
    };
    for (expect, revision) in [
        (Expect::Absent, 0),
        (Expect::At(3), 3),
        (Expect::At(3), 2),
        (Expect::At(3), 1 << 63),
        (Expect::Present, 9),
    ] {
        let code = world.code(set(expect, revision, false)).await;
        let refused = [ErrorCode::InvalidRevision, ErrorCode::InvalidCommit];
        assert!(refused.contains(&code), "{expect:?} {revision}: {code}");
    }
    world.ok(set(Expect::Absent, 4, true)).await;
    assert_eq!(found(&world, "c").await, RecordFound::At(4));
    world.ok(bare(put_op(&world, "c", Expect::At(4), "2", false))).await;
    world.ok(set(Expect::At(5), 9, true)).await;
    assert_eq!(found(&world, "c").await, RecordFound::At(9));
    let kept: Vec<_> = versions(&world, "c").await.iter().map(|kept| kept.revision).collect();
    assert_eq!(kept, [9, 4]);
}

/// The row of a removed record is deleted after its time, unless it has a kept version or exists again.
pub async fn rows_of_removed_records_are_deleted(world: World) {
    let own = |id: &str| RecordKey {
        namespace: Namespace::new("other").unwrap(),
        collection: Collection::new("windlass.toys").unwrap(),
        ..record_key(id)
    };
    let key_of = |id: &str| if id.starts_with('o') { own(id) } else { record_key(id) };
    let write = |id: &str, expect: Expect, keep: bool| {
        let Op::Record(op) = put_op(&world, id, expect, "1", keep) else { unreachable!() };
        bare(Op::Record(Box::new(RecordOp { key: key_of(id), ..*op })))
    };
    let now = world.now().await;
    let remove = |id: &str| {
        let write = RecordWrite::Remove { write_id: WriteId(world.key()), at: now };
        bare(Op::Record(Box::new(RecordOp { key: key_of(id), expect: Expect::At(1), write })))
    };
    let ids = ["a", "again", "b", "kept", "lives", "o-1", "o-2"];
    for id in ids {
        world.ok(write(id, Expect::Absent, id == "kept")).await;
        if id != "lives" {
            world.ok(remove(id)).await;
        }
    }
    world.ok(write("again", Expect::At(2), false)).await;
    let delete = async |reserved: bool, after: Option<RecordKey>, limit: u32| {
        let removed_for = Duration::from_secs(3_600);
        let request = DeleteRemovedRecords { reserved, removed_for, after, limit };
        world.store.delete_removed_records(request).await.unwrap()
    };
    let done = |deleted: u64, left: u64, next: Option<&str>| DeletedRecords {
        deleted,
        left,
        next: next.map(record_key),
    };
    for (reserved, left) in [(false, 3), (true, 2)] {
        assert_eq!(delete(reserved, None, 10).await, done(0, left, None), "too early");
    }
    world.advance_ms(3_600_001).await;
    assert_eq!(delete(true, None, 10).await, done(2, 0, None));
    // Page by page: "kept" is looked at and stays.
    let first = delete(false, None, 1).await;
    assert_eq!(first, done(1, 0, Some("a")));
    let second = delete(false, first.next, 1).await;
    assert_eq!(second, done(1, 0, Some("b")));
    assert_eq!(delete(false, second.next, 1).await, done(0, 1, None));
    let keys: Vec<_> = ids.into_iter().map(key_of).collect();
    let rows = world.store.records(keys).await.unwrap();
    let left: Vec<_> = rows.iter().map(|row| row.as_ref().map(Record::found)).collect();
    let (at, removed) = (RecordFound::At, RecordFound::Removed);
    assert_eq!(left, [None, Some(at(3)), None, Some(removed(2)), Some(at(1)), None, None]);
    // A writer with an old revision still loses, and the record begins anew.
    let answer = world.commit(write("a", Expect::At(2), false)).await;
    assert!(matches!(
        answer,
        Err(CommitError::Conflict(Conflict::Record { found: RecordFound::Absent, .. }))
    ));
    world.ok(write("a", Expect::Absent, true)).await;
    assert_eq!(get(&world, "a").await.unwrap().revision, 1);
}

/// Collections are listed by name, page by page, for each namespace by itself.
pub async fn collections_are_listed(world: World) {
    let put = |namespace: &str, collection: &str, id: &str| {
        let Op::Record(op) = put_op(&world, id, Expect::Absent, "1", false) else { unreachable!() };
        let key = RecordKey {
            namespace: Namespace::new(namespace).unwrap(),
            collection: Collection::new(collection).unwrap(),
            ..op.key.clone()
        };
        bare(Op::Record(Box::new(RecordOp { key, ..*op })))
    };
    for (namespace, collection, id) in [
        ("default", "carts", "1"),
        ("default", "carts", "2"),
        ("default", "Z", "1"),
        ("default", "windlass.toys", "1"),
        ("other", "secrets", "1"),
    ] {
        world.ok(put(namespace, collection, id)).await;
    }
    let list = async |namespace: &str, after: Option<&str>, limit: u32| {
        let query = Query::Collections {
            namespace: Namespace::new(namespace).unwrap(),
            after: after.map(|name| Collection::new(name).unwrap()),
            limit,
        };
        let rows = world.store.list(query).await.unwrap().collections().unwrap();
        rows.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(list("default", None, 10).await, ["Z", "carts", "windlass.toys"]);
    assert_eq!(list("default", None, 2).await, ["Z", "carts"]);
    assert_eq!(list("default", Some("carts"), 2).await, ["windlass.toys"]);
    assert_eq!(list("other", None, 10).await, ["secrets"]);
    assert!(list("nobody", None, 10).await.is_empty());
}

/// Malformed records are refused with a code, and nothing is written.
pub async fn limits_are_checked(world: World) {
    let body = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let max = Limits::DEFAULT.record_bytes_max;
    let put = |text: &str| put_op(&world, "c", Expect::Absent, text, true);
    let twice = vec![put("1"), check_op("c", Expect::Absent)];
    let many = (0..65).map(|n| check_op(&format!("r{n}"), Expect::Absent)).collect();
    let mut wrong_digest = put("1");
    if let Op::Record(record) = &mut wrong_digest
        && let RecordWrite::Put(put) = &mut record.write
        && let Some(keep) = &mut put.keep
    {
        keep.digest = Body::json("2").digest();
    }
    let mut terms = put("1");
    if let Op::Record(record) = &mut terms
        && let RecordWrite::Put(put) = &mut record.write
    {
        (0..33).for_each(|n| put.terms.add("t", format!("{n}")).unwrap());
    }
    let table: Vec<(Vec<Op>, ErrorCode)> = vec![
        (vec![put(&body(max + 1))], ErrorCode::InvalidSize),
        (vec![terms], ErrorCode::InvalidSize),
        (many, ErrorCode::InvalidSize),
        (twice, ErrorCode::InvalidCommit),
        (vec![wrong_digest], ErrorCode::InvalidCommit),
        (vec![put_op(&world, "c", Expect::At(0), "1", false)], ErrorCode::InvalidRevision),
        // As a signed number this is -1, which a store may use for another expectation.
        (vec![put_op(&world, "c", Expect::At(u64::MAX), "1", false)], ErrorCode::InvalidRevision),
        (vec![check_op("c", Expect::At(1 << 63))], ErrorCode::InvalidRevision),
        (vec![check_op("c", Expect::At((1 << 63) - 1))], ErrorCode::InvalidRevision),
        (vec![put_op(&world, "c", Expect::Present, "1", false)], ErrorCode::InvalidCommit),
        (vec![remove_op(&world, "c", Expect::Present)], ErrorCode::InvalidCommit),
        (vec![remove_op(&world, "c", Expect::Absent)], ErrorCode::InvalidRevision),
    ];
    for (ops, code) in table {
        assert_eq!(world.code(Commit::new(None, None, ops)).await, code);
    }
    let keys = (0..65).map(|n| record_key(&format!("r{n}"))).collect();
    let error = world.store.records(keys).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidSize);
    assert_eq!(get(&world, "c").await, None);
    world.ok(bare(put(&body(max)))).await;
    let ops = (0..64).map(|n| put_op(&world, &format!("r{n}"), Expect::Absent, "1", false));
    world.ok(Commit::new(None, None, ops.collect())).await;
}
