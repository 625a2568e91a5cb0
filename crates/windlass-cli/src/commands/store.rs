//! Commands that open a store directly: info, doctor, verify, migrate, export and import.

mod doctor;
mod info;
mod transfer;
mod verify;

use std::sync::Arc;

use windlass::kernel::{Limits, Namespace, Query, RunId, RunKey, WorkflowName};
use windlass::{Address, Store};

use crate::args::StoreArg;
use crate::exit::{Exit, Failure};
use crate::redact::{scrub, without_password};
use crate::settings::{Origin, Setting, read_store};

pub(super) use doctor::{doctor, migrate};
pub(super) use info::info;
pub(super) use transfer::{export, import};
pub(super) use verify::verify;

/// An open store and its address.
struct Opened {
    store: Arc<dyn Store>,
    address: String,
}

impl Opened {
    /// The address without passwords.
    fn display(&self) -> String {
        without_password(&self.address)
    }
}

/// Opens a store for writing. Creates a missing store only if the user named it, so that a command
/// in the wrong directory does not leave an empty store there.
async fn open(arg: &StoreArg) -> Result<Opened, Failure> {
    open_with_limits(arg, &Limits::DEFAULT).await
}

async fn open_with_limits(arg: &StoreArg, limits: &Limits) -> Result<Opened, Failure> {
    let Setting { value: address, origin, .. } = store_setting(arg)?;
    if origin == Origin::Default
        && let Ok(Address::Sqlite(path)) = address.parse()
        && !path.exists()
    {
        let message = format!(
            "no store is configured, and the default store {} does not exist",
            path.display()
        );
        return Err(Failure::usage(message)
            .with_hint("set one with --store, WINDLASS_STORE or `store` in windlass.toml"));
    }
    let opened = windlass::admin::open_store_with_limits(&address, limits).await;
    let store = opened.map_err(|error| open_failure(&address, error))?;
    Ok(Opened { store, address })
}

/// Opens a store for reading: does not create, migrate or change it.
async fn open_read_only(arg: &StoreArg) -> Result<Opened, Failure> {
    let address = store_setting(arg)?.value;
    let opened = windlass::admin::inspect_store(&address).await;
    let store = opened.map_err(|error| open_failure(&address, error))?;
    Ok(Opened { store, address })
}

fn store_setting(arg: &StoreArg) -> Result<Setting, Failure> {
    let setting = read_store(arg)?;
    match setting.value.as_str() {
        "memory:" => {
            let message =
                "a memory store is always empty here; choose a SQLite or PostgreSQL store";
            Err(Failure::usage(message))
        }
        _ => Ok(setting),
    }
}

/// Adds the address of the store to an error, unless the message already names the file.
pub(super) fn open_failure(address: &str, error: windlass::Error) -> Failure {
    let failure = Failure::from(error);
    let file = match address.parse() {
        Ok(Address::Sqlite(path)) => path.display().to_string(),
        _ => String::new(),
    };
    if !file.is_empty() && failure.message.contains(&file) {
        return failure;
    }
    let shown = without_password(address);
    let message = format!("failed to open the store {shown}: {}", scrub(&failure.message, address));
    Failure { message, ..failure }
}

/// Resolves runs to run keys. WORKFLOW/ID selects all generations of a run.
async fn resolve_run_keys(
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
            let message = format!("{name:?} is not a run");
            return Err(Failure::usage(message).with_hint("use WORKFLOW/ID or a run key"));
        };
        let (workflow, id) = (WorkflowName::new(workflow)?, RunId::composed(id)?);
        let found = generations(store, &namespace, &workflow, &id).await?;
        if found.is_empty() {
            let message = format!("run {name} does not exist in namespace {namespace}");
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
