//! The engine of Windlass: claim, load, decide, commit, dispatch.
//!
//! An [`Engine`] runs workflows on a store. A model advances a run when it gets a [`Turn`]; it writes
//! only through commits of that turn. Time, randomness and tasks come from the [`Env`], so that a
//! simulator can control them.
//!
//! Inside, `parts.rs` connects the components. The claimer (`claim.rs`) claims ready turns and tasks
//! when it gets signals (`signals.rs`) and the worker has capacity (`capacity.rs`). The turn runner
//! (`turn_runner.rs`) takes turns of runs from the cache or the store (`local_runs.rs`), the task runner
//! (`tasks/runner.rs`) runs attempts. Both write through the commit client (`commit.rs`), which passes the
//! effects of a commit to the other components. `control.rs` and
//! the files that it names are the requests of operators, `shutdown.rs` stops it all.

mod admission;
mod breakers;
mod callees;
mod cancel;
mod capacity;
mod carried;
mod changes;
mod claim;
mod clock;
mod commit;
mod commit_with;
mod concurrency;
mod control;
mod core;
mod dead_letters;
pub mod description;
mod engine;
mod enqueued;
mod env;
pub mod events;
pub mod explain;
mod generations;
mod heartbeats;
mod held_run;
mod imported;
mod keyed;
mod letter;
mod lifecycle;
mod local_completion;
mod local_runs;
mod messages;
mod metrics;
mod model;
mod options;
mod parts;
mod pause;
mod pressure;
mod rates;
mod receipts;
mod record_change;
mod records;
mod registry;
pub mod requests;
mod result_message;
mod results;
mod retention;
mod run_cache;
mod schedules;
mod settle;
mod shutdown;
mod signals;
mod start;
mod startup;
mod task_stats;
mod tasks;
pub mod telemetry;
mod templates;
mod terminate;
mod tick;
mod trials;
mod turn;
mod turn_failure;
mod turn_loop;
mod turn_runner;
mod wakeups;
mod why;
mod workers;
mod workflow_counts;

pub use admission::Admission;
pub use breakers::TaskBreaker;
pub use callees::Callees;
pub use changes::{Change, Changes};
pub use clock::Clock;
pub use control::Control;
pub use core::after_write;
pub use dead_letters::{Requeued, Revived};
pub use description::{CancelPolicy, ModelDescription};
pub use engine::{Engine, EngineParts, WeakEngine};
pub use env::{Env, ThreadPool, TokioEnv, Usage, detached_uuid, new_uuid};
pub use imported::tasks_of_imported_record;
pub use keyed::{EventAddress, KeyedWait, SendByKey, SentByKey};
pub use letter::DeadStep;
pub use local_completion::LocalCompletion;
pub use metrics::{Counter, Measure, Metrics, ModelMetric, Recorder};
pub use model::{Creating, GivenUp, Model, Opened, Program, TurnError};
pub use options::{EnqueuedReason, OnEnqueued, Options};
pub use pressure::BackpressureConfig;
pub use receipts::{Receipt, ReceiptError, ReceiptOutcome};
pub use record_change::{RecordChange, conflict_delay};
pub use records::{Document, Listing, NewDocument, PutRecord, Records};
pub use registry::Serving;
pub use requests::{
    ClosedRequest, InboxOrder, InboxPage, InboxQuery, RequestMessage, RequestRef, Requests,
};
pub use result_message::{ActivityResult, AttemptError, ChildResult, ResultError, earlier_errors};
pub use results::{Ended, EndsWatch};
pub use retention::{Archive, Retention, Swept};
pub use schedules::{
    Missed, Overlap, SCHEDULE_WORKFLOW, Schedule, ScheduleState, SchedulesPage, Timing,
};
pub use settle::{EFFECT_DELIVERED, Overdue};
pub use start::{START_EVENTS_MAX, StartEvent, StartRun, Started};
pub use tasks::{
    EFFECTS_QUEUE, FailureCause, TaskBody, TaskContext, TaskFailure, TaskHandler, TaskResult,
    TimeoutKind, panic_text,
};
pub use templates::{HeaderRules, Template, read_headers};
pub use tick::{Tick, Ticked};
pub use turn::{Sent, Turn, refusal};
pub use why::{Blocked, Child, Explanation, Reason, Why};
pub use workflow_counts::{COUNTED_WORKFLOWS_MAX, WorkflowFigure, WorkflowFigures};
