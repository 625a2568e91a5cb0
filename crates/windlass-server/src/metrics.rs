//! Metrics of the server and the engine, in the Prometheus format.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use parking_lot::Mutex;
use prometheus::{Registry, TextEncoder};
use windlass::kernel::{
    BreakerRow, BreakerStatus, Health, Query, QueueHealth, Worker, WorkerStatus,
};
use windlass::{Error, ErrorCode, ErrorKind};
use windlass_engine::telemetry::attribute;
use windlass_engine::{Engine, Measure, ModelMetric, Recorder};

use crate::error::ApiError;
use crate::store_status::StoreStatus;
use crate::telemetry;

/// Buckets in seconds, from an in-memory read to a long poll.
const BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0];

/// Buckets in seconds, from the wait of a local activity to a run of one day.
const BUCKETS_LONG: [f64; 18] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
    600.0, 3600.0, 86400.0,
];

/// The maximum number of workers and circuit breakers that are read.
const ROWS_MAX: u32 = 1_000;

const REFRESH_INTERVAL: Duration = Duration::from_secs(15);

pub(crate) struct Metrics {
    engine: Engine,
    registry: Registry,
    // Keeps the instruments alive.
    _provider: SdkMeterProvider,
    requests: Counter<u64>,
    times: Histogram<f64>,
    store_metrics: Arc<Mutex<Option<StoreMetrics>>>,
}

/// The labels of a route. They contain only path templates, so that the number of series is
/// limited. They are created once per route, because every response is counted.
#[derive(Clone, Debug)]
pub(crate) struct Labels([KeyValue; 2]);

impl Labels {
    pub(crate) fn new(method: &Method, path: &str) -> Self {
        let method = match *method {
            Method::GET | Method::HEAD => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        Self([KeyValue::new("route", Arc::<str>::from(path)), KeyValue::new("method", method)])
    }
}

/// The metrics that were last read from the store.
struct StoreMetrics {
    health: Health,
    breakers: Vec<BreakerRow>,
    under_backpressure: u64,
}

impl StoreMetrics {
    async fn read(engine: &Engine) -> Result<Self, Error> {
        let store = engine.store();
        let health = store.health().await?;
        let limit = ROWS_MAX.min(engine.options().limits.page_rows_max);
        // A draining worker accepts no work either, but not because of backpressure.
        let is_under_backpressure = |worker: &&Worker| {
            let drains = worker.drain || worker.info.status != WorkerStatus::Active;
            worker.is_live(health.now) && !drains && worker.info.note.is_some()
        };
        let (mut under_backpressure, mut after) = (0, None);
        loop {
            let workers = store.list(Query::Workers { after, limit }).await?.workers()?;
            under_backpressure += workers.iter().filter(is_under_backpressure).count() as u64;
            after = workers.last().map(|worker| worker.info.worker);
            // Rows of workers that are gone are deleted after a day, so the pages end.
            if workers.len() < limit as usize {
                break;
            }
        }
        let namespaces: BTreeSet<_> = health.runs.iter().map(|row| row.namespace.clone()).collect();
        let mut breakers = Vec::new();
        for namespace in namespaces {
            let query = Query::Breakers { namespace, after: None, limit };
            breakers.extend(store.list(query).await?.breakers()?);
        }
        breakers.truncate(ROWS_MAX as usize);
        Ok(Self { health, breakers, under_backpressure })
    }
}

/// The histograms of the engine's durations, and the metrics of models by name. The SDK limits the number of
/// attribute sets of each.
struct Times {
    engine: [Histogram<f64>; Measure::ALL.len()],
    meter: Meter,
    models: Mutex<BTreeMap<&'static str, Instrument>>,
}

#[derive(Clone)]
enum Instrument {
    Counter(Counter<f64>),
    Histogram(Histogram<f64>),
}

impl Times {
    fn new(meter: &Meter) -> Self {
        let engine = Measure::ALL.map(|measure| {
            let histogram = meter.f64_histogram(measure.name()).with_unit("s");
            histogram.with_boundaries(BUCKETS_LONG.to_vec()).build()
        });
        Self { engine, meter: meter.clone(), models: Mutex::default() }
    }

    fn instrument(&self, metric: &'static ModelMetric) -> Instrument {
        let build = || match metric.buckets {
            None => Instrument::Counter(
                self.meter.f64_counter(metric.name).with_unit(metric.unit).build(),
            ),
            Some(buckets) => {
                let histogram = self.meter.f64_histogram(metric.name).with_unit(metric.unit);
                Instrument::Histogram(histogram.with_boundaries(buckets.to_vec()).build())
            }
        };
        self.models.lock().entry(metric.name).or_insert_with(build).clone()
    }
}

impl Recorder for Times {
    fn record(&self, measure: Measure, of: &str, took: Duration) {
        let label = measure.label().map(|label| KeyValue::new(label, of.to_owned()));
        self.engine[measure as usize].record(took.as_secs_f64(), label.as_slice());
    }

    fn record_for_model(
        &self,
        metric: &'static ModelMetric,
        value: f64,
        attributes: &[(&'static str, &str)],
    ) {
        let labels: Vec<KeyValue> = attributes
            .iter()
            .map(|(name, value)| KeyValue::new(*name, (*value).to_owned()))
            .collect();
        match self.instrument(metric) {
            Instrument::Counter(counter) => counter.add(value, &labels),
            Instrument::Histogram(histogram) => histogram.record(value, &labels),
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Internal,
        ErrorCode::Internal,
        format!("failed to set up metrics: {error}"),
    )
}

impl Metrics {
    pub(crate) fn new(engine: &Engine, store_status: &StoreStatus) -> Result<Self, Error> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()
            .map_err(failed)?;
        let mut provider = SdkMeterProvider::builder().with_reader(exporter);
        let store_metrics = Arc::new(Mutex::new(None));
        if let Some(reader) = telemetry::metrics_reader()? {
            provider = provider.with_reader(reader).with_resource(telemetry::resource());
            tokio::spawn(refresh_periodically(engine.clone(), Arc::downgrade(&store_metrics)));
        }
        let provider = provider.build();
        let meter = provider.meter("windlass");
        observe_engine(&meter, engine);
        observe_store(&meter, &store_metrics);
        let status = store_status.clone();
        let writable = meter
            .u64_observable_gauge("windlass.store.writable")
            .with_callback(move |observer| observer.observe(status.is_writable().into(), &[]));
        let _ = writable.build();
        engine.metrics().set_recorder(Times::new(&meter));
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
            store_metrics,
        })
    }

    /// Counts a response.
    pub(crate) fn answered(
        &self,
        Labels([route, method]): &Labels,
        status: StatusCode,
        took: Duration,
    ) {
        self.times.record(took.as_secs_f64(), &[route.clone(), method.clone()]);
        let status = KeyValue::new("status", i64::from(status.as_u16()));
        self.requests.add(1, &[route.clone(), method.clone(), status]);
    }

    /// All metrics in the Prometheus format. Without the store, only those of this process.
    pub(crate) async fn text(&self) -> Result<String, ApiError> {
        let store_metrics = StoreMetrics::read(&self.engine).await;
        if let Err(error) = &store_metrics {
            tracing::warn!(%error, "failed to read store metrics; reporting only those of this process");
        }
        *self.store_metrics.lock() = store_metrics.ok();
        let families = self.registry.gather();
        TextEncoder::new().encode_to_string(&families).map_err(|error| failed(error).into())
    }
}

/// Reads store metrics periodically: an OTLP exporter cannot read them on demand.
async fn refresh_periodically(engine: Engine, store_metrics: Weak<Mutex<Option<StoreMetrics>>>) {
    loop {
        let read = StoreMetrics::read(&engine).await;
        let Some(store_metrics) = store_metrics.upgrade() else { return };
        *store_metrics.lock() = read.ok();
        drop(store_metrics);
        tokio::time::sleep(REFRESH_INTERVAL).await;
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
    let load_engine = engine.clone();
    let held =
        meter.u64_observable_gauge("windlass.turns.held_here").with_callback(move |observer| {
            observer.observe(load_engine.load().0 as u64, &[]);
        });
    let _ = held.build();
    let load_engine = engine.clone();
    let sticky =
        meter.u64_observable_gauge("windlass.runs.in_memory").with_callback(move |observer| {
            observer.observe(load_engine.load().1 as u64, &[]);
        });
    let _ = sticky.build();
    let store_engine = engine.clone();
    let unreadable = meter.u64_observable_gauge("windlass.store.unreadable_rows").with_callback(
        move |observer| observer.observe(store_engine.store().unreadable_rows(), &[]),
    );
    let _ = unreadable.build();
    let capacity_engine = engine.clone();
    let load = meter.f64_observable_gauge("durable.worker.load").with_callback(move |observer| {
        let (used, room) = capacity_engine.capacity_used();
        observer.observe(used as f64 / room.max(1) as f64, &[]);
    });
    let _ = load.build();
}

/// A value and its labels.
type Point = (u64, Vec<KeyValue>);

fn observe_store(meter: &Meter, store_metrics: &Arc<Mutex<Option<StoreMetrics>>>) {
    let gauge = |name: &'static str, read: fn(&StoreMetrics) -> Vec<Point>| {
        let store_metrics = Arc::clone(store_metrics);
        let gauge = meter.u64_observable_gauge(name).with_callback(move |observer| {
            for (value, labels) in store_metrics.lock().as_ref().map(read).unwrap_or_default() {
                observer.observe(value, &labels);
            }
        });
        let _ = gauge.build();
    };
    let reached = Arc::clone(store_metrics);
    let reached = meter
        .u64_observable_gauge("windlass.store.reached")
        .with_callback(move |observer| observer.observe(u64::from(reached.lock().is_some()), &[]));
    let _ = reached.build();
    gauge("windlass.runs", |StoreMetrics { health, .. }| {
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
    gauge("durable.task_queue.depth", |StoreMetrics { health, .. }| {
        let points = |what: &'static str, queue: &QueueHealth| {
            [("ready", queue.ready), ("scheduled", queue.scheduled), ("held", queue.held)].map(
                |(state, count)| {
                    let labels = vec![KeyValue::new("of", what), KeyValue::new("state", state)];
                    (count.count, labels)
                },
            )
        };
        [points("turns", &health.turns), points("tasks", &health.tasks)].concat()
    });
    gauge("durable.task_queue.ready_age_ms", |StoreMetrics { health, .. }| {
        let point = |what: &'static str, queue: &QueueHealth| {
            let age = queue.ready_oldest.map(|since| health.now.since(since).as_millis());
            let age = u64::try_from(age.unwrap_or_default()).unwrap_or(u64::MAX);
            (age, vec![KeyValue::new("of", what)])
        };
        vec![point("turns", &health.turns), point("tasks", &health.tasks)]
    });
    gauge("durable.dlq.entries", |store_metrics| {
        vec![(store_metrics.health.dead_letters.count, Vec::new())]
    });
    gauge("durable.workers.active", |store_metrics| {
        vec![(store_metrics.health.workers_live, Vec::new())]
    });
    gauge("durable.workers.under_backpressure", |metrics| {
        vec![(metrics.under_backpressure, Vec::new())]
    });
    gauge("durable.circuit_breaker.state", |store_metrics| {
        let row = |row: &BreakerRow| {
            let labels = vec![
                KeyValue::new("namespace", row.namespace.to_string()),
                KeyValue::new(attribute::BREAKER_KEY, row.key.to_string()),
            ];
            let state = match row.status {
                BreakerStatus::Closed => 0,
                BreakerStatus::HalfOpen => 1,
                BreakerStatus::Open => 2,
            };
            (state, labels)
        };
        store_metrics.breakers.iter().map(row).collect()
    });
}
