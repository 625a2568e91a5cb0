//! Runs other programs, and stops them if this process is interrupted.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt::{Interrupt, Interrupted};

const POLL: Duration = Duration::from_millis(10);
/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Runs a program in its own process group, so that all its child processes can be stopped with it.
pub(crate) fn run(command: &mut Command, interrupt: &Interrupt) -> Result<ExitStatus> {
    let mut child = spawn(command.process_group(0))?;
    let group = format!("-{}", child.id());
    wait(&mut child, &group, || interrupt.requested())
}

/// Runs a program that uses the terminal. It stays in our process group and receives the signals of
/// the keyboard itself (Ctrl-C cancels a query in psql), so this process ignores them.
pub(crate) fn run_in_terminal(command: &mut Command, interrupt: &Interrupt) -> Result<ExitStatus> {
    let mut child = spawn(command)?;
    let process = child.id().to_string();
    wait(&mut child, &process, || interrupt.terminated())
}

/// Runs a short program that does not receive the signals of the keyboard, and returns its output.
/// An error contains the output too.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .process_group(0)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start `{}`", display_command(command)))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}):\n{stdout}{stderr}", display_command(command), output.status);
    }
    Ok(stdout)
}

/// Sends a signal to a process, or to a process group if the id starts with `-`.
pub(crate) fn signal(name: &str, id: &str) -> Result<()> {
    // Uses `kill` of the shell, because a system call would need unsafe code.
    let script = "kill -s \"$0\" -- \"$1\"";
    capture(Command::new("sh").args(["-c", script, name, id])).map(drop)
}

/// Converts the exit status of a program to an exit code: its code, or 128 + signal like shells.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().with_context(|| format!("could not start `{}`", display_command(command)))
}

/// Formats the program and its arguments. `Debug` would print the whole environment.
fn display_command(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn wait(child: &mut Child, id: &str, stop: impl Fn() -> bool) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop() {
            end(child, id)?;
            return Err(Interrupted.into());
        }
        thread::sleep(POLL);
    }
}

fn end(child: &mut Child, id: &str) -> Result<()> {
    // Both signals may arrive after the program has ended.
    signal("TERM", id).ok();
    let asked = Instant::now();
    while child.try_wait()?.is_none() && asked.elapsed() < GRACE {
        thread::sleep(POLL);
    }
    signal("KILL", id).ok();
    child.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_runs_to_its_end() {
        let status = run(&mut sh("exit 3"), &Interrupt::default()).unwrap();
        assert_eq!(status.code(), Some(3));
    }

    /// The pipe ends when no process can write into it any more.
    #[test]
    fn an_interrupt_ends_a_program_and_what_it_started() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut lines = BufReader::new(reader).lines();
        let interrupt = Interrupt::default();
        let mut command = sh("(sleep 5; echo survived) & echo started; wait");
        command.stdout(writer);
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(lines.next().unwrap().unwrap(), "started");
                interrupt.raise();
            });
            run(&mut command, &interrupt).unwrap_err()
        });
        assert!(error.is::<Interrupted>(), "{error:#}");
        drop(command);
        assert!(lines.next().is_none());
    }

    #[test]
    fn a_failure_shows_what_was_printed() {
        let error = capture(&mut sh("echo out; echo err >&2; exit 1")).unwrap_err().to_string();
        assert!(error.contains("out") && error.contains("err"), "{error}");
    }

    #[test]
    fn a_program_is_shown_as_it_is_typed() {
        let mut command = Command::new("cargo");
        command.args(["test", "-p", "xtask"]).env("SECRET", "1").env_remove("HOME");
        assert_eq!(display_command(&command), "cargo test -p xtask");
    }
}
