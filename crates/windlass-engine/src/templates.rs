//! Templates: properties that all runs of a workflow share. The processes that serve the workflow keep
//! them in the store, so that any other process can start runs of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Body, Commit, Error, ErrorCode, ErrorKind, ModelName, Op, Query, SettingName, WorkflowName,
};

use crate::core::Core;
use crate::registry::Registry;
use crate::start::StartRun;

/// The kind of the settings that store templates, by workflow.
const KIND: &str = "workflow";
/// How long templates are cached.
const CACHED_FOR: Duration = Duration::from_secs(1);

/// The properties that all runs of a workflow share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// The model.
    pub model: ModelName,
    /// The tasks that the commit which ends a run enqueues; see [`windlass_kernel::OnEnd`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_end: Option<Arc<str>>,
    /// The rules for headers; without rules a run may have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<HeaderRules>,
}

/// The rules for the headers of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderRules {
    /// The largest number of headers.
    pub count_max: usize,
    /// The most bytes of names and values together.
    pub bytes_max: usize,
    /// The prefix that names must not have.
    pub reserved: String,
}

impl HeaderRules {
    /// Checks the headers of a run.
    pub fn check(&self, headers: &BTreeMap<String, String>) -> Result<(), Error> {
        let invalid =
            |message| Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidHeaders, message));
        let Self { count_max, bytes_max, reserved } = self;
        if headers.len() > *count_max {
            let count = headers.len();
            return invalid(format!(
                "the run has {count} headers; at most {count_max} are allowed"
            ));
        }
        let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > *bytes_max {
            return invalid(format!(
                "the run's headers have {bytes} bytes; at most {bytes_max} are allowed"
            ));
        }
        for name in headers.keys() {
            if name.starts_with(reserved.as_str()) {
                return Err(self.refused("header", name));
            }
            if name.is_empty() || name.chars().any(char::is_control) {
                return invalid(format!(
                    "{name:?} is not a header name; use non-empty text without control characters"
                ));
            }
        }
        Ok(())
    }

    /// The error for a name with the reserved prefix.
    pub fn refused(&self, what: &str, name: &str) -> Error {
        let message = format!(
            "{what} {name:?} begins with {:?}, which is reserved; use another name",
            self.reserved
        );
        Error::new(ErrorKind::Invalid, ErrorCode::ReservedHeader, message)
    }
}

/// Parses the headers in a run's row.
pub fn read_headers(text: Option<&str>) -> Result<BTreeMap<String, String>, Error> {
    let Some(text) = text else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text).map_err(|source| {
        let message = "the run's headers are not a JSON object of strings";
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidHeaders, message).with_source(source)
    })
}

type Known = Arc<BTreeMap<WorkflowName, Template>>;

/// The templates of the store, cached, and those that this process has still to write.
pub(crate) struct Templates {
    core: Arc<Core>,
    registry: Arc<Registry>,
    read: Mutex<Option<(Duration, Known)>>,
    unwritten: Mutex<Vec<(WorkflowName, Template)>>,
}

impl Templates {
    pub(crate) fn new(core: Arc<Core>, registry: Arc<Registry>) -> Arc<Self> {
        Arc::new(Self { core, registry, read: Mutex::default(), unwritten: Mutex::default() })
    }

    /// The model of a workflow that another process serves, read from the store now.
    pub(crate) async fn model_published(
        &self,
        workflow: &WorkflowName,
    ) -> Result<Option<ModelName>, Error> {
        let known = self.read_templates().await?;
        Ok(known.get(workflow).map(|template| template.model.clone()))
    }

    /// Writes a template to the store, in the background.
    pub(crate) fn publish(self: &Arc<Self>, workflow: WorkflowName, template: Template) {
        self.unwritten.lock().push((workflow, template));
        let templates = Arc::clone(self);
        self.core.spawn_service("templates", move || Arc::clone(&templates).publish_all());
    }

    async fn publish_all(self: Arc<Self>) {
        let mut delay = Duration::from_millis(50);
        while let Err(error) = self.write().await {
            if self.core.lifecycle.is_draining() || !error.is_retryable() {
                tracing::warn!(%error, "failed to publish workflow template");
                return;
            }
            self.core.env.sleep(delay).await;
            delay = (delay * 2).min(Duration::from_secs(5));
        }
    }

    /// Writes the templates that are not written yet and that differ from those of the store.
    pub(crate) async fn write(&self) -> Result<(), Error> {
        let unwritten = self.unwritten.lock().clone();
        if unwritten.is_empty() {
            return Ok(());
        }
        let known = self.read_templates().await?;
        for (workflow, template) in &unwritten {
            if known.get(workflow) != Some(template) {
                let name = SettingName::new(KIND, workflow.as_str());
                self.core.store.put_setting(name, Some(Body::of(template)?)).await?;
            }
        }
        self.unwritten.lock().retain(|one| !unwritten.contains(one));
        Ok(())
    }

    /// The template of a workflow, from the store or from the cache.
    pub(crate) async fn of(&self, workflow: &WorkflowName) -> Result<Option<Template>, Error> {
        let now = self.core.env.elapsed();
        let read = self.read.lock().clone();
        let known = match read {
            Some((at, known)) if now.saturating_sub(at) < CACHED_FOR => known,
            _ => {
                let known = self.read_templates().await?;
                *self.read.lock() = Some((now, Arc::clone(&known)));
                known
            }
        };
        Ok(known.get(workflow).cloned())
    }

    /// The template of a workflow from the cache, however old.
    pub(crate) fn cached(&self, workflow: &WorkflowName) -> Option<Template> {
        self.read.lock().as_ref()?.1.get(workflow).cloned()
    }

    async fn read_templates(&self) -> Result<Known, Error> {
        let limit = self.core.options.limits.page_rows_max;
        let (mut known, mut after) = (BTreeMap::new(), None);
        loop {
            let query = Query::Settings { kind: KIND.into(), after, limit };
            let page = self.core.store.list(query).await?.settings()?;
            after = page.last().map(|setting| Arc::clone(&setting.name.name));
            let last = page.len() < limit as usize;
            for setting in page {
                let workflow = WorkflowName::from_stored(&*setting.name.name);
                match setting.value.read() {
                    Ok(template) => drop(known.insert(workflow, template)),
                    // A later build may have written it; start such runs with that build.
                    Err(error) => {
                        tracing::warn!(%error, %workflow, "failed to parse the template of a workflow")
                    }
                }
            }
            if last {
                return Ok(Arc::new(known));
            }
        }
    }

    /// Adds the template's properties to a run of a workflow that only other processes serve.
    pub(crate) async fn complete_start(&self, start: &mut StartRun) -> Result<(), Error> {
        if self.registry.serves(start.workflow.as_str()) {
            return Ok(());
        }
        let template = self.of(&start.workflow).await?;
        if let Some(headers) = &start.headers {
            let rules = template.as_ref().and_then(|template| template.headers.as_ref());
            let Some(rules) = rules else {
                let message = format!(
                    "the template of workflow {:?} allows no headers; start the run without headers, or in a \
                     process that serves the workflow",
                    start.workflow
                );
                return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidHeaders, message));
            };
            rules.check(&read_headers(Some(headers))?)?;
        }
        if let Some(template) = template {
            (start.model, start.on_end) = (template.model, template.on_end);
        }
        Ok(())
    }

    /// Whether a commit creates a run of a workflow that only other processes serve, without the
    /// template's `on_end`.
    pub(crate) fn is_incomplete(&self, commit: &Commit) -> bool {
        commit.ops.iter().any(|op| self.incomplete(op))
    }

    fn incomplete(&self, op: &Op) -> bool {
        let Op::CreateRun(run) = op else { return false };
        let served = || self.registry.serves(run.workflow.as_str());
        run.generation == 0 && run.on_end.is_none() && !served()
    }

    /// Adds `on_end` of the template to such runs. This is late, because the store cannot be read where
    /// a child is drafted. The events do not contain `on_end`.
    pub(crate) async fn complete_commit(&self, commit: &mut Commit) -> Result<(), Error> {
        for index in 0..commit.ops.len() {
            let Some(Op::CreateRun(run)) = commit.ops.get(index).filter(|op| self.incomplete(op))
            else {
                continue;
            };
            let workflow = run.workflow.clone();
            let on_end = self.of(&workflow).await?.and_then(|template| template.on_end);
            if let Op::CreateRun(run) = &mut commit.ops_mut()[index] {
                run.on_end = on_end;
            }
        }
        Ok(())
    }
}
