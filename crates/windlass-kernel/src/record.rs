//! Records: small documents outside any run, with a revision that commits check and increase.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::body::Body;
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{Collection, Namespace, RecordId, WriteId};
use crate::ledger::CausalRef;
use crate::limits::{Limits, check_max};
use crate::time::Timestamp;

/// The largest revision that a commit can expect: the next one is the largest signed number of a store.
pub const REVISION_MAX: u64 = i64::MAX as u64 - 1;

/// The name of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// The namespace.
    pub namespace: Namespace,
    /// The collection.
    pub collection: Collection,
    /// The id, unique in the collection.
    pub id: RecordId,
}

impl RecordKey {
    /// Refuses a read of too many records.
    pub fn validate(keys: &[Self], limits: &Limits) -> Result<(), Error> {
        check_max("a read", "records", keys.len(), limits.records_per_commit_max)
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.collection, self.id)
    }
}

/// The row of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The name.
    pub key: RecordKey,
    /// The number of writes so far. It never decreases: a removal is a write too.
    pub revision: u64,
    /// The write that made this revision.
    pub write_id: WriteId,
    /// The document; `None` if the record is removed. A removed record keeps its row, so that its
    /// next revision is not one that an earlier reader has seen.
    pub body: Option<Body>,
    /// The terms that find it.
    pub terms: Terms,
    /// When it was written first.
    pub created_at: Timestamp,
    /// When it was written last.
    pub updated_at: Timestamp,
}

impl Record {
    /// The state that a commit's expectation is compared with.
    pub fn found(&self) -> RecordFound {
        match self.body {
            Some(_) => RecordFound::At(self.revision),
            None => RecordFound::Removed(self.revision),
        }
    }
}

/// A kept version of a record. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordVersion {
    /// The record.
    pub key: RecordKey,
    /// The revision that the record had.
    pub revision: u64,
    /// The document.
    pub body: Body,
    /// The digest of the document's bytes.
    pub digest: Sha256Digest,
    /// The actor who wrote it, as JSON.
    pub actor: Option<Arc<str>>,
    /// The event or run that caused the write.
    pub caused_by: Option<CausalRef>,
    /// When it was written.
    pub created_at: Timestamp,
}

/// One record of a commit: the state that the sender expects, and the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOp {
    /// The record.
    pub key: RecordKey,
    /// The state that the record must have.
    pub expect: Expect,
    /// The change.
    pub write: RecordWrite,
}

/// The state that a record must have for a commit to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expect {
    /// It does not exist. A `Put` also requires that it never existed, because only then the sender
    /// knows the new revision; to write a removed record again, expect the revision of its removal.
    Absent,
    /// It has this revision.
    At(u64),
    /// It exists at any revision.
    Present,
}

/// The change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordWrite {
    /// No change: the record only has to be as expected.
    Check,
    /// Writes the next revision.
    Put(Box<RecordPut>),
    /// Removes the document and its terms. Kept versions stay.
    Remove {
        /// Identifies this write.
        write_id: WriteId,
        /// The time.
        at: Timestamp,
    },
}

/// The next revision of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPut {
    /// Identifies this write.
    pub write_id: WriteId,
    /// The document.
    pub body: Body,
    /// The terms that replace the earlier ones.
    pub terms: Terms,
    /// Keeps this revision as a version that never changes.
    pub keep: Option<Keep>,
    /// The time.
    pub at: Timestamp,
    /// The revision that the write makes, if it is a later one than the next. Only an import sets it.
    pub revision: Option<u64>,
}

/// The data of a kept version besides its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The digest of the body.
    pub digest: Sha256Digest,
    /// The actor, as JSON.
    pub actor: Option<Arc<str>>,
    /// The event or run that caused the write.
    pub caused_by: Option<CausalRef>,
}

/// The state of a record that a store found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordFound {
    /// It never existed.
    Absent,
    /// It has this revision.
    At(u64),
    /// It was removed, which was this revision.
    Removed(u64),
}

impl RecordFound {
    /// The revision of the row; 0 if there is none.
    pub fn revision(self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::At(revision) | Self::Removed(revision) => revision,
        }
    }
}

impl RecordOp {
    /// Whether the expectation holds.
    pub fn holds(&self, found: RecordFound) -> bool {
        let is_put = matches!(self.write, RecordWrite::Put(_));
        match (self.expect, found) {
            (Expect::Absent, RecordFound::Absent) => true,
            (Expect::Absent, RecordFound::Removed(_)) => !self.is_write(),
            (Expect::At(expected), RecordFound::At(found)) => expected == found,
            (Expect::At(expected), RecordFound::Removed(found)) => is_put && expected == found,
            (Expect::Present, RecordFound::At(_)) => true,
            _ => false,
        }
    }

    /// Whether the op changes the record.
    pub fn is_write(&self) -> bool {
        !matches!(self.write, RecordWrite::Check)
    }

    /// The id of the write; `None` if the op only checks.
    pub fn write_id(&self) -> Option<WriteId> {
        match &self.write {
            RecordWrite::Check => None,
            RecordWrite::Put(put) => Some(put.write_id),
            RecordWrite::Remove { write_id, .. } => Some(*write_id),
        }
    }

    /// The new document; `None` if the op writes none.
    pub fn body(&self) -> Option<&Body> {
        match &self.write {
            RecordWrite::Put(put) => Some(&put.body),
            RecordWrite::Check | RecordWrite::Remove { .. } => None,
        }
    }

    /// The revision that the write makes, if the sender can know it.
    pub fn next_revision(&self) -> Option<u64> {
        let next = match self.expect {
            Expect::Absent => 1,
            Expect::At(revision) => revision.saturating_add(1),
            Expect::Present => return None,
        };
        self.is_write().then(|| self.set_revision().unwrap_or(next))
    }

    /// The revision that the op sets instead of the next one.
    pub fn set_revision(&self) -> Option<u64> {
        match &self.write {
            RecordWrite::Put(put) => put.revision,
            RecordWrite::Check | RecordWrite::Remove { .. } => None,
        }
    }

    /// The row after the op; `None` if the op only checks.
    pub fn apply(&self, before: Option<&Record>) -> Option<Record> {
        let next = before.map_or(0, |record| record.revision) + 1;
        let revision = self.set_revision().unwrap_or(next);
        let created = |at| before.map_or(at, |record| record.created_at);
        let (write_id, body, terms, at) = match &self.write {
            RecordWrite::Check => return None,
            RecordWrite::Put(put) => {
                (put.write_id, Some(put.body.clone()), put.terms.clone(), put.at)
            }
            RecordWrite::Remove { write_id, at } => (*write_id, None, Terms::default(), *at),
        };
        let (key, created_at) = (self.key.clone(), created(at));
        Some(Record { key, revision, write_id, body, terms, created_at, updated_at: at })
    }

    /// Whether the op keeps a version.
    pub fn keeps(&self) -> bool {
        matches!(&self.write, RecordWrite::Put(put) if put.keep.is_some())
    }

    /// The version to keep, if the op keeps one at this revision.
    pub fn version(&self, revision: u64) -> Option<RecordVersion> {
        let RecordWrite::Put(put) = &self.write else { return None };
        let keep = put.keep.as_ref()?;
        Some(RecordVersion {
            key: self.key.clone(),
            revision,
            body: put.body.clone(),
            digest: keep.digest,
            actor: keep.actor.clone(),
            caused_by: keep.caused_by,
            created_at: put.at,
        })
    }

    pub(crate) fn validate(&self, limits: &Limits) -> Result<(), Error> {
        if let Expect::At(revision) = self.expect
            && !(1..=REVISION_MAX).contains(&revision)
        {
            let message = format!(
                "record {} has no revision {revision}; revisions begin at 1 and end at {REVISION_MAX}",
                self.key
            );
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidRevision, message));
        }
        if matches!(self.write, RecordWrite::Remove { .. }) && self.expect == Expect::Absent {
            let message = format!("record {} cannot be removed if it does not exist", self.key);
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidRevision, message));
        }
        let RecordWrite::Put(put) = &self.write else { return Ok(()) };
        let before = match self.expect {
            Expect::At(revision) => revision,
            Expect::Absent => 0,
            Expect::Present => u64::MAX,
        };
        if put.revision.is_some_and(|revision| revision <= before || revision > REVISION_MAX) {
            let message = format!("the write of record {} sets an earlier revision", self.key);
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidRevision, message));
        }
        let what = format_args!("record {}", self.key);
        check_max(what, "bytes", put.body.len(), limits.record_bytes_max)?;
        check_max(what, "terms", put.terms.len(), limits.record_terms_max)?;
        for (name, value) in put.terms.iter() {
            let what = format_args!("the value of term {name:?} of {what}");
            check_max(what, "bytes", value.len(), limits.record_term_bytes_max)?;
        }
        if let Some(keep) = &put.keep {
            let actor = keep.actor.as_ref().map_or(0, |actor| actor.len());
            check_max("an actor", "bytes", actor, limits.actor_bytes_max)?;
            if keep.digest != put.body.digest() {
                let message = format!("the digest of {what} is not the digest of its body");
                return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidCommit, message));
            }
        }
        Ok(())
    }
}

/// The terms of a record: names and values by which listings find it. A name may have many values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms(BTreeSet<(Arc<str>, Arc<str>)>);

impl Terms {
    /// Adds a term.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidTerm`] if the name is not made of letters, digits and `_-.:`, if the value has
    /// control characters, or if either is too long.
    pub fn add(&mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Result<(), Error> {
        let (name, value) = (name.as_ref(), value.as_ref());
        let invalid =
            |message: String| Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidTerm, message));
        if Collection::new(name).is_err() {
            let excerpt: String = name.chars().take(40).collect();
            return invalid(format!(
                "the name {excerpt:?} of a term is not valid; use up to 64 letters, digits, '_' and \
                 (not first) '-', '.' and ':'"
            ));
        }
        let max = Limits::DEFAULT.record_term_bytes_max;
        if value.len() > max || value.chars().any(char::is_control) {
            let bytes = value.len();
            return invalid(format!(
                "the value of term {name:?} has {bytes} bytes or a control character; use text of at \
                 most {max} bytes without control characters"
            ));
        }
        self.0.insert((name.into(), value.into()));
        Ok(())
    }

    /// The number of terms.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names and values, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Whether a term is among them.
    pub fn contains(&self, name: &str, value: &str) -> bool {
        self.iter().any(|term| term == (name, value))
    }

    /// The terms as they are in the column: a JSON list of pairs, or `None` if there are none.
    pub fn to_column(&self) -> Option<String> {
        let pairs: Vec<_> = self.iter().collect();
        let text = || serde_json::to_string(&pairs).expect("texts can be written as JSON");
        (!pairs.is_empty()).then(text)
    }

    /// Reads the column.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::StoreCorrupt`] if the text is not a list of pairs.
    pub fn parse(column: Option<&str>) -> Result<Self, Error> {
        let Some(text) = column else { return Ok(Self::default()) };
        let pairs: Vec<(String, String)> = serde_json::from_str(text).map_err(|source| {
            Error::corrupt("cannot parse the terms of a record").with_source(source)
        })?;
        Ok(Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect()))
    }
}

impl From<u64> for Expect {
    fn from(revision: u64) -> Self {
        Self::At(revision)
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("not to exist"),
            Self::At(revision) => write!(f, "to have revision {revision}"),
            Self::Present => f.write_str("to exist"),
        }
    }
}

impl fmt::Display for RecordFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("it does not exist"),
            Self::At(revision) => write!(f, "it has revision {revision}"),
            Self::Removed(revision) => write!(f, "it was removed at revision {revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(expect: Expect, write: RecordWrite) -> RecordOp {
        let key = RecordKey {
            namespace: Namespace::default_namespace(),
            collection: Collection::new("carts").unwrap(),
            id: RecordId::new("c-7").unwrap(),
        };
        RecordOp { key, expect, write }
    }

    fn put(body: &str) -> RecordWrite {
        RecordWrite::Put(Box::new(RecordPut {
            write_id: WriteId(uuid::Uuid::from_u128(1)),
            body: Body::json(body.to_owned()),
            terms: Terms::default(),
            keep: None,
            at: Timestamp::ZERO,
            revision: None,
        }))
    }

    #[test]
    fn expectations_by_state() {
        use RecordFound::{Absent, At, Removed};
        let remove = RecordWrite::Remove {
            write_id: WriteId(uuid::Uuid::from_u128(2)),
            at: Timestamp::ZERO,
        };
        let states = [Absent, At(2), At(3), Removed(2), Removed(3)];
        // For each expectation, the states in which a check, a put and a removal hold.
        let table = [
            (Expect::Absent, ["10011", "10000", "10000"]),
            (Expect::At(2), ["01000", "01010", "01000"]),
            (Expect::Present, ["01100", "01100", "01100"]),
        ];
        for (expect, rows) in table {
            for (write, row) in [RecordWrite::Check, put("1"), remove.clone()].into_iter().zip(rows)
            {
                let op = op(expect, write);
                let found: String =
                    states.map(|state| if op.holds(state) { '1' } else { '0' }).iter().collect();
                assert_eq!(found, row, "{expect:?} {op:?}");
            }
        }
    }

    #[test]
    fn a_removed_record_continues_its_revisions() {
        let first = op(Expect::Absent, put("1")).apply(None).unwrap();
        let remove = RecordWrite::Remove {
            write_id: WriteId(uuid::Uuid::from_u128(2)),
            at: Timestamp::ZERO,
        };
        let removed = op(Expect::At(1), remove).apply(Some(&first)).unwrap();
        assert_eq!(removed.found(), RecordFound::Removed(2));
        let again = op(Expect::At(2), put("2")).apply(Some(&removed)).unwrap();
        assert_eq!(again.found(), RecordFound::At(3));
    }

    #[test]
    fn terms_are_checked_and_read_back() {
        let mut terms = Terms::default();
        assert_eq!(terms.to_column(), None);
        terms.add("role", "cfo").unwrap();
        terms.add("role", "ceo \"x\"").unwrap();
        terms.add("role", "cfo").unwrap();
        assert_eq!(terms.len(), 2);
        let column = terms.to_column();
        assert_eq!(column.as_deref(), Some(r#"[["role","ceo \"x\""],["role","cfo"]]"#));
        assert_eq!(Terms::parse(column.as_deref()).unwrap(), terms);
        for (name, value) in [("", "x"), ("a b", "x"), ("a", "x\n"), ("a", &"x".repeat(257))] {
            assert_eq!(terms.add(name, value).unwrap_err().code(), ErrorCode::InvalidTerm);
        }
        assert!(Terms::parse(Some("{}")).is_err());
    }
}
