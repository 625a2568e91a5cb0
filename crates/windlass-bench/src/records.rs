//! `records`: writes of different records, writers of one record, and the cost of records in a full store.

mod pages;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use windlass_kernel::{
    Body, Collection, Commit, CommitError, Conflict, Expect, Namespace, Op, Query, RecordFound,
    RecordId, RecordKey, RecordOp, RecordPut, RecordWrite, Store, Terms, WriteId,
};

use crate::backend::{Databases, Target};
use crate::generator::{RunGenerator, now};
use crate::load::bare_store_rate;
use crate::report::{Report, Times};

/// Options of `records`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of concurrent writers, each of a record of its own.
    #[arg(long, default_value_t = 2_000)]
    writers: u64,
    /// How many records they write in total.
    #[arg(long, default_value_t = 100_000)]
    puts: u64,
    /// The number of concurrent writers of one record.
    #[arg(long, default_value_t = 64)]
    contenders: u64,
    /// Records with three terms in the small store.
    #[arg(long, default_value_t = 1_000)]
    few: u64,
    /// Records with three terms in the full store.
    #[arg(long, default_value_t = 1_000_000)]
    many: u64,
    /// Timed gets, puts and pages in each of both.
    #[arg(long, default_value_t = 1_000)]
    samples: u64,
}

/// The figure that the rate of writes must reach, as a share of the rate of bare commits.
const RATIO_MIN: f64 = 0.5;
/// How much more pages a full store may read.
const PAGES_RATIO_MAX: f64 = 1.2;
/// Records of a page.
const PAGE: u32 = 20;
/// Records per commit of the preparation, and commits that are sent together.
const PUT_AT_ONCE: u64 = 64;
const SENT_AT_ONCE: u64 = 16;

/// Measures the rate, the contention, and the cost in a small and in a full store.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let mut report = Report::default();
    report.put("store", args.target.name());
    rate(args, place, &mut report).await?;
    contention(args, place, &mut report).await?;
    growth(args, place, &mut report).await?;
    Ok(report)
}

// Bare commits before and after, so that a slower machine affects both.
async fn rate(args: &Args, place: &Databases, report: &mut Report) -> anyhow::Result<()> {
    const STEPS: usize = 3;
    let runs = (args.puts / (STEPS as u64 + 2)).max(1);
    let in_flight = usize::try_from(args.writers)?;
    let bare = async |name: &str| -> anyhow::Result<f64> {
        let runs_per_s = bare_store_rate(place, name, runs, STEPS, in_flight).await?;
        Ok(runs_per_s * (STEPS + 2) as f64)
    };
    let before = bare("before").await?;
    let opened = place.open("puts").await?;
    let bench = Arc::new(Bench::new(opened.store())?);
    // A warm-up.
    put_all(&bench, args.writers, args.writers, "warm").await?;
    let started = Instant::now();
    let times = put_all(&bench, args.writers, args.puts, "own").await?;
    let puts_per_s = args.puts as f64 / started.elapsed().as_secs_f64();
    opened.store().close().await?;
    let after = bare("after").await?;
    let mean = (before + after) / 2.0;
    report
        .put("puts", args.puts)
        .put("writers", args.writers)
        .put("puts_per_s", puts_per_s)
        .put("put_p50_ms", times.percentile_ms(0.5))
        .put("put_p99_ms", times.percentile_ms(0.99))
        .put("bare_before_commits_per_s", before)
        .put("bare_after_commits_per_s", after)
        .put("ratio", puts_per_s / mean);
    if puts_per_s / mean < RATIO_MIN {
        report.fail(format!("writes of records have less than {RATIO_MIN} of bare commits"));
    }
    Ok(())
}

// Each writer writes its own record again and again.
async fn put_all(
    bench: &Arc<Bench>,
    writers: u64,
    puts: u64,
    prefix: &str,
) -> anyhow::Result<Times> {
    let next = Arc::new(AtomicU64::new(0));
    let handles: Vec<_> = (0..writers.min(puts))
        .map(|writer| {
            let (bench, next, id) = (bench.clone(), next.clone(), format!("{prefix}-{writer}"));
            tokio::spawn(async move {
                let (mut times, mut revision) = (Times::default(), 0);
                while next.fetch_add(1, Ordering::Relaxed) < puts {
                    let expect = if revision == 0 { Expect::Absent } else { Expect::At(revision) };
                    let op = bench.put(&id, expect, Terms::default());
                    let started = Instant::now();
                    bench.send(vec![op]).await?.context("a put failed")?;
                    times.add(started.elapsed());
                    revision += 1;
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    let mut times = Times::default();
    for handle in handles {
        times.extend(handle.await.context("a writer panicked")??);
    }
    Ok(times)
}

// All writers want to write one record once. A loser tries again at the revision of its conflict.
async fn contention(args: &Args, place: &Databases, report: &mut Report) -> anyhow::Result<()> {
    let opened = place.open("contended").await?;
    let bench = Arc::new(Bench::new(opened.store())?);
    bench.send(vec![bench.put("one", Expect::Absent, Terms::default())]).await?.context("a put")?;
    let started = Instant::now();
    let handles: Vec<_> = (0..args.contenders)
        .map(|_| {
            let bench = bench.clone();
            tokio::spawn(async move {
                let (mut revision, mut rounds) = (1, 1_u64);
                loop {
                    let op = bench.put("one", Expect::At(revision), Terms::default());
                    match bench.send(vec![op]).await? {
                        Ok(()) => return anyhow::Ok(rounds),
                        Err(CommitError::Conflict(Conflict::Record {
                            found: RecordFound::At(found),
                            ..
                        })) => (revision, rounds) = (found, rounds + 1),
                        Err(error) => return Err(error.into()),
                    }
                }
            })
        })
        .collect();
    let mut most = 0;
    for handle in handles {
        most = most.max(handle.await.context("a writer panicked")??);
    }
    opened.store().close().await?;
    report
        .put("contenders", args.contenders)
        .put("contended_ms", started.elapsed().as_secs_f64() * 1_000.0)
        .put("contended_rounds_max", most);
    if most > args.contenders {
        report.fail(format!("a writer needed {most} rounds against {} others", args.contenders));
    }
    Ok(())
}

async fn growth(args: &Args, place: &Databases, report: &mut Report) -> anyhow::Result<()> {
    // A store in memory does not outlive its closing.
    if matches!(place, Databases::Memory) {
        return Ok(());
    }
    let mut filled = 0;
    let mut pages = Vec::new();
    for (state, count) in [("few", args.few), ("many", args.many)] {
        let opened = place.open("full").await?;
        let bench = Bench::new(opened.store())?;
        bench.fill(filled, count).await?;
        filled = count;
        report.put(&format!("{state}_records"), count);
        bench.time(state, count, args.samples, report).await?;
        opened.store().close().await?;
        if let Some(counted) = pages::count(place, count, args.samples).await? {
            for (call, found) in &counted {
                report.put(&format!("{state}_{call}_pages"), *found);
            }
            pages.push(counted);
        }
    }
    if let [few, many] = &pages[..] {
        for ((call, few), (_, many)) in few.iter().zip(many) {
            report.put(&format!("{call}_pages_ratio"), many / few);
            if many / few > PAGES_RATIO_MAX {
                report.fail(format!("{call} reads {many:.1} pages instead of {few:.1}"));
            }
        }
    }
    Ok(())
}

/// A store and a generator of ids.
pub(crate) struct Bench {
    store: Arc<dyn Store>,
    generator: RunGenerator,
}

impl Bench {
    fn new(store: Arc<dyn Store>) -> anyhow::Result<Self> {
        Ok(Self { store, generator: RunGenerator::new(0)? })
    }

    fn put(&self, id: &str, expect: Expect, terms: Terms) -> Op {
        let at = now();
        let body = Body::json(&br#"{"items":["lamp","book"],"amount":4250,"currency":"EUR"}"#[..]);
        let write_id = WriteId(self.generator.key(at));
        let put = RecordPut { write_id, body, terms, keep: None, at, revision: None };
        let write = RecordWrite::Put(Box::new(put));
        Op::Record(Box::new(RecordOp { key: key(id), expect, write }))
    }

    async fn send(&self, ops: Vec<Op>) -> anyhow::Result<Result<(), CommitError>> {
        let mut results = self.store.commit(vec![Commit::new(None, None, ops)]).await;
        let result = results.pop().ok_or_else(|| anyhow!("a commit has no result"))?;
        Ok(result.map(|_| ()))
    }

    async fn fill(&self, from: u64, to: u64) -> anyhow::Result<()> {
        let mut next = from;
        while next < to {
            let mut commits = Vec::new();
            for _ in 0..SENT_AT_ONCE {
                let end = (next + PUT_AT_ONCE).min(to);
                let puts = (next..end).map(|n| Ok(self.put(&id(n), Expect::Absent, terms(n)?)));
                let ops: Vec<Op> = puts.collect::<anyhow::Result<_>>()?;
                next = end;
                if !ops.is_empty() {
                    commits.push(Commit::new(None, None, ops));
                }
            }
            for result in self.store.commit(commits).await {
                result.context("a put failed")?;
            }
        }
        Ok(())
    }

    async fn time(
        &self,
        state: &str,
        count: u64,
        samples: u64,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let (mut gets, mut puts, mut pages) =
            (Times::default(), Times::default(), Times::default());
        for sample in 0..samples.min(count) {
            let n = place_of(sample, count);
            let started = Instant::now();
            let revision = self.get(n).await?;
            gets.add(started.elapsed());
            let started = Instant::now();
            self.replace(n, revision).await?;
            puts.add(started.elapsed());
            let started = Instant::now();
            self.page(n).await?;
            pages.add(started.elapsed());
        }
        for (call, times) in [("get", gets), ("put", puts), ("page", pages)] {
            report.put(&format!("{state}_{call}_p50_ms"), times.percentile_ms(0.5));
        }
        Ok(())
    }

    async fn get(&self, n: u64) -> anyhow::Result<u64> {
        let row = self.store.records(vec![key(&id(n))]).await?.pop().flatten();
        Ok(row.ok_or_else(|| anyhow!("record {n} is missing"))?.revision)
    }

    async fn replace(&self, n: u64, revision: u64) -> anyhow::Result<()> {
        let op = self.put(&id(n), Expect::At(revision), terms(n)?);
        self.send(vec![op]).await?.context("a put failed")
    }

    async fn page(&self, n: u64) -> anyhow::Result<()> {
        let query = Query::Records {
            namespace: Namespace::default_namespace(),
            collection: Collection::from_stored(COLLECTION),
            term: Some(("customer".into(), customer(n).into())),
            after: None,
            limit: PAGE,
        };
        let found = self.store.list(query).await?.records()?.len();
        anyhow::ensure!(found == PAGE as usize, "a page has {found} records");
        Ok(())
    }
}

const COLLECTION: &str = "carts";

fn key(id: &str) -> RecordKey {
    RecordKey {
        namespace: Namespace::default_namespace(),
        collection: Collection::from_stored(COLLECTION),
        id: RecordId::from_stored(id),
    }
}

fn id(n: u64) -> String {
    format!("cart-{n:09}")
}

fn customer(n: u64) -> String {
    format!("customer-{}", n / u64::from(PAGE))
}

fn terms(n: u64) -> anyhow::Result<Terms> {
    let mut terms = Terms::default();
    terms.add("customer", customer(n))?;
    terms.add("state", if n.is_multiple_of(3) { "open" } else { "ordered" })?;
    terms.add("day", format!("2026-11-{:02}", n % 30 + 1))?;
    Ok(terms)
}

/// The record of a sample: spread over all of them, the same in every run.
fn place_of(sample: u64, count: u64) -> u64 {
    // Full pages only.
    let count = (count / u64::from(PAGE) * u64::from(PAGE)).max(1);
    sample.wrapping_mul(0x9E37_79B9_7F4A_7C15) % count
}
