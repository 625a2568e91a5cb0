//! Runs programs with a time limit and reads the figures that they print.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

/// How long a program may take to clean up.
const GRACE: Duration = Duration::from_secs(3);
/// The interval for checking whether a program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum number of log characters in an error.
const QUOTE_CHARS_MAX: usize = 200;

/// Runs a program and fails if it fails.
pub(crate) fn run_to_success(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("failed to start {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    eprintln!("{errors}");
    bail!("{name}: {}: {}", output.status, error_line(&errors))
}

/// Runs a program and returns the last JSON object that it prints. Its standard error goes to the
/// log. A program must stop its child processes when its standard input closes.
pub(crate) fn last_json(
    command: &mut Command,
    log: &Path,
    timeout: Duration,
) -> anyhow::Result<Value> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
    let mut child = command.spawn().context("failed to start the program")?;
    let mut stdout =
        child.stdout.take().ok_or_else(|| anyhow!("the program has no standard output"))?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let Some(status) = wait(&mut child, timeout)? else {
        drop(child.stdin.take());
        if wait(&mut child, GRACE)?.is_none() {
            child.kill()?;
            child.wait()?;
        }
        bail!("timed out after {} s", timeout.as_secs());
    };
    let text = reader.join().map_err(|_| anyhow!("failed to read its output"))??;
    if !status.success() {
        bail!("{status}: {}", error_line(&fs::read_to_string(log).unwrap_or_default()));
    }
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("the output contains no figures: {line}"))
}

fn wait(child: &mut Child, timeout: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > timeout {
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Reads one figure.
pub(crate) fn number(figures: &Value, name: &str) -> anyhow::Result<f64> {
    let number = figures[name].as_f64().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| anyhow!("the figure {name} is missing: {figures}"))
}

/// The log line that most likely contains the error.
fn error_line(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let names_error = |line: &&&str| line.to_lowercase().contains("error");
    let line = lines.iter().find(names_error).or(lines.last()).copied().unwrap_or("empty log");
    line.chars().take(QUOTE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: Duration) -> anyhow::Result<Value> {
        let log = std::env::temp_dir().join(format!(
            "peers-{}-{:?}.log",
            std::process::id(),
            thread::current().id()
        ));
        let result = last_json(Command::new("sh").args(["-c", script]), &log, timeout);
        fs::remove_file(log)?;
        result
    }

    #[test]
    fn the_last_json_object_is_returned() {
        let answer = shell("echo begun; echo '{\"a\": 2}'; echo bye", GRACE).unwrap();
        assert_eq!(number(&answer, "a").unwrap(), 2.0);
        assert!(number(&answer, "b").is_err());
    }

    #[test]
    fn a_failure_includes_the_error_line() {
        let error = shell("echo begun; echo 'Error: no disk' >&2; echo bye >&2; exit 3", GRACE);
        assert!(error.unwrap_err().to_string().contains("Error: no disk"));
    }

    #[test]
    fn a_timeout_closes_the_standard_input() {
        let started = Instant::now();
        let error = shell("cat; exit 0", Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("timed out after"));
        assert!(started.elapsed() < GRACE);
    }
}
