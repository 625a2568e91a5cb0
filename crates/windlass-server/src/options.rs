//! Options of the HTTP API and their defaults.

use std::sync::Arc;
use std::time::Duration;

use windlass::{Error, ErrorCode, ErrorKind};

use crate::auth::{Auth, Authorize};
use crate::table::RouteSet;

const MIB: usize = 1024 * 1024;

/// Options of the HTTP API. Validated when the router is created.
#[derive(Clone)]
pub struct Options {
    /// The base path of the API. Default `/api`.
    pub base: String,
    /// How requests are authenticated. Default: API keys in the engine's store.
    pub auth: Auth,
    /// Authorization hooks of the embedding program.
    pub authorize: Option<Arc<dyn Authorize>>,
    /// Routes of models and of the program that embeds the server. Default none.
    pub routes: Vec<RouteSet>,
    /// The settings of the program, which `GET /config` shows to operators. Leave secrets out.
    pub settings: Vec<crate::SettingView>,
    /// Whether to serve the dashboard at `/ui/`, with a redirect from `/`. Default `false`, because the
    /// program that mounts the router may have a route at `/`.
    pub dashboard: bool,
    /// Whether to serve MCP at `/mcp` too, beside `mcp` below the base path. Default `false`, because the
    /// program that mounts the router may have a route there.
    pub mcp_at_root: bool,
    /// Whether to serve `POST /_runner/tick`. Default `false`.
    pub tick: bool,
    /// Whether to serve `/metrics` without authentication. Default `false`: it requires `admin`.
    pub metrics_open: bool,
    /// The maximum size of a request body. Default 2 MiB.
    pub body_bytes_max: usize,
    /// The maximum size of the body of a batch request. Default 8 MiB.
    pub batch_bytes_max: usize,
    /// The maximum number of runs in a batch request. Default 100.
    pub batch_runs_max: usize,
    /// The maximum number of concurrent requests. Default 1,024.
    pub requests_max: usize,
    /// The maximum number of requests that wait for a run to end. Default 2,048. Together with
    /// `requests_max` and `streams_max` this is less than the connection limit of
    /// [`crate::ServeOptions`], so that a connection is always left for health checks.
    pub waits_max: usize,
    /// The maximum number of live streams. Default 256.
    pub streams_max: usize,
    /// The maximum number of requests of one credential that wait for a run to end. Default 1,024.
    pub waits_per_credential_max: usize,
    /// The maximum number of live streams of one credential. Default 128.
    pub streams_per_credential_max: usize,
    /// The maximum number of bytes of all request bodies in progress; further ones get 429. Default
    /// 256 MiB.
    pub bodies_bytes_max: usize,
    /// The highest priority that a client can give to a run; the lowest is its negative. Default 100.
    pub priority_max: i16,
    /// How far ahead a client can delay the start of a run. Default 365 days.
    pub start_ahead_max: Duration,
    /// The maximum duration of a request, including its body. Default 30 s.
    pub request_timeout: Duration,
    /// The maximum time that a request waits for a run to end. Default 60 s.
    pub wait_max: Duration,
    /// The interval of the small write that finds out whether the store accepts writes. Default 2 s.
    pub probe_every: Duration,
    /// The interval at which the credential of a live stream is checked again: a stream can outlive
    /// its credential by this time. Default 60 s.
    pub recheck_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            base: "/api".into(),
            auth: Auth::default(),
            authorize: None,
            routes: Vec::new(),
            settings: Vec::new(),
            dashboard: false,
            mcp_at_root: false,
            tick: false,
            metrics_open: false,
            body_bytes_max: 2 * MIB,
            batch_bytes_max: 8 * MIB,
            batch_runs_max: 100,
            requests_max: 1_024,
            waits_max: 2_048,
            streams_max: 256,
            waits_per_credential_max: 1_024,
            streams_per_credential_max: 128,
            bodies_bytes_max: 256 * MIB,
            priority_max: 100,
            start_ahead_max: Duration::from_secs(365 * 24 * 60 * 60),
            request_timeout: Duration::from_secs(30),
            wait_max: Duration::from_secs(60),
            probe_every: Duration::from_secs(2),
            recheck_every: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// Checks the options.
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |message: String| {
            Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message))
        };
        let words =
            |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "/-_.".contains(c));
        let base = self.base.as_str();
        let is_path = base.starts_with('/') && !base.ends_with('/') && !base.contains("//");
        if !(base.is_empty() || is_path && words(base)) {
            return invalid(format!("base {base:?} is not a path; use a path such as \"/api\""));
        }
        for (name, value) in [
            ("body_bytes_max", self.body_bytes_max),
            ("batch_bytes_max", self.batch_bytes_max),
            ("batch_runs_max", self.batch_runs_max),
            ("requests_max", self.requests_max),
            ("waits_max", self.waits_max),
            ("streams_max", self.streams_max),
            ("waits_per_credential_max", self.waits_per_credential_max),
            ("streams_per_credential_max", self.streams_per_credential_max),
            ("bodies_bytes_max", self.bodies_bytes_max),
        ] {
            if value == 0 {
                return invalid(format!("{name} is 0; it must be at least 1"));
            }
        }
        if self.priority_max < 0 {
            return invalid(format!(
                "priority_max is {}; it must be at least 0",
                self.priority_max
            ));
        }
        if self.request_timeout.is_zero() {
            return invalid("request_timeout is 0; it must be positive".into());
        }
        if self.probe_every.is_zero() {
            return invalid("probe_every is 0; it must be positive".into());
        }
        if self.recheck_every.is_zero() {
            return invalid("recheck_every is 0; it must be positive".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_named() {
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
            (|options| options.bodies_bytes_max = 0, "bodies_bytes_max"),
            (|options| options.priority_max = -1, "priority_max"),
            (|options| options.request_timeout = Duration::ZERO, "request_timeout"),
            (|options| options.probe_every = Duration::ZERO, "probe_every"),
            (|options| options.recheck_every = Duration::ZERO, "recheck_every"),
        ] {
            assert!(with(change).unwrap_err().contains(expect), "{expect}");
        }
    }
}
