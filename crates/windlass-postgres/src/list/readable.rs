//! Pages of readable rows: a row that cannot be decoded is left out, logged and counted, and the listing
//! asks for the rows behind it until the page is full.

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_kernel::{Error, ErrorKind};

use crate::store::Shared;

/// The rows of a page that were read so far.
pub(super) struct Readable<'a, T> {
    pub(super) rows: Vec<T>,
    shared: &'a Shared,
    table: &'static str,
    /// How many of the first columns name a row.
    key_columns: usize,
    limit: i64,
}

impl<'a, T> Readable<'a, T> {
    pub(super) fn new(
        shared: &'a Shared,
        table: &'static str,
        key_columns: usize,
        limit: i64,
    ) -> Self {
        Self { rows: Vec::new(), shared, table, key_columns, limit }
    }

    /// How many rows to ask for.
    pub(super) fn missing(&self) -> i64 {
        self.limit - self.rows.len() as i64
    }

    /// Adds the rows that were asked for. Returns the last one if the page is not full and more rows may
    /// follow.
    pub(super) fn add<'r>(
        &mut self,
        found: &'r [Row],
        read: fn(&Row) -> Result<T, Error>,
    ) -> Result<Option<&'r Row>, Error> {
        let asked = self.missing();
        for row in found {
            match read(row) {
                Ok(read) => self.rows.push(read),
                Err(error) if error.kind() == ErrorKind::Corrupt => self.note(row, &error),
                Err(error) => return Err(error),
            }
        }
        let more = found.len() as i64 >= asked && self.missing() > 0;
        Ok(found.last().filter(|_| more))
    }

    fn note(&self, row: &Row, error: &Error) {
        let column = |at: usize| match row.try_get::<_, Uuid>(at) {
            Ok(key) => key.to_string(),
            Err(_) => row.try_get(at).unwrap_or_else(|_| "?".to_owned()),
        };
        let key = (0..self.key_columns).map(column).collect::<Vec<_>>().join("/");
        if self.shared.unreadable.note(self.table, key.clone()) {
            tracing::error!(
                table = self.table, key, %error,
                "a listing leaves out a row that cannot be read; repair or delete the row"
            );
        }
    }
}
