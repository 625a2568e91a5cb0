//! SIGKILL in a loop: one process on SQLite, or four on one PostgreSQL.

use std::time::Duration;

use anyhow::Result;

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting};

/// A server lives this long before it is killed.
const LIFE_MIN: Duration = Duration::from_millis(300);
const LIFE_MAX: Duration = Duration::from_millis(2_500);
/// On SQLite, half of the restarted processes do work again this long after they answer. Single ones may
/// take longer on a busy machine.
const RESUMED_MAX: Duration = Duration::from_secs(1);

/// One server on one SQLite file.
pub(crate) fn sqlite(_: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "kill-sqlite")?;
    phase.start_processes(1, 0)?;
    phase.start_clients(setting.lasts);
    kill_until_over(&mut phase)?;
    phase.note_recovery(Some(RESUMED_MAX));
    phase.finish()
}

/// One process with workflows of our own on one SQLite file.
pub(crate) fn worker(_: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "kill-worker")?;
    phase.start_processes(0, 1)?;
    phase.start_clients(setting.lasts);
    kill_until_over(&mut phase)?;
    phase.note_recovery(Some(RESUMED_MAX));
    phase.finish()
}

/// Two servers and two workers on one database. The others go on.
pub(crate) fn postgres(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "kill-postgres")?;
    phase.store = torture.database("kill_postgres")?;
    phase.start_processes(2, 2)?;
    phase.start_clients(setting.lasts);
    kill_until_over(&mut phase)?;
    phase.note_recovery(None);
    phase.finish()
}

/// Kills a random server and starts it again, until the time of the phase is over.
fn kill_until_over(phase: &mut Phase<'_>) -> Result<()> {
    while phase.pause(LIFE_MIN, LIFE_MAX)? {
        let at = phase.random_server();
        phase.kill(at)?;
        phase.servers[at].start(phase.interrupt)?;
        let process = phase.servers[at].process();
        phase.log().add(Entry::Ready { process });
    }
    Ok(())
}
