//! The previous and the current build on one store: runs that one build began are continued by the
//! other, in both directions.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting, Unavailable};
use super::server::{Binary, Program};

const LIFE_MIN: Duration = Duration::from_millis(500);
const LIFE_MAX: Duration = Duration::from_millis(3_000);
/// The text of the error of a build that meets a schema of a newer one.
const NEWER: &str = "use a newer build";

/// One process on SQLite, of one build and of the other in turn.
pub(crate) fn sqlite(_: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let previous = previous(setting)?;
    let mut phase = Phase::new(setting, "builds-sqlite")?;
    phase.add_server()?.program = Program::Binary(previous.clone());
    phase.servers[0].start(phase.interrupt)?;
    phase.start_clients(setting.lasts);
    swap_until_over(&mut phase, setting, previous)?;
    phase.finish()
}

/// A server of each build on one PostgreSQL, and a third that changes its build.
pub(crate) fn postgres(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let previous = previous(setting)?;
    let mut phase = Phase::new(setting, "builds-postgres")?;
    phase.store = torture.database("builds_postgres")?;
    for _ in 0..3 {
        phase.add_server()?;
    }
    // The previous build creates the tables; the current one migrates them.
    phase.servers[0].program = Program::Binary(previous.clone());
    for server in &mut phase.servers {
        server.start(phase.interrupt)?;
    }
    phase.start_clients(setting.lasts);
    swap_until_over(&mut phase, setting, previous)?;
    phase.finish()
}

fn previous<'a>(setting: &Setting<'a>) -> Result<&'a Binary> {
    let missing = || {
        Unavailable(
            "there is no previous build; build one from an earlier commit and name it with \
             --previous FILE (docs/torture.md says how)"
                .into(),
        )
    };
    Ok(setting.previous.ok_or_else(missing)?)
}

/// Kills a random process, or lets it stop, and starts the other build in its place.
fn swap_until_over(phase: &mut Phase<'_>, setting: &Setting<'_>, previous: &Binary) -> Result<()> {
    let mut refused = false;
    let mut starts = [0_u32; 2];
    while phase.pause(LIFE_MIN, LIFE_MAX)? {
        let at = phase.random_server();
        if phase.random.below(4) == 0 {
            let process = phase.servers[at].process();
            phase.servers[at].stop()?;
            phase.fault(Entry::Halted { process });
        } else {
            phase.kill(at)?;
        }
        let is_previous = is_build(&phase.servers[at].program, previous);
        let next = match is_previous || refused {
            true => setting.binary,
            false => previous,
        };
        phase.servers[at].program = Program::Binary(next.clone());
        if let Err(error) = phase.servers[at].start(phase.interrupt) {
            // A build may refuse the schema of a newer one, if it says so.
            let log = fs::read_to_string(phase.servers[at].log_file()).unwrap_or_default();
            if is_build(&phase.servers[at].program, setting.binary) || !log.contains(NEWER) {
                return Err(error);
            }
            refused = true;
            phase.servers[at].kill()?;
            phase.servers[at].program = Program::Binary(setting.binary.clone());
            phase.servers[at].start(phase.interrupt)?;
        }
        starts[usize::from(is_build(&phase.servers[at].program, previous))] += 1;
    }
    let [current, before] = starts;
    phase
        .notes
        .push(format!("{before} starts of the previous build, {current} of the current one"));
    if refused {
        phase.notes.push("the previous build refuses the schema of the current one".into());
    }
    Ok(())
}

fn is_build(program: &Program, binary: &Binary) -> bool {
    matches!(program, Program::Binary(given) if given.path == binary.path)
}
