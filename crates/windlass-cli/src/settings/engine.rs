//! Settings of the engine and its store.

use std::str::FromStr;
use std::time::Duration;

use windlass::Limits;
use windlass::admin::{Admission, BackpressureConfig, Connections, Options};

use super::{Setting, invalid};
use crate::args::duration;
use crate::exit::Failure;

/// Every setting of the engine with its default. They equal the defaults of the library.
pub(super) const KNOWN: [(&str, &str); 21] = [
    ("worker_group", "default"),
    ("turns_max", "10000"),
    ("tasks_max", "256"),
    ("lease", "30 seconds"),
    ("renew_every", "5 seconds"),
    ("scan_every", "10 seconds"),
    ("reclaims_max", "3"),
    ("event_ttl", "1 day"),
    ("receipt_retention", "90 days"),
    ("request_retention", "90 days"),
    ("removed_record_retention", "off"),
    ("record_bytes_max", "1048576"),
    ("value_bytes_max", "1048576"),
    ("admission", "off"),
    ("backpressure", "off"),
    ("backpressure_low", "0.7"),
    ("backpressure_memory", "off"),
    ("backpressure_cpu", "off"),
    ("pool_size_max", "8"),
    ("lease_pool_size_max", "2"),
    ("committers", "2"),
];

/// Options of the engine and its store.
#[derive(Clone)]
pub(crate) struct EngineSettings {
    pub(crate) options: Options,
    pub(crate) connections: Connections,
}

impl EngineSettings {
    pub(super) fn read<'a>(get: impl Fn(&str) -> &'a Setting) -> Result<Self, Failure> {
        let duration_of = |name: &str| {
            let setting = get(name);
            duration(&setting.value).map_err(|why| invalid(setting, &why))
        };
        let options = Options {
            worker_group: get("worker_group").value.clone(),
            turns_max: number(get("turns_max"))?,
            tasks_max: number(get("tasks_max"))?,
            lease: duration_of("lease")?,
            renew_every: duration_of("renew_every")?,
            scan_every: duration_of("scan_every")?,
            reclaims_max: number(get("reclaims_max"))?,
            event_ttl: duration_of("event_ttl")?,
            receipt_retention: duration_of("receipt_retention")?,
            request_retention: duration_of("request_retention")?,
            removed_record_retention_of_applications: or_off_duration(get(
                "removed_record_retention",
            ))?,
            limits: Limits::DEFAULT
                .with_value_bytes_max(at_least_one(get("value_bytes_max"))?)
                .with_record_bytes_max(at_least_one(get("record_bytes_max"))?),
            admission: or_off(get("admission"))?.map(|ratio| Admission { max_queue_ratio: ratio }),
            backpressure: backpressure(&get)?,
            ..Options::default()
        };
        options.validate().map_err(|error| Failure::usage(error.message()))?;
        let connections = Connections {
            pool_size_max: at_least_one(get("pool_size_max"))?,
            lease_pool_size_max: at_least_one(get("lease_pool_size_max"))?,
            committers: at_least_one(get("committers"))?,
        };
        Ok(Self { options, connections })
    }
}

fn backpressure<'a>(
    get: &impl Fn(&str) -> &'a Setting,
) -> Result<Option<BackpressureConfig>, Failure> {
    let memory: Option<u64> = or_off(get("backpressure_memory"))?;
    let cpu: Option<f64> = or_off(get("backpressure_cpu"))?;
    let low: f64 = number(get("backpressure_low"))?;
    let Some(high) = or_off(get("backpressure"))? else {
        let alone =
            [("backpressure_memory", memory.is_some()), ("backpressure_cpu", cpu.is_some())];
        return match alone.into_iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => Err(invalid(get(name), "it needs `backpressure`, such as 0.9")),
            None => Ok(None),
        };
    };
    if !(low > 0.0 && low <= high && high <= 1.0) {
        let why = format!("use 0 < backpressure_low ({low}) <= backpressure <= 1");
        return Err(invalid(get("backpressure"), &why));
    }
    Ok(Some(BackpressureConfig {
        high_watermark: high,
        low_watermark: low,
        memory_threshold: memory,
        cpu_threshold: cpu,
    }))
}

fn number<T: FromStr>(setting: &Setting) -> Result<T, Failure> {
    let parsed = setting.value.replace('_', "").parse();
    parsed.map_err(|_| invalid(setting, "write a number"))
}

fn at_least_one(setting: &Setting) -> Result<usize, Failure> {
    match number(setting)? {
        0 => Err(invalid(setting, "write a number above 0")),
        count => Ok(count),
    }
}

fn or_off_duration(setting: &Setting) -> Result<Option<Duration>, Failure> {
    if setting.value == "off" {
        return Ok(None);
    }
    duration(&setting.value).map(Some).map_err(|why| invalid(setting, &why))
}

fn or_off<T: FromStr>(setting: &Setting) -> Result<Option<T>, Failure> {
    if setting.value == "off" {
        return Ok(None);
    }
    let parsed = setting.value.replace('_', "").parse();
    parsed.map(Some).map_err(|_| invalid(setting, "write a number or `off`"))
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;

    fn read(change: &[(&'static str, &str)]) -> Result<EngineSettings, Failure> {
        let all: Vec<Setting> = KNOWN
            .iter()
            .map(|(name, default)| {
                let changed = change.iter().find(|(changed, _)| changed == name);
                let value = changed.map_or(*default, |(_, value)| value).to_owned();
                Setting { name, value, origin: Origin::Default }
            })
            .collect();
        EngineSettings::read(|name| all.iter().find(|setting| setting.name == name).unwrap())
    }

    #[test]
    fn defaults_equal_those_of_the_library() {
        let EngineSettings { options, connections } = read(&[]).unwrap();
        let library = Options::default();
        assert_eq!(options.worker_group, library.worker_group);
        assert_eq!(
            (options.turns_max, options.tasks_max, options.reclaims_max),
            (library.turns_max, library.tasks_max, library.reclaims_max)
        );
        assert_eq!(
            (options.lease, options.renew_every, options.scan_every),
            (library.lease, library.renew_every, library.scan_every)
        );
        assert_eq!((options.event_ttl, &options.limits), (library.event_ttl, &library.limits));
        assert_eq!(
            (options.receipt_retention, options.request_retention),
            (library.receipt_retention, library.request_retention)
        );
        assert_eq!(options.removed_record_retention_of_applications, None);
        assert!(options.admission.is_none() && options.backpressure.is_none());
        assert_eq!(connections, Connections::default());
        assert_eq!(connections.total(), 13);
    }

    #[test]
    fn every_setting_reaches_the_engine() {
        let EngineSettings { options, connections } = read(&[
            ("worker_group", "gpu"),
            ("turns_max", "1_000"),
            ("tasks_max", "4"),
            ("lease", "6 seconds"),
            ("renew_every", "2 seconds"),
            ("scan_every", "3 seconds"),
            ("reclaims_max", "9"),
            ("event_ttl", "2 hours"),
            ("receipt_retention", "1 day"),
            ("request_retention", "2 days"),
            ("removed_record_retention", "3 days"),
            ("record_bytes_max", "4_194_304"),
            ("value_bytes_max", "16_777_216"),
            ("admission", "2.5"),
            ("backpressure", "0.9"),
            ("backpressure_low", "0.5"),
            ("backpressure_memory", "1_000_000"),
            ("backpressure_cpu", "80"),
            ("pool_size_max", "3"),
            ("lease_pool_size_max", "4"),
            ("committers", "5"),
        ])
        .unwrap();
        assert_eq!(options.worker_group, "gpu");
        assert_eq!((options.turns_max, options.tasks_max), (1_000, 4));
        let limits = &options.limits;
        for bytes in [limits.input_bytes_max, limits.step_bytes_max] {
            assert_eq!(bytes, Limits::BODY_BYTES_MAX);
        }
        assert!(limits.task_bytes_max > Limits::BODY_BYTES_MAX, "{}", limits.task_bytes_max);
        let seconds = Duration::from_secs;
        assert_eq!((options.lease, options.renew_every), (seconds(6), seconds(2)));
        assert_eq!((options.scan_every, options.reclaims_max), (seconds(3), 9));
        assert_eq!((options.event_ttl, options.limits.record_bytes_max), (seconds(7_200), 4 << 20));
        let days = |days: u64| seconds(days * 86_400);
        assert_eq!((options.receipt_retention, options.request_retention), (days(1), days(2)));
        assert_eq!(options.removed_record_retention_of_applications, Some(days(3)));
        assert_eq!(options.admission, Some(Admission { max_queue_ratio: 2.5 }));
        let expect = BackpressureConfig {
            high_watermark: 0.9,
            low_watermark: 0.5,
            memory_threshold: Some(1_000_000),
            cpu_threshold: Some(80.0),
        };
        assert_eq!(options.backpressure, Some(expect));
        assert_eq!(connections.total(), 3 + 4 + 5 + 1);
    }

    #[test]
    fn a_small_record_makes_the_limits_of_keys_smaller() {
        let EngineSettings { options, .. } = read(&[("record_bytes_max", "65_536")]).unwrap();
        let limits = &options.limits;
        assert_eq!((limits.record_bytes_max, limits.key_bytes_max), (65_536, 16_384));
        let EngineSettings { options, .. } = read(&[("value_bytes_max", "65_536")]).unwrap();
        assert_eq!(options.limits.record_bytes_max, 1 << 20);
    }

    #[test]
    fn small_values_leave_the_limits_of_keys_as_they_are() {
        for (value, key_bytes_max) in [("1_000", 1_000), ("524_288", 256 * 1024)] {
            let EngineSettings { options, .. } = read(&[("value_bytes_max", value)]).unwrap();
            let (limits, default) = (options.limits, Limits::DEFAULT);
            assert_eq!(limits.key_events_max, default.key_events_max, "{value}");
            assert_eq!(limits.key_runs_max, default.key_runs_max, "{value}");
            // An event that is kept for a key becomes a message.
            assert_eq!(limits.key_bytes_max, key_bytes_max, "{value}");
        }
    }

    #[test]
    fn an_invalid_setting_is_named() {
        for (change, expect) in [
            (&[("tasks_max", "many")][..], "tasks_max"),
            (&[("renew_every", "20 seconds")], "renew_every"),
            (&[("admission", "0")], "max_queue_ratio"),
            (&[("event_ttl", "1 ms")], "event_ttl"),
            (&[("request_retention", "1 ms")], "request_retention"),
            (&[("removed_record_retention", "soon")], "removed_record_retention"),
            (&[("removed_record_retention", "1 ms")], "removed_record_retention"),
            (&[("record_bytes_max", "0")], "record_bytes_max"),
            (&[("record_bytes_max", "100_000_000")], "record_bytes_max"),
            (&[("backpressure", "1.5")], "backpressure"),
            (&[("backpressure_cpu", "50")], "needs `backpressure`"),
            (&[("committers", "0")], "committers"),
            (&[("value_bytes_max", "0")], "value_bytes_max"),
            (&[("value_bytes_max", "16_777_217")], "use at most 16777216"),
        ] {
            let failure = read(change).err().unwrap();
            assert!(failure.message.contains(expect), "{expect}: {failure}");
        }
    }
}
