//! Requests to people: decisions, delegations, comments, withdrawals and due times, one commit each.

mod approved;
mod forget;
mod inbox;
mod notify;
mod schema;
mod turn;

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use windlass_kernel::request::{
    About, Decider, Decision, Directory, NewDecision, NoDirectory, RequestOutcome, RequestState,
    RequestStatus, rules,
};
use windlass_kernel::{
    Actor, Body, Collection, Commit, CommitError, Conflict, Error, ErrorCode, ErrorKind, Expect,
    MessageId, MessageKind, MessageName, Namespace, NewMessage, Op, Query, Record, RecordKey,
    RecordOp, RecordPut, RecordWrite, Refusal, Route, RouteName, RunKey, Task, TaskId, Terms,
    Timestamp, WriteId,
};

use crate::commit::CommitClient;
use crate::core::Core;
use crate::env::new_uuid;
use crate::record_change::conflict_delay;
use crate::tasks::{REQUEST_DUE, internal_queue};
use crate::turn::refusal;

pub use approved::Approved;
pub(crate) use forget::tasks_of_imported;
pub use inbox::{InboxOrder, InboxPage, InboxQuery};
pub use turn::{ClosedRequest, RequestMessage, RequestRef};

/// The name of the message that tells a run that a request has ended.
pub(crate) const REQUEST_MESSAGE: MessageName = MessageName::from_static("request");

/// How often a change of a request is decided again because another writer was first.
const ROUNDS_MAX: u32 = 64;

/// The requests of a namespace.
#[derive(Clone)]
pub struct Requests {
    pub(crate) core: Arc<Core>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) namespace: Namespace,
}

/// A request and the revision of its record.
struct Found {
    state: RequestState,
    revision: u64,
}

/// The other ops of a change, beside the request itself.
#[derive(Default)]
struct Beside {
    /// Before the request: the first written record is the key of the commit.
    first: Vec<Op>,
    checks: Vec<Op>,
    tasks: Vec<Task>,
    /// Whether the commit needs the run to be alive if it closes the request.
    needs_run: bool,
}

impl Requests {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RequestNotFound`] if there is none.
    pub async fn get(&self, id: &str) -> Result<RequestState, Error> {
        Ok(self.found(id).await?.state)
    }

    /// The decisions about a request, oldest first.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn decisions(&self, state: &RequestState) -> Result<Vec<Decision>, Error> {
        let mut decisions = Vec::with_capacity(state.votes.len());
        for votes in state.votes.chunks(self.core.options.limits.records_per_commit_max) {
            let key = |by: &str| state.decision_key(&self.namespace, by);
            let keys = votes.iter().map(|vote| key(&vote.by)).collect();
            for record in self.core.store.records(keys).await? {
                let body = record.and_then(|record| record.body);
                decisions.extend(body.map(|body| body.read()).transpose()?);
            }
        }
        Ok(decisions)
    }

    /// The outcome of a request; none while it is open.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RequestNotFound`] if there is none.
    pub async fn outcome(&self, id: &str) -> Result<Option<RequestOutcome>, Error> {
        let state = self.get(id).await?;
        if state.status == RequestStatus::Open {
            return Ok(None);
        }
        let decisions = self.decisions(&state).await?;
        Ok(state.outcome(decisions))
    }

    /// Decides about a request. The same decision of the same person again changes nothing. If the decision
    /// ends the request, its run gets a message in the same commit.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::NotAssigned`], [`ErrorCode::DeciderExcluded`], [`ErrorCode::EditorsUnknown`],
    /// [`ErrorCode::DecisionExists`], [`ErrorCode::RequestClosed`], [`ErrorCode::RequestStale`],
    /// [`ErrorCode::InvalidDecision`] or [`ErrorCode::AnswerInvalid`]. Nothing is written then, except that a
    /// request about a record that has changed is closed.
    pub async fn decide(
        &self,
        id: &str,
        decider: &Decider,
        new: &NewDecision,
    ) -> Result<RequestState, Error> {
        for round in 0..ROUNDS_MAX {
            let found = self.found(id).await?;
            if let Some(own) = self.decision_of(&found.state, decider.subject.id()).await? {
                return repeated(found.state, &own, new);
            }
            let now = self.core.clock.now();
            let decision = rules::decision(&found.state, decider, new, now)?;
            schema::check_answer(&found.state, &decision)?;
            let checks = match self.check_about(&found.state).await? {
                Ok(checks) => checks,
                Err(why) => {
                    self.close_stale(id).await?;
                    return Err(rules::stale(&found.state, &why));
                }
            };
            self.check_editors(&found.state, decider, decision.on_behalf_of.as_deref()).await?;
            self.check_run(&found.state).await?;
            let put = self.put_decision(&found.state, &decision)?;
            let mut state = found.state.clone();
            rules::count(&mut state, decider, &decision);
            let beside = Beside { first: vec![put], checks, needs_run: true, ..Beside::default() };
            if let Some(state) = self.write(&found, state, beside, now).await? {
                return Ok(state);
            }
            self.back_off(round).await;
        }
        Err(busy(id))
    }

    /// Gives the right to decide to another person until a time.
    ///
    /// # Errors
    ///
    /// As [`rules::delegate`].
    pub async fn delegate(
        &self,
        id: &str,
        decider: &Decider,
        to: &str,
        until: Timestamp,
    ) -> Result<RequestState, Error> {
        for round in 0..ROUNDS_MAX {
            let found = self.found(id).await?;
            let now = self.core.clock.now();
            let mut state = found.state.clone();
            rules::delegate(&mut state, decider, to, until, now)?;
            self.check_editors(&found.state, decider, None).await?;
            self.check_run(&found.state).await?;
            if let Some(state) = self.write(&found, state, Beside::default(), now).await? {
                return Ok(state);
            }
            self.back_off(round).await;
        }
        Err(busy(id))
    }

    /// Adds a comment.
    ///
    /// # Errors
    ///
    /// As [`rules::comment`].
    pub async fn comment(
        &self,
        id: &str,
        decider: &Decider,
        text: &str,
    ) -> Result<RequestState, Error> {
        let change = |state: &mut RequestState, now| rules::comment(state, decider, text, now);
        self.change(id, change).await
    }

    /// Takes a request back for its requester. Its run gets the outcome `withdrawn`.
    ///
    /// # Errors
    ///
    /// As [`rules::withdraw`].
    pub async fn withdraw(
        &self,
        id: &str,
        decider: &Decider,
        reason: Option<&str>,
    ) -> Result<RequestState, Error> {
        let reason = reason.map(crate::cancel::shortened);
        let change =
            |state: &mut RequestState, now| rules::withdraw(state, decider, reason.clone(), now);
        self.change(id, change).await
    }

    /// Takes a request back for an operator: a person, an API key, or both.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RequestClosed`] if it has ended.
    pub async fn withdraw_as_operator(
        &self,
        id: &str,
        (person, key_id): (Option<&str>, Option<&str>),
        reason: Option<&str>,
    ) -> Result<RequestState, Error> {
        let reason =
            reason.map_or_else(|| "an operator withdrew it".into(), crate::cancel::shortened);
        let change = |state: &mut RequestState, now| {
            rules::withdraw_as_operator(state, (person, key_id), Some(reason.clone()), now)
        };
        self.change(id, change).await
    }

    // Changes a request alone, again after each conflict.
    async fn change(
        &self,
        id: &str,
        change: impl Fn(&mut RequestState, Timestamp) -> Result<(), Error>,
    ) -> Result<RequestState, Error> {
        for round in 0..ROUNDS_MAX {
            let found = self.found(id).await?;
            let now = self.core.clock.now();
            let mut state = found.state.clone();
            change(&mut state, now)?;
            if let Some(state) = self.write(&found, state, Beside::default(), now).await? {
                return Ok(state);
            }
            self.back_off(round).await;
        }
        Err(busy(id))
    }

    /// Closes an open request if the record that it is about has changed. Returns whether the request is
    /// stale.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn close_stale(&self, id: &str) -> Result<bool, Error> {
        for round in 0..ROUNDS_MAX {
            let found = self.found(id).await?;
            if found.state.status != RequestStatus::Open {
                return Ok(found.state.status == RequestStatus::Stale);
            }
            let Err(why) = self.check_about(&found.state).await? else { return Ok(false) };
            let now = self.core.clock.now();
            let mut state = found.state.clone();
            rules::close(&mut state, RequestStatus::Stale, now, None, Some(why));
            if self.write(&found, state, Beside::default(), now).await?.is_some() {
                return Ok(true);
            }
            self.back_off(round).await;
        }
        Err(busy(id))
    }

    /// Applies a due time that has passed.
    pub(crate) async fn due(&self, id: &str) -> Result<(), Error> {
        for round in 0..ROUNDS_MAX {
            let found = match self.found(id).await {
                Err(error) if error.code() == ErrorCode::RequestNotFound => return Ok(()),
                found => found?,
            };
            let now = self.core.clock.now();
            let mut state = found.state.clone();
            let next = self.core.clock.task_id();
            if !rules::due(&mut state, now, next, self.directory()) {
                return Ok(());
            }
            let mut tasks = notify::tasks(&self.core, &self.namespace, "request.due", &state, now)?;
            if state.status == RequestStatus::Open {
                tasks.extend(due_task(&self.namespace, &state, now)?);
            }
            let beside = Beside { tasks, ..Beside::default() };
            if self.write(&found, state, beside, now).await?.is_some() {
                return Ok(());
            }
            self.back_off(round).await;
        }
        Err(busy(id))
    }

    /// Withdraws a request that its run no longer waits for.
    pub(crate) async fn withdraw_abandoned(&self, id: &str, reason: &str) -> Result<(), Error> {
        for round in 0..ROUNDS_MAX {
            let found = match self.found(id).await {
                Err(error) if error.code() == ErrorCode::RequestNotFound => return Ok(()),
                found => found?,
            };
            if found.state.status != RequestStatus::Open {
                return Ok(());
            }
            let now = self.core.clock.now();
            let mut state = found.state.clone();
            rules::close(&mut state, RequestStatus::Withdrawn, now, None, Some(reason.into()));
            if self.write(&found, state, Beside::default(), now).await?.is_some() {
                return Ok(());
            }
            self.back_off(round).await;
        }
        Err(busy(id))
    }

    /// Withdraws the open requests of a run that has ended.
    pub(crate) async fn withdraw_all(&self, run_key: RunKey) -> Result<(), Error> {
        let mut after = None;
        let limit = self.core.options.limits.page_rows_max.min(100);
        loop {
            let query = Query::Records {
                namespace: self.namespace.clone(),
                collection: Collection::from_stored(windlass_kernel::request::REQUESTS),
                term: Some(("run".into(), run_key.to_string().into())),
                after: after.clone(),
                limit,
            };
            let page = self.core.store.list(query).await?.records()?;
            after = page.last().map(|record| record.key.id.clone());
            let is_last = page.len() < limit as usize;
            for record in page {
                if record.terms.contains("status", RequestStatus::Open.as_str()) {
                    self.withdraw_abandoned(record.key.id.as_str(), "its run has ended").await?;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    // Writes the next revision of a request, with a message to its run if it has ended. `None` if another
    // writer was first.
    async fn write(
        &self,
        found: &Found,
        state: RequestState,
        beside: Beside,
        now: Timestamp,
    ) -> Result<Option<RequestState>, Error> {
        let closes = state.status != RequestStatus::Open;
        let Beside { first, checks, mut tasks, needs_run } = beside;
        let key = state.key(&self.namespace);
        let put = self.put(key, Expect::At(found.revision), &state, state.terms(now)?, now)?;
        let mut ops = first;
        ops.push(put);
        ops.extend(checks);
        if closes {
            ops.push(Op::PutMessage(Box::new(closed_message(&state, now, needs_run)?)));
            tasks.extend(notify::tasks(
                &self.core,
                &self.namespace,
                "request.closed",
                &state,
                now,
            )?);
            tasks.push(self.forget_task(&state.id, now, self.core.options.request_retention)?);
        }
        ops.extend(tasks.into_iter().map(|task| Op::Enqueue(Box::new(task))));
        let commit = Commit::new(None, None, ops);
        match Arc::clone(&self.commits).commit_for_caller(commit).await {
            Ok(_) => Ok(Some(state)),
            Err(CommitError::Conflict(Conflict::Record { .. })) => Ok(None),
            Err(CommitError::Refused(Refusal::RunEnded { .. } | Refusal::RunMissing { .. })) => {
                Err(run_ended(&state))
            }
            Err(error) => Err(refusal(&error)),
        }
    }

    fn put<T: Serialize>(
        &self,
        key: RecordKey,
        expect: Expect,
        document: &T,
        terms: Terms,
        at: Timestamp,
    ) -> Result<Op, Error> {
        let write_id = WriteId(new_uuid(&*self.core.env, at));
        let body = Body::of(document)?;
        let put = RecordPut { write_id, body, terms, keep: None, at, revision: None };
        let write = RecordWrite::Put(Box::new(put));
        Ok(Op::Record(Box::new(RecordOp { key, expect, write })))
    }

    fn put_decision(&self, state: &RequestState, decision: &Decision) -> Result<Op, Error> {
        let key = state.decision_key(&self.namespace, &decision.by);
        let mut terms = Terms::default();
        terms.add("request", &state.id)?;
        approved::add_term(&mut terms, state, decision)?;
        self.put(key, Expect::Absent, decision, terms, decision.at)
    }

    async fn found(&self, id: &str) -> Result<Found, Error> {
        let missing = || {
            let excerpt: String = id.chars().take(80).collect();
            let message = format!("there is no request {excerpt:?}");
            Error::new(ErrorKind::NotFound, ErrorCode::RequestNotFound, message)
        };
        let id = windlass_kernel::RecordId::new(id).map_err(|_| missing())?;
        let record = self.record(RequestState::key_of(&self.namespace, id.as_str())).await?;
        let record = record.ok_or_else(missing)?;
        let revision = record.revision;
        let state = record.body.ok_or_else(missing)?.read()?;
        Ok(Found { state, revision })
    }

    async fn record(&self, key: RecordKey) -> Result<Option<Record>, Error> {
        Ok(self.core.store.records(vec![key]).await?.pop().flatten())
    }

    async fn decision_of(&self, state: &RequestState, by: &str) -> Result<Option<Decision>, Error> {
        if !state.votes.iter().any(|vote| vote.by == by) {
            return Ok(None);
        }
        let record = self.record(state.decision_key(&self.namespace, by)).await?;
        record.and_then(|record| record.body).map(|body| body.read()).transpose()
    }

    // The checks that a commit needs so that its decision is about the current record; an error text if the
    // record has changed.
    async fn check_about(&self, state: &RequestState) -> Result<Result<Vec<Op>, String>, Error> {
        let Some(About::Record(about)) = &state.about else { return Ok(Ok(Vec::new())) };
        let key = RecordKey {
            namespace: self.namespace.clone(),
            collection: about.collection.clone(),
            id: about.id.clone(),
        };
        let record = self.record(key.clone()).await?;
        let current = record.and_then(|record| Some((record.revision, record.body?.digest())));
        let Some((revision, digest)) = current else {
            return Ok(Err(format!("record {key} does not exist any more")));
        };
        if digest != about.digest {
            return Ok(Err(format!("record {key} has revision {revision} now")));
        }
        let check = RecordOp { key, expect: Expect::At(revision), write: RecordWrite::Check };
        Ok(Ok(vec![Op::Record(Box::new(check))]))
    }

    // Editors are the actors of the kept versions of the record. Each of its revisions must be kept: one that is
    // not kept leaves no name.
    async fn check_editors(
        &self,
        state: &RequestState,
        decider: &Decider,
        on_behalf_of: Option<&str>,
    ) -> Result<(), Error> {
        let Some(About::Record(about)) = state.about.as_ref().filter(|_| state.exclude_editors)
        else {
            return Ok(());
        };
        let creators = decider.key_creators.iter().map(String::as_str);
        let people = [decider.subject.id()].into_iter().chain(on_behalf_of).chain(creators);
        let people: Vec<&str> = people.collect();
        let key = RecordKey {
            namespace: self.namespace.clone(),
            collection: about.collection.clone(),
            id: about.id.clone(),
        };
        let rows = self.core.store.record_rows(vec![key.clone()]).await?;
        let newest = rows.into_iter().flatten().next().map_or(0, |row| row.revision);
        let limit = self.core.options.limits.page_rows_max.min(100);
        let mut left = newest;
        while left > 0 {
            let query = Query::RecordVersions { key: key.clone(), before: Some(left + 1), limit };
            let page = self.core.store.list(query).await?.record_versions()?;
            let unknown = |revision: u64| {
                let why = format!("revision {revision} of record {key} is not a kept version");
                Err(rules::editors_unknown(state, &why))
            };
            for version in &page {
                let actor = version.actor.as_deref();
                let actor = actor.and_then(|text| serde_json::from_str::<Actor>(text).ok());
                if actor.is_some_and(|actor| people.iter().any(|id| actor.may_be_person(id))) {
                    let why = format!(
                        "they edited record {key}, act for an editor or use an editor's key"
                    );
                    return Err(rules::excluded(state, &why));
                }
                if version.revision != left {
                    return unknown(left);
                }
                left -= 1;
            }
            if left > 0 && page.len() < limit as usize {
                return unknown(left);
            }
        }
        Ok(())
    }

    // The end of a run withdraws its requests a little later.
    async fn check_run(&self, state: &RequestState) -> Result<(), Error> {
        let run = self.core.store.run_overview_by_key(state.run.run_key).await?;
        match run {
            Some(overview) if !overview.run.status.is_ended() => Ok(()),
            _ => Err(run_ended(state)),
        }
    }

    fn directory(&self) -> &dyn Directory {
        directory(&self.core)
    }

    async fn back_off(&self, round: u32) {
        let env = &self.core.env;
        env.sleep(conflict_delay(env.random(), round + 1)).await;
    }
}

fn directory(core: &Core) -> &dyn Directory {
    core.options.directory.as_deref().unwrap_or(&NoDirectory)
}

// A person who sends the same decision again gets the same answer.
fn repeated(state: RequestState, own: &Decision, new: &NewDecision) -> Result<RequestState, Error> {
    let same = own.choice == new.choice && own.answer == new.answer && own.comment == new.comment;
    if same {
        return Ok(state);
    }
    let message = format!(
        "the caller has decided about request {} already ({}); a decision is final",
        state.id, own.choice
    );
    Err(Error::new(ErrorKind::Conflict, ErrorCode::DecisionExists, message))
}

fn run_ended(state: &RequestState) -> Error {
    let message = format!(
        "run {:?} of {:?} has ended, and request {} with it; it takes no more decisions",
        state.run.id, state.run.workflow, state.id
    );
    Error::new(ErrorKind::Refused, ErrorCode::RequestClosed, message)
}

fn busy(id: &str) -> Error {
    let message = format!("request {id} changed during {ROUNDS_MAX} attempts to change it; retry");
    Error::new(ErrorKind::Unavailable, ErrorCode::RunBusy, message)
}

fn closed_message(
    state: &RequestState,
    at: Timestamp,
    required: bool,
) -> Result<NewMessage, Error> {
    Ok(NewMessage {
        run_key: state.run.run_key,
        message_id: MessageId::new(format!("request:{}", state.id))?,
        kind: MessageKind::Decision,
        name: REQUEST_MESSAGE,
        body: Some(Body::of(&json!({ "request": state.id, "step": state.run.step }))?),
        caused_by: None,
        sent_at: at,
        required,
    })
}

/// The task of the next due time.
fn due_task(
    namespace: &Namespace,
    state: &RequestState,
    at: Timestamp,
) -> Result<Option<Task>, Error> {
    let (Some(due_at), Some(task_id)) = (state.due_at, state.due_task) else { return Ok(None) };
    Ok(Some(internal(namespace, task_id, REQUEST_DUE, &state.id, state.run.run_key, due_at, at)?))
}

fn internal(
    namespace: &Namespace,
    task_id: TaskId,
    name: &str,
    request: &str,
    run_key: RunKey,
    due_at: Timestamp,
    at: Timestamp,
) -> Result<Task, Error> {
    let route = Route { queue: internal_queue(), name: RouteName::new(name)? };
    let mut task = Task::new(task_id, namespace.clone(), "internal", route, at);
    task.run_key = Some(run_key);
    task.body = Some(Body::of(request)?);
    if due_at > at {
        task.due_at = Some(due_at);
        task.ready = false;
    }
    Ok(task)
}
