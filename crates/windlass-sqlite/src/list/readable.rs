//! Pages of readable rows: a row that cannot be decoded is left out, logged and counted, and the statement
//! goes on until the page is full.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Params, Row};
use windlass_kernel::{Error, ErrorKind, Run, RunKey, UnreadableRows, Uuid};

use crate::error::sql;
use crate::load;

/// The rows of one listing.
pub(super) struct Of {
    pub(super) table: &'static str,
    /// How many of the first columns name a row.
    pub(super) key_columns: usize,
    /// The most rows.
    pub(super) limit: u32,
}

/// Reads pages of one snapshot.
pub(super) struct Readable<'a> {
    pub(super) conn: &'a Connection,
    pub(super) unreadable: &'a UnreadableRows,
}

impl Readable<'_> {
    /// Runs a statement without a limit, and reads rows until the page is full.
    pub(super) fn page<T>(
        &self,
        of: Of,
        text: &str,
        params: impl Params,
        read: fn(&Row<'_>) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        self.read(&of, text, params, |row| self.keep(of.table, || key(row, &of), read(row)))
    }

    /// Like [`Readable::page`], but a row that cannot be read is an error.
    pub(super) fn whole_page<T>(
        &self,
        of: Of,
        text: &str,
        params: impl Params,
        read: fn(&Row<'_>) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        self.read(&of, text, params, |row| read(row).map(Some))
    }

    /// A run that an index refers to.
    pub(super) fn run(&self, run_key: RunKey) -> Result<Option<Run>, Error> {
        // An index entry without a row is damage; it must not just make the page shorter.
        let found = load::read_run(self.conn, run_key)?.ok_or_else(|| {
            Error::corrupt(format!("an index refers to run {run_key}, which has no row"))
        })?;
        self.keep("runs", || run_key.to_string(), found)
    }

    fn read<T>(
        &self,
        of: &Of,
        text: &str,
        params: impl Params,
        read: impl Fn(&Row<'_>) -> Result<Option<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        let mut select = self.conn.prepare_cached(text).map_err(sql)?;
        let mut found = select.query(params).map_err(sql)?;
        let mut page = Vec::new();
        while page.len() < of.limit as usize {
            let Some(row) = found.next().map_err(sql)? else { break };
            page.extend(read(row)?);
        }
        Ok(page)
    }

    fn keep<T>(
        &self,
        table: &'static str,
        key: impl Fn() -> String,
        read: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match read {
            Ok(row) => Ok(Some(row)),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let key = key();
                if self.unreadable.note(table, key.clone()) {
                    tracing::error!(
                        table, key, %error,
                        "a listing leaves out a row that cannot be read; repair or delete the row"
                    );
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn key(row: &Row<'_>, of: &Of) -> String {
    let columns = (0..of.key_columns).map(|at| match row.get_ref(at) {
        Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        Ok(ValueRef::Blob(bytes)) => match Uuid::from_slice(bytes) {
            Ok(key) => key.to_string(),
            Err(_) => format!("{} bytes", bytes.len()),
        },
        _ => "?".to_owned(),
    });
    columns.collect::<Vec<_>>().join("/")
}
