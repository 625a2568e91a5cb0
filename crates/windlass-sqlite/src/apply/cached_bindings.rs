//! A prepared statement that skips re-binding unchanged parameters. Binding copies, and most
//! columns of a row are null or equal to those of the row before.

use rusqlite::types::Null;
use rusqlite::{Connection, Statement};
use windlass_kernel::Body;

use crate::rows::{Blob, body};

// The longest text that is remembered; longer ones are bound each time.
const TEXT_BYTES: usize = 30;

/// A statement and the values of its parameters. SQLite keeps a value until another one is bound.
pub(super) struct CachedBindings<'c> {
    statement: Statement<'c>,
    bindings: Vec<Binding>,
    next: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Binding {
    // A value that is not remembered.
    Unknown,
    Null,
    Number(i64),
    Text(u8, [u8; TEXT_BYTES]),
}

impl<'c> CachedBindings<'c> {
    /// Prepares a statement.
    pub(super) fn prepare(conn: &'c Connection, sql: &str) -> rusqlite::Result<Self> {
        let statement = conn.prepare(sql)?;
        let bindings = vec![Binding::Unknown; statement.parameter_count()];
        Ok(Self { statement, bindings, next: 0 })
    }

    /// Starts with the first parameter, even if the previous run was abandoned.
    pub(super) fn start(&mut self) -> &mut Self {
        self.next = 0;
        self
    }

    /// Binds a number to the next parameter.
    pub(super) fn number(&mut self, value: impl Into<i64>) -> rusqlite::Result<()> {
        let value = value.into();
        self.bind_if_changed(Binding::Number(value), value)
    }

    /// Binds a number or null.
    pub(super) fn number_opt(&mut self, value: Option<impl Into<i64>>) -> rusqlite::Result<()> {
        match value {
            Some(value) => self.number(value),
            None => self.null(),
        }
    }

    /// Binds a text that is likely to equal that of the row before.
    pub(super) fn name(&mut self, value: &str) -> rusqlite::Result<()> {
        let bytes = value.as_bytes();
        match (u8::try_from(bytes.len()), self.bindings.get(self.next)) {
            (Ok(len), Some(binding)) if bytes.len() <= TEXT_BYTES => {
                if let Binding::Text(old, text) = binding
                    && *old == len
                    && text[..bytes.len()] == *bytes
                {
                    self.next += 1;
                    return Ok(());
                }
                let mut text = [0; TEXT_BYTES];
                text[..bytes.len()].copy_from_slice(bytes);
                self.bind(Binding::Text(len, text), value)
            }
            _ => self.text(value),
        }
    }

    /// Binds a text that is likely to equal that of the row before, or null.
    pub(super) fn name_opt(&mut self, value: Option<&str>) -> rusqlite::Result<()> {
        match value {
            Some(value) => self.name(value),
            None => self.null(),
        }
    }

    /// Binds a text.
    pub(super) fn text(&mut self, value: &str) -> rusqlite::Result<()> {
        self.bind(Binding::Unknown, value)
    }

    /// Binds a text or null.
    pub(super) fn text_opt(&mut self, value: Option<&str>) -> rusqlite::Result<()> {
        match value {
            Some(value) => self.text(value),
            None => self.null(),
        }
    }

    /// Binds bytes.
    pub(super) fn bytes(&mut self, value: &[u8]) -> rusqlite::Result<()> {
        self.bind(Binding::Unknown, Blob(value))
    }

    /// Binds bytes or null.
    pub(super) fn bytes_opt(&mut self, value: Option<&[u8]>) -> rusqlite::Result<()> {
        match value {
            Some(value) => self.bytes(value),
            None => self.null(),
        }
    }

    /// Binds the two columns of a body.
    pub(super) fn body(&mut self, value: &Option<Body>) -> rusqlite::Result<()> {
        let (encoding, bytes) = body(value);
        self.name_opt(encoding)?;
        self.bytes_opt(bytes.as_ref().map(|blob| blob.0))
    }

    /// Binds null.
    pub(super) fn null(&mut self) -> rusqlite::Result<()> {
        self.bind_if_changed(Binding::Null, Null)
    }

    /// Runs the statement after all parameters are bound. Returns how many rows it changed.
    pub(super) fn run(&mut self) -> rusqlite::Result<usize> {
        debug_assert_eq!(self.next, self.bindings.len(), "not all parameters are bound");
        self.statement.raw_execute()
    }

    fn bind_if_changed(
        &mut self,
        binding: Binding,
        value: impl rusqlite::ToSql,
    ) -> rusqlite::Result<()> {
        if self.bindings.get(self.next) == Some(&binding) {
            self.next += 1;
            return Ok(());
        }
        self.bind(binding, value)
    }

    fn bind(&mut self, binding: Binding, value: impl rusqlite::ToSql) -> rusqlite::Result<()> {
        let at = self.next;
        self.next += 1;
        if let Some(known) = self.bindings.get_mut(at) {
            *known = Binding::Unknown;
        }
        self.statement.raw_bind_parameter(at + 1, value)?;
        if let Some(known) = self.bindings.get_mut(at) {
            *known = binding;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_has_the_value_that_was_bound_last() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE rows (a ANY, b ANY) STRICT").unwrap();
        let mut insert =
            CachedBindings::prepare(&conn, "INSERT INTO rows (a, b) VALUES (?, ?)").unwrap();
        let long = "n".repeat(TEXT_BYTES + 1);
        let long = &*long;
        let names = ["a", "a", "b", "ab", long, long, ""].map(Some);
        let names = [None].into_iter().chain(names);
        for (n, name) in names.enumerate() {
            insert.start();
            insert.number_opt(Some(i64::try_from(n / 2).unwrap()).filter(|n| *n < 3)).unwrap();
            insert.name_opt(name).unwrap();
            assert_eq!(insert.run().unwrap(), 1);
        }
        // An abandoned row does not shift the parameters of the next one.
        insert.start().bytes(b"left").unwrap();
        insert.start().text("a").unwrap();
        insert.null().unwrap();
        insert.run().unwrap();

        let mut select =
            conn.prepare("SELECT quote(a), quote(b) FROM rows ORDER BY rowid").unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let rows: Vec<(String, String)> = rows.map(Result::unwrap).collect();
        let quoted = format!("'{long}'");
        let expect = [
            ("0", "NULL"),
            ("0", "'a'"),
            ("1", "'a'"),
            ("1", "'b'"),
            ("2", "'ab'"),
            ("2", &*quoted),
            ("NULL", &*quoted),
            ("NULL", "''"),
            ("'a'", "NULL"),
        ];
        assert_eq!(rows, expect.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
