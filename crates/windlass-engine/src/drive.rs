//! Taking turns: a run is opened from memory or from the store, advanced, and put away again.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::json;
use tracing::Instrument as _;
use windlass_kernel::{
    Body, BoxFuture, ClaimedTurn, Claims, End, Error, ErrorKind, HeldItem, Hold, Loaded, Run,
    RunKey, RunStatus, Wake, WorkflowName,
};

use crate::at_hand::Taking;
use crate::claim::Claimed;
use crate::engine::{Engine, Inner, Registered};
use crate::env::Lane;
use crate::metrics::Measure;
use crate::model::{GivenUp, Model, Opened, Program, TurnError};
use crate::room::Places;
use crate::slot::Slot;
use crate::sticky::Parked;
use crate::tasks::panic_text;
use crate::telemetry;
use crate::turn::Turn;

/// What a run's turn is begun from.
pub(crate) enum Start {
    New(Box<Run>),
    Memory(Box<Parked>, ClaimedTurn),
    Store(Box<Loaded>, ClaimedTurn),
    AtHand(Box<Parked>, Taking),
}

impl Start {
    fn run(&self) -> &Run {
        match self {
            Start::New(run) => run,
            Start::Memory(parked, _) | Start::AtHand(parked, _) => &parked.run,
            Start::Store(loaded, _) => &loaded.run,
        }
    }
}

// A turn that is held counts until it is put away, however that comes about.
struct Counted {
    inner: Arc<Inner>,
    _place: Option<Places>,
}

impl Counted {
    fn new(inner: &Arc<Inner>, workflow: &WorkflowName) -> Self {
        inner.turns_held.fetch_add(1, Ordering::AcqRel);
        let room = inner.models.read().get(workflow).and_then(|served| served.room.clone());
        Self { inner: Arc::clone(inner), _place: room.map(|room| Places::one(inner, &room)) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.inner.turns_held.fetch_sub(1, Ordering::AcqRel);
        self.inner.room_again();
    }
}

impl Inner {
    /// Notes that a run is held here, before the store says so: what the store says is held and
    /// this process does not know is given back.
    pub(crate) fn hold(&self, run_key: RunKey) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        if let Some(old) = self.live.lock().insert(run_key, Arc::clone(&slot)) {
            old.lose();
        }
        slot
    }

    /// Forgets a run that is no longer held here.
    pub(crate) fn unhold(&self, run_key: RunKey, slot: &Arc<Slot>) {
        let mut live = self.live.lock();
        if live.get(&run_key).is_some_and(|now| Arc::ptr_eq(now, slot)) {
            live.remove(&run_key);
        }
    }

    /// Takes the first turn of a run that was created as held by this worker, unless a claim has given
    /// it the run since: what was asked for may be answered late. `slot` is what was noted before.
    pub(crate) fn begin_new(self: &Arc<Self>, run: Box<Run>, slot: Option<Arc<Slot>>) {
        if let Some(turns) = self.first_turns(run, slot) {
            self.env.spawn(Lane::User, turns);
        }
    }

    /// As [`Inner::begin_new`], for a task that was spawned already.
    pub(crate) fn first_turns(
        self: &Arc<Self>,
        run: Box<Run>,
        slot: Option<Arc<Slot>>,
    ) -> Option<BoxFuture<'static, ()>> {
        let slot = {
            let mut live = self.live.lock();
            match (live.get(&run.run_key), slot) {
                (None, None) => {
                    let slot = Arc::new(Slot::default());
                    live.insert(run.run_key, Arc::clone(&slot));
                    slot
                }
                (Some(known), Some(slot)) if Arc::ptr_eq(known, &slot) && !slot.is_lost() => slot,
                _ => return None,
            }
        };
        let counted = Counted::new(self, &run.workflow);
        Some(Box::pin(Arc::clone(self).turns(Start::New(run), slot, None, counted)))
    }

    /// Takes claimed turns and tasks.
    pub(crate) fn begin_claimed(self: &Arc<Self>, claims: Claims) {
        for task in claims.tasks {
            self.begin_task(task);
        }
        self.begin_turns(claims.turns, None);
    }

    pub(crate) fn begin_turns(
        self: &Arc<Self>,
        turns: Vec<ClaimedTurn>,
        steps_left: Option<Arc<AtomicI64>>,
    ) {
        let mut to_load = Vec::new();
        for claimed in turns {
            let run_key = claimed.run_key;
            let known = self.live.lock().get(&run_key).cloned();
            let claimed = match known {
                Some(slot) => match slot.follow(claimed) {
                    Some(claimed) => claimed,
                    None => {
                        // The task may have looked for it just before.
                        self.follow_if_gone(run_key, &slot, &mut to_load);
                        continue;
                    }
                },
                None => claimed,
            };
            self.begin_one(claimed, &steps_left, &mut to_load);
        }
        if to_load.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        let load = async move { inner.load_and_begin(to_load, steps_left).await };
        self.env.spawn(Lane::User, Box::pin(load));
    }

    fn begin_one(
        self: &Arc<Self>,
        claimed: ClaimedTurn,
        steps_left: &Option<Arc<AtomicI64>>,
        to_load: &mut Vec<(ClaimedTurn, Arc<Slot>, Counted)>,
    ) {
        let slot = self.hold(claimed.run_key);
        let parked = self.sticky.lock().take(claimed.run_key, claimed.head);
        match parked {
            Some(parked) => {
                let start = Start::Memory(Box::new(parked), claimed);
                self.spawn(start, slot, steps_left.clone());
            }
            None => {
                let counted = Counted::new(self, &claimed.workflow);
                to_load.push((claimed, slot, counted));
            }
        }
    }

    fn follow_if_gone(
        self: &Arc<Self>,
        run_key: RunKey,
        slot: &Arc<Slot>,
        to_load: &mut Vec<(ClaimedTurn, Arc<Slot>, Counted)>,
    ) {
        let alive = self.live.lock().get(&run_key).is_some_and(|now| Arc::ptr_eq(now, slot));
        if !alive && let Some(claimed) = slot.take_next() {
            self.begin_one(claimed, &None, to_load);
        }
    }

    async fn load_and_begin(
        self: Arc<Self>,
        to_load: Vec<(ClaimedTurn, Arc<Slot>, Counted)>,
        steps_left: Option<Arc<AtomicI64>>,
    ) {
        let keys: Vec<_> = to_load.iter().map(|(claimed, ..)| claimed.run_key).collect();
        let loaded = match self.store.load(keys).await {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::warn!(%error, "claimed runs cannot be read; their turns are given back");
                let mut holds = Vec::new();
                for (claimed, slot, _) in &to_load {
                    self.unhold(claimed.run_key, slot);
                    holds.push(held(claimed.run_key, claimed.hold));
                }
                let _ = self.store.release(holds).await;
                return;
            }
        };
        let mut loaded = loaded.into_iter().peekable();
        for (claimed, slot, counted) in to_load {
            // A run whose row is gone is left out; the others keep their order.
            let found = loaded.next_if(|loaded| loaded.run.run_key == claimed.run_key);
            match found {
                Some(found) => {
                    let start = Start::Store(Box::new(found), claimed);
                    self.spawn_counted(start, slot, steps_left.clone(), counted);
                }
                None => self.unhold(claimed.run_key, &slot),
            }
        }
    }

    pub(crate) fn spawn(
        self: &Arc<Self>,
        start: Start,
        slot: Arc<Slot>,
        steps: Option<Arc<AtomicI64>>,
    ) {
        let counted = Counted::new(self, &start.run().workflow);
        self.spawn_counted(start, slot, steps, counted);
    }

    fn spawn_counted(
        self: &Arc<Self>,
        start: Start,
        slot: Arc<Slot>,
        steps_left: Option<Arc<AtomicI64>>,
        counted: Counted,
    ) {
        let turns = Arc::clone(self).turns(start, slot, steps_left, counted);
        self.env.spawn(Lane::User, Box::pin(turns));
    }

    // Every run in flight has one of these, so what happens to few of them is in boxes of its own: with
    // all of it inside, the task of a run was 17 KiB that had to be moved about.
    fn turns(
        self: Arc<Self>,
        start: Start,
        slot: Arc<Slot>,
        steps_left: Option<Arc<AtomicI64>>,
        counted: Counted,
    ) -> impl Future<Output = ()> + Send {
        let inner = self;
        async move {
            let run_key = start.run().run_key;
            let limited = start.run().turn.limit_key.is_some();
            let turns = AssertUnwindSafe(inner.take_turns(start, &slot, steps_left)).catch_unwind();
            // What is given back when the engine stops is not put away: it is forgotten.
            if let Some(Err(panic)) = inner.until_stopped(turns).await {
                Box::pin(inner.panicked(run_key, &slot, panic_text(&*panic))).await;
            }
            inner.unhold(run_key, &slot);
            slot.put_away();
            drop(counted);
            // A turn that was claimed while this one failed is not forgotten.
            if !inner.is_stopped()
                && let Some(claimed) = slot.take_next()
            {
                inner.begin_turns_again(claimed);
            }
            if limited {
                // The store need not say that a slot of a limit has come back.
                inner.signals.everything();
            }
        }
    }

    // Nobody would take a run from a worker that lives: what panicked is blocked like any other code
    // that does not fit.
    async fn panicked(self: &Arc<Self>, run_key: RunKey, slot: &Arc<Slot>, panic: String) {
        let message = format!("the turn panicked: {panic}");
        let error = Error::new(ErrorKind::Invalid, "WORKFLOW_PANICKED", message);
        let loaded = match self.store.load(vec![run_key]).await {
            Ok(loaded) => loaded.into_iter().next(),
            Err(source) => {
                tracing::error!(%run_key, %error, %source, "a run stays held");
                None
            }
        };
        let Some(Loaded { run, steps, .. }) = loaded else { return };
        let Some(hold) = run.turn.hold().filter(|hold| hold.worker == self.worker) else { return };
        let mut turn = Turn::new(Arc::clone(self), Box::new(run), hold, Arc::clone(slot));
        let last = steps.iter().map(|step| step.updated_at).max();
        turn.rise_above(last.unwrap_or(turn.run.updated_at));
        self.failed(turn, TurnError::Blocked(error)).await;
    }

    // Takes a turn, and the next ones as long as they were claimed meanwhile.
    async fn take_turns(
        self: &Arc<Self>,
        start: Start,
        slot: &Arc<Slot>,
        steps_left: Option<Arc<AtomicI64>>,
    ) {
        let opened = self.open(start, slot).await;
        let Some((mut program, mut turn)) = opened else { return };
        turn.steps_left = steps_left;
        loop {
            self.metrics.turns.add(1);
            let taken = self.take_turn(&mut *program, &mut turn).await;
            if turn.taking.is_some() {
                // Nothing was written, and the program was told of a result that is not its own yet.
                // Whoever waits for the task's end hears of it when the turn goes, and then the run
                // must be free to be taken.
                drop(program);
                self.unhold(turn.run.run_key, slot);
                return;
            }
            if let Err(error) = taken {
                // Dropping a program must not look like something that the program did.
                drop(program);
                Box::pin(self.failed(turn, error)).await;
                return;
            }
            if turn.run.status.is_ended() {
                let took = turn.now().since(turn.run.created_at);
                self.metrics.time(Measure::Workflow, turn.run.workflow.as_str(), took);
                return;
            }
            let mut live = self.live.lock();
            let Some(claimed) = slot.take_next() else {
                if live.get(&turn.run.run_key).is_some_and(|s| Arc::ptr_eq(s, slot)) {
                    live.remove(&turn.run.run_key);
                }
                let unread = turn.has_unread();
                let Turn { run, mailbox, read_to, .. } = turn;
                let parked = Parked { run, program, mailbox, read_to, unread };
                // Before anybody can find that the turn is over: a result that comes now is told at
                // hand.
                let gone = self.sticky.lock().put(parked);
                drop(live);
                self.metrics.evictions.add(gone.len() as u64);
                return;
            };
            drop(live);
            if claimed.head != turn.run.head {
                // Somebody else had a turn in between: what is in memory is of no use.
                drop(program);
                self.begin_turns_again(claimed);
                return;
            }
            turn.hold = claimed.hold;
            turn.accepted = turn.accepted.max(claimed.accepted);
            turn.released = false;
        }
    }

    fn begin_turns_again(self: &Arc<Self>, claimed: ClaimedTurn) {
        let mut to_load = Vec::new();
        self.begin_one(claimed, &None, &mut to_load);
        let inner = Arc::clone(self);
        let load = async move { inner.load_and_begin(to_load, None).await };
        self.env.spawn(Lane::User, Box::pin(load));
    }

    async fn take_turn(
        self: &Arc<Self>,
        program: &mut dyn Program,
        turn: &mut Turn,
    ) -> Result<(), TurnError> {
        if turn.has_unread() {
            Box::pin(turn.read_messages()).await?;
        }
        // Control requests come before any user code. A paused run has a turn only to read them.
        let paused = turn.run.status == RunStatus::Paused;
        if (paused || turn.control().is_some()) && Box::pin(turn.obey()).await? {
            return Ok(());
        }
        if turn.is_draining() {
            return Err(TurnError::Store(stopping()));
        }
        let span = telemetry::turn(&turn.run, turn.hold.worker);
        turn.begin_replay(&span);
        // What the turn asks for hangs below it; the row in the store keeps where the run began.
        let began_in = turn.run.trace.clone();
        if let Some(trace) = telemetry::traceparent(&span) {
            turn.run.trace = Some(trace);
        }
        let taken = program.turn(turn).instrument(span.clone()).await;
        turn.run.trace = began_in;
        turn.replayed();
        telemetry::turn_ended(&span, &turn.run);
        taken
    }

    async fn open(
        self: &Arc<Self>,
        start: Start,
        slot: &Arc<Slot>,
    ) -> Option<(Box<dyn Program>, Turn)> {
        let (opened, turn) = match start {
            Start::New(run) => {
                let hold = run.turn.hold()?;
                let Registered { model, .. } = self.registered(&run.workflow)?;
                let opened = model.open(Opened::New(&run));
                (opened, Turn::new(Arc::clone(self), run, hold, Arc::clone(slot)))
            }
            Start::Memory(parked, claimed) => {
                let Parked { run, program, mailbox, read_to, .. } = *parked;
                let mut turn = Turn::new(Arc::clone(self), run, claimed.hold, Arc::clone(slot));
                (turn.mailbox, turn.read_to, turn.accepted) = (mailbox, read_to, claimed.accepted);
                (Ok(program), turn)
            }
            Start::AtHand(parked, taking) => {
                let Parked { run, program, mailbox, read_to, .. } = *parked;
                // Its number is not known before the turn is taken.
                let hold = Hold { worker: self.worker, claim_no: 0 };
                let mut turn = Turn::new(Arc::clone(self), run, hold, Arc::clone(slot));
                // What was accepted since is read after the first commit, which says how much it is.
                (turn.mailbox, turn.read_to, turn.accepted) = (mailbox, read_to, read_to);
                turn.taking = Some(Box::new(taking));
                (Ok(program), turn)
            }
            Start::Store(loaded, claimed) => {
                self.metrics.replays.add(1);
                let model = self.registered(&claimed.workflow).map(|registered| registered.model);
                let opened = match model {
                    _ if claimed.reclaims >= self.options.reclaims_max => {
                        Box::pin(self.no_progress(*loaded, claimed, model)).await;
                        return None;
                    }
                    Some(model) => model.open(Opened::Loaded(&loaded)),
                    None => Err(unknown_workflow(&loaded.run)),
                };
                let Loaded { run, messages, steps } = *loaded;
                let hold = claimed.hold;
                let mut turn = Turn::new(Arc::clone(self), Box::new(run), hold, Arc::clone(slot));
                let last = steps.iter().map(|step| step.updated_at).max();
                turn.rise_above(last.unwrap_or(turn.run.updated_at));
                turn.mailbox = messages.into_iter().map(|m| (m.seq, m)).collect();
                turn.loaded = true;
                (opened, turn)
            }
        };
        match opened {
            Ok(program) => Some((program, turn)),
            Err(error) => {
                Box::pin(self.failed(turn, TurnError::Blocked(error))).await;
                None
            }
        }
    }

    // A turn that was taken from dead workers again and again would kill the next one too.
    async fn no_progress(
        self: &Arc<Self>,
        loaded: Loaded,
        claimed: ClaimedTurn,
        model: Option<Arc<dyn Model>>,
    ) {
        let message = format!(
            "the turn was taken from {} workers that died or stalled, and none of them made \
             progress",
            claimed.reclaims
        );
        let slot = Arc::new(Slot::default());
        let run = Box::new(loaded.run.clone());
        let mut turn = Turn::new(Arc::clone(self), run, claimed.hold, slot);
        let last = loaded.steps.iter().map(|step| step.updated_at).max();
        turn.rise_above(last.unwrap_or(turn.run.updated_at));
        let mut draft = turn.draft();
        let (name, message) = ("NoProgress", message.as_str());
        let (told, drafted) = (&mut turn, &mut draft);
        let given_up = GivenUp { loaded: &loaded, turn: told, draft: drafted, name, message };
        let ended = model.map_or(Ok(false), |model| model.give_up(given_up));
        let ended = ended.unwrap_or_else(|error| {
            tracing::warn!(run_key = %turn.run.run_key, %error, "a run leaves no dead letter");
            draft = turn.draft();
            false
        });
        let ended = match ended {
            true => Ok(()),
            false => Body::of(&json!({ "name": name, "message": message })).and_then(|body| {
                let payload = json!({ "error": { "name": name } });
                turn.end(&mut draft, "workflow.failed", &payload, End::Errored(body))
            }),
        };
        let ended = match ended {
            Ok(()) => turn.commit(draft).await.map(|_| ()),
            Err(error) => Err(TurnError::Blocked(error)),
        };
        if let Err(error) = ended {
            tracing::warn!(run_key = %turn.run.run_key, ?error, "a run cannot be given up");
        }
    }

    // What becomes of a turn that did not come to its end.
    async fn failed(self: &Arc<Self>, mut turn: Turn, error: TurnError) {
        match error {
            TurnError::Lost => {
                self.metrics.turns_lost.add(1);
                // If it is held here nevertheless, nobody would ever give it back. If it is not,
                // this does nothing: the claim's number has changed.
                let item = held(turn.run.run_key, turn.hold);
                if let Err(error) = self.store.release(vec![item]).await {
                    tracing::warn!(%error, "a lost turn cannot be given back");
                }
            }
            TurnError::Store(error) => {
                tracing::debug!(run_key = %turn.run.run_key, %error, "a turn is given back");
                let item = held(turn.run.run_key, turn.hold);
                if let Err(error) = self.store.release(vec![item]).await {
                    tracing::warn!(%error, "a turn cannot be given back; it will be found again");
                }
            }
            TurnError::Blocked(error) => {
                self.metrics.turns_blocked.add(1);
                tracing::error!(
                    run_key = %turn.run.run_key, workflow = %turn.run.workflow, %error,
                    "a run waits for another build or an operator"
                );
                if let Err(error) = self.block(&mut turn, &error).await {
                    tracing::warn!(?error, "a run that is blocked cannot be put away");
                }
            }
        }
    }

    // Leaves the reason where people look for it, once, and gives the turn back for a while.
    async fn block(&self, turn: &mut Turn, error: &Error) -> Result<(), TurnError> {
        turn.refresh().await?;
        if turn.released {
            return Ok(());
        }
        // Code that cannot even be opened reads no requests: they are obeyed all the same.
        if turn.has_unread() {
            turn.read_messages().await?;
        }
        let paused = turn.run.status == RunStatus::Paused;
        if paused || turn.control().is_some() {
            match turn.obey().await {
                Ok(false) => {}
                // A request that does not hold must not keep the turn from being given back.
                Err(TurnError::Blocked(_)) => turn.refresh().await?,
                obeyed => return obeyed.map(|_| ()),
            }
        }
        let reason = json!({
            "code": error.code(),
            "reason": error.to_string(),
            "build": self.options.version,
        });
        let mut draft = turn.draft();
        if !self.blocked_before(turn, &reason).await {
            let stamp = turn.stamp();
            draft.event("workflow.blocked", &reason, stamp).map_err(TurnError::Blocked)?;
            // Panics and errors of users may hold what PostgreSQL cannot.
            let message = error.to_string().replace('\0', "\u{fffd}");
            draft.log(windlass_kernel::LogLine {
                log_id: turn.new_log_id(stamp.at),
                run_key: turn.run.run_key,
                step_key: None,
                attempt: None,
                level: windlass_kernel::LogLevel::Error,
                category: "system".into(),
                message: message.chars().take(2_000).collect::<String>().into(),
                data: None,
                replay: false,
                created_at: stamp.at,
            });
        }
        if turn.run.status == RunStatus::Active {
            draft.status(RunStatus::Waiting);
        }
        let again = turn.now().plus(self.options.blocked_retry);
        draft.release(Wake::At(again), turn.read_to);
        turn.commit(draft).await.map(|_| ())
    }

    async fn blocked_before(&self, turn: &Turn, reason: &serde_json::Value) -> bool {
        let query = windlass_kernel::Query::Event { event_id: turn.run.cursor };
        let rows = self.store.list(query).await.and_then(|rows| rows.events());
        let last = rows.ok().and_then(|events| events.into_iter().next());
        last.is_some_and(|event| {
            event.event_type.as_str() == "workflow.blocked"
                && event.payload_json().is_ok_and(|payload| payload == *reason)
        })
    }
}

impl Engine {
    /// For hosts that drive the engine themselves: readies what is due, takes up to `runs_max` turns
    /// that are ready, begins at most `steps_max` steps in them, and waits until the turns are given
    /// back. Answers how many turns were taken.
    pub async fn tick(&self, runs_max: u32, steps_max: Option<u32>) -> Result<u32, Error> {
        let inner = &self.inner;
        inner.signals.everything();
        inner.promote_due().await?;
        let claimed = inner.claim_some(true, true, runs_max).await?;
        let Some(Claimed { claims, places }) = claimed else { return Ok(0) };
        let count = claims.turns.len() as u32;
        let steps_left = steps_max.map(|max| Arc::new(AtomicI64::new(i64::from(max))));
        let keys: Vec<RunKey> = claims.turns.iter().map(|claimed| claimed.run_key).collect();
        let tasks = claims.tasks.len() as u32;
        for task in claims.tasks {
            inner.begin_task(task);
        }
        inner.begin_turns(claims.turns, steps_left);
        drop(places);
        let busy = || inner.tasks.held() + inner.tasks.own_held() > 0;
        while busy() || keys.iter().any(|key| inner.live.lock().contains_key(key)) {
            inner.env.sleep(Duration::from_millis(1)).await;
        }
        Ok(count + tasks)
    }
}

pub(crate) fn held(run_key: RunKey, hold: Hold) -> HeldItem {
    HeldItem::Turn { run_key, worker: hold.worker, claim_no: hold.claim_no }
}

fn stopping() -> Error {
    Error::new(ErrorKind::Unavailable, "ENGINE_STOPPING", "the engine is stopping")
}

fn unknown_workflow(run: &Run) -> Error {
    let message = format!("no workflow named {:?} is registered in this process", run.workflow);
    Error::new(ErrorKind::NotFound, "WORKFLOW_NOT_FOUND", message)
}
