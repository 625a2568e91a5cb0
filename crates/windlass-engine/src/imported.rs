//! Tasks of the engine's own records in a store into which the records were imported.

use windlass_kernel::request::REQUESTS;
use windlass_kernel::{Error, Record, Task, Timestamp};

use crate::{keyed, receipts, requests};

/// The tasks that a record of the engine needs, such as the one that deletes a receipt when its time is over.
///
/// These tasks belong to no run, so no export has them. The commit that imports the record creates them.
/// A task that comes too early reads the record and looks again later.
///
/// # Errors
///
/// The record cannot be read.
pub fn tasks_of_imported_record(record: &Record, now: Timestamp) -> Result<Vec<Task>, Error> {
    match record.key.collection.as_str() {
        receipts::COLLECTION => receipts::tasks_of_imported(record, now),
        REQUESTS => requests::tasks_of_imported(record, now),
        keyed::COLLECTION => keyed::tasks_of_imported(record, now),
        _ => Ok(Vec::new()),
    }
}
