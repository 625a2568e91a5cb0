//! `contracts`: documents that are created, submitted and approved, compared with the same load of `steps`.

mod load;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use windlass::admin::Options;
use windlass::contracts::language::approvers::{Directory, Person};
use windlass::contracts::language::templates;
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::{ApprovalStatus, Contracts};
use windlass::kernel::Subject;

use super::{engine, few_steps, rss_mb, steps};
use crate::backend::{Databases, Target};
use crate::report::{Report, Times};

const TYPE: &str = "invoice";
/// The documents of the store that a full one is compared with.
const FEW: u64 = 1_000;
/// How much longer 95 of 100 advances may take in the full store.
const P95_RATIO_MAX: f64 = 1.3;
/// How long 95 of 100 pages of the inbox may take, in milliseconds.
const INBOX_MS_MAX: f64 = 10.0;
/// The share of the rate of `steps` that advances must reach.
const RATIO_MIN: f64 = 0.5;

/// Options of `contracts`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of documents.
    #[arg(long, default_value_t = 2_000)]
    documents: u64,
    /// The number of concurrent callers.
    #[arg(long, default_value_t = 200)]
    in_flight: usize,
    /// Documents that wait for an approval in the store before the second measurement, which is compared with the
    /// first one, with 1,000 of them. Without it there is no second one.
    #[arg(long, default_value_t = 0)]
    loaded: u64,
    /// Omit the comparison with `steps`.
    #[arg(long)]
    uncalibrated: bool,
}

/// Measures `steps` before and after, so that a slower machine affects both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let before = match args.uncalibrated {
        true => None,
        false => Some(steps_rate(args, place, "before").await?),
    };
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("documents", args.documents)
        .put("in_flight", args.in_flight);
    let few = with_loaded(args, place, (0, args.loaded.min(FEW)), &mut report).await?;
    if args.loaded > FEW {
        let many = with_loaded(args, place, (FEW, args.loaded), &mut report).await?;
        let ratio = many.advance_p95_ms / few.advance_p95_ms;
        report.put("advance_p95_ratio", ratio);
        if ratio > P95_RATIO_MAX {
            report.fail(format!("an advance takes {ratio:.2} times as long in the full store"));
        }
    }
    if let Some(before) = before {
        let after = steps_rate(args, place, "after").await?;
        let mean = (before + after) / 2.0;
        let ratio = few.advances_per_s / mean;
        report.put("steps_per_s", mean).put("ratio", ratio);
        if ratio < RATIO_MIN {
            report.fail(format!("there are {ratio:.2} advances for each step of `steps`"));
        }
    }
    Ok(report)
}

struct Found {
    advances_per_s: f64,
    advance_p95_ms: f64,
}

/// Measures with so many waiting documents in the store; the first of them are there already.
async fn with_loaded(
    args: &Args,
    place: &Databases,
    (from, to): (u64, u64),
    report: &mut Report,
) -> anyhow::Result<Found> {
    let opened = place.open("contracts").await?;
    let engine = engine(&opened, Options::default()).await?;
    let contracts = Contracts::builder().open(engine.core()).await?;
    if contracts.types().await?.is_empty() {
        prepare(&contracts).await?;
    }
    let (name, prefix) = (format!("with_{to}"), format!("d{to}-"));
    let started = Instant::now();
    if to > from {
        let template = format!("template-{to}");
        one(&contracts, &template, 0, false).await?;
        Arc::new(load::Loader::of(&contracts, &template).await?).fill(from, to).await?;
    }
    report.put(&format!("{name}_loaded_s"), started.elapsed().as_secs_f64());
    drive(&contracts, args, &format!("w{to}-"), (args.documents / 10).max(1)).await?;
    let advances = contracts.health().await?.advances;
    let started = Instant::now();
    let times = drive(&contracts, args, &prefix, args.documents).await?;
    let took = started.elapsed().as_secs_f64();
    let health = contracts.health().await?;
    let advances_per_s = (health.advances - advances) as f64 / took;
    let advance_p95_ms = health.advance_p95_ms.context("nothing has advanced")?;
    let inbox = inbox_times(&contracts).await?;
    let page_p95_ms = inbox.percentile_ms(0.95);
    report
        .put(&format!("{name}_documents_per_s"), args.documents as f64 / took)
        .put(&format!("{name}_advances_per_s"), advances_per_s)
        .put(&format!("{name}_document_p50_ms"), times.percentile_ms(0.5))
        .put(&format!("{name}_document_p95_ms"), times.percentile_ms(0.95))
        .put(&format!("{name}_advance_p95_ms"), advance_p95_ms)
        .put(&format!("{name}_retries"), health.retries)
        .put(&format!("{name}_inbox_page_p50_ms"), inbox.percentile_ms(0.5))
        .put(&format!("{name}_inbox_page_p95_ms"), page_p95_ms)
        .put(&format!("{name}_rss_mb"), rss_mb());
    if page_p95_ms > INBOX_MS_MAX {
        report.fail(format!("a page of the inbox takes {page_p95_ms:.1} ms"));
    }
    engine.stop(Duration::from_secs(5)).await?;
    opened.store().close().await?;
    Ok(Found { advances_per_s, advance_p95_ms })
}

/// Steps a second of runs with three steps.
async fn steps_rate(args: &Args, place: &Databases, name: &str) -> anyhow::Result<f64> {
    const STEPS: usize = 3;
    let opened = place.open(name).await?;
    let engine = engine(&opened, Options::default()).await?;
    let workflow = few_steps(&engine, STEPS)?;
    let load = steps::Args {
        target: args.target.clone(),
        runs: args.documents,
        steps: STEPS,
        in_flight: args.in_flight,
        uncalibrated: true,
    };
    steps::drive(&workflow, &load, 0, (args.documents / 10).max(1)).await?;
    let (rate, _) = steps::drive(&workflow, &load, 1_000_000_000, args.documents).await?;
    engine.stop(Duration::from_secs(5)).await?;
    Ok(rate * STEPS as f64)
}

async fn prepare(contracts: &Contracts) -> anyhow::Result<()> {
    let template = templates::all().into_iter().find(|one| one.name == "invoice_approval");
    let template = template.context("there is no template for invoices")?;
    contracts.publish_type(&template.contract, &Subject::parse("operator")?).await?;
    let finance = || Person { roles: ["finance_manager".to_owned()].into(), ..Person::default() };
    let people = [("fay".to_owned(), finance()), ("rita".to_owned(), Person::default())].into();
    contracts.put_directory(&Directory { people, delegations: Vec::new() }).await?;
    Ok(())
}

fn invoice(n: u64) -> Value {
    json!({
        "id": format!("i-{n}"), "total": 90_000 + n % 1_000, "currency": "EUR", "requester": "rita",
        "vendor_class": "new", "budget_owner": "bob",
    })
}

/// Creates, submits and approves documents.
async fn drive(
    contracts: &Contracts,
    args: &Args,
    prefix: &str,
    documents: u64,
) -> anyhow::Result<Times> {
    let next = Arc::new(AtomicU64::new(0));
    let prefix: Arc<str> = prefix.into();
    let callers = (args.in_flight as u64).min(documents);
    let handles: Vec<_> = (0..callers)
        .map(|_| {
            let (contracts, next) = (contracts.clone(), Arc::clone(&next));
            let prefix = Arc::clone(&prefix);
            tokio::spawn(async move {
                let mut times = Times::default();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= documents {
                        return anyhow::Ok(times);
                    }
                    let started = Instant::now();
                    one(&contracts, &format!("{prefix}{n}"), n, true).await?;
                    times.add(started.elapsed());
                }
            })
        })
        .collect();
    let mut times = Times::default();
    for handle in handles {
        times.extend(handle.await.context("a caller panicked")??);
    }
    Ok(times)
}

async fn one(contracts: &Contracts, id: &str, n: u64, approves: bool) -> anyhow::Result<()> {
    let (rita, fay) = (Subject::parse("rita")?, Subject::parse("fay")?);
    contracts.create(TYPE, id, &invoice(n), &rita).await?;
    contracts.act(TYPE, id, "submit", &rita, None).await?;
    let request = loop {
        let found = contracts.approvals_of(TYPE, id, None, 1).await?;
        if let Some(request) = found.into_iter().find(|one| one.status == ApprovalStatus::Open) {
            break request;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    if !approves {
        return Ok(());
    }
    contracts.decide_approval(&request.id, Verdict::Approved, request.digest, &fay, None).await?;
    while contracts.document(TYPE, id).await?.row.state != "active" {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// How long a page of 25 requests takes.
async fn inbox_times(contracts: &Contracts) -> anyhow::Result<Times> {
    let fay = Subject::parse("fay")?;
    let mut times = Times::default();
    for _ in 0..200 {
        let started = Instant::now();
        contracts.inbox(&fay, None, 25).await?;
        times.add(started.elapsed());
    }
    Ok(times)
}
