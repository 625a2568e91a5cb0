//! Writes whose expectation is a value, for callers that received it from outside, such as a server.

use std::sync::Arc;

use windlass_kernel::{
    Actor, Body, CommitError, Conflict, Error, Expect, Keep, RecordFound, RecordKey, RecordOp,
    RecordPut, RecordWrite, Terms,
};

use super::{ROUNDS_MAX, Records};
use crate::record_change::conflict_delay;

/// The next revision of a record.
#[derive(Clone, Debug)]
pub struct NewDocument {
    /// The document.
    pub body: Body,
    /// The terms that replace the earlier ones.
    pub terms: Terms,
    /// Keeps this revision as a version that never changes.
    pub keep: bool,
    /// The actor that a kept version names.
    pub actor: Option<Actor>,
}

impl<T> Records<T>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    /// Writes a document if the record is as expected, and returns the new revision. A removed record
    /// is absent.
    ///
    /// # Errors
    ///
    /// [`Conflict::Record`] with the state that was found; otherwise as [`super::PutRecord::send`].
    pub async fn put_expecting(
        &self,
        id: impl AsRef<str>,
        expect: Expect,
        document: NewDocument,
    ) -> Result<u64, CommitError> {
        let key = self.writable(id.as_ref()).map_err(invalid)?;
        let NewDocument { body, terms, keep, actor } = document;
        let actor = actor.map(|actor| serde_json::to_string(&actor)).transpose();
        let actor = actor.expect("an actor can be written as JSON").map(Arc::from);
        let keep = keep.then(|| Keep { digest: body.digest(), actor, caused_by: None });
        let at = self.core.clock.now();
        let put = RecordPut { write_id: self.write_id(at), body, terms, keep, at, revision: None };
        self.write_expecting(key, expect, RecordWrite::Put(Box::new(put))).await
    }

    /// Removes a record that is as expected, and returns the revision of the removal.
    ///
    /// # Errors
    ///
    /// [`Conflict::Record`] with the state that was found.
    pub async fn remove_expecting(
        &self,
        id: impl AsRef<str>,
        expect: Expect,
    ) -> Result<u64, CommitError> {
        let key = self.writable(id.as_ref()).map_err(invalid)?;
        let at = self.core.clock.now();
        let write = RecordWrite::Remove { write_id: self.write_id(at), at };
        self.write_expecting(key, expect, write).await
    }

    // A commit needs a revision if it is to be recognised after a lost answer. "Present" and "absent" are
    // therefore tried with the revision of each state that the store reports.
    async fn write_expecting(
        &self,
        key: RecordKey,
        expect: Expect,
        write: RecordWrite,
    ) -> Result<u64, CommitError> {
        let mut asked = expect;
        if expect == Expect::Present {
            let row = self.row(key.clone()).await;
            let row = row.map_err(|error| CommitError::Unavailable(Arc::new(error)))?;
            match row.map_or(RecordFound::Absent, |row| row.found()) {
                RecordFound::At(revision) => asked = Expect::At(revision),
                found => return Err(conflict(&key, expect, found)),
            }
        }
        let is_put = matches!(write, RecordWrite::Put(_));
        let mut round = 1;
        loop {
            let op = RecordOp { key: key.clone(), expect: asked, write: write.clone() };
            let refused = match self.write(op).await {
                Err(CommitError::Conflict(Conflict::Record { found, .. })) => found,
                result => return result,
            };
            let next = match (expect, refused) {
                (Expect::Present, RecordFound::At(revision)) => revision,
                (Expect::Absent, RecordFound::Removed(revision)) if is_put => revision,
                _ => return Err(conflict(&key, expect, refused)),
            };
            if round == ROUNDS_MAX {
                return Err(conflict(&key, asked, refused));
            }
            asked = Expect::At(next);
            round += 1;
            let env = &self.core.env;
            env.sleep(conflict_delay(env.random(), 1)).await;
        }
    }
}

fn invalid(error: Error) -> CommitError {
    CommitError::Invalid(Arc::new(error))
}

fn conflict(key: &RecordKey, expected: Expect, found: RecordFound) -> CommitError {
    let (collection, id) = (key.collection.clone(), key.id.clone());
    CommitError::Conflict(Conflict::Record { collection, id, expected, found })
}
