//! The row of a document: its content, its state, and who did what last.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_contracts::types::EditWindow;
use windlass_kernel::{Error, Record, RunKey, Sha256Digest, Subject, Timestamp};

/// The body of a document's record.
///
/// State and edit window stand here and not in the run, so that they hold when no run lives and when no
/// engine works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentRow {
    /// The document type.
    #[serde(rename = "type")]
    pub entity_type: String,
    /// The id, unique in the type.
    pub id: String,
    /// The version of the content, from 1.
    pub version: u64,
    /// The content.
    pub content: Value,
    /// The digest of the content's canonical JSON. Approvals name it.
    pub digest: Sha256Digest,
    /// The lifecycle state.
    pub state: String,
    /// The version that the content had when the document entered the state; 0 if it is not known.
    #[serde(default)]
    pub state_version: u64,
    /// The edits that callers may make.
    pub edit_window: EditWindow,
    /// The version of the last change that was not limited to immaterial fields.
    pub material_version: u64,
    /// The version of the last such change that no action of the run made.
    pub drift_version: u64,
    /// The version of the lifecycle contract.
    pub envelope_version: u32,
    /// The hash of the artefact that the document is pinned to.
    pub artefact: Sha256Digest,
    /// The person who created the document or called the last action that the run carried out.
    pub requester: String,
    /// The people who created the API key that the requester used. None of them approves the document.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub requester_key_creators: BTreeSet<String>,
    /// Everybody who has changed the content. None of them approves it.
    pub editors: BTreeSet<String>,
    /// The last person who wrote the document.
    pub actor: Person,
    /// The gates that a person can open now.
    #[serde(default)]
    pub gates: BTreeSet<String>,
    /// Actions of people that the run has not carried out yet, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingAction>,
    /// The generation of the run that works on the document, from its first commit on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunKey>,
    /// The generation in which that run began. A retry goes on with it, a restart begins a new one.
    #[serde(default)]
    pub run_origin: u32,
    /// The document that this one amends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amended_from: Option<AmendedFrom>,
    /// The reason of the last write.
    pub note: Note,
}

/// A person as a document remembers them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// The id.
    pub id: String,
    /// The roles at the time of the write.
    #[serde(default)]
    pub roles: Vec<String>,
    /// The other people who created the API key that was used. Each of them could have used it.
    #[serde(default, rename = "keyCreators", skip_serializing_if = "Vec::is_empty")]
    pub key_creators: Vec<String>,
}

impl DocumentRow {
    /// Everybody who wrote the content or asked for it. Nobody of them approves a document that is made from
    /// it.
    pub(crate) fn authors(&self) -> BTreeSet<String> {
        let requester = std::iter::once(&self.requester).chain(&self.requester_key_creators);
        self.editors.iter().chain(requester).cloned().collect()
    }

    /// Makes a person the requester. Returns the people who were it before.
    pub(crate) fn set_requester(&mut self, person: &Person) -> (String, BTreeSet<String>) {
        let creators = person.key_creators.iter().cloned().collect();
        (
            std::mem::replace(&mut self.requester, person.id.clone()),
            std::mem::replace(&mut self.requester_key_creators, creators),
        )
    }

    /// Whether a person may not approve the content.
    pub(crate) fn excludes(&self, person: &str) -> bool {
        self.editors.contains(person)
            || self.requester == person
            || self.requester_key_creators.contains(person)
    }

    /// Whether a caller has changed the content materially since the document entered its state.
    pub(crate) fn has_drifted(&self) -> bool {
        self.state_version > 0 && self.drift_version > self.state_version
    }

    /// Whether this run, or one that has not committed yet, is the last that worked on the document.
    pub(crate) fn is_last_run(&self, run: RunKey) -> bool {
        self.run.is_none_or(|last| last == run)
    }
}

impl Person {
    /// A person with an API key that these people created.
    pub(crate) fn with_key(subject: &Subject, creators: &[String]) -> Self {
        let others = creators.iter().filter(|creator| *creator != subject.id());
        Self { key_creators: others.cloned().collect(), ..Self::of(subject) }
    }

    pub(crate) fn of(subject: &Subject) -> Self {
        let (id, roles) = (subject.id().to_owned(), subject.roles().to_vec());
        Self { id, roles, key_creators: Vec::new() }
    }

    /// An account that is no person.
    pub(crate) fn account(id: &str) -> Self {
        Self { id: id.to_owned(), roles: Vec::new(), key_creators: Vec::new() }
    }

    /// Everybody who can have made a write of this person.
    pub(crate) fn everybody(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.id).chain(&self.key_creators)
    }

    /// The value that expressions read as `actor`.
    pub(crate) fn value(&self) -> Value {
        json!({"user_id": self.id, "roles": self.roles})
    }
}

/// An action that a person called and the run has not carried out yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingAction {
    /// The gate that the action opens.
    pub gate: String,
    /// The person.
    pub by: Person,
    /// When it was called.
    pub at: Timestamp,
}

/// A reference to the document that another one amends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AmendedFrom {
    /// Its id.
    pub id: String,
    /// Its version.
    pub version: u64,
}

/// The audit note of a write: who did what, when and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// The person, or `system` for the run itself.
    pub who: String,
    /// The kind of the write: `create`, `edit`, `action`, `state` or `run`.
    pub what: String,
    /// When.
    pub when: Timestamp,
    /// Why, in the words of the caller or of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A document with the revision of its row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// The revision, which every write increases.
    pub revision: u64,
    /// The row.
    #[serde(flatten)]
    pub row: DocumentRow,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was written last.
    pub updated_at: Timestamp,
}

impl Document {
    pub(crate) fn read(record: Record) -> Result<Option<Self>, Error> {
        let Record { revision, body, created_at, updated_at, key, .. } = record;
        let Some(body) = body else { return Ok(None) };
        let row = body.read().map_err(|source| {
            Error::corrupt(format!("the record of document {key} cannot be read"))
                .with_source(source)
        })?;
        Ok(Some(Self { revision, row, created_at, updated_at }))
    }
}
