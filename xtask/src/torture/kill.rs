//! SIGKILL in a loop: one server on SQLite, or three servers on one PostgreSQL.

use std::time::Duration;

use anyhow::Result;

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting};

/// A server lives this long before it is killed.
const LIFE_MIN: Duration = Duration::from_millis(300);
const LIFE_MAX: Duration = Duration::from_millis(2_500);
const SERVERS: u8 = 3;

/// One server on one SQLite file.
pub(crate) fn sqlite(_: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "kill-sqlite")?;
    phase.start_servers(1)?;
    phase.start_clients(setting.lasts);
    kill_until_over(&mut phase)?;
    phase.finish()
}

/// Three servers on one database. The other two go on.
pub(crate) fn postgres(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "kill-postgres")?;
    phase.store = torture.database("kill_postgres")?;
    phase.start_servers(SERVERS)?;
    phase.start_clients(setting.lasts);
    kill_until_over(&mut phase)?;
    phase.finish()
}

/// Kills a random server and starts it again, until the time of the phase is over.
fn kill_until_over(phase: &mut Phase<'_>) -> Result<()> {
    while phase.pause(LIFE_MIN, LIFE_MAX)? {
        kill_one(phase)?;
    }
    Ok(())
}

fn kill_one(phase: &mut Phase<'_>) -> Result<()> {
    let count = phase.servers.len() as u64;
    let at = usize::try_from(phase.random.below(count)).unwrap_or_default();
    let process = phase.servers[at].process();
    phase.servers[at].kill()?;
    phase.fault(Entry::Halted { process });
    phase.servers[at].start(phase.interrupt)
}
