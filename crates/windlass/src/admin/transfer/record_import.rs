//! Writing an exported record into a store, through commits alone.
//!
//! The last commit of a record also creates the tasks that the engine needs for it, because they belong to no
//! run and no export has them.
//!
//! Each kept version is a write that sets its revision, and the last write makes the row what it was. The
//! id of an earlier write is derived from the id of the last one, so an import that was interrupted is
//! known by its row, and the next one carries it on.

use std::sync::Arc;

use windlass_engine::tasks_of_imported_record;
use windlass_kernel::kept::LEDGERS;
use windlass_kernel::{
    Body, Commit, CommitError, Conflict, Error, ErrorCode, ErrorKind, Expect, Keep, MemoryStore,
    Op, Record, RecordOp, RecordPut, RecordVersion, RecordWrite, Sha256Digest, Terms, Timestamp,
    Uuid, WriteId,
};

use super::import::{Imported, Importer, refused};
use super::record::{RecordExport, RecordParts};

impl Importer {
    /// Writes one record and its kept versions. A record that is there already is left as it is. Import the
    /// runs before the records: a record of the engine can name a run.
    ///
    /// ```
    /// # async fn example(importer: windlass::admin::transfer::Importer, line: &str) -> windlass::Result<()> {
    /// use windlass::admin::transfer::RecordExport;
    ///
    /// importer.import_record(RecordExport::parse(line)?).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidExport`] if the rows do not fit together, [`ErrorCode::RecordConflict`] if the store
    /// has another record with this key, [`ErrorCode::ImportRefused`] if it is the record of a kept ledger, whose
    /// events no export has, or the store cannot be written.
    pub async fn import_record(&self, export: RecordExport) -> Result<Imported, Error> {
        let parts = export.parts()?;
        let key = parts.record.key.clone();
        if key.collection.as_str() == LEDGERS {
            let message = format!("record {key} is useless without the events of its ledger");
            return Err(Error::new(ErrorKind::Refused, ErrorCode::ImportRefused, message));
        }
        let found = self.store.records(vec![key]).await?.pop().flatten();
        let Some(found) = found else {
            // A record that the store would refuse in its middle is refused before its first write.
            let now = self.store.now().await?;
            let rehearsal = MemoryStore::new(Arc::new(move || now), self.limits.clone());
            let (store, limits) = (Arc::new(rehearsal), self.limits.clone());
            let rehearsal = Self { store, worker: self.worker, limits };
            rehearsal.write_record(parts.clone(), None).await?;
            self.write_record(parts, None).await?;
            return Ok(Imported::Written);
        };
        if found == parts.record {
            return Ok(Imported::Skipped);
        }
        if found.write_id != earlier_write(&parts.record, found.revision) {
            return Err(another(&parts.record));
        }
        self.write_record(parts, Some(found.revision)).await?;
        Ok(Imported::Completed)
    }

    // Continues after a revision that an interrupted import has written.
    async fn write_record(&self, parts: RecordParts, mut at: Option<u64>) -> Result<(), Error> {
        let key = parts.record.key.clone();
        let mut tasks = tasks_of_imported_record(&parts.record, self.store.now().await?)?;
        for (revision, write) in writes(&parts) {
            if at.is_some_and(|at| revision <= at) {
                continue;
            }
            let expect = at.map_or(Expect::Absent, Expect::At);
            let op = Op::Record(Box::new(RecordOp { key: key.clone(), expect, write }));
            let mut ops = vec![op];
            if revision == parts.record.revision {
                ops.extend(tasks.drain(..).map(|task| Op::Enqueue(Box::new(task))));
            }
            match self.send(Commit::new(None, None, ops)).await {
                Ok(_) => at = Some(revision),
                Err(CommitError::Conflict(Conflict::Record { .. })) => {
                    return Err(another(&parts.record));
                }
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(())
    }
}

// The writes that make a record what it was, with the revisions that they make.
fn writes(parts: &RecordParts) -> Vec<(u64, RecordWrite)> {
    let RecordParts { record, versions } = parts;
    let mut writes: Vec<(u64, RecordWrite)> = Vec::new();
    // The time of the first write is that of the record's creation.
    let first = versions.first().map_or(record.revision, |version| version.revision);
    if first > 1 {
        writes.push((1, filler(record, 1, record.created_at)));
    }
    for version in versions {
        writes.push((version.revision, kept(record, version)));
    }
    let last = writes.last().map_or(0, |(revision, _)| *revision);
    match &record.body {
        Some(body) if last < record.revision => {
            let put = RecordPut {
                write_id: record.write_id,
                body: body.clone(),
                terms: record.terms.clone(),
                keep: None,
                at: record.updated_at,
                revision: Some(record.revision),
            };
            writes.push((record.revision, RecordWrite::Put(Box::new(put))));
        }
        Some(_) => {}
        None => {
            let before = record.revision - 1;
            if last < before {
                writes.push((before, filler(record, before, record.updated_at)));
            }
            let (write_id, at) = (record.write_id, record.updated_at);
            writes.push((record.revision, RecordWrite::Remove { write_id, at }));
        }
    }
    writes
}

fn kept(record: &Record, version: &RecordVersion) -> RecordWrite {
    let newest = version.revision == record.revision;
    let (digest, caused_by) = (version.digest, version.caused_by);
    RecordWrite::Put(Box::new(RecordPut {
        write_id: match newest {
            true => record.write_id,
            false => earlier_write(record, version.revision),
        },
        body: version.body.clone(),
        terms: if newest { record.terms.clone() } else { Terms::default() },
        keep: Some(Keep { digest, actor: version.actor.clone(), caused_by }),
        at: version.created_at,
        revision: Some(version.revision),
    }))
}

// A revision of which nothing was kept.
fn filler(record: &Record, revision: u64, at: Timestamp) -> RecordWrite {
    let (write_id, body) = (earlier_write(record, revision), Body::json("null"));
    let (terms, keep, revision) = (Terms::default(), None, Some(revision));
    RecordWrite::Put(Box::new(RecordPut { write_id, body, terms, keep, at, revision }))
}

// The id of a write of the import that is not its last one.
fn earlier_write(record: &Record, revision: u64) -> WriteId {
    let parts: [&[u8]; 3] =
        [b"windlass:import:v1", record.write_id.as_bytes(), &revision.to_be_bytes()];
    let digest = Sha256Digest::of_parts(&parts);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    WriteId(Uuid::from_bytes(bytes))
}

fn another(record: &Record) -> Error {
    let message = format!("record {} is another one in this store", record.key);
    Error::new(ErrorKind::Conflict, ErrorCode::RecordConflict, message)
}
