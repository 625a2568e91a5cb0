//! `windlass export` and `windlass import`: runs as JSON Lines between stores.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};

use futures::StreamExt as _;
use serde_json::json;
use windlass::kernel::{Query, RunKey};
use windlass::transfer::{Imported, Importer, RunExport, export_run};
use windlass::{Store, TokioEnv};

use super::{keys_of, look, open};
use crate::args::{ExportArgs, ImportArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, note};

/// How many runs are written at the same time, so that their commits share transactions.
const AT_ONCE: usize = 32;

pub(crate) async fn export(args: ExportArgs) -> Outcome {
    let store = look(&args.store).await?.store;
    let mut out: Box<dyn Write> = match &args.out {
        Some(path) => Box::new(BufWriter::new(File::create(path).map_err(|error| {
            Failure::error(format!("{} cannot be written: {error}", path.display()))
        })?)),
        None => Box::new(BufWriter::new(std::io::stdout())),
    };
    let mut written = Written::default();
    if args.runs.is_empty() {
        let mut after = None;
        loop {
            let page = store.list(Query::RunKeys { after, limit: 500 }).await?.run_keys()?;
            write(&*store, &page, args.ended, &mut out, &mut written).await?;
            after = page.last().copied();
            if page.len() < 500 {
                break;
            }
        }
    } else {
        let keys = keys_of(&*store, &args.within.namespace, &args.runs).await?;
        write(&*store, &keys, args.ended, &mut out, &mut written).await?;
    }
    out.flush()?;
    store.close().await?;
    let Written { runs, open } = written;
    note(&format!("{runs} runs exported"));
    if open > 0 {
        note(&format!(
            "{open} of them had not ended: do not import them while anybody works on this store, \
             or they go on in both (--ended leaves them out)"
        ));
    }
    Ok(Exit::Ok)
}

/// What was exported.
#[derive(Default)]
struct Written {
    runs: u64,
    /// How many of them had not ended.
    open: u64,
}

async fn write(
    store: &dyn Store,
    keys: &[RunKey],
    ended: bool,
    out: &mut dyn Write,
    written: &mut Written,
) -> Result<(), Failure> {
    for run_key in keys {
        let Some(run) = export_run(store, *run_key).await? else {
            return Err(Failure::new(Exit::NotFound, format!("there is no run {run_key}")));
        };
        if ended && !run.is_ended() {
            continue;
        }
        written.runs += 1;
        written.open += u64::from(!run.is_ended());
        writeln!(out, "{}", run.to_line()?)?;
    }
    Ok(())
}

pub(crate) async fn import(args: ImportArgs) -> Outcome {
    let input: Box<dyn BufRead> = match &args.file {
        Some(path) => Box::new(BufReader::new(File::open(path).map_err(|error| {
            Failure::error(format!("{} cannot be read: {error}", path.display()))
        })?)),
        None => Box::new(BufReader::new(std::io::stdin())),
    };
    let store = open(&args.store).await?.store;
    let env = TokioEnv::new()?;
    let importer = Importer::begin(store.clone(), &*env).await?;
    let (mut written, mut skipped, mut failed) = (0_u64, 0_u64, 0_u64);
    let lines = input.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.as_ref().is_ok_and(|line| line.trim().is_empty()));
    let importer_ref = &importer;
    let mut imports = futures::stream::iter(lines)
        .map(|(n, line)| async move { (n + 1, one(importer_ref, line).await) })
        .buffer_unordered(AT_ONCE);
    while let Some((line, outcome)) = imports.next().await {
        match outcome {
            Ok(Imported::Written | Imported::Completed) => written += 1,
            Ok(Imported::Skipped) => skipped += 1,
            Err(failure) => {
                failed += 1;
                note(&format!("line {line}: {failure}"));
            }
        }
    }
    drop(imports);
    importer.finish().await?;
    store.close().await?;
    let out = Out::new(args.output.output);
    match out.is_text() {
        true => {
            let text =
                format!("{written} runs imported, {skipped} were there already, {failed} failed");
            out.line(&text)?;
        }
        false => {
            let told = json!({ "imported": written, "skipped": skipped, "failed": failed });
            out.value(&told)?;
        }
    }
    Ok(if failed == 0 { Exit::Ok } else { Exit::Error })
}

async fn one(importer: &Importer, line: std::io::Result<String>) -> Result<Imported, Failure> {
    Ok(importer.import(RunExport::parse(&line?)?).await?)
}
