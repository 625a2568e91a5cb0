//! A progress line on standard error, if that is a terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::sanitize;

/// A spinner, or nothing if standard error is not a terminal.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    pub(crate) fn new(text: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        bar.set_message(one_line(text));
        Self(Some(bar))
    }

    pub(crate) fn set_message(&self, text: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(one_line(text));
        }
    }

    /// Hides the progress line while `write` prints.
    pub(crate) fn suspend(&self, write: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn one_line(text: &str) -> String {
    sanitize(text).replace(['\n', '\t'], " ")
}
