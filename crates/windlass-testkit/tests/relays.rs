//! Relays in virtual time: a crash at every commit makes no difference, and the hook receives the end.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use windlass_engine::Engine;
use windlass_kernel::{BoxFuture, MessageKind, Query, RunKey, RunStatus, end_task_id};
use windlass_models::relays::{
    self, HookError, NoopTerminalHook, RelayError, RelayStep, RunOutcome, RunSpec, RunState,
    Signal, StepOutcome, StepRunner, TerminalHook, TerminalStatus,
};
use windlass_testkit::{Probe, TestEngine, Told, every_crash_of};

/// Appends its number to the payload, five times; the third step fails once and memoises.
struct Five {
    probe: Probe,
    ends: &'static str,
}

impl StepRunner for Five {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.probe.ran(step.step_number.to_string());
        let mut payload = step.payload.to_vec();
        payload.extend(step.step_number.to_string().bytes());
        match step.step_number {
            0 | 3 => Ok(StepOutcome::next(payload)),
            1 => Ok(StepOutcome::ContinueAfter {
                payload: payload.into(),
                delay: Duration::from_secs(5),
            }),
            2 => {
                let ask = || async {
                    self.probe.ran("2/ask");
                    Ok("asked".to_owned())
                };
                let asked: String = step.memo("ask", ask).await?;
                if step.attempt == 1 {
                    return Err(RelayError::transient("not yet"));
                }
                payload.extend(asked.bytes());
                Ok(StepOutcome::next(payload))
            }
            _ if self.ends == "fail" => Ok(StepOutcome::Fail { reason: "no".into() }),
            _ if self.ends == "dead" => Err(RelayError::permanent("broken")),
            _ => Ok(StepOutcome::done(payload)),
        }
    }
}

#[derive(Clone, Default)]
struct Ends(Arc<Mutex<BTreeSet<(String, Word)>>>);

type Word = &'static str;

impl TerminalHook for Ends {
    async fn on_termination(&self, outcome: &RunOutcome) -> Result<(), HookError> {
        assert_eq!(outcome.id, end_task_id(outcome.run_key).to_string());
        self.0.lock().unwrap().insert((outcome.id.clone(), outcome.status.as_str()));
        Ok(())
    }
}

fn script(ends: &'static str, hook: Ends) -> impl Fn(&Engine, &Probe) -> BoxFuture<'static, Told> {
    move |engine, probe| {
        let runner = Five { probe: probe.clone(), ends };
        let relay = relays::relay(engine, "five", runner, hook.clone())
            .backoff(Duration::from_secs(1), Duration::from_secs(1))
            .build()
            .unwrap();
        let (engine, hook) = (engine.clone(), hook.clone());
        Box::pin(async move {
            let run = relay
                .start_from(RunSpec::new("in:").id("relay"))
                .await
                .map_err(|e| e.to_string())?;
            let ended = run.finished().await.map_err(|error| error.to_string())?;
            // The hook runs although the process that ended the run is dead.
            while !hook
                .0
                .lock()
                .unwrap()
                .iter()
                .any(|(id, _)| *id == end_task_id(run.run_key()).to_string())
            {
                engine.env().sleep(Duration::from_millis(100)).await;
            }
            let result = ended.result.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            Ok(json!({ "status": ended.status.as_str(), "result": result, "error": ended.error }))
        })
    }
}

#[test]
fn a_crash_at_any_commit_of_five_steps_with_a_hook_makes_no_difference() {
    for (ends, status, result) in [
        ("succeed", TerminalStatus::Succeeded, json!("in:012asked34")),
        ("fail", TerminalStatus::Failed, json!(null)),
        ("dead", TerminalStatus::Failed, json!(null)),
    ] {
        let hook = Ends::default();
        let report = every_crash_of(script(ends, hook.clone()));
        assert_eq!(report.output["status"], status.as_str(), "{report:?}");
        assert_eq!(report.output["result"], result, "{report:?}");
        // The create, five steps, a retry, a memo, two turns given back, and the hook's own.
        assert!(report.commits >= 9, "{report:?}");
        assert_eq!(report.crashes, report.commits * 2);
        assert!(report.bodies_again > 0, "{report:?}");
        let told = hook.0.lock().unwrap();
        assert!(told.iter().all(|(_, told)| *told == status.as_str()), "{told:?}");
        // One id a run: each crash is a store of its own.
        assert!(told.len() as u64 <= report.crashes + 1, "{told:?}");
    }
}

#[test]
fn a_plain_relay_of_three_steps_makes_four_commits() {
    struct Three;
    impl StepRunner for Three {
        async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
            Ok(match step.step_number {
                2 => StepOutcome::done(step.payload.clone()),
                _ => StepOutcome::next(step.payload.clone()),
            })
        }
    }
    let test = TestEngine::new();
    let engine = test.engine().core().clone();
    let hook = windlass_models::relays::NoopTerminalHook;
    let relay = relays::relay(&engine, "three", Three, hook).build().unwrap();
    let run = test.run(relay.start_from(RunSpec::new("x"))).unwrap();
    let ended = test.run(run.finished()).unwrap();
    assert_eq!(ended.result.as_deref(), Some(&b"x"[..]));
    // The create is not among them.
    assert_eq!(engine.metrics().commits.get(), 3);
    let tasks = windlass_kernel::TasksQuery::all(engine.namespace().clone(), 10);
    let tasks = test.run(engine.store().list(windlass_kernel::Query::Tasks(tasks)));
    assert_eq!(tasks.unwrap().tasks().unwrap(), []);
}

/// Waits for a signal after its first step, fails once with it, and ends with it.
struct Signalled(Probe);

impl StepRunner for Signalled {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.ran(step.step_number.to_string());
        match (step.step_number, &step.signal) {
            (0, None) => Ok(StepOutcome::ContinueOnSignal {
                payload: "told: ".into(),
                signal: "go".into(),
                timeout: None,
            }),
            (1, Some(Signal::Received(_))) if step.attempt == 1 => {
                Err(RelayError::transient("not yet"))
            }
            (1, Some(Signal::Received(bytes))) => {
                let payload = [&step.payload[..], bytes].concat().into();
                let (signal, timeout) = ("never".into(), Some(Duration::from_secs(2)));
                Ok(StepOutcome::ContinueOnSignal { payload, signal, timeout })
            }
            (2, Some(Signal::TimedOut)) => Ok(StepOutcome::done(step.payload.clone())),
            (number, signal) => Err(RelayError::permanent(format!("{number} {signal:?}"))),
        }
    }
}

/// Is cancelled in its second step: while it runs, or while it is put off.
struct Cancelled(Probe, Word);

impl StepRunner for Cancelled {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.ran(step.step_number.to_string());
        match (step.step_number, self.1) {
            (0, "running") => Ok(StepOutcome::next("")),
            (0, _) => Ok(StepOutcome::ContinueAfter {
                payload: "".into(),
                delay: Duration::from_secs(3_600),
            }),
            _ => {
                step.cancel_token.cancelled().await;
                Ok(StepOutcome::done("discarded"))
            }
        }
    }
}

async fn told(engine: &Engine, hook: &Ends, run_key: RunKey) {
    let id = end_task_id(run_key).to_string();
    while !hook.0.lock().unwrap().iter().any(|(told, _)| *told == id) {
        engine.env().sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn a_crash_at_any_commit_loses_no_signal() {
    let hook = Ends::default();
    let ends = hook.clone();
    let report =
        every_crash_of(move |engine: &Engine, probe: &Probe| -> BoxFuture<'static, Told> {
            let runner = Signalled(probe.clone());
            let relay = relays::relay(engine, "signalled", runner, ends.clone())
                .backoff(Duration::from_secs(1), Duration::from_secs(1))
                .build()
                .unwrap();
            let (engine, hook) = (engine.clone(), ends.clone());
            Box::pin(async move {
                let text = |error: windlass_kernel::Error| error.to_string();
                let run = relay.start_from(RunSpec::new("").id("relay")).await.map_err(text)?;
                // Sent again it is the same signal.
                match run.signal_bytes_once("go", "yes", "s1").await {
                    Err(error) if error.code() != "RUN_TERMINAL" => return Err(text(error)),
                    _ => {}
                }
                let ended = run.finished().await.map_err(text)?;
                told(&engine, &hook, run.run_key()).await;
                let result = ended.result.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                Ok(json!({ "result": result, "error": ended.error }))
            })
        });
    assert_eq!(report.output, json!({ "result": "told: yes", "error": null }), "{report:?}");
    assert!(report.commits >= 7 && report.bodies_again > 0, "{report:?}");
    assert!(hook.0.lock().unwrap().iter().all(|(_, told)| *told == "succeeded"));
}

#[test]
fn a_crash_at_any_commit_forgets_no_cancel() {
    for when in ["running", "waiting"] {
        let hook = Ends::default();
        let ends = hook.clone();
        let answers = Arc::<Mutex<Vec<bool>>>::default();
        let answered = Arc::clone(&answers);
        let report =
            every_crash_of(move |engine: &Engine, probe: &Probe| -> BoxFuture<'static, Told> {
                let (runner, answered) = (Cancelled(probe.clone(), when), Arc::clone(&answered));
                let relay = relays::relay(engine, "cancelled", runner, ends.clone());
                let relay = relay.build().unwrap();
                let (engine, hook, probe) = (engine.clone(), ends.clone(), probe.clone());
                Box::pin(async move {
                    let text = |error: windlass_kernel::Error| error.to_string();
                    let run = relay.start_from(RunSpec::new("").id("relay")).await.map_err(text)?;
                    loop {
                        let info = Some(run.relay_status().await.map_err(text)?);
                        let state = info.map(|info| info.state);
                        let ready = match when {
                            "running" => probe.count("1") > 0,
                            _ => state == Some(RunState::Scheduled),
                        };
                        if ready || matches!(state, Some(RunState::Ended(_))) {
                            break;
                        }
                        engine.env().sleep(Duration::from_millis(10)).await;
                    }
                    // In a life after the one that ended it, it has ended already.
                    let over = matches!(
                        Some(run.relay_status().await.map_err(text)?.state),
                        Some(RunState::Ended(_))
                    );
                    let cancelled = run.cancel("cancelled").await.map_err(text)?;
                    answered.lock().unwrap().push(cancelled);
                    let ended = run.finished().await.map_err(text)?;
                    if cancelled && (over || ended.status != TerminalStatus::Cancelled) {
                        return Err(format!("a cancel was answered yes; {:?}", ended.status));
                    }
                    told(&engine, &hook, run.run_key()).await;
                    Ok(json!({ "status": ended.status.as_str(), "result": ended.result.is_some() }))
                })
            });
        assert_eq!(report.output, json!({ "status": "cancelled", "result": false }), "{report:?}");
        assert!(report.commits >= 4, "{report:?}");
        // The first one was asked without a crash, and of the others all but those that came too late.
        let answers = answers.lock().unwrap();
        assert!(answers[0] && answers.contains(&false), "{answers:?}");
        assert!(hook.0.lock().unwrap().iter().all(|(_, told)| *told == "cancelled"));
    }
}

/// Puts its second step off, and ends with it.
struct PutOff(Probe);

impl StepRunner for PutOff {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.ran(step.step_number.to_string());
        match step.step_number {
            0 => Ok(StepOutcome::ContinueAfter { payload: "".into(), delay: MINUTE }),
            _ => Ok(StepOutcome::done("went on")),
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_crash_at_any_commit_forgets_no_resume() {
    let script = |engine: &Engine, probe: &Probe| -> BoxFuture<'static, Told> {
        let runner = PutOff(probe.clone());
        let relay = relays::relay(engine, "put-off", runner, NoopTerminalHook);
        let relay = relay.build().unwrap();
        let engine = engine.clone();
        Box::pin(async move {
            let text = |error: windlass_kernel::Error| error.to_string();
            let handle = relay.start_from(RunSpec::new("").id("relay")).await.map_err(text)?;
            let run = handle.run_key();
            // The request to go on is sent once over all lives: nobody repeats it.
            let messages = Query::Messages { run_key: run, after: 0, limit: 100 };
            let messages = engine.store().list(messages).await.map_err(text)?.messages();
            let is_sent = |m: &windlass_kernel::Message| m.message_id.as_str() == "go-on";
            if !messages.map_err(text)?.iter().any(is_sent) {
                loop {
                    let row = engine.current(run).await.map_err(text)?;
                    match row.status {
                        RunStatus::Paused => break,
                        RunStatus::Waiting => engine.pause(&row, None).await.map_err(text)?,
                        _ => {}
                    }
                    engine.env().sleep(Duration::from_millis(10)).await;
                }
                let (name, id) = ("resume".parse().unwrap(), "go-on".parse().unwrap());
                let sent = engine.send_message(run, MessageKind::Control, name, None, Some(id));
                sent.await.map_err(text)?;
            }
            let ended = handle.finished().await.map_err(text)?;
            Ok(json!({ "result": ended.result.map(|bytes| bytes.to_vec()), "error": ended.error }))
        })
    };
    let report = every_crash_of(script);
    assert_eq!(report.output["result"], json!(b"went on"), "{report:?}");
    assert!(report.commits >= 6, "{report:?}");
}
