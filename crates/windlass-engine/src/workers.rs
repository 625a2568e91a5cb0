//! The worker's lease: renewed on threads of its own, and the holds of dead workers are freed.

use std::sync::Arc;
use std::time::Duration;

use futures::future::select;
use windlass_kernel::{Error, Renewed, WorkerStatus};

use crate::engine::Inner;

const REAP_MAX: u32 = 1_000;

/// The least between two looks for requests that were not told of.
const LOOK_REST: Duration = Duration::from_millis(200);

/// Renews until the engine stops.
pub(crate) async fn serve(inner: Arc<Inner>) {
    let mut reap_in = 0_u32;
    let mut renew_at = inner.env.elapsed() + inner.options.renew_every;
    while !inner.is_stopped() {
        let slept = inner.env.sleep(renew_at.saturating_sub(inner.env.elapsed()));
        let (stopped, missed) =
            (std::pin::pin!(inner.stopped()), std::pin::pin!(inner.missed.notified()));
        select(select(slept, missed), stopped).await;
        if inner.is_stopped() {
            return;
        }
        let due = inner.env.elapsed() >= renew_at;
        let renewed = match due {
            true => renew_and_reap(&inner, &mut reap_in).await,
            false => renew(&inner).await.map(|_| ()),
        };
        if let Err(error) = renewed {
            tracing::warn!(%error, "the lease was not renewed; trying again");
            inner.env.sleep(LOOK_REST).await;
        } else if due {
            renew_at = inner.env.elapsed() + inner.options.renew_every;
        } else {
            inner.env.sleep(LOOK_REST).await;
        }
    }
}

// The answer names the runs with unread requests that are held here, so this is also how they are
// found when a wake-up was missed.
async fn renew(inner: &Arc<Inner>) -> Result<Renewed, Error> {
    let status = if inner.is_draining() { WorkerStatus::Draining } else { WorkerStatus::Active };
    let mut renewed = inner.store.renew(inner.worker_info(status)).await?;
    inner.metrics.renewals.add(1);
    inner.clock.correct(renewed.now);
    if renewed.lapsed {
        tracing::warn!("the lease had run out: others may have taken what was held here");
        inner.adopt_or_release().await?;
    }
    if renewed.drain {
        inner.drain();
    }
    for run_key in std::mem::take(&mut renewed.control) {
        inner.poke(run_key);
    }
    Ok(renewed)
}

async fn renew_and_reap(inner: &Arc<Inner>, reap_in: &mut u32) -> Result<(), Error> {
    let renewed = renew(inner).await?;
    // Dead holders are looked for about twice a lease.
    if *reap_in == 0 {
        let lease = inner.options.lease.as_millis() / 2;
        *reap_in = u32::try_from(lease / inner.options.renew_every.as_millis()).unwrap_or(1).max(1);
        if renewed.may_reap {
            // A worker that died may have held ten times as much as is freed at once.
            loop {
                let reaped = inner.store.reap(inner.worker, REAP_MAX).await?;
                let (turns, tasks) = (reaped.turns.len(), reaped.tasks.len());
                if turns + tasks == 0 {
                    break;
                }
                tracing::warn!(turns, tasks, "freed what dead workers held");
                inner.signals.everything();
                *reap_in = 1;
                if turns.max(tasks) < REAP_MAX as usize {
                    break;
                }
            }
        }
    }
    *reap_in -= 1;
    Ok(())
}
