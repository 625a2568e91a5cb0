//! What an engine can be told, with defaults that suit most.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{Error, ErrorKind, Limits, Namespace};

use crate::admission::Admission;
use crate::model::Manners;
use crate::pressure::BackpressureConfig;
use crate::retention::Archive;

/// Why a run was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EnqueuedReason {
    /// It was created.
    Create,
    /// A message came for it.
    Event,
    /// It was resumed.
    Resume,
    /// A step of it is to be tried again.
    Retry,
    /// What it slept or waited for is due at a time.
    Wake,
}

impl EnqueuedReason {
    /// The word that hosts get.
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

/// What is called after a commit that gave a run something to do: workflow, id, reason.
pub type OnEnqueued = Arc<dyn Fn(&str, &str, EnqueuedReason) + Send + Sync>;

/// How an engine behaves. Checked once, when it starts.
#[derive(Clone)]
pub struct Options {
    /// The tenant that this engine's handles speak for. Default `default`.
    pub namespace: Namespace,
    /// What people call this process. Default `windlass`.
    pub worker_name: String,
    /// The group of workers that this process belongs to, for people. Default `default`.
    pub worker_group: String,
    /// The machine that this process runs on, for people. Default empty; the facade reads the
    /// machine's name where the system has it in a file.
    pub host: String,
    /// The build that this process runs; shown beside what blocked a run. Default empty.
    pub version: String,
    /// Whether other processes may use the store: then the engine renews a lease and scans.
    /// Default false; the facade sets it for PostgreSQL.
    pub shared: bool,
    /// Whether the engine claims by itself. If not, the host calls `tick`. Default true.
    pub background: bool,
    /// How many turns are held at once. Default 10,000.
    pub turns_max: usize,
    /// How many tasks (activities, effects) are held at once. Default 256.
    pub tasks_max: usize,
    /// How many turns or tasks are claimed at once. Default 500, at most 1,000.
    pub claim_max: u32,
    /// How long the store believes in a worker that does not renew. Default 30 s.
    pub lease: Duration,
    /// How often the worker renews. Default 5 s; at most a third of the lease.
    pub renew_every: Duration,
    /// How often a shared engine looks for what no wake-up told it of. Default 10 s.
    pub scan_every: Duration,
    /// How many bytes of waiting runs stay in memory. Default 64 MiB.
    pub sticky_bytes_max: usize,
    /// How often a turn or task may be taken from dead workers without progress before it is given
    /// up. Default 3.
    pub reclaims_max: u32,
    /// When a run that this build cannot carry on is tried again. Default one minute.
    pub blocked_retry: Duration,
    /// How long after its cancellation a run with an own reaction may go on. Default 30 s.
    pub cancel_grace: Duration,
    /// How often what retention policies say is due is deleted. Default one hour.
    pub sweep_every: Duration,
    /// Where runs go before they are deleted, for policies that say so. Default nowhere.
    pub archive: Option<Arc<dyn Archive>>,
    /// When this worker takes nothing new although it has room. Default never.
    pub backpressure: Option<BackpressureConfig>,
    /// When new runs are refused because the workers are too far behind. Default never.
    pub admission: Option<Admission>,
    /// How runs of models are asked to end, for runs whose workflow this process does not serve. Default
    /// empty; the facade knows its models.
    pub manners: &'static [(&'static str, Manners)],
    /// Sizes, lengths and counts.
    pub limits: Limits,
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
            sticky_bytes_max: 64 * 1024 * 1024,
            reclaims_max: 3,
            blocked_retry: Duration::from_secs(60),
            cancel_grace: Duration::from_secs(30),
            sweep_every: Duration::from_secs(60 * 60),
            archive: None,
            backpressure: None,
            admission: None,
            manners: &[],
            limits: Limits::DEFAULT,
            on_enqueued: None,
        }
    }
}

impl Options {
    /// Refuses what cannot work, by name and value.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse =
            |message: String| Err(Error::new(ErrorKind::Invalid, "INVALID_OPTION", message));
        if self.sweep_every < Duration::from_secs(1) {
            let every = self.sweep_every;
            return refuse(format!("sweep_every is {every:?}; a second is the least"));
        }
        if self.turns_max == 0 {
            return refuse("turns_max is 0; an engine needs room for at least one turn".into());
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
            return refuse("scan_every and blocked_retry must be longer than nothing".into());
        }
        self.admission.as_ref().map_or(Ok(()), Admission::validate)
    }
}
