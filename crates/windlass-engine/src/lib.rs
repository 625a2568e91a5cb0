//! The engine of Windlass: claim, load, decide, commit, dispatch.
//!
//! An [`Engine`] stands on a store and serves workflows through models. A model advances a run when
//! it is given a [`Turn`]; everything durable it does is a commit of that turn. Time, randomness and
//! tasks come from the [`Env`], so that a simulator can own them.

mod admission;
mod at_hand;
mod beats;
mod breakers;
mod cancel;
mod claim;
mod clock;
mod control;
mod dead_letters;
mod drive;
mod engine;
mod env;
mod metrics;
mod model;
mod options;
mod pause;
mod pressure;
mod rates;
mod results;
mod retention;
mod room;
mod schedules;
mod settle;
mod slot;
mod start;
mod sticky;
mod tallies;
mod tasks;
pub mod telemetry;
mod templates;
mod turn;
mod why;
mod workers;

pub use admission::Admission;
pub use at_hand::AtHand;
pub use breakers::TaskBreaker;
pub use clock::Clock;
pub use control::Control;
pub use dead_letters::{Requeued, Revived};
pub use engine::{Engine, EngineParts, Serving};
pub use env::{Env, Lane, TokioEnv, Usage, new_uuid};
pub use metrics::{Counter, Measure, Metrics, Recorder};
pub use model::{CalledOff, GivenUp, Manners, Model, Opened, Program, TurnError};
pub use options::{EnqueuedReason, OnEnqueued, Options};
pub use pressure::BackpressureConfig;
pub use results::Ended;
pub use retention::{Archive, Retention, Swept};
pub use schedules::{
    Missed, Overlap, SCHEDULE_WORKFLOW, Schedule, ScheduleState, SchedulesPage, Timing,
};
pub use settle::{NOT_HERE, Overdue, RATE_LIMITED};
pub use start::{StartRun, Started};
pub use tasks::{
    EFFECTS_QUEUE, TaskBody, TaskContext, TaskFailure, TaskHandler, TaskResult, panic_text,
};
pub use templates::{HeaderRules, Template, read_headers};
pub use turn::{Sent, Turn, refusal};
pub use why::{Blocked, Child, Explanation, Reason, Why, is_being_done};
