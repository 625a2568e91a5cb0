//! Reads ledger events together with the position of their run in its tree.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::error::Error;
use crate::ids::{EventId, RunKey};
use crate::ledger::Event;
use crate::query::Query;
use crate::rows::Run;
use crate::store::Store;

/// An event and the position of its run in its tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The event.
    pub event: Event,
    /// The root run of the tree.
    pub root: RunKey,
    /// The parent of the run.
    pub parent: Option<RunKey>,
    /// The fork branch of the parent that the run executes.
    pub fork: Option<Arc<str>>,
}

/// Loads one event by its id.
pub async fn load_event(
    store: &dyn Store,
    event_id: EventId,
) -> Result<Option<EventRecord>, Error> {
    let event = store.list(Query::Event { event_id }).await?.events()?.pop();
    let Some(event) = event else { return Ok(None) };
    let run = store.load(vec![event.run_key]).await?.pop();
    Ok(run.map(|loaded| record(event, &loaded.run)))
}

/// Loads the whole ledger of a run, in order.
pub async fn load_events(store: &dyn Store, run_key: RunKey) -> Result<Vec<EventRecord>, Error> {
    let Some(loaded) = store.load(vec![run_key]).await?.pop() else { return Ok(Vec::new()) };
    let mut records: Vec<EventRecord> = Vec::new();
    loop {
        let from = records.last().map_or(0, |record| record.event.ordinal + 1);
        let page = store.list(Query::Events { run_key, from, limit: PAGE }).await?.events()?;
        let short = page.len() < PAGE as usize;
        records.extend(page.into_iter().map(|event| record(event, &loaded.run)));
        if short {
            return Ok(records);
        }
    }
}

/// Loads the ledgers of all runs of a tree, ordered by time and id. Within a run this can differ
/// from the exact order, so each record keeps its ordinal.
pub async fn load_root_events(store: &dyn Store, root: RunKey) -> Result<Vec<EventRecord>, Error> {
    let mut records: Vec<EventRecord> = Vec::new();
    let mut runs: BTreeMap<RunKey, Run> = BTreeMap::new();
    loop {
        let last = records.last().map(|record| &record.event);
        let after = last.map(|event| (event.created_at, event.event_id));
        let query = Query::RootEvents { root, after, limit: PAGE };
        let page = store.list(query).await?.events()?;
        let short = page.len() < PAGE as usize;
        for event in page {
            if let Entry::Vacant(entry) = runs.entry(event.run_key)
                && let Some(loaded) = store.load(vec![event.run_key]).await?.pop()
            {
                entry.insert(loaded.run);
            }
            if let Some(run) = runs.get(&event.run_key) {
                records.push(record(event, run));
            }
        }
        if short {
            return Ok(records);
        }
    }
}

const PAGE: u32 = 200;

fn record(event: Event, run: &Run) -> EventRecord {
    EventRecord { event, root: run.root, parent: run.parent, fork: run.fork.clone() }
}
