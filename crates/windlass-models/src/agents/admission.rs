//! The admission of a call: it needs space in the budgets of its run before its intent is written.

use std::collections::BTreeSet;

use serde_json::json;
use windlass_engine::{EnqueuedReason, RequestRef, Turn, TurnError};
use windlass_kernel::{Error, RunKey, Step as StepRow, StepKey, Wake};

use super::HumanRequest;
use super::accounts::{Ending, LOOK_AGAIN, Stop};
use super::budget::{self, Amount, Refused};
use super::description::LlmEvents;
use super::program::{AgentProgram, Failure, Flow, Live};
use super::state;
use super::workflow::Step;
use crate::kit;

const KEY: &str = "budget:";

impl AgentProgram {
    /// Whether the call of a workflow can begin only after the store was asked.
    pub(crate) fn must_admit(&self, live: &Live) -> bool {
        !live.progress.admitted
            && (!live.progress.budgets.is_empty() || self.wants_batch(&live.workflow))
    }

    /// Reserves the call that the workflow waits for, and writes its intent in the same commit. Returns what the
    /// turn does instead, if it cannot.
    pub(crate) async fn admit(&mut self, turn: &mut Turn) -> Result<Option<Flow>, TurnError> {
        if let Some(flow) = self.question(turn).await? {
            return Ok(Some(flow));
        }
        if self.live().progress.begun || !self.must_admit(self.live()) {
            return Ok(None);
        }
        if let Some(flow) = self.plan_lane(turn).await? {
            return Ok(Some(flow));
        }
        let most = self.most().map_err(TurnError::Blocked)?;
        let begun = self
            .commit_accounted(turn, |this, turn, draft, accounts| {
                let mut live = this.live().clone();
                accounts.reserve(most)?;
                let at = turn.stamp().at;
                let rows = state::flush(&mut live.workflow, &mut live.stored, turn, draft, at)?;
                live.progress.admitted = true;
                this.enter(turn, draft, &mut live, rows)?;
                live.progress.admitted = false;
                Ok(live)
            })
            .await?;
        match begun {
            Ok(live) => {
                self.live = Some(live);
                Ok(None)
            }
            Err(stop) => self.stopped(turn, stop, most, None).await.map(Some),
        }
    }

    /// Reserves a further attempt of a call, and marks it as running in the same commit.
    pub(crate) async fn admit_again(
        &mut self,
        turn: &mut Turn,
        row: StepRow,
    ) -> Result<Result<StepRow, Flow>, TurnError> {
        let most = self.most().map_err(TurnError::Blocked)?;
        let marked = self
            .commit_accounted(turn, |_, turn, draft, accounts| {
                let mut row = row.clone();
                accounts.reserve(most)?;
                (row.status, row.due_at) = (windlass_kernel::StepStatus::Running, None);
                row.updated_at = turn.stamp().at;
                draft.open_step(row.clone());
                Ok(row)
            })
            .await?;
        match marked {
            Ok(row) => Ok(Ok(row)),
            Err(stop) => self.stopped(turn, stop, most, Some(row)).await.map(Err),
        }
    }

    // The call cannot begin now. `row` is the row of a call that has begun before.
    pub(crate) async fn stopped(
        &mut self,
        turn: &mut Turn,
        stop: Stop,
        most: Amount,
        row: Option<StepRow>,
    ) -> Result<Flow, TurnError> {
        match stop {
            Stop::Changed => self.keep(row),
            Stop::Refused(Refused::Busy) => self.look_again(turn, row).await,
            Stop::Refused(Refused::Overrun) => self.overrun(turn, most, row).await,
            Stop::Asked(asking) => {
                if self.has_ended(asking).await? {
                    // Nobody answers a request of a run that has ended.
                    let cleared = self
                        .commit_accounted(turn, |_, _, _, accounts| {
                            accounts.asked_by(asking).for_each(|account| account.asking = None);
                            Ok(())
                        })
                        .await?;
                    drop(cleared);
                    return self.keep(row);
                }
                self.look_again(turn, row).await
            }
            Stop::Failed(failure) => self.refuse(turn, failure, row).await,
        }
    }

    fn keep(&mut self, row: Option<StepRow>) -> Result<Flow, TurnError> {
        self.live_mut().rows.extend(row);
        Ok(Flow::Continue)
    }

    async fn look_again(
        &mut self,
        turn: &mut Turn,
        row: Option<StepRow>,
    ) -> Result<Flow, TurnError> {
        self.live_mut().rows.extend(row);
        let at = turn.now().plus(LOOK_AGAIN);
        self.park(turn, Wake::At(at)).await?;
        turn.announce(EnqueuedReason::Retry);
        Ok(Flow::Over)
    }

    async fn refuse(
        &mut self,
        turn: &mut Turn,
        failure: Failure,
        row: Option<StepRow>,
    ) -> Result<Flow, TurnError> {
        let Step::Llm { request, .. } = &self.live().workflow.step else {
            return Ok(Flow::Continue);
        };
        let provider = self.agent.provider_named(&request.provider).map_err(TurnError::Blocked)?;
        if let Some(row) = row {
            let details = json!({ "possibly_paid": false });
            return self.llm_ended(turn, &provider, row, failure, details, Ending::Free).await;
        }
        let number = self.live().workflow.counters.llm + 1;
        let payload = json!({ "continuation_id": format!("llm:{number}"), "possibly_paid": false });
        let event = LlmEvents::of(provider.event_family()).failed.clone();
        self.fail(turn, event, payload, Vec::new(), failure).await
    }

    // The budget does not allow the call: a person is asked, or the run fails.
    async fn overrun(
        &mut self,
        turn: &mut Turn,
        most: Amount,
        row: Option<StepRow>,
    ) -> Result<Flow, TurnError> {
        if self.reconcile(turn).await? {
            return self.keep(row);
        }
        let run = turn.run.run_key;
        let asked = self
            .commit_accounted(turn, |this, turn, draft, accounts| {
                let Some((budget, account)) = accounts.refusing(most) else {
                    return Err(Stop::Changed);
                };
                let request = match (account.asking, question_to(budget.assignees(), account)) {
                    (_, Some(_)) if account.refused => None,
                    (Some(other), Some(_)) if other != run => return Err(Stop::Asked(other)),
                    (_, request) => request,
                };
                let Some(request) = request else {
                    return Err(budget::exceeded(account).into());
                };
                account.asking = Some(run);
                let mut live = this.live().clone();
                let stamp = turn.stamp();
                let key = StepKey::from_stored(format!("{KEY}{}", live.progress.asked));
                let row = kit::new_step(&turn.run, draft, key, kit::REQUEST, stamp.at);
                live.rows.push(kit::open_request(turn, draft, row, &request, stamp)?);
                Ok(live)
            })
            .await?;
        match asked {
            Ok(live) => {
                self.live = Some(live);
                self.keep(row)
            }
            // The account has changed since; the next round sees it.
            Err(Stop::Refused(_) | Stop::Changed) => self.keep(row),
            Err(Stop::Asked(asking)) => {
                Box::pin(self.stopped(turn, Stop::Asked(asking), most, row)).await
            }
            Err(Stop::Failed(failure)) => self.refuse(turn, failure, row).await,
        }
    }

    // Counts reservations of runs that were ended by somebody during a call. Returns whether there were any.
    async fn reconcile(&self, turn: &mut Turn) -> Result<bool, TurnError> {
        let own = turn.run.run_key;
        let listed = self.commit_less(turn).await?;
        let mut ended = BTreeSet::new();
        for run in listed.into_iter().filter(|run| *run != own) {
            if self.has_ended(run).await? {
                ended.insert(run);
            }
        }
        if ended.is_empty() {
            return Ok(false);
        }
        let lost = self
            .commit_accounted(turn, |_, _, _, accounts| {
                accounts.lose_all(&ended);
                Ok(())
            })
            .await?;
        Ok(lost.is_ok())
    }

    // The runs with reservations. Nothing is written.
    async fn commit_less(&self, turn: &mut Turn) -> Result<BTreeSet<RunKey>, TurnError> {
        let mut runs = BTreeSet::new();
        let read = self.commit_accounted(turn, |_, _, _, accounts| -> Result<(), Stop> {
            runs = accounts.reserving();
            Err(Stop::Changed)
        });
        drop(read.await?);
        Ok(runs)
    }

    async fn has_ended(&self, run: RunKey) -> Result<bool, TurnError> {
        let overview =
            self.engine.store.run_overview_by_key(run).await.map_err(TurnError::Store)?;
        Ok(overview.is_none_or(|overview| overview.run.status.is_ended()))
    }

    // Waits for the answer to an open question about the budget.
    async fn question(&mut self, turn: &mut Turn) -> Result<Option<Flow>, TurnError> {
        let is_question = |row: &&StepRow| row.step_key.as_str().starts_with(KEY);
        let Some(row) = self.live().rows.iter().find(is_question).cloned() else { return Ok(None) };
        let Some(open) = RequestRef::of(&row) else {
            let error = Error::corrupt(format!("the question {} has no request", row.step_key));
            return Err(TurnError::Blocked(error));
        };
        let mut results = kit::RequestResults::default();
        results.fetch(turn).await?;
        let (seq, closed) = (results.message(&open.request), results.take(&open.request));
        let message = seq.and_then(|seq| turn.mailbox.get(&seq).cloned());
        let (Some(message), Some(closed)) = (message, closed) else {
            self.park(turn, Wake::OnMessage).await?;
            return Ok(Some(Flow::Over));
        };
        let (run, approved) = (turn.run.run_key, closed.outcome.is_approved());
        let answered = self
            .commit_accounted(turn, |this, turn, draft, accounts| {
                let mut live = this.live().clone();
                let Some(row) = live.take_row(row.step_key.as_str()) else {
                    return Err(Stop::Changed);
                };
                kit::close_request(turn, draft, row, &message, &closed)?;
                for account in accounts.asked_by(run) {
                    match approved {
                        true => account.extend(),
                        false => (account.asking, account.refused) = (None, true),
                    }
                }
                live.progress.asked += 1;
                let body = state::save(&live.workflow, &live.progress, &live.stored)?;
                draft.state(body, turn.stamp());
                Ok(live)
            })
            .await?;
        match answered {
            Ok(live) => {
                turn.mailbox.remove(&message.seq);
                self.live = Some(live);
                Ok(Some(Flow::Continue))
            }
            Err(Stop::Failed(failure)) => self.refuse(turn, failure, None).await.map(Some),
            Err(_) => Ok(Some(Flow::Continue)),
        }
    }
}

fn question_to(assignees: &[String], account: &budget::Account) -> Option<HumanRequest> {
    let (first, others) = assignees.split_first()?;
    let title: String = format!("More budget for {}?", account.run).chars().take(150).collect();
    let text = format!(
        "{}. Approval adds the original budget once more; rejection fails the run.",
        budget::exceeded(account).message()
    );
    let request = HumanRequest::to(first).title(title).text(text);
    Some(others.iter().fold(request, |request, assignee| request.and_to(assignee)))
}
