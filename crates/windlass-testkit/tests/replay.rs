//! Exported runs are replayed against code that is the same, and code that is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::{Ctx, WorkflowRef, steps};
use windlass_engine::Engine;
use windlass_testkit::{ExportedRun, TestEngine, export_run, replay};

/// How the code differs from the one that was exported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Code {
    Same,
    Renamed,
    Longer,
    OtherOutput,
    Panics,
}

fn register(engine: &Engine, code: Code, ran: &Arc<AtomicU32>) -> WorkflowRef<u64, u64> {
    let ran = Arc::clone(ran);
    let workflow = move |ctx: Ctx, n: u64| {
        let ran = Arc::clone(&ran);
        async move {
            let step = |key: &str, value: u64| {
                let ran = Arc::clone(&ran);
                ctx.step(key, move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                    std::future::ready(Ok(value))
                })
            };
            let first = step("first", n).await?;
            assert!(code != Code::Panics, "this code is broken");
            let second = if code == Code::Renamed { "other" } else { "second" };
            let second = step(second, first * 2).await?;
            ctx.sleep("nap", "1 day").await?;
            let told: u64 = ctx.event("told", "go").await?;
            let sum = step("last", second + told).await?;
            if code == Code::Longer {
                step("one more", 1).await?;
            }
            Ok(if code == Code::OtherOutput { sum + 1 } else { sum })
        }
    };
    steps::register(engine, "work", workflow).unwrap()
}

// The run asleep, the run with an event that it has not read, and the run at its end.
fn exports() -> Vec<ExportedRun> {
    let test = TestEngine::new();
    let workflow = register(test.engine().core(), Code::Same, &Arc::default());
    let run = test.run(workflow.start(10).id("w-1").label("kind", "test")).unwrap();
    let export = || {
        let exported = test.run(export_run(&*test.store(), run.run_key())).unwrap();
        let text = serde_json::to_string_pretty(&exported).unwrap();
        let read: ExportedRun = serde_json::from_str(&text).unwrap();
        assert_eq!(read, exported);
        read
    };
    let asleep = export();
    test.send_event(&run, "go", &5);
    let told = export();
    assert_eq!(told.messages.len(), 1);
    test.advance("1 day");
    assert_eq!(test.run(run.result()).unwrap(), 25);
    vec![asleep, told, export()]
}

#[test]
fn the_same_code_replays_without_running_anything() {
    let ran = Arc::default();
    for exported in exports() {
        replay(&exported, |engine| register(engine, Code::Same, &ran)).unwrap();
    }
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}

#[test]
fn replay_names_the_first_difference() {
    let exports = exports();
    let ended = exports.last().unwrap();
    let ran = Arc::default();
    let code = |exported: &ExportedRun, code| {
        replay(exported, |engine| register(engine, code, &ran)).map_err(|error| error.code)
    };
    for exported in &exports {
        let error = replay(exported, |engine| register(engine, Code::Renamed, &ran)).unwrap_err();
        assert_eq!(error.code, "NON_DETERMINISM", "{error}");
        assert!(error.reason.contains("second") || error.reason.contains("other"), "{error}");
        assert_eq!(code(exported, Code::Panics), Err("WORKFLOW_PANICKED".to_owned()));
    }
    assert_eq!(code(ended, Code::Longer), Err("END_DIFFERS".to_owned()));
    assert_eq!(code(ended, Code::OtherOutput), Err("OUTPUT_DIFFERS".to_owned()));
    assert_eq!(code(&exports[0], Code::Longer), Ok(()));
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}
