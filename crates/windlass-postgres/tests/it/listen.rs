//! LISTEN: other processes hear of wake-ups, and a lost connection comes back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use windlass_kernel::{Store, Turn, Wakeup};
use windlass_testkit::world::{World, route};

use crate::support::{TestStore, connect, options};

async fn heard(wakeups: &mut mpsc::UnboundedReceiver<Wakeup>, wanted: Wakeup) {
    let wait = async {
        while let Some(wakeup) = wakeups.recv().await {
            if wakeup == wanted {
                return;
            }
        }
    };
    // Far longer than it can take: a test never asserts a time.
    let heard = tokio::time::timeout(Duration::from_secs(60), wait).await;
    heard.unwrap_or_else(|_| panic!("{wanted:?} was not heard"));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_processes_hear_and_reconnect() {
    let test = TestStore::open().await;
    let schema = test.schema.name.clone();
    let other = test.schema.open(options(&schema)).await;
    let (sender, mut wakeups) = mpsc::unbounded_channel();
    other.listen(Arc::new(move |wakeup| {
        let _ = sender.send(wakeup);
    }));
    let world = World::new(Box::new(test)).await;
    // LISTEN is up when it says that something may have been missed.
    heard(&mut wakeups, Wakeup::Missed).await;
    world.create(world.new_run("a", Turn::ready())).await;
    heard(&mut wakeups, Wakeup::Turn(route("default", "w"))).await;
    world.enqueue(vec![world.task(None)]).await;
    heard(&mut wakeups, Wakeup::Task(route("q", "t"))).await;
    let later = world.now().await.plus(Duration::from_secs(3_600));
    world.create(world.new_run("b", Turn::due_at(later))).await;
    heard(&mut wakeups, Wakeup::Due(later)).await;

    let client = connect().await;
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE $1";
    let pattern = format!("LISTEN \"windlass_{schema}\"%");
    let ended: i64 = client.query_one(sql, &[&pattern]).await.unwrap().get(0);
    assert_eq!(ended, 1, "one connection listens");
    heard(&mut wakeups, Wakeup::Missed).await;
    world.create(world.new_run("c", Turn::ready())).await;
    heard(&mut wakeups, Wakeup::Turn(route("default", "w"))).await;
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens_and_nothing_is_asked_while_idle() {
    let test = TestStore::open().await;
    let schema = test.schema.name.clone();
    let world = World::new(Box::new(test)).await;
    world.create(world.new_run("a", Turn::ready())).await;
    let client = connect().await;
    let sql = "SELECT count(*), max(query_start)::text FROM pg_stat_activity \
        WHERE application_name = 'windlass' AND query LIKE '%' || $1 || '%'";
    let listening = format!("LISTEN \"windlass_{schema}\"");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = client.query_one(sql, &[&schema]).await.unwrap();
    let listens: i64 = client.query_one(sql, &[&listening]).await.unwrap().get(0);
    assert_eq!(listens, 0);
    tokio::time::sleep(Duration::from_millis(700)).await;
    let after = client.query_one(sql, &[&schema]).await.unwrap();
    assert_eq!(before.get::<_, Option<String>>(1), after.get::<_, Option<String>>(1));
}
