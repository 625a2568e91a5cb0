//! A workflow of any model, as programs hold it: starts runs and finds them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use windlass_engine::{Engine, ModelDescription, RecordChange, StartEvent, StartRun, Started};
use windlass_kernel::{
    Body, BoxFuture, CausalRef, Error, ErrorCode, ErrorKind, Expect, IntoDuration, LimitKey,
    Limits, ModelName, OnExisting, Query, RunId, RunStatus, RunsQuery, Timestamp, WorkflowName,
};

use crate::run::{RunHandle, check_body, invalid};
use crate::value::Value;

/// How a model starts runs: how it writes inputs and reads outputs, and its own rules.
pub(crate) struct Format<I, O> {
    pub(crate) model: &'static ModelDescription,
    pub(crate) start: Option<&'static StartRules>,
    pub(crate) encode: fn(&I, &Limits) -> Result<Body, Error>,
    pub(crate) decode: fn(&Body) -> Result<O, Error>,
}

/// The rules of a model for starts of its runs, if it has any.
pub(crate) struct StartRules {
    /// Refuses a start before anything is written.
    pub(crate) check: fn(StartRequest<'_>) -> BoxFuture<'_, Result<(), Error>>,
    /// The error of a start in the words of the model.
    pub(crate) error: fn(Error) -> Error,
}

/// The parts of a start that a model checks.
pub(crate) struct StartRequest<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) name: &'a WorkflowName,
    pub(crate) headers: &'a BTreeMap<String, String>,
    pub(crate) labels: &'a BTreeMap<String, String>,
    pub(crate) delay: Option<Duration>,
}

impl<I, O> Clone for Format<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Format<I, O> {}

impl<I: Serialize, O> Format<I, O> {
    /// Inputs and outputs are JSON.
    pub(crate) fn json<Ownership>(model: &'static ModelDescription) -> Self
    where
        O: Value<Ownership>,
    {
        let encode = |input: &I, limits: &Limits| {
            let (bytes, depth) = (limits.input_bytes_max, limits.json_depth_max);
            check_body("the input", Body::of(input)?, bytes, depth)
        };
        Self { model, start: None, encode, decode: O::from_body }
    }
}

/// A workflow with the types of its input and its output: starts runs and finds them. Cheap to clone.
///
/// `Engine::workflow`, `Engine::machine` and `Engine::relay` return one for a workflow that this process
/// serves, `Engine::remote_workflow` and its likes one for a workflow that another process serves.
pub struct WorkflowRef<I, O> {
    pub(crate) engine: Engine,
    pub(crate) name: WorkflowName,
    pub(crate) format: Format<I, O>,
}

impl<I, O> fmt::Debug for WorkflowRef<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowRef").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<I, O> Clone for WorkflowRef<I, O> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), name: self.name.clone(), format: self.format }
    }
}

impl<I, O> WorkflowRef<I, O> {
    pub(crate) fn new(
        engine: &Engine,
        name: impl AsRef<str>,
        format: Format<I, O>,
    ) -> Result<Self, Error> {
        let name = WorkflowName::with_limits(name, &engine.options().limits)?;
        Ok(Self { engine: engine.clone(), name, format })
    }

    /// The name of the workflow.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// println!("{}", orders.name());
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) fn model_name(&self) -> ModelName {
        self.format.model.name.clone()
    }

    /// Limits how many runs of the workflow are held at the same time, over all processes; `None` removes
    /// the limit. Runs above the limit wait in the queue.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.at_once(Some(10)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn at_once(&self, runs_max: Option<u32>) -> Result<(), Error> {
        self.engine.limit_workflow(&self.name, runs_max).await
    }

    /// Starts a run. Await the returned [`Start`].
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// let run = orders.start("A-42".into()).id("order-A-42").label("customer", "ann").await?;
    /// println!("{}", run.result().await?);
    /// # Ok(()) }
    /// ```
    pub fn start(&self, input: I) -> Start<I, O> {
        Start {
            input: (self.format.encode)(&input, &self.engine.options().limits),
            workflow: self.clone(),
            id: None,
            labels: BTreeMap::new(),
            own_labels: BTreeMap::new(),
            headers: BTreeMap::new(),
            priority: 0,
            due: None,
            limit_key: None,
            on_existing: OnExisting::Return,
            records: Ok(Vec::new()),
            events: Vec::new(),
        }
    }

    /// Starts many runs, each with its id. Runs whose id exists are left out of the answer.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// let runs = ["a", "b"].map(|id| (id.to_owned(), format!("input of {id}")));
    /// let started = orders.start_batch(runs).await?;
    /// # drop(started);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An id or an input is not valid, or the store cannot be written.
    pub async fn start_batch(
        &self,
        runs: impl IntoIterator<Item = (String, I)>,
    ) -> Result<Vec<RunHandle<O>>, Error> {
        let limits = &self.engine.options().limits;
        let mut starts = Vec::new();
        for (id, input) in runs {
            let body = (self.format.encode)(&input, limits)?;
            let mut start = StartRun::new(self.name.clone(), self.model_name(), body);
            start.id = Some(RunId::with_limits(id, limits)?);
            starts.push(start);
        }
        let started = self.engine.start_runs(starts).await?;
        Ok(started.into_iter().map(|started| self.handle(started)).collect())
    }

    /// The run with an id.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// let run = orders.get("order-A-42").await?;
    /// println!("{}", run.result().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if there is none.
    pub async fn get(&self, id: impl AsRef<str>) -> Result<RunHandle<O>, Error> {
        let id = RunId::from_stored(id.as_ref());
        let found = self.engine.find_run(&self.name, &id).await?;
        let run = found.ok_or_else(|| {
            let message = format!("there is no run {:?} of workflow {:?}", id, self.name);
            Error::new(ErrorKind::NotFound, ErrorCode::RunNotFound, message)
        })?;
        Ok(self.handle(Started { run_key: run.run_key, id, existed: true }))
    }

    /// The runs of the workflow, newest first, with a status if one is given; at most `limit`, and older than
    /// `before` if that is given. `Engine::runs` has more filters.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// use windlass::RunStatus;
    ///
    /// for run in orders.list(Some(RunStatus::Waiting), None, 20).await? {
    ///     println!("{}", run.id());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read, or `limit` is above the limit of a page.
    pub async fn list(
        &self,
        status: Option<RunStatus>,
        before: Option<&RunHandle<O>>,
        limit: u32,
    ) -> Result<Vec<RunHandle<O>>, Error> {
        let query = RunsQuery {
            workflow: Some(self.name.clone()),
            status,
            after: before.map(RunHandle::run_key),
            ..RunsQuery::all(self.engine.namespace().clone(), limit)
        };
        let runs = self.engine.store().list(Query::Runs(query)).await?.runs()?;
        let handle = |run: windlass_kernel::Run| {
            self.handle(Started { run_key: run.run_key, id: run.id, existed: true })
        };
        Ok(runs.into_iter().map(handle).collect())
    }

    pub(crate) fn handle(&self, started: Started) -> RunHandle<O> {
        RunHandle::new(self.engine.clone(), self.name.clone(), started, self.format)
    }
}

/// A run that is about to be started. It starts when this is awaited.
#[must_use = "a run is started when this is awaited"]
pub struct Start<I, O> {
    pub(crate) workflow: WorkflowRef<I, O>,
    pub(crate) input: Result<Body, Error>,
    pub(crate) id: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Labels of the model itself, which callers may not set.
    pub(crate) own_labels: BTreeMap<String, String>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) priority: i16,
    pub(crate) due: Option<Result<Due, Error>>,
    pub(crate) limit_key: Option<String>,
    pub(crate) on_existing: OnExisting,
    pub(crate) records: Result<Vec<RecordChange>, Error>,
    pub(crate) events: Vec<CustomEvent>,
}

/// An event of the caller that follows the first event of the run.
pub(crate) struct CustomEvent {
    event_type: String,
    payload: Result<serde_json::Value, serde_json::Error>,
    cause: Option<CausalRef>,
}

impl CustomEvent {
    fn checked(self, limits: &Limits) -> Result<StartEvent, Error> {
        let payload = self.payload.map_err(|source| {
            let message = "the payload of an event cannot be written as JSON";
            invalid(ErrorCode::InvalidEventPayload, message).with_source(source)
        })?;
        StartEvent::custom(&self.event_type, 1, payload, self.cause, limits)
    }
}

pub(crate) enum Due {
    After(Duration),
    At(Timestamp),
}

impl<I, O> Start<I, O> {
    /// The id of the run. A start with the id and the input of a run returns that run, also if it has ended;
    /// with another input it is an error. Default: a new id.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.start("A-42".into()).id("order-A-42").await?;
    /// # Ok(()) }
    /// ```
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Makes an id that exists an error, whatever the input.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.start("A-42".into()).id("order-A-42").must_not_exist().await?;
    /// # Ok(()) }
    /// ```
    pub fn must_not_exist(mut self) -> Self {
        self.on_existing = OnExisting::Refuse;
        self
    }

    /// Adds a label: a small string to find the run by.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.start("A-42".into()).label("customer", "ann").await?;
    /// # Ok(()) }
    /// ```
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Adds a header: a string that every step and the hook of a relay see. Other models refuse headers.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.start("A-42".into()).header("callback_url", "https://example.com").await?;
    /// # Ok(()) }
    /// ```
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// The priority in the queue; higher first. Default 0.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.start("A-42".into()).priority(5).await?;
    /// # Ok(()) }
    /// ```
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Starts the run after a delay: `"1 hour"`, or a `Duration`. Until then [`Status::starts_at`] says when.
    ///
    /// [`Status::starts_at`]: crate::Status::starts_at
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.start("A-42".into()).delay("1 hour").await?;
    /// # Ok(()) }
    /// ```
    pub fn delay(mut self, delay: impl IntoDuration) -> Self {
        let delay = delay.into_duration().map(Due::After);
        self.due =
            Some(delay.map_err(|error| invalid(ErrorCode::InvalidDuration, error.to_string())));
        self
    }

    /// Starts the run at a time.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.start("A-42".into()).at(windlass::Timestamp::from_micros(1_800_000_000_000_000)).await?;
    /// # Ok(()) }
    /// ```
    pub fn at(mut self, at: Timestamp) -> Self {
        self.due = Some(Ok(Due::At(at)));
        self
    }

    /// Counts the run against the limit that `Admin::set_limit` sets for a key: at most so many runs with the
    /// key are held at the same time, over all processes.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.start("A-42".into()).limit_key("tenant-7").await?;
    /// # Ok(()) }
    /// ```
    pub fn limit_key(mut self, key: impl Into<String>) -> Self {
        self.limit_key = Some(key.into());
        self
    }

    /// Writes a record in the commit that creates the run: both exist, or neither does. The record must have
    /// the revision that is given, or not exist (`Expect::Absent`); otherwise the start fails with
    /// [`ErrorCode::RecordConflict`]. A start that finds its run does not write the record again.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// let cart = ["tea"];
    /// orders.start("A-42".into()).id("order-A-42").put_record("carts", "c-7", &cart, 3).await?;
    /// # Ok(()) }
    /// ```
    pub fn put_record<T: Serialize + ?Sized>(
        self,
        collection: impl AsRef<str>,
        id: impl AsRef<str>,
        document: &T,
        expect: impl Into<Expect>,
    ) -> Self {
        self.change(RecordChange::put(collection, id, document, expect))
    }

    /// Checks, writes or removes a record in the commit that creates the run; see [`Start::put_record`].
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// let cart = windlass::RecordChange::remove("carts", "c-7", 3)?;
    /// orders.start("A-42".into()).id("order-A-42").record(cart).await?;
    /// # Ok(()) }
    /// ```
    pub fn record(self, change: RecordChange) -> Self {
        let writable = change.check_writable().map(|()| change);
        self.change(writable)
    }

    /// Records an event in the ledger of the run, in the commit that creates it and after `workflow.enqueued`.
    /// A start that finds its run does not record it again.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// let source = serde_json::json!({ "source": "mail" });
    /// orders.start("A-42".into()).id("order-A-42").event("order.received", &source).await?;
    /// # Ok(()) }
    /// ```
    pub fn event<T: Serialize + ?Sized>(self, event_type: impl Into<String>, payload: &T) -> Self {
        self.custom_event(event_type.into(), payload, None)
    }

    /// As [`Start::event`], with a cause other than the event before it. The start fails if there is no such run
    /// or event.
    ///
    /// ```
    /// # async fn example(
    /// #     orders: windlass::WorkflowRef<String, String>, cause: windlass::kernel::CausalRef,
    /// # ) -> windlass::Result<()> {
    /// orders.start("A-42".into()).event_caused_by("order.received", &(), cause).await?;
    /// # Ok(()) }
    /// ```
    pub fn event_caused_by<T: Serialize + ?Sized>(
        self,
        event_type: impl Into<String>,
        payload: &T,
        cause: CausalRef,
    ) -> Self {
        self.custom_event(event_type.into(), payload, Some(cause))
    }

    fn custom_event<T: Serialize + ?Sized>(
        mut self,
        event_type: String,
        payload: &T,
        cause: Option<CausalRef>,
    ) -> Self {
        let payload = serde_json::to_value(payload);
        self.events.push(CustomEvent { event_type, payload, cause });
        self
    }

    // The first error is the one that the start returns.
    fn change(mut self, change: Result<RecordChange, Error>) -> Self {
        self.records = self.records.and_then(|mut records| {
            records.push(change?);
            Ok(records)
        });
        self
    }

    async fn run(self) -> Result<RunHandle<O>, Error> {
        let rules = self.workflow.format.start;
        if let Some(rules) = rules {
            (rules.check)(self.request()).await?;
        }
        let Start { workflow, id, labels, own_labels, headers, .. } = self;
        let (priority, due, limit_key) = (self.priority, self.due, self.limit_key);
        let mut request = StartRun::new(workflow.name.clone(), workflow.model_name(), self.input?);
        let limits = &workflow.engine.options().limits;
        request.id = id.map(|id| RunId::with_limits(id, limits)).transpose()?;
        request.labels = labels;
        request.labels.extend(own_labels);
        request.priority = priority;
        request.on_existing = self.on_existing;
        request.records = self.records?;
        request.events =
            self.events.into_iter().map(|event| event.checked(limits)).collect::<Result<_, _>>()?;
        request.due_at = match due.transpose()? {
            Some(Due::After(delay)) => Some(workflow.engine.clock().now().plus(delay)),
            Some(Due::At(at)) => Some(at),
            None => None,
        };
        request.limit_key = limit_key.map(|key| LimitKey::with_limits(key, limits)).transpose()?;
        if !headers.is_empty() {
            let text = serde_json::to_string(&headers).map_err(|source| {
                let message = "the headers cannot be written as JSON";
                invalid(ErrorCode::InvalidHeaders, message).with_source(source)
            })?;
            request.headers = Some(text.into());
        }
        let started = workflow.engine.start_run(request).await;
        let started = started.map_err(|error| match rules {
            Some(rules) => (rules.error)(error),
            None => error,
        });
        Ok(workflow.handle(started?))
    }

    fn request(&self) -> StartRequest<'_> {
        StartRequest {
            engine: &self.workflow.engine,
            name: &self.workflow.name,
            headers: &self.headers,
            labels: &self.labels,
            delay: match self.due {
                Some(Ok(Due::After(delay))) => Some(delay),
                _ => None,
            },
        }
    }
}

impl<I: 'static, O: 'static> IntoFuture for Start<I, O> {
    type Output = Result<RunHandle<O>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
