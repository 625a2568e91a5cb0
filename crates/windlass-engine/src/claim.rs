//! The claimer: promotes what is due, claims what is ready and fits the worker's capacity, and sleeps
//! until a signal or the next due time. An idle claimer sends no queries.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::Instrument as _;
use windlass_kernel::{
    ClaimFilter, ClaimOrder, ClaimRequest, Claims, Error, HeldItem, Hold, Namespace, Route,
    Timestamp,
};

use crate::capacity::Capacity;
use crate::concurrency::{Concurrency, Permits};
use crate::core::Core;
use crate::env::ThreadPool;
use crate::metrics::Measure;
use crate::options::Options;
use crate::rates::Rates;
use crate::registry::Registry;
use crate::signals::{Signals, Work};
use crate::tasks::{TaskRunner, Tasks, internal_queue, internal_routes};
use crate::telemetry;
use crate::turn_runner::{TurnRunner, held};
use crate::workers::Holdings;

/// How many rows one promotion makes ready.
const PROMOTE_MAX: u32 = 1_000;
/// How long the store offers a turn only to the process that released it last: that process may have
/// the run in its cache.
const OFFER: Duration = Duration::from_millis(50);
/// Every so many claims, one takes the oldest rows regardless of their priority.
const OLDEST_EVERY: u32 = 8;
const ERROR_DELAY_MIN: Duration = Duration::from_millis(50);
const ERROR_DELAY_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Claimer {
    pub(crate) core: Arc<Core>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) capacity: Arc<Capacity>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) turn_runner: Arc<TurnRunner>,
    pub(crate) task_runner: Arc<TaskRunner>,
    pub(crate) holdings: Arc<Holdings>,
    pub(crate) rates: Arc<Rates>,
    /// Held during a claim; see [`crate::shutdown::Shutdown`].
    pub(crate) claiming: Arc<tokio::sync::Mutex<()>>,
    pub(crate) fairness: Mutex<Fairness>,
}

/// Claimed work, and the permits that are reserved for it until it starts.
pub(crate) struct Claimed {
    pub(crate) claims: Claims,
    pub(crate) permits: Vec<Permits>,
}

impl Claimed {
    fn none(now: Timestamp) -> Self {
        let (turns, tasks) = (Vec::new(), Vec::new());
        let claims = Claims { turns, tasks, passed_over: false, now };
        Self { claims, permits: Vec::new() }
    }
}

/// Claims until the engine stops taking work.
pub(crate) async fn serve(claimer: Arc<Claimer>) {
    let core = &claimer.core;
    let mut delay = ERROR_DELAY_MIN;
    // After a panic: signals may have been taken and not been acted on.
    claimer.signals.everything();
    let mut scan_at = core.env.elapsed() + core.jittered(core.options.scan_every);
    while !core.lifecycle.is_draining() {
        let more = match claimer.claim_once().await {
            Ok(more) => {
                delay = ERROR_DELAY_MIN;
                more
            }
            Err(error) => {
                tracing::warn!(%error, "a claim failed; retrying");
                core.env.sleep(delay).await;
                delay = (delay * 2).min(ERROR_DELAY_MAX);
                claimer.signals.everything();
                continue;
            }
        };
        if more {
            continue;
        }
        // An engine that is alone with its store scans only after a release that failed: an idle one
        // sends no queries and sets no timer.
        let scans = core.options.shared || core.has_unknown_holds();
        claimer.wait(scans.then_some(scan_at)).await;
        if core.env.elapsed() >= scan_at {
            scan_at = core.env.elapsed() + core.jittered(core.options.scan_every);
            if !scans {
                continue;
            }
            core.set_unknown_holds(false);
            if core.options.shared {
                claimer.signals.everything();
                claimer.rates.clear_cache();
            }
            if let Err(error) = claimer.holdings.reconcile().await {
                core.set_unknown_holds(true);
                tracing::warn!(%error, "failed to compare held work with the store; retrying later");
            }
        }
    }
}

impl Claimer {
    // Until a signal, the next due time, or the next scan.
    async fn wait(&self, scan_at: Option<Duration>) {
        let Core { env, clock, .. } = &*self.core;
        let mut span = self.signals.next_due().map(|due| due.since(clock.now()));
        if let Some(scan_at) = scan_at {
            let scan = scan_at.saturating_sub(env.elapsed());
            span = Some(span.map_or(scan, |span| span.min(scan)));
        }
        let changed = self.signals.changed();
        match span {
            // Real timers have a resolution of a millisecond: a little late is better than twice.
            Some(span) => {
                let slept = env.sleep(span.max(Duration::from_micros(500)));
                futures::future::select(std::pin::pin!(changed), slept).await;
            }
            None => changed.await,
        }
    }

    /// Promotes and claims once. Returns whether there may be more.
    async fn claim_once(self: &Arc<Self>) -> Result<bool, Error> {
        let mut more = self.promote_due().await?;
        let mut ready = self.signals.take();
        if !ready.turns && !ready.tasks {
            return Ok(more);
        }
        if ready.turns && self.capacity.pressed().turns {
            // The turns stay ready; when the pressure ends, the capacity signals everything.
            self.signals.restore(Work::TURNS);
            ready.turns = false;
        }
        let _claiming = self.claiming.lock().await;
        if self.core.lifecycle.is_draining() {
            return Ok(false);
        }
        if self.capacity.is_on_trial() {
            // The work stays ready; when the trial ends, the capacity signals everything.
            self.signals.restore(Work { internal: false, ..ready });
            return Ok(false);
        }
        let claimed = self.claim(ready, u32::MAX).await?;
        let Some(Claimed { claims, permits }) = claimed else { return Ok(more) };
        let next = next_round(&claims, self.core.options.claim_max as usize);
        self.capacity.set_turn_backlog(next.turns);
        self.signals.restore(next);
        more |= next.turns || next.tasks;
        if self.core.lifecycle.is_draining() {
            // The engine began to drain during the claim.
            self.release(&claims).await?;
            return Ok(false);
        }
        let found_none = ready.turns && claims.turns.is_empty();
        if self.core.options.shared && (found_none || claims.passed_over) {
            self.schedule_recheck(claims.passed_over);
        }
        self.start(claims, permits);
        Ok(more)
    }

    fn start(&self, claims: Claims, permits: Vec<Permits>) {
        for task in claims.tasks {
            self.task_runner.start(task);
        }
        self.turn_runner.begin_turns(claims.turns, None);
        // The turns have permits of their own now.
        drop(permits);
    }

    /// Makes work ready that is due by now. Returns whether there may be more.
    pub(crate) async fn promote_due(&self) -> Result<bool, Error> {
        let Core { store, clock, metrics, .. } = &*self.core;
        let Some(due) = self.signals.take_due(clock.now()) else { return Ok(false) };
        metrics.promotions.add(1);
        let promoted = match store.promote(PROMOTE_MAX).await {
            Ok(promoted) => promoted,
            Err(error) => {
                self.signals.restore_due(due);
                return Err(error);
            }
        };
        clock.learn(promoted.now);
        if let Some(next) = promoted.next_due {
            // By the estimate of the clock: if the store's clock was set back, the same span is waited.
            self.signals.restore_due(clock.now().plus(next.since(promoted.now)));
        }
        let (turns, tasks) = (promoted.turns > 0, promoted.tasks > 0);
        self.signals.restore(Work { turns, tasks, internal: tasks });
        Ok(promoted.next_due.is_some_and(|next| next <= promoted.now))
    }

    /// Claims as much as there is capacity for, at most `max` turns and as many tasks. `None` if there
    /// is no capacity, or this process serves nothing; then the signals stay set.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        ready: Work,
        max: u32,
    ) -> Result<Option<Claimed>, Error> {
        let max = max.min(self.core.options.claim_max);
        let free = self.capacity.turns_free();
        let tasks = if ready.tasks { self.want_tasks(max) } else { ClaimFilter::default() };
        let routes = if ready.turns { self.registry.routes() } else { Vec::new() };
        let parts = claim_parts(routes, tasks, self.fairness.lock().limited_first);
        let mut claimed: Option<Claimed> = None;
        for part in parts {
            let held = claimed.as_ref().map_or(0, |claimed| claimed.claims.turns.len());
            let left = turns_left(max, free, held);
            if left == 0 && !part.routes.is_empty() {
                if part.concurrency.is_none() {
                    self.capacity.set_turn_backlog(true);
                }
                self.signals.restore(Work::TURNS);
            }
            let answer = match self.claim_part(part, left).await {
                Ok(answer) => answer,
                // Keep what the parts before have claimed.
                Err(error) if claimed.is_some() => {
                    tracing::warn!(%error, "a claim failed; retrying");
                    self.signals.turns();
                    break;
                }
                Err(error) => {
                    self.signals.restore(Work { internal: false, ..ready });
                    return Err(error);
                }
            };
            let Some((claims, permits)) = answer else { continue };
            let all = claimed.get_or_insert_with(|| Claimed::none(claims.now));
            all.claims.turns.extend(claims.turns);
            all.claims.tasks.extend(claims.tasks);
            all.claims.passed_over |= claims.passed_over;
            all.permits.extend(permits);
        }
        if claimed.as_ref().is_some_and(|claimed| !claimed.claims.turns.is_empty()) {
            self.fairness.lock().swap_order();
        }
        Ok(claimed)
    }

    // The tasks to ask for. Without capacity for tasks only internal ones are asked for.
    fn want_tasks(&self, max: u32) -> ClaimFilter {
        let bound = |free: usize| u32::try_from(free).unwrap_or(u32::MAX).min(max);
        let free = self.capacity.tasks_free().min(self.tasks.free());
        let internal = self.signals.take_internal();
        if bound(free) > 0 {
            let after = self.fairness.lock().tasks_after.clone();
            return ClaimFilter { routes: self.tasks.routes(), max: bound(free), after };
        }
        self.capacity.set_task_backlog(true);
        let internal_free = if internal { self.tasks.internal_free() } else { 0 };
        // Internal tasks for which there is no capacity are looked for again.
        self.signals.restore(Work { internal: internal && internal_free == 0, ..Work::TASKS });
        match internal {
            true => ClaimFilter {
                routes: internal_routes().into(),
                max: bound(internal_free),
                after: None,
            },
            false => ClaimFilter::default(),
        }
    }

    // Claims one part, at most `left` turns. None if there is nothing to ask for.
    async fn claim_part(
        &self,
        part: ClaimPart,
        left: u32,
    ) -> Result<Option<(Claims, Option<Permits>)>, Error> {
        let mut permits = None;
        // Routes that are claimed by themselves take turns by themselves.
        let own_route = part.concurrency.is_some().then(|| part.routes.first().cloned()).flatten();
        let after = self.fairness.lock().turns_after.get(&own_route).cloned();
        let mut turns = ClaimFilter { routes: part.routes, max: left, after };
        if let Some(concurrency) = part.concurrency.filter(|_| left > 0) {
            let Some(free) = Permits::all_free(&self.signals, &concurrency) else {
                return Ok(None);
            };
            turns.max = left.min(u32::try_from(free.count).unwrap_or(u32::MAX));
            permits = Some(free);
        }
        let none = |filter: &ClaimFilter| filter.routes.is_empty() || filter.max == 0;
        if none(&turns) && none(&part.tasks) {
            return Ok(None);
        }
        let asked = turns.max as usize;
        let tasks_asked = part.tasks.max as usize;
        let claims = self.send(turns, part.tasks).await?;
        self.fairness.lock().served(own_route, (asked, tasks_asked), &claims);
        // More may be ready: look again when capacity is freed.
        if asked > 0 && claims.turns.len() >= asked {
            match permits.as_ref().filter(|permits| permits.count == asked) {
                Some(permits) => permits.want(),
                None => self.signals.restore(Work::TURNS),
            }
        }
        Ok(Some((claims, permits)))
    }

    async fn send(&self, turns: ClaimFilter, tasks: ClaimFilter) -> Result<Claims, Error> {
        let Core { store, env, clock, options, worker, metrics, .. } = &*self.core;
        let request = ClaimRequest {
            worker: *worker,
            turns,
            tasks,
            order: self.fairness.lock().next_order(),
            // A host that drives the engine by ticks decides itself when to claim.
            offer: if options.shared && options.background { OFFER } else { Duration::ZERO },
        };
        metrics.claims.add(1);
        let only_internal =
            request.tasks.routes.iter().all(|route| route.queue == internal_queue());
        let tasks_max = request.tasks.max as usize;
        let Options { worker_group, tasks_max: slots, .. } = options;
        let span = telemetry::claim(*worker, worker_group, self.tasks.held(), *slots);
        let asked_at = env.elapsed();
        let claims = store.claim(request).instrument(span.clone()).await?;
        telemetry::claimed(&span, &claims);
        clock.learn(claims.now);
        if tasks_max > 0 {
            if !only_internal {
                self.capacity.set_task_backlog(claims.tasks.len() >= tasks_max);
            }
            metrics.tasks_claimed.add(claims.tasks.len() as u64);
            metrics.time(Measure::Claim, "", env.elapsed() - asked_at);
        }
        Ok(claims)
    }

    // The store announced a ready turn, but there was none to claim: the store may offer it to another
    // process, which may be gone. Or the claim has passed over turns, for which no wake-up comes.
    fn schedule_recheck(self: &Arc<Self>, passed_over: bool) {
        let Some(wakeups) = self.signals.schedule_recheck(passed_over) else { return };
        let claimer = Arc::clone(self);
        let recheck = async move {
            claimer.core.env.sleep(OFFER + Duration::from_millis(1)).await;
            claimer.signals.recheck(wakeups);
        };
        self.core.env.spawn(ThreadPool::Service, Box::pin(recheck));
    }

    async fn release(&self, claims: &Claims) -> Result<(), Error> {
        let turns = claims.turns.iter().map(|turn| held(turn.run_key, turn.hold));
        let tasks = claims.tasks.iter().filter_map(|task| {
            let Hold { worker, claim_no } = task.hold()?;
            Some(HeldItem::Task { task_id: task.task_id, worker, claim_no })
        });
        self.core.store.release(turns.chain(tasks).collect()).await.map(|_| ())
    }
}

/// Lets every kind of work be claimed in time when there is always more than fits.
#[derive(Default)]
pub(crate) struct Fairness {
    claims: u32,
    limited_first: bool,
    // The namespaces that the last claims served last. Only kept while there is more than fits.
    turns_after: HashMap<Option<Route>, Namespace>,
    tasks_after: Option<Namespace>,
}

impl Fairness {
    fn next_order(&mut self) -> ClaimOrder {
        self.claims = self.claims.wrapping_add(1);
        match self.claims.is_multiple_of(OLDEST_EVERY) {
            true => ClaimOrder::Oldest,
            false => ClaimOrder::Priority,
        }
    }

    // Notes where the next claim goes on.
    fn served(&mut self, route: Option<Route>, asked: (usize, usize), claims: &Claims) {
        if asked.0 > 0 {
            match claims.turns.last().filter(|_| claims.turns.len() >= asked.0) {
                Some(turn) => self.turns_after.insert(route, turn.namespace.clone()),
                None => self.turns_after.remove(&route),
            };
        }
        if asked.1 > 0 {
            let last = claims.tasks.last().filter(|_| claims.tasks.len() >= asked.1);
            self.tasks_after = last.map(|task| task.namespace.clone());
        }
    }

    fn swap_order(&mut self) {
        self.limited_first = !self.limited_first;
    }
}

/// One request of a claim.
#[derive(Default)]
struct ClaimPart {
    routes: Vec<Route>,
    concurrency: Option<Arc<Concurrency>>,
    tasks: ClaimFilter,
}

// Workflows with slots of their own are claimed one by one, all others together with the tasks.
fn claim_parts(
    routes: Vec<(Route, Option<Arc<Concurrency>>)>,
    tasks: ClaimFilter,
    limited_first: bool,
) -> Vec<ClaimPart> {
    let mut parts: Vec<ClaimPart> = Vec::new();
    let mut rest = ClaimPart { tasks, ..ClaimPart::default() };
    for (route, concurrency) in routes {
        match concurrency {
            Some(_) => {
                parts.push(ClaimPart { routes: vec![route], concurrency, ..ClaimPart::default() });
            }
            None => rest.routes.push(route),
        }
    }
    parts.insert(if limited_first { parts.len() } else { 0 }, rest);
    parts
}

// How many turns a part may claim: of `max` and of the `free` capacity, after `held` claimed before.
fn turns_left(max: u32, free: usize, held: usize) -> u32 {
    let free = u32::try_from(free.saturating_sub(held)).unwrap_or(u32::MAX);
    free.min(max.saturating_sub(u32::try_from(held).unwrap_or(u32::MAX)))
}

// A full claim of turns, or any claimed task, means that more may be ready.
fn next_round(claims: &Claims, claim_max: usize) -> Work {
    Work {
        turns: claims.turns.len() >= claim_max,
        tasks: !claims.tasks.is_empty(),
        internal: claims.tasks.iter().any(|task| task.queue == internal_queue()),
    }
}

#[cfg(test)]
mod tests {
    use windlass_kernel::{QueueName, RouteName, Task, TaskId};

    use super::*;

    fn route(name: &str) -> Route {
        Route { queue: QueueName::default_queue(), name: RouteName::from_stored(name) }
    }

    #[test]
    fn one_claim_in_eight_takes_the_oldest() {
        let mut fairness = Fairness::default();
        let orders: Vec<bool> =
            (0..16).map(|_| fairness.next_order() == ClaimOrder::Oldest).collect();
        let expect: Vec<bool> = (1..=16).map(|count| count == 8 || count == 16).collect();
        assert_eq!(orders, expect);
    }

    #[test]
    fn a_claim_goes_on_after_the_namespace_that_a_full_one_served_last() {
        let task = |namespace: &str| {
            let (id, route) = (TaskId(uuid::Uuid::nil()), route("t"));
            let namespace = Namespace::from_stored(namespace);
            Task::new(id, namespace, "activity", route, Timestamp::ZERO)
        };
        let mut fairness = Fairness::default();
        for (tasks, asked, expect) in [
            (vec!["a", "b"], 2, Some("b")),
            (vec![], 0, Some("b")),
            (vec!["a", "c", "a"], 3, Some("a")),
            (vec!["a"], 3, None),
        ] {
            let tasks = tasks.into_iter().map(task).collect();
            let claims =
                Claims { turns: Vec::new(), tasks, passed_over: false, now: Timestamp::ZERO };
            fairness.served(None, (0, asked), &claims);
            assert_eq!(fairness.tasks_after.as_ref().map(|after| after.as_str()), expect);
        }
    }

    #[test]
    fn a_part_claims_what_is_left() {
        for (max, free, held, expect) in [
            (500, 10_000, 0, 500),
            (500, 100, 0, 100),
            (500, 100, 60, 40),
            (50, 100, 60, 0),
            (500, 10, 60, 0),
            (u32::MAX, usize::MAX, 0, u32::MAX),
        ] {
            assert_eq!(turns_left(max, free, held), expect, "{max} {free} {held}");
        }
    }

    #[test]
    fn workflows_with_slots_have_a_part_of_their_own() {
        for (limited_first, expect) in [
            (false, vec![vec!["b", "d"], vec!["a"], vec!["c"]]),
            (true, vec![vec!["a"], vec!["c"], vec!["b", "d"]]),
        ] {
            let slots = || Some(Arc::new(Concurrency::new(1)));
            let routes = vec![
                (route("a"), slots()),
                (route("b"), None),
                (route("c"), slots()),
                (route("d"), None),
            ];
            let tasks = ClaimFilter { routes: vec![route("task")], max: 3, after: None };
            let parts = claim_parts(routes, tasks, limited_first);
            let names = |part: &ClaimPart| {
                part.routes.iter().map(|route| route.name.as_str().to_owned()).collect::<Vec<_>>()
            };
            assert_eq!(parts.iter().map(names).collect::<Vec<_>>(), expect);
            for part in &parts {
                assert_eq!(part.tasks.max == 3, part.concurrency.is_none());
            }
        }
    }

    #[test]
    fn the_next_round_looks_for_what_may_be_left() {
        let task = |queue: QueueName| {
            let route = Route { queue, name: RouteName::from_stored("t") };
            let id = TaskId(uuid::Uuid::nil());
            Task::new(id, Namespace::default_namespace(), "activity", route, Timestamp::ZERO)
        };
        for (tasks, claim_max, expect) in [
            (vec![], 1, Work::NONE),
            (vec![], 0, Work::TURNS),
            (vec![task(QueueName::default_queue())], 1, Work::TASKS),
            (vec![task(internal_queue())], 1, Work::INTERNAL),
        ] {
            let (turns, now) = (Vec::new(), Timestamp::ZERO);
            let claims = Claims { turns, tasks, passed_over: false, now };
            assert_eq!(next_round(&claims, claim_max), expect);
        }
    }
}
