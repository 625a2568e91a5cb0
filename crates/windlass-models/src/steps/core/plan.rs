//! The kinds of operations, and the plan with which the code asks for one.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_kernel::{
    Body, ErrorCode, MessageName, ModelName, RetryPolicy, Route, Timestamp, WorkflowName,
};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Do,
    Sleep,
    Event,
    Child,
    Activity,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Do => "do",
            Self::Sleep => "sleep",
            Self::Event => "event",
            Self::Child => "child",
            Self::Activity => "activity",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Do, Self::Sleep, Self::Event, Self::Child, Self::Activity]
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
        }
    }
}

/// How an operation is carried out. The latest claim of its key decides.
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
        timeout: Duration,
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
}

impl Plan {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Do { .. } => Kind::Do,
            Self::SleepFor(_) | Self::SleepUntil(_) => Kind::Sleep,
            Self::Event { .. } => Kind::Event,
            Self::Child { .. } => Kind::Child,
            Self::Activity { .. } => Kind::Activity,
        }
    }

    /// Whether the plan records an intent before the body starts.
    pub(crate) fn has_intent(&self) -> bool {
        matches!(self, Self::Do { intent: true, .. })
    }
}
