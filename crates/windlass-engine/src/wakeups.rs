//! Wake-ups of the store. They are hints: the engine finds everything without them, only later.

use std::sync::Arc;

use tokio::sync::Notify;
use windlass_kernel::Wakeup;

use crate::core::Core;
use crate::local_runs::LocalRuns;
use crate::rates::Rates;
use crate::registry::Registry;
use crate::shutdown::Shutdown;
use crate::signals::Signals;
use crate::tasks::{Tasks, internal_queue};

/// Passes wake-ups to the components that they concern.
pub(crate) struct WakeupHandler {
    pub(crate) core: Arc<Core>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) runs: Arc<LocalRuns>,
    pub(crate) rates: Arc<Rates>,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) missed: Arc<Notify>,
}

impl WakeupHandler {
    pub(crate) fn handle(&self, wakeup: &Wakeup) {
        match wakeup {
            Wakeup::Turn(route) => {
                if self.registry.serves(route.name.as_str()) {
                    self.signals.count_turn_wakeup();
                    self.signals.turns();
                }
            }
            Wakeup::Task(route) if route.queue == internal_queue() => self.signals.internal_tasks(),
            Wakeup::Task(route) => {
                if self.tasks.serves(route) {
                    self.signals.tasks();
                }
            }
            Wakeup::Due(at) => self.signals.due(*at),
            Wakeup::Control(run_key) => self.runs.notify(*run_key),
            Wakeup::Drain(worker) if *worker == self.core.worker => self.shutdown.drain(),
            Wakeup::Drain(_) => {}
            Wakeup::Missed => {
                self.rates.clear_cache();
                self.signals.count_turn_wakeup();
                self.signals.everything();
                // A claim does not find control requests to runs that are held here.
                self.missed.notify_one();
            }
        }
    }
}
