//! Listings: in order, page by page, nothing twice and nothing left out.

use serde_json::json;
use windlass_kernel::{
    Body, LogId, LogLevel, LogLine, Namespace, Order, Query, QueueName, RouteName, Run, RunId,
    RunKey, RunStatus, RunsQuery, StepStatus, Task, TaskState, TasksQuery, Turn, Wake,
    WorkflowName,
};

use super::batches::idle_run;
use crate::events;
use crate::world::World;

async fn keys(world: &World, mut query: RunsQuery) -> Vec<RunKey> {
    let mut found = Vec::new();
    loop {
        let page = world.store.list(Query::Runs(query.clone())).await.unwrap().runs().unwrap();
        assert!(page.len() <= query.limit as usize);
        let short = page.len() < query.limit as usize;
        found.extend(page.iter().map(|run| run.run_key));
        query.after = page.last().map(|run| run.run_key);
        if short {
            return found;
        }
    }
}

fn all(limit: u32) -> RunsQuery {
    RunsQuery::all(Namespace::default_namespace(), limit)
}

/// Runs list newest first or oldest first, whole rows, in pages of any size.
pub async fn runs_page_in_both_directions(world: World) {
    let mut runs: Vec<Run> = Vec::new();
    for n in 0..7 {
        let mut new = world.new_run(&format!("r{n}"), Turn::ready());
        new.labels = [("n".to_owned(), n.to_string())].into();
        runs.push(world.create(new).await);
    }
    let page = world.store.list(Query::Runs(RunsQuery { order: Order::Ascending, ..all(100) }));
    assert_eq!(page.await.unwrap().runs().unwrap(), runs);
    let ascending: Vec<_> = runs.iter().map(|run| run.run_key).collect();
    let descending: Vec<_> = ascending.iter().rev().copied().collect();
    for limit in [1, 3, 7, 100] {
        assert_eq!(keys(&world, all(limit)).await, descending);
        let query = RunsQuery { order: Order::Ascending, ..all(limit) };
        assert_eq!(keys(&world, query).await, ascending);
    }
}

/// Filters narrow a listing, alone and together, over all pages.
pub async fn runs_by_workflow_status_and_label(world: World) {
    let mut made = Vec::new();
    for n in 0..24_usize {
        let mut new = world.new_run(&format!("r{n}"), Turn::held_by(world.worker()));
        new.workflow = WorkflowName::new(["w", "v"][n % 2]).unwrap();
        new.labels = [("third".to_owned(), (n % 3).to_string())].into();
        let run = world.create(new).await;
        let hold = run.turn.hold().unwrap();
        match n % 4 {
            0 => drop(world.ok(world.complete_commit(&run, hold)).await),
            1 => {
                let mut draft = world.draft(&run, hold);
                draft.event(events::SLEEP_STARTED, &json!({}), world.stamp()).unwrap();
                draft.status(RunStatus::Waiting).release(Wake::OnMessage, 0);
                world.ok(draft.finish()).await;
            }
            _ => {}
        }
        made.push(world.run(run.run_key).await);
    }
    made.reverse();
    let workflows = [None, Some("w"), Some("v"), Some("nobody")];
    let statuses =
        [None, Some(RunStatus::Active), Some(RunStatus::Waiting), Some(RunStatus::Complete)];
    let labels = [None, Some(("third", "1")), Some(("third", "9")), Some(("other", "1"))];
    for workflow in workflows {
        for status in statuses {
            for label in labels {
                let expect = made.iter().filter(|run| {
                    workflow.is_none_or(|workflow| run.workflow.as_str() == workflow)
                        && status.is_none_or(|status| run.status == status)
                        && label.is_none_or(|(key, value)| {
                            run.labels.get(key).is_some_and(|found| found == value)
                        })
                });
                let expect: Vec<_> = expect.map(|run| run.run_key).collect();
                let query = RunsQuery {
                    workflow: workflow.map(|name| WorkflowName::new(name).unwrap()),
                    status,
                    label: label.map(|(key, value)| (key.to_owned(), value.to_owned())),
                    ..all(4)
                };
                assert_eq!(keys(&world, query.clone()).await, expect, "{query:?}");
                let query = RunsQuery { order: Order::Ascending, ..query };
                let mut ascending = keys(&world, query).await;
                ascending.reverse();
                assert_eq!(ascending, expect);
            }
        }
    }
}

/// A listing can be bounded by time.
pub async fn runs_by_time(world: World) {
    let at = |ms: i64| windlass_kernel::Timestamp::from_millis(1_700_000_000_000 + ms);
    let mut made = Vec::new();
    for ms in 0..5_i64 {
        let mut new = world.new_run(&format!("r{ms}"), Turn::ready());
        let millis = at(ms).as_millis() as u64;
        new.run_key = RunKey(crate::world::uuid7(millis, ms as u64));
        made.push(world.create(new).await.run_key);
    }
    let between = |from: Option<i64>, before: Option<i64>| RunsQuery {
        created_from: from.map(at),
        created_before: before.map(at),
        order: Order::Ascending,
        ..all(2)
    };
    assert_eq!(keys(&world, between(Some(1), Some(4))).await, made[1..4]);
    assert_eq!(keys(&world, between(None, Some(2))).await, made[..2]);
    assert_eq!(keys(&world, between(Some(3), None)).await, made[3..]);
    assert_eq!(keys(&world, between(Some(9), None)).await, []);
}

/// Steps list in the order in which they were first recorded.
pub async fn steps_in_order_of_record(world: World) {
    let (mut run, hold) = world.create_held("run").await;
    let names = ["z", "a", "m", "Größe", "b"];
    for name in names {
        let commit = world.step_commit(&run, hold, name, "1");
        commit.run_change().unwrap().apply_to(&mut run);
        world.ok(commit).await;
    }
    // Two steps of one commit share a position: the key decides.
    let mut draft = world.draft(&run, hold);
    for name in ["y", "x"] {
        draft.open_step(world.step(&run, name, StepStatus::Pending, None));
    }
    draft.event(events::TIMER_STARTED, &json!({}), world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let query = Query::Steps { run_key: run.run_key, after, limit: 2 };
        let page = world.store.list(query).await.unwrap().steps().unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.position, last.step_key.clone()));
        found.extend(page);
    }
    let keys: Vec<_> = found.iter().map(|step| step.step_key.as_str()).collect();
    assert_eq!(keys, ["z", "a", "m", "Größe", "b", "x", "y"]);
    assert_eq!(world.load(run.run_key).await.steps, found);
}

/// Messages, tasks, logs, workers and dead letters page by their keys.
pub async fn messages_tasks_logs_workers_and_letters(world: World) {
    let (run, hold) = world.create_held("run").await;
    let mut draft = world.draft(&run, hold);
    let mut lines = Vec::new();
    for (n, level) in LogLevel::ALL.iter().enumerate() {
        let line = LogLine {
            log_id: LogId(world.key()),
            run_key: run.run_key,
            step_key: None,
            attempt: None,
            level: *level,
            category: ["workflow", "system"][n % 2].into(),
            message: format!("line {n}").into(),
            data: (n == 1).then(|| Body::json("1")),
            replay: n == 2,
            created_at: run.created_at,
        };
        draft.log(line.clone());
        lines.push(line);
    }
    world.ok(draft.finish()).await;
    let logs = async |level_min, category: Option<&str>, after, limit| {
        let category = category.map(Into::into);
        let run_key = run.run_key;
        let query = Query::Logs { run_key, level_min, category, after, limit };
        world.store.list(query).await.unwrap().logs().unwrap()
    };
    assert_eq!(logs(None, None, None, 3).await, lines[..3]);
    assert_eq!(logs(None, None, Some(lines[2].log_id), 3).await, lines[3..]);
    assert_eq!(logs(Some(LogLevel::Warn), None, None, 9).await, lines[2..]);
    assert_eq!(logs(None, Some("system"), None, 1).await, lines[1..2]);
    assert_eq!(logs(Some(LogLevel::Warn), Some("system"), None, 9).await, lines[3..]);

    for n in 0..3 {
        world.ok(world.send_commit(world.message(run.run_key, &format!("m{n}")))).await;
    }
    let query = Query::Messages { run_key: run.run_key, after: 1, limit: 1 };
    let page = world.store.list(query).await.unwrap().messages().unwrap();
    assert_eq!(page.iter().map(|message| message.seq).collect::<Vec<_>>(), [2]);

    let workers = [world.worker(), world.worker(), world.worker()];
    for worker in workers {
        world.renew(worker).await;
    }
    let query = Query::Workers { after: Some(workers[0]), limit: 1 };
    let page = world.store.list(query).await.unwrap().workers().unwrap();
    assert_eq!(page[0].info, world.info(workers[1]));
}

/// Tasks list by namespace, run, queue, name and state.
pub async fn tasks_by_filter(world: World) {
    let (run, _) = world.create_held("run").await;
    let later = world.now().await.plus(std::time::Duration::from_secs(60));
    let mut tasks = Vec::new();
    for n in 0..24_usize {
        let mut task = world.task((n % 2 == 0).then_some(&run));
        task.queue = QueueName::new(["q", "p"][n / 2 % 2]).unwrap();
        task.name = RouteName::new(["t", "u"][n / 4 % 2]).unwrap();
        if n % 3 == 0 {
            (task.ready, task.due_at) = (false, Some(later));
        }
        tasks.push(task);
    }
    world.enqueue(tasks.clone()).await;
    world.claim_tasks(world.worker(), 2).await;
    let query = TasksQuery::all(Namespace::default_namespace(), 100);
    let stored = world.store.list(Query::Tasks(query.clone())).await.unwrap().tasks().unwrap();
    assert_eq!(stored.len(), tasks.len());
    for run_key in [None, Some(run.run_key)] {
        for (queue, name) in
            [(None, None), (Some("q"), None), (None, Some("u")), (Some("p"), Some("t"))]
        {
            for state in
                [None, Some(TaskState::Ready), Some(TaskState::Held), Some(TaskState::Scheduled)]
            {
                let is = |task: &&Task| {
                    let found = match (task.worker, task.ready) {
                        (Some(_), _) => TaskState::Held,
                        (None, true) => TaskState::Ready,
                        (None, false) => TaskState::Scheduled,
                    };
                    run_key.is_none_or(|run_key| task.run_key == Some(run_key))
                        && queue.is_none_or(|queue| task.queue.as_str() == queue)
                        && name.is_none_or(|name| task.name.as_str() == name)
                        && state.is_none_or(|state| state == found)
                };
                let expect: Vec<Task> = stored.iter().filter(is).cloned().collect();
                let mut query = TasksQuery {
                    run_key,
                    queue: queue.map(|name| QueueName::new(name).unwrap()),
                    name: name.map(|name| RouteName::new(name).unwrap()),
                    state,
                    limit: 5,
                    ..query.clone()
                };
                let mut found = Vec::new();
                loop {
                    let page = world.store.list(Query::Tasks(query.clone())).await.unwrap();
                    let page = page.tasks().unwrap();
                    let Some(last) = page.last() else { break };
                    query.after = Some(last.task_id);
                    found.extend(page);
                }
                assert_eq!(found, expect, "{query:?}");
            }
        }
    }
}

/// A look at a run by its name or its key gives the open steps and no others, also of a run with a long
/// ledger, and none once it has ended.
pub async fn a_look_gives_the_open_steps(world: World) {
    let look = async |run: &Run| {
        let name = (run.namespace.clone(), run.workflow.clone(), run.id.clone());
        world.store.run_overview(name.0, name.1, name.2).await.unwrap()
    };
    let (run, hold) = world.create_held("overview-at").await;
    let mut open = Vec::new();
    for n in 0..100 {
        let now = world.run(run.run_key).await;
        let statuses = [StepStatus::Running, StepStatus::Waiting];
        match statuses.get(n % 40) {
            Some(status) => {
                let step = world.step(&now, &format!("s{n}"), *status, None);
                let mut draft = world.draft(&now, hold);
                draft.step(events::STEP_RETRIED, &json!({}), step.clone(), world.stamp()).unwrap();
                world.ok(draft.finish()).await;
                open.push(step);
            }
            None => {
                world.ok(world.step_commit(&now, hold, &format!("s{n}"), "1")).await;
            }
        }
        if n % 33 == 0 {
            let overview = look(&run).await.unwrap();
            assert_eq!(overview.run, world.run(run.run_key).await);
            assert_eq!(overview.open_steps, open, "after {n} steps");
            assert_eq!(world.store.run_overview_by_key(run.run_key).await.unwrap(), Some(overview));
        }
    }
    let now = world.run(run.run_key).await;
    world.ok(world.complete_commit(&now, hold)).await;
    let overview = look(&run).await.unwrap();
    assert_eq!(world.store.run_overview_by_key(run.run_key).await.unwrap(), Some(overview.clone()));
    assert_eq!((overview.run.status, overview.open_steps), (RunStatus::Complete, Vec::new()));
    let nobody = RunKey(uuid::Uuid::nil());
    assert_eq!(world.store.run_overview_by_key(nobody).await.unwrap(), None);
    assert_eq!(look(&Run { id: RunId::new("nobody").unwrap(), ..run }).await, None);
}

/// The generations of a run list newest first; the runs of a tree by key.
pub async fn generations_and_trees(world: World) {
    let mut keys = Vec::new();
    for generation in 0..4 {
        let mut new = world.new_run("again", Turn::held_by(world.worker()));
        new.generation = generation;
        keys.push(world.create(new).await.run_key);
    }
    let list = async |before, limit| {
        let new = world.new_run("again", Turn::ready());
        let (namespace, workflow, id) = (new.namespace, new.workflow, new.id);
        let query = Query::Generations { namespace, workflow, id, before, limit };
        let runs = world.store.list(query).await.unwrap().runs().unwrap();
        runs.iter().map(|run| run.run_key).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 10).await, [keys[3], keys[2], keys[1], keys[0]]);
    let new = world.new_run("again", Turn::ready());
    let overview = world.store.run_overview(new.namespace, new.workflow, new.id).await.unwrap();
    assert_eq!(overview.unwrap().run.run_key, keys[3], "a look is at the newest generation");
    assert_eq!(list(Some(3), 2).await, [keys[2], keys[1]]);

    let root = idle_run(&world, "root", Wake::OnMessage).await;
    let mut tree = vec![root.run_key];
    for n in 0..3 {
        let mut child = world.new_run(&format!("c{n}"), Turn::ready());
        child.parent = Some((root.run_key, *tree.last().unwrap()));
        tree.push(world.create(child).await.run_key);
    }
    let page = async |after, limit| {
        let query = Query::Tree { root: root.run_key, after, limit };
        let runs = world.store.list(query).await.unwrap().runs().unwrap();
        runs.iter().map(|run| run.run_key).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 2).await, tree[..2]);
    assert_eq!(page(Some(tree[1]), 10).await, tree[2..]);
}

/// A page of nothing, or of too much, is refused.
pub async fn page_sizes_are_checked(world: World) {
    for limit in [0, 1_001] {
        let error = world.store.list(Query::Workers { after: None, limit }).await.unwrap_err();
        assert_eq!(error.code(), "INVALID_PAGE_SIZE");
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
    }
}

/// Runs with a label are counted by workflow and status, each in its newest generation.
pub async fn counts_of_runs_with_a_label(world: World) {
    for n in 0..6_usize {
        let mut new = world.new_run(&format!("r{n}"), Turn::held_by(world.worker()));
        new.workflow = WorkflowName::new(["w", "v"][n % 2]).unwrap();
        new.labels = [("group".to_owned(), ["g", "h"][n / 5].to_owned())].into();
        let run = world.create(new.clone()).await;
        if n == 2 {
            world.ok(world.complete_commit(&run, run.turn.hold().unwrap())).await;
            let next = world.new_run("r2", Turn::ready());
            let (labels, workflow) = (new.labels, new.workflow);
            world.create(windlass_kernel::NewRun { generation: 1, labels, workflow, ..next }).await;
        }
        if n == 4 {
            world.ok(world.complete_commit(&run, run.turn.hold().unwrap())).await;
        }
    }
    let counts = |value: &str| Query::LabelCounts {
        namespace: Namespace::default_namespace(),
        label: ("group".to_owned(), value.to_owned()),
        limit: 100,
    };
    let found = world.store.list(counts("g")).await.unwrap().counts().unwrap();
    let found: Vec<_> =
        found.iter().map(|c| (c.workflow.as_str(), c.status.as_str(), c.count)).collect();
    assert_eq!(found, [("v", "active", 2), ("w", "active", 2), ("w", "complete", 1)]);
    assert_eq!(world.store.list(counts("h")).await.unwrap().counts().unwrap().len(), 1);
    assert_eq!(world.store.list(counts("none")).await.unwrap().counts().unwrap(), []);
}
