//! Memos of relays: an answer that is known is kept, and paid for once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::Engine;
use windlass::kernel::{RetryLimit, RetryPolicy};
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, RunSpec, StepOutcome, StepRunner};

use crate::harness::{Counts, Harness, Kind, on_every_store, until};
use crate::relay_calls::RelayCalls as _;

on_every_store!(
    an_answer_is_not_paid_for_twice,
    memos_of_one_name_are_worked_out_once,
    an_answer_is_kept_though_nobody_waits_for_it,
    a_step_may_have_so_many_memos,
    an_open_run_reads_only_its_last_payload_and_current_memos,
);

/// Asks a model twice in each attempt; fails until it has been tried three times.
struct Asker(Arc<Counts>);

impl StepRunner for Asker {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let ask = |name: &'static str| {
            step.memo(name, move || async move {
                Ok(format!("{name} {}", self.0.hit(&format!("{name}/{}", step.step_number))))
            })
        };
        let (one, two): (Result<String, _>, Result<String, _>) =
            futures::join!(ask("one"), ask("two"));
        let raw = step.memo_bytes("raw", || async { Ok(vec![0_u8, 255].into()) }).await?;
        assert_eq!(raw.as_ref(), [0, 255]);
        let error = step.memo("bad", || async { Err::<u32, _>(RelayError::transient("no")) }).await;
        assert_eq!(error.unwrap_err().message(), "no");
        if step.attempt < 3 {
            return Err(RelayError::transient("again"));
        }
        let text = format!("{}, {}", one?, two?);
        match step.step_number {
            0 => Ok(StepOutcome::next(text)),
            _ => Ok(StepOutcome::done(text)),
        }
    }
}

async fn an_answer_is_not_paid_for_twice(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let build = |engine: &Engine| {
        let relay = engine.relay("asker", Asker(counts.clone()), NoopTerminalHook);
        relay.backoff(Duration::from_millis(200), Duration::from_millis(200)).build().unwrap()
    };
    let relay = build(&engine);
    relay.submit(RunSpec::new("").id("a")).await.unwrap();
    // The second attempt is made by another process.
    until("it was tried once", || async {
        relay.status("a").await.unwrap().unwrap().failed_attempts >= 1
    })
    .await;
    h.stop(&engine).await;
    let engine = h.engine().await;
    let relay = build(&engine);
    let ended = relay.wait("a").await.unwrap();
    assert_eq!(ended.result.as_deref(), Some(&b"one 1, two 1"[..]));
    assert_eq!((counts.get("one/0"), counts.get("one/1"), counts.get("two/0")), (1, 1, 1));
}

/// Asks for one memo four times at once; the first two askers fail.
struct AtOnce(Arc<Counts>);

impl StepRunner for AtOnce {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let ask = || {
            step.memo("one", || async {
                let asked = self.0.hit("asked");
                let running = self.0.hit("running");
                tokio::time::sleep(Duration::from_millis(10)).await;
                self.0.reset("running");
                match (running, asked) {
                    (2.., _) => Err(RelayError::permanent("two at once")),
                    (_, ..=2) => Err(RelayError::transient("busy")),
                    _ => Ok(asked),
                }
            })
        };
        let (a, b, c, d) = futures::join!(ask(), ask(), ask(), ask());
        let told: Vec<String> = [a, b, c, d]
            .map(|one| one.map_or_else(|error| error.message().to_owned(), |n| n.to_string()))
            .into();
        Ok(StepOutcome::done(told.join(" ")))
    }
}

async fn memos_of_one_name_are_worked_out_once(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("at-once", AtOnce(counts.clone()), NoopTerminalHook).build().unwrap();
    let run = relay.submit(RunSpec::new("")).await.unwrap();
    let ended = relay.wait(&run.run_id).await.unwrap();
    assert_eq!(ended.result.as_deref(), Some(&b"busy busy 3 3"[..]), "{:?}", ended.error);
    assert_eq!(counts.get("asked"), 3);
}

/// Asks twice at once, and gives up on both when one fails; then asks and does not wait for the answer.
struct Impatient(Arc<Counts>);

impl StepRunner for Impatient {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let ask = |name: &'static str| {
            step.memo(name, move || async move { Ok(self.0.hit(&format!("asked {name}"))) })
        };
        let fails = step.memo("fails", || async {
            match step.attempt {
                1 => Err(RelayError::transient("not yet")),
                _ => Ok(0),
            }
        });
        let (one, _) = futures::try_join!(ask("one"), fails)?;
        {
            let dropped = std::pin::pin!(ask("two"));
            assert!(futures::poll!(dropped).is_pending());
        }
        let two = ask("two").await?;
        Ok(StepOutcome::done(format!("{one} {two} {}", step.attempt)))
    }
}

async fn an_answer_is_kept_though_nobody_waits_for_it(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("impatient", Impatient(counts.clone()), NoopTerminalHook);
    let relay = relay.backoff(Duration::from_millis(5), Duration::from_millis(5)).build().unwrap();
    let run = relay.submit(RunSpec::new("")).await.unwrap();
    let ended = relay.wait(&run.run_id).await.unwrap();
    assert_eq!(ended.result.as_deref(), Some(&b"1 1 2"[..]), "{:?}", ended.error);
    assert_eq!((counts.get("asked one"), counts.get("asked two")), (1, 1));
}

/// Memoises more than is kept.
struct Hoarder;

impl StepRunner for Hoarder {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let all =
            (0..1_024).map(|n| async move { step.memo(&n.to_string(), || async { Ok(n) }).await });
        futures::future::try_join_all(all).await?;
        let one: u32 = step.memo("7", || async { Err(RelayError::permanent("known")) }).await?;
        let more = step.memo("more", || async { Ok(0) }).await.unwrap_err();
        Ok(StepOutcome::done(format!("{one}: {more}")))
    }
}

async fn a_step_may_have_so_many_memos(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = engine.relay("hoarder", Hoarder, NoopTerminalHook).build().unwrap();
    let run = relay.submit(RunSpec::new("")).await.unwrap();
    let ended = relay.wait(&run.run_id).await.unwrap();
    let told = String::from_utf8(ended.result.unwrap().to_vec()).unwrap();
    assert_eq!(told, "7: memo \"more\" would be one too many: a step may have 1024");
}

/// Passes on `p0`, `p1` and so on, and fails at step 2 until it may go on.
struct Chain {
    counts: Arc<Counts>,
    may_go_on: Arc<AtomicBool>,
}

impl StepRunner for Chain {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let number = step.step_number;
        let hit = || async { Ok(self.counts.hit(&format!("memo/{number}"))) };
        assert_eq!(step.memo("m", hit).await?, 1);
        if number > 0 {
            assert_eq!(step.payload, format!("p{}", number - 1));
        }
        match number {
            2 if !self.may_go_on.load(Ordering::SeqCst) => Err(RelayError::transient("not yet")),
            3 => Ok(StepOutcome::done("done")),
            _ => Ok(StepOutcome::next(format!("p{number}"))),
        }
    }
}

async fn an_open_run_reads_only_its_last_payload_and_current_memos(h: Arc<Harness>) {
    let (engine, counts, may_go_on) = (h.engine().await, Counts::new(), Arc::default());
    let chain = Chain { counts: Arc::clone(&counts), may_go_on: Arc::clone(&may_go_on) };
    let policy = RetryPolicy::exponential(RetryLimit::Forever, Duration::from_millis(50))
        .with_max_delay(Duration::from_millis(100));
    let relay = engine.relay("chain", chain, NoopTerminalHook).retry_policy(policy);
    let relay = relay.build().unwrap();
    let run = relay.submit(RunSpec::new("").id("c")).await.unwrap();
    until("step 2 has failed", || async {
        relay.status("c").await.unwrap().unwrap().failed_attempts >= 1
    })
    .await;
    // A payload or a memo of an earlier step that is read now would fail the load.
    let damages = h.kind != Kind::Memory;
    if damages {
        h.sql(match h.kind {
            Kind::Postgres => "ALTER TABLE steps DISABLE TRIGGER steps_settled",
            _ => "DROP TRIGGER steps_settled",
        })
        .await;
        let earlier = "WHERE step_key IN ('0', '0/m', '1/m')";
        h.sql(&format!("UPDATE steps SET result_encoding = 'nonsense' {earlier}")).await;
    }
    // The next attempt reads the run from the store.
    let before = engine.admin().metrics().replays.get();
    until("the run was read back", || async {
        engine.core().evict_all();
        engine.admin().metrics().replays.get() > before
    })
    .await;
    may_go_on.store(true, Ordering::SeqCst);
    assert_eq!(relay.wait("c").await.unwrap().result.as_deref(), Some(&b"done"[..]));
    for number in 0..=3 {
        assert_eq!(counts.get(&format!("memo/{number}")), 1, "{number}");
    }
    if damages {
        let back = "CASE kind WHEN 'memo' THEN 'json' ELSE 'bytes' END";
        let damaged = "WHERE result_encoding = 'nonsense'";
        h.sql(&format!("UPDATE steps SET result_encoding = {back} {damaged}")).await;
    }
    // Readers of the whole run still get all of its steps.
    let steps = engine.admin().store().load(vec![run.run_key]).await.unwrap().remove(0).steps;
    let keys: Vec<_> = steps.iter().map(|step| step.step_key.as_str().to_owned()).collect();
    assert_eq!(keys, ["0/m", "0", "1/m", "1", "2/m", "2", "3/m", "3"]);
}
