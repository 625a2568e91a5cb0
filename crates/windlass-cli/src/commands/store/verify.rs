//! `windlass verify`: recomputes hash chains, and compares them with heads that were kept elsewhere.

use std::path::Path;

use windlass::Store;
use windlass::kernel::verify::{Anchor, Report, verify_one, verify_store};

use super::{keys_of, open_existing};
use crate::args::VerifyArgs;
use crate::exit::{Exit, Failure, Outcome};

pub(crate) async fn verify(args: VerifyArgs) -> Outcome {
    let anchors = match &args.anchors {
        Some(path) => read_anchors(path)?,
        None => Vec::new(),
    };
    let store = open_existing(&args.store).await?;
    let damage = store.check().await?;
    let (report, compared) = report(&*store, &args, &anchors).await?;
    for sentence in &damage {
        println!("damaged: {sentence}");
    }
    print_report(&report, compared);
    let clean = damage.is_empty() && report.is_clean();
    if let Some(path) = &args.save {
        save(path, &report, clean)?;
    }
    store.close().await?;
    Ok(if clean { Exit::Ok } else { Exit::Error })
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

fn save(path: &Path, report: &Report, clean: bool) -> Result<(), Failure> {
    if !clean {
        println!("no anchors were saved: what is wrong must not become what is right");
        return Ok(());
    }
    let lines: Vec<String> = report.anchors.iter().map(Anchor::to_string).collect();
    std::fs::write(path, lines.join("\n") + "\n").map_err(|error| {
        Failure::error(format!("{} cannot be written: {error}", path.display()))
    })?;
    println!("{} anchors saved to {}", lines.len(), path.display());
    Ok(())
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

fn print_report(report: &Report, anchors: usize) {
    for sentence in &report.unreadable {
        println!("unreadable: {sentence}");
    }
    for flaw in &report.flaws {
        println!("flawed: {flaw}");
    }
    let (runs, events, flaws) = (report.runs, report.events, report.flaws.len());
    println!("{runs} runs, {events} events, {anchors} anchors: {flaws} flaws");
}
