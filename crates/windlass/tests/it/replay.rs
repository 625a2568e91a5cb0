//! A run that was put away goes on where its record ends: nothing that is recorded is done again.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use windlass::{Ctx, Engine, Result, RunStatus, WorkflowRef};

use crate::harness::{
    Counts, Harness, completed, ok, on_every_store, until, until_asked, until_waiting,
};

on_every_store!(
    completed_steps_do_not_run_again,
    completed_steps_do_not_run_again_in_a_new_engine,
    a_body_that_was_cut_off_runs_again_and_what_came_before_does_not,
    joined_steps,
    a_race_has_the_same_winner_on_replay,
    the_loser_of_a_race_is_cancelled,
    a_wait_that_lost_can_be_asked_for_again,
    a_hundred_rounds_of_eviction,
    an_event_has_its_type_and_time_on_replay_too,
);

async fn three(counts: Arc<Counts>, ctx: Ctx, (): ()) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for key in ["a", "b", "c"] {
        all.push(ctx.step(key, async || ok(counts.hit(key))).await?);
        ctx.event::<()>(format!("after {key}"), "go").await?;
    }
    Ok(all)
}

async fn an_event_has_its_type_and_time_on_replay_too(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("meta", async |ctx: Ctx, (): ()| {
            let paid = ctx.event::<u32>("paid", "paid").with_meta().timeout("1 hour").await?;
            ctx.event::<()>("go", "go").await?;
            ok((paid.event_type, paid.sent_at, paid.payload))
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "paid").await;
    run.send_event("paid", &7).await.unwrap();
    until_asked(&run, "go").await;
    until_waiting(&engine, &run).await;
    let query = windlass::kernel::Query::Messages { run_key: run.run_key(), after: 0, limit: 1 };
    let sent = engine.admin().store().list(query).await.unwrap().messages().unwrap().remove(0);
    // The run consumes the event later than it was sent, so only a record of that time gives it back.
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ("paid".to_owned(), sent.sent_at, 7));
    assert!(engine.admin().verify().await.unwrap().is_clean());
}

async fn completed_steps_do_not_run_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow_with("three", counts.clone(), three).unwrap();
    let run = flow.start(()).await.unwrap();
    for key in ["a", "b", "c"] {
        until_asked(&run, &format!("after {key}")).await;
        until_waiting(&engine, &run).await;
        engine.core().evict_all();
        run.send_event("go", &()).await.unwrap();
    }
    assert_eq!(run.result().await.unwrap(), [1, 1, 1]);
    assert!(engine.admin().metrics().replays.get() >= 3);
}

async fn completed_steps_do_not_run_again_in_a_new_engine(h: Arc<Harness>) {
    let counts = Counts::new();
    let engine = h.engine().await;
    let flow = engine.workflow_with("three", counts.clone(), three).unwrap();
    let run = flow.start(()).id("three").await.unwrap();
    until_waiting(&engine, &run).await;
    h.stop(&engine).await;
    for _ in 0..3 {
        let engine = h.engine().await;
        let flow = engine.workflow_with("three", counts.clone(), three).unwrap();
        let run = flow.get("three").await.unwrap();
        let steps = completed(&run).await.len();
        run.send_event("go", &()).await.unwrap();
        until("another event is taken", || async { completed(&run).await.len() > steps }).await;
        h.stop(&engine).await;
    }
    let engine = h.engine().await;
    let flow = engine.workflow_with("three", counts.clone(), three).unwrap();
    assert_eq!(flow.get("three").await.unwrap().result().await.unwrap(), [1, 1, 1]);
}

async fn a_body_that_was_cut_off_runs_again_and_what_came_before_does_not(h: Arc<Harness>) {
    let counts = Counts::new();
    let start = |engine: &Engine| -> WorkflowRef<(), u32> {
        let counts = counts.clone();
        let flow = move |ctx: Ctx, (): ()| {
            let counts = counts.clone();
            async move {
                ctx.step("before", async || ok(counts.hit("before"))).await?;
                let body = async || {
                    let number = counts.hit("long");
                    if number == 1 {
                        futures::future::pending::<()>().await;
                    }
                    ok(number)
                };
                ok(ctx.step("long", body).await?)
            }
        };
        engine.workflow("cut", flow).unwrap()
    };
    let engine = h.engine().await;
    let run = start(&engine).start(()).id("cut").await.unwrap();
    until("the body runs", || async { counts.get("long") == 1 }).await;
    assert_eq!(run.status().await.unwrap().status, RunStatus::Active);
    // The deadline passes while the body runs: the turn is given back without its result.
    h.stop_within(&engine, Duration::from_millis(50)).await;
    let engine = h.engine().await;
    let run = start(&engine).get("cut").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 2);
    assert_eq!(counts.get("before"), 1);
}

async fn joined_steps(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("joined", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                let one = |key: &'static str, millis: u64| {
                    let counts = counts.clone();
                    ctx.step(key, move || {
                        let counts = counts.clone();
                        async move {
                            tokio::time::sleep(Duration::from_millis(millis)).await;
                            ok(counts.hit(key))
                        }
                    })
                };
                let (a, b) = tokio::join!(one("a", 20), one("b", 1));
                let (c, d) = tokio::try_join!(one("c", 1), one("d", 20))?;
                let mut order = Vec::new();
                let mut all = FuturesUnordered::new();
                for n in 0..10_u64 {
                    let step = ctx.step(format!("f{n}"), move || async move {
                        tokio::time::sleep(Duration::from_millis((n * 7) % 10)).await;
                        ok(n)
                    });
                    all.push(step);
                }
                while let Some(n) = all.next().await {
                    order.push(n?);
                }
                drop(all);
                ctx.event::<()>("go", "go").await?;
                ok((a?, b?, c, d, order))
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_waiting(&engine, &run).await;
    let recorded = completed(&run).await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    let (a, b, c, d, order) = run.result().await.unwrap();
    assert_eq!((a, b, c, d), (1, 1, 1, 1));
    // The code saw the steps in the order of the record.
    let seen: Vec<String> = order.iter().map(|n| format!("f{n}")).collect();
    assert_eq!(seen, recorded.into_iter().filter(|key| key.starts_with('f')).collect::<Vec<_>>());
}

async fn race(counts: Arc<Counts>, ctx: Ctx, quick: String) -> Result<Vec<String>> {
    let mut winners = Vec::new();
    for round in 0..5 {
        let one = |side: &'static str| {
            let (counts, slow) = (counts.clone(), side != quick);
            ctx.step(format!("{side}{round}"), move || {
                let counts = counts.clone();
                async move {
                    if slow {
                        futures::future::pending::<()>().await;
                    }
                    counts.hit(side);
                    ok(side.to_owned())
                }
            })
        };
        let winner = tokio::select! { biased; l = one("l") => l?, r = one("r") => r? };
        winners.push(winner);
    }
    ctx.event::<()>("go", "go").await?;
    Ok(winners)
}

async fn a_race_has_the_same_winner_on_replay(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let races = engine.workflow_with("race", counts.clone(), race).unwrap();
    for side in ["l", "r"] {
        let run = races.start(side.into()).await.unwrap();
        until_waiting(&engine, &run).await;
        for _ in 0..2 {
            let replays = engine.admin().metrics().replays.get();
            engine.core().evict_all();
            run.wake().await.unwrap();
            until("it is replayed", || async { engine.admin().metrics().replays.get() > replays })
                .await;
            until_waiting(&engine, &run).await;
        }
        engine.core().evict_all();
        run.send_event("go", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), vec![side.to_owned(); 5]);
    }
    assert_eq!((counts.get("l"), counts.get("r")), (5, 5));
}

async fn the_loser_of_a_race_is_cancelled(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("loser", |ctx: Ctx, (): ()| async move {
            let won = tokio::select! { biased;
                n = ctx.event::<u32>("wait", "late") => n?,
                () = async { ctx.sleep("short", "30 ms").await.unwrap() } => 0,
            };
            // The event that the race did not wait for is still in the mailbox.
            ctx.event::<()>("go", "go").await?;
            let late: u32 = ctx.event("again", "late").await?;
            ok((won, late))
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let waits_for_go = || async {
        let steps = run.steps().await.unwrap();
        steps.iter().any(|step| step.step_key.as_str() == "go")
    };
    until("the race is over", waits_for_go).await;
    until_waiting(&engine, &run).await;
    let steps = run.steps().await.unwrap();
    let lost = steps.iter().find(|step| step.step_key.as_str() == "wait").unwrap();
    assert_eq!((lost.due_at, &lost.wait_for), (None, &None), "the wait is off");
    run.send_event("late", &9).await.unwrap();
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), (0, 9));
}

async fn a_wait_that_lost_can_be_asked_for_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("again", |ctx: Ctx, (): ()| async move {
            let mut ticks = 0;
            loop {
                let tick = format!("tick{ticks}");
                tokio::select! { biased;
                    found = ctx.event::<u32>("stop", "stop") => return ok((found?, ticks > 2)),
                    slept = ctx.sleep(&tick, "10 ms") => slept?,
                }
                ticks += 1;
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    for n in 3..6 {
        until("it ticks", || async { completed(&run).await.len() >= n }).await;
        engine.core().evict_all();
    }
    run.send_event("stop", &4).await.unwrap();
    assert_eq!(run.result().await.unwrap(), (4, true));
}

async fn a_hundred_rounds_of_eviction(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("rounds", move |ctx: Ctx, rounds: u32| {
            let counts = inner.clone();
            async move {
                for n in 0..rounds {
                    ctx.step(format!("step{n}"), async || ok(counts.hit("step"))).await?;
                    ctx.sleep(format!("sleep{n}"), "2 ms").await?;
                }
                ok(rounds)
            }
        })
        .unwrap();
    let run = flow.start(100).await.unwrap();
    let evicting = async {
        loop {
            engine.core().evict_all();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        done = run.result() => assert_eq!(done.unwrap(), 100),
        () = evicting => {}
    }
    assert_eq!(counts.get("step"), 100);
    assert_eq!(completed(&run).await.len(), 200);
}
