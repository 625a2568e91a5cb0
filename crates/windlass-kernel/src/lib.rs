//! The kernel of Windlass: nouns, commit, ledger, limits, retry maths and the [`Store`] trait.
//!
//! It has no I/O, no clock, no randomness and no runtime: times, ids and seeds are arguments, so
//! that the simulator can own them. Read [`commit`] first, then [`store`], then [`ledger`].

pub mod body;
mod breaker;
pub mod canonical;
pub mod census;
pub mod commit;
pub mod digest;
pub mod draft;
pub mod duration;
pub mod error;
pub mod fold;
pub mod ids;
pub mod inspect;
pub mod ledger;
pub mod limits;
pub mod on_end;
pub mod query;
mod rate;
pub mod retry;
pub mod rows;
pub mod store;
pub mod stores;
pub mod summary;
pub mod time;
mod turn;
pub mod verify;

pub use body::{Body, Encoding};
pub use breaker::{Breaker, BreakerPolicy, BreakerRow, Permit, Probe};
pub use census::{Census, Figures, LetterCount, Tally, TaskCount};
pub use commit::{
    CauseCheck, Commit, CommitError, CommitKey, Committed, Conflict, Delivery, NewMessage,
    OnExisting, Op, Refusal, Reschedule, RunChange, RunGuard, SqlValue, Statement, TaskGuard,
    TurnChange,
};
pub use digest::{SetsumDigest, Sha256Digest};
pub use draft::{Draft, End, NewRun};
pub use duration::{IntoDuration, format_duration, parse_duration};
pub use error::{Error, ErrorKind};
pub use ids::{
    EventId, LimitKey, LogId, MessageId, MessageName, ModelName, Namespace, QueueName, RouteName,
    RunId, RunKey, StepKey, TaskId, WorkerKey, WorkflowName,
};
pub use ledger::{
    Actor, CausalRef, ErrorSummary, Event, EventType, Head, Ledger, Seal, Stamp, StorageRef,
};
pub use limits::Limits;
pub use on_end::{EFFECT, OnEnd, derived, end_task_id};
pub use query::{LimitState, Order, Query, Rows, RunsQuery, TaskState, TasksQuery};
pub use rate::{Rate, RateRow, RateSlot};
pub use retry::{Backoff, Decision, GiveUpReason, RetryLimit, RetryPolicy};
pub use rows::{
    BreakerStatus, Consumed, DeadLetter, Hold, LogLevel, LogLine, Message, MessageKind, Route, Run,
    RunStatus, Setting, SettingName, Step, StepStatus, Task, Turn, Wake, Worker, WorkerInfo,
    WorkerStatus,
};
pub use store::{
    Beat, BoxFuture, Capped, ClaimOrder, ClaimRequest, ClaimedTurn, Claims, CommitResults,
    DeleteTrees, Deleted, Fact, Health, HeldItem, Loaded, Looked, Promoted, QueueHealth, Reaped,
    Renewed, RunCount, Store, WakeSink, Wakeup, Want,
};
pub use stores::memory::{Clock, MemoryStore};
pub use summary::{Change, ChangeKind, MapDiff, ValueShape, ValueSummary};
pub use time::Timestamp;
