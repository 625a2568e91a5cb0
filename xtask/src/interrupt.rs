//! Signals as flags that are looked at between two steps, so that every exit cleans up.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What has been asked of this process from outside.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    keyboard: Arc<AtomicBool>,
    terminate: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes Ctrl-C, SIGTERM and SIGHUP from their default, which would end us at once.
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

    /// Whether anybody wants us to end.
    pub(crate) fn requested(&self) -> bool {
        self.keyboard.load(Ordering::Relaxed) || self.terminated()
    }

    /// Whether somebody other than the keyboard wants us to end.
    pub(crate) fn terminated(&self) -> bool {
        self.terminate.load(Ordering::Relaxed)
    }

    /// Fails when anybody wants us to end.
    pub(crate) fn check(&self) -> Result<()> {
        if self.requested() { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// As if a SIGTERM had come.
    #[cfg(test)]
    pub(crate) fn raise(&self) {
        self.terminate.store(true, Ordering::Relaxed);
    }
}

/// The error of a command that was asked to end.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}
