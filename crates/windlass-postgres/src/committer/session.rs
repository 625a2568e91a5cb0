//! A committer's connection: sends a batch until it knows what became of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::{Client, Row, Statement};
use windlass_kernel::{Commit, CommitError, Error};

use crate::apply::{Answers, Batch, CALL, Mode, SETTLE, Settles, read_answers, unavailable};
use crate::error::{Failure, classify, is_unique, of_call, said, unknown};
use crate::store::Shared;

/// How often a batch runs again that lost against another one.
const TRIES_MAX: u32 = 50;

/// How often in a row the answer to a batch may be lost before its commits are sent one by one.
const LOSSES_MAX: u32 = 3;

/// How long a batch that was never sent waits for a connection: nothing was written, so whoever asked can
/// be told so at once and decide whether to ask again.
const UNSENT_FOR: Duration = Duration::from_secs(2);

/// The database refuses the batch, and will again: somebody in it is to blame.
#[derive(Debug)]
pub(crate) struct Refused {
    /// What it said; nothing if each answer was lost.
    pub(crate) error: Option<tokio_postgres::Error>,
    /// An answer was lost before: the batch, or a part of it, may have been written then.
    pub(crate) sent_before: bool,
}

/// How many batches expect runs that exist after one has met such a run.
const WARY_BATCHES: u32 = 100;

/// A connection that comes back when it is lost.
pub(crate) struct Session {
    shared: Arc<Shared>,
    live: Option<Live>,
    wary: u32,
    // The last batch, for its memory.
    batch: Batch,
}

struct Live {
    client: Client,
    commit: Statement,
    settle: Statement,
}

impl Live {
    // `Err(None)`: no answer came in time, so the connection cannot be trusted any more.
    async fn call(
        &self,
        batch: &Batch,
        settles: Option<&Settles>,
        mode: Mode,
        patience: Duration,
    ) -> Result<Vec<Row>, Option<tokio_postgres::Error>> {
        let number = mode as i16;
        let rows = async {
            match settles.filter(|_| mode == Mode::Settle) {
                Some(settles) => self.client.query(&self.settle, &settles.params()).await,
                None => self.client.query(&self.commit, &batch.params(&number)).await,
            }
        };
        match tokio::time::timeout(patience, rows).await {
            Ok(result) => result.map_err(Some),
            Err(_) => Err(None),
        }
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, live: None, wary: 0, batch: Batch::default() }
    }

    /// Sends commits that can share a batch. After a lost answer the same batch is sent again: what
    /// was written is found by its guards and keys. Also answers whether that happened.
    pub(crate) async fn send(
        &mut self,
        commits: &[&Commit],
        sent_before: bool,
    ) -> Result<(Answers, bool), Refused> {
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
    ) -> Result<(Answers, bool), Refused> {
        let settles = if sent_before { None } else { Settles::of(commits) };
        if settles.is_none() {
            batch.fill(commits);
        }
        let mut mode = match (&settles, sent_before) {
            (Some(_), _) => Mode::Settle,
            (None, true) => Mode::Careful,
            (None, false) => batch.mode(self.wary > 0),
        };
        self.wary = self.wary.saturating_sub(1);
        let mut sent_before = sent_before;
        let mut tries = 0;
        // What comes from a batch that was lost is not sent as often again.
        let mut losses = if sent_before { LOSSES_MAX - 1 } else { 0 };
        let until = self.shared.options.reconnect_for;
        let began = Instant::now();
        let mut deadline = began + if sent_before { until } else { until.min(UNSENT_FOR) };
        let patience = self.shared.options.statement_timeout + Duration::from_secs(10);
        loop {
            let live = match self.live(deadline).await {
                Ok(live) => live,
                Err(error) => {
                    let error = match sent_before {
                        true => unknown(&error.to_string()),
                        false => unavailable(error),
                    };
                    return Ok((all_failed(commits, &error), sent_before));
                }
            };
            let was = mode;
            match live.call(batch, settles.as_ref(), mode, patience).await {
                Ok(rows) => return Ok((answers(commits, &rows), sent_before)),
                Err(error) if error.as_ref().is_none_or(is_lost) => {
                    let error = error.as_ref().map(said);
                    tracing::warn!(?error, "the answer to a batch was lost");
                    // The first sending may still be under way: look before writing.
                    (sent_before, mode) = (true, Mode::Careful);
                    self.live = None;
                    losses += 1;
                    if losses > LOSSES_MAX {
                        return Err(Refused { error: None, sent_before });
                    }
                    tokio::time::sleep(Duration::from_millis(20 << losses)).await;
                    deadline = (began + until).max(Instant::now() + until / 2);
                }
                Err(None) => return Err(Refused { error: None, sent_before }),
                Err(Some(error)) => match classify(&error) {
                    // A broken key may be a run or a step that was there after all.
                    Failure::Careful | Failure::Constraint if mode != Mode::Careful => {
                        if is_unique(&error) {
                            self.wary = WARY_BATCHES;
                        }
                        mode = Mode::Careful;
                    }
                    Failure::Again | Failure::Careful if tries < TRIES_MAX => {
                        tries += 1;
                        tokio::time::sleep(Duration::from_millis(u64::from(tries.min(20)))).await;
                    }
                    _ => return Err(Refused { error: Some(error), sent_before }),
                },
            }
            if was == Mode::Settle && mode != was {
                batch.fill(commits);
            }
        }
    }

    async fn live(&mut self, deadline: Instant) -> Result<&Live, Error> {
        if self.live.as_ref().is_some_and(|live| live.client.is_closed()) {
            self.live = None;
        }
        let mut pause = Duration::from_millis(20);
        while self.live.is_none() {
            match connect(&self.shared).await {
                Ok(live) => self.live = Some(live),
                Err(error) if Instant::now() + pause > deadline => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "a committer cannot reach PostgreSQL");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(2));
                }
            }
        }
        self.live.as_ref().ok_or_else(|| crate::error::unavailable("there is no connection"))
    }
}

async fn connect(shared: &Shared) -> Result<Live, Error> {
    let client = shared.connector.client().await?;
    let commit = client.prepare(&shared.sql(CALL)).await.map_err(of_call)?;
    let settle = client.prepare(&shared.sql(SETTLE)).await.map_err(of_call)?;
    Ok(Live { client, commit, settle })
}

/// Decides a commit by itself over a connection of the pool, under locks, and writes nothing.
pub(crate) async fn decide(shared: &Shared, commit: &Commit) -> Result<Answers, Error> {
    let batch = Batch::of(&[commit]);
    let mode = Mode::Decide as i16;
    let rows = shared.query(CALL, &batch.params(&mode)).await?;
    read_answers(&[commit], &rows)
}

fn is_lost(error: &tokio_postgres::Error) -> bool {
    classify(error) == Failure::Lost
}

fn answers(commits: &[&Commit], rows: &[Row]) -> Answers {
    match read_answers(commits, rows) {
        Ok(answers) => answers,
        // It was written, but nobody can read how: to send it again is right, to call it failed not.
        Err(error) => all_failed(commits, &unknown(&error.to_string())),
    }
}

fn all_failed(commits: &[&Commit], error: &CommitError) -> Answers {
    let results = commits.iter().map(|_| Err(error.clone())).collect();
    Answers { results, wakeups: Vec::new() }
}
