//! The components of an engine, and how they are connected.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::admission::AdmissionControl;
use crate::breakers::Breakers;
use crate::cancel::Canceller;
use crate::capacity::Capacity;
use crate::claim::{Claimer, Fairness};
use crate::commit::{CommitClient, Dispatcher, Starter};
use crate::control::RunControl;
use crate::core::Core;
use crate::dead_letters::DeadLetters;
use crate::generations::Generations;
use crate::heartbeats::Heartbeats;
use crate::keyed::KeyedEvents;
use crate::local_runs::LocalRuns;
use crate::messages::MessageSender;
use crate::pause::Pauser;
use crate::rates::Rates;
use crate::receipts::Receipts;
use crate::registry::Registry;
use crate::results::{ResultWaiter, Results};
use crate::retention::Sweeper;
use crate::schedules::ScheduleControl;
use crate::shutdown::Shutdown;
use crate::signals::Signals;
use crate::start::RunStarter;
use crate::task_stats::TaskStats;
use crate::tasks::{TaskRunner, Tasks};
use crate::templates::Templates;
use crate::terminate::Terminator;
use crate::trials::Trials;
use crate::turn_runner::TurnRunner;
use crate::wakeups::WakeupHandler;
use crate::why::Explainer;
use crate::workers::{Holdings, Lease, WorkerRow};

/// The components that a handle of the engine calls. A component holds the handles of the components
/// that it needs, and no others; see ARCHITECTURE.md.
pub(crate) struct Parts {
    pub(crate) core: Arc<Core>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) templates: Arc<Templates>,
    pub(crate) runs: Arc<LocalRuns>,
    pub(crate) waiter: Arc<ResultWaiter>,
    pub(crate) starter: Arc<RunStarter>,
    pub(crate) messages: MessageSender,
    pub(crate) control: Arc<RunControl>,
    pub(crate) claimer: Arc<Claimer>,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) operations: Operations,
}

/// The components behind the requests of operators.
pub(crate) struct Operations {
    pub(crate) explainer: Arc<Explainer>,
    pub(crate) schedules: ScheduleControl,
    pub(crate) dead_letters: DeadLetters,
    pub(crate) sweeper: Arc<Sweeper>,
}

impl Parts {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        let options = &core.options;
        let signals = Arc::new(Signals::default());
        let registry = Arc::new(Registry::new(options.models.clone()));
        let tasks = Arc::new(Tasks::new(options.tasks_max));
        let runs = Arc::new(LocalRuns::new(options.run_cache_bytes_max));
        let results = Arc::new(Results::default());
        let capacity = Arc::new(Capacity::new(
            Arc::clone(&core),
            Arc::clone(&registry),
            Arc::clone(&signals),
            Arc::clone(&tasks),
        ));
        let templates = Templates::new(Arc::clone(&core), Arc::clone(&registry));
        let dispatcher = Dispatcher::new(&runs, &signals, &results, &tasks);
        let commits = CommitClient::new(Arc::clone(&core), Arc::clone(&templates), dispatcher);
        let terminator = Arc::new(Terminator {
            core: Arc::clone(&core),
            registry: Arc::clone(&registry),
            commits: Arc::clone(&commits),
            runs: Arc::clone(&runs),
            keyed: Arc::new(KeyedEvents { core: Arc::clone(&core), commits: Arc::clone(&commits) }),
        });
        let waiter =
            Arc::new(ResultWaiter { core: Arc::clone(&core), runs: Arc::clone(&runs), results });
        let control = Arc::new(run_control(&terminator, &waiter));
        let trials = Trials::new(&core, &capacity);
        let turn_runner = Arc::new(TurnRunner {
            core: Arc::clone(&core),
            registry: Arc::clone(&registry),
            templates: Arc::clone(&templates),
            runs: Arc::clone(&runs),
            capacity: Arc::clone(&capacity),
            commits: Arc::clone(&commits),
            terminator,
            signals: Arc::clone(&signals),
            trials: Arc::clone(&trials),
        });
        let task_runner = task_runner(&turn_runner, &tasks, &control);
        let claiming = Arc::default();
        let shutdown = shutdown(&task_runner, &registry, &signals, &templates, &claiming);
        let claimer = Claimer {
            core: Arc::clone(&core),
            registry: Arc::clone(&registry),
            signals,
            capacity,
            tasks: Arc::clone(&tasks),
            turn_runner: Arc::clone(&turn_runner),
            holdings: Holdings::new(&core, &runs, tasks, &claiming),
            rates: Arc::clone(&task_runner.rates),
            task_runner,
            claiming,
            fairness: Mutex::new(Fairness::default()),
        };
        let admission = AdmissionControl::new(Arc::clone(&core), Arc::clone(&shutdown.row));
        let starter = Arc::new(RunStarter::new(turn_runner, admission));
        let messages = MessageSender {
            core: Arc::clone(&core),
            commits,
            canceller: Arc::clone(&control.canceller),
        };
        Self {
            operations: operations(&claimer, &starter, &control, &shutdown),
            core,
            registry,
            templates,
            runs,
            waiter,
            messages,
            starter,
            control,
            claimer: Arc::new(claimer),
            shutdown,
        }
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.claimer.rates
    }

    pub(crate) fn breakers(&self) -> &Breakers {
        &self.claimer.task_runner.breakers
    }

    pub(crate) fn wakeup_handler(&self, missed: Arc<Notify>) -> WakeupHandler {
        WakeupHandler {
            core: Arc::clone(&self.core),
            registry: Arc::clone(&self.registry),
            signals: Arc::clone(&self.claimer.signals),
            tasks: Arc::clone(&self.claimer.tasks),
            runs: Arc::clone(&self.runs),
            rates: Arc::clone(&self.claimer.rates),
            shutdown: Arc::clone(&self.shutdown),
            missed,
        }
    }

    pub(crate) fn lease(&self, missed: Arc<Notify>) -> Lease {
        Lease {
            core: Arc::clone(&self.core),
            row: Arc::clone(&self.shutdown.row),
            holdings: Arc::clone(&self.claimer.holdings),
            runs: Arc::clone(&self.runs),
            signals: Arc::clone(&self.claimer.signals),
            shutdown: Arc::clone(&self.shutdown),
            missed,
        }
    }
}

fn task_runner(
    turns: &Arc<TurnRunner>,
    tasks: &Arc<Tasks>,
    control: &Arc<RunControl>,
) -> Arc<TaskRunner> {
    let TurnRunner { core, capacity, commits, .. } = &**turns;
    let runner = Arc::new(TaskRunner {
        core: Arc::clone(core),
        tasks: Arc::clone(tasks),
        capacity: Arc::clone(capacity),
        commits: Arc::clone(commits),
        turns: Arc::clone(turns),
        control: Arc::clone(control),
        heartbeats: Heartbeats::new(Arc::clone(core), Arc::clone(tasks)),
        stats: TaskStats::new(Arc::clone(core)),
        rates: Rates::new(Arc::clone(core)),
        breakers: Breakers::new(Arc::clone(core)),
    });
    let starter: Weak<TaskRunner> = Arc::downgrade(&runner);
    commits.set_starter(starter as Weak<dyn Starter>);
    runner
}

fn run_control(terminator: &Arc<Terminator>, waiter: &Arc<ResultWaiter>) -> RunControl {
    let Terminator { core, registry, commits, .. } = &**terminator;
    RunControl {
        core: Arc::clone(core),
        commits: Arc::clone(commits),
        terminator: Arc::clone(terminator),
        generations: Arc::new(Generations {
            core: Arc::clone(core),
            registry: Arc::clone(registry),
            terminator: Arc::clone(terminator),
        }),
        canceller: Arc::new(Canceller {
            core: Arc::clone(core),
            registry: Arc::clone(registry),
            commits: Arc::clone(commits),
            terminator: Arc::clone(terminator),
            waiter: Arc::clone(waiter),
        }),
        pauser: Arc::new(Pauser { core: Arc::clone(core), commits: Arc::clone(commits) }),
        keyed: Arc::clone(&terminator.keyed),
        receipts: Arc::new(Receipts { core: Arc::clone(core), commits: Arc::clone(commits) }),
    }
}

fn operations(
    claimer: &Claimer,
    starter: &Arc<RunStarter>,
    control: &Arc<RunControl>,
    shutdown: &Shutdown,
) -> Operations {
    let Claimer { core, registry, rates, .. } = claimer;
    let explainer = Arc::new(Explainer {
        core: Arc::clone(core),
        registry: Arc::clone(registry),
        terminator: Arc::clone(&control.terminator),
        rates: Arc::clone(rates),
        row: Arc::clone(&shutdown.row),
    });
    let schedules = ScheduleControl {
        core: Arc::clone(core),
        starter: Arc::clone(starter),
        control: Arc::clone(control),
        explainer: Arc::clone(&explainer),
    };
    let dead_letters = DeadLetters {
        core: Arc::clone(core),
        commits: Arc::clone(&control.commits),
        generations: Arc::clone(&control.generations),
        receipts: Arc::clone(&control.receipts),
    };
    let sweeper = Sweeper::new(Arc::clone(core), Arc::clone(registry));
    Operations { explainer, schedules, dead_letters, sweeper }
}

fn shutdown(
    tasks: &TaskRunner,
    registry: &Arc<Registry>,
    signals: &Arc<Signals>,
    templates: &Arc<Templates>,
    claiming: &Arc<tokio::sync::Mutex<()>>,
) -> Arc<Shutdown> {
    let row = WorkerRow::new(
        Arc::clone(&tasks.core),
        Arc::clone(registry),
        Arc::clone(&tasks.tasks),
        Arc::clone(&tasks.capacity),
        Arc::clone(&tasks.stats),
    );
    Arc::new(Shutdown {
        core: Arc::clone(&tasks.core),
        signals: Arc::clone(signals),
        runs: Arc::clone(&tasks.turns.runs),
        capacity: Arc::clone(&tasks.capacity),
        claiming: Arc::clone(claiming),
        heartbeats: Arc::clone(&tasks.heartbeats),
        stats: Arc::clone(&tasks.stats),
        templates: Arc::clone(templates),
        trials: Arc::clone(&tasks.turns.trials),
        row,
    })
}
