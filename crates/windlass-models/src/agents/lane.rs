//! Lanes: how the call of a model is made, and how the calls of many runs become one batch.
//!
//! A lane is a run of the engine's own workflow `windlass.batches.<provider>`, so one worker holds it at a time and
//! its ledger shows each batch. A call joins it with a message in the commit of its intent. Decision 0127 has the
//! reasons.

mod creating;
mod filling;
mod member;
mod program;
mod settling;
mod state;
mod view;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_engine::Engine;
use windlass_kernel::{Error, ErrorCode, IntoDuration, Timestamp, WorkflowName};

use super::agent::Agent;
use super::env::{invalid, read_duration};
use super::provider::Provider;

pub(crate) use member::BatchedCall;
pub use program::LANES;
pub use view::{BatchInfo, LaneInfo, batch, batches, cancel_batch, flush_lane, lanes};

/// The first part of the names of lanes.
pub(crate) const LANE_WORKFLOW: &str = "windlass.batches.";

/// The label of all lanes, by which they are found.
pub(crate) const LANE_LABEL: &str = "windlass.lane";
pub(crate) const LANE_LABEL_VALUE: &str = "batches";

/// How a call of a model is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// At once.
    #[default]
    Live,
    /// In a batch of the provider, at half the price and within a day. Calls of all runs are merged.
    Batch,
    /// In a batch, if there is time for it: the time until the deadline, divided by the calls that the program
    /// still makes, must be longer than most batches of this lane took. Else at once.
    By(Deadline),
}

/// A deadline of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deadline {
    /// At a time.
    At(Timestamp),
    /// So many milliseconds after the start of the run.
    AfterStart(u64),
}

impl Lane {
    /// A batch, if it can be done by a time.
    pub fn by(time: Timestamp) -> Self {
        Self::By(Deadline::At(time))
    }

    /// A batch, if it can be done within this time from the start of the run: a text such as `"8 hours"`, a
    /// [`Duration`], or milliseconds.
    ///
    /// ```
    /// # use windlass::agents::Lane;
    /// let lane = Lane::within("8 hours")?;
    /// assert!(Lane::within("tomorrow").is_err());
    /// # drop(lane);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidDuration`] if the text is no duration.
    pub fn within(span: impl IntoDuration) -> Result<Self, Error> {
        let span = read_duration("the deadline of a call", span)?;
        Ok(Self::By(Deadline::AfterStart(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))))
    }
}

/// The fate of a member of a batch that got no answer: it expired, was cancelled, its batch failed as a whole, or it
/// failed in a way that another attempt can change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchRetry {
    /// It goes into the next batch, as often as the retry policy of the agent allows.
    #[default]
    Batch,
    /// It is sent at once.
    Live,
    /// Its run fails.
    Fail,
}

/// When a lane sends a batch, and how it looks for results. Durations are texts such as `"15 minutes"`, a
/// [`Duration`], or milliseconds; a text that is no duration is refused when the agent is registered.
#[derive(Clone, Debug)]
#[must_use]
pub struct LaneOptions {
    members_max: usize,
    bytes_max: usize,
    age_max: Duration,
    gather: Duration,
    poll_min: Duration,
    poll_max: Duration,
    grace: Duration,
    refused: Option<Arc<Error>>,
}

/// The most members that a lane can be told to put into a batch.
pub const LANE_MEMBERS_MAX: usize = 50_000;

impl Default for LaneOptions {
    fn default() -> Self {
        Self {
            members_max: 10_000,
            bytes_max: 64 << 20,
            age_max: Duration::from_secs(15 * 60),
            gather: Duration::from_secs(1),
            poll_min: Duration::from_secs(5),
            poll_max: Duration::from_secs(60),
            grace: Duration::from_secs(120),
            refused: None,
        }
    }
}

impl LaneOptions {
    /// A batch is sent when so many calls wait, also while another one is in flight. Default 10,000; the provider's
    /// own limit holds too.
    ///
    /// ```
    /// # use windlass::agents::LaneOptions;
    /// let options = LaneOptions::default().members_max(1_000);
    /// # drop(options);
    /// ```
    pub fn members_max(mut self, members: usize) -> Self {
        self.members_max = members;
        self
    }

    /// The most bytes of the requests in a batch, which is sent when so many wait, also while another one is in
    /// flight. Default 64 MiB; the worker holds them in memory while it sends them.
    ///
    /// ```
    /// # use windlass::agents::LaneOptions;
    /// let options = LaneOptions::default().bytes_max(16 << 20);
    /// # drop(options);
    /// ```
    pub fn bytes_max(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// How long a call waits at most while another batch is in flight. Default 15 minutes.
    ///
    /// ```
    /// # use windlass::agents::LaneOptions;
    /// let options = LaneOptions::default().age_max("5 minutes");
    /// # drop(options);
    /// ```
    pub fn age_max(mut self, age: impl IntoDuration) -> Self {
        self.age_max = self.read("age_max of a lane", age);
        self
    }

    /// How long the first call waits for others when no batch is in flight. Default one second.
    ///
    /// ```
    /// # use windlass::agents::LaneOptions;
    /// let options = LaneOptions::default().gather("3 seconds");
    /// # drop(options);
    /// ```
    pub fn gather(mut self, span: impl IntoDuration) -> Self {
        self.gather = self.read("gather of a lane", span);
        self
    }

    /// How often a batch is read, or sent again after the provider has refused it for now: first after `min`, then
    /// twice as long each time, up to `max`. Default 5 s and 60 s.
    ///
    /// ```
    /// # use windlass::agents::LaneOptions;
    /// let options = LaneOptions::default().poll("10 seconds", "2 minutes");
    /// # drop(options);
    /// ```
    pub fn poll(mut self, min: impl IntoDuration, max: impl IntoDuration) -> Self {
        self.poll_min = self.read("poll of a lane", min);
        self.poll_max = self.read("poll of a lane", max).max(self.poll_min);
        self
    }

    /// How long after an unknown outcome a batch can still appear at the provider. After this time it is sent again.
    /// After a crash in the middle of a creation the longest time of a creation is added. Default two minutes.
    ///
    /// ```
    /// # use windlass::agents::LaneOptions;
    /// let options = LaneOptions::default().grace("5 minutes");
    /// # drop(options);
    /// ```
    pub fn grace(mut self, grace: impl IntoDuration) -> Self {
        self.grace = self.read("grace of a lane", grace);
        self
    }

    // Keeps the first error until the agent is registered.
    fn read(&mut self, field: &str, duration: impl IntoDuration) -> Duration {
        read_duration(field, duration).unwrap_or_else(|error| {
            self.refused.get_or_insert(Arc::new(error));
            Duration::ZERO
        })
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(refused) = &self.refused {
            return Err(invalid(refused.code(), refused.message()));
        }
        let valid = (1..=LANE_MEMBERS_MAX).contains(&self.members_max) && self.bytes_max > 0;
        if !valid || self.poll_min.is_zero() {
            let message = format!(
                "the options of the lane are not valid: use 1 to {LANE_MEMBERS_MAX} members, and a time between \
                 two reads that is not zero"
            );
            return Err(invalid(ErrorCode::InvalidOption, message));
        }
        Ok(())
    }
}

/// A provider as lanes use it.
#[derive(Clone)]
pub(crate) struct LaneProvider {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) options: LaneOptions,
}

/// The workflow whose runs are the lanes of a provider.
pub(crate) fn lane_workflow(provider: &str, engine: &Engine) -> Result<WorkflowName, Error> {
    WorkflowName::with_limits(format!("{LANE_WORKFLOW}{provider}"), &engine.options().limits)
}

/// Serves the lanes of an agent's providers. Agents with providers of one name share its lanes, and the first of
/// them sets their options.
pub(crate) fn register(engine: &Engine, agent: &Agent) -> Result<(), Error> {
    agent.lane_options.check()?;
    for provider in agent.providers() {
        if provider.batches().is_none() {
            continue;
        }
        let workflow = lane_workflow(provider.name(), engine)?;
        if engine.model_of(&workflow).is_none() {
            let options = agent.lane_options.clone();
            let served = LaneProvider { provider: Arc::clone(provider), options };
            program::register(engine, workflow, served)?;
        }
    }
    Ok(())
}
