//! Requests to people: a question that only a person can answer, and the rules that close it.
//!
//! Everything here is pure. The engine stores a [`RequestState`] as a record and asks [`rules`] what a
//! person may do and what follows from it.

mod builder;
pub mod rules;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{Collection, RecordId};
use crate::subject::Subject;
use crate::time::Timestamp;

pub use builder::Request;
pub use state::{Closed, Comment, Delegation, Opening, RequestRun, RequestState, Vote};

/// The collection of requests.
pub const REQUESTS: &str = "windlass.requests";
/// The collection of decisions.
pub const DECISIONS: &str = "windlass.decisions";

/// The most people and roles that a request asks, escalations included.
pub const ASSIGNEES_MAX: usize = 16;
/// The most approvals or rejections that a request waits for.
pub const QUORUM_MAX: u32 = 100;
/// The most due times of a request: escalations and the last one.
pub const DUE_MAX: usize = 8;
/// The most choices of a request.
pub const CHOICES_MAX: usize = 32;
/// The longest title, in characters.
pub const TITLE_CHARS_MAX: usize = 200;
/// The longest text of a request, in bytes.
pub const TEXT_BYTES_MAX: usize = 32 * 1024;
/// The largest JSON schema of an answer, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 32 * 1024;
/// The largest snapshot that a request holds, in bytes.
pub const SNAPSHOT_BYTES_MAX: usize = 256 * 1024;
/// The longest comment, in bytes of JSON.
pub const COMMENT_BYTES_MAX: usize = 4 * 1024;
/// The most comments of a request, beside those of decisions.
pub const COMMENTS_MAX: usize = 50;
/// The most delegations of a request.
pub const DELEGATIONS_MAX: usize = 12;
/// The most people that a request excludes by name.
pub const EXCLUDED_MAX: usize = 100;
/// The largest answers and comments of all decisions of a request together, in bytes of JSON.
pub const ANSWERS_BYTES_MAX: usize = 256 * 1024;
/// The most notifications of a request.
pub const NOTIFY_MAX: usize = 8;
/// The largest input of a notification, in bytes.
pub const NOTIFY_BYTES_MAX: usize = 16 * 1024;
/// The longest time until a request is due, and the longest delegation.
pub const DUE_SPAN_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Somebody who is asked: a person, or everybody who has a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Assignee {
    /// The person with this id.
    Person(String),
    /// Everybody who has this role.
    Role(String),
}

impl Assignee {
    /// Reads `role:cfo`, `person:ann` or `ann`.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSubject`] if the id or the role is not valid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let none = [""; 0];
        if let Some(role) = text.strip_prefix("role:") {
            Subject::new("x", [role])?;
            return Ok(Self::Role(role.to_owned()));
        }
        let id = text.strip_prefix("person:").unwrap_or(text);
        Subject::new(id, none)?;
        Ok(Self::Person(id.to_owned()))
    }

    /// Whether a person is asked by this.
    pub fn includes(&self, subject: &Subject) -> bool {
        match self {
            Self::Person(id) => id == subject.id(),
            Self::Role(role) => subject.has_role(role),
        }
    }
}

impl fmt::Display for Assignee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "role:{role}"),
            Self::Person(id) if id.starts_with("role:") || id.starts_with("person:") => {
                write!(f, "person:{id}")
            }
            Self::Person(id) => f.write_str(id),
        }
    }
}

impl FromStr for Assignee {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl Serialize for Assignee {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Assignee {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

/// How many approvals a request needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quorum {
    /// One.
    #[default]
    Anyone,
    /// One of each person who is asked.
    All,
    /// This share of the people who are asked, rounded up.
    Percent(u8),
    /// This number.
    Count(u32),
}

impl From<u32> for Quorum {
    fn from(count: u32) -> Self {
        Self::Count(count)
    }
}

/// When rejections end a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The first rejection rejects it.
    #[default]
    First,
    /// So many rejections reject it.
    Count(u32),
    /// It is rejected when too few people are left for the quorum.
    Unreachable,
}

/// The verdict that a choice counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It counts towards the quorum.
    Approve,
    /// It counts as a rejection.
    Reject,
}

impl Verdict {
    /// The verdict as text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Reject => "reject",
        }
    }
}

/// One of the choices of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The name, which a decision states.
    pub name: String,
    /// Its verdict.
    pub verdict: Verdict,
}

/// The action when a request is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DueAction {
    /// It ends as expired.
    Expire,
    /// It ends as approved.
    Approve,
    /// It ends as rejected.
    Reject,
    /// It asks others as well, and waits for its next due time.
    Escalate(Vec<Assignee>),
}

/// A due time of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Due {
    /// How long after the opening, or after the due time before.
    pub after: Duration,
    /// The action at that time.
    pub action: DueAction,
}

/// A record at a revision, by the digest of its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordRef {
    /// The collection.
    pub collection: Collection,
    /// The id.
    pub id: RecordId,
    /// The revision.
    pub revision: u64,
    /// The digest of the body.
    pub digest: Sha256Digest,
}

impl From<&RecordRef> for About {
    fn from(record: &RecordRef) -> Self {
        Self::Record(record.clone())
    }
}

impl From<RecordRef> for About {
    fn from(record: RecordRef) -> Self {
        Self::Record(record)
    }
}

/// The subject of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// A record. The request is stale if its body changes.
    Record(RecordRef),
    /// A copy that the request holds.
    Snapshot {
        /// The copy.
        value: Value,
        /// The digest of its JSON.
        digest: Sha256Digest,
    },
}

impl About {
    /// The digest of what people decide about.
    pub fn digest(&self) -> Sha256Digest {
        match self {
            Self::Record(record) => record.digest,
            Self::Snapshot { digest, .. } => *digest,
        }
    }
}

/// An effect that the engine enqueues when a request opens, is due and closes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notify {
    /// The name of the effect.
    pub effect: String,
    /// The input, a JSON object. The engine adds the members `type` and `data`.
    pub input: Value,
}

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestStatus {
    /// It waits for decisions.
    Open,
    /// Enough people approved it, or its due time did.
    Approved,
    /// Too many people rejected it, or its due time did.
    Rejected,
    /// Its due time came first.
    Expired,
    /// Its run, its requester or an operator took it back.
    Withdrawn,
    /// The record that it was about has changed.
    Stale,
}

impl RequestStatus {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Open, Self::Approved, Self::Rejected, Self::Expired, Self::Withdrawn, Self::Stale];

    /// The status as text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
            Self::Stale => "stale",
        }
    }
}

impl fmt::Display for RequestStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The decision of one person about a request, as its record has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The request.
    pub request: String,
    /// The person who decided.
    pub by: String,
    /// The person who delegated the decision to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// The assignee of the request that gave the right to decide.
    pub as_assignee: Assignee,
    /// The choice.
    pub choice: String,
    /// The verdict of the choice.
    pub verdict: Verdict,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// A comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The digest of what the decision is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<Sha256Digest>,
    /// The API key that the person used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// A decision that a person sends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewDecision {
    /// The name of a choice of the request.
    pub choice: String,
    /// The answer, if the request asks for one.
    pub answer: Option<Value>,
    /// A comment.
    pub comment: Option<String>,
    /// The digest of what the person has seen. Another digest than that of the request is refused.
    pub about: Option<Sha256Digest>,
}

impl NewDecision {
    /// A decision by the name of the choice.
    pub fn new(choice: impl Into<String>) -> Self {
        Self { choice: choice.into(), ..Self::default() }
    }

    /// The choice `approve`, which requests have unless they name others.
    pub fn approve() -> Self {
        Self::new("approve")
    }

    /// The choice `reject`, which requests have unless they name others.
    pub fn reject() -> Self {
        Self::new("reject")
    }

    /// Adds an answer.
    #[must_use]
    pub fn answer(mut self, answer: Value) -> Self {
        self.answer = Some(answer);
        self
    }

    /// Adds a comment.
    #[must_use]
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }

    /// States what the person has seen.
    #[must_use]
    pub fn about(mut self, digest: Sha256Digest) -> Self {
        self.about = Some(digest);
        self
    }
}

/// A person who acts on a request, and the API key that they use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decider {
    /// The person.
    pub subject: Subject,
    /// The id of the API key, if they use one.
    pub key_id: Option<String>,
    /// The other people who created the key, or a key that was used to create it.
    pub key_creators: Vec<String>,
}

impl Decider {
    /// A person.
    pub fn new(subject: Subject) -> Self {
        Self { subject, key_id: None, key_creators: Vec::new() }
    }

    /// The same person with an API key that `creators` made for them.
    #[must_use]
    pub fn with_key<'a>(
        mut self,
        key_id: impl Into<String>,
        creators: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        self.key_id = Some(key_id.into());
        let others = creators.into_iter().filter(|creator| *creator != self.subject.id());
        self.key_creators = others.map(str::to_owned).collect();
        self
    }
}

impl From<Subject> for Decider {
    fn from(subject: Subject) -> Self {
        Self::new(subject)
    }
}

/// How a request ended, as its run gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestOutcome {
    /// The request.
    pub request: String,
    /// How it ended.
    pub status: RequestStatus,
    /// The decisions with their people, oldest first.
    pub decisions: Vec<Decision>,
    /// The comments, oldest first.
    pub comments: Vec<Comment>,
    /// When it ended.
    pub closed_at: Timestamp,
    /// Why, if a due time, a person or the engine ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl RequestOutcome {
    /// Whether it was approved.
    pub fn is_approved(&self) -> bool {
        self.status == RequestStatus::Approved
    }

    /// The choice of the last decision with the verdict that ended the request.
    pub fn choice(&self) -> Option<&str> {
        self.deciding().map(|decision| &*decision.choice)
    }

    /// The answer of that decision.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidBody`] if the answer is not of type `T`.
    pub fn answer<T: de::DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let answer = self.deciding().and_then(|decision| decision.answer.clone());
        answer.map(serde_json::from_value).transpose().map_err(|source| {
            let message = format!("the answer to request {} is of another type", self.request);
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message).with_source(source)
        })
    }

    fn deciding(&self) -> Option<&Decision> {
        let verdict = match self.status {
            RequestStatus::Approved => Verdict::Approve,
            RequestStatus::Rejected => Verdict::Reject,
            _ => return None,
        };
        self.decisions.iter().rev().find(|decision| decision.verdict == verdict)
    }
}

/// Says who has a role, so that a request to a role can count people.
pub trait Directory: Send + Sync {
    /// The people who have a role; `None` if the directory does not know the role's members. The engine
    /// calls this in a turn: answer from memory.
    fn members(&self, role: &str) -> Option<Vec<String>>;

    /// Whether a person exists; `None` if the directory does not know.
    fn has_person(&self, id: &str) -> Option<bool> {
        let _ = id;
        None
    }
}

/// A directory without any knowledge: roles need a count, and every person may exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDirectory;

impl Directory for NoDirectory {
    fn members(&self, _: &str) -> Option<Vec<String>> {
        None
    }
}
