//! I/O errors of fsync, injected by strace. A process cannot know what the disk holds after such an
//! error: it must end, and the next process must find everything that was acknowledged.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting, Unavailable};
use crate::{packages, process};

/// The call that fails is one of the first calls of a process, different for each process.
const CALLS_MAX: u64 = 120;
/// How long to wait for the call, and then for the end of the process.
const CALL_WAIT: Duration = Duration::from_secs(20);
const END_WAIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// A phase that has not reached a checkpoint by then never does.
const ROUNDS_MAX: usize = 200;
const HOW: &str = "Debian, Ubuntu: apt-get install strace.";

pub(crate) fn run(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    find_strace(torture)?;
    let mut phase = Phase::new(setting, "fsync-error")?;
    phase.add_server()?;
    phase.start_clients(setting.lasts);
    let trace = phase.directory.join("strace.txt");
    let mut reached = [0; 2];
    for round in 0.. {
        if phase.is_over() && reached.iter().all(|count| *count > 0) {
            break;
        }
        // A process that is killed leaves a log behind, which the next one copies into the database.
        let at = round % 2;
        reached[at] += usize::from(inject(&mut phase, &trace, at == 1)?);
        if round >= ROUNDS_MAX {
            break;
        }
    }
    let [logs, checkpoints] = reached;
    phase.notes.push(format!("failed fsyncs: {logs} of any file, {checkpoints} of a checkpoint"));
    if checkpoints == 0 {
        phase.problem("no fsync of a checkpoint has failed".into());
    }
    phase.servers[0].wrapper.clear();
    phase.finish()
}

/// Starts a process whose call number n fails, and waits until it has ended. With `of_checkpoint` it is the
/// first fsync of the database file itself, which only a checkpoint syncs. Returns whether a call failed.
fn inject(phase: &mut Phase<'_>, trace: &Path, of_checkpoint: bool) -> Result<bool> {
    fs::write(trace, "")?;
    let call = if of_checkpoint { 1 } else { 1 + phase.random.below(CALLS_MAX) };
    let file = phase.store.strip_prefix("sqlite:").filter(|_| of_checkpoint).map(str::to_owned);
    phase.servers[0].wrapper = wrapper(trace, call, file.as_deref());
    phase.servers[0].spawn()?;
    let is_injected = || fs::read_to_string(trace).is_ok_and(|text| text.contains("(INJECTED)"));
    let until = Instant::now() + CALL_WAIT;
    while !is_injected() && phase.servers[0].ended()?.is_none() && Instant::now() < until {
        phase.sleep(POLL)?;
    }
    let process = phase.servers[0].process();
    let injected = is_injected();
    if injected {
        let of = file.as_deref().unwrap_or("any file");
        let what = format!("fsync call {call} of {of} in {process} failed");
        phase.fault(Entry::Fault { what });
        let until = Instant::now() + END_WAIT;
        while phase.servers[0].ended()?.is_none() && Instant::now() < until {
            phase.sleep(POLL)?;
        }
        match phase.servers[0].ended()? {
            None => phase.problem(format!("{process} did not end after a failed fsync")),
            Some(status) if status.success() => {
                phase.problem(format!("{process} ended with success after a failed fsync"));
            }
            Some(_) => {}
        }
    }
    phase.log().add(Entry::Halted { process });
    phase.servers[0].kill()?;
    Ok(injected)
}

/// `-D` makes the server our child, and strace its grandchild: signals and exit codes are the server's.
fn wrapper(trace: &Path, call: u64, file: Option<&str>) -> Vec<String> {
    let inject = format!("inject=fsync,fdatasync:error=EIO:when={call}");
    let trace = trace.display().to_string();
    let args = ["strace", "-D", "-f", "-qq", "--seccomp-bpf", "-o", &trace];
    let only = file.into_iter().flat_map(|file| ["-P", file]);
    let args = args.into_iter().chain(only).chain(["-e", "trace=fsync,fdatasync", "-e", &inject]);
    args.map(str::to_owned).collect()
}

fn find_strace(torture: &Torture<'_>) -> Result<()> {
    let found = || {
        let mut strace = Command::new("strace");
        process::capture(strace.args(["-f", "-o", "/dev/null", "true"])).map(drop)
    };
    if found().is_ok() {
        return Ok(());
    }
    packages::install("strace", HOW, torture.interrupt).context("could not install strace")?;
    found().map_err(|error| Unavailable(format!("strace does not work: {error:#}. {HOW}")).into())
}
