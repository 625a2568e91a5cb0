//! All error codes, in one table: the variant that programs match and the text that is on the wire.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

macro_rules! error_codes {
    ($($variant:ident = $text:literal,)*) => {
        /// A stable code that says which error it is. Each code has a page below `docs/errors`.
        ///
        /// ```
        /// use windlass_kernel::ErrorCode;
        ///
        /// assert_eq!(ErrorCode::RunNotFound.as_str(), "RUN_NOT_FOUND");
        /// assert_eq!("RUN_NOT_FOUND".parse(), Ok(ErrorCode::RunNotFound));
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $(
                #[doc = concat!("`", $text, "`: see `docs/errors/", $text, ".md`.")]
                $variant,
            )*
            /// A code of a store or a model that is not part of Windlass.
            Custom(&'static str),
        }

        impl ErrorCode {
            /// All codes of Windlass, in alphabetical order of their text.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as it is in messages, in the HTTP API and in docs/errors.
            ///
            /// ```
            /// # use windlass_kernel::ErrorCode;
            /// assert_eq!(ErrorCode::RunNotFound.as_str(), "RUN_NOT_FOUND");
            /// ```
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Custom(text) => text,
                }
            }
        }
    };
}

error_codes! {
    ActivityExists = "ACTIVITY_EXISTS",
    ActivityFailed = "ACTIVITY_FAILED",
    AddressRefused = "ADDRESS_REFUSED",
    AgentBranchFailed = "AGENT_BRANCH_FAILED",
    AgentContextOverflow = "AGENT_CONTEXT_OVERFLOW",
    AgentFunctionNotFound = "AGENT_FUNCTION_NOT_FOUND",
    AgentJoinConflict = "AGENT_JOIN_CONFLICT",
    AgentNeedsEngine = "AGENT_NEEDS_ENGINE",
    AgentNotServed = "AGENT_NOT_SERVED",
    AgentOutputLimit = "AGENT_OUTPUT_LIMIT",
    AgentProviderNotFound = "AGENT_PROVIDER_NOT_FOUND",
    AgentRefused = "AGENT_REFUSED",
    AgentSnapshotInvalid = "AGENT_SNAPSHOT_INVALID",
    AgentStepLimit = "AGENT_STEP_LIMIT",
    AgentTranscriptFormat = "AGENT_TRANSCRIPT_FORMAT",
    AgentTurnLimit = "AGENT_TURN_LIMIT",
    AnswerInvalid = "ANSWER_INVALID",
    ApprovalNotFound = "APPROVAL_NOT_FOUND",
    ApprovalRefused = "APPROVAL_REFUSED",
    ApprovalStale = "APPROVAL_STALE",
    ApprovalWithdrawn = "APPROVAL_WITHDRAWN",
    ArchiveUnavailable = "ARCHIVE_UNAVAILABLE",
    AssigneeUnknown = "ASSIGNEE_UNKNOWN",
    BatchEnded = "BATCH_ENDED",
    BatchNotFound = "BATCH_NOT_FOUND",
    BodyTooLarge = "BODY_TOO_LARGE",
    BreakerBusy = "BREAKER_BUSY",
    BreakerNotFound = "BREAKER_NOT_FOUND",
    BudgetExceeded = "BUDGET_EXCEEDED",
    BudgetNotFound = "BUDGET_NOT_FOUND",
    BudgetNoPrice = "BUDGET_NO_PRICE",
    CallFailed = "CALL_FAILED",
    CallTimeout = "CALL_TIMEOUT",
    CauseNotFound = "CAUSE_NOT_FOUND",
    ChildFailed = "CHILD_FAILED",
    ClientGone = "CLIENT_GONE",
    CollectionReserved = "COLLECTION_RESERVED",
    ContractInvalid = "CONTRACT_INVALID",
    ContractTypeNotFound = "CONTRACT_TYPE_NOT_FOUND",
    DeadLetterNotFound = "DEAD_LETTER_NOT_FOUND",
    DeadLetterRequeued = "DEAD_LETTER_REQUEUED",
    DeciderExcluded = "DECIDER_EXCLUDED",
    DecisionExists = "DECISION_EXISTS",
    DefinitionNotFound = "DEFINITION_NOT_FOUND",
    DelegationRefused = "DELEGATION_REFUSED",
    DocumentActionClosed = "DOCUMENT_ACTION_CLOSED",
    DocumentConflict = "DOCUMENT_CONFLICT",
    DocumentExists = "DOCUMENT_EXISTS",
    DocumentInvalid = "DOCUMENT_INVALID",
    DocumentNotFound = "DOCUMENT_NOT_FOUND",
    DuplicateRun = "DUPLICATE_RUN",
    DuplicateStep = "DUPLICATE_STEP",
    EditorsUnknown = "EDITORS_UNKNOWN",
    EndpointNotFound = "ENDPOINT_NOT_FOUND",
    EndDiffers = "END_DIFFERS",
    EngineStopping = "ENGINE_STOPPING",
    EnvKeyNotFound = "ENV_KEY_NOT_FOUND",
    EnvValueInvalid = "ENV_VALUE_INVALID",
    EventIdAlreadyExists = "EVENT_ID_ALREADY_EXISTS",
    EventKeyBusy = "EVENT_KEY_BUSY",
    EventKeyFull = "EVENT_KEY_FULL",
    EventNotFound = "EVENT_NOT_FOUND",
    EventTimeout = "EVENT_TIMEOUT",
    ExportUnreadable = "EXPORT_UNREADABLE",
    FailureConsumed = "FAILURE_CONSUMED",
    Forbidden = "FORBIDDEN",
    ForeignTask = "FOREIGN_TASK",
    ForeignWait = "FOREIGN_WAIT",
    ForeignWake = "FOREIGN_WAKE",
    FormatUnknown = "FORMAT_UNKNOWN",
    HostUnresolved = "HOST_UNRESOLVED",
    ImportRefused = "IMPORT_REFUSED",
    InputUnreadable = "INPUT_UNREADABLE",
    InstanceBusy = "INSTANCE_BUSY",
    InstanceIdAlreadyExists = "INSTANCE_ID_ALREADY_EXISTS",
    InstanceNotErrored = "INSTANCE_NOT_ERRORED",
    InstanceNotFound = "INSTANCE_NOT_FOUND",
    InstanceTerminal = "INSTANCE_TERMINAL",
    Internal = "INTERNAL",
    InvalidAction = "INVALID_ACTION",
    InvalidAnchor = "INVALID_ANCHOR",
    InvalidArgument = "INVALID_ARGUMENT",
    InvalidBody = "INVALID_BODY",
    InvalidBreaker = "INVALID_BREAKER",
    InvalidBudget = "INVALID_BUDGET",
    InvalidCidr = "INVALID_CIDR",
    InvalidClaim = "INVALID_CLAIM",
    InvalidCommit = "INVALID_COMMIT",
    InvalidCursor = "INVALID_CURSOR",
    InvalidDecision = "INVALID_DECISION",
    InvalidDepth = "INVALID_DEPTH",
    InvalidDuration = "INVALID_DURATION",
    InvalidEventId = "INVALID_EVENT_ID",
    InvalidEventPayload = "INVALID_EVENT_PAYLOAD",
    InvalidEventType = "INVALID_EVENT_TYPE",
    InvalidEventVersion = "INVALID_EVENT_VERSION",
    InvalidExport = "INVALID_EXPORT",
    InvalidHeader = "INVALID_HEADER",
    InvalidHeaders = "INVALID_HEADERS",
    InvalidInstanceId = "INVALID_INSTANCE_ID",
    InvalidKey = "INVALID_KEY",
    InvalidLabel = "INVALID_LABEL",
    InvalidLog = "INVALID_LOG",
    InvalidLogLevel = "INVALID_LOG_LEVEL",
    InvalidName = "INVALID_NAME",
    InvalidOption = "INVALID_OPTION",
    InvalidPageSize = "INVALID_PAGE_SIZE",
    InvalidPath = "INVALID_PATH",
    InvalidPrecondition = "INVALID_PRECONDITION",
    InvalidPrices = "INVALID_PRICES",
    InvalidQuery = "INVALID_QUERY",
    InvalidRate = "INVALID_RATE",
    InvalidRequest = "INVALID_REQUEST",
    InvalidRetention = "INVALID_RETENTION",
    InvalidRetryPolicy = "INVALID_RETRY_POLICY",
    InvalidRevision = "INVALID_REVISION",
    InvalidSchedule = "INVALID_SCHEDULE",
    InvalidScope = "INVALID_SCOPE",
    InvalidSecret = "INVALID_SECRET",
    InvalidSetting = "INVALID_SETTING",
    InvalidSize = "INVALID_SIZE",
    InvalidStatus = "INVALID_STATUS",
    InvalidStoreUrl = "INVALID_STORE_URL",
    InvalidSubject = "INVALID_SUBJECT",
    InvalidTerm = "INVALID_TERM",
    InvalidText = "INVALID_TEXT",
    InvalidTime = "INVALID_TIME",
    InvalidUrl = "INVALID_URL",
    InvalidWait = "INVALID_WAIT",
    InvalidWebhook = "INVALID_WEBHOOK",
    KeysLimit = "KEYS_LIMIT",
    KeysNotFound = "KEYS_NOT_FOUND",
    KeyNotFound = "KEY_NOT_FOUND",
    McpProtocol = "MCP_PROTOCOL",
    McpToolsChanged = "MCP_TOOLS_CHANGED",
    McpUnavailable = "MCP_UNAVAILABLE",
    MessagesLimit = "MESSAGES_LIMIT",
    MessageConsumed = "MESSAGE_CONSUMED",
    MessageExists = "MESSAGE_EXISTS",
    MessageUnreadable = "MESSAGE_UNREADABLE",
    MethodNotAllowed = "METHOD_NOT_ALLOWED",
    NestedStep = "NESTED_STEP",
    NonDeterminism = "NON_DETERMINISM",
    NotAssigned = "NOT_ASSIGNED",
    NotAtRest = "NOT_AT_REST",
    NotTaken = "NOT_TAKEN",
    NoRandomness = "NO_RANDOMNESS",
    NoRuntime = "NO_RUNTIME",
    OutcomeUnknown = "OUTCOME_UNKNOWN",
    OutputDiffers = "OUTPUT_DIFFERS",
    Overloaded = "OVERLOADED",
    PolicyRefused = "POLICY_REFUSED",
    PreconditionRequired = "PRECONDITION_REQUIRED",
    ProviderFailed = "PROVIDER_FAILED",
    RateBusy = "RATE_BUSY",
    RecordConflict = "RECORD_CONFLICT",
    RecordNotFound = "RECORD_NOT_FOUND",
    RecordVersionNotFound = "RECORD_VERSION_NOT_FOUND",
    RequestClosed = "REQUEST_CLOSED",
    RequestFailed = "REQUEST_FAILED",
    RequestNotFound = "REQUEST_NOT_FOUND",
    RequestStale = "REQUEST_STALE",
    RequestTimeout = "REQUEST_TIMEOUT",
    ReservedHeader = "RESERVED_HEADER",
    ResultUnreadable = "RESULT_UNREADABLE",
    RouteNotFound = "ROUTE_NOT_FOUND",
    RunBusy = "RUN_BUSY",
    RunErrored = "RUN_ERRORED",
    RunExists = "RUN_EXISTS",
    RunHeadConflict = "RUN_HEAD_CONFLICT",
    RunHoldConflict = "RUN_HOLD_CONFLICT",
    RunNotErrored = "RUN_NOT_ERRORED",
    RunNotFound = "RUN_NOT_FOUND",
    RunNotInGroup = "RUN_NOT_IN_GROUP",
    RunSuperseded = "RUN_SUPERSEDED",
    RunTerminal = "RUN_TERMINAL",
    RunTerminated = "RUN_TERMINATED",
    ScheduleNotFound = "SCHEDULE_NOT_FOUND",
    ServerBusy = "SERVER_BUSY",
    SignatureRefused = "SIGNATURE_REFUSED",
    SleepFailed = "SLEEP_FAILED",
    StepFailed = "STEP_FAILED",
    StepLimit = "STEP_LIMIT",
    StepNotFound = "STEP_NOT_FOUND",
    StepSettled = "STEP_SETTLED",
    StoreClosed = "STORE_CLOSED",
    StoreConstraint = "STORE_CONSTRAINT",
    StoreCorrupt = "STORE_CORRUPT",
    StoreForeign = "STORE_FOREIGN",
    StoreLocked = "STORE_LOCKED",
    StoreMigration = "STORE_MIGRATION",
    StoreNewer = "STORE_NEWER",
    StoreNotFound = "STORE_NOT_FOUND",
    StoreOlder = "STORE_OLDER",
    StorePooled = "STORE_POOLED",
    StoreUnavailable = "STORE_UNAVAILABLE",
    StoreUnknown = "STORE_UNKNOWN",
    StoreVersion = "STORE_VERSION",
    StreamElsewhere = "STREAM_ELSEWHERE",
    SubjectRequired = "SUBJECT_REQUIRED",
    TaskHoldConflict = "TASK_HOLD_CONFLICT",
    TaskNotFound = "TASK_NOT_FOUND",
    ToolOutcomeUnknown = "TOOL_OUTCOME_UNKNOWN",
    TooManyConnections = "TOO_MANY_CONNECTIONS",
    TooManyRequests = "TOO_MANY_REQUESTS",
    TooManyStreams = "TOO_MANY_STREAMS",
    TooManyWaits = "TOO_MANY_WAITS",
    TranscriptNotFound = "TRANSCRIPT_NOT_FOUND",
    Unauthenticated = "UNAUTHENTICATED",
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE",
    UserSqlFailed = "USER_SQL_FAILED",
    UserSqlUnique = "USER_SQL_UNIQUE",
    WebhookDisabled = "WEBHOOK_DISABLED",
    WebhookGone = "WEBHOOK_GONE",
    WebhookSecretUnknown = "WEBHOOK_SECRET_UNKNOWN",
    WebhookStatus = "WEBHOOK_STATUS",
    WorkerNotFound = "WORKER_NOT_FOUND",
    WorkerStopped = "WORKER_STOPPED",
    WorkflowCompilerStale = "WORKFLOW_COMPILER_STALE",
    WorkflowEditLocked = "WORKFLOW_EDIT_LOCKED",
    WorkflowExists = "WORKFLOW_EXISTS",
    WorkflowNotFound = "WORKFLOW_NOT_FOUND",
    WorkflowPanicked = "WORKFLOW_PANICKED",
}

/// A text that is no code of Windlass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCode;

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the text is not an error code of this version of Windlass")
    }
}

impl std::error::Error for UnknownCode {}

impl FromStr for ErrorCode {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text).ok_or(UnknownCode)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl PartialEq<str> for ErrorCode {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for ErrorCode {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_sorted_unique_and_read_back() {
        let texts: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert!(texts.is_sorted_by(|a, b| a < b));
        for code in ErrorCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
        assert_eq!("RUN_GONE".parse::<ErrorCode>(), Err(UnknownCode));
        assert_eq!(ErrorCode::Custom("RUN_GONE").to_string(), "RUN_GONE");
    }
}
