//! Rates that all processes share, and callees that ask to be left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use windlass::kernel::Rate;
use windlass::machines::{Activity, ActivityContext, ActivityError};
use windlass::{Ctx, Engine, Why};

use crate::harness::{Counts, Harness, Kind, ok, on_every_store, until};

on_every_store!(
    two_processes_share_a_rate,
    other_keys_are_not_held_up_and_why_says_what_is,
    a_callee_that_asks_to_wait_closes_its_key_for_all,
);

/// Two processes where the store allows it.
async fn engines(h: &Harness) -> Vec<Engine> {
    let mut engines = vec![h.engine().await];
    if h.kind != Kind::Sqlite {
        engines.push(h.engine().await);
    }
    engines
}

const CALL: &str = "call";

/// Notes when each call began.
#[derive(Clone, Default)]
struct Calls {
    begun: Arc<Mutex<Vec<Instant>>>,
    limited: Arc<AtomicBool>,
}

impl Activity for Calls {
    const TYPE: &'static str = CALL;
    type Input = u32;
    type Output = u32;

    async fn execute(&self, ctx: &ActivityContext, _: u32) -> Result<u32, ActivityError> {
        self.begun.lock().push(Instant::now());
        match self.limited.swap(false, Ordering::AcqRel) {
            true => Err(ActivityError::rate_limited(Duration::from_millis(700))),
            false => Ok(ctx.attempt),
        }
    }
}

async fn calls(ctx: Ctx, (activity, count): (String, u32)) -> windlass::Result<Vec<u32>> {
    let call = |n: u32| ctx.activity::<_, u32>(format!("c{n}"), activity.as_str(), &n);
    let all = futures::future::join_all((0..count).map(call)).await;
    ok(all.into_iter().collect::<Result<Vec<_>, _>>()?)
}

async fn two_processes_share_a_rate(h: Arc<Harness>) {
    let engines = engines(&h).await;
    let callee = Calls::default();
    for engine in &engines {
        engine.register_activity(callee.clone()).unwrap();
    }
    let (count, burst) = (60_u32, 3_u32);
    let rate = Rate::per(20, Duration::from_secs(1)).burst(burst);
    engines[0].set_activity_rate(CALL, Some(rate)).await.unwrap();
    let flow = engines[0].workflow("calls", calls).unwrap();
    let before = Instant::now();
    let run = flow.start((CALL.into(), count)).await.unwrap();
    assert_eq!(run.result().await.unwrap(), vec![1; count as usize], "waiting spends no attempt");
    let mut begun = callee.begun.lock().clone();
    begun.sort_unstable();
    assert_eq!(begun.len(), count as usize);
    // However late a call begins, the ones before it were not too many by then.
    for (n, at) in (0_u32..).zip(&begun) {
        let earliest = Duration::from_millis(50) * (n + 1).saturating_sub(burst);
        assert!(*at - before >= earliest, "call {n} began after {:?}", *at - before);
    }
    let invalid = engines[0].set_activity_rate(CALL, Some(Rate::per(0, Duration::from_secs(1))));
    assert_eq!(invalid.await.unwrap_err().code(), "INVALID_RATE");
}

async fn other_keys_are_not_held_up_and_why_says_what_is(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    for name in ["slow", "fast"] {
        let counts = counts.clone();
        let activity = move |_: windlass::TaskContext, n: u32| {
            let counts = counts.clone();
            async move {
                counts.hit(name);
                ok(n)
            }
        };
        engine.activity_on(name, name, activity).unwrap();
    }
    engine.set_queue_rate("slow", Some(Rate::per(1, Duration::from_secs(3_600)))).await.unwrap();
    let flow = async |ctx: Ctx, name: String| {
        let call = |n: u32| ctx.activity::<_, u32>(format!("c{n}"), name.as_str(), &n).queue(&name);
        let all = futures::future::join_all((0..50).map(call)).await;
        ok(all.into_iter().filter(|call| call.is_ok()).count())
    };
    let flow = engine.workflow("calls", flow).unwrap();
    let slow = flow.start("slow".into()).await.unwrap();
    until("one has begun", || async { counts.get("slow") == 1 }).await;
    assert_eq!(flow.start("fast".into()).await.unwrap().result().await.unwrap(), 50);
    assert_eq!((counts.get("fast"), counts.get("slow")), (50, 1));
    until("why says so", || async {
        let why = engine.why(slow.run_key()).await.unwrap();
        why.reasons.iter().any(|reason| {
            reason.code == Why::RateReached && reason.text.contains("the rate of \"queue:slow\"")
        })
    })
    .await;
    // Nobody asks again and again meanwhile.
    let begun = engine.metrics().tasks_begun.get();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(engine.metrics().tasks_begun.get(), begun);
    slow.terminate().await.unwrap();
}

async fn a_callee_that_asks_to_wait_closes_its_key_for_all(h: Arc<Harness>) {
    let engines = engines(&h).await;
    let callee = Calls::default();
    for engine in &engines {
        engine.register_activity(callee.clone()).unwrap();
    }
    let flow = engines[0].workflow("calls", calls).unwrap();
    // Whoever served it before knows of no rate, and hears of the one that comes.
    let first = flow.start((CALL.into(), 20)).await.unwrap();
    assert_eq!(first.result().await.unwrap(), [1; 20]);
    callee.begun.lock().clear();
    callee.limited.store(true, Ordering::Release);
    let limited = flow.start((CALL.into(), 1)).await.unwrap();
    until("it was refused", || async { !callee.limited.load(Ordering::Acquire) }).await;
    until("the key is closed", || async {
        let key = windlass::kernel::LimitKey::new(format!("activity:{CALL}")).unwrap();
        let namespace = engines[0].namespace().clone();
        engines[0].store().rate(namespace, key).await.unwrap().0.is_some()
    })
    .await;
    // The other process is told through the database.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let others = flow.start((CALL.into(), 30)).await.unwrap();
    assert_eq!(limited.result().await.unwrap(), [1], "it spends no attempt");
    assert_eq!(others.result().await.unwrap(), [1; 30]);
    let begun = callee.begun.lock().clone();
    assert_eq!(begun.len(), 32);
    let gap = *begun[1..].iter().min().unwrap() - begun[0];
    assert!(gap >= Duration::from_millis(690), "somebody called after {gap:?}");
}
