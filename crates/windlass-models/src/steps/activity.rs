//! An activity: work on a queue that any process with the right worker may do.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use windlass_engine::TaskBody;
use windlass_kernel::{
    Body, Error, ErrorCode, IntoDuration, QueueName, RetryLimit, RetryPolicy, Route,
};

use crate::kit::ACTIVITY_RETRY;

use super::core::{Kind, Plan};
use super::ctx::{Ctx, invalid};
use super::error::StepError;
use super::wait::Wait;

/// How long an attempt of an activity may take by default.
const START_TO_CLOSE: Duration = Duration::from_secs(5 * 60);

/// An activity in the making, and the future of its result.
#[must_use = "an activity does nothing unless it is awaited"]
pub struct Activity<O> {
    wait: Wait,
    route: Result<Route, Error>,
    input: Result<Body, Error>,
    policy: RetryPolicy,
    start_to_close: Option<Duration>,
    heartbeat: Option<Duration>,
    priority: i16,
    output: PhantomData<fn() -> O>,
}

impl<O> Activity<O> {
    pub(crate) fn new(
        ctx: Ctx,
        key: &str,
        route: Result<Route, Error>,
        input: Result<Body, Error>,
    ) -> Self {
        let placeholder = Ok(Plan::SleepFor(Duration::ZERO));
        Self {
            wait: Wait::new(ctx, key, placeholder),
            route,
            input,
            policy: ACTIVITY_RETRY,
            start_to_close: Some(START_TO_CLOSE),
            heartbeat: None,
            priority: 0,
            output: PhantomData,
        }
    }

    /// The queue whose workers take it. Default `default`.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let small: String = ctx.activity("shrink", "resize", &"a.jpg").queue("images").await?;
    /// # drop(small);
    /// # Ok(()) }
    /// ```
    pub fn queue(mut self, queue: impl AsRef<str>) -> Self {
        let limits = self.wait.operation.ctx.shared.limits.clone();
        match (QueueName::with_limits(queue, &limits), &mut self.route) {
            (Ok(queue), Ok(route)) => route.queue = queue,
            (Err(error), _) => self.wait.operation.refuse(&error),
            (Ok(_), Err(_)) => {}
        }
        self
    }

    /// How often it is tried again after a failure. Default 4.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let small: String = ctx.activity("shrink", "resize", &"a.jpg").retries(2).await?;
    /// # drop(small);
    /// # Ok(()) }
    /// ```
    pub fn retries(mut self, retries: impl Into<RetryLimit>) -> Self {
        self.policy.limit = retries.into();
        self
    }

    /// Replaces the whole policy. Default: 1 s, doubling up to a minute, four times.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::RetryPolicy;
    ///
    /// let small: String =
    ///     ctx.activity("shrink", "resize", &"a.jpg").retry_policy(RetryPolicy::none()).await?;
    /// # drop(small);
    /// # Ok(()) }
    /// ```
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// How long one attempt may take. Default five minutes.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let small: String = ctx.activity("shrink", "resize", &"a.jpg").timeout("1 minute").await?;
    /// # drop(small);
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        match timeout.into_duration() {
            Ok(timeout) => self.start_to_close = Some(timeout),
            Err(error) => self.refuse(&error.to_string()),
        }
        self
    }

    /// How long an attempt may go without a heartbeat. Default: as long as it likes.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let small: String = ctx.activity("shrink", "resize", &"a.jpg").heartbeat("10 seconds").await?;
    /// # drop(small);
    /// # Ok(()) }
    /// ```
    pub fn heartbeat(mut self, heartbeat: impl IntoDuration) -> Self {
        match heartbeat.into_duration() {
            Ok(heartbeat) => self.heartbeat = Some(heartbeat),
            Err(error) => self.refuse(&error.to_string()),
        }
        self
    }

    /// Higher first. Default 0.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let small: String = ctx.activity("shrink", "resize", &"a.jpg").priority(5).await?;
    /// # drop(small);
    /// # Ok(()) }
    /// ```
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    fn refuse(&mut self, message: &str) {
        self.wait.operation.refuse(&invalid(ErrorCode::InvalidDuration, message));
    }

    fn plan(&mut self) -> Result<Plan, Error> {
        self.policy
            .validate()
            .map_err(|error| invalid(ErrorCode::InvalidRetryPolicy, error.to_string()))?;
        let take = |it: &mut Result<_, Error>| {
            std::mem::replace(it, Err(invalid(ErrorCode::Internal, "a plan is made once")))
        };
        let input =
            std::mem::replace(&mut self.input, Err(invalid(ErrorCode::Internal, "made once")))?;
        let route = take(&mut self.route)?;
        let text = String::from_utf8_lossy(&input.bytes).into_owned();
        let raw = RawValue::from_string(text)
            .map_err(|error| invalid(ErrorCode::InvalidBody, error.to_string()))?;
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let body = TaskBody {
            input: raw,
            retry: self.policy.clone(),
            start_to_close_ms: self.start_to_close.map(millis),
            heartbeat_ms: self.heartbeat.map(millis),
            close_by: None,
            breaker: None,
            receipt: false,
            wakes_run: false,
        };
        let attempts_max = self.policy.attempts_max();
        let body = self.wait.operation.ctx.check_task(Body::of(&body)?)?;
        Ok(Plan::Activity { route, body, priority: self.priority, attempts_max })
    }
}

impl<O: DeserializeOwned> Future for Activity<O> {
    type Output = Result<O, StepError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.wait.operation.is_new() {
            match this.plan() {
                Ok(plan) => this.wait.plan = Some(plan),
                Err(error) => this.wait.operation.refuse(&error),
            }
        }
        this.wait.poll(Kind::Activity, cx)
    }
}
