//! A request as its record has it, and how a question becomes one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ASSIGNEES_MAX, About, Assignee, CHOICES_MAX, Choice, DECISIONS, DUE_MAX, DUE_SPAN_MAX,
    Directory, Due, DueAction, EXCLUDED_MAX, NOTIFY_BYTES_MAX, NOTIFY_MAX, Notify, QUORUM_MAX,
    Quorum, REQUESTS, Rejection, Request, RequestOutcome, RequestStatus, SCHEMA_BYTES_MAX,
    SNAPSHOT_BYTES_MAX, TEXT_BYTES_MAX, TITLE_CHARS_MAX, Verdict,
};
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{Collection, Namespace, RecordId, RouteName, RunKey, StepKey, TaskId};
use crate::limits::Limits;
use crate::record::{RecordKey, Terms};
use crate::request::Decision;
use crate::rows::Run;
use crate::subject::Subject;
use crate::time::Timestamp;

/// The run that waits for a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRun {
    /// Its generation.
    pub run_key: RunKey,
    /// Its workflow.
    pub workflow: String,
    /// Its id.
    pub id: String,
    /// The step that waits.
    pub step: String,
}

impl RequestRun {
    /// A step of a run.
    pub fn new(run: &Run, step: &StepKey) -> Self {
        Self {
            run_key: run.run_key,
            workflow: run.workflow.to_string(),
            id: run.id.to_string(),
            step: step.to_string(),
        }
    }
}

/// A comment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comment {
    /// The person.
    pub by: String,
    /// The text.
    pub text: String,
    /// When.
    pub at: Timestamp,
    /// The API key that the person used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
}

/// A right to decide that a person gave to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// The person who is asked.
    pub from: String,
    /// The assignee of the request that asks them.
    pub as_assignee: Assignee,
    /// The person who decides for them.
    pub to: String,
    /// When it ends.
    pub until: Timestamp,
    /// When it began.
    pub at: Timestamp,
    /// The API key that the person used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
}

/// A decision as far as the count needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The person.
    pub by: String,
    /// The person who delegated the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// Its verdict.
    pub verdict: Verdict,
    /// The other people who created the API key that was used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_creators: Vec<String>,
    /// The size of the answer and the comment.
    #[serde(default)]
    pub answer_bytes: u32,
    /// When.
    pub at: Timestamp,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// When.
    pub at: Timestamp,
    /// The person who ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The API key with which it was withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// Why, if decisions did not end it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A request as its record has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestState {
    /// The id: the id of the event that opened it.
    pub id: String,
    /// The run that waits for it.
    pub run: RequestRun,
    /// One line.
    pub title: String,
    /// The question in full.
    pub text: String,
    /// The JSON schema of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// The choices.
    pub choices: Vec<Choice>,
    /// Its subject: a record or a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// Those who are asked.
    pub assignees: Vec<Assignee>,
    /// How many approvals it needs.
    pub quorum: u32,
    /// How many rejections reject it; none if it is rejected when the quorum cannot be reached.
    pub rejections: Option<u32>,
    /// How many people can decide, if that is known.
    pub people: Option<u32>,
    /// The person on whose behalf the run asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<String>,
    /// Whether editors of the record that it is about cannot decide.
    pub exclude_editors: bool,
    /// Further people who cannot decide.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Effects at the opening, at due times and at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<Notify>,
    /// The due times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub due: Vec<Due>,
    /// How many of them have passed.
    #[serde(default)]
    pub due_passed: u32,
    /// The next due time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// The task of the next due time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_task: Option<TaskId>,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// The status.
    pub status: RequestStatus,
    /// The decisions so far, oldest first. Their answers are in records of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub votes: Vec<Vote>,
    /// Delegations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delegations: Vec<Delegation>,
    /// Comments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comments: Vec<Comment>,
    /// The end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
}

/// The circumstances in which a request is opened.
pub struct Opening<'a> {
    /// The id of the new request.
    pub id: String,
    /// The run and the step.
    pub run: RequestRun,
    /// The time.
    pub at: Timestamp,
    /// The task of the first due time, if there is one.
    pub due_task: TaskId,
    /// The members of the roles.
    pub directory: &'a dyn Directory,
    /// The limits of labels.
    pub limits: &'a Limits,
}

impl Request {
    /// Reports the first setter that was refused, and checks sizes and counts.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidRequest`], or the code of the setter.
    pub fn check(&self, limits: &Limits) -> Result<(), Error> {
        if let Some((code, message)) = &self.refused {
            return Err(Error::new(ErrorKind::Invalid, *code, message.clone()));
        }
        let escalated: usize = self
            .due
            .iter()
            .map(|due| match &due.action {
                DueAction::Escalate(to) => to.len(),
                _ => 0,
            })
            .sum();
        let schema = self.schema.as_ref().map_or(0, |schema| schema.to_string().len());
        let snapshot = match &self.about {
            Some(About::Snapshot { value, .. }) => value.to_string().len(),
            _ => 0,
        };
        for (what, found, max) in [
            ("people and roles", self.to.len() + escalated, ASSIGNEES_MAX),
            ("characters in its title", self.title.chars().count(), TITLE_CHARS_MAX),
            ("bytes in its text", self.text.len(), TEXT_BYTES_MAX),
            ("bytes in its schema", schema, SCHEMA_BYTES_MAX),
            ("bytes in its snapshot", snapshot, SNAPSHOT_BYTES_MAX),
            ("choices", self.choices.len(), CHOICES_MAX),
            ("due times", self.due.len(), DUE_MAX),
            ("excluded people", self.excluded.len(), EXCLUDED_MAX),
            ("notifications", self.notify.len(), NOTIFY_MAX),
            ("labels", self.labels.len(), limits.labels_max),
        ] {
            if found > max {
                return Err(invalid(format!("it has {found} {what}; at most {max} are allowed")));
            }
        }
        self.check_parts(limits)
    }

    fn check_parts(&self, limits: &Limits) -> Result<(), Error> {
        if self.to.is_empty() {
            return Err(invalid("it asks nobody; name a person or a role"));
        }
        if [&self.title, &self.text].into_iter().any(|text| text.contains('\0')) {
            return Err(invalid("its title or its text has a NUL character"));
        }
        let fits = |text: &str, max: usize| text.chars().count() <= max && !text.contains('\0');
        let (keys, values) = (limits.label_key_chars_max, limits.label_value_chars_max);
        for (key, value) in &self.labels {
            if key.is_empty() || !fits(key, keys) || !fits(value, values) {
                let excerpt: String = key.chars().take(40).collect();
                return Err(invalid(format!(
                    "its label {excerpt:?} is not valid; use keys of 1 to {keys} and values of up to \
                     {values} characters without NUL"
                )));
            }
        }
        let mut names = BTreeSet::new();
        for choice in &self.choices {
            let fits = !choice.name.is_empty() && fits(&choice.name, 64);
            if !fits || !names.insert(&choice.name) {
                return Err(invalid(format!(
                    "its choice {:?} is named twice, or not with 1 to 64 characters",
                    choice.name
                )));
            }
        }
        if !self.choices.is_empty()
            && self.choices.iter().all(|choice| choice.verdict == Verdict::Reject)
        {
            return Err(invalid("all of its choices are rejections; name one that approves"));
        }
        for due in &self.due {
            if due.after.is_zero() || due.after > DUE_SPAN_MAX {
                return Err(invalid("a due time is not between a microsecond and 365 days"));
            }
            if matches!(&due.action, DueAction::Escalate(to) if to.is_empty()) {
                return Err(invalid("an escalation names nobody"));
            }
        }
        let last = self.due.len().saturating_sub(1);
        if self.due[..last].iter().any(|due| !matches!(due.action, DueAction::Escalate(_))) {
            return Err(invalid("only the last due time can end it; the others escalate"));
        }
        for id in self.excluded.iter().chain(&self.requester) {
            Subject::new(id.as_str(), [""; 0])?;
        }
        for notify in &self.notify {
            RouteName::with_limits(&notify.effect, limits)?;
            if !notify.input.is_object() {
                return Err(invalid("the input of a notification is not a JSON object"));
            }
            let bytes = notify.input.to_string().len();
            if bytes > NOTIFY_BYTES_MAX {
                return Err(invalid(format!(
                    "the input of a notification has {bytes} bytes; at most {NOTIFY_BYTES_MAX} are allowed"
                )));
            }
        }
        Ok(())
    }

    /// Opens the request. `anyone`, `all` and percentages become a number.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidRequest`] if it is not valid or its quorum cannot be counted,
    /// [`ErrorCode::AssigneeUnknown`] if the directory knows that nobody is asked.
    pub fn open(&self, opening: Opening<'_>) -> Result<RequestState, Error> {
        self.check(opening.limits)?;
        let out = |id: &str| {
            self.requester.as_deref() == Some(id) || self.excluded.iter().any(|other| other == id)
        };
        let people = count_people(&self.to, opening.directory, out)?;
        let quorum = quorum(self.quorum, people)?;
        let rejections = match self.rejection {
            Rejection::First => Some(1),
            Rejection::Count(count) => Some(check_count("rejections", count)?),
            Rejection::Unreachable if people.is_none() => return Err(uncountable()),
            Rejection::Unreachable => None,
        };
        let step = &opening.run.step;
        let title = if self.title.is_empty() { step.clone() } else { self.title.clone() };
        let choices = match self.choices.is_empty() {
            true => [Verdict::Approve, Verdict::Reject]
                .map(|verdict| Choice { name: verdict.as_str().to_owned(), verdict })
                .to_vec(),
            false => self.choices.clone(),
        };
        let due_at = self.due.first().map(|due| opening.at.plus(due.after));
        Ok(RequestState {
            id: opening.id,
            run: opening.run,
            title,
            text: self.text.clone(),
            schema: self.schema.clone(),
            choices,
            about: self.about.clone(),
            assignees: self.to.clone(),
            quorum,
            rejections,
            people,
            requester: self.requester.clone(),
            exclude_editors: self.exclude_editors,
            excluded: self.excluded.clone(),
            labels: self.labels.clone(),
            notify: self.notify.clone(),
            due: self.due.clone(),
            due_passed: 0,
            due_at,
            due_task: due_at.map(|_| opening.due_task),
            opened_at: opening.at,
            status: RequestStatus::Open,
            votes: Vec::new(),
            delegations: Vec::new(),
            comments: Vec::new(),
            closed: None,
        })
    }
}

/// How many people are asked; none if a role's members are not known.
pub(super) fn count_people(
    to: &[Assignee],
    directory: &dyn Directory,
    is_out: impl Fn(&str) -> bool,
) -> Result<Option<u32>, Error> {
    let mut people = BTreeSet::new();
    let mut known = true;
    for assignee in to {
        match assignee {
            Assignee::Person(id) if directory.has_person(id) == Some(false) => {
                return Err(unknown(assignee, "the directory has no such person"));
            }
            Assignee::Person(id) => {
                people.insert(id.clone());
            }
            Assignee::Role(role) => match directory.members(role) {
                Some(members) if members.is_empty() => {
                    return Err(unknown(assignee, "nobody has the role"));
                }
                Some(members) => people.extend(members),
                None => known = false,
            },
        }
    }
    people.retain(|id| !is_out(id));
    match known {
        true if people.is_empty() => {
            let message = "everybody who is asked is excluded; ask somebody else";
            Err(Error::new(ErrorKind::Invalid, ErrorCode::AssigneeUnknown, message))
        }
        true => Ok(Some(u32::try_from(people.len()).unwrap_or(u32::MAX))),
        false => Ok(None),
    }
}

fn quorum(quorum: Quorum, people: Option<u32>) -> Result<u32, Error> {
    let count = match (quorum, people) {
        (Quorum::Anyone, _) => 1,
        (Quorum::Count(count), _) => count,
        (Quorum::All | Quorum::Percent(_), None) => return Err(uncountable()),
        (Quorum::All, Some(people)) => people,
        (Quorum::Percent(percent), _) if percent == 0 || percent > 100 => {
            return Err(invalid(format!("its quorum is {percent} %; use 1 to 100")));
        }
        (Quorum::Percent(percent), Some(people)) => {
            u32::try_from((u64::from(people) * u64::from(percent)).div_ceil(100)).unwrap_or(people)
        }
    };
    let count = check_count("approvals", count)?;
    match people {
        Some(people) if people < count => Err(invalid(format!(
            "it needs {count} approvals, and {people} people can decide; ask more people or lower the \
             quorum"
        ))),
        _ => Ok(count),
    }
}

fn check_count(what: &str, count: u32) -> Result<u32, Error> {
    match count {
        1..=QUORUM_MAX => Ok(count),
        _ => Err(invalid(format!("it needs {count} {what}; use 1 to {QUORUM_MAX}"))),
    }
}

fn uncountable() -> Error {
    invalid(
        "it counts all people of a role, and no directory says who has the role; use a number, or set a \
         directory",
    )
}

fn unknown(assignee: &Assignee, why: &str) -> Error {
    let message = format!("the request asks {assignee}, and {why}; ask somebody else");
    Error::new(ErrorKind::Invalid, ErrorCode::AssigneeUnknown, message)
}

fn invalid(message: impl Into<String>) -> Error {
    let message = format!("the request is not valid: {}", message.into());
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidRequest, message)
}

impl RequestState {
    /// The key of its record.
    pub fn key(&self, namespace: &Namespace) -> RecordKey {
        Self::key_of(namespace, &self.id)
    }

    /// The key of the record of a request.
    pub fn key_of(namespace: &Namespace, id: &str) -> RecordKey {
        RecordKey {
            namespace: namespace.clone(),
            collection: Collection::from_stored(REQUESTS),
            id: RecordId::from_stored(id),
        }
    }

    /// The key of the record of a person's decision. It contains a digest of the person's id.
    pub fn decision_key(&self, namespace: &Namespace, by: &str) -> RecordKey {
        let digest = crate::digest::Sha256Digest::of_parts(&[b"subject", by.as_bytes()]);
        let digest = digest.to_string();
        let hex = digest.strip_prefix("sha256:").unwrap_or(&digest);
        RecordKey {
            namespace: namespace.clone(),
            collection: Collection::from_stored(DECISIONS),
            id: RecordId::from_stored(format!("{}/{hex}", self.id)),
        }
    }

    /// The terms by which inboxes find it. Only open requests have assignees and a due day.
    pub fn terms(&self, now: Timestamp) -> Result<Terms, Error> {
        let mut terms = Terms::default();
        terms.add("status", self.status.as_str())?;
        terms.add("run", self.run.run_key.to_string())?;
        if self.status != RequestStatus::Open {
            return Ok(terms);
        }
        for assignee in &self.assignees {
            match assignee {
                Assignee::Person(id) => terms.add("assignee", id)?,
                Assignee::Role(role) => terms.add("role", role)?,
            }
        }
        for delegation in self.delegations.iter().filter(|delegation| delegation.until > now) {
            terms.add("assignee", &delegation.to)?;
        }
        if let Some(due) = self.due_at {
            let text = due.to_string();
            terms.add("due", text.get(..10).unwrap_or(&text))?;
        }
        Ok(terms)
    }

    /// How many decisions have this verdict.
    pub fn count(&self, verdict: Verdict) -> u32 {
        let count = self.votes.iter().filter(|vote| vote.verdict == verdict).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The outcome, with the decisions that its votes name; none while it is open.
    pub fn outcome(&self, decisions: Vec<Decision>) -> Option<RequestOutcome> {
        let closed = self.closed.as_ref()?;
        Some(RequestOutcome {
            request: self.id.clone(),
            status: self.status,
            decisions,
            comments: self.comments.clone(),
            closed_at: closed.at,
            reason: closed.reason.clone(),
        })
    }
}
