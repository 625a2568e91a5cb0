//! Wake-ups, and the end of a store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_kernel::{LimitKey, MessageKind, Namespace, NewMessage, Task, Turn, Wake, Wakeup};

use super::batches::idle_run;
use crate::world::{World, route};

/// Listeners hear of what became ready, and of what was scheduled.
pub async fn tell_of_what_became_ready(world: World) {
    let heard: Arc<Mutex<Vec<Wakeup>>> = Arc::default();
    let sink = heard.clone();
    world.store.listen(Arc::new(move |wakeup| sink.lock().unwrap().push(wakeup)));
    let expect = async |wakeup: Wakeup| {
        for _ in 0..30_000 {
            if heard.lock().unwrap().contains(&wakeup) {
                heard.lock().unwrap().clear();
                return;
            }
            // The check has no runtime of its own; asking the store for the time lets others run.
            world.now().await;
            #[allow(clippy::disallowed_methods, reason = "real threads ring the bell here")]
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("{wakeup:?} was not sent; received {:?}", heard.lock().unwrap());
    };
    let turn = || Wakeup::Turn(route("default", "w"));
    let task = || Wakeup::Task(route("q", "t"));
    world.create(world.new_run("ready", Turn::ready())).await;
    expect(turn()).await;
    world.enqueue(vec![world.task(None)]).await;
    expect(task()).await;
    let due = world.now().await.plus(Duration::from_secs(60));
    world.enqueue(vec![Task { due_at: Some(due), ready: false, ..world.task(None) }]).await;
    expect(Wakeup::Due(due)).await;
    let run = idle_run(&world, "waits", Wake::OnMessage).await;
    heard.lock().unwrap().clear();
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    expect(turn()).await;
    let worker = world.worker();
    world.claim_turns(worker, 10).await;
    // The holder of a turn is notified of a message first.
    let control = NewMessage { kind: MessageKind::Control, ..world.message(run.run_key, "c") };
    world.ok(world.send_commit(control)).await;
    expect(Wakeup::Control(run.run_key)).await;
    heard.lock().unwrap().clear();
    world.store.release(world.store.held(worker).await.unwrap()).await.unwrap();
    expect(turn()).await;
    world.advance_ms(61_000).await;
    world.store.promote(10).await.unwrap();
    expect(task()).await;
    let (namespace, key) = (Namespace::default_namespace(), LimitKey::new("api").unwrap());
    world.store.set_limit(namespace, key, Some(1)).await.unwrap();
    expect(Wakeup::Missed).await;
}

/// A store that was closed says so to every call.
pub async fn a_closed_store_refuses_calls(world: World) {
    let (run, hold) = world.create_held("run").await;
    world.store.close().await.unwrap();
    assert_eq!(world.store.now().await.unwrap_err().code(), "STORE_CLOSED");
    assert_eq!(world.store.load(vec![run.run_key]).await.unwrap_err().code(), "STORE_CLOSED");
    assert_eq!(world.code(world.step_commit(&run, hold, "one", "1")).await, "STORE_CLOSED");
    assert_eq!(world.store.promote(1).await.unwrap_err().code(), "STORE_CLOSED");
    world.store.close().await.unwrap();
}
