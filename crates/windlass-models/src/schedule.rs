//! Setting a schedule that starts runs of a workflow.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use serde_json::value::RawValue;
use windlass_engine::{Engine, Missed, Overlap, Schedule, Timing};
use windlass_kernel::{Body, Error, ErrorCode, IntoDuration, ModelName, WorkflowName};

use crate::run::invalid;
use crate::workflow_ref::WorkflowRef;

/// A schedule in the making. It is set when this is awaited.
#[must_use = "a schedule is set when this is awaited"]
pub struct SetSchedule {
    engine: Engine,
    name: String,
    workflow: WorkflowName,
    model: ModelName,
    input: Result<Body, Error>,
    timing: Result<Timing, Error>,
    time_zone: String,
    labels: BTreeMap<String, String>,
    missed: Missed,
    overlap: Overlap,
}

impl<I, O> WorkflowRef<I, O> {
    /// Starts runs of this workflow again and again: say when with [`SetSchedule::cron`] or
    /// [`SetSchedule::every`], then await. Every process may set it: the same schedule again
    /// changes nothing.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// let input = "all".to_owned();
    /// orders.schedule("nightly", &input).cron("0 3 * * *").time_zone("Europe/Berlin").await?;
    /// # Ok(()) }
    /// ```
    pub fn schedule(&self, name: impl Into<String>, input: &I) -> SetSchedule {
        SetSchedule {
            engine: self.engine.clone(),
            name: name.into(),
            workflow: self.name.clone(),
            model: self.model_name(),
            input: (self.format.encode)(input, &self.engine.options().limits),
            timing: Err(invalid(ErrorCode::InvalidSchedule, "say when: `.cron(…)` or `.every(…)`")),
            time_zone: "UTC".into(),
            labels: BTreeMap::new(),
            missed: Missed::default(),
            overlap: Overlap::default(),
        }
    }
}

impl SetSchedule {
    /// By a cron expression: five fields, or six with seconds first.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.schedule("nightly", &"all".into()).cron("0 3 * * *").await?;
    /// # Ok(()) }
    /// ```
    pub fn cron(mut self, expression: impl Into<String>) -> Self {
        self.timing = Ok(Timing::Cron { expression: expression.into(), time_zone: String::new() });
        self
    }

    /// The time zone of the cron expression. Default UTC.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.schedule("nightly", &"all".into()).cron("0 3 * * *").time_zone("Asia/Tokyo").await?;
    /// # Ok(()) }
    /// ```
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// Again and again after the same time, at least a second.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.schedule("often", &"all".into()).every("5 minutes").await?;
    /// # Ok(()) }
    /// ```
    pub fn every(mut self, interval: impl IntoDuration) -> Self {
        let interval = interval.into_duration();
        self.timing = match interval {
            Ok(span) => Ok(Timing::Every {
                interval_ms: u64::try_from(span.as_millis()).unwrap_or(u64::MAX),
            }),
            Err(error) => Err(invalid(ErrorCode::InvalidSchedule, error.to_string())),
        };
        self
    }

    /// A label of each run.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// orders.schedule("often", &"all".into()).every("5 minutes").label("team", "ops").await?;
    /// # Ok(()) }
    /// ```
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// The treatment of firings that were missed because no process served the schedule. Default: the last of
    /// them is started, late.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// use windlass::Missed;
    ///
    /// orders.schedule("often", &"all".into()).every("5 minutes").missed(Missed::default()).await?;
    /// # Ok(()) }
    /// ```
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// The treatment of a firing whose previous run has not ended. Default: it is started.
    ///
    /// ```
    /// # async fn example(orders: windlass::WorkflowRef<String, String>) -> windlass::Result<()> {
    /// use windlass::Overlap;
    ///
    /// orders.schedule("often", &"all".into()).every("5 minutes").overlap(Overlap::default()).await?;
    /// # Ok(()) }
    /// ```
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }
}

impl IntoFuture for SetSchedule {
    type Output = Result<(), Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut timing = self.timing?;
            if let Timing::Cron { time_zone, .. } = &mut timing {
                *time_zone = self.time_zone;
            }
            let text = String::from_utf8_lossy(&self.input?.bytes).into_owned();
            let input = RawValue::from_string(text)
                .map_err(|error| invalid(ErrorCode::InvalidBody, error.to_string()))?;
            let schedule = Schedule {
                timing,
                workflow: self.workflow,
                model: self.model,
                input,
                labels: self.labels,
                missed: self.missed,
                overlap: self.overlap,
            };
            self.engine.put_schedule(&self.name, &schedule).await
        })
    }
}
