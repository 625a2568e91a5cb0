//! The commands that open a store themselves: info, doctor, verify, migrate, export and import.

mod doctor;
mod info;
mod transfer;
mod verify;

use std::sync::Arc;

use windlass::Store;
use windlass::kernel::{Namespace, Query, RunId, RunKey, WorkflowName};

use crate::args::StoreArg;
use crate::exit::{Exit, Failure};
use crate::shown::without_password;

pub(super) use doctor::{doctor, migrate};
pub(super) use info::info;
pub(super) use transfer::{export, import};
pub(super) use verify::verify;

/// Opens the store that the command line names.
async fn open(arg: &StoreArg) -> Result<Arc<dyn Store>, Failure> {
    let shown = without_password(&arg.store);
    if arg.store == "memory:" {
        let message = "a store in memory is empty and gone at the end; name one that is kept";
        return Err(Failure::usage(message));
    }
    windlass::open_store(&arg.store).await.map_err(|error| {
        let failure = Failure::from(error);
        Failure {
            message: format!("the store {shown} cannot be opened: {}", failure.message),
            ..failure
        }
    })
}

/// As [`open`], for a command that only reads: a store that is not there is not made.
async fn open_existing(arg: &StoreArg) -> Result<Arc<dyn Store>, Failure> {
    if let Ok(windlass::Address::Sqlite(path)) = arg.store.parse()
        && !path.exists()
    {
        let message = format!("there is no store at {}", path.display());
        return Err(Failure::new(Exit::NotFound, message).with_hint(
            "name another with --store or WINDLASS_STORE; `windlass migrate` makes one",
        ));
    }
    open(arg).await
}

/// The keys of the runs that the command line names: WORKFLOW/ID is all generations of a run.
async fn keys_of(
    store: &dyn Store,
    namespace: &str,
    names: &[String],
) -> Result<Vec<RunKey>, Failure> {
    let namespace = Namespace::new(namespace)?;
    let mut keys = Vec::new();
    for name in names {
        if let Ok(run_key) = name.parse::<RunKey>() {
            keys.push(run_key);
            continue;
        }
        let Some((workflow, id)) = name.rsplit_once('/') else {
            let message = format!("{name:?} does not name a run");
            return Err(Failure::usage(message).with_hint("write WORKFLOW/ID, or a run key"));
        };
        let (workflow, id) = (WorkflowName::new(workflow)?, RunId::composed(id)?);
        let found = generations(store, &namespace, &workflow, &id).await?;
        if found.is_empty() {
            let message = format!("there is no run {name} in the namespace {namespace}");
            return Err(Failure::new(Exit::NotFound, message));
        }
        keys.extend(found);
    }
    Ok(keys)
}

async fn generations(
    store: &dyn Store,
    namespace: &Namespace,
    workflow: &WorkflowName,
    id: &RunId,
) -> Result<Vec<RunKey>, Failure> {
    let mut keys = Vec::new();
    let mut before = None;
    loop {
        let query = Query::Generations {
            namespace: namespace.clone(),
            workflow: workflow.clone(),
            id: id.clone(),
            before,
            limit: 100,
        };
        let page = store.list(query).await?.runs()?;
        keys.extend(page.iter().map(|run| run.run_key));
        before = page.last().map(|run| run.generation);
        if page.len() < 100 {
            return Ok(keys);
        }
    }
}
