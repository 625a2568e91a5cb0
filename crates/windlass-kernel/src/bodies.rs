//! Large bodies: bodies that are stored in rows of their own.
//!
//! A row of a run, step, message or record holds a reference (digest and size) instead of a large body.
//! The bytes are in a row that is addressed by owner and digest. The owner is the root run of a tree,
//! or a record. Within one owner the same bytes are stored once, and they are deleted with the owner.
//! Owners share no bytes, so there are no reference counts.
//!
//! [`Commit::with_large_bodies_apart`] replaces large bodies of a commit by references and adds the ops
//! that store them. [`Store::load`] and [`Store::records`] return the data; listings and status reads
//! return references, which [`fill`] and its relatives replace.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::body::{Body, BodyRef};
use crate::commit::{Commit, Op};
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::RunKey;
use crate::limits::{Limits, check_max};
use crate::query::Query;
use crate::record::{Record, RecordKey, RecordVersion, RecordWrite};
use crate::rows::{Message, Run, Step};
use crate::store::{Loaded, Store};

/// The most bodies of one read.
pub const BODIES_MAX: usize = 64;
/// The most bytes that [`fill`] reads with one call, unless one body is larger.
const READ_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The most bytes of the bodies of one page that [`list_records`] reads.
pub const PAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The owner of large bodies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BodyOwner {
    /// The root of the tree that this run belongs to.
    Run(RunKey),
    /// A record.
    Record(RecordKey),
}

impl std::fmt::Display for BodyOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(run_key) => write!(f, "run {run_key}"),
            Self::Record(key) => write!(f, "record {key}"),
        }
    }
}

impl RecordKey {
    /// The value of the owner column for large bodies of this record.
    ///
    /// PostgreSQL computes the same when it deletes bodies. Names have no control characters, so two
    /// records never have the same owner.
    pub fn body_owner(&self) -> Sha256Digest {
        let text = format!("{}\u{1f}{}\u{1f}{}", self.namespace, self.collection, self.id);
        Sha256Digest::of(text.as_bytes())
    }
}

/// The address of a large body.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyKey {
    /// The owner.
    pub owner: BodyOwner,
    /// The digest of the bytes.
    pub digest: Sha256Digest,
}

impl BodyKey {
    /// Refuses a read of too many bodies.
    pub fn validate(keys: &[Self]) -> Result<(), Error> {
        check_max("a read", "large bodies", keys.len(), BODIES_MAX)
    }
}

/// Stores bytes under an owner, unless the owner has them already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutBody {
    owner: BodyOwner,
    digest: Sha256Digest,
    source: BodySource,
}

/// The place that a stored body comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodySource {
    /// These bytes.
    Bytes(Bytes),
    /// The bytes with the same digest in the tree of another run of the same namespace. Nothing is
    /// stored if they do not exist.
    Tree(RunKey),
}

impl PutBody {
    /// Stores bytes.
    pub fn new(owner: BodyOwner, bytes: Bytes) -> Self {
        Self { owner, digest: Sha256Digest::of(&bytes), source: BodySource::Bytes(bytes) }
    }

    /// Copies the bytes with this digest from the tree of another run of the same namespace. The store
    /// copies them itself; it does nothing if both runs are in the same tree.
    pub fn copy(from: RunKey, to: RunKey, digest: Sha256Digest) -> Self {
        Self { owner: BodyOwner::Run(to), digest, source: BodySource::Tree(from) }
    }

    /// The owner.
    pub fn owner(&self) -> &BodyOwner {
        &self.owner
    }

    /// The digest of the bytes.
    pub fn digest(&self) -> Sha256Digest {
        self.digest
    }

    /// The place that the bytes come from.
    pub fn source(&self) -> &BodySource {
        &self.source
    }

    pub(crate) fn validate(&self, limits: &Limits) -> Result<(), Error> {
        match &self.source {
            BodySource::Bytes(bytes) => {
                check_max("a large body", "bytes", bytes.len(), limits.large_body_bytes_max())
            }
            BodySource::Tree(_) => Ok(()),
        }
    }
}

impl Commit {
    /// The same commit with each body of more than `inline_bytes_max` bytes in a row of its own. The
    /// commit itself if it has none; that costs a look at each op.
    pub fn with_large_bodies_apart(&self, inline_bytes_max: usize) -> Self {
        let is_large = |body: &Body| body.bytes.len() > inline_bytes_max && !body.is_reference();
        let has_large = |op: &Op| {
            let mut found = false;
            visit(op, |_, body| found |= is_large(body));
            found
        };
        if !self.ops.iter().any(has_large) {
            return self.clone();
        }
        let mut ops = Vec::with_capacity(self.ops.len() + 4);
        let mut apart: BTreeMap<BodyKey, Bytes> = BTreeMap::new();
        for op in self.ops.iter() {
            let mut op = op.clone();
            visit_mut(&mut op, |owner, body| {
                if !is_large(body) {
                    return;
                }
                let digest = body.digest();
                let reference = BodyRef { digest, len: body.len() as u64 };
                apart.entry(BodyKey { owner: owner(), digest }).or_insert(body.bytes.clone());
                *body = Body::refer_to(body.encoding, reference);
            });
            ops.push(op);
        }
        ops.extend(apart.into_iter().map(|(BodyKey { owner, digest }, bytes)| {
            Op::PutBody(Box::new(PutBody { owner, digest, source: BodySource::Bytes(bytes) }))
        }));
        Self { ops: ops.into(), ..self.clone() }
    }

    /// References to large bodies that neither this commit nor an earlier one can have stored under
    /// their owner. A reference was copied to another owner by mistake if there is one.
    pub(crate) fn unknown_reference(&self) -> Option<BodyKey> {
        let mut references = Vec::new();
        for op in self.ops.iter() {
            visit(op, |owner, body| {
                if let Some(reference) = body.reference() {
                    references.push((op, BodyKey { owner: owner(), digest: reference.digest }));
                }
            });
        }
        if references.is_empty() {
            return None;
        }
        let put: BTreeSet<(&BodyOwner, Sha256Digest)> = self
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::PutBody(put) => Some((put.owner(), put.digest())),
                _ => None,
            })
            .collect();
        let new_roots: BTreeSet<RunKey> = self
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::CreateRun(run) if run.root == run.run_key => Some(run.run_key),
                _ => None,
            })
            .collect();
        // A row of a run whose tree exists can name a body that an earlier commit has stored.
        let can_exist = |op: &Op| match op {
            Op::CreateRun(run) => !new_roots.contains(&run.run_key),
            Op::PutStep(step) => !new_roots.contains(&step.run_key),
            Op::SetRun(_) => true,
            _ => false,
        };
        let is_known =
            |(op, key): &(&Op, BodyKey)| put.contains(&(&key.owner, key.digest)) || can_exist(op);
        references.into_iter().find(|reference| !is_known(reference)).map(|(_, key)| key)
    }
}

macro_rules! visit_bodies {
    ($op:ident, $see:ident, $($reference:tt)+) => {
        match $op {
            Op::CreateRun(run) => {
                let key = run.run_key;
                let owner = || BodyOwner::Run(key);
                $see(&owner, $($reference)+ run.input);
                visit_bodies!(@ $see, owner, run.output, $($reference)+);
                visit_bodies!(@ $see, owner, run.error, $($reference)+);
            }
            Op::SetRun(change) => {
                let key = change.run_key;
                let owner = || BodyOwner::Run(key);
                visit_bodies!(@ $see, owner, change.output, $($reference)+);
                visit_bodies!(@ $see, owner, change.error, $($reference)+);
            }
            Op::PutStep(step) => {
                let key = step.run_key;
                let owner = || BodyOwner::Run(key);
                visit_bodies!(@ $see, owner, step.input, $($reference)+);
                visit_bodies!(@ $see, owner, step.result, $($reference)+);
                visit_bodies!(@ $see, owner, step.error, $($reference)+);
            }
            Op::PutMessage(message) => {
                let key = message.run_key;
                let owner = || BodyOwner::Run(key);
                visit_bodies!(@ $see, owner, message.body, $($reference)+);
            }
            Op::Record(record) => {
                let key = &record.key;
                let owner = || BodyOwner::Record(key.clone());
                if let RecordWrite::Put(put) = $($reference)+ record.write {
                    $see(&owner, $($reference)+ put.body);
                }
            }
            _ => {}
        }
    };
    (@ $see:ident, $owner:ident, $body:expr, $($reference:tt)+) => {
        if let Some(body) = $($reference)+ $body {
            $see(&$owner, body);
        }
    };
}

// Calls `see` with each body of an op that may be large. States, tasks and log lines are not among
// them: a state changes with every turn, and nothing would delete the earlier ones.
fn visit(op: &Op, mut see: impl FnMut(&dyn Fn() -> BodyOwner, &Body)) {
    visit_bodies!(op, see, &);
}

fn visit_mut(op: &mut Op, mut see: impl FnMut(&dyn Fn() -> BodyOwner, &mut Body)) {
    visit_bodies!(op, see, &mut);
}

/// A place that may hold a reference, and the owner of the body.
pub type BodyMut<'a> = (BodyOwner, &'a mut Body);

/// Replaces references by the data. Reads each body once.
///
/// # Errors
///
/// [`ErrorCode::StoreCorrupt`] if a body does not exist, and errors of the
/// store. Some references may have been replaced by then.
pub async fn fill<S: Store + ?Sized>(
    store: &S,
    bodies: impl IntoIterator<Item = BodyMut<'_>>,
) -> Result<(), Error> {
    let bodies = bodies.into_iter().filter_map(|(owner, body)| {
        let reference = body.reference()?;
        Some((BodyKey { owner, digest: reference.digest }, reference.len, body))
    });
    let bodies: Vec<(BodyKey, u64, &mut Body)> = bodies.collect();
    if bodies.is_empty() {
        return Ok(());
    }
    let sizes: BTreeMap<BodyKey, u64> =
        bodies.iter().map(|(key, len, _)| (key.clone(), *len)).collect();
    let mut found: BTreeMap<BodyKey, Bytes> = BTreeMap::new();
    let mut keys: Vec<BodyKey> = Vec::new();
    let mut bytes = 0;
    let mut sizes = sizes.into_iter().peekable();
    while let Some((key, len)) = sizes.next() {
        keys.push(key);
        bytes += len;
        let is_full = |(_, next): &(BodyKey, u64)| bytes + next > READ_BYTES_MAX;
        if keys.len() == BODIES_MAX || sizes.peek().is_none_or(is_full) {
            let keys = std::mem::take(&mut keys);
            bytes = 0;
            for (key, body) in keys.clone().into_iter().zip(store.bodies(keys).await?) {
                let missing = || {
                    let BodyKey { owner, digest } = &key;
                    Error::corrupt(format!("the body {digest} of {owner} does not exist"))
                };
                let body = body.ok_or_else(missing)?;
                found.insert(key, body);
            }
        }
    }
    for (key, _, body) in bodies {
        if let Some(bytes) = found.get(&key) {
            body.fill(bytes.clone());
        }
    }
    Ok(())
}

/// A page of a listing of records with the data of the large bodies, as [`fill_records`] reads it.
///
/// # Errors
///
/// [`ErrorCode::InvalidSize`] if the bodies of the page have more than [`PAGE_BYTES_MAX`] bytes, and errors of
/// the store.
pub async fn list_records<S: Store + ?Sized>(
    store: &S,
    query: Query,
) -> Result<Vec<Record>, Error> {
    let rows = store.list(query).await?.records()?;
    let bytes: usize = rows.iter().filter_map(|row| row.body.as_ref()).map(Body::len).sum();
    if bytes > PAGE_BYTES_MAX {
        let message = format!(
            "the page of {} records has {bytes} bytes; at most {PAGE_BYTES_MAX} are allowed; read pages of \
             fewer records",
            rows.len()
        );
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidSize, message));
    }
    fill_records(store, rows).await
}

/// Replaces the references of listed records by the data. A record that was written since it was listed is
/// returned as it is now; one that was deleted since is left out. The caller bounds the bytes.
///
/// # Errors
///
/// As [`fill`].
pub async fn fill_records<S: Store + ?Sized>(
    store: &S,
    mut rows: Vec<Record>,
) -> Result<Vec<Record>, Error> {
    match fill(store, of_records(&mut rows)).await {
        // A write deletes the body of the revision before, if no version keeps it.
        Err(error) if error.code() == ErrorCode::StoreCorrupt => {}
        filled => return filled.map(|()| rows),
    }
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        match row.body.as_ref().is_some_and(Body::is_reference) {
            true => found.extend(store.records(vec![row.key]).await?.into_iter().flatten()),
            false => found.push(row),
        }
    }
    Ok(found)
}

/// The bodies of a run that may be references.
pub fn of_run(run: &mut Run) -> impl Iterator<Item = BodyMut<'_>> {
    let run_key = run.run_key;
    let bodies = [Some(&mut run.input), run.output.as_mut(), run.error.as_mut()];
    bodies.into_iter().flatten().map(move |body| (BodyOwner::Run(run_key), body))
}

/// The bodies of steps that may be references.
pub fn of_steps(steps: &mut [Step]) -> impl Iterator<Item = BodyMut<'_>> {
    steps.iter_mut().flat_map(|step| {
        let run_key = step.run_key;
        let bodies = [step.input.as_mut(), step.result.as_mut(), step.error.as_mut()];
        bodies.into_iter().flatten().map(move |body| (BodyOwner::Run(run_key), body))
    })
}

/// The bodies of messages that may be references.
pub fn of_messages(messages: &mut [Message]) -> impl Iterator<Item = BodyMut<'_>> {
    messages
        .iter_mut()
        .filter_map(|message| Some((BodyOwner::Run(message.run_key), message.body.as_mut()?)))
}

/// The bodies of records that may be references.
pub fn of_records<'a>(
    records: impl IntoIterator<Item = &'a mut Record>,
) -> impl Iterator<Item = BodyMut<'a>> {
    let body = |record: &'a mut Record| {
        Some((BodyOwner::Record(record.key.clone()), record.body.as_mut()?))
    };
    records.into_iter().filter_map(body)
}

/// The bodies of kept versions that may be references.
pub fn of_versions(versions: &mut [RecordVersion]) -> impl Iterator<Item = BodyMut<'_>> {
    versions.iter_mut().map(|version| (BodyOwner::Record(version.key.clone()), &mut version.body))
}

/// The bodies of loaded runs that may be references.
pub fn of_loaded(loaded: &mut [Loaded]) -> impl Iterator<Item = BodyMut<'_>> {
    loaded.iter_mut().flat_map(|Loaded { run, steps, messages }| {
        of_run(run).chain(of_steps(steps)).chain(of_messages(messages))
    })
}
