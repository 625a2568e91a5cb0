//! Backpressure: when a worker takes nothing new, and when it does again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use windlass_kernel::{Error, ErrorKind, WorkerStatus};

use crate::engine::Inner;
use crate::env::{Env, Usage};

/// How often memory and processor are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// When a worker takes nothing new. Each measure that has gone over its mark must fall below the lower
/// one before the worker takes something again, so that it does not flutter.
#[derive(Clone, Debug, PartialEq)]
pub struct BackpressureConfig {
    /// The share of `turns_max` or `tasks_max` at which it stops. Default 0.9.
    pub high_watermark: f64,
    /// The share below which it goes on; of the thresholds below, too. Default 0.7.
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
    /// Refuses what cannot work, by name and value, also because the system does not say what is to be
    /// looked at.
    pub(crate) fn validate(&self, env: &dyn Env) -> Result<(), Error> {
        let refuse =
            |message: String| Err(Error::new(ErrorKind::Invalid, "INVALID_OPTION", message));
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
        let looks = self.memory_threshold.is_some() || self.cpu_threshold.is_some();
        if looks && env.usage().is_none() {
            return refuse(
                "memory_threshold or cpu_threshold is set, and this system does not tell what a process \
                 uses (there is no /proc); leave both out"
                    .into(),
            );
        }
        Ok(())
    }
}

/// What a worker looks at, as shares of what it may use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measures {
    pub(crate) turns: f64,
    pub(crate) tasks: f64,
    /// Of the threshold.
    pub(crate) memory: f64,
    /// Of the threshold.
    pub(crate) cpu: f64,
}

/// What keeps a worker from taking something new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pressed {
    turns: bool,
    tasks: bool,
    memory: bool,
    cpu: bool,
}

/// What a worker takes no more of for now.
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

    // Memory and processor are everybody's; turns and tasks have room of their own.
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

/// Where a worker stands.
#[derive(Default)]
pub(crate) struct Pressure {
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
    // What has been used since the last look, as shares of the thresholds.
    fn look(&mut self, config: &BackpressureConfig, at: Duration, usage: Usage) {
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

impl Inner {
    /// What this worker takes no more of: by what it holds now and by the last look at what it uses.
    pub(crate) fn pressed(&self) -> Holds {
        let Some(config) = self.options.backpressure.as_ref() else { return Holds::default() };
        let (turns_held, tasks_held) = (self.held_now().0, self.tasks.taken());
        let (before, now) = {
            let mut state = self.pressure.state.lock();
            let share = |held: usize, max: usize| held as f64 / max.max(1) as f64;
            let measures = Measures {
                turns: share(turns_held, self.options.turns_max),
                tasks: share(tasks_held, self.options.tasks_max),
                memory: state.memory,
                cpu: state.cpu,
            };
            let before = state.pressed;
            state.pressed = state.pressed.next(config, &measures);
            (before, state.pressed)
        };
        if before.reason() != now.reason() {
            tracing::info!(reason = now.reason().unwrap_or("none"), "backpressure");
            self.pressure.changed.notify_one();
        }
        let (before, now) = (before.holds(), now.holds());
        if (before.turns && !now.turns) || (before.tasks && !now.tasks) {
            self.signals.everything();
        }
        now
    }

    /// What was last decided.
    pub(crate) fn pressure_note(&self) -> Option<&'static str> {
        self.pressure.state.lock().pressed.reason()
    }

    /// How many of so many may be held before it stops.
    pub(crate) fn up_to_watermark(&self, max: usize) -> usize {
        let Some(config) = &self.options.backpressure else { return max };
        ((max as f64 * config.high_watermark).ceil() as usize).min(max)
    }
}

/// Looks at memory and processor until the engine stops.
pub(crate) async fn serve(inner: Arc<Inner>) {
    let Some(config) = inner.options.backpressure.clone() else { return };
    let mut said = None;
    while !inner.is_stopped() {
        if let Some(usage) = inner.env.usage() {
            inner.pressure.state.lock().look(&config, inner.env.elapsed(), usage);
        }
        inner.pressed();
        let reason = inner.pressure_note();
        if said != reason && !inner.is_draining() {
            // Others learn of it now, and not when the lease is renewed.
            match inner.store.renew(inner.worker_info(WorkerStatus::Active)).await {
                Ok(_) => said = reason,
                Err(error) => tracing::debug!(%error, "where this worker stands was not written"),
            }
        }
        let slept = inner.env.sleep(LOOK_EVERY);
        let rung = async {
            let changed = std::pin::pin!(inner.pressure.changed.notified());
            futures::future::select(changed, std::pin::pin!(inner.stopped())).await;
        };
        futures::future::select(slept, std::pin::pin!(rung)).await;
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
    fn a_measure_stops_at_the_upper_mark_and_goes_on_below_the_lower() {
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
    fn thresholds_have_the_same_play_and_are_looked_at_only_if_set() {
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
    fn one_measure_does_not_let_go_what_another_holds() {
        let both = Measures { tasks: 1.0, cpu: 2.0, ..Measures::default() };
        let pressed = Pressed::default().next(&config(), &both);
        assert_eq!(pressed.reason(), Some("backpressure: processor"));
        let pressed = pressed.next(&config(), &Measures { tasks: 0.8, ..Measures::default() });
        assert_eq!(pressed.reason(), Some("backpressure: tasks"));
    }

    #[test]
    fn turns_and_tasks_do_not_hold_each_other_up() {
        let holds = |measures| Pressed::default().next(&config(), &measures).holds();
        let (turns, tasks) = (true, true);
        let none = Holds::default();
        assert_eq!(holds(Measures { turns: 1.0, ..Measures::default() }), Holds { turns, ..none });
        assert_eq!(holds(Measures { tasks: 1.0, ..Measures::default() }), Holds { tasks, ..none });
        assert_eq!(holds(Measures { memory: 1.0, ..Measures::default() }), Holds { turns, tasks });
        assert_eq!(holds(Measures { cpu: 1.0, ..Measures::default() }), Holds { turns, tasks });
    }

    #[test]
    fn the_processor_is_what_was_used_between_two_looks() {
        let mut state = State::default();
        let usage = |ms: u64| Usage {
            memory_bytes: 500,
            cpu_time: Duration::from_millis(ms),
            processors: 2,
        };
        state.look(&config(), Duration::from_secs(1), usage(700));
        assert_eq!((state.memory, state.cpu), (0.5, 0.0), "one look tells nothing");
        state.look(&config(), Duration::from_secs(2), usage(1_700));
        assert!((state.cpu - 1.0).abs() < 1e-9, "one of two processors is 50 %: {}", state.cpu);
        state.look(&config(), Duration::from_secs(3), usage(1_700));
        assert!(state.cpu.abs() < 1e-9);
    }
}
