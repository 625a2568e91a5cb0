//! Runs and records between stores: each as one line of JSON with everything that the store keeps of it.
//!
//! [`export_run`] reads a run, [`Importer::import`] writes it into another store, through commits like
//! everything else: keys, ordinals and hashes stay as they were, so the ledger verifies there too. A
//! run that had not ended goes on in the new store; stop the engines on the old one first, or it goes
//! on in both. [`export_record`] and [`Importer::import_record`] do the same for a record and its kept
//! versions, which keep their revisions.
//!
//! Not exported: limits, settings, dead letters, kept ledgers of deleted runs, tasks that belong to no run, and the
//! application's own tables. An import creates the tasks that the engine needs for its records.

mod format;
mod import;
mod record;
mod record_import;

use std::collections::BTreeSet;

use windlass_kernel::verify::WholeRun;
use windlass_kernel::{
    Body, BodyKey, BodyOwner, Error, ErrorCode, ErrorKind, Event, LogId, LogLine, Message, Query,
    Run, RunKey, Sha256Digest, Store, Task, TasksQuery, bodies,
};

pub use format::RunExport;
pub use import::{Imported, Importer};
pub use record::{RecordExport, export_record};

/// How many rows a listing is asked for at once.
const PAGE: u32 = 500;
/// How often a run that moves while it is read is read again.
const READS_MAX: usize = 5;

/// A run with everything that the store keeps of it.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) whole: WholeRun,
    pub(crate) tasks: Vec<Task>,
    pub(crate) logs: Vec<LogLine>,
    /// Large bodies that no row of the run names. Only the export of a root has them.
    pub(crate) bodies: Vec<Body>,
}

/// Reads a run out of a store. None if there is no such run.
///
/// A run that keeps moving while it is read is refused (`RUN_BUSY`): half of one state and half of
/// another would be neither.
///
/// ```
/// # async fn example(run: windlass::RunHandle<String>, engine: windlass::Engine) -> windlass::Result<()> {
/// use windlass::admin::transfer::export_run;
///
/// if let Some(export) = export_run(&**engine.admin().store(), run.run_key()).await? {
///     println!("{}", export.to_line()?);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`ErrorCode::RunBusy`] if the run keeps moving while it is read, or the store cannot be read.
pub async fn export_run(store: &dyn Store, run_key: RunKey) -> Result<Option<RunExport>, Error> {
    for _ in 0..READS_MAX {
        let Some(parts) = read(store, run_key).await? else { return Ok(None) };
        let run = &parts.whole.run;
        let again = store.load(vec![run_key]).await?.pop();
        let still = |now: &Run| {
            (now.head, now.accepted, now.turn.claim_no, now.status)
                == (run.head, run.accepted, run.turn.claim_no, run.status)
        };
        if again.is_some_and(|loaded| still(&loaded.run)) {
            return Ok(Some(RunExport::of(&parts)));
        }
    }
    let message = format!(
        "run {run_key} moves while it is read; stop the engines on its store, or pause the run"
    );
    Err(Error::new(ErrorKind::Conflict, ErrorCode::RunBusy, message))
}

async fn read(store: &dyn Store, run_key: RunKey) -> Result<Option<Parts>, Error> {
    let Some(loaded) = store.load(vec![run_key]).await?.pop() else { return Ok(None) };
    let mut events: Vec<Event> = Vec::new();
    loop {
        let from = events.last().map_or(0, |event| event.ordinal + 1);
        let page = store.list(Query::Events { run_key, from, limit: PAGE }).await?.events()?;
        let last = page.len() < PAGE as usize;
        events.extend(page);
        if last {
            break;
        }
    }
    let mut messages: Vec<Message> = Vec::new();
    loop {
        let after = messages.last().map_or(0, |message| message.seq);
        let page = store.list(Query::Messages { run_key, after, limit: PAGE }).await?.messages()?;
        let last = page.len() < PAGE as usize;
        messages.extend(page);
        if last {
            break;
        }
    }
    bodies::fill(store, bodies::of_messages(&mut messages)).await?;
    let tasks = read_tasks(store, &loaded.run).await?;
    let logs = read_logs(store, run_key).await?;
    let whole = WholeRun { run: loaded.run, steps: loaded.steps, messages, events };
    let bodies = read_bodies(store, &whole).await?;
    Ok(Some(Parts { whole, tasks, logs, bodies }))
}

// The state of a run can name large bodies of its tree, and so can the states of its children. Nobody but
// the model can read a state, so the root takes all bodies that its own rows do not name.
async fn read_bodies(store: &dyn Store, whole: &WholeRun) -> Result<Vec<Body>, Error> {
    let run = &whole.run;
    if run.root != run.run_key {
        return Ok(Vec::new());
    }
    let owner = BodyOwner::Run(run.run_key);
    let mut digests: Vec<Sha256Digest> = Vec::new();
    loop {
        let after = digests.last().copied();
        let query = Query::Bodies { owner: owner.clone(), after, limit: PAGE };
        let page = store.list(query).await?.bodies()?;
        let last = page.len() < PAGE as usize;
        digests.extend(page.iter().map(|body| body.digest));
        if last {
            break;
        }
    }
    if digests.is_empty() {
        return Ok(Vec::new());
    }
    let steps = whole.steps.iter().flat_map(|step| [&step.input, &step.result, &step.error]);
    let messages = whole.messages.iter().map(|message| &message.body);
    let rows = steps.chain(messages).chain([&run.output, &run.error]).flatten();
    let named: BTreeSet<Sha256Digest> = rows.chain([&run.input]).map(Body::digest).collect();
    let mut found = Vec::new();
    for digest in digests.into_iter().filter(|digest| !named.contains(digest)) {
        let key = BodyKey { owner: owner.clone(), digest };
        let read = store.bodies(vec![key]).await?;
        found.extend(read.into_iter().flatten().map(Body::bytes));
    }
    Ok(found)
}

pub(crate) async fn read_tasks(store: &dyn Store, run: &Run) -> Result<Vec<Task>, Error> {
    let mut tasks: Vec<Task> = Vec::new();
    loop {
        let query = TasksQuery {
            run_key: Some(run.run_key),
            after: tasks.last().map(|task| task.task_id),
            ..TasksQuery::all(run.namespace.clone(), PAGE)
        };
        let page = store.list(Query::Tasks(query)).await?.tasks()?;
        let last = page.len() < PAGE as usize;
        tasks.extend(page);
        if last {
            return Ok(tasks);
        }
    }
}

pub(crate) async fn read_logs(store: &dyn Store, run_key: RunKey) -> Result<Vec<LogLine>, Error> {
    let mut logs: Vec<LogLine> = Vec::new();
    loop {
        let after: Option<LogId> = logs.last().map(|line| line.log_id);
        let query = Query::Logs { run_key, level_min: None, category: None, after, limit: PAGE };
        let page = store.list(query).await?.logs()?;
        let last = page.len() < PAGE as usize;
        logs.extend(page);
        if last {
            return Ok(logs);
        }
    }
}
