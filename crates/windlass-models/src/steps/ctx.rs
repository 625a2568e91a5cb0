//! The context of a workflow: durable steps, waits, children, logs and the workflow's clock.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_engine::Env;
use windlass_kernel::request::Request;
use windlass_kernel::{
    Body, CausalRef, Error, ErrorCode, EventId, IntoDuration, Ledger, Limits, LogLevel,
    MessageName, Namespace, QueueName, RetryPolicy, Route, RouteName, Run, RunKey, Sha256Digest,
    StepKey, Timestamp, WorkflowName,
};

pub(crate) use crate::run::{check_body, invalid};

use super::activity::Activity;
use super::core::{Core, Key, PendingEvent, PendingLog, Plan};
use super::error::StepError;
use super::step::{Attempt, StepCall, StepTx};
use super::wait::{Child, EventWait, RequestWait, Sleep};
use super::wake::{self, RootWaker};
use crate::any_error::AnyError;
use crate::value::Value;

/// The default timeout of an event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
const EVENT_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The default timeout of a step's attempt.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The run of a workflow.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// The tenant.
    pub namespace: Namespace,
    /// The user's name for it.
    pub id: String,
    /// The program.
    pub workflow: String,
    /// Rises on restart, retry and continue-as-new; the first is 0.
    pub generation: u32,
    /// Names this generation.
    pub run_key: RunKey,
    /// When it was created.
    pub created_at: Timestamp,
    /// Small strings to find it by.
    pub labels: BTreeMap<String, String>,
}

pub(crate) struct Shared {
    pub(crate) core: Mutex<Core>,
    pub(crate) info: RunInfo,
    /// The first generation of a chain of retries, or this one.
    pub(crate) origin: RunKey,
    pub(crate) waker: Arc<RootWaker>,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) limits: Limits,
}

/// The context of a run. Cheap to clone; only of use inside the workflow's own future.
#[derive(Clone)]
pub struct Ctx {
    pub(crate) shared: Arc<Shared>,
}

impl Ctx {
    pub(crate) fn new(run: &Run, core: Core, env: Arc<dyn Env>, limits: Limits) -> Self {
        let info = RunInfo {
            namespace: run.namespace.clone(),
            id: run.id.as_str().to_owned(),
            workflow: run.workflow.as_str().to_owned(),
            generation: run.generation,
            run_key: run.run_key,
            created_at: run.created_at,
            labels: run.labels.clone(),
        };
        let waker = Arc::new(RootWaker::default());
        let origin = core.outbox.origin().unwrap_or(run.run_key);
        let core = Mutex::new(core);
        Self { shared: Arc::new(Shared { core, info, origin, waker, env, limits }) }
    }

    /// Runs a durable step: the result of `body` is recorded, and then the body never runs again.
    ///
    /// The body runs at least once. It may end in `Ok(value)` and use `?` on any error. A body that fails
    /// runs again: five more times by default, after 10 s and then after twice as long each time. An attempt
    /// may take ten minutes. The methods of [`StepCall`] change this. For a function with an error type of its
    /// own, see [`Ctx::call`].
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let user = ctx.step("load", async || Ok(load().await?)).retries(3).await?;
    /// let length = ctx.step("parse", async || Ok("42".parse::<u32>()?)).await?;
    /// # let _: u32 = user + length;
    /// # Ok(()) }
    /// ```
    pub fn step<'a, T, F, Fut, Ownership>(
        &self,
        key: impl AsRef<str>,
        body: F,
    ) -> StepCall<'a, T, AnyError>
    where
        F: FnMut() -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, AnyError>> + Send + 'a,
        T: Value<Ownership> + Serialize,
    {
        self.call(key, body)
    }

    /// As [`Ctx::step`], for a function with an error type of its own: `ctx.call("charge", || pay(&id))`.
    ///
    /// [`StepCall::fatal_if`] gets that type. A closure needs an annotation here, because the compiler cannot
    /// infer the error of `Ok(value)`.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// async fn pay(id: &str) -> Result<u64, std::num::ParseIntError> {
    ///     id.parse()
    /// }
    ///
    /// let cents = ctx.call("charge", || pay("42")).retries(5).timeout("1 minute").await?;
    /// # let _: u64 = cents;
    /// # Ok(()) }
    /// ```
    pub fn call<'a, T, E, F, Fut, Ownership>(
        &self,
        key: impl AsRef<str>,
        mut body: F,
    ) -> StepCall<'a, T, E>
    where
        F: FnMut() -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, E>> + Send + 'a,
        T: Value<Ownership> + Serialize,
        E: Into<AnyError>,
    {
        StepCall::new(self.clone(), key.as_ref(), Box::new(move |_| Box::pin(body())))
    }

    /// As [`Ctx::step`], for a body that uses the number or the idempotency key of its [`Attempt`].
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let receipt = ctx
    ///     .step_with("charge", async |attempt| Ok(format!("charge {}", attempt.idempotency_key)))
    ///     .await?;
    /// # let _: String = receipt;
    /// # Ok(()) }
    /// ```
    pub fn step_with<'a, T, F, Fut, Ownership>(
        &self,
        key: impl AsRef<str>,
        mut body: F,
    ) -> StepCall<'a, T, AnyError>
    where
        F: FnMut(Attempt) -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, AnyError>> + Send + 'a,
        T: Value<Ownership> + Serialize,
    {
        StepCall::new(self.clone(), key.as_ref(), Box::new(move |attempt| Box::pin(body(attempt))))
    }

    /// Runs a step with SQL of its own: the statements that the body adds to its [`StepTx`] run in the
    /// transaction that records the step, if the body succeeds, exactly once.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::{SqlValue, StepTx};
    ///
    /// let booked = async |tx: StepTx| {
    ///     tx.execute("INSERT INTO orders VALUES (?1)", [SqlValue::Int(42)]);
    ///     Ok(())
    /// };
    /// ctx.step_tx("book", booked).await?;
    /// # Ok(()) }
    /// ```
    pub fn step_tx<'a, T, F, Fut, Ownership>(
        &self,
        key: impl AsRef<str>,
        mut body: F,
    ) -> StepCall<'a, T, AnyError>
    where
        F: FnMut(StepTx) -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, AnyError>> + Send + 'a,
        T: Value<Ownership> + Serialize,
    {
        let make = move |attempt: Attempt| Box::pin(body(attempt.tx.clone())) as _;
        StepCall::new(self.clone(), key.as_ref(), Box::new(make))
    }

    /// Sleeps for a while: `"10 seconds"`, `"3 days"`, or a `Duration`.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.sleep("settle", "10 seconds").await?;
    /// ctx.sleep("cool down", std::time::Duration::from_secs(60)).await?;
    /// # Ok(()) }
    /// ```
    pub fn sleep(&self, key: impl AsRef<str>, span: impl IntoDuration) -> Sleep {
        let plan = span
            .into_duration()
            .map_err(|source| invalid(ErrorCode::InvalidDuration, source.to_string()))
            .and_then(|span| self.check_span(span).map(|()| Plan::SleepFor(span)));
        Sleep::new(self.clone(), key.as_ref(), plan)
    }

    /// Sleeps until a time. One that has passed is no error.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let tomorrow = ctx.now().plus(std::time::Duration::from_secs(24 * 60 * 60));
    /// ctx.sleep_until("tomorrow", tomorrow).await?;
    /// # Ok(()) }
    /// ```
    pub fn sleep_until(&self, key: impl AsRef<str>, at: Timestamp) -> Sleep {
        let span = at.since(self.now());
        let plan = self.check_span(span).map(|()| Plan::SleepUntil(at));
        Sleep::new(self.clone(), key.as_ref(), plan)
    }

    /// Waits for an event of a type. One that came earlier and was not consumed is taken at once,
    /// the oldest first. Without a timeout of its own it gives up after a day.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let by: String = ctx.event("approval", "approved").timeout("3 days").await?;
    /// # drop(by);
    /// # Ok(()) }
    /// ```
    pub fn event<T: DeserializeOwned>(
        &self,
        key: impl AsRef<str>,
        event_type: impl AsRef<str>,
    ) -> EventWait<T> {
        let name = MessageName::with_limits(event_type.as_ref(), &self.shared.limits);
        let timeout = EVENT_TIMEOUT;
        let plan = name.map(|name| Plan::Event { name, key: None, timeout, with_meta: false });
        EventWait::new(self.clone(), key.as_ref(), plan)
    }

    /// Asks people and waits for the outcome of the request, which says who decided what. The commit that
    /// makes the run wait also opens the request.
    ///
    /// ```
    /// # use windlass::{Ctx, Result, requests::Request};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let request = Request::to("role:cfo").title("Pay invoice 7").quorum(2).due("3 days");
    /// let outcome = ctx.request("approve", request).await?;
    /// if !outcome.is_approved() { /* … */ }
    /// # Ok(()) }
    /// ```
    pub fn request(&self, key: impl AsRef<str>, request: Request) -> RequestWait {
        let plan = request.check(&self.shared.limits).map(|()| Plan::Request(Box::new(request)));
        RequestWait::new(self.clone(), key.as_ref(), plan)
    }

    /// Runs another workflow as a child and waits for its output. The child ends with its parent.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// # let chapters: windlass::WorkflowRef<u32, u32> = unimplemented!();
    /// let words: u32 = ctx.child("chapter 1", &chapters, &1).await?;
    /// # let _ = words;
    /// # Ok(()) }
    /// ```
    pub fn child<I: Serialize, O: DeserializeOwned>(
        &self,
        key: impl AsRef<str>,
        workflow: &crate::WorkflowRef<I, O>,
        input: &I,
    ) -> Child<O> {
        self.child_named(key, workflow.name(), input)
    }

    /// As [`Ctx::child`], for a workflow that this program only knows by name.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let words = ctx.child_named::<_, u32>("chapter 1", "chapter", &1).await?;
    /// # let _ = words;
    /// # Ok(()) }
    /// ```
    pub fn child_named<I: Serialize, O: DeserializeOwned>(
        &self,
        key: impl AsRef<str>,
        workflow: impl AsRef<str>,
        input: &I,
    ) -> Child<O> {
        let plan = WorkflowName::with_limits(workflow.as_ref(), &self.shared.limits).and_then(
            |workflow| {
                let input = self.check_input("the child's input", Body::of(input)?)?;
                let model = super::description::NAME;
                Ok(Plan::Child { workflow, model, input, labels: BTreeMap::new() })
            },
        );
        Child::new(self.clone(), key.as_ref(), plan)
    }

    /// Runs an activity on a worker that serves it, here or elsewhere, and waits for its result.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let thumbnail: String = ctx.activity("shrink", "resize", &"photo.jpg").queue("images").await?;
    /// # drop(thumbnail);
    /// # Ok(()) }
    /// ```
    pub fn activity<I: Serialize, O: DeserializeOwned>(
        &self,
        key: impl AsRef<str>,
        activity_type: impl AsRef<str>,
        input: &I,
    ) -> Activity<O> {
        let name = RouteName::with_limits(activity_type.as_ref(), &self.shared.limits);
        let route = name.map(|name| Route { queue: QueueName::default_queue(), name });
        let input = Body::of(input).and_then(|body| self.check_body("the activity's input", body));
        Activity::new(self.clone(), key.as_ref(), route, input)
    }

    /// The run's own facts.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// println!("run {} of {}", ctx.run().id, ctx.run().workflow);
    /// # Ok(()) }
    /// ```
    pub fn run(&self) -> &RunInfo {
        &self.shared.info
    }

    /// The time of the last recorded thing that this code has seen: the same on every replay.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let started = ctx.now();
    /// # let _ = started;
    /// # Ok(()) }
    /// ```
    pub fn now(&self) -> Timestamp {
        self.shared.core.lock().queues.replay.now
    }

    /// A random number that is the same on every replay.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let lucky = ctx.random() % 10 == 0;
    /// # let _ = lucky;
    /// # Ok(()) }
    /// ```
    pub fn random(&self) -> u64 {
        let digest = self.draw("random");
        u64::from_be_bytes(digest.as_bytes()[..8].try_into().expect("eight bytes"))
    }

    /// A UUID that is the same on every replay.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let order = ctx.uuid();
    /// # let _ = order;
    /// # Ok(()) }
    /// ```
    pub fn uuid(&self) -> uuid::Uuid {
        let digest = self.draw("uuid");
        let bytes: [u8; 16] = digest.as_bytes()[..16].try_into().expect("sixteen bytes");
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    fn draw(&self, what: &str) -> Sha256Digest {
        let mut core = self.shared.core.lock();
        core.queues.replay.draws += 1;
        let run = self.shared.origin;
        Sha256Digest::of_parts(&[
            b"windlass:draw:v1",
            what.as_bytes(),
            run.as_bytes(),
            &core.queues.replay.draws.to_be_bytes(),
        ])
    }

    /// Writes durable log lines. Inside a step's body they belong to the step and its attempt.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.log().info("the order is paid")?;
    /// ctx.log().category("payment").warn("second attempt")?;
    /// # Ok(()) }
    /// ```
    pub fn log(&self) -> Log {
        Log { ctx: self.clone(), category: "workflow".into() }
    }

    /// Records an event of the author's own in the run's ledger. Outside a step it is recorded once
    /// over all replays; inside one, with every attempt.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.record_event("shop.order.paid", 1, &4_200)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidEventPayload`] or another code of [`Ledger::check_custom`]: the type, the version or the
    /// payload is not valid.
    pub fn record_event<T: Serialize>(
        &self,
        event_type: impl Into<String>,
        version: u16,
        payload: &T,
    ) -> Result<EventId, Error> {
        self.record(event_type.into(), version, payload, None)
    }

    /// As [`Ctx::record_event`], with a cause that the author names.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::kernel::CausalRef;
    ///
    /// let paid = ctx.record_event("shop.order.paid", 1, &4_200)?;
    /// ctx.record_event_caused_by("shop.order.shipped", 1, &(), CausalRef::event(paid))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Ctx::record_event`].
    pub fn record_event_caused_by<T: Serialize>(
        &self,
        event_type: impl Into<String>,
        version: u16,
        payload: &T,
        caused_by: CausalRef,
    ) -> Result<EventId, Error> {
        self.record(event_type.into(), version, payload, Some(caused_by))
    }

    fn record<T: Serialize>(
        &self,
        event_type: String,
        version: u16,
        payload: &T,
        caused_by: Option<CausalRef>,
    ) -> Result<EventId, Error> {
        let payload = serde_json::to_value(payload).map_err(|source| {
            let message = "the payload of an event cannot be written as JSON";
            invalid(ErrorCode::InvalidEventPayload, message).with_source(source)
        })?;
        // Refused here, the code can react; refused with its commit, the run would be stuck.
        Ledger::check_custom(&event_type, version, &payload, &self.shared.limits)?;
        let outside_step = wake::current_step().is_none();
        // Inside a body the id may differ from attempt to attempt; outside it must not.
        let event_id = EventId(match outside_step {
            true => self.event_uuid(),
            false => windlass_engine::new_uuid(&*self.shared.env, self.now()),
        });
        let event =
            PendingEvent { event_id, event_type, version, payload, caused_by, outside_step };
        self.shared.core.lock().outbox.push_event(event);
        Ok(event_id)
    }

    // A UUIDv7 of the deterministic now.
    fn event_uuid(&self) -> uuid::Uuid {
        let digest = self.draw("event");
        let millis = u64::try_from(self.now().as_millis()).unwrap_or(0);
        let bytes: [u8; 10] = digest.as_bytes()[..10].try_into().expect("ten bytes");
        uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
    }

    /// Ends this generation and begins the next one with another input; unread events go along.
    /// Return what this returns.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// async fn poll(ctx: Ctx, round: u64) -> Result<u64> {
    ///     ctx.sleep("pause", "1 hour").await?;
    ///     ctx.continue_as_new(&(round + 1))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Always: the error ends this generation. [`ErrorCode::InvalidSize`] if the input is too large.
    pub fn continue_as_new<I: Serialize, O>(&self, input: &I) -> Result<O, AnyError> {
        let body = self.check_input("the next generation's input", Body::of(input)?)?;
        self.shared.core.lock().continue_with = Some(body);
        Err(AnyError::msg("the run continues as a new generation"))
    }

    pub(crate) fn check_key(&self, key: &str) -> Result<Key, StepError> {
        StepKey::with_limits(key, &self.shared.limits).map(|key| Key::from(key.as_str())).map_err(
            |error| {
                let shown: String = key.chars().take(60).collect();
                StepError::new(
                    ErrorCode::InvalidName,
                    &shown,
                    "InvalidStep",
                    error.message().to_owned(),
                )
            },
        )
    }

    fn check_span(&self, span: Duration) -> Result<(), Error> {
        let days = self.shared.limits.sleep_days_max;
        if span > Duration::from_secs(u64::from(days) * 24 * 60 * 60) {
            let shown = windlass_kernel::format_duration(span);
            let message =
                format!("a wait of {shown} is asked for; at most {days} days are allowed");
            return Err(invalid(ErrorCode::InvalidDuration, message));
        }
        Ok(())
    }

    pub(crate) fn check_timeout(&self, timeout: Duration) -> Result<(), Error> {
        self.check_span(timeout)?;
        if timeout < EVENT_TIMEOUT_MIN {
            let message =
                format!("a timeout of {timeout:?} is asked for; at least 1 second is allowed");
            return Err(invalid(ErrorCode::InvalidDuration, message));
        }
        Ok(())
    }

    pub(crate) fn check_body(&self, what: &str, body: Body) -> Result<Body, Error> {
        check_body(what, body, self.shared.limits.step_bytes_max, self.shared.limits.json_depth_max)
    }

    /// Refuses a task that the store would refuse with the commit that enqueues it: the run would be stuck.
    pub(crate) fn check_task(&self, body: Body) -> Result<Body, Error> {
        let (found, max) = (body.len(), self.shared.limits.task_bytes_max);
        if found > max {
            let message = format!(
                "the activity's input and retry policy have {found} bytes; at most {max} are allowed"
            );
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        Ok(body)
    }

    // An input is a row of the run that gets it, and some are a row of the step that gives it.
    fn check_input(&self, what: &str, body: Body) -> Result<Body, Error> {
        let limits = &self.shared.limits;
        let max = limits.input_bytes_max.min(limits.step_bytes_max);
        check_body(what, body, max, limits.json_depth_max)
    }
}

/// Writes durable log lines.
#[derive(Clone)]
pub struct Log {
    ctx: Ctx,
    category: String,
}

impl Log {
    /// The same log under another category. `system` is the engine's own.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.log().category("payment").info("paid")?;
    /// # Ok(()) }
    /// ```
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = category.into();
        self
    }

    /// Writes a line of level debug.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.log().debug("cache miss")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Log::write`].
    pub fn debug(&self, message: impl Into<String>) -> Result<(), Error> {
        self.write(LogLevel::Debug, message, &())
    }

    /// Writes a line of level info.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.log().info("paid")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Log::write`].
    pub fn info(&self, message: impl Into<String>) -> Result<(), Error> {
        self.write(LogLevel::Info, message, &())
    }

    /// Writes a line of level warn.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.log().warn("second attempt")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Log::write`].
    pub fn warn(&self, message: impl Into<String>) -> Result<(), Error> {
        self.write(LogLevel::Warn, message, &())
    }

    /// Writes a line of level error.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.log().error("refund failed")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Log::write`].
    pub fn error(&self, message: impl Into<String>) -> Result<(), Error> {
        self.write(LogLevel::Error, message, &())
    }

    /// A line of any level with data beside its text.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// ctx.log().write(windlass::LogLevel::Info, "paid", &4_200)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidLog`] if the category or the text is not valid, [`ErrorCode::InvalidSize`] if the data is
    /// too large.
    pub fn write<T: Serialize>(
        &self,
        level: LogLevel,
        message: impl Into<String>,
        data: &T,
    ) -> Result<(), Error> {
        let limits = &self.ctx.shared.limits;
        let message: String = message.into();
        if self.category == "system" {
            return Err(invalid(
                ErrorCode::InvalidLog,
                "the log category \"system\" is the engine's own",
            ));
        }
        let too_long = |what: &str, text: &str, max: usize| {
            let chars = text.chars().count();
            let wrong = chars > max || text.contains('\0');
            wrong.then(|| {
                let message =
                    format!("{what} has {chars} characters; at most {max} without NUL are allowed");
                invalid(ErrorCode::InvalidLog, message)
            })
        };
        let refused = too_long("the log category", &self.category, limits.log_category_chars_max)
            .or_else(|| too_long("the log message", &message, limits.log_message_chars_max));
        if let Some(refused) = refused {
            return Err(refused);
        }
        let data = Body::of(data)?;
        let data = (data.bytes.as_ref() != b"null").then_some(data);
        if let Some(data) = &data
            && data.len() > limits.log_data_bytes_max
        {
            let (found, max) = (data.len(), limits.log_data_bytes_max);
            let message = format!("the log data has {found} bytes; at most {max} are allowed");
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        let step = wake::current_step();
        let mut core = self.ctx.shared.core.lock();
        let replay = core.queues.replay.active && step.is_none();
        let category = self.category.clone();
        let log = PendingLog { step, level, category, message, data, replay };
        if !core.outbox.push_log(log, limits.log_lines_max) {
            let max = limits.log_lines_max;
            let message = format!(
                "the attempt of the step, or the code since the last step, has written {max} log \
                 lines, which is the limit `log_lines_max`"
            );
            return Err(invalid(ErrorCode::InvalidLog, message));
        }
        Ok(())
    }
}

/// The policy of a step that says nothing else.
pub(crate) fn default_policy() -> RetryPolicy {
    super::description::RETRY
}
