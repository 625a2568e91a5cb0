//! The single write path of documents. Every write of a caller passes `mutate`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};
use windlass_contracts::document::{FieldChange, changes, is_material};
use windlass_contracts::types::{EditWindow, GateTrigger, LifecycleContract};
use windlass_engine::{RecordChange, StartRun, conflict_delay, refusal};
use windlass_kernel::{
    Body, CommitError, Conflict, Error, ErrorCode, Expect, MessageKind, OnExisting, Query,
    RecordVersion, RunId, RunStatus, Store, Subject, bodies,
};

use super::description::NAME;
use super::document::{AmendedFrom, Document, DocumentRow, Note, PendingAction, Person};
use super::error::{bad_document, conflict, invalid, no_document, not_found, refused};
use super::handle::Contracts;
use super::names::{
    DOCUMENT_WRITTEN, DOCUMENTS, EDITORS_MAX, PENDING_MAX, REASON_BYTES_MAX, digest_of,
    document_id, key, workflow_of,
};

/// How often a write is decided again because another writer was first.
const ROUNDS_MAX: u32 = 16;

/// A content version of a document.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentVersion {
    /// The version.
    pub version: u64,
    /// The revision of the row that has it.
    pub revision: u64,
    /// The content.
    pub content: Value,
    /// The audit note.
    pub note: Note,
}

/// The origin of the content of a new document.
#[derive(Default)]
struct Source<'a> {
    amended_from: Option<AmendedFrom>,
    /// Everybody who wrote it before, apart from the caller.
    authors: BTreeSet<String>,
    why: Option<&'a str>,
}

/// A write that `mutate` makes.
enum Write<'a> {
    Edit { version: u64, content: &'a Value },
    Action { gate: &'a str },
}

impl Contracts {
    /// Creates a document and starts its run, in one commit.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let content = serde_json::json!({ "id": "i-1", "total": 900, "currency": "EUR", "requester": "dana" });
    /// let invoice = contracts.create("invoice", "i-1", &content, &dana).await?;
    /// assert_eq!(invoice.row.version, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DocumentExists`], [`ErrorCode::DocumentInvalid`], [`ErrorCode::ContractTypeNotFound`] or
    /// [`ErrorCode::PolicyRefused`].
    pub async fn create(
        &self,
        entity_type: &str,
        id: &str,
        content: &Value,
        by: &Subject,
    ) -> Result<Document, Error> {
        self.create_from(entity_type, id, content, Source::default(), by).await
    }

    /// Creates a document with a reason in its note, from content of these authors.
    pub(crate) async fn create_noted(
        &self,
        entity_type: &str,
        id: &str,
        content: &Value,
        by: &Subject,
        (why, authors): (&str, BTreeSet<String>),
    ) -> Result<Document, Error> {
        check_reason(Some(why))?;
        let source = Source { authors, why: Some(why), ..Source::default() };
        self.create_from(entity_type, id, content, source, by).await
    }

    async fn create_from(
        &self,
        entity_type: &str,
        id: &str,
        content: &Value,
        source: Source<'_>,
        by: &Subject,
    ) -> Result<Document, Error> {
        let Source { amended_from, mut authors, why } = source;
        let record = document_id(entity_type, id)?;
        let namespace = self.engine.namespace();
        let effective = self.shared.effective(namespace, entity_type).await?;
        let contract = self.shared.contract(entity_type, effective.envelope_version).await?;
        contract.validator.check(content).map_err(|problems| bad_document(&problems))?;
        let person = self.person(by);
        authors.extend(person.everybody().cloned());
        check_editors(&authors)?;
        let now = self.engine.clock().now();
        let row = DocumentRow {
            entity_type: entity_type.to_owned(),
            id: id.to_owned(),
            version: 1,
            content: content.clone(),
            digest: digest_of(content)?,
            state: contract.contract.initial.clone(),
            state_version: 1,
            edit_window: initial_window(&contract.contract),
            material_version: 1,
            drift_version: 1,
            envelope_version: effective.envelope_version,
            artefact: effective.hash,
            requester: person.id.clone(),
            requester_key_creators: person.key_creators.iter().cloned().collect(),
            editors: authors,
            actor: person.clone(),
            gates: BTreeSet::new(),
            pending: Vec::new(),
            run: None,
            run_origin: 0,
            amended_from,
            note: Note {
                who: person.id.clone(),
                what: "create".to_owned(),
                when: now,
                why: why.map(str::to_owned),
            },
        };
        self.allow(&person, "create", &row)?;
        let workflow = workflow_of(entity_type)?;
        let input = json!({"type": entity_type, "document": id, "artefact": row.artefact});
        let mut start = StartRun::new(workflow, NAME, Body::of(&input)?);
        start.id = Some(RunId::new(id)?);
        start.on_existing = OnExisting::Refuse;
        self.note_tenant().await?;
        start.records =
            vec![put_document(&record, &row, Expect::Absent, true)?.by(&self.author(by))];
        match self.engine.start_run(start).await {
            Ok(_) => {}
            Err(error) if is_taken(&error) => {
                let message = format!("there is a document {id:?} of type {entity_type:?} already");
                return Err(conflict(ErrorCode::DocumentExists, message));
            }
            Err(error) => return Err(error),
        }
        Ok(Document { revision: 1, row, created_at: now, updated_at: now })
    }

    /// Reads a document.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{}", contracts.document("invoice", "i-1").await?.row.state);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DocumentNotFound`] if there is none.
    pub async fn document(&self, entity_type: &str, id: &str) -> Result<Document, Error> {
        let found = self.shared.document(self.engine.namespace(), entity_type, id).await?;
        found.ok_or_else(|| no_document(entity_type, id))
    }

    /// A page of documents of a type, by id: all of them, or those in a state.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let drafts = contracts.documents("invoice", Some("draft"), None, 100).await?;
    /// println!("{} drafts", drafts.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer, or a name is not valid. [`ErrorCode::InvalidSize`] if the documents of the page
    /// have more than 64 MiB.
    pub async fn documents(
        &self,
        entity_type: &str,
        state: Option<&str>,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Document>, Error> {
        super::names::check_type_name(entity_type)?;
        let term = match state {
            Some(state) => ("state", format!("{entity_type}:{state}")),
            None => ("type", entity_type.to_owned()),
        };
        let after = after.map(|id| document_id(entity_type, id)).transpose()?;
        let query = Query::Records {
            namespace: self.engine.namespace().clone(),
            collection: windlass_kernel::Collection::new(DOCUMENTS)?,
            term: Some((term.0.into(), term.1.into())),
            after: after.map(windlass_kernel::RecordId::new).transpose()?,
            limit,
        };
        let rows = bodies::list_records(&**self.engine.store(), query).await?;
        rows.into_iter().filter_map(|record| Document::read(record).transpose()).collect()
    }

    /// Replaces the content of a document that has this version. A content that is the same writes nothing.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let invoice = contracts.document("invoice", "i-1").await?;
    /// let mut content = invoice.row.content.clone();
    /// content["total"] = 950.into();
    /// let why = Some("the freight was missing");
    /// contracts.edit("invoice", "i-1", invoice.row.version, &content, &dana, why).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::WorkflowEditLocked`] if the edit window is locked, [`ErrorCode::DocumentConflict`] if the
    /// document has another version, [`ErrorCode::DocumentInvalid`], [`ErrorCode::PolicyRefused`].
    pub async fn edit(
        &self,
        entity_type: &str,
        id: &str,
        version: u64,
        content: &Value,
        by: &Subject,
        why: Option<&str>,
    ) -> Result<Document, Error> {
        self.mutate(entity_type, id, Write::Edit { version, content }, by, why).await
    }

    /// Calls the action of a gate, such as `submit` or `cancel`. The run carries it out. A run that has failed is
    /// retried if the gate cancels the document.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// contracts.act("invoice", "i-1", "submit", &dana, None).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DocumentActionClosed`] if the gate is not open.
    pub async fn act(
        &self,
        entity_type: &str,
        id: &str,
        gate: &str,
        by: &Subject,
        why: Option<&str>,
    ) -> Result<Document, Error> {
        let called = self.mutate(entity_type, id, Write::Action { gate }, by, why).await?;
        self.resume_to_cancel(&called, gate, by).await?;
        Ok(called)
    }

    /// A run that has failed carries out nothing, so it is retried if a person cancels its document.
    async fn resume_to_cancel(
        &self,
        document: &Document,
        gate: &str,
        by: &Subject,
    ) -> Result<(), Error> {
        let row = &document.row;
        let contract = self.shared.contract(&row.entity_type, row.envelope_version).await?;
        if !contract.cancels(gate) {
            return Ok(());
        }
        let run = self.run(&row.entity_type, &row.id).await?;
        if run.status != RunStatus::Errored {
            return Ok(());
        }
        let Err(error) = self.engine.retry(run.run_key, Some(self.author(by))).await else {
            return Ok(());
        };
        // Somebody else may have retried it.
        let now = self.run(&row.entity_type, &row.id).await?;
        match now.run_key == run.run_key {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Creates a document that amends a locked one, with its content. It runs the workflow from its start.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// contracts.amend("invoice", "i-1", "i-1-b", &dana).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DocumentActionClosed`] if the document is not locked: edit it instead.
    pub async fn amend(
        &self,
        entity_type: &str,
        id: &str,
        new_id: &str,
        by: &Subject,
    ) -> Result<Document, Error> {
        let found = self.document(entity_type, id).await?;
        if found.row.edit_window != EditWindow::Locked {
            let message = format!("document {id:?} is not locked; edit it instead");
            return Err(refused(ErrorCode::DocumentActionClosed, message));
        }
        self.allow(&self.person(by), "amend", &found.row)?;
        let from = AmendedFrom { id: id.to_owned(), version: found.row.version };
        let source = Source { amended_from: Some(from), authors: found.row.authors(), why: None };
        self.create_from(entity_type, new_id, &found.row.content, source, by).await
    }

    /// A content version of a document.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{}", contracts.document_version("invoice", "i-1", 1).await?.content);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RecordVersionNotFound`] if there is none with this number.
    pub async fn document_version(
        &self,
        entity_type: &str,
        id: &str,
        version: u64,
    ) -> Result<DocumentVersion, Error> {
        let namespace = self.engine.namespace();
        self.shared.document_version(namespace, entity_type, id, version).await
    }

    /// The fields that differ between two content versions.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for (field, change) in contracts.document_diff("invoice", "i-1", 1, 2).await? {
    ///     println!("{field}: {change:?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Contracts::document_version`].
    pub async fn document_diff(
        &self,
        entity_type: &str,
        id: &str,
        from: u64,
        to: u64,
    ) -> Result<BTreeMap<String, FieldChange>, Error> {
        let before = self.document_version(entity_type, id, from).await?;
        let after = self.document_version(entity_type, id, to).await?;
        Ok(changes(&before.content, &after.content))
    }

    fn allow(&self, person: &Person, write: &str, row: &DocumentRow) -> Result<(), Error> {
        self.shared.policy.write(person, write, row).map_err(|reason| {
            let message = format!("the policy refuses {write:?} by {:?}: {reason}", person.id);
            refused(ErrorCode::PolicyRefused, message)
        })
    }

    /// Reads the document, decides, and writes the row together with the message that wakes its run. It
    /// decides again if another writer was first.
    async fn mutate(
        &self,
        entity_type: &str,
        id: &str,
        write: Write<'_>,
        by: &Subject,
        why: Option<&str>,
    ) -> Result<Document, Error> {
        check_reason(why)?;
        let record = document_id(entity_type, id)?;
        let mut losses = 0;
        loop {
            let found = self.document(entity_type, id).await?;
            let Some(mut row) = self.decide(&found, &write, by).await? else { return Ok(found) };
            let now = self.engine.clock().now();
            row.actor = self.person(by);
            row.note.who = by.id().to_owned();
            (row.note.when, row.note.why) = (now, why.map(str::to_owned));
            let change = put_document(&record, &row, Expect::At(found.revision), true)?;
            // A generation that has not committed yet reads the row in its first commit.
            let wake = row.run.map(|run_key| {
                let (kind, name) = (MessageKind::Event, DOCUMENT_WRITTEN);
                self.engine.wake_message(run_key, kind, name, None)
            });
            let messages = wake.transpose()?.into_iter().collect();
            match self.engine.commit_with(&[change.by(&self.author(by))], messages).await {
                Ok(_) => {
                    let revision = found.revision + 1;
                    return Ok(Document { revision, row, updated_at: now, ..found });
                }
                Err(CommitError::Conflict(Conflict::Record { .. })) if losses < ROUNDS_MAX => {
                    losses += 1;
                    let env = self.engine.env();
                    env.sleep(conflict_delay(env.random(), losses)).await;
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
    }

    /// The row after a write; nothing if it changes nothing.
    async fn decide(
        &self,
        found: &Document,
        write: &Write<'_>,
        by: &Subject,
    ) -> Result<Option<DocumentRow>, Error> {
        let person = self.person(by);
        let contract =
            self.shared.contract(&found.row.entity_type, found.row.envelope_version).await?;
        let mut row = found.row.clone();
        match write {
            Write::Edit { version, content } => {
                if row.edit_window == EditWindow::Locked {
                    let message = format!(
                        "document {:?} is {:?} and its edit window is locked; amend it instead",
                        row.id, row.state
                    );
                    return Err(refused(ErrorCode::WorkflowEditLocked, message));
                }
                if row.version != *version {
                    let message = format!(
                        "document {:?} was expected to have version {version}, but it has version {}; \
                         read it again, then decide",
                        row.id, row.version
                    );
                    return Err(conflict(ErrorCode::DocumentConflict, message));
                }
                contract.validator.check(content).map_err(|problems| bad_document(&problems))?;
                if row.content == **content {
                    return Ok(None);
                }
                self.allow(&person, "edit", &row)?;
                let immaterial: BTreeSet<String> =
                    contract.contract.immaterial_fields.iter().cloned().collect();
                row.set_content((*content).clone(), &immaterial, false)?;
                row.editors.extend(person.everybody().cloned());
                check_editors(&row.editors)?;
                row.note.what = "edit".to_owned();
            }
            Write::Action { gate } => {
                if row.pending.iter().any(|pending| pending.gate == **gate) {
                    return Ok(None);
                }
                check_gate(&contract.contract, &row, gate)?;
                self.allow(&person, gate, &row)?;
                if row.pending.len() >= PENDING_MAX {
                    let message =
                        format!("{PENDING_MAX} actions wait for the run, which is the limit");
                    return Err(refused(ErrorCode::DocumentActionClosed, message));
                }
                let at = self.engine.clock().now();
                row.pending.push(PendingAction { gate: (*gate).to_owned(), by: person, at });
                row.note.what = format!("action {gate}");
            }
        }
        Ok(Some(row))
    }
}

impl super::shared::Shared {
    pub(crate) async fn document_version(
        &self,
        namespace: &windlass_kernel::Namespace,
        entity_type: &str,
        id: &str,
        version: u64,
    ) -> Result<DocumentVersion, Error> {
        let key = key(namespace, DOCUMENTS, &document_id(entity_type, id)?)?;
        let limit = self.limits.page_rows_max.min(100);
        let mut before = None;
        let mut found = None;
        loop {
            let query = Query::RecordVersions { key: key.clone(), before, limit };
            let page = self.store.list(query).await?.record_versions()?;
            let last = page.len() < limit as usize;
            before = page.last().map(|kept| kept.revision);
            for kept in page {
                let kept = filled_version(&*self.store, kept).await?;
                let row: DocumentRow = kept.body.read()?;
                if row.version < version {
                    return found.ok_or_else(|| no_version(entity_type, id, version));
                }
                // The oldest kept row of a version is the write that made it.
                if row.version == version {
                    let (content, note) = (row.content, row.note);
                    found =
                        Some(DocumentVersion { version, revision: kept.revision, content, note });
                }
            }
            if last {
                return found.ok_or_else(|| no_version(entity_type, id, version));
            }
        }
    }
}

/// A listed version with its content. Versions are read one at a time, because each may be large.
pub(crate) async fn filled_version(
    store: &dyn Store,
    mut kept: RecordVersion,
) -> Result<RecordVersion, Error> {
    bodies::fill(store, bodies::of_versions(std::slice::from_mut(&mut kept))).await?;
    Ok(kept)
}

fn no_version(entity_type: &str, id: &str, version: u64) -> Error {
    let message = format!("document {id:?} of type {entity_type:?} has no version {version}");
    not_found(ErrorCode::RecordVersionNotFound, message)
}

impl DocumentRow {
    /// Sets another content and counts the version.
    pub(crate) fn set_content(
        &mut self,
        content: Value,
        immaterial: &BTreeSet<String>,
        by_run: bool,
    ) -> Result<(), Error> {
        let material = is_material(&self.content, &content, immaterial);
        self.version += 1;
        if material {
            self.material_version = self.version;
            if !by_run {
                self.drift_version = self.version;
            }
        }
        self.digest = digest_of(&content)?;
        self.content = content;
        Ok(())
    }
}

/// The write of a document's row.
pub(crate) fn put_document(
    record: &str,
    row: &DocumentRow,
    expect: Expect,
    keep: bool,
) -> Result<RecordChange, Error> {
    let change = RecordChange::put_own(DOCUMENTS, record, row, expect)?
        .term("type", &row.entity_type)?
        .term("state", &format!("{}:{}", row.entity_type, row.state))?;
    Ok(if keep { change.keep() } else { change })
}

pub(crate) fn check_reason(why: Option<&str>) -> Result<(), Error> {
    if why.is_none_or(|why| why.len() <= REASON_BYTES_MAX) {
        return Ok(());
    }
    let message = format!("a reason has at most {REASON_BYTES_MAX} bytes");
    Err(invalid(ErrorCode::InvalidSize, message))
}

fn check_editors(editors: &BTreeSet<String>) -> Result<(), Error> {
    if editors.len() <= EDITORS_MAX {
        return Ok(());
    }
    let message = format!("{EDITORS_MAX} people have edited the document, which is the limit");
    Err(refused(ErrorCode::InvalidSize, message))
}

fn initial_window(contract: &LifecycleContract) -> EditWindow {
    let initial = contract.states.iter().find(|state| state.name == contract.initial);
    initial.map_or(EditWindow::Locked, |state| state.edit_window)
}

/// Refuses the action of a gate that is not open. Before the first commit of a run, nobody knows which gates
/// are open, so every action gate is accepted; the run ignores it if it is closed.
fn check_gate(contract: &LifecycleContract, row: &DocumentRow, gate: &str) -> Result<(), Error> {
    let known =
        contract.gates.iter().any(|spec| spec.name == gate && spec.trigger != GateTrigger::Arrival);
    if known && (row.run.is_none() || row.gates.contains(gate)) {
        return Ok(());
    }
    let open: Vec<&str> = row.gates.iter().map(String::as_str).collect();
    let message = format!(
        "the action {gate:?} is not open for document {:?} in the state {:?}; open are: {}",
        row.id,
        row.state,
        if open.is_empty() { "none".to_owned() } else { open.join(", ") }
    );
    Err(refused(ErrorCode::DocumentActionClosed, message))
}

fn is_taken(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::RunExists | ErrorCode::RecordConflict)
}
