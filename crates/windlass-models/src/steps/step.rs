//! A step: an operation whose body is the user's, tried again until it succeeds or gives up.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_engine::RecordChange;
use windlass_kernel::{
    Backoff, Body, BoxFuture, Error, ErrorCode, Expect, IntoDuration, Limits, RetryLimit,
    RetryPolicy, SqlValue, Statement,
};

use crate::effects::Writes;

use super::core::{Completion, Found, Kind, Outcome, Plan};
use super::ctx::{Ctx, STEP_TIMEOUT, default_policy, invalid};
use super::error::{Failure, StepError};
use super::operation::{Operation, reads_as};
use super::wake::{OperationWaker, in_step};
use crate::any_error::AnyError;

type Making<'a, T, E> =
    Box<dyn FnMut(Attempt) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>> + Send + 'a>;
type Probing<'a, T, E> = Box<
    dyn FnMut(Attempt) -> Pin<Box<dyn Future<Output = Result<Option<T>, E>> + Send + 'a>>
        + Send
        + 'a,
>;

type Judging<'a, E> = Box<dyn Fn(&E) -> bool + Send + 'a>;

/// A body that has run for so long gets a row that says so.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// The attempt that a body runs in.
#[derive(Clone)]
pub struct Attempt {
    /// Which attempt this is, from 1.
    pub number: u32,
    /// The same for every attempt of this step in this run: hand it to services that deduplicate.
    pub idempotency_key: String,
    pub(crate) tx: StepTx,
}

impl Attempt {
    /// Enqueues an effect if the step succeeds; see [`StepTx::enqueue`].
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::{Attempt, RetryPolicy};
    ///
    /// let pay = async |attempt: Attempt| {
    ///     attempt.enqueue("mail", "paid", RetryPolicy::none())?;
    ///     Ok(())
    /// };
    /// ctx.step_with("pay", pay).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The name or the policy is not valid, or the input is too large.
    pub fn enqueue<T: Serialize + ?Sized>(
        &self,
        name: impl AsRef<str>,
        input: &T,
        retry: RetryPolicy,
    ) -> Result<(), Error> {
        self.tx.enqueue(name, input, retry)
    }

    /// As [`Attempt::enqueue`], with a receipt: when the effect is delivered or given up, the same commit
    /// writes a record that says so. `Engine::receipts` reads the receipts of a run.
    ///
    /// ```
    /// # use windlass::{Attempt, Ctx, Result, RetryPolicy};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let pay = async |attempt: Attempt| {
    ///     attempt.enqueue_with_receipt("mail", "paid", RetryPolicy::none())?;
    ///     Ok(())
    /// };
    /// ctx.step_with("pay", pay).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Attempt::enqueue`].
    pub fn enqueue_with_receipt<T: Serialize + ?Sized>(
        &self,
        name: impl AsRef<str>,
        input: &T,
        retry: RetryPolicy,
    ) -> Result<(), Error> {
        self.tx.enqueue_with_receipt(name, input, retry)
    }
}

/// Writes that are in the commit of a step's result: statements that run in its transaction, records,
/// and effects.
#[derive(Clone)]
pub struct StepTx {
    writes: Arc<Mutex<Writes>>,
    limits: Limits,
}

impl Default for StepTx {
    fn default() -> Self {
        Self::new(&Limits::DEFAULT)
    }
}

impl StepTx {
    fn new(limits: &Limits) -> Self {
        Self { writes: Arc::default(), limits: limits.clone() }
    }

    /// Enqueues an effect: an outside side effect that a handler, registered with
    /// `Engine::serve_effects` under this name, delivers at least once. It exists if and only if the
    /// step's record does; an attempt that fails leaves none.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::{RetryPolicy, StepTx};
    ///
    /// let pay = async |tx: StepTx| {
    ///     tx.enqueue("mail", "paid", RetryPolicy::none())?;
    ///     Ok(())
    /// };
    /// ctx.step_tx("pay", pay).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The name or the policy is not valid, or the input is too large.
    pub fn enqueue<T: Serialize + ?Sized>(
        &self,
        name: impl AsRef<str>,
        input: &T,
        retry: RetryPolicy,
    ) -> Result<(), Error> {
        self.writes.lock().add_effect(name, input, (retry, false), &self.limits)
    }

    /// As [`StepTx::enqueue`], with a receipt: when the effect is delivered or given up, the same commit
    /// writes a record that says so. `Engine::receipts` reads the receipts of a run.
    ///
    /// ```
    /// # use windlass::{Ctx, Result, RetryPolicy, StepTx};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let pay = async |tx: StepTx| {
    ///     tx.enqueue_with_receipt("mail", "paid", RetryPolicy::none())?;
    ///     Ok(())
    /// };
    /// ctx.step_tx("pay", pay).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`StepTx::enqueue`].
    pub fn enqueue_with_receipt<T: Serialize + ?Sized>(
        &self,
        name: impl AsRef<str>,
        input: &T,
        retry: RetryPolicy,
    ) -> Result<(), Error> {
        self.writes.lock().add_effect(name, input, (retry, true), &self.limits)
    }

    /// Writes a record if the step succeeds. It must have the revision that is given, or not exist
    /// (`Expect::Absent`). If it does not, the attempt fails as `RecordConflict` and nothing of it is
    /// written; the next attempt follows after some milliseconds and can read the record again.
    ///
    /// ```
    /// # use windlass::{Ctx, Engine, Result};
    /// # async fn example(ctx: Ctx, engine: Engine) -> Result<()> {
    /// use windlass::{AnyError, StepTx};
    ///
    /// let carts = engine.records::<Vec<String>>("carts");
    /// let add = async |tx: StepTx| {
    ///     let mut cart = carts.get("c-7").await?.ok_or_else(|| AnyError::msg("there is no cart"))?;
    ///     cart.value.push("tea".into());
    ///     tx.put_record("carts", "c-7", &cart.value, cart.revision)?;
    ///     Ok(())
    /// };
    /// ctx.step_tx("add", add).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RecordChange::put`] and [`StepTx::record`].
    pub fn put_record<T: Serialize + ?Sized>(
        &self,
        collection: impl AsRef<str>,
        id: impl AsRef<str>,
        document: &T,
        expect: impl Into<Expect>,
    ) -> Result<(), Error> {
        self.record(RecordChange::put(collection, id, document, expect)?)
    }

    /// Checks, writes or removes a record if the step succeeds; see [`StepTx::put_record`].
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::{RecordChange, StepTx};
    ///
    /// let archive = async |tx: StepTx| {
    ///     tx.record(RecordChange::remove("carts", "c-7", 4)?)?;
    ///     Ok(())
    /// };
    /// ctx.step_tx("archive", archive).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The step changes too many records, one record twice, or a record that is too large.
    pub fn record(&self, change: RecordChange) -> Result<(), Error> {
        self.writes.lock().add_record(change, &self.limits)
    }

    /// Adds a statement with the placeholders of its database (`?1` on SQLite, `$1` on PostgreSQL).
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::{SqlValue, StepTx};
    ///
    /// let pay = async |tx: StepTx| {
    ///     tx.execute("UPDATE orders SET paid = ?1", [SqlValue::Bool(true)]);
    ///     Ok(())
    /// };
    /// ctx.step_tx("pay", pay).await?;
    /// # Ok(()) }
    /// ```
    pub fn execute(&self, sql: impl Into<Arc<str>>, params: impl IntoIterator<Item = SqlValue>) {
        let params = params.into_iter().collect();
        self.writes.lock().sql.push(Statement { sql: sql.into(), params });
    }
}

/// A step in the making, and the future of its result.
#[must_use = "a step does nothing unless it is awaited"]
pub struct StepCall<'a, T, E> {
    operation: Operation,
    policy: RetryPolicy,
    timeout: Option<Duration>,
    make: Making<'a, T, E>,
    probe: Option<Probing<'a, T, E>>,
    fatal: Option<Judging<'a, E>>,
    // As a pointer, so that the future itself asks nothing of `E`: with a bound there, the compiler
    // cannot see that collections of steps may be sent between threads.
    recorded_as: fn(E, bool) -> Failure,
    work: Option<Work<'a, T, E>>,
    timer: Option<Timer>,
    attempt: u32,
    // When the attempt began, by the clock of this process.
    began: Duration,
    tx: StepTx,
    wakers: Option<(Waker, Waker)>,
    result: PhantomData<fn() -> T>,
}

enum Work<'a, T, E> {
    Doing(Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>),
    Asking(Pin<Box<dyn Future<Output = Result<Option<T>, E>> + Send + 'a>>),
}

struct Timer {
    future: BoxFuture<'static, ()>,
    left: Left,
}

// The rest of the timeout when a timer ends.
#[derive(Clone, Copy)]
enum Left {
    Nothing,
    After(Duration),
    Forever,
}

impl<'a, T, E> StepCall<'a, T, E> {
    pub(crate) fn new(ctx: Ctx, key: &str, make: Making<'a, T, E>) -> Self
    where
        E: Into<AnyError>,
    {
        let tx = StepTx::new(&ctx.shared.limits);
        Self {
            operation: Operation::new(ctx, key),
            policy: default_policy(),
            timeout: Some(STEP_TIMEOUT),
            make,
            probe: None,
            fatal: None,
            recorded_as: |error, fatal| Failure::of(error, fatal),
            work: None,
            timer: None,
            attempt: 0,
            began: Duration::ZERO,
            tx,
            wakers: None,
            result: PhantomData,
        }
    }

    /// How often it is tried again after a failure. Default 5.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::RetryLimit;
    ///
    /// let user = ctx.step("load", load).retries(3).await?;
    /// let again = ctx.step("load again", load).retries(RetryLimit::Forever).await?;
    /// # let _: u32 = user + again;
    /// # Ok(()) }
    /// ```
    pub fn retries(mut self, retries: impl Into<RetryLimit>) -> Self {
        self.policy.limit = retries.into();
        self
    }

    /// How long after the first failure it is tried again. Default 10 seconds.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let user = ctx.step("load", load).delay("1 second").await?;
    /// # let _: u32 = user;
    /// # Ok(()) }
    /// ```
    pub fn delay(mut self, delay: impl IntoDuration) -> Self {
        match delay.into_duration() {
            Ok(delay) => self.policy.delay = delay,
            Err(error) => self.refuse(ErrorCode::InvalidDuration, &error.to_string()),
        }
        self
    }

    /// How the delay grows. Default: it doubles each time.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::Backoff;
    ///
    /// let user = ctx.step("load", load).backoff(Backoff::Constant).await?;
    /// # let _: u32 = user;
    /// # Ok(()) }
    /// ```
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.policy.backoff = backoff;
        self
    }

    /// Replaces the whole policy.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use windlass::RetryPolicy;
    ///
    /// let user = ctx.step("load", load).retry_policy(RetryPolicy::none()).await?;
    /// # let _: u32 = user;
    /// # Ok(()) }
    /// ```
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// How long one attempt may take. Default ten minutes. What comes later is refused.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let user = ctx.step("load", load).timeout("30 seconds").await?;
    /// # let _: u32 = user;
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        match timeout.into_duration() {
            Ok(timeout) if !timeout.is_zero() => self.timeout = Some(timeout),
            Ok(_) => self.refuse(
                ErrorCode::InvalidDuration,
                "a timeout of nothing leaves no time for the body",
            ),
            Err(error) => self.refuse(ErrorCode::InvalidDuration, &error.to_string()),
        }
        self
    }

    /// Lets an attempt take as long as it likes.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let user = ctx.step("load", load).no_timeout().await?;
    /// # let _: u32 = user;
    /// # Ok(()) }
    /// ```
    pub fn no_timeout(mut self) -> Self {
        self.timeout = None;
        self
    }

    /// Names of errors that are not worth another attempt.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let user = ctx.step("load", load).non_retryable(["ParseIntError"]).await?;
    /// # let _: u32 = user;
    /// # Ok(()) }
    /// ```
    pub fn non_retryable<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.policy.non_retryable = names.into_iter().map(Into::into).collect();
        self
    }

    /// Says of an error whether another attempt cannot help.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// use std::num::ParseIntError;
    ///
    /// let user = ctx.step("load", load).fatal_if(|error| error.is::<ParseIntError>()).await?;
    /// # let _: u32 = user;
    /// # Ok(()) }
    /// ```
    pub fn fatal_if(mut self, fatal: impl Fn(&E) -> bool + Send + 'a) -> Self {
        self.fatal = Some(Box::new(fatal));
        self
    }

    /// Records that the body is about to run before it does. After a crash the probe is asked what
    /// became of it: `Some` is the result, `None` means that it did not happen and is to be done.
    ///
    /// ```
    /// # use windlass::{Ctx, Result};
    /// # async fn load() -> Result<u32> { Ok(1) }
    /// # async fn example(ctx: Ctx) -> Result<()> {
    /// let user = ctx.step("load", load).intent(async |_| Ok(None)).await?;
    /// # let _: u32 = user;
    /// # Ok(()) }
    /// ```
    pub fn intent<F, Fut>(mut self, mut probe: F) -> Self
    where
        F: FnMut(Attempt) -> Fut + Send + 'a,
        Fut: Future<Output = Result<Option<T>, E>> + Send + 'a,
    {
        self.probe = Some(Box::new(move |attempt| Box::pin(probe(attempt))));
        self
    }

    fn refuse(&mut self, code: ErrorCode, message: &str) {
        self.operation.refuse(&invalid(code, message));
    }
}

impl<T: Serialize + DeserializeOwned, E> StepCall<'_, T, E> {
    fn start(&mut self, number: u32, probe: bool) {
        self.attempt = number;
        self.began = self.operation.ctx.shared.env.elapsed();
        self.tx = StepTx::new(&self.operation.ctx.shared.limits);
        if !self.make_work(probe) {
            return;
        }
        let first = self.timeout.map_or(SHOWN_AFTER, |timeout| timeout.min(SHOWN_AFTER));
        let left = match self.timeout {
            Some(timeout) if timeout > SHOWN_AFTER => Left::After(timeout - SHOWN_AFTER),
            Some(_) => Left::Nothing,
            None => Left::Forever,
        };
        let future = self.operation.ctx.shared.env.sleep(first);
        self.timer = Some(Timer { future, left });
    }

    // Makes the body, or asks the probe. Where that panics, the attempt has ended.
    fn make_work(&mut self, probe: bool) -> bool {
        let attempt = self.given();
        let key = self.operation.key().clone();
        let made = in_step(&key, self.attempt, || {
            catch_unwind(AssertUnwindSafe(|| match &mut self.probe {
                Some(ask) if probe => Work::Asking(ask(attempt)),
                _ => Work::Doing((self.make)(attempt)),
            }))
        });
        match made {
            Ok(work) => {
                self.work = Some(work);
                true
            }
            Err(panic) => {
                self.panicked(&*panic);
                false
            }
        }
    }

    fn panicked(&mut self, panic: &(dyn std::any::Any + Send)) {
        let text = windlass_engine::panic_text(panic);
        self.cut_off(Failure::new("Panic", text, true));
    }

    fn given(&self) -> Attempt {
        let run_key = self.operation.ctx.shared.origin;
        Attempt {
            number: self.attempt,
            idempotency_key: format!("{run_key}:{}", self.operation.key()),
            tx: self.tx.clone(),
        }
    }

    // Polls the body and its timer, with a waker that says that they belong to the run.
    fn poll_body(&mut self, cx: &mut Context<'_>) {
        let waker = match &self.wakers {
            Some((outer, inner)) if outer.will_wake(cx.waker()) => inner.clone(),
            _ => {
                let inner = OperationWaker::around(cx.waker());
                self.wakers = Some((cx.waker().clone(), inner.clone()));
                inner
            }
        };
        let mut cx = Context::from_waker(&waker);
        let key = self.operation.key().clone();
        while let Some(work) = &mut self.work {
            let polled = in_step(&key, self.attempt, || {
                catch_unwind(AssertUnwindSafe(|| match work {
                    Work::Doing(body) => body.as_mut().poll(&mut cx).map(|done| done.map(Some)),
                    Work::Asking(probe) => probe.as_mut().poll(&mut cx),
                }))
            });
            // A body that blocks its thread ends late, with the timer behind it.
            if matches!(polled, Ok(Poll::Ready(_))) && self.is_late() {
                return self.time_out();
            }
            match polled {
                Ok(Poll::Pending) => break,
                Ok(Poll::Ready(Ok(Some(value)))) => {
                    let outcome = self.written(&value);
                    return self.finish(outcome);
                }
                // The probe knows of nothing: it is to be done.
                Ok(Poll::Ready(Ok(None))) => {
                    if !self.make_work(false) {
                        return;
                    }
                }
                Ok(Poll::Ready(Err(error))) => {
                    let fatal = self.fatal.as_ref().is_some_and(|fatal| fatal(&error));
                    let failure = (self.recorded_as)(error, fatal);
                    return match self.work {
                        Some(Work::Asking(_)) => self.cut_off(failure),
                        _ => self.finish(Err(failure)),
                    };
                }
                Err(panic) => return self.panicked(&*panic),
            }
        }
        self.poll_timer(&mut cx);
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) {
        while let Some(timer) = &mut self.timer {
            if timer.future.as_mut().poll(cx).is_pending() {
                return;
            }
            let shared = &self.operation.ctx.shared;
            match timer.left {
                Left::Nothing => return self.time_out(),
                Left::After(rest) => {
                    shared
                        .core
                        .lock()
                        .queues
                        .bodies
                        .long_running
                        .push(self.operation.key().clone());
                    let future = shared.env.sleep(rest);
                    self.timer = Some(Timer { future, left: Left::Nothing });
                }
                Left::Forever => {
                    shared
                        .core
                        .lock()
                        .queues
                        .bodies
                        .long_running
                        .push(self.operation.key().clone());
                    self.timer = None;
                }
            }
        }
    }

    fn is_late(&self) -> bool {
        let elapsed = self.operation.ctx.shared.env.elapsed() - self.began;
        self.timeout.is_some_and(|timeout| elapsed > timeout)
    }

    fn time_out(&mut self) {
        let shown = windlass_kernel::format_duration(self.timeout.unwrap_or_default());
        let message = format!("the attempt took longer than {shown}");
        self.cut_off(Failure::new("Timeout", message, true));
    }

    fn written(&self, value: &T) -> Outcome {
        let written =
            Body::of(value).and_then(|body| self.operation.ctx.check_body("the result", body));
        // JSON cannot write every value: NaN becomes null. Once it is recorded it is too late.
        if let Ok(body) = &written
            && let Err(error) = reads_as::<T>(body)
        {
            let message = format!("the result does not read back as it was written: {error}");
            return Err(Failure::new("ResultUnreadable", message, false));
        }
        written.map_err(|error| {
            let name = match error.code() {
                ErrorCode::InvalidSize => "ResultTooLarge",
                ErrorCode::InvalidDepth => "ResultTooDeep",
                _ => "ResultUnwritable",
            };
            Failure::new(name, error.to_string(), false)
        })
    }

    fn finish(&mut self, outcome: Outcome) {
        self.end(outcome, false);
    }

    // The attempt has failed, and nobody knows what it has done.
    fn cut_off(&mut self, failure: Failure) {
        self.end(Err(failure), true);
    }

    fn end(&mut self, outcome: Outcome, unknown: bool) {
        // A body that came too late, or that somebody let go, ends here.
        (self.work, self.timer) = (None, None);
        let mut outcome = outcome;
        let mut writes = match outcome {
            Ok(_) => std::mem::take(&mut *self.tx.writes.lock()),
            Err(_) => Writes::default(),
        };
        let max = self.operation.ctx.shared.limits.user_sql_statements_max;
        if writes.sql.len() > max {
            let found = writes.sql.len();
            let message = format!("the step has {found} statements; at most {max} are allowed");
            outcome = Err(Failure::new("SqlTooLarge", message, false));
            writes = Writes::default();
        }
        let (key, attempt) = (self.operation.key().clone(), self.attempt);
        let took = self.operation.ctx.shared.env.elapsed() - self.began;
        let completion = Completion { key, attempt, took, outcome, unknown, writes };
        self.operation.ctx.shared.core.lock().completed(completion);
    }
}

impl<T: Serialize + DeserializeOwned, E> Future for StepCall<'_, T, E> {
    type Output = Result<T, StepError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.operation.is_new()
            && let Err(error) = this.policy.validate()
        {
            this.refuse(ErrorCode::InvalidRetryPolicy, &error.to_string());
        }
        let (policy, timeout, intent) = (&this.policy, this.timeout, this.probe.is_some());
        let plan = || Plan::Do { policy: policy.clone(), timeout, intent };
        match this.operation.poll(cx, reads_as::<T>, plan) {
            Poll::Ready(Err(refused)) => return Poll::Ready(Err(refused)),
            Poll::Ready(Ok(Found::Ready(outcome))) => {
                return this.operation.read(Kind::Do, outcome);
            }
            Poll::Ready(Ok(Found::Start { attempt, probe })) => this.start(attempt, probe),
            Poll::Ready(Ok(Found::Pending)) | Poll::Pending => {}
        }
        if this.work.is_some() {
            this.poll_body(cx);
        }
        Poll::Pending
    }
}
