//! What a server can be told, with defaults that suit most.

use std::sync::Arc;
use std::time::Duration;

use windlass::{Error, ErrorKind};

use crate::auth::{Auth, Authorize};

const MIB: usize = 1024 * 1024;

/// How the HTTP API behaves. Checked once, when the router is made.
#[derive(Clone)]
pub struct Options {
    /// The path under which the API lies. Default `/api`.
    pub base: String,
    /// How a request proves who sent it. Default: API keys in the engine's store.
    pub auth: Auth,
    /// Hooks of the program that embeds the server.
    pub authorize: Option<Arc<dyn Authorize>>,
    /// Whether `POST /_runner/tick` is there. Default no.
    pub tick: bool,
    /// Whether `/metrics` is open to everybody who reaches the port. Default no: it needs `admin`.
    pub metrics_open: bool,
    /// Bytes of a request's body. Default 2 MiB.
    pub body_bytes_max: usize,
    /// Bytes of the body of a batch. Default 8 MiB.
    pub batch_bytes_max: usize,
    /// Runs of one batch. Default 100.
    pub batch_runs_max: usize,
    /// Requests that are worked on at the same time. Default 1,024.
    pub requests_max: usize,
    /// Requests that wait for a run's end at the same time. Default 2,048: with those that are worked on
    /// and the live streams, fewer than the connections that [`crate::ServeOptions`] allows, so that there
    /// is always one for whoever asks how the server is.
    pub waits_max: usize,
    /// Live streams at the same time. Default 256.
    pub streams_max: usize,
    /// How long a request may take, its body included. Default 30 s.
    pub request_timeout: Duration,
    /// How long a request may wait for a run's end. Default 60 s.
    pub wait_max: Duration,
    /// How often the credential of a live stream is looked at again: so long a stream may outlive it.
    /// Default 60 s.
    pub recheck_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            base: "/api".into(),
            auth: Auth::default(),
            authorize: None,
            tick: false,
            metrics_open: false,
            body_bytes_max: 2 * MIB,
            batch_bytes_max: 8 * MIB,
            batch_runs_max: 100,
            requests_max: 1_024,
            waits_max: 2_048,
            streams_max: 256,
            request_timeout: Duration::from_secs(30),
            wait_max: Duration::from_secs(60),
            recheck_every: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// Refuses what cannot work, by name and value.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse =
            |message: String| Err(Error::new(ErrorKind::Invalid, "INVALID_OPTION", message));
        let words =
            |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "/-_.".contains(c));
        let base = self.base.as_str();
        let is_path = base.starts_with('/') && !base.ends_with('/') && !base.contains("//");
        if !(base.is_empty() || is_path && words(base)) {
            return refuse(format!("the base {base:?} is no path; use one such as \"/api\""));
        }
        for (name, value) in [
            ("body_bytes_max", self.body_bytes_max),
            ("batch_bytes_max", self.batch_bytes_max),
            ("batch_runs_max", self.batch_runs_max),
            ("requests_max", self.requests_max),
            ("waits_max", self.waits_max),
            ("streams_max", self.streams_max),
        ] {
            if value == 0 {
                return refuse(format!("{name} is 0; nothing would be answered"));
            }
        }
        if self.request_timeout.is_zero() {
            return refuse("request_timeout is nothing; no request would be answered".into());
        }
        if self.recheck_every.is_zero() {
            return refuse("recheck_every is nothing; a stream would do nothing else".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_work_are_named() {
        let with = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options.validate().map_err(|error| error.message().to_owned())
        };
        assert!(with(|_| ()).is_ok());
        assert!(with(|options| options.base = String::new()).is_ok());
        for (change, expect) in [
            ((|options| options.base = "api".into()) as fn(&mut Options), "base"),
            (|options| options.base = "/api/".into(), "base"),
            (|options| options.base = "/{x}".into(), "base"),
            (|options| options.requests_max = 0, "requests_max"),
            (|options| options.request_timeout = Duration::ZERO, "request_timeout"),
            (|options| options.recheck_every = Duration::ZERO, "recheck_every"),
        ] {
            assert!(with(change).unwrap_err().contains(expect), "{expect}");
        }
    }
}
