//! Large bodies of the memory store: bytes by owner and digest, stored once.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;

use crate::bodies::{BodyKey, BodyOwner, BodySource, PutBody};
use crate::body::BodyRef;
use crate::digest::Sha256Digest;
use crate::ids::RunKey;
use crate::record::RecordKey;

use super::state::State;

impl State {
    // The owner of a run's bodies is the root of its tree; `None` if the run does not exist.
    fn body_owner(&self, owner: &BodyOwner) -> Option<BodyOwner> {
        match owner {
            BodyOwner::Run(run_key) => Some(BodyOwner::Run(self.runs.get(run_key)?.root)),
            BodyOwner::Record(_) => Some(owner.clone()),
        }
    }

    pub(super) fn body(&self, key: &BodyKey) -> Option<Bytes> {
        let owner = self.body_owner(&key.owner)?;
        self.bodies.get(&BodyKey { owner, digest: key.digest }).cloned()
    }

    pub(super) fn put_body(&mut self, put: &PutBody) {
        let Some(owner) = self.body_owner(put.owner()) else { return };
        let bytes = match put.source() {
            BodySource::Bytes(bytes) => Some(bytes.clone()),
            BodySource::Tree(from) => self.body_of_tree(put.owner(), *from, put.digest()),
        };
        if let Some(bytes) = bytes {
            self.bodies.entry(BodyKey { owner, digest: put.digest() }).or_insert(bytes);
        }
    }

    fn body_of_tree(&self, to: &BodyOwner, from: RunKey, digest: Sha256Digest) -> Option<Bytes> {
        let BodyOwner::Run(to) = to else { return None };
        let is_same = self.runs.get(to)?.namespace == self.runs.get(&from)?.namespace;
        let key = BodyKey { owner: BodyOwner::Run(from), digest };
        self.body(&key).filter(|_| is_same)
    }

    /// Deletes the bodies of a record that neither its row nor a kept version names.
    pub(super) fn forget_bodies(&mut self, key: &RecordKey) {
        let owner = BodyOwner::Record(key.clone());
        if self.bodies_of(&owner, None).next().is_none() {
            return;
        }
        let kept = self.versions_of(key, None).filter_map(|version| version.body.reference());
        let current = self.records.get(key).and_then(|record| record.body.as_ref()?.reference());
        let named: BTreeSet<Sha256Digest> =
            kept.chain(current).map(|reference| reference.digest).collect();
        self.bodies.retain(|body, _| body.owner != owner || named.contains(&body.digest));
    }

    pub(super) fn list_bodies(
        &self,
        owner: &BodyOwner,
        after: Option<Sha256Digest>,
        limit: usize,
    ) -> Vec<BodyRef> {
        let Some(owner) = self.body_owner(owner) else { return Vec::new() };
        self.bodies_of(&owner, after).take(limit).collect()
    }

    fn bodies_of(
        &self,
        owner: &BodyOwner,
        after: Option<Sha256Digest>,
    ) -> impl Iterator<Item = BodyRef> {
        let key = |digest| BodyKey { owner: owner.clone(), digest };
        let from = match after {
            Some(after) => Bound::Excluded(key(after)),
            None => Bound::Included(key(Sha256Digest::from_bytes([0; 32]))),
        };
        let last = Bound::Included(key(Sha256Digest::from_bytes([u8::MAX; 32])));
        let rows = self.bodies.range((from, last));
        rows.map(|(key, bytes)| BodyRef { digest: key.digest, len: bytes.len() as u64 })
    }
}
