//! Everything that a store would tell anybody, to be compared.

use std::collections::BTreeSet;
use std::fmt::Debug;

use bytes::Bytes;
use windlass_kernel::{
    BodyKey, BodyOwner, BodyRef, BreakerRow, Collection, DeadLetter, Event, Health, HeldItem,
    LimitState, Loaded, LogLine, Message, Namespace, NamespaceStats, Query, Record, RecordKey,
    RecordVersion, RunCount, RunKey, Store, Task, TaskStat, TasksQuery, Worker,
};

/// The rows of a store.
pub(super) struct Dump {
    loaded: Vec<Loaded>,
    events: Vec<Event>,
    messages: Vec<Message>,
    logs: Vec<LogLine>,
    tasks: Vec<Task>,
    letters: Vec<DeadLetter>,
    counts: Vec<RunCount>,
    limits: Vec<LimitState>,
    collections: Vec<Collection>,
    breakers: Vec<BreakerRow>,
    workers: Vec<Worker>,
    held: Vec<HeldItem>,
    namespace_stats: Vec<NamespaceStats>,
    stats: Vec<TaskStat>,
    records: Vec<Record>,
    versions: Vec<RecordVersion>,
    by_term: Vec<Record>,
    bodies: Vec<(BodyRef, Option<Bytes>)>,
    health: Health,
}

impl Dump {
    pub(super) async fn of(store: &dyn Store) -> Self {
        let keys = every_run(store).await;
        let loaded = store.load(keys.clone()).await.unwrap();
        let (mut events, mut messages, mut logs) = (Vec::new(), Vec::new(), Vec::new());
        let mut bodies = Vec::new();
        for run_key in keys {
            bodies.extend(bodies_of(store, BodyOwner::Run(run_key)).await);
            let query = Query::Events { run_key, from: 0, limit: 1_000 };
            events.extend(store.list(query).await.unwrap().events().unwrap());
            let query = Query::Messages { run_key, after: 0, limit: 1_000 };
            messages.extend(store.list(query).await.unwrap().messages().unwrap());
            let query =
                Query::Logs { run_key, level_min: None, category: None, after: None, limit: 1_000 };
            logs.extend(store.list(query).await.unwrap().logs().unwrap());
        }
        let (mut tasks, mut letters, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        let mut collections = Vec::new();
        let mut counts = Vec::new();
        let mut breakers = Vec::new();
        let (mut namespace_stats, mut stats) = (Vec::new(), Vec::new());
        for namespace in ["default", "other"].map(|name| Namespace::new(name).unwrap()) {
            tasks.extend(tasks_of(store, &namespace).await);
            namespace_stats.push(store.namespace_stats(namespace.clone()).await.unwrap());
            stats.extend(store.task_stats(namespace.clone()).await.unwrap());
            let query = Query::DeadLetters {
                namespace: namespace.clone(),
                queue: None,
                after: None,
                limit: 1_000,
            };
            letters.extend(store.list(query).await.unwrap().dead_letters().unwrap());
            let query = Query::LabelCounts {
                namespace: namespace.clone(),
                label: ("a".to_owned(), "x".to_owned()),
                limit: 1_000,
            };
            counts.extend(store.list(query).await.unwrap().counts().unwrap());
            let query = Query::Breakers { namespace: namespace.clone(), after: None, limit: 1_000 };
            breakers.extend(store.list(query).await.unwrap().breakers().unwrap());
            let query =
                Query::Collections { namespace: namespace.clone(), after: None, limit: 1_000 };
            collections.extend(store.list(query).await.unwrap().collections().unwrap());
            let query = Query::Limits { namespace, after: None, limit: 1_000 };
            limits.extend(store.list(query).await.unwrap().limits().unwrap());
        }
        let query = Query::Workers { after: None, limit: 1_000 };
        let workers = store.list(query).await.unwrap().workers().unwrap();
        let holders = loaded.iter().filter_map(|loaded| loaded.run.turn.worker);
        let holders = holders.chain(tasks.iter().filter_map(|task| task.worker));
        let mut held = Vec::new();
        for worker in holders.collect::<BTreeSet<_>>() {
            held.extend(store.held(worker).await.unwrap());
        }
        let health = store.health().await.unwrap();
        let query = Query::AllRecords { after: None, limit: 1_000 };
        let records = store.list(query).await.unwrap().records().unwrap();
        let (mut versions, mut by_term) = (Vec::new(), Vec::new());
        for record in &records {
            let RecordKey { namespace, collection, .. } = record.key.clone();
            bodies.extend(bodies_of(store, BodyOwner::Record(record.key.clone())).await);
            let term = Some(("t".into(), record.key.id.as_str().into()));
            let query = Query::Records { namespace, collection, term, after: None, limit: 1_000 };
            by_term.extend(store.list(query).await.unwrap().records().unwrap());
            let query =
                Query::RecordVersions { key: record.key.clone(), before: None, limit: 1_000 };
            versions.extend(store.list(query).await.unwrap().record_versions().unwrap());
        }
        Self {
            loaded,
            events,
            messages,
            logs,
            tasks,
            letters,
            counts,
            limits,
            collections,
            breakers,
            workers,
            held,
            namespace_stats,
            stats,
            records,
            versions,
            by_term,
            bodies,
            health,
        }
    }

    pub(super) fn assert_same(&self, found: &Dump, place: &str) {
        same("loaded runs", &self.loaded, &found.loaded, place);
        same("events", &self.events, &found.events, place);
        same("messages", &self.messages, &found.messages, place);
        same("log lines", &self.logs, &found.logs, place);
        same("tasks", &self.tasks, &found.tasks, place);
        same("dead letters", &self.letters, &found.letters, place);
        same("counts by label", &self.counts, &found.counts, place);
        same("limits", &self.limits, &found.limits, place);
        same("collections", &self.collections, &found.collections, place);
        same("breakers", &self.breakers, &found.breakers, place);
        same("workers", &self.workers, &found.workers, place);
        same("holds", &self.held, &found.held, place);
        same("a namespace_stats", &self.namespace_stats, &found.namespace_stats, place);
        same("task stats", &self.stats, &found.stats, place);
        same("records", &self.records, &found.records, place);
        same("kept versions", &self.versions, &found.versions, place);
        same("large bodies", &self.bodies, &found.bodies, place);
        same("records by term", &self.by_term, &found.by_term, place);
        assert_eq!(self.health, found.health, "health differs: {place}");
    }
}

fn same<T: Debug + PartialEq>(what: &str, expect: &[T], found: &[T], place: &str) {
    for (expect, found) in expect.iter().zip(found) {
        assert_eq!(found, expect, "{what} differ: {place}");
    }
    assert_eq!(found.len(), expect.len(), "the number of {what} differs: {place}");
}

async fn every_run(store: &dyn Store) -> Vec<RunKey> {
    let mut keys: Vec<RunKey> = Vec::new();
    loop {
        let after = keys.last().copied();
        let page = store.list(Query::RunKeys { after, limit: 100 }).await.unwrap();
        let page = page.run_keys().unwrap();
        if page.is_empty() {
            return keys;
        }
        keys.extend(page);
    }
}

async fn bodies_of(store: &dyn Store, owner: BodyOwner) -> Vec<(BodyRef, Option<Bytes>)> {
    let query = Query::Bodies { owner: owner.clone(), after: None, limit: 1_000 };
    let mut found = Vec::new();
    for body in store.list(query).await.unwrap().bodies().unwrap() {
        let key = BodyKey { owner: owner.clone(), digest: body.digest };
        found.push((body, store.bodies(vec![key]).await.unwrap().remove(0)));
    }
    found
}

async fn tasks_of(store: &dyn Store, namespace: &Namespace) -> Vec<Task> {
    let query = TasksQuery::all(namespace.clone(), 1_000);
    store.list(Query::Tasks(query)).await.unwrap().tasks().unwrap()
}
