//! The kernel of Windlass: rows, commits, the ledger, limits, retry decisions and the [`Store`]
//! trait.
//!
//! The kernel has no I/O, no clock, no randomness and no async runtime. Times, ids and seeds are
//! arguments, so that the simulator can control them. Read [`commit`] first, then [`store`], then
//! [`ledger`].

pub mod bodies;
pub mod body;
mod breaker;
pub mod canonical;
pub mod commit;
pub mod digest;
pub mod draft;
pub mod duration;
pub mod error;
pub mod fold;
pub mod ids;
pub mod inspect;
pub mod kept;
pub mod ledger;
pub mod limits;
pub mod namespace_stats;
pub mod on_end;
pub mod query;
mod rate;
mod record;
pub mod request;
pub mod retry;
pub mod rotation;
pub mod rows;
pub mod store;
pub mod stores;
pub mod subject;
pub mod summary;
mod text;
pub mod time;
mod turn;
mod unreadable;
pub mod verify;

pub use bodies::{BodyKey, BodyOwner, BodySource, PutBody};
pub use body::{Body, BodyColumn, BodyRef, Encoding};
pub use breaker::{Breaker, BreakerPolicy, BreakerRow, Permit, Probe};
pub use commit::{
    CauseCheck, Commit, CommitError, CommitKey, Committed, Conflict, Delivery, NewMessage,
    OnExisting, Op, Refusal, Reschedule, RunChange, RunGuard, SqlValue, Statement, TaskGuard,
    TurnChange, Unread,
};
pub use digest::{SetsumDigest, Sha256Digest};
pub use draft::{Draft, End, NewRun};
pub use duration::{IntoDuration, format_duration, parse_duration};
pub use error::{Error, ErrorCode, ErrorKind};
pub use ids::{
    Collection, EventId, EventKey, LimitKey, LogId, MessageId, MessageName, ModelName, Namespace,
    QueueName, RecordId, RouteName, RunId, RunKey, StepKey, StepKind, TaskId, WorkerKey,
    WorkflowName, WriteId,
};
pub use ledger::{
    Actor, CONSUMED_MAX, CausalRef, ErrorSummary, Event, EventType, Head, Ledger, NewEvent, Seal,
    Stamp, StorageRef,
};
pub use limits::Limits;
pub use namespace_stats::{DeadLetterCount, Figures, NamespaceStats, TaskCount, TaskStat};
pub use on_end::{EFFECT, OnEnd, derive_key, end_task_id};
pub use query::{LimitState, Order, Query, Rows, RunsQuery, TaskState, TasksQuery};
pub use rate::{Rate, RateDecision, RateRow};
pub use record::{
    Expect, Keep, REVISION_MAX, Record, RecordFound, RecordKey, RecordOp, RecordPut, RecordVersion,
    RecordWrite, Terms,
};
pub use retry::{Backoff, Decision, GiveUpReason, RetryLimit, RetryPolicy};
pub use rows::{
    BreakerStatus, Consumed, DeadLetter, Hold, LogLevel, LogLine, Message, MessageKind, Route, Run,
    RunStatus, Setting, SettingName, Step, StepStatus, Task, Turn, Wake, Worker, WorkerInfo,
    WorkerStatus,
};
pub use store::{
    BoxFuture, Capped, ClaimFilter, ClaimOrder, ClaimRequest, ClaimedTurn, Claims, CommitResults,
    DeleteRemovedRecords, DeleteTrees, Deleted, DeletedRecords, Fact, Health, Heartbeat, HeldItem,
    LoadSteps, Loaded, Promoted, QueueHealth, Reaped, Renewed, RunCount, RunOverview, Store,
    WakeSink, Wakeup,
};
pub use stores::memory::{Clock, MemoryStore};
pub use subject::{ROLES_MAX, Subject};
pub use summary::{Change, ChangeKind, MapDiff, ValueShape, ValueSummary};
pub use time::Timestamp;
pub use unreadable::UnreadableRows;
pub use uuid::Uuid;
