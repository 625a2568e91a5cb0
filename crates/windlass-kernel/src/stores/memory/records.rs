//! Records: their guards, writes and listings.

use std::ops::Bound;
use std::sync::Arc;

use crate::commit::{Commit, Conflict};
use crate::ids::{Collection, Namespace, RecordId, WriteId};
use crate::record::{Record, RecordFound, RecordKey, RecordOp, RecordVersion};
use crate::store::{DeleteRemovedRecords, DeletedRecords};

use super::state::State;

impl State {
    pub(super) fn check_records(&self, commit: &Commit) -> Result<(), Conflict> {
        for op in commit.records() {
            let found = self.records.get(&op.key).map_or(RecordFound::Absent, Record::found);
            if !op.holds(found) {
                let RecordKey { collection, id, .. } = op.key.clone();
                return Err(Conflict::Record { collection, id, expected: op.expect, found });
            }
        }
        Ok(())
    }

    pub(super) fn was_written(&self, key: &RecordKey, write_id: WriteId) -> bool {
        self.records.get(key).is_some_and(|record| record.write_id == write_id)
    }

    pub(super) fn write_record(&mut self, op: &RecordOp) {
        let Some(record) = op.apply(self.records.get(&op.key)) else { return };
        if let Some(version) = op.version(record.revision) {
            self.record_versions.insert((op.key.clone(), record.revision), version);
        }
        self.records.insert(op.key.clone(), record);
        self.forget_bodies(&op.key);
    }

    pub(super) fn list_records(
        &self,
        namespace: &Namespace,
        collection: &Collection,
        term: Option<&(Arc<str>, Arc<str>)>,
        after: Option<&RecordId>,
    ) -> impl Iterator<Item = &Record> {
        let rows = self.records.values().filter(move |record| {
            record.key.namespace == *namespace && record.key.collection == *collection
        });
        rows.filter(move |record| {
            record.body.is_some()
                && after.is_none_or(|after| record.key.id > *after)
                && term.is_none_or(|(name, value)| record.terms.contains(name, value))
        })
    }

    pub(super) fn collections(
        &self,
        namespace: &Namespace,
        after: Option<&Collection>,
        limit: usize,
    ) -> Vec<Collection> {
        let own = self.records.keys().filter(|key| key.namespace == *namespace);
        let mut names: Vec<Collection> = own
            .map(|key| key.collection.clone())
            .filter(|name| after.is_none_or(|after| name > after))
            .collect();
        names.dedup();
        names.truncate(limit);
        names
    }

    pub(super) fn all_records(&self, after: Option<&RecordKey>) -> impl Iterator<Item = &Record> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.records.range((from, Bound::Unbounded)).map(|(_, record)| record)
    }

    pub(super) fn versions_of(
        &self,
        key: &RecordKey,
        before: Option<u64>,
    ) -> impl Iterator<Item = &RecordVersion> {
        let (first, end) = ((key.clone(), 0), (key.clone(), before.unwrap_or(u64::MAX)));
        self.record_versions.range(first..end).rev().map(|(_, version)| version)
    }

    pub(super) fn delete_removed_records(
        &mut self,
        request: &DeleteRemovedRecords,
    ) -> DeletedRecords {
        let place =
            |key: &RecordKey| (key.collection.clone(), key.namespace.clone(), key.id.clone());
        let after = request.after.as_ref().map(place);
        let removed = self.records.values().filter(|record| {
            record.body.is_none() && record.key.collection.is_reserved() == request.reserved
        });
        let mut page: Vec<_> = removed
            .map(|record| (place(&record.key), record.key.clone(), record.updated_at))
            .filter(|(place, ..)| after.as_ref().is_none_or(|after| place > after))
            .collect();
        page.sort();
        let is_last = page.len() <= request.limit as usize;
        page.truncate(request.limit as usize);
        let mut deleted = 0;
        for (_, key, removed_at) in &page {
            let is_old = removed_at.plus(request.removed_for) <= self.now;
            if is_old && self.versions_of(key, None).next().is_none() {
                self.records.remove(key);
                deleted += 1;
            }
        }
        let left = page.len() as u64 - deleted;
        let next = page.pop().map(|(_, key, _)| key).filter(|_| !is_last);
        DeletedRecords { deleted, left, next }
    }
}
