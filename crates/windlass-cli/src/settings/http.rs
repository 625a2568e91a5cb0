//! Settings of the HTTP server.

use std::time::Duration;

use windlass_server::{Options, ServeOptions};

use super::{Setting, invalid, parse_choice};
use crate::args::duration;
use crate::exit::Failure;

/// Every setting of the HTTP server with its default. All except `ready_grace` equal the defaults
/// of the library.
pub(super) const KNOWN: [(&str, &str); 24] = [
    ("tick", "false"),
    ("metrics_open", "false"),
    ("body_bytes_max", "2097152"),
    ("batch_bytes_max", "8388608"),
    ("batch_runs_max", "100"),
    ("head_bytes_max", "65536"),
    ("connections_max", "4096"),
    ("connections_per_address_max", "2048"),
    ("waits_per_credential_max", "1024"),
    ("streams_per_credential_max", "128"),
    ("bodies_bytes_max", "268435456"),
    ("priority_max", "100"),
    ("start_ahead_max", "365 days"),
    ("head_timeout", "10 seconds"),
    ("requests_max", "1024"),
    ("waits_max", "2048"),
    ("streams_max", "256"),
    ("request_timeout", "30 seconds"),
    ("wait_max", "60 seconds"),
    ("idle_timeout", "75 seconds"),
    ("write_timeout", "30 seconds"),
    ("probe_every", "2 seconds"),
    ("recheck_every", "60 seconds"),
    ("ready_grace", "2 seconds"),
];

/// Options and limits of the HTTP server.
#[derive(Clone, Debug)]
pub(crate) struct HttpSettings {
    tick: bool,
    metrics_open: bool,
    body_bytes_max: usize,
    batch_bytes_max: usize,
    batch_runs_max: usize,
    head_bytes_max: usize,
    connections_max: usize,
    connections_per_address_max: usize,
    waits_per_credential_max: usize,
    streams_per_credential_max: usize,
    bodies_bytes_max: usize,
    priority_max: i16,
    start_ahead_max: Duration,
    head_timeout: Duration,
    requests_max: usize,
    waits_max: usize,
    streams_max: usize,
    request_timeout: Duration,
    wait_max: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    probe_every: Duration,
    recheck_every: Duration,
    ready_grace: Duration,
}

impl HttpSettings {
    pub(super) fn read<'a>(get: impl Fn(&str) -> &'a Setting) -> Result<Self, Failure> {
        let flag = |name: &str| parse_choice(get(name), &[("false", false), ("true", true)]);
        let count = |name: &str| {
            let setting = get(name);
            let count = setting.value.replace('_', "").parse::<usize>().ok();
            count
                .filter(|count| *count > 0)
                .ok_or_else(|| invalid(setting, "write a number above 0"))
        };
        let duration_of = |name: &str| {
            let setting = get(name);
            duration(&setting.value).map_err(|why| invalid(setting, &why))
        };
        let positive_duration = |name: &str| match duration_of(name)? {
            Duration::ZERO => Err(invalid(get(name), "expected a duration above 0")),
            duration => Ok(duration),
        };
        Ok(Self {
            tick: flag("tick")?,
            metrics_open: flag("metrics_open")?,
            body_bytes_max: count("body_bytes_max")?,
            batch_bytes_max: count("batch_bytes_max")?,
            batch_runs_max: count("batch_runs_max")?,
            head_bytes_max: count("head_bytes_max")?,
            connections_max: count("connections_max")?,
            connections_per_address_max: count("connections_per_address_max")?,
            waits_per_credential_max: count("waits_per_credential_max")?,
            streams_per_credential_max: count("streams_per_credential_max")?,
            bodies_bytes_max: count("bodies_bytes_max")?,
            priority_max: i16::try_from(count("priority_max")?)
                .map_err(|_| invalid(get("priority_max"), "write a number up to 32767"))?,
            start_ahead_max: positive_duration("start_ahead_max")?,
            head_timeout: positive_duration("head_timeout")?,
            requests_max: count("requests_max")?,
            waits_max: count("waits_max")?,
            streams_max: count("streams_max")?,
            request_timeout: positive_duration("request_timeout")?,
            wait_max: positive_duration("wait_max")?,
            idle_timeout: positive_duration("idle_timeout")?,
            write_timeout: positive_duration("write_timeout")?,
            probe_every: positive_duration("probe_every")?,
            recheck_every: positive_duration("recheck_every")?,
            ready_grace: duration_of("ready_grace")?,
        })
    }

    /// Converts to API options, except authentication.
    pub(crate) fn options(&self) -> Options {
        Options {
            dashboard: true,
            mcp_at_root: true,
            tick: self.tick,
            metrics_open: self.metrics_open,
            body_bytes_max: self.body_bytes_max,
            batch_bytes_max: self.batch_bytes_max,
            batch_runs_max: self.batch_runs_max,
            waits_per_credential_max: self.waits_per_credential_max,
            streams_per_credential_max: self.streams_per_credential_max,
            bodies_bytes_max: self.bodies_bytes_max,
            priority_max: self.priority_max,
            start_ahead_max: self.start_ahead_max,
            requests_max: self.requests_max,
            waits_max: self.waits_max,
            streams_max: self.streams_max,
            request_timeout: self.request_timeout,
            wait_max: self.wait_max,
            probe_every: self.probe_every,
            recheck_every: self.recheck_every,
            ..Options::default()
        }
    }

    /// Converts to connection options.
    pub(crate) fn serving(&self, drain: Duration) -> ServeOptions {
        ServeOptions {
            connections_max: self.connections_max,
            connections_per_address_max: self.connections_per_address_max,
            head_timeout: self.head_timeout,
            idle_timeout: self.idle_timeout,
            head_bytes_max: self.head_bytes_max,
            write_timeout: self.write_timeout,
            ready_grace: self.ready_grace,
            shutdown_timeout: drain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;

    fn read(change: &[(&'static str, &str)]) -> Result<HttpSettings, Failure> {
        let all: Vec<Setting> = KNOWN
            .iter()
            .map(|(name, default)| {
                let changed = change.iter().find(|(changed, _)| changed == name);
                let value = changed.map_or(*default, |(_, value)| value).to_owned();
                Setting { name, value, origin: Origin::Default }
            })
            .collect();
        HttpSettings::read(|name| all.iter().find(|setting| setting.name == name).unwrap())
    }

    #[test]
    fn defaults_equal_those_of_the_library() {
        let settings = read(&[]).unwrap();
        let (options, library) = (settings.options(), Options::default());
        assert_eq!((options.tick, options.metrics_open), (library.tick, library.metrics_open));
        let sizes = |options: &Options| {
            [
                options.body_bytes_max,
                options.batch_bytes_max,
                options.batch_runs_max,
                options.requests_max,
                options.waits_max,
                options.streams_max,
                options.waits_per_credential_max,
                options.streams_per_credential_max,
                options.bodies_bytes_max,
                options.priority_max as usize,
            ]
        };
        assert_eq!(sizes(&options), sizes(&library));
        let times = |options: &Options| {
            [
                options.request_timeout,
                options.wait_max,
                options.probe_every,
                options.recheck_every,
                options.start_ahead_max,
            ]
        };
        assert_eq!(times(&options), times(&library));
        let (serving, library) =
            (settings.serving(Duration::from_secs(10)), ServeOptions::default());
        let same = ServeOptions { ready_grace: library.ready_grace, ..serving };
        assert_eq!(format!("{same:?}"), format!("{library:?}"));
    }

    #[test]
    fn every_setting_reaches_the_server() {
        let changed: Vec<(&'static str, &str)> = KNOWN
            .iter()
            .map(|(name, default)| match *default {
                "false" => (*name, "true"),
                text if text.ends_with("seconds") || text.ends_with("days") => (*name, "7 seconds"),
                _ => (*name, "1_007"),
            })
            .collect();
        let settings = read(&changed).unwrap();
        let options = settings.options();
        assert!(options.tick && options.metrics_open);
        assert_eq!(options.body_bytes_max, 1_007);
        assert_eq!((options.batch_bytes_max, options.batch_runs_max), (1_007, 1_007));
        assert_eq!((options.requests_max, options.waits_max), (1_007, 1_007));
        assert_eq!((options.streams_max, options.streams_per_credential_max), (1_007, 1_007));
        assert_eq!((options.waits_per_credential_max, options.bodies_bytes_max), (1_007, 1_007));
        assert_eq!(options.priority_max, 1_007);
        let seven = Duration::from_secs(7);
        assert_eq!((options.request_timeout, options.wait_max), (seven, seven));
        assert_eq!((options.probe_every, options.recheck_every), (seven, seven));
        assert_eq!(options.start_ahead_max, seven);
        let serving = settings.serving(seven);
        assert_eq!((serving.connections_max, serving.head_bytes_max), (1_007, 1_007));
        assert_eq!((serving.connections_per_address_max, serving.head_timeout), (1_007, seven));
        assert_eq!((serving.idle_timeout, serving.write_timeout), (seven, seven));
        assert_eq!((serving.ready_grace, serving.shutdown_timeout), (seven, seven));
        for (name, value) in
            [("requests_max", "0"), ("wait_max", "soon"), ("wait_max", "5"), ("tick", "maybe")]
        {
            assert!(read(&[(name, value)]).unwrap_err().message.contains(name), "{name}");
        }
    }
}
