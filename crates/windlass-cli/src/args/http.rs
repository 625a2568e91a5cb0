//! Flags of `windlass server` for the HTTP API and its limits.

use clap::Args;

/// Options and limits of the HTTP server.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Serve `POST /_runner/tick`, which lets an external scheduler drive the engine.
    #[arg(long)]
    pub(crate) tick: bool,
    /// Serve `/metrics` without authentication.
    #[arg(long)]
    pub(crate) metrics_open: bool,
    /// The maximum size of a request body. [default: 2097152]
    #[arg(long, value_name = "BYTES")]
    pub(crate) body_bytes_max: Option<String>,
    /// The maximum size of the body of a batch request. [default: 8388608]
    #[arg(long, value_name = "BYTES")]
    pub(crate) batch_bytes_max: Option<String>,
    /// The maximum number of runs in a batch request. [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) batch_runs_max: Option<String>,
    /// The maximum size of a request head. [default: 65536]
    #[arg(long, value_name = "BYTES")]
    pub(crate) head_bytes_max: Option<String>,
    /// The maximum number of connections; further ones replace idle ones. [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) connections_max: Option<String>,
    /// The maximum number of connections from one address. [default: 2048]
    #[arg(long, value_name = "N")]
    pub(crate) connections_per_address_max: Option<String>,
    /// The maximum number of concurrent requests; further ones get 429. [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) requests_max: Option<String>,
    /// The maximum number of requests that wait for a run to end. [default: 2048]
    #[arg(long, value_name = "N")]
    pub(crate) waits_max: Option<String>,
    /// The maximum number of live streams. [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) streams_max: Option<String>,
    /// The maximum number of waiting requests of one credential. [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) waits_per_credential_max: Option<String>,
    /// The maximum number of live streams of one credential. [default: 128]
    #[arg(long, value_name = "N")]
    pub(crate) streams_per_credential_max: Option<String>,
    /// The maximum number of bytes of all request bodies in progress; further ones get 429.
    /// [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    pub(crate) bodies_bytes_max: Option<String>,
    /// The highest priority that a client can give to a run; the lowest is its negative. [default:
    /// 100]
    #[arg(long, value_name = "N")]
    pub(crate) priority_max: Option<String>,
    /// How far ahead a client can delay the start of a run. [default: 365 days]
    #[arg(long, value_name = "DURATION")]
    pub(crate) start_ahead_max: Option<String>,
    /// The timeout for receiving a request head. [default: 10 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) head_timeout: Option<String>,
    /// The maximum duration of a request, including its body. [default: 30 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) request_timeout: Option<String>,
    /// The maximum time that a request waits for a run to end. [default: 60 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) wait_max: Option<String>,
    /// The timeout for connections between two requests. [default: 75 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) idle_timeout: Option<String>,
    /// The timeout for clients that stop reading their response. [default: 30 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) write_timeout: Option<String>,
    /// The interval of the small write that finds out whether the store accepts writes. [default: 2
    /// seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) probe_every: Option<String>,
    /// The interval at which the credential of a live stream is checked again. [default: 60
    /// seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) recheck_every: Option<String>,
    /// How long `/readyz` fails before a stopping server refuses connections. [default: 2 seconds]
    #[arg(long, value_name = "DURATION")]
    pub(crate) ready_grace: Option<String>,
}

impl HttpArgs {
    /// Returns each flag under the name of its setting.
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
            ("connections_per_address_max", self.connections_per_address_max.clone()),
            ("waits_per_credential_max", self.waits_per_credential_max.clone()),
            ("streams_per_credential_max", self.streams_per_credential_max.clone()),
            ("bodies_bytes_max", self.bodies_bytes_max.clone()),
            ("priority_max", self.priority_max.clone()),
            ("start_ahead_max", self.start_ahead_max.clone()),
            ("head_timeout", self.head_timeout.clone()),
            ("requests_max", self.requests_max.clone()),
            ("waits_max", self.waits_max.clone()),
            ("streams_max", self.streams_max.clone()),
            ("request_timeout", self.request_timeout.clone()),
            ("wait_max", self.wait_max.clone()),
            ("idle_timeout", self.idle_timeout.clone()),
            ("write_timeout", self.write_timeout.clone()),
            ("probe_every", self.probe_every.clone()),
            ("recheck_every", self.recheck_every.clone()),
            ("ready_grace", self.ready_grace.clone()),
        ]
    }
}
