//! Every statement can be prepared, and no listing scans a whole table that grows.

use windlass_kernel::{OnExisting, Turn};
use windlass_testkit::world::World;

use crate::support::{TestStore, connect};

#[tokio::test(flavor = "multi_thread")]
async fn all_statements_can_be_prepared() {
    let test = TestStore::open().await;
    let client = connect().await;
    for (name, sql) in test.store.statements_for_tests() {
        if let Err(error) = client.prepare(&sql).await {
            panic!("cannot prepare {name}: {error}\n{sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_listing_scans_a_table() {
    let test = TestStore::open().await;
    let (store, schema) = (test.store.clone(), test.schema.name.clone());
    let world = World::new(Box::new(test)).await;
    fill(&world, &schema).await;
    let client = connect().await;
    // Without the planner settings of the store, as in an operator's session.
    client.batch_execute("SET plan_cache_mode = force_generic_plan").await.unwrap();
    for (n, (name, sql)) in store.statements_for_tests().into_iter().enumerate() {
        let reads = ["list ", "load ", "find", "held", "queues", "namespace_stats"];
        if !reads.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let prepared = client.prepare(&sql).await.unwrap();
        let nulls = vec!["NULL"; prepared.params().len()].join(", ");
        let nulls = if nulls.is_empty() { String::new() } else { format!("({nulls})") };
        // The client names its own statements `s` and a number.
        client.batch_execute(&format!("PREPARE plan{n} AS {sql}")).await.unwrap();
        let plan = client.query(&format!("EXPLAIN EXECUTE plan{n} {nulls}"), &[]).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        // The monthly partitions are empty here, so scanning them is allowed.
        let tables = [
            "runs",
            "steps_default",
            "events_default",
            "messages",
            "tasks",
            "logs",
            "labels",
            "dead_letters",
        ];
        // A count that stops at its bound may scan.
        let counted = |table: &&str| name != "queues" || *table != "dead_letters";
        for table in tables.into_iter().filter(counted) {
            let scan = format!("Seq Scan on {table} ");
            assert!(!plan.contains(&scan), "{name} scans {table}:\n{plan}");
        }
    }
}

// Inserts a few thousand rows into every table, bypassing the store: only the planner uses them.
async fn fill(world: &World, schema: &str) {
    let run = world.create(world.new_run("a", Turn::ready())).await;
    world.create_commit(world.new_run("b", Turn::ready()), OnExisting::Refuse);
    let key = run.run_key;
    let new = "('0190' || lpad(to_hex(i), 28, '0'))::uuid";
    let copies = format!(
        "INSERT INTO {schema}.runs SELECT (jsonb_populate_record(r, jsonb_build_object('run_key', \
             {new}, 'id', 'copy-' || i, 'root', {new}, 'namespace', 'n' || i % 7, 'turn_ready', \
             i % 9 = 0, 'turn_worker', CASE WHEN i % 11 = 1 THEN {new} END, 'turn_due_at', \
             CASE WHEN i % 13 = 0 THEN i END))).* \
             FROM {schema}.runs r, generate_series(1, 5000) i WHERE r.run_key = '{key}'; \
         INSERT INTO {schema}.events SELECT {new}, 0, {new}, 'a.b', 1, '', '', 0, '' \
             FROM generate_series(1, 5000) i; \
         INSERT INTO {schema}.steps (run_key, step_key, name, kind, status, position, attempt, \
             created_at, updated_at) SELECT {new}, 's', 's', 'do', 'pending', 0, 0, 0, 0 \
             FROM generate_series(1, 5000) i; \
         INSERT INTO {schema}.messages (run_key, seq, message_id, kind, name, sent_at) \
             SELECT {new}, 1, 'm', 'event', 'e', 0 FROM generate_series(1, 5000) i; \
         INSERT INTO {schema}.tasks (task_id, namespace, run_key, kind, queue, name, priority, \
             ready, claim_no, attempt, reclaims, created_at, worker) SELECT {new}, 'n' || i % 7, \
             {new}, 'activity', 'q', 't' || i % 5, 0, i % 9 = 0, 0, 0, 0, 0, \
             CASE WHEN i % 11 = 1 THEN {new} END FROM generate_series(1, 5000) i; \
         INSERT INTO {schema}.logs (run_key, log_id, level, category, message, replay, created_at) \
             SELECT {new}, {new}, 'info', 'c', 'm', false, 0 FROM generate_series(1, 5000) i; \
         INSERT INTO {schema}.labels SELECT 'n', 'k' || i % 10, 'v' || i, {new} \
             FROM generate_series(1, 5000) i; \
         INSERT INTO {schema}.dead_letters (task_id, namespace, kind, queue, name, attempt, reason, \
             dead_at, requeues) SELECT {new}, 'n' || i % 7, 'a', 'q', 't', 0, 'r', 0, 0 \
             FROM generate_series(1, 5000) i; \
         ANALYZE {schema}.runs, {schema}.events, {schema}.steps, {schema}.messages, \
             {schema}.tasks, {schema}.logs, {schema}.labels, {schema}.dead_letters"
    );
    connect().await.batch_execute(&copies).await.expect("cannot fill the tables");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_does_not_read_the_rows_behind_a_full_limit() {
    let test = TestStore::open().await;
    let schema = test.schema.name.clone();
    let world = World::new(Box::new(test)).await;
    world.enqueue(vec![world.task(None)]).await;
    let client = connect().await;
    client
        .batch_execute(&format!(
            "INSERT INTO {schema}.limits VALUES ('default', 'full', 0); \
             INSERT INTO {schema}.tasks SELECT (jsonb_populate_record(t, jsonb_build_object( \
                 'task_id', ('0190' || lpad(to_hex(i), 28, '0'))::uuid, 'limit_key', 'full', \
                 'priority', 5))).* FROM {schema}.tasks t, generate_series(1, 20000) i; \
             ANALYZE {schema}.tasks"
        ))
        .await
        .unwrap();
    for oldest in [false, true] {
        client.batch_execute("BEGIN").await.unwrap();
        let claim = format!(
            "SELECT task_id FROM {schema}.claim_tasks('{}', '{{q}}', '{{t}}', 10, {oldest}, NULL)",
            world.worker().0
        );
        assert_eq!(client.query(&claim, &[]).await.unwrap().len(), 1);
        let read = format!(
            "SELECT (coalesce(idx_tup_fetch, 0) + seq_tup_read)::int8 \
             FROM pg_stat_xact_user_tables WHERE schemaname = '{schema}' AND relname = 'tasks'"
        );
        let rows: i64 = client.query_one(&read, &[]).await.unwrap().get(0);
        client.batch_execute("ROLLBACK").await.unwrap();
        assert!(rows < 1_000, "a claim read {rows} rows");
    }
}
