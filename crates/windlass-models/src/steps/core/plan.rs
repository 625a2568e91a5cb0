//! The kinds of operations, and the plan with which the code asks for one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_kernel::request::Request;
use windlass_kernel::{
    Body, ErrorCode, EventKey, MessageName, ModelName, RetryPolicy, Route, Timestamp, WorkflowName,
};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Do,
    Sleep,
    Event,
    Child,
    Activity,
    Request,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Do => "do",
            Self::Sleep => "sleep",
            Self::Event => "event",
            Self::Child => "child",
            Self::Activity => "activity",
            Self::Request => "request",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Do, Self::Sleep, Self::Event, Self::Child, Self::Activity, Self::Request]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }

    /// The code of an error that an operation of this kind ends with.
    pub(crate) const fn error_code(self) -> ErrorCode {
        match self {
            Self::Do => ErrorCode::StepFailed,
            Self::Sleep => ErrorCode::SleepFailed,
            Self::Event => ErrorCode::EventTimeout,
            Self::Child => ErrorCode::ChildFailed,
            Self::Activity => ErrorCode::ActivityFailed,
            Self::Request => ErrorCode::RequestFailed,
        }
    }
}

/// How an operation is carried out. The latest claim of its key decides.
/// The facts of a consumed event that its wait records for code that asks for them.
#[derive(Serialize, Deserialize)]
pub(crate) struct EventMeta {
    pub(crate) sent_at: Timestamp,
}

#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Do {
        policy: RetryPolicy,
        timeout: Option<Duration>,
        intent: bool,
    },
    SleepFor(Duration),
    SleepUntil(Timestamp),
    Event {
        name: MessageName,
        key: Option<EventKey>,
        timeout: Duration,
        /// Whether the code asks for the event's time, which is then recorded.
        with_meta: bool,
    },
    Child {
        workflow: WorkflowName,
        model: ModelName,
        input: Body,
        labels: BTreeMap<String, String>,
    },
    Activity {
        route: Route,
        body: Body,
        priority: i16,
        attempts_max: Option<u32>,
    },
    Request(Box<Request>),
}

impl Plan {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Do { .. } => Kind::Do,
            Self::SleepFor(_) | Self::SleepUntil(_) => Kind::Sleep,
            Self::Event { .. } => Kind::Event,
            Self::Child { .. } => Kind::Child,
            Self::Activity { .. } => Kind::Activity,
            Self::Request(_) => Kind::Request,
        }
    }

    /// Whether the plan records an intent before the body starts.
    pub(crate) fn has_intent(&self) -> bool {
        matches!(self, Self::Do { intent: true, .. })
    }
}
