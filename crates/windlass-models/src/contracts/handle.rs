//! The handle of contracts: registers document types and is the way to definitions, documents and approvals.

use std::sync::{Arc, Weak};
use std::time::Duration;

use windlass_contracts::approvers::Directory;
use windlass_engine::{
    Engine, Model, ModelDescription, Opened, Program, RecordChange, ThreadPool, refusal,
};
use windlass_kernel::{
    Actor, Error, ErrorCode, ErrorKind, Expect, IntoDuration, Namespace, Subject, duration,
};

use super::actions::{Action, Actions};
use super::description::DESCRIPTION;
use super::document::Person;
use super::error::invalid;
use super::names::{DIRECTORY, PEOPLE, SETTINGS, STEPS_MAX, workflow_of};
use super::others::Others;
use super::people::DirectorySource;
use super::policy::{AllowAll, Policy};
use super::program::DocumentProgram;
use super::shared::Shared;
use super::withdrawals::{self, Withdrawals};

/// How often a process that shares its store looks for new document types.
const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// Documents, their contracts and their approvals, in one namespace. Cheap to clone.
#[derive(Clone)]
pub struct Contracts {
    pub(crate) engine: Engine,
    pub(crate) shared: Arc<Shared>,
    /// The people who created the API key of the caller.
    pub(crate) key_creators: Arc<[String]>,
}

/// Options of [`Contracts`].
#[must_use = "a builder does nothing until it is opened"]
pub struct ContractsBuilder {
    actions: Actions,
    policy: Arc<dyn Policy>,
    people: Option<Arc<dyn DirectorySource>>,
    steps_max: u64,
    serves_webhooks: bool,
    serves_mail: bool,
    stuck_every: Option<Result<Duration, duration::Error>>,
}

impl Contracts {
    /// A builder with default options.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use windlass::contracts::Contracts;
    ///
    /// let engine = windlass::Engine::open("memory:").await?;
    /// let contracts = Contracts::builder().steps_max(1_000).open(&engine).await?;
    /// assert!(contracts.types().await?.is_empty());
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn builder() -> ContractsBuilder {
        ContractsBuilder {
            actions: Actions::with_built_in(),
            policy: Arc::new(AllowAll),
            people: None,
            steps_max: STEPS_MAX,
            serves_webhooks: false,
            serves_mail: false,
            stuck_every: None,
        }
    }

    /// The same contracts for another tenant.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let other = contracts.in_namespace("tenant-7".parse()?);
    /// assert_eq!(other.engine().namespace().as_str(), "tenant-7");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn in_namespace(&self, namespace: Namespace) -> Self {
        Self { engine: self.engine.in_namespace(namespace), ..self.clone() }
    }

    /// The same contracts for a caller whose API key these people created. Each of them could have used the key:
    /// what is written with it is theirs as well, and it decides nothing that they cannot decide.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let with_key = contracts.with_key_creators(["rita"]);
    /// with_key.act("invoice", "i-1", "submit", &dana, None).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_key_creators<'a>(&self, creators: impl IntoIterator<Item = &'a str>) -> Self {
        let key_creators = creators.into_iter().map(str::to_owned).collect();
        Self { key_creators, ..self.clone() }
    }

    pub(crate) fn new(engine: Engine, shared: Arc<Shared>) -> Self {
        Self { engine, shared, key_creators: Arc::new([]) }
    }

    /// The caller as documents remember them.
    pub(crate) fn person(&self, subject: &Subject) -> Person {
        Person::with_key(subject, &self.key_creators)
    }

    /// The author of a version that the caller writes.
    pub(crate) fn author(&self, subject: &Subject) -> Actor {
        subject.actor().with_key_creators(self.key_creators.iter().map(String::as_str))
    }

    /// The engine of this handle.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// assert_eq!(contracts.engine().namespace().as_str(), "default");
    /// # Ok(()) }
    /// ```
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn operator(&self) -> Engine {
        self.engine.in_namespace(self.shared.operator.clone())
    }

    /// Replaces the people, roles, managers and delegations of this tenant.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// use windlass::contracts::language::approvers::Directory;
    ///
    /// let people = r#"{"people": {"rita": {}, "kim": {"roles": ["finance_manager"]}}}"#;
    /// let directory: Directory = serde_json::from_str(people)?;
    /// contracts.put_directory(&directory).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSize`] if the directory is too large for a record, [`ErrorCode::InvalidOption`] if the
    /// people come from a [`DirectorySource`].
    pub async fn put_directory(&self, directory: &Directory) -> Result<(), Error> {
        if self.shared.people.is_some() {
            let message = "the people come from the directory of the program; change them there";
            return Err(invalid(ErrorCode::InvalidOption, message));
        }
        self.put_people(DIRECTORY, directory).await
    }

    /// The people, roles, managers and delegations of this tenant.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{} people", contracts.directory().await?.people.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn directory(&self) -> Result<Directory, Error> {
        self.shared.directory(self.engine.namespace()).await
    }

    /// Replaces the settings of this tenant, which expressions read as `org`.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// contracts.put_settings(&serde_json::json!({ "limit": 5_000 })).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSize`] if the settings are too large for a record.
    pub async fn put_settings(&self, settings: &serde_json::Value) -> Result<(), Error> {
        self.put_people(SETTINGS, settings).await
    }

    /// The settings of this tenant, an object without members if there are none.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// assert_eq!(contracts.settings().await?["limit"], 5_000);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn settings(&self) -> Result<serde_json::Value, Error> {
        self.shared.settings(self.engine.namespace()).await
    }

    async fn put_people<T: serde::Serialize>(&self, id: &str, value: &T) -> Result<(), Error> {
        let namespace = self.engine.namespace();
        let found = self.shared.row(super::names::key(namespace, PEOPLE, id)?).await?;
        let expect = found.map_or(Expect::Absent, |record| Expect::At(record.revision));
        let change = RecordChange::put_own(PEOPLE, id, value, expect)?.keep();
        let written = self.engine.commit_with(&[change], Vec::new()).await;
        written.map(drop).map_err(|error| refusal(&error))
    }

    /// Serves the documents of a type. A type that is served already stays so.
    pub(crate) fn serve(&self, entity_type: &str) -> Result<(), Error> {
        serve(&self.engine, &self.shared, entity_type)
    }

    /// Drops all cached artefacts and contracts, so that they are read and verified again.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// contracts.evict();
    /// # Ok(()) }
    /// ```
    pub fn evict(&self) {
        self.shared.evict();
    }
}

impl ContractsBuilder {
    /// Registers an action that nodes can call.
    ///
    /// ```
    /// # use windlass::contracts::Contracts;
    /// use std::sync::Arc;
    /// use windlass::contracts::{ActionCall, ActionOutcome};
    ///
    /// fn check(call: &ActionCall<'_>) -> Result<ActionOutcome, String> {
    ///     let rating = if call.payload["amount"] == 0 { "none" } else { "good" };
    ///     Ok(ActionOutcome::none().result(serde_json::json!({ "rating": rating })))
    /// }
    ///
    /// let builder = Contracts::builder().action("credit.check", Arc::new(check));
    /// # drop(builder);
    /// ```
    pub fn action(mut self, name: &str, action: Arc<Action>) -> Self {
        self.actions.add(name, action);
        self
    }

    /// Sets the policy.
    ///
    /// ```
    /// # use windlass::contracts::Contracts;
    /// use windlass::contracts::{DocumentRow, Person, Policy};
    ///
    /// struct OnlyStaff;
    ///
    /// impl Policy for OnlyStaff {
    ///     fn write(&self, person: &Person, write: &str, _: &DocumentRow) -> Result<(), String> {
    ///         let is_staff = person.roles.iter().any(|role| role == "staff");
    ///         if is_staff { Ok(()) } else { Err(format!("only staff may {write}")) }
    ///     }
    /// }
    ///
    /// let builder = Contracts::builder().policy(OnlyStaff);
    /// # drop(builder);
    /// ```
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// Sets the directory that gives the people of all tenants.
    ///
    /// ```
    /// # use windlass::contracts::Contracts;
    /// use windlass::contracts::DirectorySource;
    /// use windlass::contracts::language::approvers::{Directory, Person};
    /// use windlass::kernel::{BoxFuture, Namespace};
    /// use windlass::Error;
    ///
    /// struct Staff;
    ///
    /// impl DirectorySource for Staff {
    ///     fn directory<'a>(&'a self, _: &'a Namespace) -> BoxFuture<'a, Result<Directory, Error>> {
    ///         // A real one would ask the identity provider of the organisation.
    ///         let people = [("rita".to_owned(), Person::default())].into();
    ///         Box::pin(async { Ok(Directory { people, delegations: Vec::new() }) })
    ///     }
    /// }
    ///
    /// let builder = Contracts::builder().directory(Staff);
    /// # drop(builder);
    /// ```
    pub fn directory(mut self, people: impl DirectorySource) -> Self {
        self.people = Some(Arc::new(people));
        self
    }

    /// The most steps of one run. [default: 10,000]
    ///
    /// ```
    /// # use windlass::contracts::Contracts;
    /// let builder = Contracts::builder().steps_max(1_000);
    /// # drop(builder);
    /// ```
    pub fn steps_max(mut self, steps_max: u64) -> Self {
        self.steps_max = steps_max;
        self
    }

    /// States that this program delivers the effects named [`super::WEBHOOK_EFFECT`]. Without it, definitions
    /// with webhooks are refused.
    ///
    /// ```
    /// # use windlass::contracts::Contracts;
    /// let builder = Contracts::builder().webhooks();
    /// # drop(builder);
    /// ```
    pub fn webhooks(mut self) -> Self {
        self.serves_webhooks = true;
        self
    }

    /// States that this program delivers the effects named [`super::MAIL_EFFECT`]. Without it, definitions that
    /// send mails are refused.
    ///
    /// ```
    /// # use windlass::contracts::Contracts;
    /// let builder = Contracts::builder().mail();
    /// # drop(builder);
    /// ```
    pub fn mail(mut self) -> Self {
        self.serves_mail = true;
        self
    }

    /// Looks for stuck documents so often and warns about each once: a text such as `"1 minute"`, a [`Duration`],
    /// or milliseconds. Without it, only [`Contracts::stuck`] looks.
    ///
    /// ```
    /// # use windlass::contracts::Contracts;
    /// let builder = Contracts::builder().watch_stuck("1 minute");
    /// # drop(builder);
    /// ```
    pub fn watch_stuck(mut self, every: impl IntoDuration) -> Self {
        self.stuck_every = Some(every.into_duration());
        self
    }

    /// Serves all document types of the store. In a store that processes share, new types are found within ten
    /// seconds.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::contracts::Contracts;
    ///
    /// let contracts = Contracts::builder().open(&engine).await?;
    /// # drop(contracts);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`] if there may be no steps or no time between two looks for stuck documents,
    /// [`ErrorCode::InvalidDuration`] if that time is no duration, or the store does not answer.
    pub async fn open(self, engine: impl AsRef<Engine>) -> Result<Contracts, Error> {
        let engine = engine.as_ref();
        let Self { actions, policy, people, steps_max, serves_webhooks, serves_mail, stuck_every } =
            self;
        if steps_max == 0 {
            return Err(invalid(ErrorCode::InvalidOption, "a run needs at least 1 step"));
        }
        let stuck_every = stuck_every.transpose().map_err(|error| {
            invalid(ErrorCode::InvalidDuration, format!("watch_stuck: {error}"))
        })?;
        if stuck_every.is_some_and(|every| every.is_zero()) {
            let message = "the time between two looks for stuck documents is 0";
            return Err(invalid(ErrorCode::InvalidOption, message));
        }
        let shared = Arc::new(Shared::new(
            engine,
            actions,
            (policy, people),
            steps_max,
            (serves_webhooks, serves_mail),
        ));
        let contracts = Contracts::new(engine.clone(), shared);
        for head in contracts.types().await? {
            contracts.serve(&head.entity_type)?;
        }
        Others::serve(engine, &contracts.shared)?;
        Withdrawals::serve(engine, &contracts.shared)?;
        if engine.options().shared {
            contracts.reload_types();
        }
        if let Some(every) = stuck_every {
            contracts.watch_stuck(every);
        }
        Ok(contracts)
    }
}

impl Contracts {
    // The task holds the engine only while it reads, so that it does not keep the engine alive.
    fn reload_types(&self) {
        let (env, shared) = (Arc::clone(self.engine.env()), Arc::downgrade(&self.shared));
        let engine = self.engine.downgrade();
        let sleep = Arc::clone(&env);
        let task = async move {
            loop {
                sleep.sleep(RELOAD_EVERY).await;
                let (Some(engine), Some(shared)) = (engine.upgrade(), Weak::upgrade(&shared))
                else {
                    return;
                };
                if engine.is_stopping() {
                    return;
                }
                let contracts = Self::new(engine, shared);
                let found = match contracts.types().await {
                    Ok(found) => found,
                    Err(error) => {
                        tracing::warn!(%error, "failed to read the document types; retrying");
                        continue;
                    }
                };
                for head in found {
                    if let Err(error) = contracts.serve(&head.entity_type) {
                        tracing::warn!(%error, "failed to serve a document type");
                    }
                }
            }
        };
        env.spawn(ThreadPool::Service, Box::pin(task));
    }
}

fn serve(engine: &Engine, shared: &Arc<Shared>, entity_type: &str) -> Result<(), Error> {
    let workflow = workflow_of(entity_type)?;
    if engine.model_of(&workflow).is_some() {
        return Ok(());
    }
    let model = DocumentModel { shared: Arc::clone(shared), entity_type: entity_type.to_owned() };
    match engine.register(workflow, Arc::new(model)) {
        Err(error) if error.code() == ErrorCode::WorkflowExists => Ok(()),
        result => result,
    }
}

struct DocumentModel {
    shared: Arc<Shared>,
    entity_type: String,
}

impl Model for DocumentModel {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn prepare(&self, start: &mut windlass_engine::StartRun) -> Result<(), Error> {
        // Only the commit that creates a document starts its run.
        if start.headers.is_some() || start.records.is_empty() {
            let message = format!(
                "a run of {:?} starts when its document is created; create the document instead",
                start.workflow
            );
            return Err(Error::new(ErrorKind::Refused, ErrorCode::DocumentNotFound, message));
        }
        start.on_end = Some(withdrawals::on_end()?);
        Ok(())
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let program =
            DocumentProgram::open(Arc::clone(&self.shared), &self.entity_type, opened.run())?;
        Ok(Box::new(program))
    }
}
