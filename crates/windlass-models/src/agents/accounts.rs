//! Budgets and figures in the commits of a run: reserved with the intent of a call, settled with its end.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use futures::lock::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_engine::{RecordChange, Turn, TurnError, conflict_delay, refusal};
use windlass_kernel::{
    Collection, CommitError, Conflict, Draft, Error, Expect, Op, RecordFound, RecordId, RecordKey,
    Refusal, Run, RunKey, Sha256Digest,
};

use super::budget::{self, Account, Amount, BUDGETS, Budget, Refused};
use super::live::build;
use super::prices::{PriceLane, PriceTable, estimate};
use super::program::{AgentProgram, Failure};
use super::provider::Usage;
use super::spend::{SPEND, Spend};
use super::workflow::Step;

/// How often a commit is decided again because others wrote the same records first.
const ROUNDS_MAX: u32 = 256;
const LOCKS: usize = 64;
/// How long a commit waits before it reads its accounts again after the store has refused.
const READ_DELAY_MIN: Duration = Duration::from_millis(10);
const READ_DELAY_MAX: Duration = Duration::from_secs(5);
/// How long a run waits before it looks at a full account again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The budget of a run or of a branch, as its snapshot has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BudgetRef {
    /// The run with which the budget began; it names the record.
    pub(crate) id: RunKey,
    pub(crate) run: String,
    pub(crate) budget: Budget,
}

impl BudgetRef {
    pub(crate) fn new(run: RunKey, id: &str, budget: &Budget) -> Self {
        Self { id: run, run: id.to_owned(), budget: budget.clone() }
    }
}

/// How a call has ended, for the accounts.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    /// It was not charged.
    Free,
    /// Nobody knows whether it was charged.
    Lost,
    /// The provider reported its usage.
    Used { usage: Usage, model: Option<String> },
}

/// Why a commit with accounts was not written.
pub(crate) enum Stop {
    Refused(Refused),
    /// Another run asks for more.
    Asked(RunKey),
    /// The account is another one by now: decide again.
    Changed,
    Failed(Failure),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

/// A record that a commit reads and may write.
struct Row<T> {
    key: RecordKey,
    found: RecordFound,
    value: T,
    changed: bool,
}

/// The accounts and figures that a call of a run changes.
pub(crate) struct Accounts<'a> {
    run: RunKey,
    workflow: &'a str,
    prices: &'a PriceTable,
    model: String,
    lane: PriceLane,
    // The outermost first.
    budgets: Vec<(&'a Budget, Row<Account>)>,
    spend: Option<Row<Spend>>,
}

impl Accounts<'_> {
    /// Reserves a call in each account, or in none.
    pub(super) fn reserve(&mut self, amount: Amount) -> Result<(), Stop> {
        for (_, row) in &mut self.budgets {
            row.value.reserve(self.run, amount).map_err(Stop::Refused)?;
            row.changed = true;
        }
        Ok(())
    }

    /// Settles the call of this run.
    pub(crate) fn end(&mut self, ending: &Ending, most: impl FnOnce() -> Amount) {
        let (prices, version) = (self.prices, self.prices.version());
        match ending {
            Ending::Free => self.change(|account, run| account.release(run)),
            Ending::Lost => {
                let reserved = self.reserved().unwrap_or_else(most);
                self.change(|account, run| account.lose(run));
                if let Some(spend) = &mut self.spend {
                    spend.value.add_uncertain(reserved.usd_nanos, version);
                    spend.changed = true;
                }
            }
            Ending::Used { usage, model } => {
                let cost = prices.cost_of_call(&self.model, model.as_deref(), usage, self.lane);
                let used = Amount::used(cost, usage);
                self.change(|account, run| account.settle(run, used, version));
                if let Some(spend) = &mut self.spend {
                    spend.value.add(usage, cost, version);
                    spend.changed = true;
                }
            }
        }
    }

    fn change(&mut self, change: impl Fn(&mut Account, RunKey)) {
        for (_, row) in &mut self.budgets {
            change(&mut row.value, self.run);
            row.changed = true;
        }
    }

    fn reserved(&self) -> Option<Amount> {
        let (_, row) = self.budgets.first()?;
        row.value.reserved.get(&self.run).copied()
    }

    /// The first account in which a call does not fit, with its budget.
    pub(super) fn refusing(&mut self, amount: Amount) -> Option<(&Budget, &mut Account)> {
        let run = self.run;
        let found = self.budgets.iter_mut().find(|(_, row)| {
            let reserved = row.value.clone().reserve(run, amount);
            reserved == Err(Refused::Overrun)
        });
        found.map(|(budget, row)| {
            row.changed = true;
            (*budget, &mut row.value)
        })
    }

    /// The accounts for which a run asks.
    pub(super) fn asked_by(&mut self, run: RunKey) -> impl Iterator<Item = &mut Account> {
        let rows = self.budgets.iter_mut().map(|(_, row)| row);
        rows.filter(move |row| row.value.asking == Some(run)).map(|row| {
            row.changed = true;
            &mut row.value
        })
    }

    /// The runs with a reservation.
    pub(super) fn reserving(&self) -> BTreeSet<RunKey> {
        let rows = self.budgets.iter();
        rows.flat_map(|(_, row)| row.value.reserved.keys().copied()).collect()
    }

    /// Counts the reservations of runs that have ended as used.
    pub(super) fn lose_all(&mut self, ended: &BTreeSet<RunKey>) {
        for (_, row) in &mut self.budgets {
            ended.iter().for_each(|run| row.value.lose(*run));
            row.changed = true;
        }
    }

    fn write(self, turn: &mut Turn, draft: &mut Draft, root: RunKey) -> Result<(), Error> {
        let namespace = turn.run.namespace.clone();
        let workflow = self.workflow;
        let mut put = |key: &RecordKey, change: RecordChange| {
            let op = change.op(&namespace, turn.stamp());
            debug_assert_eq!(op.key, *key);
            draft.op(Op::Record(Box::new(op)));
        };
        for (_, Row { key, found, value, changed }) in self.budgets {
            if changed {
                let change =
                    RecordChange::put_own(BUDGETS, key.id.as_str(), &value, expect(found))?;
                let change =
                    change.term("workflow", &value.workflow)?.term("run", &short(&value.run))?;
                put(&key, change.term("root", &root.to_string())?);
            }
        }
        if let Some(Row { key, found, value, changed: true }) = self.spend {
            let change = RecordChange::put_own(SPEND, key.id.as_str(), &value, expect(found))?;
            let change = change.term("day", &value.day)?.term("workflow", workflow)?;
            put(&key, change.term("model", &short(&value.model))?);
        }
        Ok(())
    }
}

// Terms have a limit, and ids and models of users can be longer.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}

fn expect(found: RecordFound) -> Expect {
    match found {
        RecordFound::Absent => Expect::Absent,
        RecordFound::At(revision) | RecordFound::Removed(revision) => Expect::At(revision),
    }
}

// The runs of one process take turns at a record: each of them would otherwise lose against all others.
async fn lock(of: &str) -> MutexGuard<'static, ()> {
    static ALL: OnceLock<Vec<Mutex<()>>> = OnceLock::new();
    let all = ALL.get_or_init(|| (0..LOCKS).map(|_| Mutex::new(())).collect());
    let digest = Sha256Digest::of(of.as_bytes());
    all[usize::from(digest.as_bytes()[0]) % LOCKS].lock().await
}

impl AgentProgram {
    /// The most that the call which the workflow waits for can use.
    pub(super) fn most(&self) -> Result<Amount, Error> {
        let Step::Llm { request, .. } = &self.live().workflow.step else {
            return Ok(Amount::default());
        };
        let provider = self.agent.provider_named(&request.provider)?;
        let body = build(&self.live().workflow, request, provider.wire_format())?;
        let lane = self.price_lane();
        Ok(Amount::most(self.agent.prices(), &request.model, estimate(&body), lane))
    }

    /// Builds and sends a commit that also writes the accounts, again and again while others write them first.
    pub(crate) async fn commit_accounted<T>(
        &self,
        turn: &mut Turn,
        mut build: impl FnMut(&Self, &mut Turn, &mut Draft, &mut Accounts<'_>) -> Result<T, Stop>,
    ) -> Result<Result<T, Stop>, TurnError> {
        let day: String = turn.now().to_string().chars().take(10).collect();
        let (refs, figures) = (&self.live().progress.budgets, self.figures(turn, &day));
        // The account first, then the figures: everybody locks in this order.
        let _account = match refs.first() {
            Some(budget) => Some(lock(&budget.id.to_string()).await),
            None => None,
        };
        let mut losses = 0;
        loop {
            let mut accounts = self.accounts(turn, figures.as_ref()).await?;
            let mut draft = turn.draft();
            if let Some(message) = &self.answered {
                // First: the commit may end the run.
                let by = windlass_kernel::StepKey::from_stored("lane");
                let stamp = turn.stamp();
                let payload = serde_json::json!({ "message": message.name });
                draft
                    .consume(
                        windlass_engine::events::MESSAGE_RECEIVED,
                        &payload,
                        message,
                        by,
                        stamp,
                    )
                    .map_err(TurnError::Blocked)?;
            }
            let built = match build(self, turn, &mut draft, &mut accounts) {
                Ok(built) => built,
                Err(stop) => return Ok(Err(stop)),
            };
            let root = turn.run.root;
            accounts.write(turn, &mut draft, root).map_err(TurnError::Blocked)?;
            match turn.try_commit(draft).await? {
                Ok(_) => return Ok(Ok(built)),
                Err(CommitError::Conflict(Conflict::Record { .. })) if losses < ROUNDS_MAX => {
                    losses += 1;
                    let env = turn.env();
                    env.sleep(conflict_delay(env.random(), losses)).await;
                }
                // Only the request to a lane can be refused like this: more calls wait than its run may hold.
                Err(CommitError::Refused(Refusal::MessagesLimit { .. })) => {
                    return Ok(Err(Stop::Refused(Refused::Busy)));
                }
                // The lane has ended since it was found.
                Err(CommitError::Refused(
                    Refusal::RunEnded { .. } | Refusal::RunMissing { .. },
                )) => return Ok(Err(Stop::Changed)),
                Err(refused) => return Err(TurnError::Blocked(refusal(&refused))),
            }
        }
    }

    // The figures to which the current call belongs.
    fn figures(&self, turn: &Turn, day: &str) -> Option<(String, Spend)> {
        let Step::Llm { request, .. } = &self.live().workflow.step else { return None };
        let workflow = turn.run.workflow.as_str();
        let lane = self.price_lane();
        let spend = Spend::new(day, workflow, &request.provider, &request.model, lane);
        Some((spend.record_id(turn.run.run_key), spend))
    }

    // An error would drop the program, and with it an answer that is paid for.
    async fn accounts(
        &self,
        turn: &Turn,
        figures: Option<&(String, Spend)>,
    ) -> Result<Accounts<'_>, TurnError> {
        let mut delay = READ_DELAY_MIN;
        loop {
            match self.read_accounts(turn, figures).await {
                Ok(accounts) => return Ok(accounts),
                Err(error) if error.is_retryable() && !turn.is_draining() && !turn.is_lost() => {
                    let run_key = turn.run.run_key;
                    tracing::warn!(%run_key, %error, "failed to read the accounts of a call; retrying");
                    turn.env().sleep(delay).await;
                    delay = (delay * 2).min(READ_DELAY_MAX);
                }
                Err(error) => return Err(TurnError::Store(error)),
            }
        }
    }

    async fn read_accounts(
        &self,
        turn: &Turn,
        figures: Option<&(String, Spend)>,
    ) -> Result<Accounts<'_>, Error> {
        let Run { run_key, namespace, workflow, .. } = &*turn.run;
        let refs = &self.live().progress.budgets;
        let key = |collection: &str, id: String| RecordKey {
            namespace: namespace.clone(),
            collection: Collection::from_stored(collection),
            id: RecordId::from_stored(id),
        };
        let mut keys: Vec<_> = refs.iter().map(|at| key(BUDGETS, at.id.to_string())).collect();
        keys.extend(figures.map(|(id, _)| key(SPEND, id.clone())));
        let mut rows = self.engine.store.records(keys.clone()).await?.into_iter();
        let mut keys = keys.into_iter();
        let mut budgets = Vec::new();
        for at in refs {
            let new = || Account::new(workflow.as_str(), &at.run, &at.budget);
            budgets.push((&at.budget, row(keys.next(), rows.next().flatten(), new)?));
        }
        let spend = match figures {
            Some((_, new)) => Some(row(keys.next(), rows.next().flatten(), || new.clone())?),
            None => None,
        };
        let model = match &self.live().workflow.step {
            Step::Llm { request, .. } => request.model.clone(),
            _ => String::new(),
        };
        Ok(Accounts {
            run: *run_key,
            workflow: self.agent.name.as_str(),
            prices: self.agent.prices(),
            model,
            lane: self.price_lane(),
            budgets,
            spend,
        })
    }

    /// Which prices the current call has.
    pub(super) fn price_lane(&self) -> PriceLane {
        match self.live().progress.batched.is_some() {
            true => PriceLane::Batch,
            false => PriceLane::Live,
        }
    }
}

fn row<T: DeserializeOwned>(
    key: Option<RecordKey>,
    found: Option<windlass_kernel::Record>,
    new: impl FnOnce() -> T,
) -> Result<Row<T>, Error> {
    let key = key.ok_or_else(|| Error::corrupt("a read of records has no key"))?;
    let at = found.as_ref().map_or(RecordFound::Absent, |record| record.found());
    let value = match found.and_then(|record| record.body) {
        Some(body) => body.read()?,
        None => new(),
    };
    Ok(Row { key, found: at, value, changed: false })
}

/// Refuses a budget of money for a model without a price.
pub(crate) fn check_price(
    budgets: &[BudgetRef],
    model: &str,
    prices: &PriceTable,
) -> Result<(), Error> {
    let counts = budgets.iter().any(|at| at.budget.counts_money());
    match counts && prices.of(model).is_none() {
        true => Err(budget::no_price(model, prices)),
        false => Ok(()),
    }
}
