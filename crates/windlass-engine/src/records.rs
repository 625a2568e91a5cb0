//! Records of a collection: reads, writes with an expected revision, and listings.

mod expecting;

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_kernel::request::{About, RecordRef};
use windlass_kernel::{
    Actor, Body, BoxFuture, Collection, Commit, CommitError, Conflict, Error, Expect, Keep,
    Namespace, Op, Query, Record, RecordFound, RecordId, RecordKey, RecordOp, RecordPut,
    RecordVersion, RecordWrite, Sha256Digest, Terms, Timestamp, WriteId, bodies,
};

use crate::commit::CommitClient;
use crate::core::Core;
use crate::env::new_uuid;
use crate::record_change::{conflict_delay, refuse_reserved};
use crate::turn::refusal;

pub use expecting::NewDocument;

/// How often a write without an expected revision is decided again because another writer was first.
const ROUNDS_MAX: u32 = 64;

/// The records of one collection, with documents of type `T`.
pub struct Records<T> {
    pub(crate) core: Arc<Core>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) namespace: Namespace,
    // Checked when it is used, so that naming a collection cannot fail.
    pub(crate) collection: String,
    pub(crate) document: PhantomData<fn() -> T>,
}

/// A document and its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document<T> {
    /// The collection.
    pub collection: Collection,
    /// The id of the record.
    pub id: RecordId,
    /// The digest of the document's bytes.
    pub digest: Sha256Digest,
    /// The revision. Expect it in the next write.
    pub revision: u64,
    /// The document.
    pub value: T,
    /// The terms by which listings find it.
    pub terms: Terms,
    /// When the record was written first.
    pub created_at: Timestamp,
    /// When it was written last.
    pub updated_at: Timestamp,
}

impl<T> Document<T> {
    /// The record at this revision, for a request to people that is about it.
    pub fn reference(&self) -> RecordRef {
        let (collection, id) = (self.collection.clone(), self.id.clone());
        RecordRef { collection, id, revision: self.revision, digest: self.digest }
    }
}

impl<T> From<&Document<T>> for About {
    fn from(document: &Document<T>) -> Self {
        Self::Record(document.reference())
    }
}

impl<T: Serialize + DeserializeOwned> Records<T> {
    /// Reads a record; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::InvalidBody`] if the document is not of type `T`.
    pub async fn get(&self, id: impl AsRef<str>) -> Result<Option<Document<T>>, Error> {
        let key = self.key(id.as_ref())?;
        self.row(key).await?.and_then(|record| document(record).transpose()).transpose()
    }

    /// Writes a record when the returned builder is awaited. Without an expectation it replaces
    /// the record in any state.
    pub fn put(&self, id: impl AsRef<str>, value: &T) -> PutRecord<'_, T> {
        let prepared = self.writable(id.as_ref()).and_then(|key| Ok((key, Body::of(value)?)));
        PutRecord {
            records: self,
            prepared,
            terms: Ok(Terms::default()),
            expect: None,
            keep: false,
            author: None,
        }
    }

    /// Removes a record that has this revision. Kept versions stay. Returns the revision of the
    /// removal.
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::RecordConflict`] if the record has another revision or does not exist.
    pub async fn remove(&self, id: impl AsRef<str>, revision: u64) -> Result<u64, Error> {
        let key = self.writable(id.as_ref())?;
        let at = self.core.clock.now();
        let write = RecordWrite::Remove { write_id: self.write_id(at), at };
        self.write(RecordOp { key, expect: Expect::At(revision), write })
            .await
            .map_err(|error| refusal(&error))
    }

    /// The records with a term, page by page.
    pub fn find(&self, name: &str, value: &str) -> Listing<'_, T> {
        Listing { records: self, term: Some((name.into(), value.into())), after: None }
    }

    /// All records of the collection, page by page.
    pub fn all(&self) -> Listing<'_, T> {
        Listing { records: self, term: None, after: None }
    }

    /// A page of the kept versions of a record, newest first, before the given revision.
    pub async fn versions(
        &self,
        id: impl AsRef<str>,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<RecordVersion>, Error> {
        let query = Query::RecordVersions { key: self.key(id.as_ref())?, before, limit };
        let mut versions = self.core.store.list(query).await?.record_versions()?;
        bodies::fill(&*self.core.store, bodies::of_versions(&mut versions)).await?;
        Ok(versions)
    }

    async fn row(&self, key: RecordKey) -> Result<Option<Record>, Error> {
        Ok(self.core.store.records(vec![key]).await?.pop().flatten())
    }

    fn key(&self, id: &str) -> Result<RecordKey, Error> {
        let limits = &self.core.options.limits;
        Ok(RecordKey {
            namespace: self.namespace.clone(),
            collection: Collection::with_limits(&*self.collection, limits)?,
            id: RecordId::with_limits(id, limits)?,
        })
    }

    fn writable(&self, id: &str) -> Result<RecordKey, Error> {
        let key = self.key(id)?;
        refuse_reserved(&key.collection)?;
        Ok(key)
    }

    fn write_id(&self, at: Timestamp) -> WriteId {
        WriteId(new_uuid(&*self.core.env, at))
    }

    // Returns the new revision.
    async fn write(&self, op: RecordOp) -> Result<u64, CommitError> {
        let revision = op.next_revision().unwrap_or(0);
        let commit = Commit::new(None, None, vec![Op::Record(Box::new(op))]);
        Arc::clone(&self.commits).commit_for_caller(commit).await.map(|_| revision)
    }

    // Replaces the record in whatever state it is: reads the state from each conflict.
    async fn write_any(&self, key: RecordKey, put: RecordPut) -> Result<u64, Error> {
        let mut found = self.row(key.clone()).await?.map_or(RecordFound::Absent, |row| row.found());
        let mut round = 1;
        loop {
            let expect = match found {
                RecordFound::Absent => Expect::Absent,
                RecordFound::At(revision) | RecordFound::Removed(revision) => Expect::At(revision),
            };
            let write = RecordWrite::Put(Box::new(put.clone()));
            match self.write(RecordOp { key: key.clone(), expect, write }).await {
                Err(CommitError::Conflict(Conflict::Record { found: other, .. }))
                    if round < ROUNDS_MAX =>
                {
                    found = other;
                    round += 1;
                    let env = &self.core.env;
                    env.sleep(conflict_delay(env.random(), 1)).await;
                }
                result => return result.map_err(|error| refusal(&error)),
            }
        }
    }
}

fn document<T: DeserializeOwned>(record: Record) -> Result<Option<Document<T>>, Error> {
    let Record { key, revision, body, terms, created_at, updated_at, .. } = record;
    let Some(body) = body else { return Ok(None) };
    let digest = body.digest();
    let value = body.read().map_err(|source| {
        let message = format!("record {key} is not of the type that the caller reads");
        Error::new(source.kind(), source.code(), message).with_source(source)
    })?;
    let RecordKey { collection, id, .. } = key;
    Ok(Some(Document { collection, id, digest, revision, value, terms, created_at, updated_at }))
}

/// A write of a record that is not sent yet. It is sent when it is awaited.
#[must_use = "a write is sent only when it is awaited"]
pub struct PutRecord<'a, T> {
    records: &'a Records<T>,
    prepared: Result<(RecordKey, Body), Error>,
    terms: Result<Terms, Error>,
    expect: Option<Expect>,
    keep: bool,
    author: Option<Arc<str>>,
}

impl<T: Serialize + DeserializeOwned> PutRecord<'_, T> {
    /// Writes only if the record has this revision.
    pub fn expect_revision(mut self, revision: u64) -> Self {
        self.expect = Some(Expect::At(revision));
        self
    }

    /// Writes only if the record does not exist.
    pub fn expect_absent(mut self) -> Self {
        self.expect = Some(Expect::Absent);
        self
    }

    /// Adds a term by which listings find the record. The terms of this write replace the earlier ones.
    pub fn term(mut self, name: &str, value: &str) -> Self {
        if let Ok(terms) = &mut self.terms
            && let Err(error) = terms.add(name, value)
        {
            self.terms = Err(error);
        }
        self
    }

    /// Keeps this revision as a version that never changes.
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Names the author of a kept version, for example `Actor::new("user", "ann")`. An author cannot decide about
    /// the record, unless the request allows it.
    pub fn by(mut self, author: &Actor) -> Self {
        self.author = serde_json::to_string(author).ok().map(Arc::from);
        self
    }

    /// Sends the write and returns the new revision, as awaiting it does.
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::RecordConflict`] if the record is not as expected;
    /// [`windlass_kernel::ErrorCode::CollectionReserved`] if the collection belongs to the engine;
    /// [`windlass_kernel::ErrorCode::OutcomeUnknown`] if the answer was lost and others have written since.
    pub async fn send(self) -> Result<u64, Error> {
        let (key, body) = self.prepared?;
        let records = self.records;
        let at = records.core.clock.now();
        let (digest, actor) = (body.digest(), self.author);
        let keep = self.keep.then_some(Keep { digest, actor, caused_by: None });
        let put = RecordPut {
            write_id: records.write_id(at),
            body,
            terms: self.terms?,
            keep,
            at,
            revision: None,
        };
        let Some(expect) = self.expect else { return records.write_any(key, put).await };
        let write = |expect, put| RecordOp {
            key: key.clone(),
            expect,
            write: RecordWrite::Put(Box::new(put)),
        };
        match records.write(write(expect, put.clone())).await {
            // Absent for its users, but its row has a revision.
            Err(CommitError::Conflict(Conflict::Record {
                expected: Expect::Absent,
                found: RecordFound::Removed(revision),
                ..
            })) => records
                .write(write(Expect::At(revision), put))
                .await
                .map_err(|error| refusal(&error)),
            result => result.map_err(|error| refusal(&error)),
        }
    }
}

impl<'a, T: Serialize + DeserializeOwned> IntoFuture for PutRecord<'a, T> {
    type Output = Result<u64, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A listing of records that is not read yet.
pub struct Listing<'a, T> {
    records: &'a Records<T>,
    term: Option<(Arc<str>, Arc<str>)>,
    after: Option<RecordId>,
}

impl<T: Serialize + DeserializeOwned> Listing<'_, T> {
    /// Continues after the last record of the page before.
    pub fn after(mut self, id: RecordId) -> Self {
        self.after = Some(id);
        self
    }

    /// Reads a page of at most `limit` records, by id. A page with fewer records is the last.
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::InvalidBody`] if a document is not of type `T`; the message names the record, and
    /// [`Listing::page_of_any`] reads the others. [`windlass_kernel::ErrorCode::InvalidSize`] if the documents of
    /// the page have more than 64 MiB.
    pub async fn page(self, limit: u32) -> Result<Vec<Document<T>>, Error> {
        self.page_of_any(limit).await?.into_iter().collect()
    }

    /// As [`Listing::page`]; a record with a document of another type is an error in its place.
    ///
    /// # Errors
    ///
    /// As [`Listing::page`], except for documents of another type.
    pub async fn page_of_any(self, limit: u32) -> Result<Vec<Result<Document<T>, Error>>, Error> {
        let records = self.records;
        let query = Query::Records {
            namespace: records.namespace.clone(),
            collection: Collection::with_limits(
                &*records.collection,
                &records.core.options.limits,
            )?,
            term: self.term,
            after: self.after,
            limit,
        };
        let rows = bodies::list_records(&*records.core.store, query).await?;
        Ok(rows.into_iter().filter_map(|record| document(record).transpose()).collect())
    }
}
