//! Tools in a turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt as _};
use serde_json::{Value, json};
use windlass_engine::{Turn, TurnError};
use windlass_kernel::{
    Body, Draft, Error, ErrorCode, ErrorKind, Step as StepRow, StepKey, StepStatus,
};

use super::description::{TOOL, TOOL_COMPLETED, TOOL_FAILED, TOOL_RECORDED, TOOL_STARTED};
use super::program::{AgentProgram, Driven, Failure, Flow, Live, drive};
use super::request::{ToolResult, ToolUse};
use super::state::steps_of;
use super::tool::{self, CallEnd, Probe, ToolCallId};
use super::workflow::Step;
use crate::kit;

fn tool_key(batch: u64, index: usize) -> String {
    format!("tool:{batch}:{index}")
}

fn uses_of(live: &Live) -> Option<(&[ToolUse], &str)> {
    match &live.workflow.step {
        Step::Tools { uses, output_key } => Some((uses, output_key)),
        _ => None,
    }
}

impl AgentProgram {
    // All attempts and retries of a run have the same tool call ids. After a restart the model may ask for other
    // calls, so those are not the calls of the generations before.
    fn run_name(&self, turn: &Turn, live: &Live) -> String {
        let run = &turn.run;
        match live.progress.began {
            0 => format!("{}/{}/{}", run.namespace, run.workflow, run.id),
            began => format!("{}/{}/{}#{began}", run.namespace, run.workflow, run.id),
        }
    }

    /// Writes the event that begins a dispatch, and a receipt for each call of a durable tool.
    pub(crate) fn enter_tools(
        &self,
        turn: &mut Turn,
        draft: &mut Draft,
        live: &mut Live,
    ) -> Result<Flow, Error> {
        live.workflow.counters.tools += u64::from(live.progress.retried.is_none());
        let batch = live.workflow.counters.tools;
        let run = self.run_name(turn, live);
        let Some((uses, output_key)) = uses_of(live) else { return Ok(Flow::Continue) };
        let stamp = turn.stamp();
        let mut rows = Vec::new();
        let durable = |name: &str| self.agent.tools.is_durable(name);
        for (index, tool_use) in uses.iter().enumerate().filter(|(_, u)| durable(&u.name)) {
            let key = StepKey::from_stored(tool_key(batch, index));
            let mut row = kit::new_step(&turn.run, draft, key, TOOL, stamp.at);
            row.status = StepStatus::Running;
            row.input = Some(Body::of(tool_use)?);
            rows.push(row);
        }
        let ids = uses.iter().enumerate();
        let ids = ids.map(|(index, _)| ToolCallId::new(&run, batch, index).to_string());
        let mut payload = json!({
            "continuation_id": format!("tools:{batch}"), "output_key": output_key,
            "tools": uses.iter().map(|u| self.agent.tools.shown(&u.name)).collect::<Vec<_>>(),
            "tool_call_ids": ids.collect::<Vec<_>>(), "durable": rows.len(),
        });
        // A generation that retries the run, and a snapshot of an older build, have none yet.
        for (name, digest) in self.agent.tools.sources() {
            live.progress.tool_sources.entry(name.clone()).or_insert(*digest);
        }
        if !live.progress.tool_sources.is_empty() {
            payload["tool_sources"] = json!(live.progress.tool_sources);
        }
        draft.steps(TOOL_STARTED, &payload, rows.clone(), stamp)?;
        live.rows = rows;
        Ok(Flow::Continue)
    }

    /// Dispatches the tool calls that the workflow waits for.
    pub(crate) async fn tools(&mut self, turn: &mut Turn) -> Result<Flow, TurnError> {
        let first_here = !self.live().progress.begun;
        self.begin(turn).await?;
        let interrupted = std::mem::take(&mut self.live_mut().interrupted);
        let known = match interrupted || (first_here && self.live().progress.retried.is_some()) {
            true => self.receipts(turn, interrupted).await?,
            false => BTreeMap::new(),
        };
        let began = turn.now();
        let dispatched = match self.agent.tools.check_sources(&self.live().progress.tool_sources) {
            Ok(()) => {
                self.mark_started(turn).await?;
                self.dispatch(turn, known).await?
            }
            Err(changed) => Some(Err(Failure::from(changed))),
        };
        match dispatched {
            None => {
                self.live_mut().interrupted = true;
                Ok(Flow::Continue)
            }
            Some(Ok(results)) => {
                let micros = turn.now().since(began).as_micros() as u64;
                self.tools_completed(turn, results, micros).await
            }
            Some(Err(failure)) => {
                let mut draft = turn.draft();
                turn.cancel_open_steps(&mut draft).await?;
                let batch = self.live().workflow.counters.tools;
                let payload = json!({
                    "continuation_id": format!("tools:{batch}"), "error": failure.summary(),
                });
                let stamp = turn.stamp();
                draft.event(TOOL_FAILED, &payload, stamp).map_err(TurnError::Blocked)?;
                self.end_failed(turn, &mut draft, &failure, &payload)
                    .map_err(TurnError::Blocked)?;
                turn.commit(draft).await?;
                Ok(Flow::Over)
            }
        }
    }

    // Calls that were put off are marked before they begin, so that a crash shows them as begun.
    async fn mark_started(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let put_off = |row: &&mut StepRow| row.kind == TOOL && row.status == StepStatus::Waiting;
        let (at, mut draft) = (turn.stamp().at, turn.draft());
        let mut found = false;
        for row in self.live_mut().rows.iter_mut().filter(put_off) {
            (row.status, row.updated_at) = (StepStatus::Running, at);
            draft.open_step(row.clone());
            found = true;
        }
        match found {
            true => turn.commit(draft).await.map(|_| ()),
            false => Ok(()),
        }
    }

    // The receipts of this dispatch, newest generation last. An open receipt is a call that may have run.
    async fn receipts(
        &self,
        turn: &Turn,
        interrupted: bool,
    ) -> Result<BTreeMap<usize, Receipt>, TurnError> {
        let progress = &self.live().progress;
        let mut runs: Vec<_> = progress.receipts.iter().chain(&progress.retried).copied().collect();
        runs.extend(interrupted.then_some(turn.run.run_key));
        let batch = self.live().workflow.counters.tools;
        let prefix = format!("tool:{batch}:");
        let mut known = BTreeMap::new();
        for run in runs {
            let page = self.engine.limits.page_rows_max;
            let rows = steps_of(&*self.engine.store, run, &[TOOL], page).await;
            for row in rows.map_err(TurnError::Store)? {
                let index = row.step_key.as_str().strip_prefix(&prefix);
                let Some(index) = index.and_then(|n| n.parse::<usize>().ok()) else { continue };
                let done = row.result.as_ref().and_then(|result| result.read().ok());
                let own = run == turn.run.run_key;
                match done {
                    Some(result) => drop(known.insert(index, Receipt::Done { result, own })),
                    None if matches!(known.get(&index), Some(Receipt::Done { .. })) => {}
                    // It was put off before it began.
                    None if row.status == StepStatus::Waiting => {}
                    None => drop(known.insert(index, Receipt::Open)),
                }
            }
        }
        Ok(known)
    }

    async fn dispatch(
        &mut self,
        turn: &mut Turn,
        mut known: BTreeMap<usize, Receipt>,
    ) -> Result<Option<Result<Vec<ToolResult>, Failure>>, TurnError> {
        let live = self.live();
        let (run, batch) = (self.run_name(turn, live), live.workflow.counters.tools);
        let Some((uses, _)) = uses_of(self.live()) else { return Ok(None) };
        let uses = uses.to_vec();
        let (agent, env) = (Arc::clone(&self.agent), Arc::clone(turn.env()));
        let mut results: Vec<Option<ToolResult>> = vec![None; uses.len()];
        let mut settle = Vec::new();
        let mut calls = FuturesUnordered::new();
        for (index, tool_use) in uses.iter().enumerate() {
            let receipt = known.remove(&index);
            if let Some(Receipt::Done { result, own }) = receipt {
                settle.extend((!own).then(|| (index, result.clone())));
                results[index] = Some(result);
                continue;
            }
            let context = tool::context(&run, turn.run.id.as_str(), batch, index, tool_use);
            let (agent, env) = (&agent, &env);
            calls.push(async move {
                let probed = match receipt {
                    Some(_) => agent.tools.probe(context.clone(), tool_use).await,
                    None => Ok(Probe::NotStarted),
                };
                let called = match probed {
                    Ok(Probe::Completed(output)) => Ok(CallEnd::Output(output)),
                    Ok(Probe::NotStarted) => {
                        agent.tools.call(&**env, context.clone(), tool_use).await
                    }
                    Ok(Probe::Unknown) => Ok(CallEnd::Interrupted),
                    Err(error) => Err(error),
                };
                (index, context, called)
            });
        }
        for (index, result) in settle {
            self.settle_receipt(turn, batch, index, &result).await?;
        }
        while !calls.is_empty() {
            let next = match drive(turn, calls.next()).await? {
                Driven::Done(next) => next,
                Driven::Cancelled => return Ok(None),
            };
            let Some((index, context, called)) = next else { break };
            let tool_use = &uses[index];
            let output = match called {
                Ok(CallEnd::Output(output)) => output,
                Ok(CallEnd::Interrupted) => {
                    let message = format!(
                        "the outcome of tool {:?} (call {}) is unknown; look whether it was done",
                        tool_use.name, context.call_id
                    );
                    let code = ErrorCode::ToolOutcomeUnknown;
                    return Ok(Some(Err(Error::new(ErrorKind::Failed, code, message).into())));
                }
                Err(error) => return Ok(Some(Err(Failure::of(&error)))),
            };
            let mut result = tool::result(tool_use, output);
            // A result that no row can hold would leave a call that has run without its end.
            bound(std::slice::from_mut(&mut result), turn.limits().step_bytes_max);
            self.settle_receipt(turn, batch, index, &result).await?;
            results[index] = Some(result);
        }
        Ok(Some(Ok(results.into_iter().flatten().collect())))
    }

    // Records the result of a durable tool. Tools without a receipt have no row.
    async fn settle_receipt(
        &mut self,
        turn: &mut Turn,
        batch: u64,
        index: usize,
        result: &ToolResult,
    ) -> Result<(), TurnError> {
        let Some(mut row) = self.live_mut().take_row(&tool_key(batch, index)) else {
            return Ok(());
        };
        let stamp = turn.stamp();
        (row.status, row.updated_at) = (StepStatus::Completed, stamp.at);
        row.attempt += 1;
        row.result = Some(Body::of(result).map_err(TurnError::Blocked)?);
        let payload = json!({
            "continuation_id": format!("tools:{batch}"), "step": row.step_key,
            "tool": result.name, "is_error": result.is_error,
        });
        let mut draft = turn.draft();
        draft.step(TOOL_RECORDED, &payload, row, stamp).map_err(TurnError::Blocked)?;
        turn.commit(draft).await.map(|_| ())
    }

    async fn tools_completed(
        &mut self,
        turn: &mut Turn,
        mut results: Vec<ToolResult>,
        micros: u64,
    ) -> Result<Flow, TurnError> {
        // Together they are one value of the env.
        bound(&mut results, turn.limits().step_bytes_max);
        let mut live = self.live().clone();
        let Some((_, output_key)) = uses_of(&live) else { return Ok(Flow::Continue) };
        let output_key = output_key.to_owned();
        let batch = live.workflow.counters.tools;
        let mut draft = turn.draft();
        let flow = live.workflow.flow_mark();
        let errors = results.iter().filter(|result| result.is_error).count();
        let value = serde_json::to_value(&results).unwrap_or_default();
        let built = live.workflow.resume(&output_key, value).and_then(|()| {
            live.workflow.counters.steps += 1;
            live.progress.retried = None;
            live.progress.receipts.clear();
            let payload = json!({
                "continuation_id": format!("tools:{batch}"), "output_key": output_key,
                "tools": results.len(), "tool_errors": errors, "duration_us": micros,
                "env": live.workflow.env_changes(), "flow": live.workflow.flow_since(flow),
            });
            self.complete(turn, &mut draft, &mut live, TOOL_COMPLETED, &payload, Vec::new())
        });
        match built {
            Ok(flow) => {
                turn.commit(draft).await?;
                self.live = Some(live);
                Ok(flow)
            }
            Err(error) => {
                let payload = json!({ "continuation_id": format!("tools:{batch}") });
                self.fail(turn, TOOL_FAILED, payload, Vec::new(), error.into()).await
            }
        }
    }
}

// Replaces the largest results by errors that the model reads, until all fit into one row.
fn bound(results: &mut [ToolResult], max: usize) {
    let size = |result: &ToolResult| serde_json::to_vec(result).map_or(0, |text| text.len() + 1);
    let mut total = 2 + results.iter().map(size).sum::<usize>();
    let mut largest_first: Vec<usize> = (0..results.len()).collect();
    largest_first.sort_by_key(|index| std::cmp::Reverse(size(&results[*index])));
    for index in largest_first {
        if total <= max {
            return;
        }
        let bytes = size(&results[index]);
        let text = format!(
            "the result has {bytes} bytes and was left out; at most {max} are allowed for all results together"
        );
        (results[index].content, results[index].is_error) = (Value::String(text), true);
        total = total - bytes + size(&results[index]);
    }
}

/// The knowledge about an earlier call of a durable tool.
enum Receipt {
    /// It has a result; `own` if the row is of this generation.
    Done { result: ToolResult, own: bool },
    /// It may have run.
    Open,
}
