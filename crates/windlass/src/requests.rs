//! Requests to people: questions that only a person can answer, decisions about them, and the inbox.
//!
//! A workflow asks with [`Ctx::request`](crate::Ctx::request). People decide through
//! [`Engine::requests`](crate::Engine::requests), over HTTP (`/api/inbox`) or with `windlass inbox`.

pub use windlass_engine::{InboxOrder, InboxPage, InboxQuery, Requests};
pub use windlass_kernel::request::{
    About, Assignee, Choice, Closed, Comment, Decider, Decision, Delegation, Directory, Due,
    DueAction, NewDecision, Notify, Quorum, RecordRef, Rejection, Request, RequestOutcome,
    RequestRun, RequestState, RequestStatus, Verdict, Vote,
};
