//! `windlass export` and `windlass import`: transfers runs and records between stores as JSON Lines.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::json;
use windlass::Store;
use windlass::admin::transfer::{
    Imported, Importer, RecordExport, RunExport, export_record, export_run,
};
use windlass::kernel::kept::LEDGERS;
use windlass::kernel::{Limits, Query, Record, RunKey};
use windlass::model::TokioEnv;

use super::{open_read_only, open_with_limits, resolve_run_keys};
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
    let ExportCounts { runs, open, records, ledgers } = written;
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
    if ledgers > 0 {
        note(&format!(
            "left out {ledgers} kept ledgers of deleted runs: an import cannot write their events; keep \
             this store to read and verify them"
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
    /// Kept ledgers that were left out.
    ledgers: u64,
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
        let page = store.list(query).await?.records()?;
        for Record { key, body, .. } in &page {
            if key.collection.as_str() == LEDGERS {
                written.ledgers += u64::from(body.is_some());
                continue;
            }
            if let Some(record) = export_record(store, key.clone()).await? {
                written.records += 1;
                writeln!(out, "{}", record.to_line()?)?;
            }
        }
        if page.len() < RECORDS_PAGE as usize {
            return Ok(());
        }
        after = page.into_iter().next_back().map(|record| record.key);
    }
}

pub(crate) async fn import(args: ImportArgs) -> Outcome {
    let input: Box<dyn BufRead> = match &args.file {
        Some(path) => Box::new(BufReader::new(File::open(path).map_err(|error| {
            Failure::error(format!("failed to read {}: {error}", path.display()))
        })?)),
        None => Box::new(BufReader::new(std::io::stdin())),
    };
    // The values that a server with any settings has written.
    let limits = Limits { state_bytes_max: Limits::BODY_BYTES_MAX, ..Limits::DEFAULT }
        .with_body_bytes_max(Limits::BODY_BYTES_MAX);
    let store = open_with_limits(&args.store, &limits).await?.store;
    let env = TokioEnv::new()?;
    let importer = Importer::begin(store.clone(), &*env).await?.limits(limits);
    let mut counts = ImportCounts::default();
    let mut imports = FuturesUnordered::new();
    let mut in_records = false;
    for (n, line) in input.lines().enumerate() {
        if line.as_ref().is_ok_and(|line| line.trim().is_empty()) {
            continue;
        }
        // A record can name a run, and its tasks take a missing run for an ended one.
        let is_record = line.as_ref().is_ok_and(|line| RecordExport::is_record(line));
        let most = if is_record == in_records { CONCURRENT_IMPORTS - 1 } else { 0 };
        in_records = is_record;
        while imports.len() > most
            && let Some((line, outcome)) = imports.next().await
        {
            counts.add(line, outcome);
        }
        let importer = &importer;
        imports.push(async move { (n + 1, import_line(importer, line, is_record).await) });
    }
    while let Some((line, outcome)) = imports.next().await {
        counts.add(line, outcome);
    }
    drop(imports);
    let ImportCounts { written, skipped, failed } = counts;
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

/// Counts of imported lines.
#[derive(Default)]
struct ImportCounts {
    written: u64,
    skipped: u64,
    failed: u64,
}

impl ImportCounts {
    fn add(&mut self, line: usize, outcome: Result<Imported, Failure>) {
        match outcome {
            Ok(Imported::Written | Imported::Completed) => self.written += 1,
            Ok(Imported::Skipped) => self.skipped += 1,
            Err(failure) => {
                self.failed += 1;
                note(&format!("line {line}: {failure}"));
            }
        }
    }
}

async fn import_line(
    importer: &Importer,
    line: std::io::Result<String>,
    is_record: bool,
) -> Result<Imported, Failure> {
    let line = line?;
    if is_record {
        return Ok(importer.import_record(RecordExport::parse(&line)?).await?);
    }
    Ok(importer.import(RunExport::parse(&line)?).await?)
}
