//! Backpressure: when a worker stops taking new work, and when it starts again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use windlass_kernel::{Error, ErrorCode, ErrorKind, WorkerStatus};

use crate::env::{Env, Usage};
use crate::workers::WorkerRow;

/// How often memory and processor are sampled.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// When a worker stops taking new work. A measure that has reached its high mark must fall below the low
/// mark before the worker takes work again, so that it does not switch back and forth.
#[derive(Clone, Debug, PartialEq)]
pub struct BackpressureConfig {
    /// The share of `turns_max` or `tasks_max` at which it stops. Default 0.9.
    pub high_watermark: f64,
    /// The share below which it starts again; it also applies to the thresholds. Default 0.7.
    pub low_watermark: f64,
    /// The bytes of resident memory at which it stops. Default none.
    pub memory_threshold: Option<u64>,
    /// The percentage of all processors that this process uses at which it stops. Default none.
    pub cpu_threshold: Option<f64>,
}

impl Default for BackpressureConfig {
    fn default() -> Self {
        Self {
            high_watermark: 0.9,
            low_watermark: 0.7,
            memory_threshold: None,
            cpu_threshold: None,
        }
    }
}

impl BackpressureConfig {
    /// Checks every option. A threshold is refused if the operating system does not report usage.
    pub(crate) fn validate(&self, env: &dyn Env) -> Result<(), Error> {
        let refuse = |message: String| {
            Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message))
        };
        let (low, high) = (self.low_watermark, self.high_watermark);
        if !(low > 0.0 && low <= high && high <= 1.0) {
            return refuse(format!(
                "backpressure has low_watermark {low} and high_watermark {high}; use 0 < low <= high <= 1"
            ));
        }
        if self.memory_threshold == Some(0) {
            return refuse("memory_threshold of backpressure is 0; use 1 or more bytes".into());
        }
        if let Some(cpu) = self.cpu_threshold.filter(|cpu| !(*cpu > 0.0 && *cpu <= 100.0)) {
            return refuse(format!(
                "cpu_threshold of backpressure is {cpu}; use more than 0 to 100"
            ));
        }
        let samples = self.memory_threshold.is_some() || self.cpu_threshold.is_some();
        if samples && env.usage().is_none() {
            return refuse(
                "memory_threshold or cpu_threshold is set, but this system does not report the usage of a \
                 process (there is no /proc); leave both out"
                    .into(),
            );
        }
        Ok(())
    }
}

/// The measures of a worker, as shares of its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measures {
    pub(crate) turns: f64,
    pub(crate) tasks: f64,
    /// Of the threshold.
    pub(crate) memory: f64,
    /// Of the threshold.
    pub(crate) cpu: f64,
}

/// The measures that are above their marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pressed {
    turns: bool,
    tasks: bool,
    memory: bool,
    cpu: bool,
}

/// The kinds of work that a worker does not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) turns: bool,
    pub(crate) tasks: bool,
}

impl Pressed {
    fn next(self, config: &BackpressureConfig, now: &Measures) -> Self {
        let (high, low) = (config.high_watermark, config.low_watermark);
        let over = |was: bool, value: f64, high: f64| value >= if was { low } else { high };
        Self {
            turns: over(self.turns, now.turns, high),
            tasks: over(self.tasks, now.tasks, high),
            memory: config.memory_threshold.is_some() && over(self.memory, now.memory, 1.0),
            cpu: config.cpu_threshold.is_some() && over(self.cpu, now.cpu, 1.0),
        }
    }

    // Turns and tasks share memory and processor, but each has a limit of its own.
    fn holds(self) -> Holds {
        let both = self.memory || self.cpu;
        Holds { turns: both || self.turns, tasks: both || self.tasks }
    }

    fn reason(self) -> Option<&'static str> {
        match self {
            Self { memory: true, .. } => Some("backpressure: memory"),
            Self { cpu: true, .. } => Some("backpressure: processor"),
            Self { tasks: true, .. } => Some("backpressure: tasks"),
            Self { turns: true, .. } => Some("backpressure: turns"),
            _ => None,
        }
    }
}

/// Whether a worker is under pressure. It is updated by what the worker holds and by samples of what
/// the process uses.
pub(crate) struct Pressure {
    config: Option<BackpressureConfig>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    pressed: Pressed,
    memory: f64,
    cpu: f64,
    last: Option<(Duration, Usage)>,
}

impl State {
    // Usage since the last sample, as shares of the thresholds.
    fn sample(&mut self, config: &BackpressureConfig, at: Duration, usage: Usage) {
        if let Some(threshold) = config.memory_threshold {
            self.memory = usage.memory_bytes as f64 / threshold as f64;
        }
        if let (Some(threshold), Some((before, last))) = (config.cpu_threshold, self.last) {
            let span = at.saturating_sub(before).as_secs_f64() * f64::from(usage.processors.max(1));
            let used = usage.cpu_time.saturating_sub(last.cpu_time).as_secs_f64();
            if span > 0.0 {
                self.cpu = 100.0 * used / span / threshold;
            }
        }
        self.last = Some((at, usage));
    }
}

impl Pressure {
    pub(crate) fn new(config: Option<BackpressureConfig>) -> Self {
        Self { config, state: Mutex::default(), changed: Notify::new() }
    }

    /// Decides again, by the shares of turns and tasks that are held now. Returns which kinds of work
    /// were refused before, and which are now.
    pub(crate) fn update(&self, turns: f64, tasks: f64) -> (Holds, Holds) {
        let Some(config) = &self.config else { return (Holds::default(), Holds::default()) };
        let (before, now) = {
            let mut state = self.state.lock();
            let measures = Measures { turns, tasks, memory: state.memory, cpu: state.cpu };
            let before = state.pressed;
            state.pressed = state.pressed.next(config, &measures);
            (before, state.pressed)
        };
        if before.reason() != now.reason() {
            tracing::info!(reason = now.reason().unwrap_or("none"), "backpressure changed");
            self.changed.notify_one();
        }
        (before.holds(), now.holds())
    }

    /// Takes a sample of what the process uses.
    pub(crate) fn sample(&self, env: &dyn Env) {
        if let (Some(config), Some(usage)) = (&self.config, env.usage()) {
            self.state.lock().sample(config, env.elapsed(), usage);
        }
    }

    /// Why the worker takes no new work, by the last decision.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        self.state.lock().pressed.reason()
    }

    /// How many of `max` may be held before the worker stops to claim.
    pub(crate) fn watermark(&self, max: usize) -> usize {
        let Some(config) = &self.config else { return max };
        ((max as f64 * config.high_watermark).ceil() as usize).min(max)
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Samples memory and processor until the engine stops, and writes to the worker's row when the reason
/// for taking no new work changes.
pub(crate) async fn serve(row: Arc<WorkerRow>) {
    let (core, capacity) = (row.core(), row.capacity());
    let pressure = capacity.pressure();
    let mut written = None;
    while !core.lifecycle.is_stopped() {
        pressure.sample(&*core.env);
        capacity.pressed();
        let reason = pressure.reason();
        if written != reason && !core.lifecycle.is_draining() {
            // Other processes see it now, and not when the lease is renewed.
            match row.renew(WorkerStatus::Active).await {
                Ok(_) => written = reason,
                Err(error) => {
                    tracing::debug!(%error, "failed to write backpressure to the worker's row");
                }
            }
        }
        let slept = core.env.sleep(SAMPLE_EVERY);
        let woken = async {
            let changed = std::pin::pin!(pressure.changed());
            futures::future::select(changed, std::pin::pin!(core.lifecycle.stopped())).await;
        };
        futures::future::select(slept, std::pin::pin!(woken)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> BackpressureConfig {
        BackpressureConfig {
            memory_threshold: Some(1_000),
            cpu_threshold: Some(50.0),
            ..BackpressureConfig::default()
        }
    }

    #[test]
    fn a_measure_stops_at_the_high_mark_and_starts_below_the_low_mark() {
        let set: [fn(&mut Measures, f64); 2] = [|m, v| m.turns = v, |m, v| m.tasks = v];
        for set in set {
            let mut pressed = Pressed::default();
            let steps = [
                (0.89, false),
                (0.9, true),
                (0.75, true),
                (0.7, true),
                (0.69, false),
                (0.8, false),
            ];
            for (value, expect) in steps {
                let mut measures = Measures::default();
                set(&mut measures, value);
                pressed = pressed.next(&config(), &measures);
                assert_eq!(pressed.reason().is_some(), expect, "{value}");
            }
        }
    }

    #[test]
    fn thresholds_have_the_same_low_mark_and_apply_only_if_set() {
        let mut pressed = Pressed::default();
        for (value, expect) in [(0.99, false), (1.0, true), (0.71, true), (0.69, false)] {
            pressed = pressed.next(&config(), &Measures { memory: value, ..Measures::default() });
            assert_eq!(pressed.reason() == Some("backpressure: memory"), expect, "{value}");
        }
        let full = Measures { memory: 9.0, cpu: 9.0, ..Measures::default() };
        let unset = Pressed::default().next(&BackpressureConfig::default(), &full);
        assert_eq!(unset.reason(), None);
    }

    #[test]
    fn one_measure_does_not_end_the_pressure_of_another() {
        let both = Measures { tasks: 1.0, cpu: 2.0, ..Measures::default() };
        let pressed = Pressed::default().next(&config(), &both);
        assert_eq!(pressed.reason(), Some("backpressure: processor"));
        let pressed = pressed.next(&config(), &Measures { tasks: 0.8, ..Measures::default() });
        assert_eq!(pressed.reason(), Some("backpressure: tasks"));
    }

    #[test]
    fn turns_and_tasks_do_not_stop_each_other() {
        let holds = |measures| Pressed::default().next(&config(), &measures).holds();
        let (turns, tasks) = (true, true);
        let none = Holds::default();
        assert_eq!(holds(Measures { turns: 1.0, ..Measures::default() }), Holds { turns, ..none });
        assert_eq!(holds(Measures { tasks: 1.0, ..Measures::default() }), Holds { tasks, ..none });
        assert_eq!(holds(Measures { memory: 1.0, ..Measures::default() }), Holds { turns, tasks });
        assert_eq!(holds(Measures { cpu: 1.0, ..Measures::default() }), Holds { turns, tasks });
    }

    #[test]
    fn processor_use_is_measured_between_two_samples() {
        let mut state = State::default();
        let usage = |ms: u64| Usage {
            memory_bytes: 500,
            cpu_time: Duration::from_millis(ms),
            processors: 2,
        };
        state.sample(&config(), Duration::from_secs(1), usage(700));
        assert_eq!((state.memory, state.cpu), (0.5, 0.0), "one sample is not enough");
        state.sample(&config(), Duration::from_secs(2), usage(1_700));
        assert!((state.cpu - 1.0).abs() < 1e-9, "one of two processors is 50 %: {}", state.cpu);
        state.sample(&config(), Duration::from_secs(3), usage(1_700));
        assert!(state.cpu.abs() < 1e-9);
    }
}
