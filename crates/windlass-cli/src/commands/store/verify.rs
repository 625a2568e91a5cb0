//! `windlass verify`: recomputes hash chains and compares them with saved chain heads.

use std::path::Path;

use serde_json::{Value, json};
use windlass::Store;
use windlass::admin::{Anchor, Report, verify_one, verify_store};
use windlass::kernel::verify::{Flaw, RecordFlaw};

use super::{open_read_only, resolve_run_keys};
use crate::args::VerifyArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, sanitize};

pub(crate) async fn verify(args: VerifyArgs) -> Outcome {
    let anchors = match &args.anchors {
        Some(path) => read_anchors(path)?,
        None => Vec::new(),
    };
    let store = open_read_only(&args.store).await?.store;
    let damage = store.check().await?;
    let (report, compared) = report(&*store, &args, &anchors).await?;
    let flaws = flaws_with_run_names(&*store, &report.flaws).await;
    store.close().await?;
    let clean = damage.is_empty() && report.is_clean();
    let saved = match &args.save {
        // Heads of a damaged store must not become the reference of later checks.
        Some(path) if clean => Some(save(path, &report)?),
        _ => None,
    };
    let out = Out::new(args.output.output);
    if out.is_text() {
        print(out, &args, &VerifyResult { damage, report, compared, flaws, saved })?;
    } else {
        let mut report_json = json!({
            "clean": clean,
            "runs": report.runs,
            "events": report.events,
            "anchors": compared,
            "damage": damage,
            "unreadable": report.unreadable,
            "flaws": flaws,
            "versions": report.versions,
            "recordFlaws": report.record_flaws.iter().map(record_flaw).collect::<Vec<_>>(),
        });
        if let Some(saved) = saved {
            report_json["saved"] = saved.into();
        }
        out.value(&report_json)?;
    }
    Ok(if clean { Exit::Ok } else { Exit::Error })
}

/// The result of a verification.
struct VerifyResult {
    damage: Vec<String>,
    report: Report,
    compared: usize,
    flaws: Vec<Value>,
    saved: Option<usize>,
}

// Adds the names of the runs, if they are still readable.
async fn flaws_with_run_names(store: &dyn Store, flaws: &[Flaw]) -> Vec<Value> {
    let mut rows = Vec::new();
    for Flaw { run_key, ordinal, what } in flaws {
        let mut row = json!({ "runKey": run_key.to_string(), "ordinal": ordinal, "what": what });
        let loaded = store.load(vec![*run_key]).await.ok();
        if let Some(loaded) = loaded.and_then(|loaded| loaded.into_iter().next()) {
            row["workflowName"] = loaded.run.workflow.as_str().into();
            row["id"] = loaded.run.id.as_str().into();
        }
        rows.push(row);
    }
    rows
}

fn record_flaw(flaw: &RecordFlaw) -> Value {
    json!({
        "namespace": flaw.key.namespace.as_str(),
        "collection": flaw.key.collection.as_str(),
        "id": flaw.key.id.as_str(),
        "revision": flaw.revision,
        "what": flaw.what,
    })
}

fn print(out: Out, args: &VerifyArgs, found: &VerifyResult) -> Result<(), Failure> {
    let VerifyResult { damage, report, compared, flaws, saved } = found;
    for sentence in damage {
        out.line(&sanitize(&format!("damaged: {sentence}")))?;
    }
    for sentence in &report.unreadable {
        out.line(&sanitize(&format!("unreadable: {sentence}")))?;
    }
    for (flaw, row) in report.flaws.iter().zip(flaws) {
        let name = match row["id"].as_str() {
            Some(id) => format!(" [{}/{id}]", cell(row, "workflowName")),
            None => String::new(),
        };
        out.line(&sanitize(&format!("flawed: {flaw}{name}")))?;
    }
    for flaw in &report.record_flaws {
        out.line(&sanitize(&format!("flawed: {flaw}")))?;
    }
    let (runs, events, versions) = (report.runs, report.events, report.versions);
    let flaws = flaws.len() + report.record_flaws.len();
    out.line(&format!(
        "{runs} runs, {events} events, {versions} versions of records, {compared} anchors: {flaws} flaws"
    ))?;
    match (&args.save, saved) {
        (Some(path), Some(saved)) => {
            out.line(&format!("{saved} anchors saved to {}", path.display()))
        }
        (Some(_), None) => out.line("no anchors were saved because the store has flaws"),
        (None, _) => Ok(()),
    }
}

// With explicit runs, only the anchors of those runs are compared.
async fn report(
    store: &dyn Store,
    args: &VerifyArgs,
    anchors: &[Anchor],
) -> Result<(Report, usize), Failure> {
    if args.runs.is_empty() {
        return Ok((verify_store(store, anchors).await?, anchors.len()));
    }
    let (mut whole, mut compared) = (Report::default(), 0);
    for run_key in resolve_run_keys(store, &args.within.namespace, &args.runs).await? {
        let own = anchors.iter().filter(|anchor| anchor.run_key == run_key);
        let own: Vec<Anchor> = own.copied().collect();
        compared += own.len();
        let one = verify_one(store, run_key, &own).await?;
        whole.runs += one.runs;
        whole.events += one.events;
        whole.flaws.extend(one.flaws);
        whole.unreadable.extend(one.unreadable);
        whole.anchors.extend(one.anchors);
    }
    Ok((whole, compared))
}

fn save(path: &Path, report: &Report) -> Result<usize, Failure> {
    let lines: Vec<String> = report.anchors.iter().map(Anchor::to_string).collect();
    std::fs::write(path, lines.join("\n") + "\n")
        .map_err(|error| Failure::error(format!("failed to write {}: {error}", path.display())))?;
    Ok(lines.len())
}

fn read_anchors(path: &Path) -> Result<Vec<Anchor>, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::error(format!("failed to read {shown}: {error}")))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(n, line): (usize, &str)| {
        let parsed = line.parse::<Anchor>();
        parsed.map_err(|error| Failure::error(format!("{shown} line {}: {error}", n + 1)))
    };
    lines.map(parse).collect()
}
