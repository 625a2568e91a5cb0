//! A statement that is run over and over: what stands in a place from the last time is not bound
//! again. Binding copies, and most of a row's columns are empty or what they were a row before.

use rusqlite::types::Null;
use rusqlite::{Connection, Statement};
use windlass_kernel::Body;

use crate::rows::{Blob, body};

// What is remembered of a text; longer ones are bound each time.
const TEXT_BYTES: usize = 30;

/// A statement, and what is bound to its places. SQLite keeps that until something else is bound.
pub(super) struct Bound<'c> {
    statement: Statement<'c>,
    places: Vec<Place>,
    next: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    // Something that is not remembered.
    Unknown,
    Null,
    Number(i64),
    Text(u8, [u8; TEXT_BYTES]),
}

impl<'c> Bound<'c> {
    /// Prepares a statement.
    pub(super) fn prepare(conn: &'c Connection, sql: &str) -> rusqlite::Result<Self> {
        let statement = conn.prepare(sql)?;
        let places = vec![Place::Unknown; statement.parameter_count()];
        Ok(Self { statement, places, next: 0 })
    }

    /// Begins with the first place, whatever became of the last time.
    pub(super) fn start(&mut self) -> &mut Self {
        self.next = 0;
        self
    }

    /// Binds a number to the next place.
    pub(super) fn number(&mut self, value: impl Into<i64>) -> rusqlite::Result<()> {
        let value = value.into();
        self.unless(Place::Number(value), value)
    }

    /// Binds a number, or nothing.
    pub(super) fn number_opt(&mut self, value: Option<impl Into<i64>>) -> rusqlite::Result<()> {
        match value {
            Some(value) => self.number(value),
            None => self.null(),
        }
    }

    /// Binds a text that is often what it was a row before.
    pub(super) fn name(&mut self, value: &str) -> rusqlite::Result<()> {
        let bytes = value.as_bytes();
        match (u8::try_from(bytes.len()), self.places.get(self.next)) {
            (Ok(len), Some(place)) if bytes.len() <= TEXT_BYTES => {
                if let Place::Text(old, text) = place
                    && *old == len
                    && text[..bytes.len()] == *bytes
                {
                    self.next += 1;
                    return Ok(());
                }
                let mut text = [0; TEXT_BYTES];
                text[..bytes.len()].copy_from_slice(bytes);
                self.bind(Place::Text(len, text), value)
            }
            _ => self.text(value),
        }
    }

    /// Binds a text that is often what it was a row before, or nothing.
    pub(super) fn name_opt(&mut self, value: Option<&str>) -> rusqlite::Result<()> {
        match value {
            Some(value) => self.name(value),
            None => self.null(),
        }
    }

    /// Binds a text.
    pub(super) fn text(&mut self, value: &str) -> rusqlite::Result<()> {
        self.bind(Place::Unknown, value)
    }

    /// Binds a text, or nothing.
    pub(super) fn text_opt(&mut self, value: Option<&str>) -> rusqlite::Result<()> {
        match value {
            Some(value) => self.text(value),
            None => self.null(),
        }
    }

    /// Binds bytes.
    pub(super) fn bytes(&mut self, value: &[u8]) -> rusqlite::Result<()> {
        self.bind(Place::Unknown, Blob(value))
    }

    /// Binds bytes, or nothing.
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

    /// Binds nothing.
    pub(super) fn null(&mut self) -> rusqlite::Result<()> {
        self.unless(Place::Null, Null)
    }

    /// Runs the statement, whose places have all been bound, and says how many rows it changed.
    pub(super) fn run(&mut self) -> rusqlite::Result<usize> {
        debug_assert_eq!(self.next, self.places.len(), "places are bound from first to last");
        self.statement.raw_execute()
    }

    fn unless(&mut self, place: Place, value: impl rusqlite::ToSql) -> rusqlite::Result<()> {
        if self.places.get(self.next) == Some(&place) {
            self.next += 1;
            return Ok(());
        }
        self.bind(place, value)
    }

    fn bind(&mut self, place: Place, value: impl rusqlite::ToSql) -> rusqlite::Result<()> {
        let at = self.next;
        self.next += 1;
        if let Some(known) = self.places.get_mut(at) {
            *known = Place::Unknown;
        }
        self.statement.raw_bind_parameter(at + 1, value)?;
        if let Some(known) = self.places.get_mut(at) {
            *known = place;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_what_was_asked_for_last() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE rows (a ANY, b ANY) STRICT").unwrap();
        let mut insert = Bound::prepare(&conn, "INSERT INTO rows (a, b) VALUES (?, ?)").unwrap();
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
        // One that was given up half bound does not shift the next one.
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
