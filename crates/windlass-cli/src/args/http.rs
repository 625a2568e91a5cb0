//! Flags of `windlass server` that say what it answers, and how much of it at once.

use clap::Args;

/// What the HTTP server answers, and its limits.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Serve `POST /_runner/tick`, which drives the engine from outside.
    #[arg(long)]
    pub(crate) tick: bool,
    /// Show `/metrics` to everybody who reaches the port, without a credential.
    #[arg(long)]
    pub(crate) metrics_open: bool,
    /// Bytes of a request's body. [default: 2097152]
    #[arg(long, value_name = "BYTES")]
    pub(crate) body_bytes_max: Option<String>,
    /// Bytes of the body of a batch. [default: 8388608]
    #[arg(long, value_name = "BYTES")]
    pub(crate) batch_bytes_max: Option<String>,
    /// Runs of one batch. [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) batch_runs_max: Option<String>,
    /// Bytes of the head of a request. [default: 65536]
    #[arg(long, value_name = "BYTES")]
    pub(crate) head_bytes_max: Option<String>,
    /// Connections at the same time; more wait to be accepted. [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) connections_max: Option<String>,
    /// Requests that are worked on at the same time; more are told to come back. [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) requests_max: Option<String>,
    /// Requests that wait for the end of a run at the same time. [default: 2048]
    #[arg(long, value_name = "N")]
    pub(crate) waits_max: Option<String>,
    /// Live streams at the same time. [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) streams_max: Option<String>,
    /// How long a request may take, its body included. [default: 30 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) request_timeout: Option<String>,
    /// How long a request may wait for the end of a run. [default: 60 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) wait_max: Option<String>,
    /// How long the head of a request may take, and a connection may be idle. [default: 75 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) idle_timeout: Option<String>,
    /// How long a client may take nothing of its answer. [default: 30 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) write_timeout: Option<String>,
    /// How often the credential of a live stream is looked at again. [default: 60 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) recheck_every: Option<String>,
    /// How long `/readyz` says no before a server that is stopped refuses connections. [default: 2 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) ready_grace: Option<String>,
}

impl HttpArgs {
    /// Each flag by the name of its setting.
    pub(crate) fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        let word = |is: bool| is.then(|| "true".to_owned());
        vec![
            ("tick", word(self.tick)),
            ("metrics_open", word(self.metrics_open)),
            ("body_bytes_max", self.body_bytes_max.clone()),
            ("batch_bytes_max", self.batch_bytes_max.clone()),
            ("batch_runs_max", self.batch_runs_max.clone()),
            ("head_bytes_max", self.head_bytes_max.clone()),
            ("connections_max", self.connections_max.clone()),
            ("requests_max", self.requests_max.clone()),
            ("waits_max", self.waits_max.clone()),
            ("streams_max", self.streams_max.clone()),
            ("request_timeout", self.request_timeout.clone()),
            ("wait_max", self.wait_max.clone()),
            ("idle_timeout", self.idle_timeout.clone()),
            ("write_timeout", self.write_timeout.clone()),
            ("recheck_every", self.recheck_every.clone()),
            ("ready_grace", self.ready_grace.clone()),
        ]
    }
}
