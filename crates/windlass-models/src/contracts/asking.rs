//! Requests of a run to people: who is asked, in which order, and who more when nobody decides.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use windlass_contracts::approvers::{self, APPROVER_NONE, APPROVER_UNKNOWN, Resolution};
use windlass_contracts::dsl::Scope;
use windlass_contracts::types::{ApprovalConfig, ApproverSpec, RolePick};
use windlass_engine::RecordChange;
use windlass_kernel::{Expect, Timestamp};

use super::approvals::{Approval, ApprovalStatus, AskedPerson};
use super::chains::{Chain, ChainProgress, Stage};
use super::names::{CHAINS, ROTATIONS};
use super::work::{Held, Stop, Worker};

impl Worker<'_> {
    pub(crate) async fn request(
        &mut self,
        key: String,
        node: String,
        version: u64,
        config: &ApprovalConfig,
        due_at: Option<i64>,
    ) -> Result<(), Stop> {
        let stages = match &config.chain {
            Some(name) => Some(self.stages(name, &key).await?),
            None => None,
        };
        let first = stages.as_ref().and_then(|stages| stages.first()).map(|one| &one.approvers);
        let Some(spec) = config.approvers.as_ref().or(first) else {
            let message = "the approval names nobody";
            return Err(Stop::new("CONTRACT_INVALID", message, Some(&key)));
        };
        let counter = self.rotate(&node, spec).await?;
        let found = self.resolve(spec, counter, true, &key).await?;
        let people = found.asked.iter().map(|asked| asked.person.clone()).collect();
        let chain = stages.map(|stages| ChainProgress { stages, stage: 0, people });
        let row = &self.work.row;
        let mut approval = Approval {
            id: self.program.approval_id(&key),
            entity_type: row.entity_type.clone(),
            document: row.id.clone(),
            version,
            digest: row.digest,
            label: self.view.artefact.nodes.get(&node).and_then(|node| node.label.clone()),
            node,
            step: key.clone(),
            origin: self.program.origin(),
            asked: Vec::new(),
            chain,
            decisions: BTreeMap::new(),
            status: ApprovalStatus::Open,
            due_at: due_at.map(Timestamp::from_micros),
            created_at: self.now,
        };
        let too_many = |message: String| Stop::new("APPROVER_LIMIT", message, Some(&key));
        approval.ask(asked(&found)).map_err(too_many)?;
        let held = Held { approval, expect: Expect::Absent, before: None };
        self.work.approvals.insert(key, held);
        Ok(())
    }

    async fn stages(&self, name: &str, key: &str) -> Result<Vec<Stage>, Stop> {
        let found = self.program.shared.read::<Chain>(&self.namespace, CHAINS, name).await;
        let found = found.map_err(|error| Stop::of(&error))?;
        found.map(|(chain, _)| chain.stages).ok_or_else(|| {
            let message = format!("there is no approval chain {name:?}");
            Stop::new(APPROVER_UNKNOWN.as_str(), message, Some(key))
        })
    }

    /// Asks the people of the next stage who have not decided yet.
    pub(crate) async fn ask_stage(&mut self, step: &str) -> Result<(), Stop> {
        let Some(held) = self.work.approvals.get(step) else { return Ok(()) };
        let mut approval = held.approval.clone();
        let Some(chain) = &mut approval.chain else { return Ok(()) };
        chain.stage += 1;
        let node = format!("{}.{}", approval.node, chain.stage);
        let Some(spec) = approval.current_stage().map(|stage| stage.approvers.clone()) else {
            return Ok(());
        };
        let counter = self.rotate(&node, &spec).await?;
        let found = self.resolve(&spec, counter, true, step).await?;
        let mut people = asked(&found);
        people.retain(|one| !approval.decisions.contains_key(&one.person));
        if people.is_empty() {
            let message = "everybody whom the stage asks has decided in an earlier stage";
            return Err(Stop::new(APPROVER_NONE.as_str(), message, Some(step)));
        }
        if let Some(chain) = &mut approval.chain {
            chain.people = people.iter().map(|one| one.person.clone()).collect();
        }
        let too_many = |message: String| Stop::new("APPROVER_LIMIT", message, Some(step));
        approval.ask(people).map_err(too_many)?;
        if let Some(held) = self.work.approvals.get_mut(step) {
            held.approval = approval;
        }
        Ok(())
    }

    pub(crate) async fn escalate(&mut self, key: &str, to: &ApproverSpec) -> Result<(), Stop> {
        let found = self.resolve(to, 0, true, key).await?;
        let Some(held) = self.work.approvals.get_mut(key) else { return Ok(()) };
        if let Some(chain) = &mut held.approval.chain {
            chain.people.extend(found.asked.iter().map(|asked| asked.person.clone()));
        }
        held.approval
            .ask(asked(&found))
            .map_err(|message| Stop::new("APPROVER_LIMIT", message, Some(key)))
    }

    /// The number of requests that a node has made before, if it asks one person after the other.
    async fn rotate(&mut self, node: &str, spec: &ApproverSpec) -> Result<u64, Stop> {
        if !matches!(spec, ApproverSpec::Role { pick: RolePick::RoundRobin, .. }) {
            return Ok(0);
        }
        let id = format!("{}/{node}", self.work.row.entity_type);
        let shared = &self.program.shared;
        let found = shared.read::<u64>(&self.namespace, ROTATIONS, &id).await;
        let found = found.map_err(|error| Stop::of(&error))?;
        let (count, expect) =
            found.map_or((0, Expect::Absent), |(count, revision)| (count, Expect::At(revision)));
        let change = RecordChange::put_own(ROTATIONS, &id, &(count + 1), expect)
            .map_err(|error| Stop::of(&error))?;
        self.work.records.push(change);
        Ok(count)
    }

    pub(crate) async fn resolve(
        &mut self,
        spec: &ApproverSpec,
        counter: u64,
        excludes: bool,
        key: &str,
    ) -> Result<Resolution, Stop> {
        if self.directory.is_none() {
            let read = self.program.shared.directory(&self.namespace).await;
            self.directory = Some(read.map_err(|error| Stop::of(&error))?);
        }
        let row = &self.work.row;
        let editors = if excludes { row.authors() } else { BTreeSet::new() };
        let actor = self.person.value();
        let context = Value::Object(self.work.state.context.clone());
        let request = approvers::Request {
            requester: if excludes { &row.requester } else { "" },
            editors: &editors,
            counter,
            scope: Scope::new(&row.content, self.now_jiff)
                .actor(&actor)
                .org(&self.view.org)
                .context(&context),
            rules: &self.view.artefact.rules,
        };
        let directory = self.directory.get_or_insert_default();
        approvers::resolve(spec, directory, &request)
            .map_err(|problem| Stop::problem(&problem, key))
    }
}

fn asked(found: &Resolution) -> Vec<AskedPerson> {
    let text = |reason: &approvers::Reason| match reason {
        approvers::Reason::Direct => "named".to_owned(),
        approvers::Reason::Role { role } => format!("role {role}"),
        approvers::Reason::Manager { of, level } => format!("manager of {of}, level {level}"),
        approvers::Reason::Rule { rule } => format!("rule {rule}"),
        approvers::Reason::Expression => "expression".to_owned(),
        _ => "other".to_owned(),
    };
    let person = |asked: &approvers::Asked| AskedPerson {
        person: asked.person.clone(),
        on_behalf_of: asked.on_behalf_of.clone(),
        reason: text(&asked.reason),
    };
    found.asked.iter().map(person).collect()
}
