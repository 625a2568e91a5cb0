//! The calibration of the memory store: writes the same rows into ordered maps under a mutex.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use windlass_kernel::{Event, EventId, Run, RunKey, Step, StepKey};

use super::{Phase, RunRows};

/// The maps of runs, steps and events.
#[derive(Default)]
pub(super) struct Writer(Mutex<Maps>);

#[derive(Default)]
struct Maps {
    runs: BTreeMap<RunKey, Run>,
    steps: BTreeMap<(RunKey, StepKey), Step>,
    events: BTreeMap<(RunKey, u64), Event>,
    event_ids: BTreeMap<EventId, (RunKey, u64)>,
}

impl Writer {
    /// Writes phase by phase; one batch takes the lock once.
    pub(super) fn write(&mut self, rows: Vec<RunRows>, batch: usize) -> Duration {
        let started = Instant::now();
        let mut rest = rows.into_iter();
        loop {
            let mut group: Vec<_> =
                rest.by_ref().take(batch).map(|rows| (rows.run, rows.phases.into_iter())).collect();
            if group.is_empty() {
                return started.elapsed();
            }
            loop {
                let mut maps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let mut wrote = false;
                for (run, phases) in &mut group {
                    if let Some(phase) = phases.next() {
                        maps.write(run, phase);
                        wrote = true;
                    }
                }
                if !wrote {
                    break;
                }
            }
        }
    }
}

impl Maps {
    fn write(&mut self, run: &Run, phase: Phase) {
        match phase.change {
            None => drop(self.runs.insert(run.run_key, run.clone())),
            Some(change) => {
                if let Some(run) = self.runs.get_mut(&run.run_key) {
                    change.apply_to(run);
                }
            }
        }
        let event = phase.event;
        self.event_ids.insert(event.event_id, (event.run_key, event.ordinal));
        self.events.insert((event.run_key, event.ordinal), event);
        if let Some(step) = phase.step {
            self.steps.insert((step.run_key, step.step_key.clone()), step);
        }
    }
}
