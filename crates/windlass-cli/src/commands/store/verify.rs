//! `windlass verify`: recomputes hash chains, and compares them with heads that were kept elsewhere.

use std::path::Path;

use serde_json::{Value, json};
use windlass::Store;
use windlass::kernel::verify::{Anchor, Flaw, Report, verify_one, verify_store};

use super::{keys_of, look};
use crate::args::VerifyArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, plain};

pub(crate) async fn verify(args: VerifyArgs) -> Outcome {
    let anchors = match &args.anchors {
        Some(path) => read_anchors(path)?,
        None => Vec::new(),
    };
    let store = look(&args.store).await?.store;
    let damage = store.check().await?;
    let (report, compared) = report(&*store, &args, &anchors).await?;
    let flaws = named(&*store, &report.flaws).await;
    store.close().await?;
    let clean = damage.is_empty() && report.is_clean();
    let saved = match &args.save {
        // What is wrong must not become what is right.
        Some(path) if clean => Some(save(path, &report)?),
        _ => None,
    };
    let out = Out::new(args.output.output);
    if out.is_text() {
        print(out, &args, &Found { damage, report, compared, flaws, saved })?;
    } else {
        let mut told = json!({
            "clean": clean,
            "runs": report.runs,
            "events": report.events,
            "anchors": compared,
            "damage": damage,
            "unreadable": report.unreadable,
            "flaws": flaws,
        });
        if let Some(saved) = saved {
            told["saved"] = saved.into();
        }
        out.value(&told)?;
    }
    Ok(if clean { Exit::Ok } else { Exit::Error })
}

/// What was found, to be printed.
struct Found {
    damage: Vec<String>,
    report: Report,
    compared: usize,
    flaws: Vec<Value>,
    saved: Option<usize>,
}

// The flaws with the names of their runs, as far as those can still be read.
async fn named(store: &dyn Store, flaws: &[Flaw]) -> Vec<Value> {
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

fn print(out: Out, args: &VerifyArgs, found: &Found) -> Result<(), Failure> {
    let Found { damage, report, compared, flaws, saved } = found;
    for sentence in damage {
        out.line(&plain(&format!("damaged: {sentence}")))?;
    }
    for sentence in &report.unreadable {
        out.line(&plain(&format!("unreadable: {sentence}")))?;
    }
    for (flaw, row) in report.flaws.iter().zip(flaws) {
        let name = match row["id"].as_str() {
            Some(id) => format!(" [{}/{id}]", cell(row, "workflowName")),
            None => String::new(),
        };
        out.line(&plain(&format!("flawed: {flaw}{name}")))?;
    }
    let (runs, events, flaws) = (report.runs, report.events, flaws.len());
    out.line(&format!("{runs} runs, {events} events, {compared} anchors: {flaws} flaws"))?;
    match (&args.save, saved) {
        (Some(path), Some(saved)) => {
            out.line(&format!("{saved} anchors saved to {}", path.display()))
        }
        (Some(_), None) => {
            out.line("no anchors were saved: what is wrong must not become what is right")
        }
        (None, _) => Ok(()),
    }
}

// Of named runs only their own anchors are compared.
async fn report(
    store: &dyn Store,
    args: &VerifyArgs,
    anchors: &[Anchor],
) -> Result<(Report, usize), Failure> {
    if args.runs.is_empty() {
        return Ok((verify_store(store, anchors).await?, anchors.len()));
    }
    let (mut whole, mut compared) = (Report::default(), 0);
    for run_key in keys_of(store, &args.within.namespace, &args.runs).await? {
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
    std::fs::write(path, lines.join("\n") + "\n").map_err(|error| {
        Failure::error(format!("{} cannot be written: {error}", path.display()))
    })?;
    Ok(lines.len())
}

fn read_anchors(path: &Path) -> Result<Vec<Anchor>, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::error(format!("{shown} cannot be read: {error}")))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(n, line): (usize, &str)| {
        let parsed = line.parse::<Anchor>();
        parsed.map_err(|error| Failure::error(format!("{shown} line {}: {error}", n + 1)))
    };
    lines.map(parse).collect()
}
