//! Templates: what every run of a workflow has, kept in the store by those who serve the workflow, so
//! that whoever starts a run of it gives it the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Body, Commit, Error, ErrorKind, ModelName, Op, Query, SettingName, WorkflowName,
};

use crate::engine::{Engine, Inner};
use crate::env::Lane;
use crate::start::StartRun;

/// The kind of the settings that templates are kept as, by workflow.
const KIND: &str = "workflow";
/// For how long what was read is believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// What every run of a workflow has, whoever starts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// The model.
    pub model: ModelName,
    /// What the commit that ends a run enqueues; see [`windlass_kernel::OnEnd`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_end: Option<Arc<str>>,
    /// Which headers a run may have; none if there are no rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<HeaderRules>,
}

/// Which headers a run may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderRules {
    /// At most so many.
    pub count_max: usize,
    /// At most so many bytes of names and values together.
    pub bytes_max: usize,
    /// No name may begin with this.
    pub reserved: String,
}

impl HeaderRules {
    /// Refuses headers that no run may have, by name.
    pub fn check(&self, headers: &BTreeMap<String, String>) -> Result<(), Error> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "INVALID_HEADERS", message));
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
                    "{name:?} is no name for a header: use text that is not empty"
                ));
            }
        }
        Ok(())
    }

    /// Why a name that begins as reserved ones do is refused.
    pub fn refused(&self, what: &str, name: &str) -> Error {
        let message = format!(
            "{what} {name:?} begins with {:?}, which is reserved; use another name",
            self.reserved
        );
        Error::new(ErrorKind::Invalid, "RESERVED_HEADER", message)
    }
}

/// A run's headers as they stand in its row.
pub fn read_headers(text: Option<&str>) -> Result<BTreeMap<String, String>, Error> {
    let Some(text) = text else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text).map_err(|source| {
        let message = "the run's headers are not a JSON object of strings";
        Error::new(ErrorKind::Invalid, "INVALID_HEADERS", message).with_source(source)
    })
}

type Known = Arc<BTreeMap<WorkflowName, Template>>;

/// The templates that were read, and those that are to be written.
#[derive(Default)]
pub(crate) struct Templates {
    read: Mutex<Option<(Duration, Known)>>,
    unwritten: Mutex<Vec<(WorkflowName, Template)>>,
}

impl Engine {
    /// The model of a workflow that this process serves, or that any process has served before on
    /// the same store and left word of.
    pub async fn model_known(&self, workflow: &WorkflowName) -> Result<Option<ModelName>, Error> {
        match self.model_of(workflow) {
            Some(model) => Ok(Some(model)),
            None => Ok(self.inner.template_of(workflow).await?.map(|template| template.model)),
        }
    }
}

impl Inner {
    /// Keeps a template in the store, in the background.
    pub(crate) fn publish(self: &Arc<Self>, workflow: WorkflowName, template: Template) {
        self.templates.unwritten.lock().push((workflow, template));
        let inner = Arc::clone(self);
        let write = async move {
            let mut delay = Duration::from_millis(50);
            while let Err(error) = inner.write_templates().await {
                if inner.is_draining() || !error.is_retryable() {
                    tracing::warn!(%error, "what runs of a workflow have cannot be told to others");
                    return;
                }
                inner.env.sleep(delay).await;
                delay = (delay * 2).min(Duration::from_secs(5));
            }
        };
        self.env.spawn(Lane::Service, Box::pin(write));
    }

    /// Writes what has not been written yet; what the store has already is left as it is.
    pub(crate) async fn write_templates(&self) -> Result<(), Error> {
        let unwritten = self.templates.unwritten.lock().clone();
        if unwritten.is_empty() {
            return Ok(());
        }
        let known = self.read_templates().await?;
        for (workflow, template) in &unwritten {
            if known.get(workflow) != Some(template) {
                let name = SettingName::new(KIND, workflow.as_str());
                self.store.put_setting(name, Some(Body::of(template)?)).await?;
            }
        }
        self.templates.unwritten.lock().retain(|one| !unwritten.contains(one));
        Ok(())
    }

    /// What runs of a workflow have that other processes serve, as far as they have told.
    pub(crate) async fn template_of(
        &self,
        workflow: &WorkflowName,
    ) -> Result<Option<Template>, Error> {
        let now = self.env.elapsed();
        let read = self.templates.read.lock().clone();
        let known = match read {
            Some((at, known)) if now.saturating_sub(at) < BELIEVED => known,
            _ => {
                let known = self.read_templates().await?;
                *self.templates.read.lock() = Some((now, Arc::clone(&known)));
                known
            }
        };
        Ok(known.get(workflow).cloned())
    }

    /// The same as far as it was read before, however long ago.
    pub(crate) fn template_read(&self, workflow: &WorkflowName) -> Option<Template> {
        self.templates.read.lock().as_ref()?.1.get(workflow).cloned()
    }

    async fn read_templates(&self) -> Result<Known, Error> {
        let limit = self.options.limits.page_rows_max;
        let (mut known, mut after) = (BTreeMap::new(), None);
        loop {
            let query = Query::Settings { kind: KIND.into(), after, limit };
            let page = self.store.list(query).await?.settings()?;
            after = page.last().map(|setting| Arc::clone(&setting.name.name));
            let last = page.len() < limit as usize;
            for setting in page {
                let workflow = WorkflowName::from_stored(&*setting.name.name);
                match setting.value.read() {
                    Ok(template) => drop(known.insert(workflow, template)),
                    // A later build may keep more: its runs are started where it is known.
                    Err(error) => tracing::warn!(%error, %workflow, "a template does not read"),
                }
            }
            if last {
                return Ok(Arc::new(known));
            }
        }
    }

    /// Completes a run that this process is asked to start and that others serve.
    pub(crate) async fn complete_start(&self, start: &mut StartRun) -> Result<(), Error> {
        if self.registered(&start.workflow).is_some() {
            return Ok(());
        }
        let template = self.template_of(&start.workflow).await?;
        if let Some(headers) = &start.headers {
            // Only whoever serves it knows what they mean.
            let rules = template.as_ref().and_then(|template| template.headers.as_ref());
            let Some(rules) = rules else {
                let message = format!(
                    "nobody who serves workflow {:?} has said that its runs have headers; start this \
                     one without them, or where the workflow is served",
                    start.workflow
                );
                return Err(Error::new(ErrorKind::Invalid, "INVALID_HEADERS", message));
            };
            rules.check(&read_headers(Some(headers))?)?;
        }
        if let Some(template) = template {
            (start.model, start.on_end) = (template.model, template.on_end);
        }
        Ok(())
    }

    /// Whether a commit makes a first generation that others serve and whose end tells nobody yet.
    pub(crate) fn is_incomplete(&self, commit: &Commit) -> bool {
        commit.ops.iter().any(|op| self.incomplete(op))
    }

    fn incomplete(&self, op: &Op) -> bool {
        let Op::CreateRun(run) = op else { return false };
        let served = || self.models.read().contains_key(&run.workflow);
        run.generation == 0 && run.on_end.is_none() && !served()
    }

    /// Gives such runs what their template says. Their events say nothing of it, so it can be as late
    /// as this: where a child is drafted nothing can be read.
    pub(crate) async fn complete_commit(&self, commit: &mut Commit) -> Result<(), Error> {
        for index in 0..commit.ops.len() {
            let Some(Op::CreateRun(run)) = commit.ops.get(index).filter(|op| self.incomplete(op))
            else {
                continue;
            };
            let workflow = run.workflow.clone();
            let on_end = self.template_of(&workflow).await?.and_then(|template| template.on_end);
            if let Op::CreateRun(run) = &mut commit.ops_mut()[index] {
                run.on_end = on_end;
            }
        }
        Ok(())
    }
}
