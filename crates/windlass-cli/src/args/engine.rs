//! Flags of `windlass server` for the engine and its store.

use clap::Args;

/// Options of the engine and its store.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// The group of workers that this process belongs to, for operators. [default: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) worker_group: Option<String>,
    /// The maximum number of turns that this process holds. [default: 10000]
    #[arg(long, value_name = "N")]
    pub(crate) turns_max: Option<String>,
    /// The maximum number of activities and effects that run at once. [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) tasks_max: Option<String>,
    /// After this time without a renewal, a process counts as dead (PostgreSQL). [default: 30
    /// seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) lease: Option<String>,
    /// The interval of renewals, at most a third of the lease. [default: 5 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) renew_every: Option<String>,
    /// The interval at which the engine looks for work whose notification it missed. [default: 10
    /// seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) scan_every: Option<String>,
    /// How many processes may die with a turn or task before it is given up. [default: 3]
    #[arg(long, value_name = "N")]
    pub(crate) reclaims_max: Option<String>,
    /// How long an event that is sent to a key is kept for runs that begin to wait later. [default: 1
    /// day]
    #[arg(long, value_name = "DURATION")]
    pub(crate) event_ttl: Option<String>,
    /// How long the receipt of an effect is kept after its run has ended. [default: 90 days]
    #[arg(long, value_name = "DURATION")]
    pub(crate) receipt_retention: Option<String>,
    /// How long a closed request to people and its decisions are kept after their run has ended.
    /// [default: 90 days]
    #[arg(long, value_name = "DURATION")]
    pub(crate) request_retention: Option<String>,
    /// How long the row of a removed record stays in collections of applications, or `off` for ever.
    /// [default: off]
    #[arg(long, value_name = "DURATION")]
    pub(crate) removed_record_retention: Option<String>,
    /// The maximum size of a record's document, up to 16777216. [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    pub(crate) record_bytes_max: Option<String>,
    /// The maximum size of an input, an output, a result of a step, a message, or the input of an activity
    /// or effect, at most 16 MiB. The result of an activity has at most half of it. Raise
    /// `body_bytes_max` too if they come over HTTP. [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    pub(crate) value_bytes_max: Option<String>,
    /// Refuse new runs at this ratio of ready work to free capacity, or `off`. [default: off]
    #[arg(long, value_name = "RATIO")]
    pub(crate) admission: Option<String>,
    /// Stop to take new work at this share of `turns_max` or `tasks_max`, above 0 and at most 1, or
    /// `off`. [default: off]
    #[arg(long, value_name = "SHARE")]
    pub(crate) backpressure: Option<String>,
    /// The share below which the process takes new work again. [default: 0.7]
    #[arg(long, value_name = "SHARE")]
    pub(crate) backpressure_low: Option<String>,
    /// Stop to take new work at this size of resident memory, or `off`; needs `backpressure`.
    /// [default: off]
    #[arg(long, value_name = "BYTES")]
    pub(crate) backpressure_memory: Option<String>,
    /// Stop to take new work at this percentage of all processors, or `off`; needs `backpressure`.
    /// [default: off]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) backpressure_cpu: Option<String>,
    /// PostgreSQL: the maximum number of connections for claims, loads and listings. [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) pool_size_max: Option<String>,
    /// PostgreSQL: the maximum number of connections for renewals and heartbeats. [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) lease_pool_size_max: Option<String>,
    /// PostgreSQL: the number of committers, each with its own connection. [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) committers: Option<String>,
}

impl EngineArgs {
    /// Returns each flag under the name of its setting.
    pub(crate) fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("worker_group", self.worker_group.clone()),
            ("turns_max", self.turns_max.clone()),
            ("tasks_max", self.tasks_max.clone()),
            ("lease", self.lease.clone()),
            ("renew_every", self.renew_every.clone()),
            ("scan_every", self.scan_every.clone()),
            ("reclaims_max", self.reclaims_max.clone()),
            ("event_ttl", self.event_ttl.clone()),
            ("receipt_retention", self.receipt_retention.clone()),
            ("request_retention", self.request_retention.clone()),
            ("removed_record_retention", self.removed_record_retention.clone()),
            ("record_bytes_max", self.record_bytes_max.clone()),
            ("value_bytes_max", self.value_bytes_max.clone()),
            ("admission", self.admission.clone()),
            ("backpressure", self.backpressure.clone()),
            ("backpressure_low", self.backpressure_low.clone()),
            ("backpressure_memory", self.backpressure_memory.clone()),
            ("backpressure_cpu", self.backpressure_cpu.clone()),
            ("pool_size_max", self.pool_size_max.clone()),
            ("lease_pool_size_max", self.lease_pool_size_max.clone()),
            ("committers", self.committers.clone()),
        ]
    }
}
