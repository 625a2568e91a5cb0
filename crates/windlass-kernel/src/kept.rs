//! Ledgers that stay when retention deletes the rest of their runs: how they are found and verified.
//!
//! The immutable fields of a run and the head of its ledger are kept in a record, because the hash chain
//! begins with these fields and ends at this head.

use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::error::Error;
use crate::ids::{Collection, Namespace, RecordId, RunKey};
use crate::ledger::{Event, Head, genesis_of, verify_events};
use crate::query::Query;
use crate::record::{Record, RecordKey};
use crate::rows::Run;
use crate::store::Store;
use crate::time::Timestamp;

/// The collection of the records of kept ledgers.
pub const LEDGERS: &str = "windlass.ledgers";
/// The term by which the ledgers of a tree are found.
pub const ROOT_TERM: &str = "root";

const PAGE: u32 = 200;

/// The record of a run that was deleted and whose ledger is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptLedger {
    /// The run.
    pub run_key: RunKey,
    /// Its namespace.
    pub namespace: String,
    /// Its workflow.
    pub workflow: String,
    /// Its model.
    pub model: String,
    /// Its id.
    pub id: String,
    /// Its generation.
    pub generation: u32,
    /// The encoding of its input.
    pub input_encoding: String,
    /// The digest of its input.
    pub input_hash: Sha256Digest,
    /// The root of its tree.
    pub root: RunKey,
    /// Its parent.
    pub parent: Option<RunKey>,
    /// The fork branch of the parent that it executed.
    pub fork: Option<String>,
    /// How it ended.
    pub status: String,
    /// The number of events.
    pub events: u64,
    /// The hash of the last event.
    pub hash: Sha256Digest,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

impl KeptLedger {
    /// Copies the data that is kept of a run that has ended.
    pub fn of(run: &Run) -> Self {
        Self {
            run_key: run.run_key,
            namespace: run.namespace.to_string(),
            workflow: run.workflow.to_string(),
            model: run.model.to_string(),
            id: run.id.to_string(),
            generation: run.generation,
            input_encoding: run.input.encoding.as_str().to_owned(),
            input_hash: run.input_hash,
            root: run.root,
            parent: run.parent,
            fork: run.fork.as_deref().map(str::to_owned),
            status: run.status.as_str().to_owned(),
            events: run.head.next_ordinal,
            hash: run.head.hash,
            created_at: run.created_at,
            ended_at: run.ended_at,
        }
    }

    /// The key of the record of a run's ledger.
    pub fn key(namespace: &Namespace, run_key: RunKey) -> RecordKey {
        RecordKey {
            namespace: namespace.clone(),
            collection: Collection::from_stored(LEDGERS),
            id: RecordId::from_stored(run_key.to_string()),
        }
    }

    /// Checks that the events are the whole ledger of this run. Returns the first ordinal that does not fit,
    /// and why.
    pub fn verify(&self, events: &[Event]) -> Result<(), (u64, String)> {
        let mut digits = itoa::Buffer::new();
        let genesis = genesis_of(&[
            self.run_key.as_bytes(),
            self.namespace.as_bytes(),
            self.workflow.as_bytes(),
            self.model.as_bytes(),
            self.id.as_bytes(),
            digits.format(self.generation).as_bytes(),
            self.input_encoding.as_bytes(),
            self.input_hash.as_bytes(),
            self.root.as_bytes(),
            self.parent.as_ref().map_or(&[][..], |key| &key.as_bytes()[..]),
            self.fork.as_deref().unwrap_or_default().as_bytes(),
        ]);
        let end = Head { next_ordinal: self.events, hash: self.hash };
        verify_events(genesis, events, end)
    }
}

/// A kept ledger with its events.
#[derive(Clone, Debug)]
pub struct KeptRun {
    /// The data that is kept of the run.
    pub ledger: KeptLedger,
    /// Its events, in order.
    pub events: Vec<Event>,
}

/// Loads the kept ledger of a run; none if its run exists or its ledger was not kept.
///
/// # Errors
///
/// The store does not answer, or the record cannot be read.
pub async fn load_kept(
    store: &dyn Store,
    namespace: &Namespace,
    run_key: RunKey,
) -> Result<Option<KeptRun>, Error> {
    let record = store.records(vec![KeptLedger::key(namespace, run_key)]).await?.pop().flatten();
    let Some(ledger) = record.and_then(|record| read(&record)).transpose()? else {
        return Ok(None);
    };
    with_events(store, ledger).await
}

/// Loads the kept ledgers of all runs of a tree, by run key: a run follows its parent.
///
/// # Errors
///
/// As [`load_kept`].
pub async fn load_kept_tree(
    store: &dyn Store,
    namespace: &Namespace,
    root: RunKey,
) -> Result<Vec<KeptRun>, Error> {
    let mut kept = Vec::new();
    let mut after = None;
    loop {
        let query = Query::Records {
            namespace: namespace.clone(),
            collection: Collection::from_stored(LEDGERS),
            term: Some((ROOT_TERM.into(), root.to_string().into())),
            after,
            limit: PAGE,
        };
        let page = store.list(query).await?.records()?;
        for record in &page {
            if let Some(ledger) = read(record).transpose()? {
                kept.extend(with_events(store, ledger).await?);
            }
        }
        let is_last = page.len() < PAGE as usize;
        after = page.into_iter().last().map(|record| record.key.id);
        if is_last {
            return Ok(kept);
        }
    }
}

/// Lists what is kept of deleted runs, in all namespaces, page by page. `after` is the last record of the
/// page before, of whatever collection; returns the next one, or none after the last page.
pub(crate) async fn kept_page(
    store: &dyn Store,
    after: Option<RecordKey>,
) -> Result<(Vec<KeptLedger>, Option<RecordKey>), Error> {
    let page = store.list(Query::AllRecords { after, limit: PAGE }).await?.records()?;
    let own = page.iter().filter(|record| record.key.collection.as_str() == LEDGERS);
    let kept = own.filter_map(read).collect::<Result<Vec<_>, Error>>()?;
    let is_last = page.len() < PAGE as usize;
    let next = page.into_iter().last().map(|record| record.key);
    Ok((kept, next.filter(|_| !is_last)))
}

fn read(record: &Record) -> Option<Result<KeptLedger, Error>> {
    record.body.as_ref().map(crate::body::Body::read)
}

/// The events of a kept ledger; none if the run still exists, because it was not deleted after all.
pub(crate) async fn with_events(
    store: &dyn Store,
    ledger: KeptLedger,
) -> Result<Option<KeptRun>, Error> {
    let run_key = ledger.run_key;
    if store.run_overview_by_key(run_key).await?.is_some() {
        return Ok(None);
    }
    let mut events: Vec<Event> = Vec::new();
    loop {
        let from = events.last().map_or(0, |event| event.ordinal + 1);
        let page = store.list(Query::Events { run_key, from, limit: PAGE }).await?.events()?;
        let is_last = page.len() < PAGE as usize;
        events.extend(page);
        if is_last {
            return Ok(Some(KeptRun { ledger, events }));
        }
    }
}
