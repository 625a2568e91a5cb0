//! The names of records, workflows and messages that contracts use, and their limits.

use windlass_kernel::{
    Collection, Error, ErrorCode, ErrorKind, MessageName, Namespace, RecordId, RecordKey, RunId,
    Sha256Digest, WorkflowName,
};

/// Lifecycle contracts: `<type>` is the head, `<type>@<version>` a published version.
pub(crate) const TYPES: &str = "windlass.types";
/// Definitions of tenants: `<type>` is the head, `<type>@<version>` a published version.
pub(crate) const DEFINITIONS: &str = "windlass.definitions";
/// Compiled artefacts by hash.
pub(crate) const ARTEFACTS: &str = "windlass.artefacts";
/// Documents: `<type>/<id>`.
pub(crate) const DOCUMENTS: &str = "windlass.documents";
/// People and delegations, and the settings of the tenant.
pub(crate) const PEOPLE: &str = "windlass.people";
/// Messages to people in the application.
pub(crate) const NOTIFICATIONS: &str = "windlass.notifications";
/// Requests for approval.
pub(crate) const APPROVALS: &str = "windlass.approvals";
/// Approval chains of tenants.
pub(crate) const CHAINS: &str = "windlass.chains";
/// The tenants that have documents, in the namespace of the operator.
pub(crate) const TENANTS: &str = "windlass.tenants";
/// How often a node has asked somebody, for the round robin.
pub(crate) const ROTATIONS: &str = "windlass.rotations";

/// The id of the record with the directory.
pub(crate) const DIRECTORY: &str = "directory";
/// The id of the record with the settings of the tenant, which expressions read as `org`.
pub(crate) const SETTINGS: &str = "settings";

/// The message that wakes a run because its document was written.
pub(crate) const DOCUMENT_WRITTEN: MessageName = MessageName::from_static("document.written");

/// The message that wakes a run because somebody decided.
pub(crate) const APPROVAL_DECIDED: MessageName = MessageName::from_static("approval.decided");

/// The most published versions of a contract or a definition.
pub const VERSIONS_MAX: usize = 100_000;
/// The most actions of people that wait for the run of one document.
pub const PENDING_MAX: usize = 16;
/// The most people who can have edited one document.
pub const EDITORS_MAX: usize = 500;
/// The longest reason of a write, in bytes.
pub const REASON_BYTES_MAX: usize = 2_000;
/// The most steps of one run.
pub const STEPS_MAX: u64 = 10_000;

/// Every workflow of a document type begins so.
pub(crate) const WORKFLOW_PREFIX: &str = "doc:";

/// The workflow of a document type.
pub(crate) fn workflow_of(entity_type: &str) -> Result<WorkflowName, Error> {
    WorkflowName::new(format!("{WORKFLOW_PREFIX}{entity_type}"))
}

/// The record of a document. Its id is also the id of its run.
pub(crate) fn document_id(entity_type: &str, id: &str) -> Result<String, Error> {
    RunId::new(id)?;
    check_type_name(entity_type)?;
    Ok(format!("{entity_type}/{id}"))
}

pub(crate) fn check_type_name(entity_type: &str) -> Result<(), Error> {
    if windlass_contracts::ids::is_name(entity_type) && entity_type.len() <= 48 {
        return Ok(());
    }
    let excerpt: String = entity_type.chars().take(60).collect();
    let message = format!(
        "{excerpt:?} is not the name of a document type; use up to 48 lowercase letters, digits, '_' and '-'"
    );
    Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidName, message))
}

/// The id of a published version.
pub(crate) fn version_id(entity_type: &str, version: u32) -> String {
    format!("{entity_type}@{version}")
}

pub(crate) fn key(namespace: &Namespace, collection: &str, id: &str) -> Result<RecordKey, Error> {
    Ok(RecordKey {
        namespace: namespace.clone(),
        collection: Collection::new(collection)?,
        id: RecordId::new(id)?,
    })
}

/// The digest of JSON content, over its canonical form.
pub(crate) fn digest_of(content: &serde_json::Value) -> Result<Sha256Digest, Error> {
    let bytes = windlass_kernel::canonical::to_canonical(content).map_err(|source| {
        let message = "the content cannot be written as canonical JSON";
        Error::new(ErrorKind::Invalid, ErrorCode::DocumentInvalid, message).with_source(source)
    })?;
    Ok(Sha256Digest::of(&bytes))
}
