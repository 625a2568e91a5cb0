//! Failovers: the primary crashes, its synchronous standby takes over, and a new standby joins. The
//! servers find the new primary by themselves.

use std::time::Duration;

use anyhow::Result;

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting};
use crate::postgres::Pair;

pub(crate) fn run(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "failover")?;
    let mut pair = Pair::start(&torture.target, torture.interrupt)?;
    phase.store = pair.create_database("failover")?;
    phase.start_processes(2, 2)?;
    phase.start_clients(setting.lasts);
    while phase.pause(Duration::from_millis(500), Duration::from_millis(3_000))? {
        phase.fault(Entry::Fault { what: "the primary crashes".into() });
        pair.fail_over()?;
        phase.log().add(Entry::Fault { what: "the standby is the primary".into() });
        phase.pause(Duration::from_millis(500), Duration::from_millis(2_000))?;
        pair.add_standby()?;
        phase.log().add(Entry::Fault { what: "a new standby confirms commits".into() });
    }
    phase.finish()
}
