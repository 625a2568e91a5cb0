//! Verifies a run: recomputes its hash chain, the seals in its events, and its status.
//!
//! A hash chain shows that no event was changed. It cannot show that its end was cut off, or that a
//! whole run was deleted. To detect that, keep the heads outside the store as [`Anchor`]s.

mod records;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::bodies::{self, BodyKey, BodyOwner};
use crate::body::BodyRef;
use crate::digest::Sha256Digest;
use crate::draft::{labels_digest, text_digest};
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{Collection, QueueName, RecordId, RunKey};
use crate::kept::{kept_page, with_events};
use crate::ledger::run_events::{
    WORKFLOW_COMPLETED, WORKFLOW_ENQUEUED, WORKFLOW_FAILED, WORKFLOW_HALTED, WORKFLOW_PAUSED,
    WORKFLOW_RESUMED, WORKFLOW_TERMINATED,
};
use crate::ledger::{CausalRef, Event, EventType, Head, Seal, SealOf, genesis, seals_of};
use crate::ledger::{
    message_digest, messages_digest, record_digest, run_end_digest, state_digest, step_digest,
    verify_events,
};
use crate::query::Query;
use crate::record::{RecordKey, RecordVersion};
use crate::rows::{Message, Run, RunStatus, Step};
use crate::store::Store;

pub use self::records::RecordFlaw;

/// A head that is kept outside the store. As text: run key, next ordinal and hash, separated by
/// spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Anchor {
    /// The run.
    pub run_key: RunKey,
    /// The ordinal after the last anchored event.
    pub next_ordinal: u64,
    /// The hash of that event.
    pub hash: Sha256Digest,
}

/// The first problem of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The run.
    pub run_key: RunKey,
    /// The first wrong ordinal, or the ordinal of the event whose seal does not match. `None` if
    /// the run's rows could not be read, or if the problem is not in the ledger.
    pub ordinal: Option<u64>,
    /// The problem.
    pub what: String,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many runs were checked.
    pub runs: u64,
    /// How many ledgers of deleted runs were checked.
    pub kept_ledgers: u64,
    /// How many events all these ledgers have.
    pub events: u64,
    /// How many kept versions of records were checked.
    pub versions: u64,
    /// The problems, at most one for each run.
    pub flaws: Vec<Flaw>,
    /// The problems of kept versions, at most one for each record.
    pub record_flaws: Vec<RecordFlaw>,
    /// Why some runs could not be checked.
    pub unreadable: Vec<String>,
    /// The heads of all runs without a problem, to be kept outside the store.
    pub anchors: Vec<Anchor>,
}

impl Report {
    /// Whether no problem was found.
    pub fn is_clean(&self) -> bool {
        self.flaws.is_empty() && self.record_flaws.is_empty() && self.unreadable.is_empty()
    }
}

/// Verifies every run of a store, that each anchor is on the chain of its run, and the kept versions of all
/// records.
pub async fn verify_store(
    store: &dyn Store,
    anchors: &[Anchor],
    opens_step: OpensStep<'_>,
) -> Result<Report, Error> {
    let mut kept: BTreeMap<RunKey, Vec<Anchor>> = BTreeMap::new();
    for anchor in anchors {
        kept.entry(anchor.run_key).or_default().push(*anchor);
    }
    let mut report = Report::default();
    let mut after = None;
    loop {
        let page = match store.list(Query::RunKeys { after, limit: PAGE }).await {
            Ok(rows) => rows.run_keys()?,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                // The listing stopped here, so the remaining anchored runs may well exist.
                report.unreadable.push(format!("cannot list the runs: {error}"));
                return Ok(report);
            }
            Err(error) => return Err(error),
        };
        for run_key in &page {
            let anchors = kept.remove(run_key).unwrap_or_default();
            verify_into(store, *run_key, &anchors, opens_step, &mut report).await?;
        }
        after = page.last().copied();
        if page.len() < PAGE as usize {
            break;
        }
    }
    verify_kept(store, &mut kept, &mut report).await?;
    records::verify_records(store, &mut report).await?;
    for run_key in kept.into_keys() {
        let what = "the run has an anchor but does not exist".to_owned();
        report.flaws.push(Flaw { run_key, ordinal: None, what });
    }
    Ok(report)
}

// Verifies the ledgers that stay of deleted runs.
async fn verify_kept(
    store: &dyn Store,
    anchors: &mut BTreeMap<RunKey, Vec<Anchor>>,
    report: &mut Report,
) -> Result<(), Error> {
    let mut after = None;
    loop {
        let (page, next) = kept_page(store, after).await?;
        for ledger in page {
            let Some(kept) = with_events(store, ledger).await? else { continue };
            let run_key = kept.ledger.run_key;
            report.kept_ledgers += 1;
            report.events += kept.events.len() as u64;
            let fits = |anchor: &Anchor| {
                let place =
                    usize::try_from(anchor.next_ordinal).ok().and_then(|n| n.checked_sub(1));
                place.and_then(|place| kept.events.get(place)).map(|event| event.hash)
                    == Some(anchor.hash)
            };
            let own = anchors.remove(&run_key).unwrap_or_default();
            let flaw = match (kept.ledger.verify(&kept.events), own.iter().find(|a| !fits(a))) {
                (Err((ordinal, what)), _) => Some((Some(ordinal), what)),
                (Ok(()), Some(anchor)) => {
                    let what = "the kept ledger is not the one that was anchored".to_owned();
                    Some((anchor.next_ordinal.checked_sub(1), what))
                }
                (Ok(()), None) => None,
            };
            match flaw {
                Some((ordinal, what)) => report.flaws.push(Flaw { run_key, ordinal, what }),
                None => {
                    let (next_ordinal, hash) = (kept.ledger.events, kept.ledger.hash);
                    report.anchors.push(Anchor { run_key, next_ordinal, hash });
                }
            }
        }
        after = next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Verifies one run of a store.
pub async fn verify_one(
    store: &dyn Store,
    run_key: RunKey,
    anchors: &[Anchor],
    opens_step: OpensStep<'_>,
) -> Result<Report, Error> {
    let mut report = Report::default();
    verify_into(store, run_key, anchors, opens_step, &mut report).await?;
    Ok(report)
}

const PAGE: u32 = 200;

async fn verify_into(
    store: &dyn Store,
    run_key: RunKey,
    anchors: &[Anchor],
    opens_step: OpensStep<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    report.runs += 1;
    let whole = match read_whole(store, run_key).await {
        Ok(whole) => whole,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            report.flaws.push(Flaw { run_key, ordinal: None, what: error.to_string() });
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let Some(whole) = whole else {
        let what = "the run is listed but cannot be loaded".to_owned();
        report.flaws.push(Flaw { run_key, ordinal: None, what });
        return Ok(());
    };
    report.events += whole.events.len() as u64;
    let flaw = match whole.verify(anchors, opens_step) {
        Ok(()) => match whole.verify_versions(store).await? {
            None => whole.verify_bodies(store).await?,
            flaw => flaw,
        },
        Err(flaw) => Some(flaw),
    };
    match flaw {
        None => {
            let Head { next_ordinal, hash } = whole.run.head;
            report.anchors.push(Anchor { run_key, next_ordinal, hash });
        }
        Some(flaw) => report.flaws.push(flaw),
    }
    Ok(())
}

/// Whether an event may leave the step open that it seals, so that the row of the step may be written again
/// without an event. All other events settle the step that they seal. The models know their events; of a
/// model that the caller does not know, every event may.
pub type OpensStep<'a> = &'a (dyn Fn(&Run, &EventType) -> bool + Send + Sync);

/// The last seal of a step.
struct LastSeal {
    ordinal: u64,
    /// Whether the event settled the step.
    settles: bool,
    seal: Seal,
}

/// A run and all rows that its ledger covers.
#[derive(Clone, Debug)]
pub struct WholeRun {
    /// The run.
    pub run: Run,
    /// All its steps.
    pub steps: Vec<Step>,
    /// All its messages, including consumed ones.
    pub messages: Vec<Message>,
    /// Its ledger.
    pub events: Vec<Event>,
}

async fn read_whole(store: &dyn Store, run_key: RunKey) -> Result<Option<WholeRun>, Error> {
    let Some(loaded) = store.load(vec![run_key]).await?.pop() else { return Ok(None) };
    let mut events: Vec<Event> = Vec::new();
    loop {
        let from = events.last().map_or(0, |event| event.ordinal + 1);
        let page = store.list(Query::Events { run_key, from, limit: PAGE }).await?.events()?;
        let short = page.len() < PAGE as usize;
        events.extend(page);
        if short {
            break;
        }
    }
    let mut messages: Vec<Message> = Vec::new();
    loop {
        let after = messages.last().map_or(0, |message| message.seq);
        let page = store.list(Query::Messages { run_key, after, limit: PAGE }).await?.messages()?;
        let short = page.len() < PAGE as usize;
        messages.extend(page);
        if short {
            break;
        }
    }
    // Rows that were added during this read are left to the next verification.
    events.retain(|event| event.ordinal < loaded.run.head.next_ordinal);
    messages.retain(|message| message.seq <= loaded.run.accepted);
    bodies::fill(store, bodies::of_messages(&mut messages)).await?;
    Ok(Some(WholeRun { run: loaded.run, steps: loaded.steps, messages, events }))
}

async fn read_version(store: &dyn Store, query: Query) -> Result<Option<RecordVersion>, Error> {
    let mut versions = store.list(query).await?.record_versions()?;
    bodies::fill(store, bodies::of_versions(&mut versions)).await?;
    Ok(versions.pop())
}

// The first large body of a tree that is not what its digest says. Rows name most of them, but a model
// can name some in its state.
async fn damaged_body(store: &dyn Store, root: RunKey) -> Result<Option<Sha256Digest>, Error> {
    let mut after = None;
    loop {
        let owner = BodyOwner::Run(root);
        let query = Query::Bodies { owner: owner.clone(), after, limit: PAGE };
        let page = store.list(query).await?.bodies()?;
        for BodyRef { digest, .. } in &page {
            let key = BodyKey { owner: owner.clone(), digest: *digest };
            let bytes = store.bodies(vec![key]).await?.pop().flatten();
            // A deletion meanwhile is not damage.
            if bytes.is_some_and(|bytes| Sha256Digest::of(&bytes) != *digest) {
                return Ok(Some(*digest));
            }
        }
        after = page.last().map(|body| body.digest);
        if page.len() < PAGE as usize {
            return Ok(None);
        }
    }
}

impl WholeRun {
    /// Returns the first problem: of several, the one with the lowest ordinal.
    pub fn verify(&self, anchors: &[Anchor], opens_step: OpensStep<'_>) -> Result<(), Flaw> {
        let mut flaws: Vec<Flaw> = Vec::new();
        flaws.extend(self.verify_chain().err());
        flaws.extend(anchors.iter().filter_map(|anchor| self.verify_anchor(anchor).err()));
        flaws.extend(self.verify_status().err());
        flaws.extend(self.verify_seals(opens_step));
        flaws.extend(self.verify_mailbox().err());
        flaws.extend(self.verify_enqueued().err());
        let first = flaws.into_iter().min_by_key(|flaw| flaw.ordinal.unwrap_or(u64::MAX));
        first.map_or(Ok(()), Err)
    }

    fn verify_mailbox(&self) -> Result<(), Flaw> {
        let gapless = self.messages.iter().zip(1..).all(|(message, seq)| message.seq == seq);
        if gapless && self.messages.len() as u64 == self.run.accepted {
            return Ok(());
        }
        let found = self.messages.len();
        let what = format!("the run accepted {} messages but {found} exist", self.run.accepted);
        Err(self.flaw(None, what))
    }

    // The queue, the labels, the headers and the task of the end never change. A run with a damaged queue is
    // never claimed, and one with damaged labels is not found.
    fn verify_enqueued(&self) -> Result<(), Flaw> {
        let first = self.events.first().filter(|event| event.event_type == WORKFLOW_ENQUEUED);
        let payload = first.map(Event::payload_json).transpose();
        let Ok(Some(payload)) = payload else { return Ok(()) };
        let queue = payload["queue"].as_str().unwrap_or(QueueName::DEFAULT);
        let found = self.run.turn.queue.as_str();
        if found != queue {
            let what = format!("the run is on queue {found:?}, and its ledger says {queue:?}");
            return Err(self.flaw(Some(0), what));
        }
        let labels = labels_digest(&self.run.labels).to_string();
        if payload["labels"].as_str().is_some_and(|sealed| sealed != labels) {
            return Err(self.flaw(Some(0), "the labels are not those the run was started with"));
        }
        // A run whose workflow is served elsewhere gets the task of its end after its first event was
        // drafted; the event then names none.
        let texts = [
            ("headers", self.run.headers.as_deref(), "the headers are not those"),
            ("on_end", self.run.on_end.as_deref(), "the task of the end is not the one"),
        ];
        for (name, found, what) in texts {
            let found = found.map(|text| text_digest(text).to_string());
            if payload[name].as_str().is_some_and(|sealed| found.as_deref() != Some(sealed)) {
                return Err(self.flaw(Some(0), format!("{what} the run was started with")));
            }
        }
        Ok(())
    }

    fn flaw(&self, ordinal: Option<u64>, what: impl Into<String>) -> Flaw {
        Flaw { run_key: self.run.run_key, ordinal, what: what.into() }
    }

    fn verify_chain(&self) -> Result<(), Flaw> {
        if self.run.input.digest() != self.run.input_hash {
            return Err(self.flaw(Some(0), "the input is not the one the run was started with"));
        }
        verify_events(genesis(&self.run), &self.events, self.run.head)
            .map_err(|(ordinal, what)| self.flaw(Some(ordinal), what))?;
        let last = self.events.last().map(|event| event.event_id);
        if last.map(CausalRef::event) != Some(CausalRef::event(self.run.cursor)) {
            let ordinal = self.run.head.next_ordinal.checked_sub(1);
            return Err(self.flaw(ordinal, "the run's cursor is not its last event"));
        }
        Ok(())
    }

    fn verify_anchor(&self, anchor: &Anchor) -> Result<(), Flaw> {
        let last = anchor.next_ordinal.checked_sub(1);
        let event = last.and_then(|ordinal| self.events.get(usize::try_from(ordinal).ok()?));
        match event {
            Some(event) if event.hash == anchor.hash => Ok(()),
            Some(_) => Err(self.flaw(last, "the ledger is not the one that was anchored")),
            None => {
                let next = self.run.head.next_ordinal;
                let what = format!(
                    "the ledger has an anchor at {} but ends at {next}",
                    anchor.next_ordinal
                );
                Err(self.flaw(Some(next), what))
            }
        }
    }

    // Compares the status with the one that the ledger implies. The ledger cannot tell waiting from
    // active.
    fn verify_status(&self) -> Result<(), Flaw> {
        let mut implied = (None, None);
        for event in &self.events {
            let status = match &event.event_type {
                kind if [WORKFLOW_COMPLETED, WORKFLOW_HALTED].contains(kind) => {
                    Some(RunStatus::Complete)
                }
                kind if *kind == WORKFLOW_FAILED => Some(RunStatus::Errored),
                kind if *kind == WORKFLOW_TERMINATED => Some(RunStatus::Terminated),
                kind if *kind == WORKFLOW_PAUSED => Some(RunStatus::Paused),
                kind if *kind == WORKFLOW_RESUMED => None,
                _ => continue,
            };
            implied = (status, Some(event.ordinal));
        }
        let status = self.run.status;
        let open = matches!(status, RunStatus::Active | RunStatus::Waiting);
        match implied {
            (Some(implied), _) if implied == status => Ok(()),
            (None, _) if open => Ok(()),
            (Some(implied), ordinal) => {
                Err(self
                    .flaw(ordinal, format!("the run is {status} but its ledger says {implied}")))
            }
            (None, ordinal) => {
                let what = format!("the run is {status} but no event in its ledger says so");
                Err(self.flaw(ordinal.or(Some(self.run.head.next_ordinal)), what))
            }
        }
    }

    fn verify_seals(&self, opens_step: OpensStep<'_>) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        let mut steps: BTreeMap<Arc<str>, LastSeal> = BTreeMap::new();
        let (mut end, mut state) = (None, None);
        for event in &self.events {
            let seals = match seals_of(event) {
                Ok(seals) => seals,
                Err(error) => {
                    flaws.push(self.flaw(Some(event.ordinal), error.to_string()));
                    continue;
                }
            };
            for seal in seals {
                match &seal.of {
                    SealOf::RunEnd { .. } => end = Some((event.ordinal, seal)),
                    SealOf::State => state = Some((event.ordinal, seal)),
                    SealOf::Step { key } => {
                        let key = key.clone();
                        let settles = !opens_step(&self.run, &event.event_type);
                        steps.insert(key, LastSeal { ordinal: event.ordinal, settles, seal });
                    }
                    // A record changes after the run has written it; only kept versions are compared,
                    // which needs the store.
                    SealOf::Record { .. } => {}
                    SealOf::Message { seq } => {
                        flaws.extend(self.verify_message(event.ordinal, *seq, &seal).err());
                    }
                    SealOf::Messages { seqs } => {
                        flaws.extend(self.verify_messages(event.ordinal, seqs, &seal).err());
                    }
                }
            }
        }
        flaws.extend(self.verify_end(end).err());
        flaws.extend(self.verify_state(state).err());
        self.verify_steps(steps, &mut flaws);
        flaws
    }

    // The large bodies of the tree, once: with its root.
    async fn verify_bodies(&self, store: &dyn Store) -> Result<Option<Flaw>, Error> {
        if self.run.root != self.run.run_key {
            return Ok(None);
        }
        let what = match damaged_body(store, self.run.run_key).await {
            Ok(None) => return Ok(None),
            Ok(Some(digest)) => format!("the large body {digest} is not what was written"),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                format!("a large body cannot be read: {error}")
            }
            Err(error) => return Err(error),
        };
        Ok(Some(self.flaw(None, what)))
    }

    // The versions of records that the run's commits kept are in the store as they were sealed.
    async fn verify_versions(&self, store: &dyn Store) -> Result<Option<Flaw>, Error> {
        for event in &self.events {
            // Seals that do not parse were reported before.
            for seal in seals_of(event).unwrap_or_default() {
                let SealOf::Record { collection, id, revision, kept: true } = &seal.of else {
                    continue;
                };
                let key = RecordKey {
                    namespace: self.run.namespace.clone(),
                    collection: Collection::from_stored(Arc::clone(collection)),
                    id: RecordId::from_stored(Arc::clone(id)),
                };
                let before = Some(revision.saturating_add(1));
                let what = format!("version {revision} of record {key}");
                let query = Query::RecordVersions { key, before, limit: 1 };
                let found = match read_version(store, query).await {
                    Ok(version) => version,
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        let what = format!("{what} cannot be read: {error}");
                        return Ok(Some(self.flaw(Some(event.ordinal), what)));
                    }
                    Err(error) => return Err(error),
                };
                let found = found.filter(|version| version.revision == *revision);
                let what = match found {
                    None => format!("{what} is missing"),
                    Some(version) if record_digest(Some(&version.body)) != seal.digest => {
                        format!("{what} is not the one that was written")
                    }
                    Some(_) => continue,
                };
                return Ok(Some(self.flaw(Some(event.ordinal), what)));
            }
        }
        Ok(None)
    }

    fn verify_message(&self, ordinal: u64, seq: u64, seal: &Seal) -> Result<(), Flaw> {
        let message = self.message(seq);
        if message.is_some_and(|message| message_digest(message.body.as_ref()) == seal.digest) {
            return Ok(());
        }
        Err(self.flaw(Some(ordinal), format!("message {seq} is not the one that was consumed")))
    }

    fn verify_messages(&self, ordinal: u64, seqs: &[u64], seal: &Seal) -> Result<(), Flaw> {
        let messages: Option<Vec<&Message>> = seqs.iter().map(|seq| self.message(*seq)).collect();
        let bodies = messages.iter().flatten().map(|message| message.body.as_ref());
        if messages.is_some() && messages_digest(bodies) == seal.digest {
            return Ok(());
        }
        let (first, last) = (seqs.first().unwrap_or(&0), seqs.last().unwrap_or(&0));
        let what =
            format!("the messages {first} to {last} are not the {} that were consumed", seqs.len());
        Err(self.flaw(Some(ordinal), what))
    }

    fn message(&self, seq: u64) -> Option<&Message> {
        let at = usize::try_from(seq).ok()?.checked_sub(1)?;
        self.messages.get(at)
    }

    fn verify_end(&self, end: Option<(u64, Seal)>) -> Result<(), Flaw> {
        let run = &self.run;
        let digest = run_end_digest(run.status, run.output.as_ref(), run.error.as_ref());
        match end {
            Some((_, seal)) if run.status.is_ended() && seal.digest == digest => Ok(()),
            Some((ordinal, _)) => {
                Err(self.flaw(Some(ordinal), "the output, error or status is not the recorded one"))
            }
            None if run.status.is_ended() => {
                let last = run.head.next_ordinal.checked_sub(1);
                Err(self.flaw(last, "the run has ended but no event seals its end"))
            }
            None if run.output.is_some() || run.error.is_some() => {
                Err(self.flaw(None, "the run has an output or an error but has not ended"))
            }
            None => Ok(()),
        }
    }

    fn verify_state(&self, last: Option<(u64, Seal)>) -> Result<(), Flaw> {
        let digest = self.run.state.as_ref().map(state_digest);
        match last {
            Some((_, seal)) if digest == Some(seal.digest) => Ok(()),
            Some((ordinal, _)) => {
                Err(self.flaw(Some(ordinal), "the state is not the recorded one"))
            }
            None if digest.is_some() => {
                let what = "the run has a state that no event seals";
                Err(self.flaw(self.run.head.next_ordinal.checked_sub(1), what))
            }
            None => Ok(()),
        }
    }

    // An open step may have been written again without an event, so its digest is not compared. The
    // seal of a settled step includes the status, so a settled step that was set back to open does
    // not match.
    fn verify_steps(&self, mut seals: BTreeMap<Arc<str>, LastSeal>, flaws: &mut Vec<Flaw>) {
        for step in &self.steps {
            let key = &step.step_key;
            match seals.remove(key.as_str()) {
                Some(LastSeal { ordinal, settles, seal })
                    if (settles || step.status.is_settled())
                        && seal.digest != step_digest(step) =>
                {
                    let what = format!("step {key:?} is not the one that was recorded");
                    flaws.push(self.flaw(Some(ordinal), what));
                }
                None if step.status.is_settled() => {
                    let what = format!("step {key:?} has a result that no event seals");
                    flaws.push(self.flaw(Some(step.position), what));
                }
                _ => {}
            }
        }
        let missing = seals.into_iter();
        flaws.extend(
            missing.map(|(key, last)| {
                self.flaw(Some(last.ordinal), format!("step {key:?} is missing"))
            }),
        );
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.run_key, self.next_ordinal, self.hash)
    }
}

impl FromStr for Anchor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            let excerpt: String = text.chars().take(120).collect();
            let message = format!(
                "{excerpt:?} is not an anchor; write a run key, a next ordinal and a hash, separated by spaces"
            );
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidAnchor, message)
        };
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [run_key, next_ordinal, hash] = parts[..] else { return Err(invalid()) };
        Ok(Self {
            run_key: run_key.parse().map_err(|_| invalid())?,
            next_ordinal: next_ordinal.parse().map_err(|_| invalid())?,
            hash: hash.parse().map_err(|_| invalid())?,
        })
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal {
            Some(ordinal) => write!(f, "run {} at ordinal {ordinal}: {}", self.run_key, self.what),
            None => write!(f, "run {}: {}", self.run_key, self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_parse_from_their_text() {
        let anchor = Anchor {
            run_key: RunKey(uuid::Uuid::from_u128(7)),
            next_ordinal: 12,
            hash: Sha256Digest::of(b"x"),
        };
        assert_eq!(anchor.to_string().parse::<Anchor>().unwrap(), anchor);
        for bad in ["", "a b c", "00000000-0000-0000-0000-000000000007 12"] {
            assert!(bad.parse::<Anchor>().unwrap_err().to_string().contains("not an anchor"));
        }
    }
}
