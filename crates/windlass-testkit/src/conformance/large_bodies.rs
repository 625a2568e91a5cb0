//! Large bodies: stored once for an owner, read only when they are asked for, deleted with the owner.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use windlass::admin::verify_store;
use windlass_kernel::{
    Body, BodyKey, BodyOwner, BodyRef, CausalRef, Collection, Commit, DeleteTrees, End, ErrorCode,
    Expect, Hold, Keep, LoadSteps, Namespace, NewRun, Op, PutBody, Query, RecordId, RecordKey,
    RecordOp, RecordPut, RecordWrite, Run, RunKey, Sha256Digest, StepStatus, Terms, Timestamp,
    Turn, WriteId, bodies,
};

use crate::events;
use crate::world::World;

const INLINE_MAX: usize = 4 * 1024;

fn large(seed: u8) -> Body {
    Body::json(format!("\"{}\"", char::from(seed).to_string().repeat(10_000)))
}

async fn bodies_of(world: &World, owner: BodyOwner) -> Vec<BodyRef> {
    let query = Query::Bodies { owner, after: None, limit: 100 };
    world.store.list(query).await.unwrap().bodies().unwrap()
}

async fn of_run(world: &World, run_key: RunKey) -> Vec<BodyRef> {
    bodies_of(world, BodyOwner::Run(run_key)).await
}

// Sends a commit with its large bodies apart, and applies it to the row.
async fn commit(world: &World, commit: Commit, run: &mut Run) {
    if let Some(change) = commit.run_change() {
        change.apply_to(run);
    }
    world.ok(commit.with_large_bodies_apart(INLINE_MAX)).await;
}

async fn create(world: &World, new: NewRun) -> (Run, Hold) {
    let commit = world.create_commit(new.clone(), windlass_kernel::OnExisting::Refuse);
    world.ok(commit.with_large_bodies_apart(INLINE_MAX)).await;
    let run = world.load(new.run_key).await.run;
    let hold = run.turn.hold().unwrap();
    (run, hold)
}

async fn step(world: &World, run: &mut Run, hold: Hold, key: &str, result: Body) {
    let mut step = world.step(run, key, StepStatus::Completed, None);
    step.result = Some(result);
    let mut draft = world.draft(run, hold);
    draft.step(events::STEP_COMPLETED, &json!({ "key": key }), step, world.stamp()).unwrap();
    commit(world, draft.finish(), run).await;
}

// A run with a large input, the same value as the result of steps, and another in a message.
async fn run_with_bodies(world: &World, id: &str) -> (Run, Hold) {
    let mut new = world.new_run(id, Turn::held_by(world.worker()));
    new.input = large(b'a');
    let (mut run, hold) = create(world, new).await;
    for n in 0..10 {
        step(world, &mut run, hold, &format!("s{n}"), large(b'a')).await;
    }
    let mut message = world.message(run.run_key, "m");
    message.body = Some(large(b'b'));
    world.ok(world.send_commit(message).with_large_bodies_apart(INLINE_MAX)).await;
    (run, hold)
}

async fn end(world: &World, run: &mut Run, hold: Hold) {
    let mut draft = world.draft(run, hold);
    let end = End::Complete(large(b'c'));
    draft.end(events::WORKFLOW_COMPLETED, &json!({}), end, world.stamp()).unwrap();
    commit(world, draft.finish(), run).await;
}

async fn assert_verified(world: &World) {
    let report = verify_store(&*world.store, &[]).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.flaws);
}

/// The same bytes in many rows are stored once; a load returns them, other reads do not.
pub async fn are_stored_once_and_loaded_whole(world: World) {
    let (mut run, hold) = run_with_bodies(&world, "run").await;
    end(&world, &mut run, hold).await;
    let run_key = run.run_key;
    let mut expect = [large(b'a'), large(b'b'), large(b'c')].map(|body| body.digest());
    expect.sort();
    let found = of_run(&world, run_key).await;
    assert_eq!(found.iter().map(|body| body.digest).collect::<Vec<_>>(), expect);
    assert!(found.iter().all(|body| body.len == large(b'a').len() as u64));

    let loaded = world.load(run_key).await;
    assert_eq!((&loaded.run.input, &loaded.run.output), (&large(b'a'), &Some(large(b'c'))));
    assert_eq!(loaded.steps.len(), 10);
    assert!(loaded.steps.iter().all(|step| step.result == Some(large(b'a'))));
    assert_eq!(loaded.messages[0].body, Some(large(b'b')));

    let rows = world.store.load_rows(vec![run_key], LoadSteps::All).await.unwrap().remove(0);
    assert!(
        rows.run.input.is_reference() && rows.messages[0].body.as_ref().unwrap().is_reference()
    );
    assert!(rows.steps.iter().all(|step| step.result.as_ref().unwrap().is_reference()));
    let found = world.store.find(run.namespace.clone(), run.workflow.clone(), run.id.clone()).await;
    let mut found = found.unwrap().unwrap();
    assert_eq!(found.output.as_ref().unwrap().reference().unwrap().digest, large(b'c').digest());
    bodies::fill(&*world.store, bodies::of_run(&mut found)).await.unwrap();
    assert_eq!((&found.input, &found.output), (&large(b'a'), &Some(large(b'c'))));
    let query = Query::Steps { run_key, after: None, limit: 100 };
    let steps = world.store.list(query).await.unwrap().steps().unwrap();
    assert!(steps.iter().all(|step| step.result.as_ref().unwrap().is_reference()));
    assert_verified(&world).await;
}

/// A tree has one owner; two trees share nothing, and each goes with its own bodies.
pub async fn belong_to_the_root_of_a_tree(world: World) {
    let (mut root, hold) = run_with_bodies(&world, "root").await;
    let mut new = world.new_run("child", Turn::held_by(world.worker()));
    new.parent = Some((root.run_key, root.run_key));
    new.caused_by = Some(CausalRef::event(root.cursor));
    new.input = large(b'a');
    let (mut child, child_hold) = create(&world, new).await;
    step(&world, &mut child, child_hold, "one", large(b'd')).await;
    let (mut other, other_hold) = run_with_bodies(&world, "other").await;
    assert_eq!(of_run(&world, root.run_key).await.len(), 3);
    assert_eq!(of_run(&world, child.run_key).await, of_run(&world, root.run_key).await);
    assert_eq!(of_run(&world, other.run_key).await.len(), 2);

    end(&world, &mut child, child_hold).await;
    end(&world, &mut root, hold).await;
    end(&world, &mut other, other_hold).await;
    world.advance_ms(3_600_001).await;
    let request = DeleteTrees {
        roots: vec![root.run_key],
        ended_for: Duration::from_secs(3600),
        keep_ledger: false,
        keep_for_newer: false,
    };
    assert_eq!(world.store.delete_trees(request).await.unwrap().runs, 2);
    assert!(of_run(&world, root.run_key).await.is_empty());
    let owner = BodyOwner::Run(root.run_key);
    let key = BodyKey { owner, digest: large(b'a').digest() };
    assert_eq!(world.store.bodies(vec![key]).await.unwrap(), [None]);
    assert_eq!(world.load(other.run_key).await.run.input, large(b'a'));
    assert_verified(&world).await;
}

/// A model stores bodies beside its rows, and copies those of another tree of the same namespace.
pub async fn of_models_are_put_read_and_copied(world: World) {
    let (mut first, hold) = world.create_held("first").await;
    let bytes = Bytes::from_static(b"transcript");
    let digest = Sha256Digest::of(&bytes);
    let mut draft = world.draft(&first, hold);
    assert_eq!(draft.put_body(bytes.clone()), digest);
    assert_eq!(draft.put_body(bytes.clone()), digest);
    draft.event(events::TIMER_STARTED, &json!({}), world.stamp()).unwrap();
    commit(&world, draft.finish(), &mut first).await;
    let key = |run_key| BodyKey { owner: BodyOwner::Run(run_key), digest };
    let missing = BodyKey { owner: BodyOwner::Run(first.run_key), digest: large(b'x').digest() };
    let found = world.store.bodies(vec![missing, key(first.run_key)]).await.unwrap();
    assert_eq!(found, [None, Some(bytes.clone())]);

    let (mut second, hold) = world.create_held("second").await;
    assert_eq!(world.store.bodies(vec![key(second.run_key)]).await.unwrap(), [None]);
    let mut draft = world.draft(&second, hold);
    draft.copy_body(first.run_key, digest).copy_body(first.run_key, large(b'x').digest());
    draft.event(events::TIMER_STARTED, &json!({}), world.stamp()).unwrap();
    commit(&world, draft.finish(), &mut second).await;
    assert_eq!(world.store.bodies(vec![key(second.run_key)]).await.unwrap(), [Some(bytes)]);
    assert_eq!(of_run(&world, second.run_key).await.len(), 1);

    let mut new = world.new_run("third", Turn::held_by(world.worker()));
    new.namespace = Namespace::new("other").unwrap();
    let (mut third, hold) = create(&world, new).await;
    let mut draft = world.draft(&third, hold);
    draft.copy_body(first.run_key, digest);
    draft.event(events::TIMER_STARTED, &json!({}), world.stamp()).unwrap();
    commit(&world, draft.finish(), &mut third).await;
    assert!(of_run(&world, third.run_key).await.is_empty(), "tenants share nothing");
    assert_verified(&world).await;
}

fn record_key() -> RecordKey {
    RecordKey {
        namespace: Namespace::new("default").unwrap(),
        collection: Collection::new("carts").unwrap(),
        id: RecordId::new("c/7 é").unwrap(),
    }
}

async fn put(world: &World, expect: Expect, body: Option<Body>, keep: bool) {
    let (write_id, at) = (WriteId(world.key()), Timestamp::ZERO);
    let write = match body {
        None => RecordWrite::Remove { write_id, at },
        Some(body) => {
            let digest = body.digest();
            let keep = keep.then_some(Keep { digest, actor: None, caused_by: None });
            let terms = Terms::default();
            RecordWrite::Put(Box::new(RecordPut {
                write_id,
                body,
                terms,
                keep,
                at,
                revision: None,
            }))
        }
    };
    let op = Op::Record(Box::new(RecordOp { key: record_key(), expect, write }));
    world.ok(Commit::new(None, None, vec![op]).with_large_bodies_apart(INLINE_MAX)).await;
}

/// A record owns the body of its row and of its kept versions, and no others.
pub async fn of_records_go_when_nothing_names_them(world: World) {
    let owner = || BodyOwner::Record(record_key());
    let digests = async |expect: &[u8]| {
        let mut expect: Vec<_> = expect.iter().map(|seed| large(*seed).digest()).collect();
        expect.sort();
        let found = bodies_of(&world, owner()).await;
        assert_eq!(found.iter().map(|body| body.digest).collect::<Vec<_>>(), expect);
    };
    put(&world, Expect::Absent, Some(large(b'a')), false).await;
    digests(b"a").await;
    put(&world, Expect::At(1), Some(large(b'b')), true).await;
    digests(b"b").await;
    put(&world, Expect::At(2), Some(large(b'c')), false).await;
    digests(b"bc").await;
    let found = world.store.records(vec![record_key()]).await.unwrap().remove(0).unwrap();
    assert_eq!(found.body, Some(large(b'c')));
    let rows = world.store.record_rows(vec![record_key()]).await.unwrap().remove(0).unwrap();
    assert!(rows.body.unwrap().is_reference());
    put(&world, Expect::At(3), Some(large(b'c')), false).await;
    digests(b"bc").await;
    put(&world, Expect::At(4), Some(Body::json("1")), false).await;
    digests(b"b").await;
    put(&world, Expect::At(5), Some(large(b'd')), false).await;
    digests(b"bd").await;
    put(&world, Expect::At(6), None, false).await;
    digests(b"b").await;
    let query = Query::RecordVersions { key: record_key(), before: None, limit: 10 };
    let mut versions = world.store.list(query).await.unwrap().record_versions().unwrap();
    bodies::fill(&*world.store, bodies::of_versions(&mut versions)).await.unwrap();
    assert_eq!(versions[0].body, large(b'b'));
}

/// A reference that names a body of another owner is refused, and so is a body for an unrelated run.
pub async fn are_refused_under_a_wrong_owner(world: World) {
    let (run, hold) = run_with_bodies(&world, "run").await;
    let rows = world.store.load_rows(vec![run.run_key], LoadSteps::All).await.unwrap().remove(0);
    let mut new = world.new_run("copy", Turn::ready());
    new.input = rows.run.input.clone();
    let create = world.create_commit(new, windlass_kernel::OnExisting::Refuse);
    assert_eq!(world.code(create).await, ErrorCode::InvalidCommit);
    let mut message = world.message(run.run_key, "n");
    message.body = rows.messages[0].body.clone();
    assert_eq!(world.code(world.send_commit(message)).await, ErrorCode::InvalidCommit);
    let (other, _) = world.create_held("other").await;
    let mut commit = world.step_commit(&run, hold, "late", "1");
    let owner = BodyOwner::Run(other.run_key);
    commit.ops_mut().push(Op::PutBody(Box::new(PutBody::new(owner, Bytes::from_static(b"x")))));
    assert_eq!(world.code(commit).await, ErrorCode::InvalidCommit);
    // A step of the same run may name a body that is there.
    let mut again = rows.steps[0].clone();
    again.step_key = windlass_kernel::StepKey::new("again").unwrap();
    again.position = rows.run.head.next_ordinal;
    let mut draft = world.draft(&rows.run, hold);
    draft.step(events::STEP_COMPLETED, &json!({ "key": "again" }), again, world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    let keys =
        vec![BodyKey { owner: BodyOwner::Run(run.run_key), digest: large(b'a').digest() }; 65];
    assert_eq!(world.store.bodies(keys).await.unwrap_err().code(), ErrorCode::InvalidSize);
    assert_verified(&world).await;
}

/// The size of a large message counts against the limit on unread messages.
pub async fn count_against_the_mailbox(world: World) {
    let (run, _) = world.create_held("run").await;
    let body = Body::bytes(vec![7; 1024 * 1024]);
    let mut codes = Vec::new();
    for n in 0..34 {
        let mut message = world.message(run.run_key, &format!("m{n}"));
        message.body = Some(body.clone());
        let sent = world.send_commit(message).with_large_bodies_apart(INLINE_MAX);
        codes.extend(world.commit(sent).await.err().map(|error| error.code()));
    }
    assert!(!codes.is_empty(), "32 MiB are the limit");
    assert!(codes.iter().all(|code| *code == ErrorCode::MessagesLimit), "{codes:?}");
    assert_eq!(of_run(&world, run.run_key).await.len(), 1);
}
