//! A transaction that is held open and keeps seeing old rows, so that VACUUM cannot remove them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// The second statement takes the snapshot; its answer says that it is held.
const HOLD: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT 'held';\n";

/// A held snapshot. It ends on drop.
pub(crate) struct Snapshot(Child);

impl Snapshot {
    /// Starts `psql` and returns when it holds the snapshot.
    pub(super) fn hold(psql: &mut Command) -> Result<Self> {
        let psql = psql.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut held = Self(psql.spawn().context("could not start psql")?);
        let input = held.0.stdin.as_mut().context("psql has no input")?;
        input.write_all(HOLD.as_bytes())?;
        input.flush()?;
        let output = held.0.stdout.as_mut().context("psql has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if line.trim() != "held" {
            bail!("psql holds no snapshot: {line:?}");
        }
        Ok(held)
    }

    /// Ends the snapshot. It is an error if it was lost meanwhile.
    pub(crate) fn release(mut self) -> Result<()> {
        if let Some(status) = self.0.try_wait()? {
            bail!("the snapshot was lost: psql ended ({status})");
        }
        Ok(())
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // psql ends with its input.
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("error: {error}");
        }
    }
}
