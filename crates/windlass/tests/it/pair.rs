//! Two engines on one PostgreSQL: either serves what the other has started, and hands over at once.

use std::sync::Arc;
use std::time::Duration;

use windlass::admin::Options;
use windlass::kernel::{Query, WorkerKey, WorkerStatus};
use windlass::{Ctx, Engine, RunStatus, TaskContext};

use crate::harness::{Counts, Harness, Kind, PATIENCE, ok, run, until, until_asked};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_starts_and_the_other_serves() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let (asks, serves) = (h.engine().await, h.engine().await);
        let double = async |ctx: Ctx, n: u32| {
            ctx.sleep("a moment", "10 ms").await?;
            ok(ctx.step("double", async || ok(2 * n)).await?)
        };
        serves.workflow("double", double).unwrap();
        let remote = asks.remote_workflow::<u32, u32>("double").unwrap();
        for n in 0..5 {
            assert_eq!(remote.start(n).await.unwrap().result().await.unwrap(), 2 * n);
        }
        assert_eq!(asks.admin().metrics().turns.get(), 0);
        // Control and events reach a run that another process holds.
        let waits = async |ctx: Ctx, (): ()| ok(ctx.event::<u32>("wait", "go").await?);
        serves.workflow("waits", waits).unwrap();
        let remote = asks.remote_workflow::<(), u32>("waits").unwrap();
        let held = remote.start(()).await.unwrap();
        until_asked(&held, "wait").await;
        held.send_event("go", &7).await.unwrap();
        assert_eq!(held.result().await.unwrap(), 7);
        let held = remote.start(()).await.unwrap();
        until_asked(&held, "wait").await;
        held.terminate().await.unwrap();
        assert_eq!(held.result().await.unwrap_err().code(), "RUN_TERMINATED");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_stops_hands_over_at_once() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let counts = Counts::new();
        let register = |engine: &windlass::Engine, stays: bool| {
            let counts = counts.clone();
            let flow = move |ctx: Ctx, (): ()| {
                let counts = counts.clone();
                async move {
                    ctx.step("first", async || ok(counts.hit("first"))).await?;
                    let body = async || {
                        counts.hit("long");
                        if stays {
                            futures::future::pending::<()>().await;
                        }
                        ok(counts.get("long"))
                    };
                    ok(ctx.step("long", body).await?)
                }
            };
            engine.workflow("long", flow).unwrap()
        };
        // Longer than the test waits: only the engine that stops can hand its run over.
        let lease = Duration::from_secs(3_600);
        let set = |options| Options { lease, renew_every: lease / 3, ..options };
        let first = h.engine_with(set).await;
        let started = register(&first, true).start(()).id("long").await.unwrap();
        until("the body runs", || async { counts.get("long") == 1 }).await;
        let second = h.engine_with(set).await;
        let flow = register(&second, false);
        assert_eq!(started.status().await.unwrap().status, RunStatus::Active);
        h.stop_within(&first, Duration::from_millis(20)).await;
        let handed = flow.get("long").await.unwrap();
        let result = tokio::time::timeout(PATIENCE, handed.result()).await;
        assert_eq!(result.expect("the turn is handed over").unwrap(), 2);
        assert_eq!(counts.get("first"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_serve_many_runs_and_no_step_runs_twice() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let counts = Counts::new();
        // An engine with free slots takes the runs that it started, and continues the runs that it had.
        let small = |options| Options { turns_max: 4, ..options };
        let (one, two) = (h.engine_with(small).await, h.engine_with(small).await);
        let mut flows = Vec::new();
        for engine in [&one, &two] {
            let counts = counts.clone();
            let flow = move |ctx: Ctx, n: u32| {
                let counts = counts.clone();
                async move {
                    for key in ["a", "b"] {
                        ctx.step(key, async || ok(counts.hit(&format!("{key}{n}")))).await?;
                        ctx.sleep(format!("after {key}"), "20 ms").await?;
                    }
                    ok(n)
                }
            };
            flows.push(engine.workflow("many", flow).unwrap());
        }
        let runs = flows[0].start_batch((0..60).map(|n| (format!("r{n}"), n))).await.unwrap();
        for (n, run) in runs.iter().enumerate() {
            assert_eq!(run.result().await.unwrap(), n as u32);
        }
        let once =
            (0..60).all(|n| counts.get(&format!("a{n}")) == 1 && counts.get(&format!("b{n}")) == 1);
        assert!(once);
        assert!(two.admin().metrics().turns.get() > 0, "the other engine took its share");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_where_it_is_in_memory() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let (first, second) = (h.engine().await, h.engine().await);
        let waits = async |ctx: Ctx, rounds: u32| {
            for round in 0..rounds {
                ctx.event::<u32>(format!("wait-{round}"), "go").await?;
            }
            ok(rounds)
        };
        let flow = first.workflow("waits", waits).unwrap();
        let elsewhere = second.workflow("waits", waits).unwrap();
        let rounds = 20;
        let run = flow.start(rounds).id("a").await.unwrap();
        let sender = elsewhere.get("a").await.unwrap();
        for round in 0..rounds {
            until_asked(&run, &format!("wait-{round}")).await;
            sender.send_event("go", &round).await.unwrap();
        }
        assert_eq!(run.result().await.unwrap(), rounds);
        // The sender hears of the event first, and would have taken nearly all turns.
        let taken = second.admin().metrics().turns.get();
        assert!(taken < u64::from(rounds) / 2, "{taken} of {rounds} turns were taken elsewhere");
    })
    .await;
}

async fn row(engine: &Engine, worker: WorkerKey) -> windlass::kernel::Worker {
    let query = Query::Workers { after: None, limit: 100 };
    let rows = engine.admin().store().list(query).await.unwrap().workers().unwrap();
    rows.into_iter().find(|row| row.info.worker == worker).expect("it is registered")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_asked_to_drain_finishes_what_it_holds_and_stops() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let one_task = |options| Options { tasks_max: 1, worker_group: "red".into(), ..options };
        let (asks, works) = (h.engine().await, h.engine_with(one_task).await);
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let begun = Counts::new();
        let serve = |engine: &Engine| {
            let (gate, begun) = (gate.clone(), begun.clone());
            let activity = move |_: TaskContext, n: u32| {
                let (gate, begun) = (gate.clone(), begun.clone());
                async move {
                    begun.hit("begun");
                    gate.acquire().await?.forget();
                    ok(n)
                }
            };
            engine.activity("wait", activity).unwrap();
        };
        serve(&works);
        let flow = async |ctx: Ctx, n: u32| ok(ctx.activity::<_, u32>("a", "wait", &n).await?);
        let flow = asks.workflow("flow", flow).unwrap();
        let first = flow.start(1).await.unwrap();
        until("it runs", || async { begun.get("begun") == 1 }).await;
        assert!(asks.admin().drain_worker(works.admin().worker()).await.unwrap());
        until("it drains", || async {
            row(&asks, works.admin().worker()).await.info.status == WorkerStatus::Draining
        })
        .await;
        let info = row(&asks, works.admin().worker()).await.info;
        assert_eq!((info.load, info.task_load, info.task_slots, info.accepting), (1, 1, 1, false));
        assert_eq!((&*info.group, info.note.as_deref()), ("red", Some("it drains")));
        // Other engines take the runs that come now.
        let second = flow.start(2).await.unwrap();
        gate.add_permits(2);
        assert_eq!(first.result().await.unwrap(), 1);
        until("it stops", || async {
            row(&asks, works.admin().worker()).await.info.status == WorkerStatus::Stopped
        })
        .await;
        assert_eq!(begun.get("begun"), 1, "it took nothing new");
        assert!(
            !asks.admin().drain_worker(works.admin().worker()).await.unwrap(),
            "it has stopped"
        );
        assert!(row(&asks, asks.admin().worker()).await.info.accepting);
        serve(&asks);
        assert_eq!(second.result().await.unwrap(), 2);
    })
    .await;
}
