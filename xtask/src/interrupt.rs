//! Handles signals as flags that are checked between steps, so that every exit cleans up.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that this process has received.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    keyboard: Arc<AtomicBool>,
    terminate: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs handlers for Ctrl-C, SIGTERM and SIGHUP, whose default ends the process without
    /// cleanup.
    pub(crate) fn listen() -> Result<Self> {
        let interrupt = Self::default();
        for (signal, flag) in [
            (SIGINT, &interrupt.keyboard),
            (SIGTERM, &interrupt.terminate),
            (SIGHUP, &interrupt.terminate),
        ] {
            signal_hook::flag::register(signal, Arc::clone(flag))
                .context("could not listen for signals")?;
        }
        Ok(interrupt)
    }

    /// Whether any signal requests the end of the process.
    pub(crate) fn requested(&self) -> bool {
        self.keyboard.load(Ordering::Relaxed) || self.terminated()
    }

    /// Whether a signal other than Ctrl-C requests the end of the process.
    pub(crate) fn terminated(&self) -> bool {
        self.terminate.load(Ordering::Relaxed)
    }

    /// Fails if a signal requests the end of the process.
    pub(crate) fn check(&self) -> Result<()> {
        if self.requested() { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Simulates a SIGTERM.
    #[cfg(test)]
    pub(crate) fn raise(&self) {
        self.terminate.store(true, Ordering::Relaxed);
    }
}

/// The error of an interrupted command.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}
