//! The program of a lane: one worker at a time collects members, creates batches and reads their results.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use windlass_engine::description::{EventDescription, EventMeaning, StepDescription, StepRole};
use windlass_engine::{
    Engine, EngineParts, Model, ModelDescription, Opened, Program, Serving, Turn, TurnError,
};
use windlass_kernel::{
    Body, BoxFuture, Error, EventType, LoadSteps, Message, MessageKind, ModelName, Step as StepRow,
    StepKind, Timestamp, Wake, WorkflowName,
};

use super::LaneProvider;
use super::state::{
    Ask, BATCHES_PER_GENERATION, IN_FLIGHT_MAX, Join, LaneInput, LaneState, MESSAGE,
};
use crate::agents::batch::BatchProvider;
use crate::kit;

const MODEL: ModelName = ModelName::from_static("batches");
/// A batch at the provider.
pub(super) const BATCH: StepKind = StepKind::from_static("batch");
/// Members of a batch.
pub(super) const MEMBERS: StepKind = StepKind::from_static("members");

pub(super) const GATHERED: EventType = EventType::from_static("continuation.gathered");
pub(super) const INTENDED: EventType = EventType::from_static("continuation.intended");
pub(super) const SUBMITTED: EventType = EventType::from_static("continuation.submitted");
pub(super) const RETRIED: EventType = EventType::from_static("continuation.retried");
pub(super) const COMPLETED: EventType = EventType::from_static("continuation.completed");
pub(super) const FAILED: EventType = EventType::from_static("continuation.failed");
pub(super) const ASKED: EventType = EventType::from_static("continuation.asked");

static STEPS: [StepDescription; 2] =
    [StepDescription::new(BATCH, StepRole::Work), StepDescription::new(MEMBERS, StepRole::Record)];

static EVENTS: [EventDescription; 7] = [
    EventDescription::new(GATHERED, EventMeaning::Other),
    EventDescription::opening(INTENDED, EventMeaning::ActivityScheduled),
    EventDescription::new(SUBMITTED, EventMeaning::Other),
    EventDescription::new(RETRIED, EventMeaning::ActivityRetried),
    EventDescription::new(COMPLETED, EventMeaning::ActivityCompleted),
    EventDescription::new(FAILED, EventMeaning::ActivityFailed),
    EventDescription::new(ASKED, EventMeaning::Other),
];

/// The model of lanes.
pub static LANES: ModelDescription = {
    let mut model = ModelDescription::new(MODEL);
    model.steps = &STEPS;
    model.events = &EVENTS;
    model.load = &LoadSteps::Open;
    model
};

struct LaneModel {
    served: LaneProvider,
    engine: EngineParts,
}

/// Serves the lanes of a provider.
pub(super) fn register(
    engine: &Engine,
    workflow: WorkflowName,
    served: LaneProvider,
) -> Result<(), Error> {
    let model = LaneModel { served, engine: engine.parts() };
    engine.register_internal(workflow, Arc::new(model), Serving::default())
}

impl Model for LaneModel {
    fn description(&self) -> &'static ModelDescription {
        &LANES
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let run = opened.run();
        let input: LaneInput = run.input.read()?;
        let state: Option<LaneState> = run.state.as_ref().map(Body::read).transpose()?;
        let new = || LaneState { durations: input.durations.clone(), ..LaneState::default() };
        let state = state.unwrap_or_else(new);
        Ok(Box::new(LaneProgram {
            served: self.served.clone(),
            engine: self.engine.clone(),
            input,
            state,
            rows: opened.steps().to_vec(),
            flush: false,
            waiting: Waiting::default(),
        }))
    }
}

/// A lane in memory.
pub(super) struct LaneProgram {
    pub(super) served: LaneProvider,
    pub(super) engine: EngineParts,
    pub(super) input: LaneInput,
    pub(super) state: LaneState,
    /// The open rows: batches and their members.
    pub(super) rows: Vec<StepRow>,
    /// Somebody asked to send what waits now.
    pub(super) flush: bool,
    pub(super) waiting: Waiting,
}

/// The messages that nobody has consumed. Each is read once: a turn must not read all of them for every new one.
#[derive(Default)]
pub(super) struct Waiting {
    read_to: u64,
    /// The calls that wait for a batch, by the number of their message, with the time at which they asked.
    pub(super) joins: BTreeMap<u64, (Timestamp, Join)>,
    // The bytes that they add to a batch.
    bytes: u64,
    // The requests of operators.
    asks: Vec<u64>,
}

impl Waiting {
    fn read(&mut self, turn: &Turn) {
        for (seq, message) in turn.mailbox.range(self.read_to + 1..) {
            match ask_of(message) {
                Some(Ask::Join(join)) => {
                    self.bytes += join.bytes_in_batch();
                    self.joins.insert(*seq, (message.sent_at, join));
                }
                _ if message.kind == MessageKind::Control => {}
                _ => self.asks.push(*seq),
            }
            self.read_to = *seq;
        }
    }

    pub(super) fn remove(&mut self, seq: u64) {
        if let Some((_, join)) = self.joins.remove(&seq) {
            self.bytes -= join.bytes_in_batch();
        }
    }
}

impl LaneProgram {
    async fn advance(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        loop {
            if kit::apply_control(turn).await? {
                return Ok(());
            }
            if turn.is_draining() || !turn.take_step() {
                return self.park(turn, Wake::Now).await;
            }
            self.commands(turn).await?;
            if self.state.filling.is_some() {
                self.fill(turn).await?;
                continue;
            }
            let now = turn.now();
            let due = |at: Timestamp| at <= now;
            if let Some(index) = self.state.in_flight.iter().position(|batch| due(batch.next)) {
                self.advance_batch(turn, index).await?;
                continue;
            }
            // A request to send what waits says nothing about calls that come later.
            self.flush &= !self.waiting.joins.is_empty();
            let flush_at = self.flush_at();
            if flush_at.is_some_and(due) {
                self.begin_filling();
                continue;
            }
            if self.may_rotate(turn) {
                return self.next_generation(turn).await;
            }
            let batches = self.state.in_flight.iter().map(|batch| batch.next);
            let wake = batches.chain(flush_at).min().map_or(Wake::OnMessage, Wake::At);
            return self.park(turn, wake).await;
        }
    }

    /// The provider's batches.
    pub(super) fn provider(&self) -> Result<&dyn BatchProvider, TurnError> {
        self.served.provider.batches().ok_or_else(|| {
            TurnError::Blocked(Error::corrupt("the provider of a lane has no batches"))
        })
    }

    async fn park(&mut self, turn: &mut Turn, wake: Wake) -> Result<(), TurnError> {
        let mut draft = turn.draft();
        kit::release(turn, &mut draft, wake);
        turn.commit(draft).await.map(|_| ())
    }

    // When the calls that wait are sent.
    fn flush_at(&self) -> Option<Timestamp> {
        let options = &self.served.options;
        let (_, (first, _)) = self.waiting.joins.first_key_value()?;
        if self.state.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let open = self.state.closed_until.unwrap_or(Timestamp::ZERO);
        // Further calls cannot join before these are consumed.
        let members_max = self.members_max().min(self.engine.limits.unread_messages_max);
        let full = self.waiting.joins.len() >= members_max
            || self.waiting.bytes >= self.bytes_max() as u64;
        if self.flush || full {
            return Some(open);
        }
        let wait = match self.state.in_flight.is_empty() {
            true => options.gather,
            false => options.age_max,
        };
        Some(first.plus(wait).max(open))
    }

    pub(super) fn members_max(&self) -> usize {
        let limits = self.served.provider.batches().map(BatchProvider::limits);
        let provider = limits.map_or(usize::MAX, |limits| limits.members_max);
        self.served.options.members_max.min(provider)
    }

    pub(super) fn bytes_max(&self) -> usize {
        let limits = self.served.provider.batches().map(|batches| batches.limits().bytes_max);
        self.served.options.bytes_max.min(limits.unwrap_or(usize::MAX))
    }

    // Requests of operators.
    async fn commands(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        self.waiting.read(turn);
        let asks = std::mem::take(&mut self.waiting.asks);
        let asked: Vec<Message> =
            asks.iter().filter_map(|seq| turn.mailbox.get(seq).cloned()).collect();
        for message in asked {
            let ask = ask_of(&message);
            let mut state = self.state.clone();
            let payload = match &ask {
                Some(Ask::Flush) => json!({ "asked": "flush" }),
                Some(Ask::Cancel { intent }) => {
                    let now = turn.now();
                    let batches = state.in_flight.iter_mut();
                    for batch in batches.filter(|batch| batch.intent == *intent) {
                        (batch.cancel, batch.next) = (true, now);
                    }
                    json!({ "asked": "cancel", "intent": intent })
                }
                _ => json!({ "asked": "unknown" }),
            };
            let mut draft = turn.draft();
            let stamp = turn.stamp();
            let by = windlass_kernel::StepKey::from_stored("lane");
            draft.consume(ASKED, &payload, &message, by, stamp).map_err(TurnError::Blocked)?;
            draft.state(Body::of(&state).map_err(TurnError::Blocked)?, turn.stamp());
            turn.commit(draft).await?;
            turn.mailbox.remove(&message.seq);
            self.state = state;
            self.flush |= matches!(ask, Some(Ask::Flush));
        }
        Ok(())
    }

    fn may_rotate(&self, turn: &Turn) -> bool {
        self.state.batches >= BATCHES_PER_GENERATION
            && self.state.in_flight.is_empty()
            && turn.mailbox.is_empty()
    }

    // A member that asks the generation which ends here is refused, and asks the next one.
    async fn next_generation(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let mut draft = turn.draft();
        let input = LaneInput { durations: self.state.durations.clone(), ..self.input.clone() };
        let input = Body::of(&input).map_err(TurnError::Blocked)?;
        kit::continue_as_new(turn, &mut draft, input).map_err(TurnError::Blocked)?;
        turn.commit(draft).await.map(|_| ())
    }

    /// Takes an open row.
    pub(super) fn row(&self, key: &str) -> Option<&StepRow> {
        self.rows.iter().find(|row| row.step_key.as_str() == key)
    }
}

/// Reads a message to a lane.
pub(super) fn ask_of(message: &Message) -> Option<Ask> {
    let ours = message.kind == MessageKind::ActivityResult && message.name.as_str() == MESSAGE;
    message.body.as_ref().filter(|_| ours)?.read().ok()
}

impl Program for LaneProgram {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(self.advance(turn))
    }

    fn bytes(&self) -> usize {
        let bodies = self.rows.iter().filter_map(|row| row.input.as_ref());
        1_000 + bodies.map(Body::len).sum::<usize>()
    }
}
