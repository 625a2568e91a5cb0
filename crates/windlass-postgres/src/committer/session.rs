//! The connection of a committer. It sends a batch until the outcome is known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::{Client, Row, Statement};
use windlass_kernel::{Commit, CommitError, Error};

use crate::apply::{Answers, Batch, CALL, Mode, SETTLE, Settles, read_answers, unavailable};
use crate::error::{Failure, call_error, classify, error_text, is_unique, unknown};
use crate::store::Shared;

/// How often a batch is retried that lost a deadlock or a serialization conflict.
const TRIES_MAX: u32 = 50;

/// How often in a row the answer to a batch may be lost before its commits are sent separately.
const LOSSES_MAX: u32 = 3;

/// How long a batch that was never sent waits for a connection. Nothing was written, so the caller
/// can learn that soon and decide whether to retry.
const UNSENT_FOR: Duration = Duration::from_secs(2);

/// The database refuses the batch and would refuse it again: one of its commits is at fault.
#[derive(Debug)]
pub(crate) struct BatchRefused {
    /// The error; `None` if each answer was lost.
    pub(crate) error: Option<tokio_postgres::Error>,
    /// An answer was lost before, so the batch or a part of it may have been written.
    pub(crate) sent_before: bool,
}

/// How many batches use [`Mode::FastExisting`] after a create met a run that exists.
const EXPECT_EXISTING_BATCHES: u32 = 100;

/// A connection that reconnects when it is lost.
pub(crate) struct Session {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    expect_existing: u32,
    // The last batch, kept to reuse its memory.
    batch: Batch,
}

struct Connection {
    client: Client,
    commit: Statement,
    settle: Statement,
}

impl Connection {
    // `Err(None)`: no answer came in time, so the connection cannot be used any more.
    async fn call(
        &self,
        batch: &Batch,
        settles: Option<&Settles>,
        mode: Mode,
        timeout: Duration,
    ) -> Result<Vec<Row>, Option<tokio_postgres::Error>> {
        let number = mode as i16;
        let rows = async {
            match settles.filter(|_| mode == Mode::Settle) {
                Some(settles) => self.client.query(&self.settle, &settles.params()).await,
                None => self.client.query(&self.commit, &batch.params(&number)).await,
            }
        };
        match tokio::time::timeout(timeout, rows).await {
            Ok(result) => result.map_err(Some),
            Err(_) => Err(None),
        }
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, connection: None, expect_existing: 0, batch: Batch::default() }
    }

    /// Sends commits of one batch. After a lost answer it sends the same batch again: guards and
    /// keys show which commits were written. Also returns whether an answer was lost.
    pub(crate) async fn send(
        &mut self,
        commits: &[&Commit],
        sent_before: bool,
    ) -> Result<(Answers, bool), BatchRefused> {
        let mut batch = std::mem::take(&mut self.batch);
        let sent = self.send_batch(commits, &mut batch, sent_before).await;
        self.batch = batch;
        sent
    }

    async fn send_batch(
        &mut self,
        commits: &[&Commit],
        batch: &mut Batch,
        sent_before: bool,
    ) -> Result<(Answers, bool), BatchRefused> {
        if let Some(before_batch) = self.shared.options.before_batch {
            before_batch();
        }
        let settles = if sent_before { None } else { Settles::of(commits) };
        if settles.is_none() {
            batch.fill(commits);
        }
        let mut mode = match (&settles, sent_before) {
            (Some(_), _) => Mode::Settle,
            (None, true) => Mode::Checked,
            (None, false) => batch.mode(self.expect_existing > 0),
        };
        self.expect_existing = self.expect_existing.saturating_sub(1);
        let mut sent_before = sent_before;
        let mut tries = 0;
        // Commits of a batch that was lost before get fewer attempts.
        let mut losses = if sent_before { LOSSES_MAX - 1 } else { 0 };
        let until = self.shared.options.reconnect_for;
        let began = Instant::now();
        let mut deadline = began + if sent_before { until } else { until.min(UNSENT_FOR) };
        let timeout = self.shared.options.statement_timeout + Duration::from_secs(10);
        loop {
            let connection = match self.connect(deadline).await {
                Ok(connection) => connection,
                Err(error) => {
                    let error = match sent_before {
                        true => unknown(&error.to_string()),
                        false => unavailable(error),
                    };
                    return Ok((all_failed(commits, &error), sent_before));
                }
            };
            let was = mode;
            match connection.call(batch, settles.as_ref(), mode, timeout).await {
                Ok(rows) => return Ok((answers(commits, &rows), sent_before)),
                Err(error) if error.as_ref().is_none_or(is_lost) => {
                    let error = error.as_ref().map(error_text);
                    tracing::warn!(
                        ?error,
                        "lost the answer to a batch of commits; sending it again"
                    );
                    // The first call may still be running: check before writing.
                    (sent_before, mode) = (true, Mode::Checked);
                    self.connection = None;
                    losses += 1;
                    if losses > LOSSES_MAX {
                        return Err(BatchRefused { error: None, sent_before });
                    }
                    tokio::time::sleep(Duration::from_millis(20 << losses)).await;
                    deadline = (began + until).max(Instant::now() + until / 2);
                }
                Err(None) => return Err(BatchRefused { error: None, sent_before }),
                Err(Some(error)) => match classify(&error) {
                    // The duplicate key may be a run or a step that exists after all.
                    Failure::NeedsChecks | Failure::Constraint if mode != Mode::Checked => {
                        if is_unique(&error) {
                            self.expect_existing = EXPECT_EXISTING_BATCHES;
                        }
                        mode = Mode::Checked;
                    }
                    Failure::Retry | Failure::NeedsChecks if tries < TRIES_MAX => {
                        tries += 1;
                        tokio::time::sleep(Duration::from_millis(u64::from(tries.min(20)))).await;
                    }
                    // `connect` looks for the server that accepts writes, until the deadline.
                    Failure::ReadOnly if Instant::now() < deadline => {
                        tracing::warn!("PostgreSQL accepts no writes; looking for another server");
                        self.connection = None;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    _ => return Err(BatchRefused { error: Some(error), sent_before }),
                },
            }
            if was == Mode::Settle && mode != was {
                batch.fill(commits);
            }
        }
    }

    async fn connect(&mut self, deadline: Instant) -> Result<&Connection, Error> {
        if self.connection.as_ref().is_some_and(|connection| connection.client.is_closed()) {
            self.connection = None;
        }
        let mut pause = Duration::from_millis(20);
        while self.connection.is_none() {
            match open_connection(&self.shared).await {
                Ok(connection) => self.connection = Some(connection),
                Err(error) if Instant::now() + pause > deadline => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "a committer cannot connect to PostgreSQL; retrying");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(2));
                }
            }
        }
        self.connection.as_ref().ok_or_else(|| crate::error::unavailable("there is no connection"))
    }
}

async fn open_connection(shared: &Shared) -> Result<Connection, Error> {
    let client = shared.connector.client().await?;
    let commit = client.prepare(&shared.sql(CALL)).await.map_err(call_error)?;
    let settle = client.prepare(&shared.sql(SETTLE)).await.map_err(call_error)?;
    Ok(Connection { client, commit, settle })
}

/// Checks a commit under locks, over a connection of the pool, and writes nothing.
pub(crate) async fn decide(shared: &Shared, commit: &Commit) -> Result<Answers, Error> {
    let batch = Batch::of(&[commit]);
    let mode = Mode::CheckOnly as i16;
    let rows = shared.query(CALL, &batch.params(&mode)).await?;
    read_answers(&[commit], &rows)
}

fn is_lost(error: &tokio_postgres::Error) -> bool {
    classify(error) == Failure::Lost
}

fn answers(commits: &[&Commit], rows: &[Row]) -> Answers {
    match read_answers(commits, rows) {
        Ok(answers) => answers,
        // The batch was written but its result cannot be read. Reporting a failure would be wrong;
        // sending it again is safe.
        Err(error) => all_failed(commits, &unknown(&error.to_string())),
    }
}

fn all_failed(commits: &[&Commit], error: &CommitError) -> Answers {
    let results = commits.iter().map(|_| Err(error.clone())).collect();
    Answers { results, wakeups: Vec::new() }
}
