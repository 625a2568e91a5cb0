//! Verifies the kept versions of records: each has the digest of its document.

use std::fmt;

use super::{PAGE, Report};
use crate::bodies;
use crate::error::{Error, ErrorKind};
use crate::query::Query;
use crate::record::{RecordKey, RecordVersion};
use crate::store::Store;

/// How many versions are read at once: each may have a large body.
const VERSIONS_PAGE: u32 = 16;

/// The first problem of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFlaw {
    /// The record.
    pub key: RecordKey,
    /// The version with the problem. `None` if the versions could not be read.
    pub revision: Option<u64>,
    /// The problem.
    pub what: String,
}

impl fmt::Display for RecordFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(revision) = self.revision {
            write!(f, "version {revision} of ")?;
        }
        write!(f, "record {} of namespace {}: {}", self.key, self.key.namespace, self.what)
    }
}

/// Verifies the kept versions of all records.
pub(super) async fn verify_records(store: &dyn Store, report: &mut Report) -> Result<(), Error> {
    let mut after = None;
    loop {
        let page = match store.list(Query::AllRecords { after, limit: PAGE }).await {
            Ok(rows) => rows.records()?,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                report.unreadable.push(format!("cannot list the records: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for record in &page {
            let flaw = verify_versions(store, &record.key, &mut report.versions).await?;
            report.record_flaws.extend(flaw);
        }
        after = page.last().map(|record| record.key.clone());
        if page.len() < PAGE as usize {
            return Ok(());
        }
    }
}

async fn verify_versions(
    store: &dyn Store,
    key: &RecordKey,
    count: &mut u64,
) -> Result<Option<RecordFlaw>, Error> {
    let flaw = |revision, what: String| RecordFlaw { key: key.clone(), revision, what };
    let mut before = None;
    loop {
        let query = Query::RecordVersions { key: key.clone(), before, limit: VERSIONS_PAGE };
        let mut page = match store.list(query).await {
            Ok(rows) => rows.record_versions()?,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Ok(Some(flaw(None, format!("its versions cannot be read: {error}"))));
            }
            Err(error) => return Err(error),
        };
        *count += page.len() as u64;
        for version in &mut page {
            if let Some(what) = damage(store, version).await? {
                return Ok(Some(flaw(Some(version.revision), what)));
            }
        }
        before = page.last().map(|version| version.revision);
        if page.len() < VERSIONS_PAGE as usize {
            return Ok(None);
        }
    }
}

async fn damage(store: &dyn Store, version: &mut RecordVersion) -> Result<Option<String>, Error> {
    match bodies::fill(store, bodies::of_versions(std::slice::from_mut(version))).await {
        Ok(()) if version.body.digest() == version.digest => Ok(None),
        Ok(()) => Ok(Some("the document is not the one that was kept".to_owned())),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            Ok(Some(format!("the document cannot be read: {error}")))
        }
        Err(error) => Err(error),
    }
}
