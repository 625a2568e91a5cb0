//! The calibration: how fast the database and its driver write the same rows without Windlass.
//!
//! The code of the load generates the rows before the measurement. They are written into the same
//! tables, with the same indexes and triggers, of a database that the store has just created. A
//! batch has as many runs as the load had commits in a batch; its runs go through the phases
//! together: create, one phase per step, complete. Each phase is one durable transaction of
//! prepared multi-row statements. There are no guards, hashes, counters, notifications, or waiting
//! callers.

mod memory;
mod postgres;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use windlass_kernel::{Commit, Event, Op, Run, RunChange, Step};

use crate::backend::Databases;
use crate::generator::RunGenerator;

/// The number of runs whose rows are generated at once, outside the measurement.
const CHUNK: usize = 10_000;

/// The size of the calibration: the same runs, batches and callers as the load.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// The number of runs.
    pub(crate) runs: u64,
    /// The number of commits in a batch.
    pub(crate) batch: usize,
    /// The number of callers: a single caller never uses two connections.
    pub(crate) in_flight: usize,
}

/// Measures how many runs per second the driver alone writes.
pub(crate) async fn runs_per_s(
    place: &Databases,
    name: &str,
    generator: &RunGenerator,
    shape: Shape,
) -> anyhow::Result<f64> {
    let Shape { runs, batch, in_flight } = shape;
    let mut writer = Writer::open(place, name, in_flight).await?;
    let mut taken = Duration::ZERO;
    let mut n = 0;
    while n < runs {
        // Rounds up to whole batches, so that no chunk ends with a small one.
        let whole = (CHUNK.div_ceil(batch) * batch) as u64;
        let count = whole.min(runs - n);
        let rows =
            (n..n + count).map(|n| RunRows::new(generator, n)).collect::<Result<Vec<_>, _>>()?;
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
    async fn open(place: &Databases, name: &str, in_flight: usize) -> anyhow::Result<Self> {
        // The store creates the tables, so that they are identical.
        place.open(name).await?.store().close().await?;
        Ok(match place {
            Databases::Sqlite(_) => Self::Sqlite(sqlite::Writer::open(&place.file(name)?)?),
            Databases::Postgres { .. } => {
                let schema = place.schema(name)?;
                Self::Postgres(postgres::Writer::open(place, &schema, in_flight).await?)
            }
            Databases::Memory => Self::Memory(memory::Writer::default()),
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
    /// The rows of each phase. The first phase creates the run.
    phases: Vec<Phase>,
}

struct Phase {
    change: Option<RunChange>,
    event: Event,
    /// The cause in its stored form.
    caused_by: String,
    step: Option<Step>,
}

impl RunRows {
    fn new(generator: &RunGenerator, n: u64) -> anyhow::Result<Self> {
        let (mut generated, create) = generator.create(n)?;
        let mut commits = Vec::with_capacity(generator.steps() + 2);
        let created = create.ops.iter().find_map(|op| match op {
            Op::CreateRun(run) => Some(Run::clone(run)),
            _ => None,
        });
        let run = created.ok_or_else(|| anyhow!("the first commit does not create a run"))?;
        commits.push(create);
        for step in 0..generator.steps() {
            commits.push(generator.step(&mut generated, step)?);
        }
        commits.push(generator.complete(&mut generated)?);
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
    use windlass::admin::verify_store;
    use windlass_kernel::{Namespace, Query, RunStatus, RunsQuery};

    use super::*;
    use crate::backend::{Kind, Target};

    // The calibrated database must be readable, verifiable and complete, like one of the store.
    async fn check(kind: Kind) {
        let place = Databases::new(&Target::of(kind)).unwrap();
        let generator = RunGenerator::new(3).unwrap();
        let shape = Shape { runs: 25, batch: 10, in_flight: 2 };
        runs_per_s(&place, "check", &generator, shape).await.unwrap();
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
    async fn sqlite_writes_the_same_rows_as_the_store() {
        check(Kind::Sqlite).await;
    }

    #[tokio::test]
    async fn postgres_writes_the_same_rows_as_the_store() {
        check(Kind::Postgres).await;
    }
}
