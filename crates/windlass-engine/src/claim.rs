//! The claimer: promotes what is due, claims what is ready and there is room for, and sleeps until
//! a wake-up or the next due time. With nothing to do it asks the store nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::Instrument as _;
use windlass_kernel::{
    ClaimOrder, ClaimRequest, Claims, Error, HeldItem, Hold, QueueName, Route, RouteName,
    Timestamp, Wakeup, Want,
};

use crate::drive::held;
use crate::engine::Inner;
use crate::env::Lane;
use crate::metrics::Measure;
use crate::options::Options;
use crate::room::{Places, Room};
use crate::tasks::internal_queue;
use crate::telemetry;

/// How many rows a promotion readies at once.
const PROMOTE_MAX: u32 = 1_000;
/// For how long a turn is left to the process that gave it back last: it may have the run in memory.
const OFFER: Duration = Duration::from_millis(50);
/// One claim in so many takes the oldest whatever its priority.
const OLDEST_EVERY: u32 = 8;
const ERROR_DELAY_MIN: Duration = Duration::from_millis(50);
const ERROR_DELAY_MAX: Duration = Duration::from_secs(5);

/// What the claimer should look at.
pub(crate) struct Signals {
    turns: AtomicBool,
    tasks: AtomicBool,
    // Of the engine's own tasks, for which there is room when there is none for others.
    own: AtomicBool,
    // When the next scheduled turn or task is due, as far as is known.
    due_us: AtomicI64,
    claims: AtomicU32,
    // Whether workflows with slots of their own come first in the next claim.
    slots_first: AtomicBool,
    // Wake-ups of turns that the store told of, and how many of them were looked at twice: a turn
    // that was left to another process the first time is everybody's the second time.
    told: AtomicU64,
    looked_again: AtomicU64,
    again_soon: AtomicBool,
    notify: Notify,
}

impl Default for Signals {
    // What was ready or due before the engine started is told by nobody.
    fn default() -> Self {
        Self {
            turns: AtomicBool::new(true),
            tasks: AtomicBool::new(true),
            own: AtomicBool::new(true),
            due_us: AtomicI64::new(i64::MIN),
            claims: AtomicU32::new(0),
            slots_first: AtomicBool::new(false),
            told: AtomicU64::new(0),
            looked_again: AtomicU64::new(0),
            again_soon: AtomicBool::new(false),
            notify: Notify::new(),
        }
    }
}

impl Signals {
    pub(crate) fn turns(&self) {
        if !self.turns.swap(true, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    pub(crate) fn tasks(&self) {
        if !self.tasks.swap(true, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    fn own(&self) {
        self.own.store(true, Ordering::Release);
        self.tasks.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    pub(crate) fn due(&self, at: Timestamp) {
        if self.due_us.fetch_min(at.as_micros(), Ordering::AcqRel) > at.as_micros() {
            self.notify.notify_one();
        }
    }

    pub(crate) fn everything(&self) {
        self.turns.store(true, Ordering::Release);
        self.tasks.store(true, Ordering::Release);
        self.own.store(true, Ordering::Release);
        self.due_us.store(i64::MIN, Ordering::Release);
        self.notify.notify_one();
    }

    fn due_at(&self) -> Option<Timestamp> {
        match self.due_us.load(Ordering::Acquire) {
            i64::MAX => None,
            us => Some(Timestamp::from_micros(us)),
        }
    }
}

/// What is asked of the store in one claim.
#[derive(Default)]
struct Ask {
    routes: Vec<Route>,
    slots: Option<Arc<Room>>,
    tasks: Want,
}

/// What was claimed, and the room that was kept for it until it is begun.
pub(crate) struct Claimed {
    pub(crate) claims: Claims,
    pub(crate) places: Vec<Places>,
}

impl Claimed {
    fn none(now: Timestamp) -> Self {
        let claims = Claims { turns: Vec::new(), tasks: Vec::new(), now };
        Self { claims, places: Vec::new() }
    }
}

/// Claims until the engine stops taking work.
pub(crate) async fn serve(inner: Arc<Inner>) {
    let mut delay = ERROR_DELAY_MIN;
    let mut scan_at = inner.env.elapsed() + inner.options.scan_every;
    while !inner.is_draining() {
        let worked = match inner.claim_once().await {
            Ok(worked) => {
                delay = ERROR_DELAY_MIN;
                worked
            }
            Err(error) => {
                tracing::warn!(%error, "the store does not answer a claim; trying again");
                inner.env.sleep(delay).await;
                delay = (delay * 2).min(ERROR_DELAY_MAX);
                inner.signals.everything();
                continue;
            }
        };
        if worked {
            continue;
        }
        wait(&inner, scan_at).await;
        if inner.options.shared && inner.env.elapsed() >= scan_at {
            scan_at = inner.env.elapsed() + inner.options.scan_every;
            inner.signals.everything();
            inner.rates.forget();
            if let Err(error) = inner.adopt_or_release().await {
                tracing::warn!(%error, "the safety scan failed");
            }
        }
    }
}

// Until a wake-up, the next due time, or the next scan.
async fn wait(inner: &Inner, scan_at: Duration) {
    let mut span = inner.signals.due_at().map(|due| due.since(inner.clock.now()));
    if inner.options.shared {
        let scan = scan_at.saturating_sub(inner.env.elapsed());
        span = Some(span.map_or(scan, |span| span.min(scan)));
    }
    let notified = inner.signals.notify.notified();
    match span {
        // Timers of the real world are as coarse as a millisecond; a little late is right.
        Some(span) => {
            let slept = inner.env.sleep(span.max(Duration::from_micros(500)));
            futures::future::select(std::pin::pin!(notified), slept).await;
        }
        None => notified.await,
    }
}

impl Inner {
    /// One look at what is due and ready. Answers whether there may be more.
    pub(crate) async fn claim_once(self: &Arc<Self>) -> Result<bool, Error> {
        let mut more = self.promote_due().await?;
        let turns = self.signals.turns.swap(false, Ordering::AcqRel);
        let tasks = self.signals.tasks.swap(false, Ordering::AcqRel);
        if !turns && !tasks {
            return Ok(more);
        }
        let pressed = self.pressed();
        // What is ready stays so; when the pressure is gone, everything is looked at.
        self.signals.turns.fetch_or(turns && pressed.turns, Ordering::AcqRel);
        let turns = turns && !pressed.turns;
        let _claiming = self.claiming.lock().await;
        if self.is_draining() {
            return Ok(false);
        }
        let claimed = self.claim_some(turns, tasks, u32::MAX).await;
        match claimed {
            Ok(Some(Claimed { claims, places })) => {
                let max = self.options.claim_max as usize;
                let full_turns = claims.turns.len() >= max;
                self.backlog.store(full_turns, Ordering::Relaxed);
                if full_turns {
                    self.signals.turns.store(true, Ordering::Release);
                }
                if !claims.tasks.is_empty() {
                    self.signals.tasks.store(true, Ordering::Release);
                }
                if claims.tasks.iter().any(|task| task.queue == internal_queue()) {
                    self.signals.own.store(true, Ordering::Release);
                }
                more |= full_turns || !claims.tasks.is_empty();
                if self.is_draining() {
                    // It was asked for before, and is begun no more.
                    self.give_back(&claims).await?;
                    return Ok(false);
                }
                if turns && self.options.shared && claims.turns.is_empty() {
                    self.look_again_soon();
                }
                self.begin_claimed(claims);
                drop(places);
                Ok(more)
            }
            Ok(None) => Ok(more),
            Err(error) => Err(error),
        }
    }

    /// Readies what is due by now. Answers whether there may be more.
    pub(crate) async fn promote_due(&self) -> Result<bool, Error> {
        let due = self.signals.due_us.load(Ordering::Acquire);
        if due == i64::MAX || due > self.clock.now().as_micros() {
            return Ok(false);
        }
        self.signals.due_us.store(i64::MAX, Ordering::Release);
        self.metrics.promotions.add(1);
        let promoted = self.store.promote(PROMOTE_MAX).await;
        let promoted = match promoted {
            Ok(promoted) => promoted,
            Err(error) => {
                self.signals.due_us.fetch_min(due, Ordering::AcqRel);
                return Err(error);
            }
        };
        self.clock.learn(promoted.now);
        if let Some(next) = promoted.next_due {
            // In terms of the estimate: if the store's clock was set back, the same span is waited.
            let at = self.clock.now().plus(next.since(promoted.now));
            self.signals.due_us.fetch_min(at.as_micros(), Ordering::AcqRel);
        }
        if promoted.turns > 0 {
            self.signals.turns.store(true, Ordering::Release);
        }
        if promoted.tasks > 0 {
            self.signals.tasks.store(true, Ordering::Release);
            self.signals.own.store(true, Ordering::Release);
        }
        Ok(promoted.next_due.is_some_and(|next| next <= promoted.now))
    }

    /// Claims as much as there is room for, at most `max` of each. `None` if there is no room, or
    /// nothing that this process serves; then the signals stay up until there is.
    pub(crate) async fn claim_some(
        self: &Arc<Self>,
        turns: bool,
        tasks: bool,
        max: u32,
    ) -> Result<Option<Claimed>, Error> {
        let turns_max = self.up_to_watermark(self.options.turns_max);
        let room = turns_max.saturating_sub(self.turns_held.load(Ordering::Acquire));
        let max = max.min(self.options.claim_max);
        let bound = |room: usize| u32::try_from(room).unwrap_or(u32::MAX).min(max);
        let mut asks: Vec<Ask> = Vec::new();
        let mut rest = Ask::default();
        if turns {
            for (name, registered) in self.models.read().iter() {
                let (queue, name) = (QueueName::default_queue(), RouteName::from(name));
                let route = Route { queue, name };
                match &registered.room {
                    // What has slots of its own is claimed on its own, no more than it has.
                    Some(slots) => asks.push(Ask {
                        routes: vec![route],
                        slots: Some(Arc::clone(slots)),
                        ..Ask::default()
                    }),
                    None => rest.routes.push(route),
                }
            }
        }
        if tasks {
            let room = self.up_to_watermark(self.options.tasks_max);
            let room = room.saturating_sub(self.tasks.taken());
            let room = if self.pressed().tasks { 0 } else { room };
            (rest.tasks.routes, rest.tasks.max) = self.tasks.wanted(bound(room));
            let own = self.signals.own.swap(false, Ordering::AcqRel);
            if rest.tasks.max == 0 && !rest.tasks.routes.is_empty() {
                self.task_backlog.store(true, Ordering::Relaxed);
                self.signals.tasks.store(true, Ordering::Release);
                rest.tasks.routes.clear();
                if own {
                    let (routes, room) = self.tasks.own_wanted();
                    (rest.tasks.routes, rest.tasks.max) = (routes, bound(room));
                    // Those that there is no room for are looked for again.
                    self.signals.own.fetch_or(rest.tasks.max == 0, Ordering::AcqRel);
                }
            }
        }
        let first = match self.signals.slots_first.load(Ordering::Acquire) {
            true => asks.len(),
            false => 0,
        };
        asks.insert(first, rest);
        let mut claimed = None;
        for ask in asks {
            let held = claimed.as_ref().map_or(0, |claimed: &Claimed| claimed.claims.turns.len());
            let left = bound(room.saturating_sub(held)).min(max.saturating_sub(held as u32));
            if left == 0 && !ask.routes.is_empty() {
                self.backlog.fetch_or(ask.slots.is_none(), Ordering::Relaxed);
                self.signals.turns.store(true, Ordering::Release);
            }
            let asked = match self.ask(ask, left).await {
                Ok(asked) => asked,
                // What was claimed already is not to be forgotten.
                Err(error) if claimed.is_some() => {
                    tracing::warn!(%error, "the store does not answer a claim; trying again");
                    self.signals.turns();
                    break;
                }
                Err(error) => {
                    self.signals.turns.fetch_or(turns, Ordering::AcqRel);
                    self.signals.tasks.fetch_or(tasks, Ordering::AcqRel);
                    return Err(error);
                }
            };
            let Some((claims, places)) = asked else { continue };
            let all = claimed.get_or_insert_with(|| Claimed::none(claims.now));
            all.claims.turns.extend(claims.turns);
            all.claims.tasks.extend(claims.tasks);
            all.places.extend(places);
        }
        // Where there is never room for all, each side has its turn.
        if claimed.as_ref().is_some_and(|claimed| !claimed.claims.turns.is_empty()) {
            self.signals.slots_first.fetch_xor(true, Ordering::AcqRel);
        }
        Ok(claimed)
    }

    // Claims one part of what this process serves, at most `left` turns. None if there is nothing to
    // ask for.
    async fn ask(
        self: &Arc<Self>,
        ask: Ask,
        left: u32,
    ) -> Result<Option<(Claims, Option<Places>)>, Error> {
        let mut places = None;
        let mut want = Want { routes: ask.routes, max: left };
        if let Some(slots) = ask.slots.filter(|_| left > 0) {
            let Some(free) = Places::free(self, &slots) else { return Ok(None) };
            want.max = left.min(u32::try_from(free.count).unwrap_or(u32::MAX));
            places = Some(free);
        }
        let none = |want: &Want| want.routes.is_empty() || want.max == 0;
        if none(&want) && none(&ask.tasks) {
            return Ok(None);
        }
        let asked = want.max as usize;
        let claims = self.claim_from(want, ask.tasks).await?;
        // There may be more than there was room for: whoever leaves is to look again.
        if asked > 0 && claims.turns.len() >= asked {
            match places.as_ref().filter(|places| places.count == asked) {
                Some(places) => places.want(),
                None => self.signals.turns.store(true, Ordering::Release),
            }
        }
        Ok(Some((claims, places)))
    }

    async fn claim_from(&self, want_turns: Want, want_tasks: Want) -> Result<Claims, Error> {
        let count = self.signals.claims.fetch_add(1, Ordering::Relaxed);
        let oldest = count % OLDEST_EVERY == OLDEST_EVERY - 1;
        let request = ClaimRequest {
            worker: self.worker,
            turns: want_turns,
            tasks: want_tasks,
            order: if oldest { ClaimOrder::Oldest } else { ClaimOrder::Priority },
            // A host that drives the engine itself says when it looks.
            offer: if self.options.shared && self.options.background {
                OFFER
            } else {
                Duration::ZERO
            },
        };
        self.metrics.claims.add(1);
        let own = |route: &Route| route.queue == internal_queue();
        let others = !request.tasks.routes.iter().all(own);
        let tasks_max = request.tasks.max as usize;
        let Options { worker_group, tasks_max: slots, .. } = &self.options;
        let span = telemetry::claim(self.worker, worker_group, self.tasks.held(), *slots);
        let asked = self.env.elapsed();
        let claims = self.store.claim(request).instrument(span.clone()).await?;
        telemetry::claimed(&span, &claims);
        self.clock.learn(claims.now);
        if tasks_max > 0 {
            let full = claims.tasks.len() >= tasks_max;
            if others {
                self.task_backlog.store(full, Ordering::Relaxed);
            }
            self.metrics.tasks_claimed.add(claims.tasks.len() as u64);
            self.metrics.time(Measure::Claim, "", self.env.elapsed() - asked);
        }
        Ok(claims)
    }

    // The store told of a ready turn and there was none to claim: it may be left to another process,
    // which may be gone.
    fn look_again_soon(self: &Arc<Self>) {
        let told = self.signals.told.load(Ordering::Acquire);
        if self.signals.looked_again.load(Ordering::Acquire) == told
            || self.signals.again_soon.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let inner = Arc::clone(self);
        let look = async move {
            inner.env.sleep(OFFER + Duration::from_millis(1)).await;
            inner.signals.looked_again.store(told, Ordering::Release);
            inner.signals.again_soon.store(false, Ordering::Release);
            inner.signals.turns();
        };
        self.env.spawn(Lane::Service, Box::pin(look));
    }

    async fn give_back(&self, claims: &Claims) -> Result<(), Error> {
        let turns = claims.turns.iter().map(|turn| held(turn.run_key, turn.hold));
        let tasks = claims.tasks.iter().filter_map(|task| {
            let Hold { worker, claim_no } = task.hold()?;
            Some(HeldItem::Task { task_id: task.task_id, worker, claim_no })
        });
        self.store.release(turns.chain(tasks).collect()).await.map(|_| ())
    }

    /// There is room again for something that was left ready.
    pub(crate) fn room_again(self: &Arc<Self>) {
        if self.options.backpressure.is_some() {
            self.pressed();
        }
        if self.signals.turns.load(Ordering::Acquire) || self.signals.tasks.load(Ordering::Acquire)
        {
            self.signals.notify.notify_one();
        }
    }

    /// A wake-up of the store: a hint.
    pub(crate) fn woken(self: &Arc<Self>, wakeup: &Wakeup) {
        match wakeup {
            Wakeup::Turn(route) => {
                if self.models.read().contains_key(route.name.as_str()) {
                    self.signals.told.fetch_add(1, Ordering::AcqRel);
                    self.signals.turns();
                }
            }
            Wakeup::Task(route) if route.queue == internal_queue() => self.signals.own(),
            Wakeup::Task(route) => {
                if self.tasks.serves(route) {
                    self.signals.tasks();
                }
            }
            Wakeup::Due(at) => self.signals.due(*at),
            Wakeup::Control(run_key) => self.poke(*run_key),
            Wakeup::Drain(worker) if *worker == self.worker => self.drain(),
            Wakeup::Drain(_) => {}
            Wakeup::Missed => {
                self.rates.forget();
                self.signals.told.fetch_add(1, Ordering::AcqRel);
                self.signals.everything();
                // Requests to runs that are held here are no work that could be claimed.
                self.missed.notify_one();
            }
        }
    }
}
