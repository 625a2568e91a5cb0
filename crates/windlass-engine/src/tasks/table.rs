//! The tasks that this process serves and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use windlass_kernel::{Error, ErrorCode, ErrorKind, Route, TaskId};

use super::TaskHandler;
use super::context::RunningAttempt;
use super::internal::{INTERNAL_MAX, internal_queue, internal_routes};

/// A task and the number of the claim under which it is held here.
pub(crate) type Claim = (TaskId, u64);

pub(crate) struct Tasks {
    handlers: RwLock<BTreeMap<Route, Arc<dyn TaskHandler>>>,
    // The claim is part of the key: an attempt that lost its task may still run when the task is
    // claimed again.
    running: Mutex<BTreeMap<Claim, Arc<RunningAttempt>>>,
    // Tasks that the store may say are held here, and that have not started: a commit that is under
    // way enqueues them as held, or they wait for a trial.
    assigned: Mutex<BTreeSet<Claim>>,
    // Tasks that this worker will hold if a commit that is under way succeeds.
    reserved: AtomicUsize,
    // How many of the running tasks are the engine's own.
    internal: AtomicUsize,
    max: usize,
}

impl Tasks {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            handlers: RwLock::default(),
            running: Mutex::default(),
            assigned: Mutex::default(),
            reserved: AtomicUsize::new(0),
            internal: AtomicUsize::new(0),
            max,
        }
    }

    /// Serves the tasks of a route.
    pub(crate) fn serve(&self, route: Route, handler: Arc<dyn TaskHandler>) -> Result<(), Error> {
        let mut handlers = self.handlers.write();
        if handlers.contains_key(&route) {
            let message = format!(
                "an activity {:?} on queue {:?} is registered already; use another type or queue",
                route.name, route.queue
            );
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::ActivityExists, message));
        }
        handlers.insert(route, handler);
        Ok(())
    }

    pub(crate) fn handler(&self, route: &Route) -> Option<Arc<dyn TaskHandler>> {
        self.handlers.read().get(route).cloned()
    }

    pub(crate) fn serves(&self, route: &Route) -> bool {
        route.queue == internal_queue() || self.handlers.read().contains_key(route)
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        let mut routes: Vec<Route> = self.handlers.read().keys().cloned().collect();
        routes.extend(internal_routes());
        routes
    }

    /// How many tasks are held, without the engine's own.
    pub(crate) fn held(&self) -> usize {
        let running = self.running.lock();
        running.len() - self.internal_held()
    }

    pub(crate) fn internal_held(&self) -> usize {
        self.internal.load(Ordering::Acquire)
    }

    /// How many of the engine's own tasks can be claimed. They have capacity of their own: tasks that
    /// end runs must not wait for the activities of these runs.
    pub(crate) fn internal_free(&self) -> usize {
        INTERNAL_MAX.saturating_sub(self.internal_held())
    }

    /// How many tasks are held or reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.held() + self.reserved.load(Ordering::Acquire)
    }

    /// How many tasks can be claimed.
    pub(crate) fn free(&self) -> usize {
        self.max.saturating_sub(self.reserved())
    }

    /// Reserves capacity for one more task. `finishing` of the held tasks end with the same commit.
    pub(crate) fn reserve(self: &Arc<Self>, finishing: usize) -> Option<TaskReservation> {
        let held = self.held().saturating_sub(finishing);
        let reserved = self.reserved.fetch_add(1, Ordering::AcqRel);
        // Created before the check: if there is no capacity, dropping it undoes the increment.
        let reservation = TaskReservation(Arc::clone(self));
        (held + reserved < self.max).then_some(reservation)
    }

    pub(crate) fn is_running(&self, claim: &Claim) -> bool {
        self.running.lock().contains_key(claim)
    }

    /// Whether this process knows that it holds a task under a claim.
    pub(crate) fn is_held(&self, claim: &Claim) -> bool {
        // In this order: a task is running before it is no longer assigned.
        self.assigned.lock().contains(claim) || self.is_running(claim)
    }

    /// Marks a task as held before it starts. The engine releases every hold in the store that it does
    /// not know.
    pub(crate) fn assign(&self, claim: Claim) {
        self.assigned.lock().insert(claim);
    }

    pub(crate) fn unassign(&self, claim: &Claim) {
        self.assigned.lock().remove(claim);
    }

    pub(crate) fn running(&self) -> BTreeSet<Claim> {
        self.running.lock().keys().copied().collect()
    }

    pub(super) fn started(&self, claim: Claim, attempt: Arc<RunningAttempt>, internal: bool) {
        // An attempt under an earlier claim has lost the task.
        self.cancel(&claim.0);
        let mut running = self.running.lock();
        running.insert(claim, attempt);
        self.internal.fetch_add(usize::from(internal), Ordering::AcqRel);
    }

    pub(super) fn ended(&self, claim: &Claim, internal: bool) {
        let mut running = self.running.lock();
        running.remove(claim);
        self.internal.fetch_sub(usize::from(internal), Ordering::AcqRel);
    }

    /// Cancels the attempts at a task that run here: nobody needs their result.
    pub(crate) fn cancel(&self, task_id: &TaskId) {
        let claims = (*task_id, 0)..=(*task_id, u64::MAX);
        self.running.lock().range(claims).for_each(|(_, attempt)| attempt.cancel());
    }

    /// Cancels an attempt that has lost its task.
    pub(crate) fn cancel_claim(&self, claim: &Claim) {
        if let Some(attempt) = self.running.lock().get(claim) {
            attempt.cancel();
        }
    }
}

/// Capacity for a task that this process will hold if a commit succeeds. Dropping it frees the capacity.
pub(crate) struct TaskReservation(Arc<Tasks>);

impl Drop for TaskReservation {
    fn drop(&mut self) {
        self.0.reserved.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(task: u128, claim_no: u64) -> Claim {
        (TaskId(uuid::Uuid::from_u128(task)), claim_no)
    }

    #[test]
    fn reservations_and_running_tasks_share_the_capacity() {
        let tasks = Arc::new(Tasks::new(2));
        let first = tasks.reserve(0).expect("2 are free");
        tasks.started(claim(1, 1), Arc::default(), false);
        assert_eq!((tasks.held(), tasks.reserved(), tasks.free()), (1, 2, 0));
        assert!(tasks.reserve(0).is_none());
        assert_eq!(tasks.reserved(), 2, "a refused reservation takes nothing");
        assert!(tasks.reserve(1).is_some(), "the held task ends with the same commit");
        drop(first);
        assert_eq!(tasks.free(), 1);
        tasks.ended(&claim(1, 1), false);
        assert_eq!(tasks.free(), 2);
    }

    #[test]
    fn internal_tasks_have_capacity_of_their_own() {
        let tasks = Tasks::new(1);
        tasks.started(claim(1, 1), Arc::default(), true);
        assert_eq!((tasks.held(), tasks.free()), (0, 1));
        assert_eq!(tasks.internal_free(), INTERNAL_MAX - 1);
    }

    #[test]
    fn a_new_claim_cancels_the_attempt_of_the_old_one() {
        let tasks = Tasks::new(9);
        let attempts: [Arc<RunningAttempt>; 3] = Default::default();
        tasks.started(claim(1, 1), Arc::clone(&attempts[0]), false);
        tasks.started(claim(2, 1), Arc::clone(&attempts[1]), false);
        tasks.started(claim(1, 2), Arc::clone(&attempts[2]), false);
        assert_eq!(attempts.each_ref().map(|attempt| attempt.is_cancelled()), [true, false, false]);
        tasks.cancel_claim(&claim(2, 9));
        assert!(!attempts[1].is_cancelled(), "it has another claim");
        tasks.cancel_claim(&claim(2, 1));
        assert!(attempts[1].is_cancelled());
    }
}
