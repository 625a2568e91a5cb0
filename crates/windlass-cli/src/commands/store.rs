//! The commands that open a store themselves: info, doctor, verify, migrate, export and import.

mod doctor;
mod info;
mod transfer;
mod verify;

use std::sync::Arc;

use windlass::kernel::{Namespace, Query, RunId, RunKey, WorkflowName};
use windlass::{Address, Store};

use crate::args::StoreArg;
use crate::exit::{Exit, Failure};
use crate::settings::{Origin, Setting, read_store};
use crate::shown::without_password;

pub(super) use doctor::{doctor, migrate};
pub(super) use info::info;
pub(super) use transfer::{export, import};
pub(super) use verify::verify;

/// A store that was opened, and its address.
struct Opened {
    store: Arc<dyn Store>,
    address: String,
}

impl Opened {
    /// The address as it may be shown.
    fn shown(&self) -> String {
        without_password(&self.address)
    }
}

/// Opens a store to write to it. One that is missing is made, if somebody has named it: a command that
/// was called in the wrong folder does not leave an empty store there.
async fn open(arg: &StoreArg) -> Result<Opened, Failure> {
    let Setting { value: address, origin, .. } = named(arg)?;
    if origin == Origin::Default
        && let Ok(Address::Sqlite(path)) = address.parse()
        && !path.exists()
    {
        let message = format!("no store is named, and there is none at {}", path.display());
        return Err(Failure::usage(message)
            .with_hint("name one with --store, WINDLASS_STORE or `store` in windlass.toml"));
    }
    let opened = windlass::open_store(&address).await;
    let store = opened.map_err(|error| not_opened(&address, error))?;
    Ok(Opened { store, address })
}

/// Opens a store to look at it: nothing is made, migrated or changed.
async fn look(arg: &StoreArg) -> Result<Opened, Failure> {
    let address = named(arg)?.value;
    let opened = windlass::inspect_store(&address).await;
    let store = opened.map_err(|error| not_opened(&address, error))?;
    Ok(Opened { store, address })
}

fn named(arg: &StoreArg) -> Result<Setting, Failure> {
    let setting = read_store(arg)?;
    match setting.value.as_str() {
        "memory:" => {
            let message = "a store in memory is empty and gone at the end; name one that is kept";
            Err(Failure::usage(message))
        }
        _ => Ok(setting),
    }
}

/// Why a store cannot be opened, with its address, unless its file is named anyway.
pub(super) fn not_opened(address: &str, error: windlass::Error) -> Failure {
    let failure = Failure::from(error);
    let file = match address.parse() {
        Ok(Address::Sqlite(path)) => path.display().to_string(),
        _ => String::new(),
    };
    if !file.is_empty() && failure.message.contains(&file) {
        return failure;
    }
    let shown = without_password(address);
    let message = format!("the store {shown} cannot be opened: {}", failure.message);
    Failure { message, ..failure }
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
