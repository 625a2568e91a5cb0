//! Holds: claims, releases, revocations, promotions, leases and reaping.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::breaker::BreakerRow;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{LimitKey, Namespace, RunKey, TaskId, WorkerKey};
use crate::limits::Limits;
use crate::rate::RateRow;
use crate::rotation;
use crate::rows::{Hold, MessageKind, Route, Run, Task, Worker, WorkerInfo, WorkerStatus};
use crate::store::{
    ClaimFilter, ClaimOrder, ClaimRequest, ClaimedTurn, Claims, Heartbeat, HeldItem, Promoted,
    Reaped, Renewed, Wakeup,
};
use crate::time::Timestamp;

use super::state::{Index, Rank, State};

/// How long the row of a dead worker stays visible.
const WORKER_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

impl State {
    pub(super) fn claim(
        &mut self,
        request: &ClaimRequest,
        limits: &Limits,
    ) -> Result<Claims, Error> {
        let max = limits.claim_rows_max;
        if request.turns.max > max || request.tasks.max > max {
            let requested = request.turns.max.max(request.tasks.max);
            let message =
                format!("a claim asks for {requested} turns or tasks; at most {max} are allowed");
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidClaim, message));
        }
        let since = self.now.minus(request.offer);
        let (mut turns, mut passed_over) = (Vec::new(), false);
        let ready = in_order(&self.turn_index, &request.turns, request.order);
        rotation::in_turns(ready, request.turns.max as usize, |key| {
            let Some(run) = self.runs.get(&key).cloned() else { return false };
            if run.turn.is_reserved_for_another(request.worker, since) {
                passed_over |= run.turn.limit_key.is_none();
                return false;
            }
            let takes = self.is_below_limit(&run.namespace, run.turn.limit_key.as_ref());
            if takes {
                turns.push(self.take_turn(run, request.worker));
            }
            takes
        });
        passed_over &= turns.len() < request.turns.max as usize;
        let tasks = self.claim_tasks(request.worker, &request.tasks, request.order);
        Ok(Claims { turns, tasks, passed_over, now: self.now })
    }

    fn claim_tasks(
        &mut self,
        worker: WorkerKey,
        want: &ClaimFilter,
        order: ClaimOrder,
    ) -> Vec<Task> {
        let mut tasks = Vec::new();
        let ready = in_order(&self.task_index, want, order);
        rotation::in_turns(ready, want.max as usize, |key| {
            let Some(task) = self.tasks.get(&key).cloned() else { return false };
            let takes = self.is_below_limit(&task.namespace, task.limit_key.as_ref());
            if takes {
                let hold = Hold { worker, claim_no: task.claim_no + 1 };
                let task = task.claimed(hold, self.now);
                self.put_task(task.clone());
                tasks.push(task);
            }
            takes
        });
        tasks
    }

    fn is_below_limit(&self, namespace: &Namespace, key: Option<&LimitKey>) -> bool {
        let Some(key) = key else { return true };
        let slots = self.limits.get(&(namespace.clone(), key.clone()));
        slots.is_none_or(|slots| self.held_under(namespace, key) < *slots)
    }

    fn take_turn(&mut self, mut run: Run, worker: WorkerKey) -> ClaimedTurn {
        let hold = Hold { worker, claim_no: run.turn.claim_no + 1 };
        run.turn = run.turn.claimed(hold, self.now);
        let turn = ClaimedTurn {
            run_key: run.run_key,
            namespace: run.namespace.clone(),
            workflow: run.workflow.clone(),
            status: run.status,
            hold,
            head: run.head,
            accepted: run.accepted,
            reclaims: run.turn.reclaims,
        };
        self.put_run(run);
        turn
    }

    pub(super) fn release(&mut self, holds: &[HeldItem]) -> u32 {
        let mut released = 0;
        for item in holds {
            let freed = match *item {
                HeldItem::Turn { run_key, worker, claim_no } => {
                    self.release_turn(run_key, Hold { worker, claim_no }, 0)
                }
                HeldItem::Task { task_id, worker, claim_no } => {
                    self.release_task(task_id, Hold { worker, claim_no }, 0)
                }
            };
            released += u32::from(freed);
        }
        released
    }

    pub(super) fn heartbeat(&mut self, heartbeats: Vec<Heartbeat>) -> Vec<bool> {
        let now = self.now;
        let one = |heartbeat: Heartbeat| match self.tasks.get(&heartbeat.task_id).cloned() {
            Some(mut task) if task.hold() == Some(heartbeat.hold) => {
                task.heartbeat_at = Some(now);
                task.heartbeat = heartbeat.details.or(task.heartbeat);
                self.put_task(task);
                true
            }
            _ => false,
        };
        heartbeats.into_iter().map(one).collect()
    }

    fn release_turn(&mut self, run_key: RunKey, hold: Hold, reclaims: u32) -> bool {
        match self.runs.get(&run_key).cloned() {
            Some(mut run) if run.turn.hold() == Some(hold) => {
                let (started, unread) = (run.started_at.is_some(), run.accepted > run.seen);
                run.turn = run.turn.released(run.status, started, unread, self.now);
                run.turn.reclaims += reclaims;
                self.put_run(run);
                true
            }
            _ => false,
        }
    }

    fn release_task(&mut self, task_id: TaskId, hold: Hold, reclaims: u32) -> bool {
        match self.tasks.get(&task_id).cloned() {
            Some(task) if task.hold() == Some(hold) => {
                let mut task = task.released(self.now);
                task.reclaims += reclaims;
                self.put_task(task);
                true
            }
            _ => false,
        }
    }

    pub(super) fn revoke(&mut self, run_key: RunKey, worker: WorkerKey) -> Option<ClaimedTurn> {
        let run = self.runs.get(&run_key).filter(|run| !run.status.is_ended())?.clone();
        Some(self.take_turn(run, worker))
    }

    pub(super) fn promote(&mut self, limit: u32) -> Promoted {
        let now = self.now;
        let limit = limit as usize;
        fn due<K: Copy>(index: &Index<K>, now: Timestamp, limit: usize) -> Vec<K> {
            let due = index.scheduled.iter().take_while(|(at, _)| *at <= now);
            due.take(limit).map(|(_, key)| *key).collect()
        }
        let turns = due(&self.turn_index, now, limit);
        for run_key in &turns {
            if let Some(mut run) = self.runs.get(run_key).cloned() {
                run.turn.ready = true;
                self.put_run(run);
            }
        }
        let tasks = due(&self.task_index, now, limit);
        for task_id in &tasks {
            if let Some(mut task) = self.tasks.get(task_id).cloned() {
                task.ready = true;
                self.put_task(task);
            }
        }
        let next_turn = self.turn_index.scheduled.first().map(|(at, _)| *at);
        let next_task = self.task_index.scheduled.first().map(|(at, _)| *at);
        Promoted {
            turns: turns.len() as u32,
            tasks: tasks.len() as u32,
            next_due: [next_turn, next_task].into_iter().flatten().min(),
            now,
        }
    }

    pub(super) fn renew(&mut self, info: WorkerInfo) -> Renewed {
        let now = self.now;
        let key = info.worker;
        let old = self.workers.get(&key);
        let lapsed = old.is_some_and(|old| now > old.renewed_at.plus(old.info.lease));
        let mut worker = Worker {
            info,
            started_at: old.map_or(now, |old| old.started_at),
            renewed_at: now,
            steady_since: old.filter(|_| !lapsed).map_or(now, |old| old.steady_since),
            drain: old.is_some_and(|old| old.drain),
        };
        if !worker.may_reap(now) {
            worker.steady_since = worker.steady_with(self.workers.values());
        }
        let others = self.workers.iter().filter(|(other, row)| **other != key && row.is_live(now));
        let next_lapse = others.map(|(_, row)| row.renewed_at.plus(row.info.lease)).min();
        let drain = worker.drain;
        let may_reap = worker.may_reap(now);
        self.workers.insert(key, worker);
        let control = held_by(&self.turn_index, key).into_iter();
        let control = control.filter(|run_key| self.has_unread_control(run_key)).collect();
        Renewed { now, lapsed, may_reap, control, drain, next_lapse }
    }

    pub(super) fn drain_worker(&mut self, key: WorkerKey) -> bool {
        let found = self.workers.get_mut(&key);
        let Some(worker) = found.filter(|row| row.info.status != WorkerStatus::Stopped) else {
            return false;
        };
        worker.drain = true;
        self.note(Some(Wakeup::Drain(key)), None);
        true
    }

    fn has_unread_control(&self, run_key: &RunKey) -> bool {
        self.messages.get(run_key).is_some_and(|messages| {
            let unread = |message: &&crate::rows::Message| message.consumed.is_none();
            messages.iter().filter(unread).any(|message| message.kind == MessageKind::Control)
        })
    }

    pub(super) fn reap(&mut self, worker: WorkerKey, limit: u32) -> Reaped {
        let now = self.now;
        if !self.workers.get(&worker).is_some_and(|worker| worker.may_reap(now)) {
            return Reaped::default();
        }
        let holders: BTreeSet<WorkerKey> =
            self.turn_index.held.keys().chain(self.task_index.held.keys()).copied().collect();
        let live =
            |worker: &WorkerKey| self.workers.get(worker).is_some_and(|row| row.is_live(now));
        let dead: Vec<WorkerKey> = holders.into_iter().filter(|worker| !live(worker)).collect();
        let mut reaped = Reaped { permitted: true, ..Reaped::default() };
        for (run_key, hold) in self.held_turns(&dead, limit) {
            self.release_turn(run_key, hold, 1);
            reaped.turns.push(run_key);
        }
        for (task_id, hold) in self.held_tasks(&dead, limit) {
            self.release_task(task_id, hold, 1);
            reaped.tasks.push(task_id);
        }
        self.breakers.retain(|_, row| !row.is_old(now));
        self.rates.retain(|_, row| !row.is_old(now));
        self.workers.retain(|_, row| row.is_live(now) || now <= row.renewed_at.plus(WORKER_KEPT));
        reaped
    }

    fn held_turns(&self, workers: &[WorkerKey], limit: u32) -> Vec<(RunKey, Hold)> {
        let keys = workers.iter().flat_map(|worker| held_by(&self.turn_index, *worker));
        let turn = |key: RunKey| {
            let turn = &self.runs.get(&key)?.turn;
            Some((turn.claimed_at, key, turn.hold()?))
        };
        oldest(keys.filter_map(turn), limit)
    }

    fn held_tasks(&self, workers: &[WorkerKey], limit: u32) -> Vec<(TaskId, Hold)> {
        let keys = workers.iter().flat_map(|worker| held_by(&self.task_index, *worker));
        let task = |key: TaskId| {
            let task = self.tasks.get(&key)?;
            Some((task.claimed_at, key, task.hold()?))
        };
        oldest(keys.filter_map(task), limit)
    }

    pub(super) fn held(&self, worker: WorkerKey) -> Vec<HeldItem> {
        let turn = |run_key| {
            let hold = self.runs.get(&run_key)?.turn.hold()?;
            Some(HeldItem::Turn { run_key, worker, claim_no: hold.claim_no })
        };
        let task = |task_id| {
            let hold = self.tasks.get(&task_id)?.hold()?;
            Some(HeldItem::Task { task_id, worker, claim_no: hold.claim_no })
        };
        let turns = held_by(&self.turn_index, worker).into_iter().filter_map(turn);
        turns.chain(held_by(&self.task_index, worker).into_iter().filter_map(task)).collect()
    }

    pub(super) fn swap_breaker(&mut self, row: BreakerRow) -> bool {
        let key = (row.namespace.clone(), row.key.clone());
        let found = self.breakers.get(&key).map_or(0, |row| row.version);
        let swaps = found + 1 == row.version;
        if swaps {
            self.breakers.insert(key, BreakerRow { updated_at: self.now, ..row });
        }
        swaps
    }

    pub(super) fn swap_rate(&mut self, row: RateRow, notify: bool) -> bool {
        let key = (row.namespace.clone(), row.key.clone());
        let swaps = self.rates.get(&key).map_or(0, |row| row.version) + 1 == row.version;
        if swaps {
            self.rates.insert(key, row);
            if notify {
                self.note(Some(Wakeup::Missed), None);
            }
        }
        swaps
    }

    pub(super) fn set_limit(&mut self, namespace: Namespace, key: LimitKey, slots: Option<u32>) {
        match slots {
            Some(slots) => self.limits.insert((namespace, key), slots),
            None => self.limits.remove(&(namespace, key)),
        };
        self.note(Some(Wakeup::Missed), None);
    }
}

// The ready keys of the requested routes: those of each namespace, in the order of the claim.
fn in_order<K: Copy + Ord>(
    index: &Index<K>,
    want: &ClaimFilter,
    order: ClaimOrder,
) -> Vec<VecDeque<K>> {
    let routes: BTreeSet<&Route> = want.routes.iter().collect();
    let ready = index.ready.iter().filter(|((_, route), _)| routes.contains(route));
    let ranks = ready.flat_map(|((namespace, _), ranks)| ranks.iter().map(move |r| (namespace, r)));
    let mut ranks: Vec<(&Namespace, &Rank<K>)> = ranks.collect();
    match order {
        ClaimOrder::Priority => ranks.sort_unstable_by_key(|(_, rank)| **rank),
        ClaimOrder::Oldest => ranks.sort_unstable_by_key(|(_, (.., due_at, key))| (*due_at, *key)),
    }
    let keys = ranks.into_iter().map(|(namespace, (.., key))| (namespace.clone(), *key));
    rotation::by_namespace(keys, want.after.as_ref())
}

fn held_by<K: Copy + Ord>(index: &Index<K>, worker: WorkerKey) -> Vec<K> {
    index.held.get(&worker).into_iter().flatten().copied().collect()
}

fn oldest<K: Copy + Ord>(
    held: impl Iterator<Item = (Option<Timestamp>, K, Hold)>,
    limit: u32,
) -> Vec<(K, Hold)> {
    let mut held: Vec<_> = held.collect();
    held.sort_unstable_by_key(|(claimed_at, key, _)| (*claimed_at, *key));
    held.into_iter().take(limit as usize).map(|(_, key, hold)| (key, hold)).collect()
}
