//! Starts the parts of an engine and their background services.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;
use windlass_kernel::{Error, Store, WorkerKey, WorkerStatus};

use crate::changes::ChangeFeed;
use crate::clock::Clock;
use crate::core::Core;
use crate::env::{Env, new_uuid};
use crate::lifecycle::{Lifecycle, Phase};
use crate::options::Options;
use crate::parts::Parts;
use crate::signals::Signals;
use crate::wakeups::WakeupHandler;
use crate::{claim, pressure, retention};

/// Stops the engine when the last handle is dropped.
pub(crate) struct Life {
    core: Arc<Core>,
    signals: Arc<Signals>,
    _wakeups: Arc<WakeupHandler>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.core.lifecycle.advance(Phase::Stopped);
        self.signals.everything();
    }
}

/// Checks the options, registers the worker in the store and starts the services.
pub(crate) async fn start(
    store: Arc<dyn Store>,
    env: Arc<dyn Env>,
    options: Options,
) -> Result<(Arc<Parts>, Arc<Life>), Error> {
    options.validate()?;
    if let Some(limits) = store.limits() {
        options.limits.check_store(limits)?;
    }
    options.backpressure.as_ref().map_or(Ok(()), |config| config.validate(&*env))?;
    let now = store.now().await?;
    let core = Arc::new(Core {
        clock: Clock::new(Arc::clone(&env), now),
        worker: WorkerKey(new_uuid(&*env, now)),
        store,
        env,
        options,
        metrics: Arc::default(),
        changes: ChangeFeed::default(),
        lifecycle: Lifecycle::default(),
        unknown_holds: AtomicBool::new(false),
        record_removed: Notify::new(),
    });
    let missed = Arc::new(Notify::new());
    let parts = Arc::new(Parts::new(Arc::clone(&core)));
    let renewed = parts.shutdown.row.renew(WorkerStatus::Active).await?;
    core.clock.learn(renewed.now);
    let wakeups = Arc::new(parts.wakeup_handler(Arc::clone(&missed)));
    listen(&core, &wakeups);
    spawn_services(&core, &parts, missed).await;
    let signals = Arc::clone(&parts.claimer.signals);
    Ok((parts, Arc::new(Life { core, signals, _wakeups: wakeups })))
}

/// Passes the wake-ups of the store to their handler for as long as the engine lives.
fn listen(core: &Core, wakeups: &Arc<WakeupHandler>) {
    let weak = Arc::downgrade(wakeups);
    core.store.listen(Arc::new(move |wakeup| {
        let Some(wakeups) = weak.upgrade() else { return };
        // A panic must not end the thread of the store that listens.
        if catch_unwind(AssertUnwindSafe(|| wakeups.handle(&wakeup))).is_err() {
            wakeups.core.metrics.service_panics.add(1);
            tracing::error!(?wakeup, "the handler of a wake-up panicked; the next scan finds it");
        }
    }));
}

async fn spawn_services(core: &Arc<Core>, parts: &Parts, missed: Arc<Notify>) {
    if core.options.background {
        let claimer = Arc::clone(&parts.claimer);
        core.spawn_service("claimer", move || claim::serve(Arc::clone(&claimer)));
        // A store that fails here fails the claims too; the sweeper then looks for itself.
        let sweeper = Arc::clone(&parts.operations.sweeper);
        let has_work = sweeper.has_work().await.unwrap_or(true);
        let sweep = move || retention::serve(Arc::clone(&sweeper), has_work);
        core.spawn_service("sweeper", sweep);
    }
    if core.options.backpressure.is_some() {
        let row = Arc::clone(&parts.shutdown.row);
        core.spawn_service("pressure", move || pressure::serve(Arc::clone(&row)));
    }
    if core.options.shared {
        let lease = Arc::new(parts.lease(missed));
        core.spawn_service("lease", move || Arc::clone(&lease).serve());
        if core.options.background {
            let holdings = Arc::clone(&parts.claimer.holdings);
            core.spawn_service("holdings", move || Arc::clone(&holdings).serve());
        }
    }
}
