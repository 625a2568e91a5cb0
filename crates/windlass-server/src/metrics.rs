//! Counters and times of the server, and the engine's own, as Prometheus reads them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use parking_lot::Mutex;
use prometheus::{Registry, TextEncoder};
use windlass::kernel::{Health, QueueHealth};
use windlass::{Error, ErrorKind};
use windlass_engine::Engine;

use crate::error::ApiError;
use crate::telemetry;

/// Seconds: from what a read in memory takes to what a long poll may.
const BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0];

const FRESH_FOR: Duration = Duration::from_secs(15);

pub(crate) struct Metrics {
    engine: Engine,
    registry: Registry,
    // The instruments live as long as their provider.
    _provider: SdkMeterProvider,
    requests: Counter<u64>,
    times: Histogram<f64>,
    health: Arc<Mutex<Option<Health>>>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, "INTERNAL", format!("the metrics cannot be set up: {error}"))
}

impl Metrics {
    pub(crate) fn new(engine: &Engine) -> Result<Self, Error> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()
            .map_err(failed)?;
        let mut provider = SdkMeterProvider::builder().with_reader(exporter);
        let health = Arc::new(Mutex::new(None));
        if let Some(reader) = telemetry::metrics_reader()? {
            provider = provider.with_reader(reader).with_resource(telemetry::resource());
            tokio::spawn(keep_fresh(engine.clone(), Arc::downgrade(&health)));
        }
        let provider = provider.build();
        let meter = provider.meter("windlass");
        observe_engine(&meter, engine);
        observe_store(&meter, &health);
        Ok(Self {
            engine: engine.clone(),
            registry,
            requests: meter.u64_counter("windlass.http.requests").build(),
            times: meter
                .f64_histogram("windlass.http.duration")
                .with_unit("s")
                .with_boundaries(BUCKETS.to_vec())
                .build(),
            _provider: provider,
            health,
        })
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, method: &Method, path: &str, status: StatusCode, took: Duration) {
        // Only templates of paths are told, so the number of series has a bound.
        let method = match *method {
            Method::GET | Method::HEAD => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let route = KeyValue::new("route", path.to_owned());
        let method = KeyValue::new("method", method);
        self.times.record(took.as_secs_f64(), &[route.clone(), method.clone()]);
        let status = KeyValue::new("status", i64::from(status.as_u16()));
        self.requests.add(1, &[route, method, status]);
    }

    /// All of it, as Prometheus reads it.
    pub(crate) async fn text(&self) -> Result<String, ApiError> {
        *self.health.lock() = Some(self.engine.store().health().await?);
        let families = self.registry.gather();
        TextEncoder::new().encode_to_string(&families).map_err(|error| failed(error).into())
    }
}

/// Nobody asks before metrics are sent on, so what they tell of the store is read now and then.
async fn keep_fresh(engine: Engine, health: Weak<Mutex<Option<Health>>>) {
    loop {
        let read = engine.store().health().await;
        let Some(health) = health.upgrade() else { return };
        if let Ok(read) = read {
            *health.lock() = Some(read);
        }
        drop(health);
        tokio::time::sleep(FRESH_FOR).await;
    }
}

fn observe_engine(meter: &Meter, engine: &Engine) {
    for (at, (name, _)) in engine.metrics().all().into_iter().enumerate() {
        let engine = engine.clone();
        let counter = meter.u64_observable_counter(name).with_callback(move |observer| {
            if let Some((_, count)) = engine.metrics().all().get(at) {
                observer.observe(*count, &[]);
            }
        });
        let _ = counter.build();
    }
    let of_load = engine.clone();
    let held =
        meter.u64_observable_gauge("windlass.turns.held_here").with_callback(move |observer| {
            observer.observe(of_load.load().0 as u64, &[]);
        });
    let _ = held.build();
    let of_load = engine.clone();
    let sticky =
        meter.u64_observable_gauge("windlass.runs.in_memory").with_callback(move |observer| {
            observer.observe(of_load.load().1 as u64, &[]);
        });
    let _ = sticky.build();
}

/// A value and its labels.
type Point = (u64, Vec<KeyValue>);

fn observe_store(meter: &Meter, health: &Arc<Mutex<Option<Health>>>) {
    let gauge = |name: &'static str, read: fn(&Health) -> Vec<Point>| {
        let health = Arc::clone(health);
        let gauge = meter.u64_observable_gauge(name).with_callback(move |observer| {
            for (value, labels) in health.lock().as_ref().map(read).unwrap_or_default() {
                observer.observe(value, &labels);
            }
        });
        let _ = gauge.build();
    };
    gauge("windlass.runs", |health| {
        let row = |row: &windlass::kernel::RunCount| {
            let labels = vec![
                KeyValue::new("namespace", row.namespace.to_string()),
                KeyValue::new("workflow", row.workflow.to_string()),
                KeyValue::new("status", row.status.as_str()),
            ];
            (row.count, labels)
        };
        health.runs.iter().map(row).collect()
    });
    gauge("windlass.queue", |health| {
        let of = |what: &'static str, queue: &QueueHealth| {
            [("ready", queue.ready), ("scheduled", queue.scheduled), ("held", queue.held)].map(
                |(state, count)| {
                    let labels = vec![KeyValue::new("of", what), KeyValue::new("state", state)];
                    (count.count, labels)
                },
            )
        };
        [of("turns", &health.turns), of("tasks", &health.tasks)].concat()
    });
    gauge("windlass.queue.ready_age_ms", |health| {
        let of = |what: &'static str, queue: &QueueHealth| {
            let age = queue.ready_oldest.map(|since| health.now.since(since).as_millis());
            let age = u64::try_from(age.unwrap_or_default()).unwrap_or(u64::MAX);
            (age, vec![KeyValue::new("of", what)])
        };
        vec![of("turns", &health.turns), of("tasks", &health.tasks)]
    });
    gauge("windlass.dead_letters", |health| vec![(health.dead_letters.count, Vec::new())]);
    gauge("windlass.workers.live", |health| vec![(health.workers_live, Vec::new())]);
}
