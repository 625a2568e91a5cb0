//! Approvals: requests to people about one version of a document, and their decisions.
//!
//! A request is one record. Its decisions are part of it, so that the count is never older than the request.
//! A decision is written together with a check of the document's row: an edit and a decision have one loser,
//! which reads again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use windlass_contracts::tokens::Verdict;
use windlass_engine::{RecordChange, conflict_delay, refusal};
use windlass_kernel::{
    Collection, CommitError, Conflict, Error, ErrorCode, Expect, MessageKind, Query, RecordId,
    Sha256Digest, Subject, Timestamp, bodies,
};

use super::chains::ChainProgress;
use super::document::{Document, DocumentRow, Person};
use super::error::{not_found, refused};
use super::handle::Contracts;
use super::names::{APPROVAL_DECIDED, APPROVALS, DOCUMENTS, document_id};

/// The most people whom one request asks.
pub const ASKED_MAX: usize = 28;
const ROUNDS_MAX: u32 = 16;

/// A request for approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// The id.
    pub id: String,
    /// The document type.
    #[serde(rename = "type")]
    pub entity_type: String,
    /// The id of the document.
    pub document: String,
    /// The version of the content that people decide on.
    pub version: u64,
    /// The digest of that content. A decision names it.
    pub digest: Sha256Digest,
    /// The node that asks.
    pub node: String,
    /// The label of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The key of the step that waits.
    pub step: String,
    /// The generation in which the run began that asks. A restart begins anew.
    pub origin: u32,
    /// The people who are asked.
    pub asked: Vec<AskedPerson>,
    /// The progress in an approval chain, if the node names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<ChainProgress>,
    /// The decisions by person.
    #[serde(default)]
    pub decisions: BTreeMap<String, DecisionNote>,
    /// The status.
    pub status: ApprovalStatus,
    /// When the node reacts if nobody decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// When the request was made.
    pub created_at: Timestamp,
}

/// A person who is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskedPerson {
    /// The id.
    pub person: String,
    /// The person whom a delegation lets this one represent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// Why the person is asked.
    pub reason: String,
}

impl AskedPerson {
    /// A delegate has no more right than the person whom they represent.
    fn is_excluded(&self, row: &DocumentRow) -> bool {
        row.excludes(&self.person)
            || self.on_behalf_of.as_ref().is_some_and(|giver| row.excludes(giver))
    }
}

/// The decision of one person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionNote {
    /// The decision.
    pub verdict: Verdict,
    /// When.
    pub at: Timestamp,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The roles of the person at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// The other people who created the API key that was used. The decision counts only while each of them could
    /// decide.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_creators: Vec<String>,
}

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// People can decide.
    Open,
    /// The run has counted the decisions.
    Closed,
    /// The run no longer needs the decision.
    Withdrawn,
}

impl ApprovalStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Withdrawn => "withdrawn",
        }
    }
}

impl Approval {
    /// The id of a request: the same step of the same run has the same request, also after a retry.
    pub(crate) fn id_of(entity_type: &str, document: &str, origin: u32, step: &str) -> String {
        let origin = origin.to_string();
        let parts: [&[u8]; 4] =
            [entity_type.as_bytes(), document.as_bytes(), origin.as_bytes(), step.as_bytes()];
        Sha256Digest::of_parts(&parts).to_string()
    }

    /// The write of the request. Only an open one is in the inbox of the people whom it asks.
    pub(crate) fn put(&self, expect: Expect) -> Result<RecordChange, Error> {
        let mut change = RecordChange::put_own(APPROVALS, &self.id, self, expect)?
            .term("status", self.status.as_str())?
            .term("document", &format!("{}/{}", self.entity_type, self.document))?;
        if self.status == ApprovalStatus::Open {
            for asked in &self.asked {
                let in_stage = self.chain.as_ref();
                let in_stage = in_stage.is_none_or(|chain| chain.people.contains(&asked.person));
                if in_stage && !self.decisions.contains_key(&asked.person) {
                    change = change.term("assignee", &asked.person)?;
                }
            }
        }
        Ok(change.keep())
    }

    /// Adds people who are not asked yet.
    pub(crate) fn ask(
        &mut self,
        people: impl IntoIterator<Item = AskedPerson>,
    ) -> Result<(), String> {
        for person in people {
            if !self.asked.iter().any(|known| known.person == person.person) {
                self.asked.push(person);
            }
        }
        match self.asked.len() {
            count if count > ASKED_MAX => {
                Err(format!("{count} people would be asked, the limit is {ASKED_MAX}"))
            }
            _ => Ok(()),
        }
    }

    /// The people whose decisions count: nobody who has made or edited the document, who represents such a person,
    /// or who has decided with a key that such a person created.
    pub(crate) fn counted(&self, row: &DocumentRow) -> BTreeSet<String> {
        let has_foreign_key = |person: &str| {
            let note = self.decisions.get(person);
            note.is_some_and(|note| note.key_creators.iter().any(|one| row.excludes(one)))
        };
        let counts = self
            .asked
            .iter()
            .filter(|asked| !asked.is_excluded(row) && !has_foreign_key(&asked.person));
        counts.map(|asked| asked.person.clone()).collect()
    }

    /// The people whom delegates represent, by delegate.
    pub(crate) fn givers(&self) -> BTreeMap<String, String> {
        let of = |asked: &AskedPerson| Some((asked.person.clone(), asked.on_behalf_of.clone()?));
        self.asked.iter().filter_map(of).collect()
    }

    /// The last person who decided, as they were then.
    pub(crate) fn last_decider(&self) -> Option<Person> {
        let (id, note) = self.decisions.iter().max_by_key(|(_, note)| note.at)?;
        let (roles, key_creators) = (note.roles.clone(), note.key_creators.clone());
        Some(Person { id: id.clone(), roles, key_creators })
    }
}

impl Contracts {
    /// The open requests that ask a person, by id.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for request in contracts.inbox(&dana, None, 20).await? {
    ///     println!("{}: {}/{}", request.id, request.entity_type, request.document);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn inbox(
        &self,
        person: &Subject,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Approval>, Error> {
        self.list_approvals(("assignee", person.id()), after, limit).await
    }

    /// The requests about a document, open and closed, by id.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for request in contracts.approvals_of("invoice", "i-1", None, 20).await? {
    ///     println!("{}: {:?}", request.id, request.status);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn approvals_of(
        &self,
        entity_type: &str,
        id: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Approval>, Error> {
        let document = document_id(entity_type, id)?;
        self.list_approvals(("document", &document), after, limit).await
    }

    async fn list_approvals(
        &self,
        term: (&str, &str),
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Approval>, Error> {
        let query = Query::Records {
            namespace: self.engine.namespace().clone(),
            collection: Collection::new(APPROVALS)?,
            term: Some((term.0.into(), term.1.into())),
            after: after.map(RecordId::new).transpose()?,
            limit,
        };
        let rows = bodies::list_records(&**self.engine.store(), query).await?;
        rows.into_iter().filter_map(|record| record.body).map(|body| body.read()).collect()
    }

    /// Reads a request.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{:?}", contracts.approval("REQUEST").await?.status);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ApprovalNotFound`] if there is none.
    pub async fn approval(&self, id: &str) -> Result<Approval, Error> {
        Ok(self.read_approval(id).await?.0)
    }

    async fn read_approval(&self, id: &str) -> Result<(Approval, u64), Error> {
        let found = self.shared.read(self.engine.namespace(), APPROVALS, id).await?;
        found.ok_or_else(|| {
            let message = format!("there is no request for approval {id:?}");
            not_found(ErrorCode::ApprovalNotFound, message)
        })
    }

    /// Decides on a request. `digest` is the digest of the content that the person saw.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// use windlass::contracts::language::tokens::Verdict;
    ///
    /// for request in contracts.inbox(&dana, None, 20).await? {
    ///     let why = Some("the amount matches the order");
    ///     contracts.decide_approval(&request.id, Verdict::Approved, request.digest, &dana, why).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ApprovalStale`] if the content has changed since, [`ErrorCode::ApprovalWithdrawn`] if the
    /// request is not open any more, [`ErrorCode::ApprovalRefused`] if the person is not asked, has decided
    /// already, or has edited the document.
    pub async fn decide_approval(
        &self,
        id: &str,
        verdict: Verdict,
        digest: Sha256Digest,
        by: &Subject,
        why: Option<&str>,
    ) -> Result<Approval, Error> {
        super::documents::check_reason(why)?;
        let by = self.person(by);
        let note = |at| DecisionNote {
            verdict,
            at,
            why: why.map(str::to_owned),
            roles: by.roles.clone(),
            key_creators: by.key_creators.clone(),
        };
        self.change_approval(id, |approval, document, at| {
            check_open(approval, document)?;
            if digest != approval.digest {
                return Err(stale(approval, "the decision names another content than the request"));
            }
            check_person(approval, document, &by)?;
            approval.decisions.insert(by.id.clone(), note(at));
            Ok(())
        })
        .await
    }

    /// Lets another person decide instead of the caller.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// contracts.delegate_approval("REQUEST", "kim", &dana).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Contracts::decide_approval`]; also [`ErrorCode::ApprovalRefused`] if the other person is not in the
    /// directory, is asked already, or has edited the document.
    pub async fn delegate_approval(
        &self,
        id: &str,
        to: &str,
        by: &Subject,
    ) -> Result<Approval, Error> {
        let directory = self.directory().await?;
        let is_known = directory.people.get(to).is_some_and(|person| person.active);
        let by = self.person(by);
        self.change_approval(id, |approval, document, _| {
            check_open(approval, document)?;
            check_person(approval, document, &by)?;
            let not =
                |reason: &str| Err(refused(ErrorCode::ApprovalRefused, format!("{to:?} {reason}")));
            if !is_known {
                return not("is not in the directory");
            }
            if document.row.excludes(to) {
                return not("has made or edited the document and cannot approve it");
            }
            if approval.asked.iter().any(|asked| asked.person == to) {
                return not("is asked already");
            }
            let Some(asked) = approval.asked.iter_mut().find(|asked| asked.person == by.id) else {
                return not("cannot be asked");
            };
            if asked.on_behalf_of.is_some() {
                return Err(refused(
                    ErrorCode::ApprovalRefused,
                    format!("{:?} represents another person and cannot delegate again", by.id),
                ));
            }
            asked.on_behalf_of = Some(by.id.clone());
            to.clone_into(&mut asked.person);
            if let Some(chain) = &mut approval.chain
                && chain.people.remove(&by.id)
            {
                chain.people.insert(to.to_owned());
            }
            Ok(())
        })
        .await
    }

    /// Reads request and document, applies a change, and writes the request together with a check of the
    /// document and the message that wakes the run.
    async fn change_approval(
        &self,
        id: &str,
        change: impl Fn(&mut Approval, &Document, Timestamp) -> Result<(), Error>,
    ) -> Result<Approval, Error> {
        let mut losses = 0;
        loop {
            let (mut approval, revision) = self.read_approval(id).await?;
            let document = self.document(&approval.entity_type, &approval.document).await?;
            self.refuse_ended(&approval, &document).await?;
            change(&mut approval, &document, self.engine.clock().now())?;
            let record = document_id(&approval.entity_type, &approval.document)?;
            let changes = [
                approval.put(Expect::At(revision))?,
                RecordChange::check(DOCUMENTS, record, document.revision)?,
            ];
            let wake = document.row.run.map(|run_key| {
                self.engine.wake_message(run_key, MessageKind::Event, APPROVAL_DECIDED, None)
            });
            let messages = wake.transpose()?.into_iter().collect();
            match self.engine.commit_with(&changes, messages).await {
                Ok(_) => return Ok(approval),
                Err(CommitError::Conflict(Conflict::Record { .. })) if losses < ROUNDS_MAX => {
                    losses += 1;
                    let env = self.engine.env();
                    env.sleep(conflict_delay(env.random(), losses)).await;
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
    }

    /// A run that was terminated needs no decision any more. An errored one can be retried.
    async fn refuse_ended(&self, approval: &Approval, document: &Document) -> Result<(), Error> {
        let Some(run_key) = document.row.run else { return Ok(()) };
        let run = self.engine.store().run_overview_by_key(run_key).await?;
        use windlass_kernel::RunStatus::{Complete, Terminated};
        if run.is_some_and(|found| matches!(found.run.status, Complete | Terminated)) {
            return Err(withdrawn(approval, "the run of the document has ended"));
        }
        Ok(())
    }
}

fn check_open(approval: &Approval, document: &Document) -> Result<(), Error> {
    match approval.status {
        ApprovalStatus::Withdrawn => return Err(withdrawn(approval, "it was withdrawn")),
        ApprovalStatus::Closed => return Err(withdrawn(approval, "it is decided")),
        ApprovalStatus::Open => {}
    }
    if document.row.run_origin != approval.origin {
        return Err(withdrawn(approval, "the run of the document was restarted"));
    }
    if document.row.material_version > approval.version {
        return Err(stale(approval, "the document has changed since"));
    }
    Ok(())
}

fn check_person(approval: &Approval, document: &Document, by: &Person) -> Result<(), Error> {
    let not = |reason: &str| {
        let message = format!("{:?} cannot decide on request {:?}: {reason}", by.id, approval.id);
        Err(refused(ErrorCode::ApprovalRefused, message))
    };
    let row = &document.row;
    if row.excludes(&by.id) {
        return not("nobody approves a document that they made or edited");
    }
    if by.key_creators.iter().any(|creator| row.excludes(creator)) {
        return not("their API key was created by a person who has made or edited the document");
    }
    let asked = approval.asked.iter().find(|asked| asked.person == by.id);
    if asked.is_some_and(|asked| asked.is_excluded(row)) {
        return not("they represent a person who has made or edited the document");
    }
    let in_stage = approval.chain.as_ref().is_none_or(|chain| chain.people.contains(&by.id));
    if asked.is_none() || !in_stage {
        return not("they are not asked");
    }
    if approval.decisions.contains_key(&by.id) {
        return not("they have decided already");
    }
    if by.key_creators.iter().any(|creator| approval.decisions.contains_key(creator)) {
        return not("a person who created their API key has decided already");
    }
    if approval.decisions.values().any(|note| note.key_creators.contains(&by.id)) {
        return not("an API key that they created has decided already");
    }
    Ok(())
}

fn withdrawn(approval: &Approval, reason: &str) -> Error {
    let message = format!("request {:?} takes no decision: {reason}", approval.id);
    refused(ErrorCode::ApprovalWithdrawn, message)
}

fn stale(approval: &Approval, reason: &str) -> Error {
    let message = format!(
        "request {:?} is about version {} of document {:?}: {reason}; read the document again",
        approval.id, approval.version, approval.document
    );
    super::error::conflict(ErrorCode::ApprovalStale, message)
}
