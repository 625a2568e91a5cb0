//! Forks: branches are child runs, and their ends are merged by key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use windlass_engine::{ChildResult, Turn, TurnError};
use windlass_kernel::{
    Body, CausalRef, Draft, Error, ErrorCode, ErrorKind, EventId, Message, MessageKind, NewRun,
    Run, RunId, RunKey, RunStatus, Sha256Digest, Step as StepRow, StepKey, StepStatus,
    Turn as TurnRow, Wake,
};

use super::accounts::BudgetRef;
use super::description::{FORK, FORK_COMPLETED, FORK_FAILED, FORK_STARTED, NAME};
use super::env::Env;
use super::merge::{BranchEnd, merge};
use super::program::{AgentProgram, Failure, Flow, Live};
use super::request::ForkBranch;
use super::state::{self, Progress, retry_state};
use super::transcript::Transcript;
use super::workflow::{Step, Workflow};
use crate::kit;

/// Above this size the payload of an event names no branches.
const PAYLOAD_BYTES_MAX: usize = 24 * 1024;

/// The branches of the current fork.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ForkState {
    pub(crate) branches: Vec<BranchRun>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BranchRun {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) run: RunKey,
    /// Whether it completed in an earlier generation of this run.
    #[serde(default)]
    pub(crate) done: bool,
}

/// The input of the row that waits for branches.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ForkInput {
    pub(crate) workflow: String,
    pub(crate) branches: BTreeMap<String, String>,
}

impl ForkInput {
    pub(crate) fn of(step: &StepRow) -> Option<Self> {
        step.input.as_ref().and_then(|input| input.read().ok())
    }
}

/// Whether a row waits for a child, or has waited for it.
pub(crate) fn waits_for(step: &StepRow, child: &Run) -> bool {
    let input = (step.kind == FORK).then(|| ForkInput::of(step)).flatten();
    input.is_some_and(|input| {
        input.workflow == child.workflow.as_str()
            && input.branches.values().any(|id| id == child.id.as_str())
    })
}

#[derive(Deserialize)]
struct BranchOutput {
    env: Map<String, Value>,
    transcripts: BTreeMap<String, Transcript>,
}

fn key(number: u64) -> String {
    format!("fork:{number}")
}

// The first fork names its runs after the branches; a number at the first place is left to later forks. The
// runs of the generations before a restart keep their names, so the generation that began with the input comes
// first in the others: no fork has the number 0, so no other branch has such a name.
fn branch_id(run: &RunId, began: u32, fork: u64, index: usize, name: &str) -> Result<RunId, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let named = fork == 1 && name.chars().all(plain) && name.chars().any(|c| !c.is_ascii_digit());
    let parent = match began {
        0 => run.to_string(),
        began => format!("{run}:0:{began}"),
    };
    let mut id = match named {
        true => format!("{parent}:{name}"),
        false => format!("{parent}:{fork}:{index}"),
    };
    if id.len() > 300 {
        let digest = Sha256Digest::of(id.as_bytes());
        let hex: String = digest.as_bytes()[..8].iter().map(|b| format!("{b:02x}")).collect();
        id = format!("{}:{hex}", id.chars().take(270).collect::<String>());
    }
    RunId::composed(id)
}

impl AgentProgram {
    /// Starts the branches in the commit that begins the fork.
    pub(crate) fn enter_fork(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &mut Live,
    ) -> Result<Flow, Error> {
        let Step::ForkJoin { branches, join, .. } = &live.workflow.step else {
            return Ok(Flow::Continue);
        };
        let (branches, join) = (branches.clone(), join.clone());
        let fresh = live.progress.fork.is_none();
        live.workflow.counters.forks += u64::from(fresh);
        let number = live.workflow.counters.forks;
        let mut runs = live.progress.fork.take().unwrap_or_default().branches;
        if fresh {
            for (index, branch) in branches.iter().enumerate() {
                let began = live.progress.began;
                let id = branch_id(&turn.run.id, began, number, index, &branch.name)?.to_string();
                let run = turn.new_run_key();
                runs.push(BranchRun { name: branch.name.clone(), id, run, done: false });
            }
        }
        let ids: BTreeMap<_, _> = runs.iter().map(|r| (r.name.clone(), r.id.clone())).collect();
        let stamp = turn.stamp();
        let key = StepKey::from_stored(key(number));
        let mut row = kit::new_step(&turn.run, draft, key, FORK, stamp.at);
        row.status = StepStatus::Waiting;
        let workflow = turn.run.workflow.to_string();
        row.input = Some(Body::of(&ForkInput { workflow, branches: ids.clone() })?);
        let kept = runs.iter().filter(|run| run.done).count();
        let mut payload = json!({
            "continuation_id": row.step_key, "join_function": join, "branches": branches.len(),
            "kept": kept, "branch_run_id": ids,
        });
        bound(&mut payload);
        draft.step(FORK_STARTED, &payload, row.clone(), stamp)?;
        if fresh {
            for (branch, run) in branches.iter().zip(&runs) {
                self.start_branch(turn, draft, live, branch, run)?;
            }
        }
        live.rows.push(row);
        live.progress.fork = Some(ForkState { branches: runs });
        Ok(Flow::Continue)
    }

    fn start_branch(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &Live,
        branch: &ForkBranch,
        run: &BranchRun,
    ) -> Result<(), Error> {
        self.agent.check_branch_budget(branch.budget.as_ref(), &branch.function)?;
        let mut forked: Workflow = self.agent.branch(&live.workflow, branch)?;
        forked.rename(&run.id);
        let mut budgets = live.progress.budgets.clone();
        budgets.extend(branch.budget.as_ref().map(|own| BudgetRef::new(run.run, &run.id, own)));
        let tool_sources = live.progress.tool_sources.clone();
        let started_at = Some(live.progress.started_at.unwrap_or(turn.run.created_at));
        let progress =
            Progress { branch: true, budgets, tool_sources, started_at, ..Progress::default() };
        let body = state::save(&forked, &progress, &live.stored)?;
        let new = NewRun {
            run_key: run.run,
            namespace: turn.run.namespace.clone(),
            workflow: turn.run.workflow.clone(),
            model: NAME,
            id: RunId::from_stored(run.id.clone()),
            generation: 0,
            input: Body::json("null"),
            parent: Some((turn.run.root, turn.run.run_key)),
            fork: Some(branch.name.as_str().into()),
            labels: BTreeMap::new(),
            trace: turn.run.trace.clone(),
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: TurnRow::ready(),
            caused_by: Some(draft.cursor()),
        };
        let new = turn.child(new, true);
        let stamp = turn.stamp();
        draft.also_create_with_state(new, Some(body), stamp).map(|_| ())
    }

    /// Waits for the branches, and joins them when all have ended.
    pub(crate) async fn fork(&mut self, turn: &mut Turn) -> Result<Flow, TurnError> {
        self.begin(turn).await?;
        // In every turn: a crash may come after the commit that began the fork again.
        self.revive_branches(turn).await?;
        let fork = self.live().progress.fork.clone().unwrap_or_default();
        let mut messages: BTreeMap<String, Message> = BTreeMap::new();
        let mut all = Vec::new();
        for message in turn.mailbox.values().filter(|m| m.kind == MessageKind::ChildResult) {
            if let Ok(child) = ChildResult::from_message(message)
                && fork.branches.iter().any(|branch| branch.id == child.id)
            {
                // The last generation of a branch counts.
                messages.insert(child.id, message.clone());
                all.push(message.clone());
            }
        }
        let waits = |b: &&BranchRun| !b.done && !messages.contains_key(&b.id);
        if fork.branches.iter().any(|branch| waits(&branch)) {
            self.park(turn, Wake::OnMessage).await?;
            return Ok(Flow::Over);
        }
        let mut ends = Vec::new();
        let mut failed = None;
        let mut terminal = BTreeMap::new();
        let mut branches = fork.branches.clone();
        for branch in &mut branches {
            let read = match messages.get(&branch.id) {
                Some(message) => self.read_end(turn, message).await?,
                None => self.read_kept(turn, branch).await?,
            };
            if let Some(message) = messages.get(&branch.id) {
                terminal.insert(branch.name.clone(), json!(event_of(message)));
            }
            match read {
                Ok(output) => {
                    branch.done = true;
                    ends.push((branch.name.clone(), output));
                }
                Err(reason) if failed.is_none() => {
                    failed = Some((branch.name.clone(), branch.id.clone(), reason));
                }
                Err(_) => {}
            }
        }
        all.iter().for_each(|message| drop(turn.mailbox.remove(&message.seq)));
        self.live_mut().progress.fork = Some(ForkState { branches });
        let number = self.live().workflow.counters.forks;
        match failed {
            None => self.join(turn, &all, ends, &terminal).await,
            Some((name, id, reason)) => {
                let message =
                    format!("branch {name:?} of fork {number} failed (run {id:?}): {reason}");
                let failure =
                    Error::new(ErrorKind::Failed, ErrorCode::AgentBranchFailed, message).into();
                let about = json!({ "failed_branch": name, "failed_run": id, "terminal_event_id": terminal });
                self.fork_failed(turn, &all, failure, about).await
            }
        }
    }

    async fn read_end(
        &self,
        turn: &Turn,
        message: &Message,
    ) -> Result<Result<BranchOutput, String>, TurnError> {
        let child = ChildResult::from_message(message).map_err(TurnError::Blocked)?;
        let body = match child.is_large() {
            true => turn.result_of(child.run_key).await?,
            false => child.result(),
        };
        Ok(read_output(child.is_complete(), body))
    }

    // A branch that completed in an earlier generation of this run.
    async fn read_kept(
        &self,
        turn: &Turn,
        branch: &BranchRun,
    ) -> Result<Result<BranchOutput, String>, TurnError> {
        let id = RunId::from_stored(branch.id.clone());
        let run = turn.find(&turn.run.workflow.clone(), &id).await?;
        let complete = run.as_ref().is_some_and(|run| run.status == RunStatus::Complete);
        Ok(read_output(complete, run.and_then(|run| run.output)))
    }

    // In a retry, the branches that did not complete get a next generation, which goes on where they failed.
    async fn revive_branches(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        if self.live().progress.retried.is_none() {
            return Ok(());
        }
        let mut fork = self.live().progress.fork.clone().unwrap_or_default();
        let mut draft = turn.draft();
        let mut revived = 0;
        for branch in fork.branches.iter_mut().filter(|branch| !branch.done) {
            let id = RunId::from_stored(branch.id.clone());
            let Some(old) = turn.find(&turn.run.workflow.clone(), &id).await? else { continue };
            if old.status == RunStatus::Complete {
                branch.done = true;
                continue;
            }
            if !old.status.is_ended() || old.parent == Some(turn.run.run_key) {
                continue;
            }
            branch.run = turn.new_run_key();
            revived += 1;
            let body = retry_state(&old).map_err(TurnError::Blocked)?;
            let new = NewRun {
                run_key: branch.run,
                namespace: old.namespace.clone(),
                workflow: old.workflow.clone(),
                model: NAME,
                id: old.id.clone(),
                generation: old.generation + 1,
                input: old.input.clone(),
                parent: Some((turn.run.root, turn.run.run_key)),
                fork: old.fork.clone(),
                labels: old.labels.clone(),
                trace: turn.run.trace.clone(),
                headers: None,
                on_end: None,
                deadline_at: None,
                turn: TurnRow::ready(),
                caused_by: Some(draft.cursor()),
            };
            let new = turn.child(new, true);
            let stamp = turn.stamp();
            draft.also_create_with_state(new, body, stamp).map_err(TurnError::Blocked)?;
        }
        let live = self.live_mut();
        live.progress.fork = Some(fork);
        if revived > 0 {
            let body = state::save(&live.workflow, &live.progress, &live.stored);
            draft.state(body.map_err(TurnError::Blocked)?, turn.stamp());
            turn.commit(draft).await?;
        }
        Ok(())
    }

    async fn join(
        &mut self,
        turn: &mut Turn,
        messages: &[Message],
        ends: Vec<(String, BranchOutput)>,
        terminal: &BTreeMap<String, Value>,
    ) -> Result<Flow, TurnError> {
        let mut live = self.live().clone();
        if let Err(error) = self.merge_ends(&mut live, ends).await? {
            let about = json!({ "terminal_event_id": terminal });
            return self.fork_failed(turn, messages, error.into(), about).await;
        }
        let number = live.workflow.counters.forks;
        let Step::ForkJoin { join, join_version: version, .. } = live.workflow.step.clone() else {
            return Ok(Flow::Continue);
        };
        let Some(mut row) = live.take_row(&key(number)) else {
            return Err(TurnError::Blocked(Error::corrupt(format!("fork {number} has no row"))));
        };
        let flow = live.workflow.flow_mark();
        let ids = live.progress.fork.take().unwrap_or_default();
        let ids: BTreeMap<_, _> = ids.branches.into_iter().map(|b| (b.name, b.id)).collect();
        live.workflow.step = Step::Call { function: join.clone(), version };
        live.workflow.counters.steps += 1;
        live.progress.retried = None;
        let stamp = turn.stamp();
        (row.status, row.updated_at) = (StepStatus::Completed, stamp.at);
        let mut payload = json!({
            "continuation_id": row.step_key, "join_function": join, "branch_run_id": ids,
            "terminal_event_id": terminal, "env": live.workflow.env_changes(),
            "flow": live.workflow.flow_since(flow),
        });
        bound(&mut payload);
        let mut draft = turn.draft();
        let build = || -> Result<Flow, Error> {
            draft.consume_all_into_step(FORK_COMPLETED, &payload, messages, row, stamp)?;
            let at = turn.stamp().at;
            let rows = state::flush(&mut live.workflow, &mut live.stored, turn, &draft, at)?;
            self.enter(turn, &mut draft, &mut live, rows)
        };
        let flow = build().map_err(TurnError::Blocked)?;
        turn.commit(draft).await?;
        self.live = Some(live);
        Ok(flow)
    }

    // Merges in the form of the snapshot, where large values are references, and reads what changed.
    async fn merge_ends(
        &self,
        live: &mut Live,
        ends: Vec<(String, BranchOutput)>,
    ) -> Result<Result<(), Error>, TurnError> {
        let mut merged = Workflow::new(live.workflow.run_id(), "");
        merged.env = Env::from_map(state::stored_env(&live.workflow.env, &live.stored));
        merged.transcripts = live.workflow.transcripts.clone();
        let branches = match &live.workflow.step {
            Step::ForkJoin { branches, .. } => branches.as_slice(),
            _ => &[],
        };
        let ends: Vec<_> = ends
            .into_iter()
            .map(|(name, end)| {
                let only = branches.iter().find(|branch| branch.name == name);
                let only = only.and_then(|branch| branch.only.clone());
                let env = end.env.into_iter().collect();
                (name, BranchEnd { env, transcripts: end.transcripts, only })
            })
            .collect();
        if let Err(error) = merge(&mut merged, &ends) {
            return Ok(Err(error));
        }
        let changes = merged.env.changes_all();
        let mut env: Map<String, Value> = changes
            .iter()
            .filter_map(|key| Some((key.clone(), merged.env.value(key)?.clone())))
            .collect();
        let page = self.engine.limits.page_rows_max;
        let store = &*self.engine.store;
        let (known, stored) = (&live.workflow, &mut live.stored);
        let transcripts = &mut merged.transcripts;
        let resolved = state::resolve(store, known, &mut env, transcripts, stored, page).await;
        live.workflow.bodies.extend(resolved.map_err(TurnError::Store)?);
        live.workflow.transcripts = merged.transcripts;
        for key in changes {
            match env.remove(&key) {
                Some(value) => {
                    if let Err(error) = live.workflow.env.put(&key, value) {
                        return Ok(Err(error));
                    }
                }
                None => drop(live.workflow.env.remove(&key)),
            }
        }
        Ok(Ok(()))
    }

    async fn fork_failed(
        &mut self,
        turn: &mut Turn,
        messages: &[Message],
        failure: Failure,
        about: Value,
    ) -> Result<Flow, TurnError> {
        let number = self.live().workflow.counters.forks;
        let live = self.live_mut();
        let Some(mut row) = live.take_row(&key(number)) else {
            return Err(TurnError::Blocked(Error::corrupt(format!("fork {number} has no row"))));
        };
        let stamp = turn.stamp();
        (row.status, row.updated_at) = (StepStatus::Errored, stamp.at);
        row.error = Some(failure.body().map_err(TurnError::Blocked)?);
        let mut payload = json!({ "continuation_id": row.step_key, "error": failure.summary() });
        if let (Some(payload), Value::Object(about)) = (payload.as_object_mut(), about) {
            payload.extend(about);
        }
        bound(&mut payload);
        let state = state::save(&live.workflow, &live.progress, &live.stored);
        let mut draft = turn.draft();
        draft
            .consume_all_into_step(FORK_FAILED, &payload, messages, row, stamp)
            .map_err(TurnError::Blocked)?;
        draft.state(state.map_err(TurnError::Blocked)?, turn.stamp());
        self.end_failed(turn, &mut draft, &failure, &payload).map_err(TurnError::Blocked)?;
        turn.commit(draft).await?;
        Ok(Flow::Over)
    }
}

// The event that ended a branch.
fn event_of(message: &Message) -> Option<EventId> {
    match message.caused_by? {
        CausalRef::EventId { event_id } => Some(event_id),
        CausalRef::RunId { .. } => None,
    }
}

fn read_output(complete: bool, body: Option<Body>) -> Result<BranchOutput, String> {
    let bytes = body.map(|body| body.bytes).unwrap_or_default();
    if complete {
        return serde_json::from_slice(&bytes)
            .map_err(|error| format!("its end cannot be read: {error}"));
    }
    let error: Option<Value> = serde_json::from_slice(&bytes).ok();
    let text = error.as_ref().and_then(|error| {
        let name = error.get("name")?.as_str()?;
        Some(format!("{name}: {}", error.get("message")?.as_str()?))
    });
    Err(text.unwrap_or_else(|| "it was terminated".to_owned()))
}

// The maps of many branches with long names do not fit into an event; then it has their digest.
fn bound(payload: &mut Value) {
    if payload.to_string().len() <= PAYLOAD_BYTES_MAX {
        return;
    }
    for member in ["branch_run_id", "terminal_event_id"] {
        if let Some(map) = payload.get_mut(member) {
            let digest = Sha256Digest::of(map.to_string().as_bytes());
            let count = map.as_object().map_or(0, Map::len);
            *map = json!({ "$omitted": count, "$digest": digest });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn branches_of_all_generations_have_names_of_their_own() {
        let names = ["lhs", "g1", "1", "0", "a.b", "ä", "1.g1", "a:b", "0-1"];
        let root = RunId::from_stored("r".to_owned());
        let (mut parents, mut seen) = (vec![root], BTreeSet::new());
        // Branches, the branches of branches, and one level more.
        for depth in 0..3 {
            let mut children = Vec::new();
            for parent in &parents {
                for (began, fork) in [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)] {
                    for (index, name) in names.iter().enumerate() {
                        let id = branch_id(parent, began, fork, index, name).unwrap();
                        assert!(seen.insert(id.to_string()), "{id} twice, depth {depth}");
                        children.push(id);
                    }
                }
            }
            parents = children;
        }
    }
}
