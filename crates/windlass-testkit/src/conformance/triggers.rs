//! Triggers: the database itself refuses changes that are never allowed.

use windlass_kernel::{Commit, Expect};

use super::records::put_op;
use crate::events;
use crate::world::World;

async fn refused(world: &World, sql: &str) {
    let answer = world.subject.raw_sql(sql.to_owned()).await;
    assert!(answer.is_err(), "the database took: {sql}");
}

async fn taken(world: &World, sql: &str) {
    let answer = world.subject.raw_sql(sql.to_owned()).await;
    answer.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Events are never changed, and deleted only after their run.
pub async fn keep_events_immutable(world: World) {
    let dialect = world.subject.dialect().expect("a SQL database");
    let (run, hold) = world.create_held("run").await;
    world.ok(world.complete_commit(&run, hold)).await;
    let key = dialect.key(run.run_key.0);
    refused(&world, &format!("UPDATE events SET event_type = 'x' WHERE run_key = {key}")).await;
    refused(&world, &format!("UPDATE events SET created_at = 1 WHERE run_key = {key}")).await;
    refused(&world, &format!("DELETE FROM events WHERE run_key = {key}")).await;
    assert_eq!(world.events(run.run_key).await.len(), 2);
    taken(&world, &format!("DELETE FROM runs WHERE run_key = {key}")).await;
    taken(&world, &format!("DELETE FROM events WHERE run_key = {key}")).await;
}

/// A run that has ended changes no more; one that has not is not deleted.
pub async fn keep_ended_runs_final(world: World) {
    let dialect = world.subject.dialect().expect("a SQL database");
    let (run, hold) = world.create_held("run").await;
    let key = dialect.key(run.run_key.0);
    refused(&world, &format!("DELETE FROM runs WHERE run_key = {key}")).await;
    world.ok(world.complete_commit(&run, hold)).await;
    let ended = world.run(run.run_key).await;
    for change in ["status = 'active'", "status = 'terminated'", "output = NULL", "accepted = 5"] {
        refused(&world, &format!("UPDATE runs SET {change} WHERE run_key = {key}")).await;
    }
    assert_eq!(world.run(run.run_key).await, ended);
    taken(&world, &format!("UPDATE runs SET retention_until = 5 WHERE run_key = {key}")).await;
}

/// A step that has its result changes no more.
pub async fn keep_settled_steps_final(world: World) {
    let dialect = world.subject.dialect().expect("a SQL database");
    let (run, hold) = world.create_held("run").await;
    world.ok(world.step_commit(&run, hold, "one", "1")).await;
    let key = dialect.key(run.run_key.0);
    for change in ["status = 'pending'", "result = NULL", "attempt = 9"] {
        refused(&world, &format!("UPDATE steps SET {change} WHERE run_key = {key}")).await;
    }
    refused(&world, &format!("DELETE FROM steps WHERE run_key = {key}")).await;
}

/// The identity of a run or a step never changes.
pub async fn keep_identities(world: World) {
    let dialect = world.subject.dialect().expect("a SQL database");
    let (run, hold) = world.create_held("run").await;
    let mut draft = world.draft(&run, hold);
    let open = windlass_kernel::StepStatus::Pending;
    draft.open_step(world.step(&run, "one", open, None));
    draft.event(events::TIMER_STARTED, &serde_json::json!({}), world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    let key = dialect.key(run.run_key.0);
    let changes =
        ["namespace = 'x'", "workflow = 'x'", "id = 'x'", "generation = 9", "input = NULL"];
    for change in changes {
        refused(&world, &format!("UPDATE runs SET {change} WHERE run_key = {key}")).await;
    }
    for change in ["name = 'x'", "kind = 'x'", "position = 77", "step_key = 'x'"] {
        refused(&world, &format!("UPDATE steps SET {change} WHERE run_key = {key}")).await;
    }
}

/// A kept version never changes, and is deleted only after its record.
pub async fn keep_versions_of_records_immutable(world: World) {
    let put = put_op(&world, "c", Expect::Absent, "1", true);
    world.ok(Commit::new(None, None, vec![put])).await;
    refused(&world, "UPDATE record_versions SET created_at = 1").await;
    refused(&world, "UPDATE record_versions SET digest = body").await;
    refused(&world, "DELETE FROM record_versions").await;
    taken(&world, "DELETE FROM records").await;
    taken(&world, "DELETE FROM record_versions").await;
}
