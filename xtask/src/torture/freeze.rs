//! SIGSTOP past the lease: one of two servers and one of two workers on one PostgreSQL stop without
//! knowing it. The others take over their work, and must win against them when they continue.

use std::time::Duration;

use anyhow::Result;

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting, target};

/// A freeze lasts this much longer than the lease.
const PAST_LEASE: Duration = Duration::from_secs(2);
/// A server that continues may send what it had begun for this long: it learns from the store that it
/// lost its runs when it next renews its lease or commits.
const STALE_MS: u64 = 10_000;

pub(crate) fn run(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "freeze")?;
    phase.store = torture.database("freeze")?;
    phase.start_processes(2, 2)?;
    phase.start_clients(setting.lasts);
    while phase.pause(Duration::from_millis(300), Duration::from_millis(1_500))? {
        freeze(&mut phase)?;
    }
    phase.finish()
}

fn freeze(phase: &mut Phase<'_>) -> Result<()> {
    // One of the servers 0 and 1, and one of the workers 2 and 3.
    let (server, worker) = (phase.random.below(2) == 0, phase.random.below(2) == 0);
    let frozen = [usize::from(server), 2 + usize::from(worker)];
    let spared = [usize::from(!server), 2 + usize::from(!worker)];
    for at in frozen {
        phase.servers[at].signal("STOP")?;
        let process = phase.servers[at].process();
        phase.fault(Entry::Halted { process });
    }
    // Clients that wait for a frozen server would do nothing else.
    let all = phase.set_targets(spared.map(|at| target(&phase.servers[at])).to_vec());
    let frozen_for = phase.binary.lease + PAST_LEASE;
    let slept = phase.sleep(frozen_for);
    for at in frozen {
        let process = phase.servers[at].process();
        phase.log().add(Entry::Continued { process, stale_ms: STALE_MS });
        phase.servers[at].signal("CONT")?;
    }
    phase.set_targets(all);
    slept
}
