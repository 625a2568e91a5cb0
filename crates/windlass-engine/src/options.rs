//! The options of an engine and their defaults.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::request::Directory;
use windlass_kernel::{Error, ErrorCode, ErrorKind, Limits, Namespace};

use crate::admission::Admission;
use crate::description::ModelDescription;
use crate::pressure::BackpressureConfig;
use crate::retention::Archive;

/// Why a run was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EnqueuedReason {
    /// It was created.
    Create,
    /// A message came for it: an event, a control request, or the result of a child or an activity.
    Event,
    /// It was resumed.
    Resume,
    /// One of its steps is retried.
    Retry,
    /// A sleep or a wait ends at a time, or it has more to do: a tick stopped it, it gave its turn to others, it
    /// has a new task, or somebody woke it.
    Wake,
}

impl EnqueuedReason {
    /// The reason as text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Event => "event",
            Self::Resume => "resume",
            Self::Retry => "retry",
            Self::Wake => "wake",
        }
    }
}

/// Called with workflow, id and reason after a commit that gave a run something to do.
pub type OnEnqueued = Arc<dyn Fn(&str, &str, EnqueuedReason) + Send + Sync>;

/// The options of an engine. They are validated once, when it starts.
///
/// The fields are not grouped: hosts set two or three of them with struct update syntax, which groups
/// would turn into nested literals.
#[derive(Clone)]
pub struct Options {
    /// The tenant of this engine's handles. Default `default`.
    pub namespace: Namespace,
    /// The name of this process, for operators. Default `windlass`.
    pub worker_name: String,
    /// The group of workers that this process belongs to, for operators. Default `default`.
    pub worker_group: String,
    /// The host name, for operators. Default empty; the crate `windlass` reads it where the system has
    /// it in a file.
    pub host: String,
    /// The build of this process; shown beside the reason why a run is blocked. Default empty.
    pub version: String,
    /// Whether other processes may use the store: then the engine renews a lease and scans.
    /// Default false; the crate `windlass` sets it for PostgreSQL.
    pub shared: bool,
    /// Whether the engine claims by itself. If not, the host calls `tick`. Default true.
    pub background: bool,
    /// How many turns are held at once. Default 10,000.
    pub turns_max: usize,
    /// How many tasks (activities, effects) are held at once. Default 256.
    pub tasks_max: usize,
    /// How many turns or tasks are claimed at once. Default 500, at most 1,000.
    pub claim_max: u32,
    /// After this time without a renewal a worker counts as dead. Default 30 s.
    pub lease: Duration,
    /// How often the worker renews. Default 5 s; at most a third of the lease.
    pub renew_every: Duration,
    /// How often a shared engine looks for work whose wake-up it missed. Default 10 s.
    pub scan_every: Duration,
    /// How many bytes of waiting runs are cached. Default 64 MiB.
    pub run_cache_bytes_max: usize,
    /// How many workers may die with a turn or task without progress before the engine fails it.
    /// Default 3.
    pub reclaims_max: u32,
    /// When a blocked run is retried. Default one minute.
    pub blocked_retry: Duration,
    /// How long a run may go on after a cancel message that its model handles. Default 30 s.
    pub cancel_grace: Duration,
    /// How long an event that is sent to a key is kept for runs that begin to wait later. Default a day.
    pub event_ttl: Duration,
    /// How long the receipt of an effect is kept after its run has ended. Default 90 days.
    pub receipt_retention: Duration,
    /// How long a commit that creates a run is sent again while its outcome is unknown. Then the caller
    /// learns that it is unknown. A retention policy must keep runs at least four times as long. Default
    /// one minute.
    pub create_resend_max: Duration,
    /// How long a closed request to people and its decisions are kept after their run has ended. Default 90
    /// days.
    pub request_retention: Duration,
    /// How long the row of a removed record stays in a collection of the engine and its models. Default 90
    /// days.
    pub removed_record_retention: Duration,
    /// The same for collections of applications. Default for ever: revisions of a record whose row is deleted
    /// begin again at 1, so a run that expects a revision which it read before this time could write a
    /// document that it has not seen.
    pub removed_record_retention_of_applications: Option<Duration>,
    /// How often runs that retention policies no longer keep, and rows of removed records, are deleted.
    /// Default one hour.
    pub sweep_every: Duration,
    /// Where policies with `archive` write runs before they are deleted. Default nowhere.
    pub archive: Option<Arc<dyn Archive>>,
    /// When this worker takes no new work although it has capacity. Default never.
    pub backpressure: Option<BackpressureConfig>,
    /// When new runs are refused because the workers are too far behind. Default never.
    pub admission: Option<Admission>,
    /// The models that this process was built with: it describes their runs even if it serves none of
    /// their workflows. Default empty; the crate `windlass` adds its models.
    pub models: Vec<&'static ModelDescription>,
    /// Sizes, lengths and counts.
    pub limits: Limits,
    /// Says who has which role, for requests to people. Default nobody does: a request to a role needs a
    /// number as its quorum.
    pub directory: Option<Arc<dyn Directory>>,
    /// Called after commits that gave a run something to do. It must not block.
    pub on_enqueued: Option<OnEnqueued>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: Namespace::default_namespace(),
            worker_name: "windlass".into(),
            worker_group: "default".into(),
            host: String::new(),
            version: String::new(),
            shared: false,
            background: true,
            turns_max: 10_000,
            tasks_max: 256,
            claim_max: 500,
            lease: Duration::from_secs(30),
            renew_every: Duration::from_secs(5),
            scan_every: Duration::from_secs(10),
            run_cache_bytes_max: 64 * 1024 * 1024,
            reclaims_max: 3,
            blocked_retry: Duration::from_secs(60),
            cancel_grace: Duration::from_secs(30),
            event_ttl: Duration::from_secs(24 * 60 * 60),
            receipt_retention: Duration::from_secs(90 * 24 * 60 * 60),
            create_resend_max: Duration::from_secs(60),
            request_retention: Duration::from_secs(90 * 24 * 60 * 60),
            removed_record_retention: Duration::from_secs(90 * 24 * 60 * 60),
            removed_record_retention_of_applications: None,
            sweep_every: Duration::from_secs(60 * 60),
            archive: None,
            backpressure: None,
            admission: None,
            models: Vec::new(),
            limits: Limits::DEFAULT,
            directory: None,
            on_enqueued: None,
        }
    }
}

impl Options {
    /// Checks every option. The error names the option and its value.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`](windlass_kernel::ErrorCode::InvalidOption); the message names the option.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |message: String| {
            Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message))
        };
        if self.sweep_every < Duration::from_secs(1) {
            let every = self.sweep_every;
            return refuse(format!("sweep_every is {every:?}; use at least 1 second"));
        }
        if self.turns_max == 0 {
            return refuse("turns_max is 0; use at least 1".into());
        }
        if self.claim_max == 0 || self.claim_max > self.limits.claim_rows_max {
            let max = self.limits.claim_rows_max;
            return refuse(format!("claim_max is {}; use 1 to {max}", self.claim_max));
        }
        if self.renew_every.is_zero() || self.renew_every * 3 > self.lease {
            return refuse(format!(
                "renew_every is {:?} with a lease of {:?}; renew at least three times a lease",
                self.renew_every, self.lease
            ));
        }
        if self.scan_every.is_zero() || self.blocked_retry.is_zero() {
            return refuse("scan_every or blocked_retry is 0; use more than 0".into());
        }
        for (name, kept) in [
            ("receipt_retention", self.receipt_retention),
            ("request_retention", self.request_retention),
            ("removed_record_retention", self.removed_record_retention),
            (
                "removed_record_retention_of_applications",
                self.removed_record_retention_of_applications.unwrap_or(Duration::MAX),
            ),
        ] {
            if kept < Duration::from_secs(1) {
                return refuse(format!("{name} is {kept:?}; use at least 1 second"));
            }
        }
        crate::keyed::check_ttl(self.event_ttl, self.limits.sleep_days_max)
            .or_else(|error| refuse(format!("event_ttl: {}", error.message())))?;
        self.limits.validate()?;
        self.admission.as_ref().map_or(Ok(()), Admission::validate)
    }
}
