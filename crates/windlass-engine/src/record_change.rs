//! A change of a record that is part of another commit: of a start, a step or an outcome.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::{
    Actor, Body, Collection, Error, ErrorCode, ErrorKind, Expect, Keep, Limits, Namespace,
    REVISION_MAX, RecordId, RecordKey, RecordOp, RecordPut, RecordWrite, Stamp, Terms, WriteId,
};

const CONFLICT_DELAY: Duration = Duration::from_millis(20);
// Beyond so many losses the delay grows no further.
const LOSSES_MAX: u32 = 10;

/// A check or a write of a record in the commit of a workflow. The commit is written only if the record
/// is as expected.
///
/// ```
/// use windlass_engine::RecordChange;
///
/// let change = RecordChange::put("carts", "c-7", &["tea"], 3)?.term("customer", "u-1")?.keep();
/// assert_eq!(change.to_string(), "carts/c-7");
/// # Ok::<(), windlass_kernel::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Stored", try_from = "Stored")]
pub struct RecordChange {
    collection: Collection,
    id: RecordId,
    expect: Expect,
    change: Change,
}

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Check,
    Put { body: Body, terms: Terms, keep: bool, actor: Option<Arc<str>> },
    Remove,
}

impl RecordChange {
    /// Writes a document. It expects a revision, or [`Expect::Absent`]. The terms of the change replace the
    /// earlier ones.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::CollectionReserved`], [`ErrorCode::InvalidName`] or [`ErrorCode::InvalidRevision`] if the
    /// record cannot be written so, or [`ErrorCode::InvalidBody`] if the document is not JSON.
    pub fn put<T: Serialize + ?Sized>(
        collection: impl AsRef<str>,
        id: impl AsRef<str>,
        document: &T,
        expect: impl Into<Expect>,
    ) -> Result<Self, Error> {
        Self::put_own(collection, id, document, expect)?.writable()
    }

    /// As [`RecordChange::put`], for the engine and its models: the collection may begin with `windlass.`.
    ///
    /// # Errors
    ///
    /// As [`RecordChange::put`].
    pub fn put_own<T: Serialize + ?Sized>(
        collection: impl AsRef<str>,
        id: impl AsRef<str>,
        document: &T,
        expect: impl Into<Expect>,
    ) -> Result<Self, Error> {
        Self::put_body(collection, id, Body::of(document)?, expect)
    }

    /// As [`RecordChange::put_own`], with a body that is written as it is.
    ///
    /// # Errors
    ///
    /// As [`RecordChange::put`].
    pub fn put_body(
        collection: impl AsRef<str>,
        id: impl AsRef<str>,
        body: Body,
        expect: impl Into<Expect>,
    ) -> Result<Self, Error> {
        let change = Change::Put { body, terms: Terms::default(), keep: false, actor: None };
        let change = Self::new(collection.as_ref(), id.as_ref(), expect.into(), change)?;
        match change.expect {
            Expect::Present => Err(any_revision(&change)),
            Expect::At(_) | Expect::Absent => Ok(change),
        }
    }

    /// Removes a record that has this revision. Kept versions stay.
    ///
    /// # Errors
    ///
    /// As [`RecordChange::put`].
    pub fn remove(
        collection: impl AsRef<str>,
        id: impl AsRef<str>,
        revision: u64,
    ) -> Result<Self, Error> {
        let expect = Expect::At(revision);
        Self::new(collection.as_ref(), id.as_ref(), expect, Change::Remove)?.writable()
    }

    /// Requires that a record is as expected, and does not write it.
    ///
    /// # Errors
    ///
    /// The collection, the id or the revision is not valid.
    pub fn check(
        collection: impl AsRef<str>,
        id: impl AsRef<str>,
        expect: impl Into<Expect>,
    ) -> Result<Self, Error> {
        Self::new(collection.as_ref(), id.as_ref(), expect.into(), Change::Check)
    }

    fn new(collection: &str, id: &str, expect: Expect, change: Change) -> Result<Self, Error> {
        let (collection, id) = (Collection::new(collection)?, RecordId::new(id)?);
        if let Expect::At(revision) = expect
            && !(1..=REVISION_MAX).contains(&revision)
        {
            let message = format!(
                "record {collection}/{id} has no revision {revision}; revisions begin at 1 and end at \
                 {REVISION_MAX}"
            );
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidRevision, message));
        }
        Ok(Self { collection, id, expect, change })
    }

    fn writable(self) -> Result<Self, Error> {
        self.check_writable()?;
        Ok(self)
    }

    /// Refuses a write of a collection that belongs to the engine or a model. Steps, starts, relays and machines
    /// make no other changes: a document must not be written beside the rules of its model.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::CollectionReserved`].
    pub fn check_writable(&self) -> Result<(), Error> {
        match self.change {
            Change::Check => Ok(()),
            Change::Put { .. } | Change::Remove => refuse_reserved(&self.collection),
        }
    }

    /// Adds a term by which listings find the record.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidTerm`] if the term is not valid, or the change writes no document.
    pub fn term(mut self, name: &str, value: &str) -> Result<Self, Error> {
        let Change::Put { terms, .. } = &mut self.change else {
            let message = "only a change that writes a document has terms";
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidTerm, message));
        };
        terms.add(name, value)?;
        Ok(self)
    }

    /// Keeps the revision that this change writes as a version that never changes.
    #[must_use]
    pub fn keep(mut self) -> Self {
        if let Change::Put { keep, .. } = &mut self.change {
            *keep = true;
        }
        self
    }

    /// Names the author of a kept version.
    #[must_use]
    pub fn by(mut self, author: &Actor) -> Self {
        if let Change::Put { actor, .. } = &mut self.change {
            *actor = serde_json::to_string(author).ok().map(Arc::from);
        }
        self
    }

    /// The revision that the write makes; `None` if the change writes nothing.
    pub fn next_revision(&self) -> Option<u64> {
        match (&self.change, self.expect) {
            (Change::Check, _) | (_, Expect::Present) => None,
            (_, Expect::Absent) => Some(1),
            (_, Expect::At(revision)) => Some(revision + 1),
        }
    }

    /// Whether both are changes of one record. A commit names each record at most once.
    pub fn is_of_same_record(&self, other: &Self) -> bool {
        (&self.collection, &self.id) == (&other.collection, &other.id)
    }

    /// The size of the document that the change writes.
    pub fn bytes(&self) -> usize {
        match &self.change {
            Change::Put { body, .. } => body.len(),
            Change::Check | Change::Remove => 0,
        }
    }

    /// Refuses a change that a commit with these limits cannot hold.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSize`]; the message names the limit.
    pub fn check_limits(&self, limits: &Limits) -> Result<(), Error> {
        let Change::Put { body, terms, .. } = &self.change else { return Ok(()) };
        let sizes = [
            ("bytes", body.len(), limits.record_bytes_max),
            ("terms", terms.len(), limits.record_terms_max),
        ];
        for (unit, found, max) in sizes {
            if found > max {
                let message =
                    format!("record {self} has {found} {unit}; at most {max} are allowed");
                return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidSize, message));
            }
        }
        Ok(())
    }

    /// The op of a commit in a namespace. The event of the stamp reports the write, so its id also
    /// identifies the write.
    pub fn op(&self, namespace: &Namespace, stamp: Stamp) -> RecordOp {
        let key = RecordKey {
            namespace: namespace.clone(),
            collection: self.collection.clone(),
            id: self.id.clone(),
        };
        let (write_id, at) = (WriteId(stamp.event_id.0), stamp.at);
        let write = match &self.change {
            Change::Check => RecordWrite::Check,
            Change::Put { body, terms, keep, actor } => {
                let keep = keep.then(|| Keep {
                    digest: body.digest(),
                    actor: actor.clone(),
                    caused_by: None,
                });
                let (body, terms) = (body.clone(), terms.clone());
                RecordWrite::Put(Box::new(RecordPut {
                    write_id,
                    body,
                    terms,
                    keep,
                    at,
                    revision: None,
                }))
            }
            Change::Remove => RecordWrite::Remove { write_id, at },
        };
        RecordOp { key, expect: self.expect, write }
    }
}

/// A change as JSON: a model that asks for it in one commit and makes it in another one stores it so.
#[derive(Serialize, Deserialize)]
struct Stored {
    collection: String,
    id: String,
    expect: StoredExpect,
    change: StoredChange,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredExpect {
    Absent,
    Present,
    Revision(u64),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredChange {
    Check,
    Put {
        // The text of the document, because its bytes have a digest.
        document: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        terms: Vec<(String, String)>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keep: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        actor: Option<String>,
    },
    Remove,
}

impl From<RecordChange> for Stored {
    fn from(change: RecordChange) -> Self {
        let expect = match change.expect {
            Expect::Absent => StoredExpect::Absent,
            Expect::Present => StoredExpect::Present,
            Expect::At(revision) => StoredExpect::Revision(revision),
        };
        let stored = match change.change {
            Change::Check => StoredChange::Check,
            Change::Remove => StoredChange::Remove,
            Change::Put { body, terms, keep, actor } => StoredChange::Put {
                document: String::from_utf8_lossy(&body.bytes).into_owned(),
                terms: terms.iter().map(|(name, value)| (name.into(), value.into())).collect(),
                keep,
                actor: actor.map(|actor| actor.to_string()),
            },
        };
        let (collection, id) = (change.collection.to_string(), change.id.to_string());
        Self { collection, id, expect, change: stored }
    }
}

impl TryFrom<Stored> for RecordChange {
    type Error = Error;

    fn try_from(stored: Stored) -> Result<Self, Error> {
        let Stored { collection, id, expect, change } = stored;
        let expect = match expect {
            StoredExpect::Absent => Expect::Absent,
            StoredExpect::Present => Expect::Present,
            StoredExpect::Revision(revision) => Expect::At(revision),
        };
        match (change, expect) {
            (StoredChange::Check, _) => Self::check(collection, id, expect),
            (StoredChange::Remove, Expect::At(revision)) => Self::remove(collection, id, revision),
            (StoredChange::Remove, _) => {
                Err(any_revision(&Self::new(&collection, &id, expect, Change::Remove)?))
            }
            (StoredChange::Put { document, terms, keep, actor }, _) => {
                let document: Box<RawValue> =
                    serde_json::from_str(&document).map_err(|source| {
                        let message =
                            format!("the document of record {collection}/{id} is not JSON");
                        Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message)
                            .with_source(source)
                    })?;
                let mut put = Self::put(collection, id, &*document, expect)?;
                for (name, value) in terms {
                    put = put.term(&name, &value)?;
                }
                if let Change::Put { keep: kept, actor: by, .. } = &mut put.change {
                    (*kept, *by) = (keep, actor.map(Arc::from));
                }
                Ok(put)
            }
        }
    }
}

/// How long a writer that lost against another one waits before it reads and decides again: longer and
/// more scattered the more often it lost.
pub fn conflict_delay(random: u64, losses: u32) -> Duration {
    let share = (random >> 32) as f64 / f64::from(u32::MAX);
    CONFLICT_DELAY.mul_f64(share * f64::from(losses.clamp(1, LOSSES_MAX)))
}

/// Refuses a collection that only the engine and its models write.
pub(crate) fn refuse_reserved(collection: &Collection) -> Result<(), Error> {
    if !collection.is_reserved() {
        return Ok(());
    }
    let message = format!(
        "the collection {collection:?} belongs to the engine; write to one that does not begin with \
         \"windlass.\""
    );
    Err(Error::new(ErrorKind::Invalid, ErrorCode::CollectionReserved, message))
}

fn any_revision(change: &RecordChange) -> Error {
    let message = format!(
        "the write of record {change} must expect a revision, or that there is none: a commit \
         that was sent twice would write it twice"
    );
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidRevision, message)
}

impl fmt::Display for RecordChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.collection, self.id)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stored_change_is_the_same_change() {
        let document = json!({ "b": 1.0, "a": [u64::MAX] });
        let put = RecordChange::put("carts", "c/7", &document, 3).unwrap();
        let put = put.term("customer", "ann").unwrap().keep().by(&Actor::new("user", "ann"));
        for change in [
            put,
            RecordChange::put("carts", "c", &1, Expect::Absent).unwrap(),
            RecordChange::remove("carts", "c", 2).unwrap(),
            RecordChange::check("carts", "c", Expect::Present).unwrap(),
        ] {
            let text = serde_json::to_string(&change).unwrap();
            assert_eq!(serde_json::from_str::<RecordChange>(&text).unwrap(), change, "{text}");
        }
    }

    #[test]
    fn a_revision_that_no_record_can_have_is_refused() {
        for revision in [0, REVISION_MAX + 1, u64::MAX] {
            let refused = [
                RecordChange::put("carts", "c", &1, revision),
                RecordChange::remove("carts", "c", revision),
                RecordChange::check("carts", "c", revision),
            ];
            for refused in refused {
                assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidRevision, "{revision}");
            }
        }
        let last = RecordChange::put("carts", "c", &1, REVISION_MAX).unwrap();
        assert_eq!(last.next_revision(), Some(REVISION_MAX + 1));
    }

    #[test]
    fn a_stored_change_is_checked_when_it_is_read() {
        let put = RecordChange::put("carts", "c", &1, Expect::Absent).unwrap();
        let text = serde_json::to_string(&put).unwrap();
        for (from, to) in [
            ("carts", "windlass.requests"),
            ("\"absent\"", "\"present\""),
            ("\"absent\"", "{\"revision\":0}"),
            ("\"document\":\"1\"", "\"document\":\"{\""),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            assert!(serde_json::from_str::<RecordChange>(&changed).is_err(), "{changed}");
        }
    }
}
