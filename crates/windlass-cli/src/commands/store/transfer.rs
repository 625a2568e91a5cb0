//! `windlass export` and `windlass import`: transfers runs and records between stores as JSON Lines.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};

use futures::StreamExt as _;
use serde_json::json;
use windlass::Store;
use windlass::admin::transfer::{
    Imported, Importer, RecordExport, RunExport, export_record, export_run,
};
use windlass::kernel::{Query, RunKey};
use windlass::model::TokioEnv;

use super::{open, open_read_only, resolve_run_keys};
use crate::args::{ExportArgs, ImportArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, note};

/// The records of one page. Each may have a large body.
const RECORDS_PAGE: u32 = 16;
/// The number of concurrent imports; their commits share transactions.
const CONCURRENT_IMPORTS: usize = 32;

pub(crate) async fn export(args: ExportArgs) -> Outcome {
    let store = open_read_only(&args.store).await?.store;
    let mut out: Box<dyn Write> = match &args.out {
        Some(path) => Box::new(BufWriter::new(File::create(path).map_err(|error| {
            Failure::error(format!("failed to write {}: {error}", path.display()))
        })?)),
        None => Box::new(BufWriter::new(std::io::stdout())),
    };
    let mut written = ExportCounts::default();
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
        write_records(&*store, &mut out, &mut written).await?;
    } else {
        let keys = resolve_run_keys(&*store, &args.within.namespace, &args.runs).await?;
        write(&*store, &keys, args.ended, &mut out, &mut written).await?;
    }
    out.flush()?;
    store.close().await?;
    let ExportCounts { runs, open, records } = written;
    note(&match args.runs.is_empty() {
        true => format!("exported {runs} runs and {records} records"),
        false => format!("exported {runs} runs"),
    });
    if open > 0 {
        note(&format!(
            "{open} of them have not ended: do not import them while an engine uses this store, or \
             they continue in both stores (--ended omits them)"
        ));
    }
    Ok(Exit::Ok)
}

/// Counts of exported runs.
#[derive(Default)]
struct ExportCounts {
    runs: u64,
    /// Runs that have not ended.
    open: u64,
    records: u64,
}

async fn write(
    store: &dyn Store,
    keys: &[RunKey],
    ended: bool,
    out: &mut dyn Write,
    written: &mut ExportCounts,
) -> Result<(), Failure> {
    for run_key in keys {
        let Some(run) = export_run(store, *run_key).await? else {
            return Err(Failure::new(Exit::NotFound, format!("run {run_key} does not exist")));
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

async fn write_records(
    store: &dyn Store,
    out: &mut dyn Write,
    written: &mut ExportCounts,
) -> Result<(), Failure> {
    let mut after = None;
    loop {
        let query = Query::AllRecords { after, limit: RECORDS_PAGE };
        let keys: Vec<_> =
            store.list(query).await?.records()?.into_iter().map(|record| record.key).collect();
        for key in &keys {
            if let Some(record) = export_record(store, key.clone()).await? {
                written.records += 1;
                writeln!(out, "{}", record.to_line()?)?;
            }
        }
        if keys.len() < RECORDS_PAGE as usize {
            return Ok(());
        }
        after = keys.into_iter().next_back();
    }
}

pub(crate) async fn import(args: ImportArgs) -> Outcome {
    let input: Box<dyn BufRead> = match &args.file {
        Some(path) => Box::new(BufReader::new(File::open(path).map_err(|error| {
            Failure::error(format!("failed to read {}: {error}", path.display()))
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
        .map(|(n, line)| async move { (n + 1, import_line(importer_ref, line).await) })
        .buffer_unordered(CONCURRENT_IMPORTS);
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
            let text = format!(
                "imported {written} runs and records, skipped {skipped} that exist, {failed} failed"
            );
            out.line(&text)?;
        }
        false => {
            let counts = json!({ "imported": written, "skipped": skipped, "failed": failed });
            out.value(&counts)?;
        }
    }
    Ok(if failed == 0 { Exit::Ok } else { Exit::Error })
}

async fn import_line(
    importer: &Importer,
    line: std::io::Result<String>,
) -> Result<Imported, Failure> {
    let line = line?;
    if RecordExport::is_record(&line) {
        return Ok(importer.import_record(RecordExport::parse(&line)?).await?);
    }
    Ok(importer.import(RunExport::parse(&line)?).await?)
}
