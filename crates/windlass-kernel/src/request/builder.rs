//! The question as a program states it, before it is opened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{About, Assignee, Choice, Due, DueAction, Notify, Quorum, Rejection, Verdict};
use crate::body::Body;
use crate::duration::IntoDuration;
use crate::error::{Error, ErrorCode, ErrorKind};

/// A question to people. It is opened by a run, which waits for its outcome.
///
/// ```
/// use windlass_kernel::request::Request;
///
/// let request = Request::to("role:cfo").title("Pay invoice i-7").quorum(2).due("3 days");
/// # drop(request);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub(super) to: Vec<Assignee>,
    pub(super) title: String,
    pub(super) text: String,
    pub(super) schema: Option<Value>,
    pub(super) choices: Vec<Choice>,
    pub(super) about: Option<About>,
    pub(super) quorum: Quorum,
    pub(super) rejection: Rejection,
    pub(super) requester: Option<String>,
    pub(super) exclude_editors: bool,
    pub(super) excluded: Vec<String>,
    pub(super) due: Vec<Due>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) notify: Vec<Notify>,
    // The first setter that was refused. It is reported when the request is opened.
    #[serde(skip)]
    pub(super) refused: Option<(ErrorCode, String)>,
}

impl Request {
    /// A question to a person (`ann`) or to everybody with a role (`role:cfo`).
    pub fn to(assignee: impl AsRef<str>) -> Self {
        let request = Self {
            to: Vec::new(),
            title: String::new(),
            text: String::new(),
            schema: None,
            choices: Vec::new(),
            about: None,
            quorum: Quorum::Anyone,
            rejection: Rejection::First,
            requester: None,
            exclude_editors: true,
            excluded: Vec::new(),
            due: Vec::new(),
            labels: BTreeMap::new(),
            notify: Vec::new(),
            refused: None,
        };
        request.and_to(assignee)
    }

    /// Asks somebody else too.
    #[must_use]
    pub fn and_to(mut self, assignee: impl AsRef<str>) -> Self {
        match Assignee::parse(assignee.as_ref()) {
            Ok(assignee) if self.to.contains(&assignee) => {}
            Ok(assignee) => self.to.push(assignee),
            Err(error) => self.refuse(&error),
        }
        self
    }

    /// The title, one line. By default it is the key of the step that asks.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// The title unless the request has one.
    #[must_use]
    pub fn or_title(mut self, title: impl Into<String>) -> Self {
        if self.title.is_empty() {
            self.title = title.into();
        }
        self
    }

    /// The question in full.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// The JSON schema that an answer must fit. Approving decisions then need an answer. Needs the feature
    /// `schemas`.
    #[cfg(feature = "schemas")]
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Names a choice. Without any, the choices are `approve` and `reject`.
    #[must_use]
    pub fn choice(mut self, name: impl Into<String>, verdict: Verdict) -> Self {
        self.choices.push(Choice { name: name.into(), verdict });
        self
    }

    /// Names choices that all count towards the quorum.
    #[must_use]
    pub fn choices<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        names.into_iter().fold(self, |request, name| request.choice(name, Verdict::Approve))
    }

    /// Sets what the request is about: a record at a revision. A decision counts only while the record has
    /// the same body.
    #[must_use]
    pub fn about(mut self, about: impl Into<About>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// Sets what the request is about: a copy, which the request holds.
    #[must_use]
    pub fn about_snapshot<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        let snapshot = Body::of(value).and_then(|body| {
            let digest = body.digest();
            body.read().map(|value| About::Snapshot { value, digest })
        });
        match snapshot {
            Ok(snapshot) => self.about = Some(snapshot),
            Err(error) => self.refuse(&error),
        }
        self
    }

    /// How many approvals it needs: a number or a [`Quorum`]. Default one.
    #[must_use]
    pub fn quorum(mut self, quorum: impl Into<Quorum>) -> Self {
        self.quorum = quorum.into();
        self
    }

    /// When rejections end it. Default with the first one.
    #[must_use]
    pub fn rejection(mut self, rejection: Rejection) -> Self {
        self.rejection = rejection;
        self
    }

    /// The person on whose behalf the run asks. They cannot decide, and they can withdraw the request.
    #[must_use]
    pub fn requester(mut self, id: impl Into<String>) -> Self {
        self.requester = Some(id.into());
        self
    }

    /// Editors of the record that it is about may decide. By default they cannot: everybody who wrote a kept
    /// version of it. If a revision of the record is not kept, nobody can decide, because its editor is unknown.
    #[must_use]
    pub fn allow_editors(mut self) -> Self {
        self.exclude_editors = false;
        self
    }

    /// A person who cannot decide.
    #[must_use]
    pub fn exclude(mut self, id: impl Into<String>) -> Self {
        self.excluded.push(id.into());
        self
    }

    /// When it is due, counted from its opening or from the escalation before. It then expires, unless
    /// [`Request::on_due`] says otherwise.
    #[must_use]
    pub fn due(self, after: impl IntoDuration) -> Self {
        self.add_due(after, DueAction::Expire)
    }

    /// Sets what happens at the last due time.
    #[must_use]
    pub fn on_due(mut self, action: DueAction) -> Self {
        match self.due.last_mut() {
            Some(due) => due.action = action,
            None => {
                let message =
                    "the request has an action for its due time, and no due time; call `due` first";
                self.refuse(&Error::new(ErrorKind::Invalid, ErrorCode::InvalidRequest, message));
            }
        }
        self
    }

    /// Asks others as well if it is still open after this time. A later [`Request::due`] counts from then.
    #[must_use]
    pub fn escalate<S: AsRef<str>>(
        mut self,
        after: impl IntoDuration,
        to: impl IntoIterator<Item = S>,
    ) -> Self {
        let to: Result<Vec<Assignee>, Error> =
            to.into_iter().map(|to| Assignee::parse(to.as_ref())).collect();
        match to {
            Ok(to) => self.add_due(after, DueAction::Escalate(to)),
            Err(error) => {
                self.refuse(&error);
                self
            }
        }
    }

    fn add_due(mut self, after: impl IntoDuration, action: DueAction) -> Self {
        match after.into_duration() {
            Ok(after) => self.due.push(Due { after, action }),
            Err(error) => {
                let message = format!("the due time is not a duration: {error}");
                self.refuse(&Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, message));
            }
        }
        self
    }

    /// A label for people and programs that show the request.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// An effect that the engine enqueues when the request opens, is due and closes. Its input is a JSON
    /// object, to which the engine adds `type` (`request.opened`, `request.due`, `request.closed`) and `data`.
    #[must_use]
    pub fn notify<T: Serialize + ?Sized>(mut self, effect: impl Into<String>, input: &T) -> Self {
        match Body::of(input).and_then(|body| body.read::<Value>()) {
            Ok(input) => self.notify.push(Notify { effect: effect.into(), input }),
            Err(error) => self.refuse(&error),
        }
        self
    }

    /// Calls a URL as a webhook when the request opens, is due and closes.
    #[must_use]
    pub fn webhook(self, url: impl Into<String>) -> Self {
        self.notify("webhook", &serde_json::json!({ "url": url.into() }))
    }

    /// The JSON schema of an answer.
    pub fn answer_schema(&self) -> Option<&Value> {
        self.schema.as_ref()
    }

    /// Those who are asked.
    pub fn assignees(&self) -> &[Assignee] {
        &self.to
    }

    fn refuse(&mut self, error: &Error) {
        if self.refused.is_none() {
            self.refused = Some((error.code(), error.message().to_owned()));
        }
    }
}
