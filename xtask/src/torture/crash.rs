//! PostgreSQL crashes: `pg_ctl restart -m immediate` in a loop, under two servers and two workers.

use std::time::Duration;

use anyhow::Result;

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting};

/// PostgreSQL lives this long before the next crash.
const LIFE_MIN: Duration = Duration::from_millis(500);
const LIFE_MAX: Duration = Duration::from_millis(4_000);

pub(crate) fn run(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "crash-postgres")?;
    phase.store = torture.database("crash_postgres")?;
    phase.start_processes(2, 2)?;
    phase.start_clients(setting.lasts);
    while phase.pause(LIFE_MIN, LIFE_MAX)? {
        phase.fault(Entry::Fault { what: "PostgreSQL crashes".into() });
        torture.cluster()?.crash_and_restart()?;
        phase.log().add(Entry::Fault { what: "PostgreSQL is back".into() });
    }
    phase.finish()
}
