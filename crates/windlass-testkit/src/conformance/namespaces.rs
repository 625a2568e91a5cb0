//! Namespaces: nothing crosses.

use windlass_kernel::{Namespace, OnExisting, Query, RunsQuery, Task, TasksQuery, Turn};

use crate::world::World;

/// The same names in two namespaces are two things, in every listing and count.
pub async fn never_mix(world: World) {
    let names = ["default", "acme"].map(|name| Namespace::new(name).unwrap());
    let mut runs = Vec::new();
    for namespace in &names {
        let mut new = world.new_run("same", Turn::ready());
        new.namespace = namespace.clone();
        new.labels = [("k".to_owned(), "v".to_owned())].into();
        let commit = world.create_commit(new, OnExisting::Return);
        let answer = world.ok(commit).await;
        assert!(!answer.repeated, "the same id in another namespace is another run");
        runs.push(world.run(answer.run_key.unwrap()).await);
        world.enqueue(vec![Task { namespace: namespace.clone(), ..world.task(None) }]).await;
    }
    for (namespace, run) in names.iter().zip(&runs) {
        let found = world.store.find(namespace.clone(), run.workflow.clone(), run.id.clone()).await;
        assert_eq!(found.unwrap().unwrap().run_key, run.run_key);
        for label in [None, Some(("k".to_owned(), "v".to_owned()))] {
            let query = RunsQuery { label, ..RunsQuery::all(namespace.clone(), 10) };
            let listed = world.store.list(Query::Runs(query)).await.unwrap().runs().unwrap();
            assert_eq!(listed, std::slice::from_ref(run));
        }
        let query = TasksQuery::all(namespace.clone(), 10);
        let tasks = world.store.list(Query::Tasks(query)).await.unwrap().tasks().unwrap();
        assert!(tasks.len() == 1 && tasks[0].namespace == *namespace);
    }
    let counts = world.store.health().await.unwrap().runs;
    let counts: Vec<_> = counts.iter().map(|row| (row.namespace.as_str(), row.count)).collect();
    assert_eq!(counts, [("acme", 1), ("default", 1)]);
}
