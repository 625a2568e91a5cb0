//! Exports that were damaged on their way: cut, reordered, duplicated, huge, deep, of another
//! version. An import takes one only if it is a whole run; every error has a code and writes nothing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::admin::transfer::{Importer, RunExport, export_run};
use windlass::admin::verify_store;
use windlass::kernel::{Limits, MemoryStore, Query, RunKey};
use windlass::model::TokioEnv;
use windlass::{Ctx, Engine, Result, Store};
use windlass_testkit::memory::ManualClock;
use windlass_testkit::sim::rng::Rng;

use crate::harness::{ok, until_asked, until_waiting};

const CASES: u64 = 1_500;
const HUGE_BYTES: usize = 3 << 20;
const DEEP: usize = 20_000;

/// A run with steps, log lines, a task, and consumed and unread messages; as one line.
async fn exported() -> String {
    let engine = Engine::open("memory:").await.unwrap();
    let flow = async |ctx: Ctx, (): ()| -> Result<u32> {
        ctx.log().info("it begins")?;
        let one: u32 = ctx.step("one", async || ok(1)).await?;
        ctx.event::<String>("first", "go").await?;
        ctx.sleep("nap", "1 ms").await?;
        let two = ctx.activity::<_, u32>("nobody serves it", "absent", &1_u32);
        let waits = ctx.event::<u32>("second", "go-on");
        let (two, waits) = futures::future::try_join(two, waits).await?;
        ok(one + two + waits)
    };
    let run = engine.workflow("damaged", flow).unwrap().start(()).label("a", "b").await.unwrap();
    run.send_event("go", &"now").await.unwrap();
    until_asked(&run, "second").await;
    run.send_event("other", &"x").await.unwrap();
    until_waiting(&engine, &run).await;
    let exported = export_run(&**engine.admin().store(), run.run_key()).await.unwrap().unwrap();
    engine.stop(Duration::from_secs(5)).await.unwrap();
    exported.to_line().unwrap()
}

/// The paths of all values below a value.
fn paths(value: &Value, at: &str, all: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(n, v)| (n.to_string(), v)).collect(),
        _ => Vec::new(),
    };
    for (key, child) in children {
        let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        all.push(path.clone());
        paths(child, &path, all);
    }
}

/// Damages a line in one place, and says how.
fn damage(line: &str, rng: &mut Rng) -> (String, String) {
    let mut value: Value = serde_json::from_str(line).unwrap();
    let mut all = Vec::new();
    paths(&value, "", &mut all);
    let path = all[rng.below(all.len() as u64) as usize].clone();
    let kind = rng.below(10);
    let target = value.pointer_mut(&path).unwrap();
    match kind {
        0 => {
            let cut = rng.below(line.len() as u64) as usize;
            return (format!("cut at {cut}"), line[..line.floor_char_boundary(cut)].to_owned());
        }
        1 => {
            let at = line.floor_char_boundary(rng.below(line.len() as u64) as usize);
            let other = char::from(b' ' + rng.below(90) as u8);
            let rest = line[at..].chars().skip(1);
            return (format!("byte {at}"), line[..at].chars().chain([other]).chain(rest).collect());
        }
        2 => *target = Value::Null,
        3 => *target = json!("x".repeat(HUGE_BYTES)),
        4 => *target = json!(rng.next_u64()),
        5 => *target = json!(-1),
        6 => *target = json!({ "unknown": [1, 2.5, "text"] }),
        7 => *target = json!(""),
        8 => duplicate(target, rng),
        _ => reorder(target, rng),
    }
    (format!("kind {kind} at {path}"), value.to_string())
}

/// Repeats an element of a list; other values become a list of themselves.
fn duplicate(target: &mut Value, rng: &mut Rng) {
    match target {
        Value::Array(list) if !list.is_empty() => {
            let again = list[rng.below(list.len() as u64) as usize].clone();
            list.push(again);
        }
        other => *other = json!([other.clone(), other.clone()]),
    }
}

/// Turns a list round, or takes its last element; other values become text.
fn reorder(target: &mut Value, rng: &mut Rng) {
    match target {
        Value::Array(list) if rng.chance(500) => drop(list.pop()),
        Value::Array(list) => list.reverse(),
        other => *other = json!(other.to_string()),
    }
}

/// Imports a line into an empty store. After an error the store is empty, and the error has a code.
async fn check(how: &str, line: &str) -> bool {
    let clock = ManualClock::new();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.as_clock(), Limits::DEFAULT));
    let imported = match RunExport::parse(line) {
        Err(error) => Err(error),
        Ok(export) => {
            let importer =
                Importer::begin(store.clone(), &*TokioEnv::new().unwrap()).await.unwrap();
            let imported = importer.import(export).await;
            importer.finish().await.unwrap();
            imported
        }
    };
    let keys: Vec<RunKey> =
        store.list(Query::RunKeys { after: None, limit: 10 }).await.unwrap().run_keys().unwrap();
    match imported {
        Err(error) => {
            let shown: String = error.to_string().chars().take(200).collect();
            let codes = ["INVALID_EXPORT", "IMPORT_REFUSED"];
            assert!(codes.contains(&error.code().as_str()), "{how}: {shown} [{}]", error.code());
            assert!(keys.is_empty(), "{how}: half of the run was written, then: {shown}");
            false
        }
        Ok(_) => {
            assert_eq!(keys.len(), 1, "{how}");
            let report = verify_store(&*store, &[]).await.unwrap();
            assert!(report.is_clean(), "{how}: {:?} {:?}", report.flaws, report.unreadable);
            export_run(&*store, keys[0]).await.unwrap().unwrap();
            true
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_export_is_refused_as_a_whole() {
    let line = exported().await;
    assert!(check("undamaged", &line).await);
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..CASES {
        let mut rng = Rng::new(seed);
        let (how, damaged) = damage(&line, &mut rng);
        match check(&format!("seed {seed}: {how}"), &damaged).await {
            true => taken += 1,
            false => refused += 1,
        }
    }
    assert!(taken > 0 && refused > taken, "{taken} were taken, {refused} refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_and_foreign_exports_are_refused() {
    let line = exported().await;
    let deep = format!("{}1{}", "[".repeat(DEEP), "]".repeat(DEEP));
    for (how, damaged) in [
        ("empty", String::new()),
        ("deep", deep.clone()),
        ("deep event", line.replacen("\"events\":[", &format!("\"events\":[{deep},"), 1)),
        ("format 0", line.replacen("\"format\":1", "\"format\":0", 1)),
        ("format 2", line.replacen("\"format\":1", "\"format\":2", 1)),
        ("no format", line.replacen("\"format\":1,", "", 1)),
        ("two formats", line.replacen("\"format\":1", "\"format\":1,\"format\":1", 1)),
        ("two runs", format!("{line}{line}")),
        ("a list", format!("[{line}]")),
    ] {
        assert_ne!(damaged, line, "{how}");
        assert!(!check(how, &damaged).await, "{how}");
    }
}
