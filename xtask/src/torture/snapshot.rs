//! An old snapshot that is held open on PostgreSQL: dead rows cannot be removed, and every claim has
//! to pass them. Servers and workers are killed meanwhile.

use std::time::Duration;

use anyhow::Result;

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting};

const DATABASE: &str = "old_snapshot";
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_millis(4_000);
/// Dead rows that were not removed, of all tables, and whether a snapshot was held all the time.
const DEAD_ROWS: &str = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables";

pub(crate) fn run(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "old-snapshot")?;
    phase.store = torture.database(DATABASE)?;
    phase.start_processes(2, 2)?;
    let snapshot = torture.cluster()?.hold_snapshot(DATABASE)?;
    phase.fault(Entry::Fault { what: "a snapshot is held open".into() });
    phase.start_clients(setting.lasts);
    while phase.pause(PAUSE_MIN, PAUSE_MAX)? {
        let at = phase.random_server();
        phase.kill(at)?;
        phase.servers[at].start(phase.interrupt)?;
    }
    let dead = torture.cluster()?.query(DATABASE, DEAD_ROWS)?;
    phase.notes.push(format!("{} dead rows under the snapshot", dead.trim()));
    // Healing has to work with the snapshot too.
    let outcomes = phase.finish();
    snapshot.release()?;
    outcomes
}
