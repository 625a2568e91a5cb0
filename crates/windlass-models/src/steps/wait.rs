//! Waits: a time, an event, or a child run. They are rows in the store, not futures that poll.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;
use windlass_kernel::request::RequestOutcome;
use windlass_kernel::{Error, ErrorCode, EventKey, IntoDuration, Timestamp};

use super::core::{Found, Kind, Plan};
use super::ctx::{Ctx, invalid};
use super::error::StepError;
use super::operation::{Operation, reads_as};

/// A plan that may have been refused before it was a wait.
pub(crate) struct Wait {
    pub(crate) operation: Operation,
    pub(crate) plan: Option<Plan>,
}

impl Wait {
    pub(crate) fn new(ctx: Ctx, key: &str, plan: Result<Plan, Error>) -> Self {
        let mut operation = Operation::new(ctx, key);
        let plan = plan.map_err(|error| operation.refuse(&error)).ok();
        Self { operation, plan }
    }

    pub(crate) fn poll<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, StepError>> {
        let plan = &mut self.plan;
        let taken = || plan.take().expect("what was not refused has a plan");
        match self.operation.poll(cx, reads_as::<T>, taken) {
            Poll::Ready(Err(refused)) => Poll::Ready(Err(refused)),
            Poll::Ready(Ok(Found::Ready(outcome))) => self.operation.read(kind, outcome),
            Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

/// A sleep. The run holds nothing while it lasts.
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep(Wait);

impl Sleep {
    pub(crate) fn new(ctx: Ctx, key: &str, plan: Result<Plan, Error>) -> Self {
        Self(Wait::new(ctx, key, plan))
    }
}

impl Future for Sleep {
    type Output = Result<(), StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(Kind::Sleep, cx)
    }
}

/// A wait for an event.
#[must_use = "a wait does nothing unless it is awaited"]
pub struct EventWait<T> {
    wait: Wait,
    payload: PhantomData<fn() -> T>,
}

impl<T> EventWait<T> {
    pub(crate) fn new(ctx: Ctx, key: &str, plan: Result<Plan, Error>) -> Self {
        Self { wait: Wait::new(ctx, key, plan), payload: PhantomData }
    }

    /// Asks for the type and the time of the event beside its payload.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let event = ctx.event::<String>("approval", "approved").with_meta().await?;
    /// println!("{} sent {} at {}", event.payload, event.event_type, event.sent_at);
    /// # Ok(()) }
    /// ```
    pub fn with_meta(mut self) -> EventWaitWithMeta<T> {
        let mut event_type = String::new();
        if let Some(Plan::Event { name, with_meta, .. }) = &mut self.wait.plan {
            *with_meta = true;
            event_type = name.as_str().to_owned();
        }
        EventWaitWithMeta { event: self, event_type }
    }

    /// How long it waits, from one second to 365 days. Default a day. Then it ends with an error
    /// of the code `EVENT_TIMEOUT`, which the workflow can catch.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let by: String = ctx.event("approval", "approved").timeout("3 days").await?;
    /// # drop(by);
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        let checked = timeout
            .into_duration()
            .map_err(|error| invalid(ErrorCode::InvalidDuration, error.to_string()))
            .and_then(|t| self.wait.operation.ctx.check_timeout(t).map(|()| t));
        match (checked, &mut self.wait.plan) {
            (Ok(asked), Some(Plan::Event { timeout, .. })) => *timeout = asked,
            (Ok(_), _) => {}
            (Err(error), _) => self.wait.operation.refuse(&error),
        }
        self
    }
}

impl<T> EventWait<T> {
    /// Waits for an event that is sent to a key instead of this run: every run that waits for this type
    /// and key gets the event once. An event that was sent earlier, and has not expired, is taken at once.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let place: String = ctx.event("parcel", "scanned").key("parcel-17").await?;
    /// # drop(place);
    /// # Ok(()) }
    /// ```
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        let checked = EventKey::with_limits(key, &self.wait.operation.ctx.shared.limits);
        match (checked, &mut self.wait.plan) {
            (Ok(asked), Some(Plan::Event { key, .. })) => *key = Some(asked),
            (Ok(_), _) => {}
            (Err(error), _) => self.wait.operation.refuse(&error),
        }
        self
    }
}

impl<T: DeserializeOwned> Future for EventWait<T> {
    type Output = Result<T, StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.wait.poll(Kind::Event, cx)
    }
}

/// A request to people and the wait for its outcome.
#[must_use = "a request does nothing unless it is awaited"]
pub struct RequestWait(Wait);

impl RequestWait {
    pub(crate) fn new(ctx: Ctx, key: &str, plan: Result<Plan, Error>) -> Self {
        Self(Wait::new(ctx, key, plan))
    }
}

impl Future for RequestWait {
    type Output = Result<RequestOutcome, StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(Kind::Request, cx)
    }
}

/// An event that a run has waited for, with its type and time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedEvent<T> {
    /// Its type.
    pub event_type: String,
    /// When it was sent, by the clock of the store. A run that waited with a build that did not ask for
    /// it has the time at which it consumed the event.
    pub sent_at: Timestamp,
    /// Its payload.
    pub payload: T,
}

/// A wait for an event with its type and time.
#[must_use = "a wait does nothing unless it is awaited"]
pub struct EventWaitWithMeta<T> {
    event: EventWait<T>,
    event_type: String,
}

impl<T> EventWaitWithMeta<T> {
    /// As [`EventWait::timeout`].
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let event = ctx.event::<String>("approval", "approved").with_meta().timeout("3 days").await?;
    /// # drop(event);
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        self.event = self.event.timeout(timeout);
        self
    }
}

impl<T: DeserializeOwned> Future for EventWaitWithMeta<T> {
    type Output = Result<ReceivedEvent<T>, StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let wait = &mut self.event.wait;
        let Poll::Ready(read) = wait.poll::<T>(Kind::Event, cx) else { return Poll::Pending };
        let operation = &wait.operation;
        let sent_at = operation.ctx.shared.core.lock().sent_at(operation.key());
        let event_type = std::mem::take(&mut self.event_type);
        Poll::Ready(read.map(|payload| ReceivedEvent {
            event_type,
            sent_at: sent_at.unwrap_or(Timestamp::ZERO),
            payload,
        }))
    }
}

/// A child run and the wait for its output.
#[must_use = "a child does nothing unless it is awaited"]
pub struct Child<O> {
    wait: Wait,
    output: PhantomData<fn() -> O>,
}

impl<O> Child<O> {
    pub(crate) fn new(ctx: Ctx, key: &str, plan: Result<Plan, Error>) -> Self {
        Self { wait: Wait::new(ctx, key, plan), output: PhantomData }
    }

    /// Gives the child a label.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// # let chapters: windlass::WorkflowRef<u32, u32> = unimplemented!();
    /// let words: u32 = ctx.child("chapter 1", &chapters, &1).label("book", "Emma").await?;
    /// # let _ = words;
    /// # Ok(()) }
    /// ```
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let (key, value): (String, String) = (key.into(), value.into());
        let limits = &self.wait.operation.ctx.shared.limits;
        let fits = |text: &str, max: usize| text.chars().count() <= max && !text.contains('\0');
        let (keys, values) = (limits.label_key_chars_max, limits.label_value_chars_max);
        let max = limits.labels_max;
        if let Some(Plan::Child { labels, .. }) = &mut self.wait.plan {
            // Refused here, the step alone fails; refused by the store, the run would be stuck.
            let fine = !key.is_empty() && fits(&key, keys) && fits(&value, values);
            labels.insert(key, value);
            if !fine || labels.len() > max {
                let message = format!(
                    "a child has at most {max} labels, with keys of 1 to {keys} and values of up \
                     to {values} characters without NUL"
                );
                self.wait.operation.refuse(&invalid(ErrorCode::InvalidLabel, message));
            }
        }
        self
    }
}

impl<O: DeserializeOwned> Future for Child<O> {
    type Output = Result<O, StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.wait.poll(Kind::Child, cx)
    }
}
