//! Checks of runs of relays at the end: their results, the answers to clients, the calls of hooks, and
//! the dead letters of their steps.

use std::collections::BTreeMap;

use futures::FutureExt as _;
use windlass_kernel::{
    MemoryStore, Namespace, Query, Run, RunKey, RunStatus, Store as _, end_task_id,
};
use windlass_models::relays::TerminalStatus;

use super::super::fleet::relay::{Finish, Order, TestRelay};
use super::super::store::short;
use super::Checker;

/// The calls of hooks, by run.
pub(crate) type Hooked = BTreeMap<RunKey, Vec<(String, TerminalStatus)>>;

impl Checker {
    /// Checks one run of a relay.
    pub(crate) fn audit_relay(&self, run: &Run, orders: &[Order], letters: &[RunKey]) {
        let name = short(run.run_key.0);
        let Some(order) = orders.iter().find(|order| order.id == run.id.as_str()) else {
            return self.fail("6 a run was ordered", format!("r{name:x} {}", run.id));
        };
        let relay = TestRelay::of(order.seed);
        let output = run.output.as_ref().map(|output| output.bytes.clone());
        let output = output.and_then(|bytes| String::from_utf8_lossy(&bytes).parse::<u64>().ok());
        let right = match run.status {
            RunStatus::Complete => {
                relay.finish == Finish::Succeed && output == Some(relay.expected(order.seed))
            }
            RunStatus::Errored => matches!(relay.finish, Finish::Fail | Finish::Break),
            RunStatus::Terminated => relay.finish == Finish::Cancel || order.cancelled,
            _ => false,
        };
        if !right {
            let detail = format!(
                "r{name:x} {} of {relay:?} is {} with {output:?} {:?}",
                run.id, run.status, run.error
            );
            self.fail("6 a run comes to what its program comes to", detail);
        }
        if order.answered == Some(true) && run.status != RunStatus::Terminated {
            let detail = format!("r{name:x} is {}, and its cancel was answered yes", run.status);
            self.fail("24 a cancel that is answered yes has ended its run", detail);
        }
        let dead = run.status == RunStatus::Errored && relay.finish == Finish::Break;
        if letters.contains(&run.run_key) != dead {
            let detail = format!("r{name:x} is {}, dead letter wanted: {dead}", run.status);
            self.fail("24 a dead step leaves a letter, a verdict none", detail);
        }
        let told = match run.status {
            RunStatus::Complete => TerminalStatus::Succeeded,
            RunStatus::Errored => TerminalStatus::Failed,
            _ => TerminalStatus::Cancelled,
        };
        if let Some((run_key, status, result)) = order.ended
            && (run_key != run.run_key || status != told || result != output)
        {
            let detail = format!("the client of {} received {status} {result:?}", run.id);
            self.fail("8 what was acknowledged survives", detail);
        }
    }

    /// A hook received the end of every run of a relay, with its status and under one id.
    pub(crate) fn audit_hooks(&self, runs: &[&Run], hooked: &Hooked, may_give_up: bool) {
        for run in runs {
            let told = hooked.get(&run.run_key).map(Vec::as_slice).unwrap_or_default();
            let id = end_task_id(run.run_key).to_string();
            let status = match run.status {
                RunStatus::Complete => TerminalStatus::Succeeded,
                RunStatus::Errored => TerminalStatus::Failed,
                _ => TerminalStatus::Cancelled,
            };
            let right = told.iter().all(|(told_id, told)| *told_id == id && *told == status);
            if !right || told.is_empty() && !may_give_up {
                let detail = format!("r{:x} {}: {told:?}", short(run.run_key.0), run.status);
                self.fail("24 the hook receives the end of a run", detail);
            }
        }
    }
}

/// The runs whose steps are dead letters.
pub(crate) fn dead_steps(store: &MemoryStore, namespace: Namespace) -> Vec<RunKey> {
    let query = Query::DeadLetters { namespace, queue: None, after: None, limit: 1_000 };
    let rows = store.list(query).now_or_never();
    let rows = rows.and_then(|rows| rows.ok()?.dead_letters().ok()).unwrap_or_default();
    rows.into_iter().filter(|letter| &*letter.kind == "step").filter_map(|l| l.run_key).collect()
}
