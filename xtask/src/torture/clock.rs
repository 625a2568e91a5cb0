//! The system clock is set by an hour, forwards and backwards, while processes run and between two
//! processes. libfaketime sets it; the monotonic clock stays real.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting, Unavailable};
use crate::{packages, process};

const PAUSE_MIN: Duration = Duration::from_millis(300);
const PAUSE_MAX: Duration = Duration::from_millis(2_500);
/// The clocks that a process may have, in seconds from the real one.
const CLOCKS: [i64; 5] = [-3_600, -3_600, 0, 3_600, 3_600];
/// Every n-th change of the clock comes with a kill, so that the next process begins with the new one.
const KILL_EVERY: u64 = 3;
const LIBRARY: &str = "libfaketimeMT.so.1";
const PLACES: &[&str] = &["/usr/lib", "/usr/lib64", "/usr/local/lib"];
const HOW: &str = "Debian, Ubuntu: apt-get install libfaketime.";

/// One server on SQLite.
pub(crate) fn sqlite(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let library = find_library(torture)?;
    let mut phase = Phase::new(setting, "clock-sqlite")?;
    phase.add_server()?;
    run(phase, setting, &library)
}

/// Two servers and two workers on one PostgreSQL, each with a clock of its own. The clock of
/// PostgreSQL stays real.
pub(crate) fn postgres(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let library = find_library(torture)?;
    let mut phase = Phase::new(setting, "clock-postgres")?;
    phase.store = torture.database("clock_postgres")?;
    for _ in 0..2 {
        phase.add_server()?;
    }
    for _ in 0..2 {
        phase.add_worker()?;
    }
    run(phase, setting, &library)
}

fn run(mut phase: Phase<'_>, setting: &Setting<'_>, library: &Path) -> Result<Outcomes> {
    for at in 0..phase.servers.len() {
        let clock = clock_file(&phase, at);
        set(&clock, 0)?;
        phase.servers[at].variables = variables(library, &clock);
        phase.servers[at].start(phase.interrupt)?;
        if !has_library(phase.servers[at].pid()) {
            return Err(Unavailable(format!("{LIBRARY} is not loaded by the server")).into());
        }
    }
    phase.start_clients(setting.lasts);
    while phase.pause(PAUSE_MIN, PAUSE_MAX)? {
        change(&mut phase)?;
    }
    phase.finish()
}

/// Sets the clock of one process, or of the process that follows it.
fn change(phase: &mut Phase<'_>) -> Result<()> {
    let at = phase.random_server();
    let seconds = phase.random.pick(&CLOCKS).copied().unwrap_or_default();
    let process = phase.servers[at].process();
    phase.fault(Entry::Fault { what: format!("the clock of {process} is {seconds:+} s") });
    let is_restarted = phase.random.below(KILL_EVERY) == 0;
    if is_restarted {
        phase.servers[at].kill()?;
        phase.log().add(Entry::Halted { process });
    }
    set(&clock_file(phase, at), seconds)?;
    if is_restarted {
        phase.servers[at].start(phase.interrupt)?;
    }
    Ok(())
}

fn clock_file(phase: &Phase<'_>, at: usize) -> PathBuf {
    phase.directory.join(format!("{}.clock", phase.servers[at].name))
}

/// Replaces the file as a whole: the library reads it at every call.
fn set(clock: &Path, seconds: i64) -> Result<()> {
    let next = clock.with_extension("next");
    fs::write(&next, format!("{seconds:+}s\n"))?;
    fs::rename(&next, clock).context("could not set a clock")
}

fn variables(library: &Path, clock: &Path) -> Vec<(String, String)> {
    let variables = [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", clock.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    variables.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn has_library(pid: Option<u32>) -> bool {
    let maps = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/maps")).ok());
    maps.is_some_and(|maps| maps.contains(LIBRARY))
}

/// Finds libfaketime, and installs it if this is root on Debian.
fn find_library(torture: &Torture<'_>) -> Result<PathBuf> {
    let find = || PLACES.iter().find_map(|place| search(Path::new(place), 2));
    if find().is_none() {
        packages::install("libfaketime", HOW, torture.interrupt)
            .context("could not install libfaketime")?;
    }
    let library = find().ok_or_else(|| {
        Unavailable(format!("setting the clock needs {LIBRARY}, and none was found. {HOW}"))
    })?;
    match works(&library) {
        true => Ok(library),
        false => Err(Unavailable(format!("{} does not set the clock", library.display())).into()),
    }
}

/// Finds the library in a directory or in one below it.
fn search(directory: &Path, depth: u32) -> Option<PathBuf> {
    let file = directory.join(LIBRARY);
    if file.is_file() {
        return Some(file);
    }
    if depth == 0 {
        return None;
    }
    let entries = fs::read_dir(directory).ok()?.flatten();
    let directories = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    directories.filter_map(|path| search(&path, depth - 1)).next()
}

/// Whether `date` shows another hour with the library.
fn works(library: &Path) -> bool {
    let seconds = |command: &mut Command| {
        let printed = process::capture(command.arg("+%s")).ok()?;
        printed.trim().parse::<i64>().ok()
    };
    let real = seconds(&mut Command::new("date"));
    let mut faked = Command::new("date");
    faked.env("LD_PRELOAD", library).env("FAKETIME", "+3600s");
    let (Some(real), Some(faked)) = (real, seconds(&mut faked)) else { return false };
    (3_500..3_700).contains(&(faked - real))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_two_directories_deep() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("x86_64-linux-gnu").join("faketime");
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(search(root.path(), 2), None);
        fs::write(deep.join(LIBRARY), "").unwrap();
        assert_eq!(search(root.path(), 2), Some(deep.join(LIBRARY)));
        assert_eq!(search(root.path(), 1), None);
    }

    #[test]
    fn a_clock_file_has_a_sign() {
        let root = tempfile::tempdir().unwrap();
        let clock = root.path().join("a.clock");
        for (seconds, expect) in [(3_600, "+3600s\n"), (-3_600, "-3600s\n"), (0, "+0s\n")] {
            set(&clock, seconds).unwrap();
            assert_eq!(fs::read_to_string(&clock).unwrap(), expect);
        }
    }
}
