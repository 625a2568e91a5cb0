//! Pools: renewals and heartbeats do not wait behind listings.

use std::time::Duration;

use windlass_kernel::{Body, Heartbeat, Hold, Query, RunKey, Store};
use windlass_testkit::world::World;

use crate::support::{Schema, TestStore, connect, options};

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_listings_use_all_connections() {
    let schema = Schema::new();
    let mut few = options(&schema.name);
    (few.pool_size_max, few.lease_pool_size_max) = (2, 1);
    let store = schema.open(few).await;
    let name = schema.name.clone();
    let world = World::new(Box::new(TestStore { store: store.clone(), schema })).await;
    let worker = world.worker();
    world.renew(worker).await;
    world.enqueue(vec![world.task(None)]).await;
    let task = world.claim_tasks(worker, 1).await.remove(0);
    let run_key = RunKey(world.key());
    let list = || {
        let store = store.clone();
        let query =
            Query::Logs { run_key, level_min: None, category: None, after: None, limit: 10 };
        tokio::spawn(async move { store.list(query).await })
    };
    list().await.unwrap().unwrap();

    let client = connect().await;
    let sql = format!("BEGIN; LOCK TABLE \"{name}\".logs IN ACCESS EXCLUSIVE MODE");
    client.batch_execute(&sql).await.unwrap();
    let listings: Vec<_> = (0..6).map(|_| list()).collect();
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass";
    let observer = connect().await;
    let table = format!("\"{name}\".logs");
    while observer.query_one(waiting, &[&table]).await.unwrap().get::<_, i64>(0) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The pool has no free connection as long as the lock is held.
    let timeout = Duration::from_secs(30);
    let renewed = tokio::time::timeout(timeout, world.renew(worker)).await;
    assert!(!renewed.expect("a renewal waited for listings").lapsed);
    let hold = Hold { worker, claim_no: task.claim_no };
    let heartbeat =
        Heartbeat { task_id: task.task_id, hold, details: Some(Body::json("1".to_owned())) };
    let recorded = tokio::time::timeout(timeout, store.heartbeat(vec![heartbeat])).await;
    assert_eq!(recorded.expect("a heartbeat waited for listings").unwrap(), [true]);
    assert!(listings.iter().all(|listing| !listing.is_finished()), "a listing did not wait");
    client.batch_execute("COMMIT").await.unwrap();
    for listing in listings {
        listing.await.unwrap().unwrap();
    }
}
