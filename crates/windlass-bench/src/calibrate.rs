//! The calibration: what the database and its driver do with the same rows and nothing else.
//!
//! The rows are those of the load, made by the same code before the clock runs. They go into the
//! same tables, with the same indexes and triggers, of a database that the store itself has just
//! made. So many runs as a batch had commits go together through the phases of a run: created; a
//! step, a step, a step; completed. Each phase is one durable transaction of prepared multi-row
//! statements. There are no guards, hashes, counters, wake-ups, nor callers to answer.

mod memory;
mod postgres;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use windlass_kernel::{Commit, Event, Op, Run, RunChange, Step};

use crate::backend::Place;
use crate::script::Author;

/// Runs whose rows are made at once, while the clock stands.
const CHUNK: usize = 10_000;

/// What is to be written alike: so many runs, so many in a batch, by so many callers.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Runs of the load.
    pub(crate) runs: u64,
    /// Commits of a batch.
    pub(crate) batch: usize,
    /// Callers at once: a single one never keeps two connections busy.
    pub(crate) in_flight: usize,
}

/// Runs a second that the driver alone writes.
pub(crate) async fn runs_per_s(
    place: &Place,
    name: &str,
    author: &Author,
    shape: Shape,
) -> anyhow::Result<f64> {
    let Shape { runs, batch, in_flight } = shape;
    let mut writer = Writer::open(place, name, in_flight).await?;
    let mut taken = Duration::ZERO;
    let mut n = 0;
    while n < runs {
        // Whole batches, so that no chunk ends with a small one.
        let whole = (CHUNK.div_ceil(batch) * batch) as u64;
        let count = whole.min(runs - n);
        let rows =
            (n..n + count).map(|n| RunRows::new(author, n)).collect::<Result<Vec<_>, _>>()?;
        taken += writer.write(rows, batch).await?;
        n += count;
    }
    Ok(runs as f64 / taken.as_secs_f64())
}

enum Writer {
    Sqlite(sqlite::Writer),
    Postgres(postgres::Writer),
    Memory(memory::Writer),
}

impl Writer {
    async fn open(place: &Place, name: &str, in_flight: usize) -> anyhow::Result<Self> {
        // The store makes the tables, so they are the same ones.
        place.open(name).await?.store().close().await?;
        Ok(match place {
            Place::Sqlite(_) => Self::Sqlite(sqlite::Writer::open(&place.file(name)?)?),
            Place::Postgres { .. } => {
                let schema = place.schema(name)?;
                Self::Postgres(postgres::Writer::open(place, &schema, in_flight).await?)
            }
            Place::Memory => Self::Memory(memory::Writer::default()),
        })
    }

    async fn write(&mut self, rows: Vec<RunRows>, batch: usize) -> anyhow::Result<Duration> {
        match self {
            Self::Sqlite(writer) => writer.write(&rows, batch),
            Self::Postgres(writer) => writer.write(&rows, batch).await,
            Self::Memory(writer) => Ok(writer.write(rows, batch)),
        }
    }
}

/// All rows that the commits of one run write.
struct RunRows {
    run: Run,
    /// What each phase writes: the first one creates the run and changes nothing.
    phases: Vec<Phase>,
}

struct Phase {
    change: Option<RunChange>,
    event: Event,
    /// The cause as it is stored.
    caused_by: String,
    step: Option<Step>,
}

impl RunRows {
    fn new(author: &Author, n: u64) -> anyhow::Result<Self> {
        let (mut script, create) = author.create(n)?;
        let mut commits = Vec::with_capacity(author.steps() + 2);
        let created = create.ops.iter().find_map(|op| match op {
            Op::CreateRun(run) => Some(Run::clone(run)),
            _ => None,
        });
        let run = created.ok_or_else(|| anyhow!("the first commit creates no run"))?;
        commits.push(create);
        for step in 0..author.steps() {
            commits.push(author.step(&mut script, step)?);
        }
        commits.push(author.complete(&mut script)?);
        let phases = commits.into_iter().map(Phase::new).collect::<anyhow::Result<_>>()?;
        Ok(Self { run, phases })
    }
}

impl Phase {
    fn new(commit: Commit) -> anyhow::Result<Self> {
        let (mut change, mut event, mut step) = (None, None, None);
        for op in Arc::unwrap_or_clone(commit.ops) {
            match op {
                Op::SetRun(of) => change = Some(*of),
                Op::AppendEvent { event: of, .. } => event = Some(of),
                Op::PutStep(of) => step = Some(*of),
                _ => {}
            }
        }
        let event = event.ok_or_else(|| anyhow!("a commit without an event"))?;
        Ok(Self { change, caused_by: event.caused_by.canonical(), event, step })
    }
}

#[cfg(test)]
mod tests {
    use windlass_kernel::verify::verify_store;
    use windlass_kernel::{Namespace, Query, RunStatus, RunsQuery};

    use super::*;
    use crate::backend::{Kind, Target};

    // What the calibration has written reads, verifies and is complete as if the store had.
    async fn check(kind: Kind) {
        let place = Place::new(&Target::of(kind)).unwrap();
        let author = Author::new(3).unwrap();
        let shape = Shape { runs: 25, batch: 10, in_flight: 2 };
        runs_per_s(&place, "check", &author, shape).await.unwrap();
        let store = place.open("check").await.unwrap().store();
        let report = verify_store(&*store, &[]).await.unwrap();
        let query = RunsQuery::all(Namespace::default_namespace(), 100);
        let runs = store.list(Query::Runs(query)).await.unwrap().runs().unwrap();
        store.close().await.unwrap();
        place.remove().await.unwrap();
        assert_eq!((report.flaws, report.unreadable), (Vec::new(), Vec::new()));
        assert_eq!((report.runs, report.events), (25, 125));
        for run in runs {
            assert_eq!(run.status, RunStatus::Complete);
            assert_eq!((run.turn.worker, run.turn.claim_no, run.turn.claimed_at), (None, 2, None));
            assert!(run.started_at.is_some() && run.ended_at.is_some());
        }
    }

    #[tokio::test]
    async fn on_sqlite_it_writes_what_the_store_writes() {
        check(Kind::Sqlite).await;
    }

    #[tokio::test]
    async fn on_postgres_it_writes_what_the_store_writes() {
        check(Kind::Postgres).await;
    }
}
