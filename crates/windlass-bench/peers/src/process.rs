//! Runs programs: to their end, or until their time is up, for the figures that they print.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

/// How long a program may take to clean up after itself.
const GRACE: Duration = Duration::from_secs(3);
/// How often we look whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);
/// The most characters of a log that an error quotes.
const QUOTE_CHARS_MAX: usize = 200;

/// Runs a program that must succeed.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("{name} does not start"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    eprintln!("{errors}");
    bail!("{name}: {}: {}", output.status, quote(&errors))
}

/// The JSON object that a program prints last. What it says on its standard error goes
/// into the log. When its standard input ends, it is to end what it has started.
pub(crate) fn last_json(
    command: &mut Command,
    log: &Path,
    timeout: Duration,
) -> anyhow::Result<Value> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
    let mut child = command.spawn().context("it does not start")?;
    let mut stdout = child.stdout.take().ok_or_else(|| anyhow!("it has no output"))?;
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
        bail!("not done after {} s", timeout.as_secs());
    };
    let text = reader.join().map_err(|_| anyhow!("its output is not readable"))??;
    if !status.success() {
        bail!("{status}: {}", quote(&fs::read_to_string(log).unwrap_or_default()));
    }
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("it prints no figures: {line}"))
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
        thread::sleep(LOOK);
    }
}

/// One figure of a program's answer.
pub(crate) fn number(figures: &Value, name: &str) -> anyhow::Result<f64> {
    let number = figures[name].as_f64().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| anyhow!("it says no {name}: {figures}"))
}

/// The line of a log that is most likely to say what went wrong.
fn quote(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let names_error = |line: &&&str| line.to_lowercase().contains("error");
    let line = lines.iter().find(names_error).or(lines.last()).copied().unwrap_or("no word");
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
    fn the_last_object_is_the_answer() {
        let answer = shell("echo begun; echo '{\"a\": 2}'; echo bye", GRACE).unwrap();
        assert_eq!(number(&answer, "a").unwrap(), 2.0);
        assert!(number(&answer, "b").is_err());
    }

    #[test]
    fn a_failure_says_why() {
        let error = shell("echo begun; echo 'Error: no disk' >&2; echo bye >&2; exit 3", GRACE);
        assert!(error.unwrap_err().to_string().contains("Error: no disk"));
    }

    #[test]
    fn who_takes_too_long_is_told_through_its_input() {
        let started = Instant::now();
        let error = shell("cat; exit 0", Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("not done after"));
        assert!(started.elapsed() < GRACE);
    }
}
