//! The rules of requests: who may decide, what a decision changes, and what happens at a due time.

use std::time::Duration;

use serde_json::Value;

use super::state::count_people;
use super::{
    ANSWERS_BYTES_MAX, Assignee, COMMENT_BYTES_MAX, COMMENTS_MAX, Closed, Comment, DELEGATIONS_MAX,
    DUE_SPAN_MAX, Decider, Decision, Delegation, Directory, DueAction, NewDecision, RequestState,
    RequestStatus, Verdict, Vote,
};
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::TaskId;
use crate::subject::Subject;
use crate::time::Timestamp;

/// The right of a person to decide about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// The assignee of the request that includes the person, or the one who delegated to them.
    pub as_assignee: Assignee,
    /// The person who delegated the decision.
    pub on_behalf_of: Option<String>,
}

/// Refuses a request that waits for no decision any more.
///
/// # Errors
///
/// [`ErrorCode::RequestClosed`].
pub fn check_open(state: &RequestState, now: Timestamp) -> Result<(), Error> {
    let closed = |why: String| {
        let message = format!("request {} {why}; it takes no more decisions", state.id);
        Err(Error::new(ErrorKind::Refused, ErrorCode::RequestClosed, message))
    };
    if state.status != RequestStatus::Open {
        return closed(format!("is {}", state.status));
    }
    // The task of the due time may be late; the decision is late in any case.
    match (state.due_at, next_action(state)) {
        (Some(due), Some(action)) if due <= now && !matches!(action, DueAction::Escalate(_)) => {
            closed(format!("was due at {due}"))
        }
        _ => Ok(()),
    }
}

/// The right of a person to decide about an open request.
///
/// # Errors
///
/// [`ErrorCode::NotAssigned`] if the person is not asked, or has delegated the decision;
/// [`ErrorCode::DeciderExcluded`] if the person is excluded, acts for somebody who is, uses a key that
/// such a person created, or decides a second time with such a key.
pub fn right(state: &RequestState, decider: &Decider, now: Timestamp) -> Result<Right, Error> {
    let id = decider.subject.id();
    check_excluded(state, id, "they are its requester or excluded by name")?;
    for creator in &decider.key_creators {
        let why = "their API key was created by somebody who is excluded";
        check_excluded(state, creator, why)?;
        if state.votes.iter().any(|vote| vote.by == *creator) {
            return Err(excluded(state, "the creator of their API key has decided already"));
        }
    }
    if state.votes.iter().any(|vote| vote.key_creators.iter().any(|creator| creator == id)) {
        return Err(excluded(state, "a key that they created has decided already"));
    }
    let right = own_right(state, &decider.subject, now);
    let delegated = || {
        let given = state.delegations.iter().find(|delegation| {
            delegation.to == id && delegation.until > now && !is_used(state, &delegation.from)
        })?;
        let (as_assignee, from) = (given.as_assignee.clone(), given.from.clone());
        Some(Right { as_assignee, on_behalf_of: Some(from) })
    };
    let right = match right {
        Ok(right) => right,
        Err(error) => delegated().ok_or(error)?,
    };
    if let Some(from) = &right.on_behalf_of {
        check_excluded(state, from, "they act for somebody who is excluded")?;
    }
    Ok(right)
}

// The right of a person whom the request itself asks.
fn own_right(state: &RequestState, subject: &Subject, now: Timestamp) -> Result<Right, Error> {
    let asked = state.assignees.iter().find(|assignee| assignee.includes(subject));
    let not_asked = |why: String| {
        let message = format!("the caller cannot decide about request {}: {why}", state.id);
        Err(Error::new(ErrorKind::Refused, ErrorCode::NotAssigned, message))
    };
    let Some(assignee) = asked else {
        let asked: Vec<String> = state.assignees.iter().map(ToString::to_string).collect();
        return not_asked(format!("it asks {}", asked.join(", ")));
    };
    let id = subject.id();
    let given = |d: &&Delegation| d.from == id && d.until > now;
    if let Some(delegation) = state.delegations.iter().find(given) {
        let until = delegation.until;
        return not_asked(format!("they delegated it to somebody else until {until}"));
    }
    if state.votes.iter().any(|vote| vote.on_behalf_of.as_deref() == Some(id)) {
        return not_asked("somebody has decided for them".into());
    }
    Ok(Right { as_assignee: assignee.clone(), on_behalf_of: None })
}

// Whether the vote of a person was cast, by themselves or by somebody for them.
fn is_used(state: &RequestState, id: &str) -> bool {
    state.votes.iter().any(|vote| vote.by == id || vote.on_behalf_of.as_deref() == Some(id))
}

fn check_excluded(state: &RequestState, id: &str, why: &str) -> Result<(), Error> {
    let is_out = state.requester.as_deref() == Some(id)
        || state.excluded.iter().any(|excluded| excluded == id);
    if is_out { Err(excluded(state, why)) } else { Ok(()) }
}

/// The error for a person who must not decide.
pub fn excluded(state: &RequestState, why: &str) -> Error {
    let message = format!("the caller must not decide about request {}: {why}", state.id);
    Error::new(ErrorKind::Refused, ErrorCode::DeciderExcluded, message)
}

/// The error for a request whose editors must not decide, if it is not known who they are.
pub fn editors_unknown(state: &RequestState, why: &str) -> Error {
    let message = format!(
        "nobody can decide about request {}, because its editors must not, and not all of them are known: {why}",
        state.id
    );
    Error::new(ErrorKind::Refused, ErrorCode::EditorsUnknown, message)
}

/// Checks a decision and writes it down. The caller has checked the answer against the schema.
///
/// # Errors
///
/// As [`right`]; [`ErrorCode::RequestStale`] if the person has seen something else than the request is
/// about; [`ErrorCode::InvalidDecision`] if the choice, the comment or the answer is not valid.
pub fn decision(
    state: &RequestState,
    decider: &Decider,
    new: &NewDecision,
    now: Timestamp,
) -> Result<Decision, Error> {
    check_open(state, now)?;
    let about = state.about.as_ref().map(super::About::digest);
    if let Some(seen) = new.about.filter(|seen| Some(*seen) != about) {
        return Err(stale(state, &format!("the decision is about {seen}")));
    }
    let right = right(state, decider, now)?;
    let invalid =
        |message: String| Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidDecision, message));
    let Some(choice) = state.choices.iter().find(|choice| choice.name == new.choice) else {
        let names: Vec<&str> = state.choices.iter().map(|choice| &*choice.name).collect();
        let (found, names) = (&new.choice, names.join(", "));
        return invalid(format!("{found:?} is not a choice of the request; use one of: {names}"));
    };
    if let Some(comment) = &new.comment {
        check_comment(comment)?;
    }
    let used: usize = state.votes.iter().map(|vote| vote.answer_bytes as usize).sum();
    let bytes = answer_bytes(new.answer.as_ref(), new.comment.as_deref());
    if used + bytes > ANSWERS_BYTES_MAX {
        let left = ANSWERS_BYTES_MAX - used.min(ANSWERS_BYTES_MAX);
        return invalid(format!(
            "the answer and its comment have {bytes} bytes; {left} of {ANSWERS_BYTES_MAX} are left for this \
             request"
        ));
    }
    Ok(Decision {
        request: state.id.clone(),
        by: decider.subject.id().to_owned(),
        on_behalf_of: right.on_behalf_of,
        as_assignee: right.as_assignee,
        choice: choice.name.clone(),
        verdict: choice.verdict,
        answer: new.answer.clone(),
        comment: new.comment.clone(),
        about,
        key_id: decider.key_id.clone(),
        at: now,
    })
}

// All of them are in the result of the step that asks.
fn answer_bytes(answer: Option<&Value>, comment: Option<&str>) -> usize {
    answer.map_or(0, |answer| answer.to_string().len()) + comment.map_or(0, json_bytes)
}

// Characters that JSON escapes take up to six bytes.
fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len() - 2)
}

/// The error for a decision about something else than the request is about now.
pub fn stale(state: &RequestState, why: &str) -> Error {
    let message = format!(
        "request {} is about something else than it is now: {why}; read it again",
        state.id
    );
    Error::new(ErrorKind::Conflict, ErrorCode::RequestStale, message)
}

/// Counts a decision, and closes the request if that decides it.
pub fn count(state: &mut RequestState, decider: &Decider, decision: &Decision) {
    let answer = answer_bytes(decision.answer.as_ref(), decision.comment.as_deref());
    state.votes.push(Vote {
        by: decision.by.clone(),
        on_behalf_of: decision.on_behalf_of.clone(),
        verdict: decision.verdict,
        key_creators: decider.key_creators.clone(),
        answer_bytes: u32::try_from(answer).unwrap_or(u32::MAX),
        at: decision.at,
    });
    if let Some(status) = tally(state) {
        close(state, status, decision.at, Some(&decision.by), None);
    }
}

/// The status that the votes lead to; none if the request stays open.
pub fn tally(state: &RequestState) -> Option<RequestStatus> {
    let (approvals, rejections) = (state.count(Verdict::Approve), state.count(Verdict::Reject));
    if approvals >= state.quorum {
        return Some(RequestStatus::Approved);
    }
    if state.rejections.is_some_and(|count| rejections >= count) {
        return Some(RequestStatus::Rejected);
    }
    let voted = approvals + rejections;
    let unreachable = |people: u32| approvals + people.saturating_sub(voted) < state.quorum;
    // An escalation that is still to come can bring more people.
    let may_grow = matches!(next_action(state), Some(DueAction::Escalate(_)));
    (state.people.is_some_and(unreachable) && !may_grow).then_some(RequestStatus::Rejected)
}

/// Ends a request.
pub fn close(
    state: &mut RequestState,
    status: RequestStatus,
    at: Timestamp,
    by: Option<&str>,
    reason: Option<String>,
) {
    state.status = status;
    state.closed = Some(Closed { at, by: by.map(str::to_owned), key_id: None, reason });
}

/// The next thing that happens at the due time.
pub fn next_action(state: &RequestState) -> Option<&DueAction> {
    state.due.get(state.due_passed as usize).map(|due| &due.action)
}

/// Applies a due time that has passed. Returns whether it changed the request. `next_task` is the task of
/// the due time that follows an escalation.
pub fn due(
    state: &mut RequestState,
    now: Timestamp,
    next_task: TaskId,
    directory: &dyn Directory,
) -> bool {
    let is_due = state.due_at.is_some_and(|due| due <= now);
    if state.status != RequestStatus::Open || !is_due {
        return false;
    }
    let Some(action) = next_action(state).cloned() else { return false };
    state.due_passed += 1;
    let reason = || state.due_at.map(|due| format!("it was due at {due}"));
    let status = match action {
        DueAction::Expire => RequestStatus::Expired,
        DueAction::Approve => RequestStatus::Approved,
        DueAction::Reject => RequestStatus::Rejected,
        DueAction::Escalate(to) => {
            escalate(state, to, now, next_task, directory);
            return true;
        }
    };
    let reason = reason();
    close(state, status, now, None, reason);
    true
}

fn escalate(
    state: &mut RequestState,
    to: Vec<Assignee>,
    now: Timestamp,
    next_task: TaskId,
    directory: &dyn Directory,
) {
    for assignee in to {
        if !state.assignees.contains(&assignee) {
            state.assignees.push(assignee);
        }
    }
    let out = |id: &str| {
        state.requester.as_deref() == Some(id) || state.excluded.iter().any(|other| other == id)
    };
    // A directory that knows nobody any more must not stop the escalation.
    state.people = count_people(&state.assignees, directory, out).unwrap_or(None);
    let after = state.due.get(state.due_passed as usize).map(|due| due.after);
    state.due_at = after.map(|after| now.plus(after));
    state.due_task = after.map(|_| next_task);
    if let Some(status) = tally(state) {
        let reason = Some("too few people are left for its quorum".to_owned());
        close(state, status, now, None, reason);
    }
}

/// Gives the right to decide to another person until a time.
///
/// # Errors
///
/// As [`right`]; [`ErrorCode::DelegationRefused`] if the right itself was delegated, was used, or cannot go
/// to this person or for this time.
pub fn delegate(
    state: &mut RequestState,
    decider: &Decider,
    to: &str,
    until: Timestamp,
    now: Timestamp,
) -> Result<(), Error> {
    check_open(state, now)?;
    let right = right(state, decider, now)?;
    let refused = |why: String| {
        let message = format!("the decision about request {} cannot be delegated: {why}", state.id);
        Err(Error::new(ErrorKind::Refused, ErrorCode::DelegationRefused, message))
    };
    let from = decider.subject.id();
    if right.on_behalf_of.is_some() {
        return refused(
            "it was delegated to the caller; the person who is asked can delegate it".into(),
        );
    }
    if is_used(state, from) {
        return refused("the caller has decided".into());
    }
    Subject::new(to, [""; 0])?;
    if to == from {
        return refused("it would go to the caller; name another person".into());
    }
    if check_excluded(state, to, "").is_err() {
        return refused("it would go to a person who is excluded; name another person".into());
    }
    let span_max: Duration = DUE_SPAN_MAX;
    if until <= now || until > now.plus(span_max) {
        return refused(format!("its end {until} is not within the next 365 days"));
    }
    if state.delegations.len() >= DELEGATIONS_MAX {
        return refused(format!("the request has {DELEGATIONS_MAX} delegations, the limit"));
    }
    state.delegations.push(Delegation {
        from: from.to_owned(),
        as_assignee: right.as_assignee,
        to: to.to_owned(),
        until,
        at: now,
        key_id: decider.key_id.clone(),
    });
    Ok(())
}

/// Adds a comment of somebody who is asked, or of the requester.
///
/// # Errors
///
/// [`ErrorCode::NotAssigned`] if the person has nothing to do with the request,
/// [`ErrorCode::InvalidDecision`] if the text is not valid.
pub fn comment(
    state: &mut RequestState,
    decider: &Decider,
    text: &str,
    now: Timestamp,
) -> Result<(), Error> {
    check_open(state, now)?;
    if !concerns(state, &decider.subject) {
        let message = format!(
            "the caller cannot comment on request {}: they are neither asked nor its requester",
            state.id
        );
        return Err(Error::new(ErrorKind::Refused, ErrorCode::NotAssigned, message));
    }
    check_comment(text)?;
    if state.comments.len() >= COMMENTS_MAX {
        let message = format!("the request has {COMMENTS_MAX} comments, the limit");
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidDecision, message));
    }
    let (by, key_id) = (decider.subject.id().to_owned(), decider.key_id.clone());
    state.comments.push(Comment { by, text: text.to_owned(), at: now, key_id });
    Ok(())
}

/// Whether a person is asked, was asked through a delegation, or is the requester.
pub fn concerns(state: &RequestState, subject: &Subject) -> bool {
    state.assignees.iter().any(|assignee| assignee.includes(subject))
        || state.requester.as_deref() == Some(subject.id())
        || state.delegations.iter().any(|delegation| delegation.to == subject.id())
}

/// Takes a request back for its requester.
///
/// # Errors
///
/// [`ErrorCode::NotAssigned`] if the person is not its requester, [`ErrorCode::RequestClosed`].
pub fn withdraw(
    state: &mut RequestState,
    decider: &Decider,
    reason: Option<String>,
    now: Timestamp,
) -> Result<(), Error> {
    check_open(state, now)?;
    let id = decider.subject.id();
    if state.requester.as_deref() != Some(id) {
        let message = format!("only its requester and operators can withdraw request {}", state.id);
        return Err(Error::new(ErrorKind::Refused, ErrorCode::NotAssigned, message));
    }
    withdraw_as(state, (Some(id), decider.key_id.as_deref()), reason, now);
    Ok(())
}

/// Takes a request back for an operator: a person, an API key, or both.
///
/// # Errors
///
/// [`ErrorCode::RequestClosed`].
pub fn withdraw_as_operator(
    state: &mut RequestState,
    operator: (Option<&str>, Option<&str>),
    reason: Option<String>,
    now: Timestamp,
) -> Result<(), Error> {
    check_open(state, now)?;
    withdraw_as(state, operator, reason, now);
    Ok(())
}

fn withdraw_as(
    state: &mut RequestState,
    (person, key_id): (Option<&str>, Option<&str>),
    reason: Option<String>,
    at: Timestamp,
) {
    close(state, RequestStatus::Withdrawn, at, person, reason);
    if let Some(closed) = &mut state.closed {
        closed.key_id = key_id.map(str::to_owned);
    }
}

fn check_comment(text: &str) -> Result<(), Error> {
    let bytes = json_bytes(text);
    if text.is_empty() || bytes > COMMENT_BYTES_MAX || text.contains('\0') {
        let message = format!(
            "the comment has {bytes} bytes or a NUL character; use 1 to {COMMENT_BYTES_MAX} bytes \
             without NUL"
        );
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidDecision, message));
    }
    Ok(())
}
