//! The engine's environment in a simulated world: virtual time, a seeded generator, tasks of a node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_engine::{Env, ThreadPool};
use windlass_kernel::BoxFuture;

use super::executor::{Handle, NodeId, locked};
use super::rng::Rng;

/// The environment of an engine on one node.
pub struct SimEnv {
    sim: Handle,
    node: NodeId,
    // This node's clock when virtual time began. Every process has another one.
    base_us: u64,
    // How fast its clock runs, in thousandths of virtual time.
    rate: AtomicU64,
    rng: Mutex<Rng>,
}

impl SimEnv {
    /// An environment whose clock runs with virtual time.
    pub fn new(sim: Handle, node: NodeId, mut rng: Rng) -> Arc<Self> {
        let base_us = rng.below(1_000_000_000);
        Arc::new(Self { sim, node, base_us, rate: AtomicU64::new(1_000), rng: Mutex::new(rng) })
    }

    /// Makes this node's clock run faster or slower than virtual time, in thousandths. This plants a
    /// bug: the engine's estimate of the store's time is wrong.
    pub fn set_rate(&self, thousandths: u64) {
        self.rate.store(thousandths, Ordering::Relaxed);
    }
}

impl Env for SimEnv {
    fn elapsed(&self) -> Duration {
        let us = self.sim.now_us().saturating_mul(self.rate.load(Ordering::Relaxed)) / 1_000;
        Duration::from_micros(self.base_us + us)
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        // Rounded up: the engine would set a timer that ends early again and again.
        let us = span.as_nanos().div_ceil(1_000);
        let us = u64::try_from(us).unwrap_or(u64::MAX).saturating_mul(1_000);
        Box::pin(self.sim.sleep_us(us.div_ceil(self.rate.load(Ordering::Relaxed).max(1))))
    }

    fn spawn(&self, _pool: ThreadPool, future: BoxFuture<'static, ()>) {
        self.sim.spawn(self.node, future);
    }

    fn random(&self) -> u64 {
        locked(&self.rng).next_u64()
    }
}
