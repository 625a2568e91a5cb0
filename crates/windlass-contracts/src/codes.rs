//! The codes of the problems that contracts, patches and artefacts can have.

use crate::diagnostic::Code;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: Code = Code::new($text);)*

        /// All codes of this module.
        pub const CODES: &[Code] = &[$($name),*];
    };
}

codes! {
    /// A JSON value does not have the shape of its type.
    CONTRACT_SHAPE = "CONTRACT_SHAPE";
    /// A name has characters that names cannot have, or is too long.
    CONTRACT_NAME = "CONTRACT_NAME";
    /// Two things have the same id.
    CONTRACT_DUPLICATE = "CONTRACT_DUPLICATE";
    /// A reference names a thing that does not exist.
    CONTRACT_UNKNOWN = "CONTRACT_UNKNOWN";
    /// The lifecycle of a contract cannot work.
    CONTRACT_LIFECYCLE = "CONTRACT_LIFECYCLE";
    /// A schema is not a JSON schema, or refers to another document.
    CONTRACT_SCHEMA = "CONTRACT_SCHEMA";
    /// A definition is made for another document type or envelope version.
    CONTRACT_BASE_REF = "CONTRACT_BASE_REF";
    /// The input is larger than a limit.
    CONTRACT_LIMIT = "CONTRACT_LIMIT";
    /// A node or edge of a patch is outside its slot.
    PATCH_SCOPE = "PATCH_SCOPE";
    /// A patch contains a node of a system type.
    PATCH_SYSTEM_NODE = "PATCH_SYSTEM_NODE";
    /// A patch makes an edit window less strict.
    PATCH_EDIT_WINDOW = "PATCH_EDIT_WINDOW";
    /// A patch does not begin or end as its modes say.
    PATCH_ATTACHMENT = "PATCH_ATTACHMENT";
    /// An action changes the document where no gate sees the change.
    PATCH_DOCUMENT_ACTION = "PATCH_DOCUMENT_ACTION";
    /// The configuration of a node is wrong.
    NODE_CONFIG = "NODE_CONFIG";
    /// The edges of a node do not fit its type.
    NODE_EDGES = "NODE_EDGES";
    /// The graph has a cycle.
    GRAPH_CYCLE = "GRAPH_CYCLE";
    /// A node cannot be reached, or cannot reach the end.
    GRAPH_UNREACHABLE = "GRAPH_UNREACHABLE";
    /// Parallel branches do not have one entry and one exit.
    GRAPH_REGION = "GRAPH_REGION";
    /// A path to a gate breaks an obligation.
    OBLIGATION_BROKEN = "OBLIGATION_BROKEN";
    /// System nodes are missing, changed or in another order.
    ENVELOPE_INTEGRITY = "ENVELOPE_INTEGRITY";
    /// The hash of an artefact does not match its content.
    ARTEFACT_HASH = "ARTEFACT_HASH";
    /// Another version of the compiler made the artefact.
    WORKFLOW_COMPILER_STALE = "WORKFLOW_COMPILER_STALE";
    /// No edge of a node can be taken.
    WORKFLOW_NO_EDGE = "WORKFLOW_NO_EDGE";
    /// The document changed in a stable region that does not allow it.
    WORKFLOW_VERSION_DRIFT = "WORKFLOW_VERSION_DRIFT";
    /// A document does not match the schema of its type.
    DOCUMENT_INVALID = "DOCUMENT_INVALID";
    /// The policy refuses an action.
    WORKFLOW_POLICY_DENIED = "WORKFLOW_POLICY_DENIED";
    /// A payload of an event or a result of an action does not fit the schema of the context.
    WORKFLOW_RESULT_INVALID = "WORKFLOW_RESULT_INVALID";
    /// An expression, template or rule could not be evaluated.
    WORKFLOW_EVALUATION = "WORKFLOW_EVALUATION";
    /// A turn needs more steps than the limit.
    WORKFLOW_STEP_LIMIT = "WORKFLOW_STEP_LIMIT";
}
