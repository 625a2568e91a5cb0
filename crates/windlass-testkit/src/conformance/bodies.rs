//! Bodies and texts: byte for byte, within their limits.

use bytes::Bytes;
use serde_json::json;
use windlass_kernel::{
    Body, Commit, Draft, End, Limits, LogId, LogLevel, LogLine, OnExisting, Op, Query, Run,
    StepStatus, Turn,
};

use crate::events;
use crate::world::World;

const MIB: usize = 1024 * 1024;

fn odd() -> Vec<Body> {
    let all: Vec<u8> = (0..=255).collect();
    vec![
        Body::bytes(Bytes::new()),
        Body::bytes(vec![0]),
        Body::bytes(all),
        Body::json("\"a\\u0000b\""),
        Body::json(" { \"b\" : 1,\"a\":2 } "),
        Body::json("\"Größe 漢字 🦀 \u{202e}\""),
        Body::json("not even json"),
    ]
}

/// Every body comes back with the same bytes, in every table.
pub async fn come_back_byte_for_byte(world: World) {
    for (n, body) in odd().into_iter().enumerate() {
        let mut new = world.new_run(&format!("r{n}"), Turn::held_by(world.worker()));
        new.input = body.clone();
        let run = world.create(new).await;
        let hold = run.turn.hold().unwrap();
        assert_eq!(run.input, body);
        let mut message = world.message(run.run_key, "m");
        message.body = Some(body.clone());
        world.ok(world.send_commit(message)).await;
        let mut step = world.step(&run, "Schritt 漢字", StepStatus::Completed, None);
        (step.input, step.result, step.error) =
            (Some(body.clone()), Some(body.clone()), Some(body.clone()));
        let mut draft = world.draft(&run, hold);
        draft.step(events::STEP_COMPLETED, &json!({}), step.clone(), world.stamp()).unwrap();
        let mut task = world.task(Some(&run));
        (task.body, task.errors) = (Some(body.clone()), Some(body.clone()));
        draft.enqueue(task);
        let line = line(&world, &run, Some(body.clone()));
        draft.log(line.clone());
        draft.state(body.clone(), world.stamp());
        let end = End::Complete(body.clone());
        draft.end(events::WORKFLOW_COMPLETED, &json!({}), end, world.stamp()).unwrap();
        world.ok(draft.finish()).await;

        let loaded = world.load(run.run_key).await;
        assert_eq!(
            (loaded.run.output.as_ref(), loaded.run.state.as_ref()),
            (Some(&body), Some(&body))
        );
        assert_eq!(loaded.steps, [step]);
        assert_eq!(loaded.messages[0].body, Some(body.clone()));
        let task = world.claim_tasks(world.worker(), 1).await.remove(0);
        assert_eq!((task.body, task.errors), (Some(body.clone()), Some(body)));
        let query = Query::Logs {
            run_key: run.run_key,
            level_min: None,
            category: None,
            after: None,
            limit: 10,
        };
        assert_eq!(world.store.list(query).await.unwrap().logs().unwrap(), [line]);
    }
}

/// No body and an empty body are two things.
pub async fn empty_and_absent_differ(world: World) {
    for (id, body) in [("absent", None), ("empty", Some(Body::bytes("")))] {
        let (run, hold) = world.create_held(id).await;
        let mut draft = world.draft(&run, hold);
        let mut step = world.step(&run, "one", StepStatus::Completed, None);
        step.result = body.clone();
        draft.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap();
        let end = End::Terminated(body.clone());
        draft.end(events::WORKFLOW_TERMINATED, &json!({}), end, world.stamp()).unwrap();
        world.ok(draft.finish()).await;
        let loaded = world.load(run.run_key).await;
        assert_eq!(loaded.steps[0].result, body);
        assert_eq!((loaded.run.error, loaded.run.output), (body, None));
    }
}

/// A body as large as its limit is taken.
pub async fn maximal_ones_are_taken(world: World) {
    let body = Body::bytes(vec![7; MIB]);
    let mut new = world.new_run("big", Turn::held_by(world.worker()));
    new.input = body.clone();
    let run = world.create(new).await;
    let mut message = world.message(run.run_key, "m");
    message.body = Some(body.clone());
    world.ok(world.send_commit(message)).await;
    let mut draft = world.draft(&run, run.turn.hold().unwrap());
    let mut step = world.step(&run, &"k".repeat(256), StepStatus::Completed, None);
    step.result = Some(body.clone());
    draft.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap();
    let text = "x".repeat(Limits::DEFAULT.event_payload_bytes_max - "{\"t\":\"\"}".len());
    draft.event(events::TIMER_STARTED, &json!({ "t": text }), world.stamp()).unwrap();
    let end = End::Complete(body.clone());
    draft.end(events::WORKFLOW_COMPLETED, &json!({}), end, world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    let loaded = world.load(run.run_key).await;
    assert_eq!(loaded.run.output, Some(body.clone()));
    assert_eq!(
        (&loaded.steps[0].result, &loaded.messages[0].body),
        (&Some(body.clone()), &Some(body))
    );
}

/// One byte more is refused with an error that names size and limit, and nothing is written.
pub async fn one_byte_too_many_is_refused(world: World) {
    let body = Body::bytes(vec![7; MIB + 1]);
    let mut new = world.new_run("big", Turn::ready());
    new.input = body.clone();
    let create = world.create_commit(new, OnExisting::Refuse);
    let (run, hold) = world.create_held("run").await;
    let mut message = world.message(run.run_key, "m");
    message.body = Some(body.clone());
    let mut step = world.step(&run, "one", StepStatus::Completed, None);
    step.result = Some(body.clone());
    let mut put = world.draft(&run, hold);
    put.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap();
    let mut end = world.draft(&run, hold);
    let output = End::Complete(body.clone());
    end.end(events::WORKFLOW_COMPLETED, &json!({}), output, world.stamp()).unwrap();
    let mut log = world.draft(&run, hold);
    log.log(line(&world, &run, Some(body.clone())));
    let mut task = world.task(None);
    // A task holds its policy beside the input.
    let task_bytes_max = Limits::DEFAULT.task_bytes_max;
    task.body = Some(Body::bytes(vec![7; task_bytes_max + 1]));
    let enqueue = Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
    let commits = [
        (create, MIB),
        (world.send_commit(message), MIB),
        (put.finish(), MIB),
        (end.finish(), MIB),
        (log.finish(), MIB),
        (enqueue, task_bytes_max),
    ];
    for (commit, most) in commits {
        let error = world.commit(commit).await.unwrap_err();
        assert_eq!(error.code(), "INVALID_SIZE", "{error}");
        let text = error.to_string();
        assert!(text.contains(&(most + 1).to_string()), "{text}");
        assert!(text.contains(&most.to_string()), "{text}");
    }
    assert_eq!(world.run(run.run_key).await, run);
    let text = "x".repeat(Limits::DEFAULT.event_payload_bytes_max);
    let mut draft = world.draft(&run, hold);
    let error =
        draft.event(events::TIMER_STARTED, &json!({ "t": text }), world.stamp()).unwrap_err();
    assert!(error.to_string().contains("32768"), "{error}");
}

/// Texts have limits too, and NUL is only for bodies.
pub async fn text_limits_hold(world: World) {
    let (run, hold) = world.create_held("run").await;
    let check = async |line: LogLine, expect: &str| {
        let mut draft = world.draft(&run, hold);
        draft.log(line);
        let answer = world.commit(draft.finish()).await;
        let text = answer.map_or_else(|error| error.to_string(), |_| "ok".to_owned());
        assert!(text.contains(expect), "{text}");
    };
    let long = |chars| LogLine { message: "漢".repeat(chars).into(), ..line(&world, &run, None) };
    check(long(2_049), "2048").await;
    check(LogLine { message: "a\0b".into(), ..long(1) }, "NUL").await;
    check(LogLine { category: "c".repeat(65).into(), ..long(1) }, "64").await;
    for labels in [
        vec![("k\0".to_owned(), "v".to_owned())],
        vec![("k".to_owned(), "v".repeat(257))],
        (0..33).map(|n| (format!("k{n}"), String::new())).collect(),
    ] {
        let mut new = world.new_run("labelled", Turn::ready());
        new.labels = labels.into_iter().collect();
        let draft = Draft::create(new, OnExisting::Refuse, world.stamp()).unwrap();
        let error = world.commit(draft.finish()).await.unwrap_err();
        assert!(error.code().as_str().starts_with("INVALID_"), "{error}");
    }
    assert_eq!(world.run(run.run_key).await, run);
}

fn line(world: &World, run: &Run, data: Option<Body>) -> LogLine {
    LogLine {
        log_id: LogId(world.key()),
        run_key: run.run_key,
        step_key: None,
        attempt: None,
        level: LogLevel::Warn,
        category: "zahlung 漢".into(),
        message: "Größe 🦀\nzweite Zeile".into(),
        data,
        replay: true,
        created_at: run.created_at,
    }
}
