//! LISTEN: other processes receive wake-ups, and a lost connection is reopened.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use windlass_kernel::{Store, Turn, Wakeup};
use windlass_testkit::world::{World, route};

use crate::support::{TestStore, connect, options};

async fn wait_for(wakeups: &mut mpsc::UnboundedReceiver<Wakeup>, wanted: Wakeup) {
    let wait = async {
        while let Some(wakeup) = wakeups.recv().await {
            if wakeup == wanted {
                return;
            }
        }
    };
    // Far longer than it can take: no test asserts a time.
    let received = tokio::time::timeout(Duration::from_secs(60), wait).await;
    received.unwrap_or_else(|_| panic!("{wanted:?} was not received"));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_processes_receive_wakeups_and_reconnect() {
    let test = TestStore::open().await;
    let schema = test.schema.name.clone();
    let other = test.schema.open(options(&schema)).await;
    let (sender, mut wakeups) = mpsc::unbounded_channel();
    other.listen(Arc::new(move |wakeup| {
        let _ = sender.send(wakeup);
    }));
    let world = World::new(Box::new(test)).await;
    // `Missed` is sent when LISTEN succeeds.
    wait_for(&mut wakeups, Wakeup::Missed).await;
    world.create(world.new_run("a", Turn::ready())).await;
    wait_for(&mut wakeups, Wakeup::Turn(route("default", "w"))).await;
    world.enqueue(vec![world.task(None)]).await;
    wait_for(&mut wakeups, Wakeup::Task(route("q", "t"))).await;
    let later = world.now().await.plus(Duration::from_secs(3_600));
    world.create(world.new_run("b", Turn::due_at(later))).await;
    wait_for(&mut wakeups, Wakeup::Due(later)).await;

    let client = connect().await;
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE $1";
    let pattern = format!("LISTEN \"windlass_{schema}\"%");
    let ended: i64 = client.query_one(sql, &[&pattern]).await.unwrap().get(0);
    assert_eq!(ended, 1, "exactly one connection listens");
    wait_for(&mut wakeups, Wakeup::Missed).await;
    world.create(world.new_run("c", Turn::ready())).await;
    wait_for(&mut wakeups, Wakeup::Turn(route("default", "w"))).await;
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_store_does_not_listen_and_sends_no_queries() {
    let test = TestStore::open().await;
    let schema = test.schema.name.clone();
    let world = World::new(Box::new(test)).await;
    world.create(world.new_run("a", Turn::ready())).await;
    let client = connect().await;
    let sql = "SELECT count(*), max(query_start)::text FROM pg_stat_activity \
        WHERE application_name = 'windlass' AND query LIKE '%' || $1 || '%'";
    let listening = format!("LISTEN \"windlass_{schema}\"");
    let busy = format!("{sql} AND state <> 'idle'");
    while client.query_one(&busy, &[&schema]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = client.query_one(sql, &[&schema]).await.unwrap();
    let listens: i64 = client.query_one(sql, &[&listening]).await.unwrap().get(0);
    assert_eq!(listens, 0);
    // Nothing happens that the test could wait for: a store that asks from time to time does it here.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let after = client.query_one(sql, &[&schema]).await.unwrap();
    assert_eq!(before.get::<_, Option<String>>(1), after.get::<_, Option<String>>(1));
}
