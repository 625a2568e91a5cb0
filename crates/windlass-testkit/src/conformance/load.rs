//! Loading: a run comes with the steps that are asked for, and with no others.

use serde_json::json;
use windlass_kernel::{Hold, LoadSteps, Loaded, RunKey, StepKind, StepStatus};

use crate::events;
use crate::world::World;

pub(super) const PROGRESS: StepKind = StepKind::from_static("progress");
const NOTE: StepKind = StepKind::from_static("note");

// Writes a step, with its kind and its status as `what`.
pub(super) async fn put(world: &World, run_key: RunKey, hold: Hold, key: &str, what: &str) {
    let Loaded { run, steps, .. } = world.load(run_key).await;
    let (kind, status) = what.split_once(' ').unwrap();
    let status = StepStatus::parse(status).unwrap();
    let mut step = world.step(&run, key, status, status.is_settled().then_some("1"));
    step.kind = if kind == "progress" { PROGRESS } else { NOTE };
    if let Some(before) = steps.iter().find(|before| before.step_key == step.step_key) {
        step.position = before.position;
    }
    let mut draft = world.draft(&run, hold);
    match status.is_settled() {
        // Takes no ordinal, so the next step has the same position.
        false => drop(draft.open_step(step)),
        true => drop(draft.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap()),
    }
    world.ok(draft.finish()).await;
}

pub(super) async fn load(world: &World, run_key: RunKey, steps: LoadSteps) -> Loaded {
    let mut loaded = world.store.load_with(vec![run_key], steps).await.expect("load answers");
    assert_eq!(loaded.len(), 1, "run {run_key} exists");
    loaded.remove(0)
}

pub(super) fn keys(loaded: &Loaded) -> String {
    let keys: Vec<_> = loaded.steps.iter().map(|step| step.step_key.as_str()).collect();
    keys.join(" ")
}

/// After each step, a load gives the rows that it selects, in order, with the whole run and its messages.
pub async fn selects_steps(world: World) {
    let (run, hold) = world.create_held("run").await;
    let run_key = run.run_key;
    world.ok(world.send_commit(world.message(run_key, "m"))).await;
    // The step that is written, then what a load of open steps, with the last settled one, and from the
    // last settled one of kind `progress` on, gives.
    let table = [
        ("m", "note completed", "", "m", "m"),
        ("b", "note completed", "", "b", "m b"),
        ("z", "progress completed", "", "z", "z"),
        ("d", "note completed", "", "d", "z d"),
        ("w", "progress waiting", "w", "d w", "z d w"),
        ("a", "note skipped", "w", "a w", "z d a w"),
        ("c", "note cancelled", "w", "w c", "z d a w c"),
        ("p", "note pending", "w p", "w c p", "z d a w c p"),
        ("r", "note running", "w p r", "w c p r", "z d a w c p r"),
        ("q", "progress errored", "w p r", "w p q r", "w p q r"),
        // A settled step keeps its position.
        ("w", "progress completed", "p r", "p q r", "p q r"),
        ("p", "note errored", "r", "q r", "p q r"),
    ];
    for (key, what, open, last, from) in table {
        put(&world, run_key, hold, key, what).await;
        let all = world.load(run_key).await;
        assert_eq!((all.messages.len(), all.run.accepted), (1, 1));
        assert_eq!(load(&world, run_key, LoadSteps::All).await, all);
        for (select, expect) in [
            (LoadSteps::Open, open),
            (LoadSteps::OpenAndLastSettled, last),
            (LoadSteps::OpenAndFromLast(PROGRESS), from),
        ] {
            let at = format!("{select:?} after {key}");
            let loaded = load(&world, run_key, select).await;
            assert_eq!(keys(&loaded), expect, "{at}");
            assert_eq!((&loaded.run, &loaded.messages), (&all.run, &all.messages), "{at}");
            for step in &loaded.steps {
                assert!(all.steps.contains(step), "{at}: {step:?}");
            }
        }
        // Without a step of the kind, everything may be needed.
        let unknown = LoadSteps::OpenAndFromLast(StepKind::from_static("unknown"));
        assert_eq!(load(&world, run_key, unknown).await, all);
    }
}

/// The selection is made in each run, also of runs without steps and with a long ledger, and the runs keep
/// the order of the request.
pub async fn selects_steps_of_many_runs(world: World) {
    let mut keys_of = Vec::new();
    for n in 0..4_usize {
        let (run, hold) = world.create_held(&format!("r{n}")).await;
        for i in 0..n * 30 {
            let what = ["progress completed", "note completed", "note waiting"][i % 3];
            put(&world, run.run_key, hold, &format!("{i:02}"), what).await;
        }
        keys_of.push(run.run_key);
    }
    keys_of.reverse();
    let with_gap = [keys_of.clone(), vec![RunKey(world.key())], vec![keys_of[0]]].concat();
    for select in [
        LoadSteps::All,
        LoadSteps::Open,
        LoadSteps::OpenAndLastSettled,
        LoadSteps::OpenAndFromLast(PROGRESS),
    ] {
        let mut expect = world.store.load(keys_of.clone()).await.unwrap();
        expect.push(expect[0].clone());
        expect.iter_mut().for_each(|loaded| select.retain(&mut loaded.steps));
        let loaded = world.store.load_with(with_gap.clone(), select.clone()).await.unwrap();
        assert_eq!(loaded, expect, "{select:?}");
    }
}
