//! Reads accounts of budgets and figures of spending, and raises budgets.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_engine::{Engine, RecordChange, refusal};
use windlass_kernel::{
    CommitError, Conflict, Error, ErrorCode, ErrorKind, Query, RecordId, RunKey, Timestamp,
};

use super::Usage;
use super::agent::Agent;
use super::budget::{Account, Amount, BUDGETS, Limits};
use super::model::served;
use super::prices::{BYTES_PER_TOKEN, Estimate, PriceLane, PriceTable, UsdNanos};
use super::spend::{SPEND, Spend};

/// How often a raise is decided again because runs wrote the account first.
const ROUNDS_MAX: u32 = 64;
/// How many records one question about spending reads at most.
const RECORDS_MAX: usize = 100_000;

/// An account with the name of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedAccount {
    /// The run with which the budget began.
    pub id: String,
    /// The account.
    #[serde(flatten)]
    pub account: Account,
}

/// Which figures a question about spending adds up. What is not set does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpendQuery {
    /// The first day, as `2026-11-18`.
    pub from: Option<String>,
    /// The last day.
    pub to: Option<String>,
    /// The workflow.
    pub workflow: Option<String>,
    /// The model.
    pub model: Option<String>,
}

/// The usage of a run with all its branches, computed from their ledgers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RootSpend {
    /// Calls with an answer.
    pub calls: u64,
    /// The usage that the provider reported.
    pub usage: Usage,
    /// The cost with the given prices.
    pub cost: UsdNanos,
    /// Calls of models without a price: they are not part of the cost.
    pub unpriced_calls: u64,
    /// Attempts without an answer that may have been charged.
    pub uncertain_calls: u64,
    /// About the most that those attempts can have cost, computed from the sizes of their requests.
    pub uncertain_cost: UsdNanos,
    /// The version of the prices; several, if agents of the tree have tables of their own.
    pub prices: String,
}

/// The account of a budget.
///
/// # Errors
///
/// [`ErrorCode::BudgetNotFound`] if there is none with this id.
pub async fn budget(engine: &Engine, id: &str) -> Result<NamedAccount, Error> {
    read(engine, id).await.map(|(account, _)| account)
}

async fn read(engine: &Engine, id: &str) -> Result<(NamedAccount, u64), Error> {
    let found = match RecordId::new(id) {
        Ok(_) => engine.records::<Account>(BUDGETS).get(id).await?,
        Err(_) => None,
    };
    let found = found.ok_or_else(|| {
        let message = format!("there is no budget {id:?}");
        Error::new(ErrorKind::NotFound, ErrorCode::BudgetNotFound, message)
    })?;
    Ok((NamedAccount { id: id.to_owned(), account: found.value }, found.revision))
}

/// A page of the accounts, by id: all of them, or those of a term (`workflow`, `run` or `root`).
///
/// # Errors
///
/// The store cannot be read.
pub async fn budgets(
    engine: &Engine,
    term: Option<(&str, &str)>,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<NamedAccount>, Error> {
    let records = engine.records::<Account>(BUDGETS);
    let mut listing = match term {
        Some((name, value)) => records.find(name, value),
        None => records.all(),
    };
    if let Some(after) = after {
        listing = listing.after(RecordId::new(after)?);
    }
    let page = listing.page(limit).await?;
    let named = page
        .into_iter()
        .map(|found| NamedAccount { id: found.id.as_str().to_owned(), account: found.value });
    Ok(named.collect())
}

/// Adds to the limits of a budget. Limits that it does not have stay unset. A run that failed because of the
/// budget can be retried afterwards.
///
/// # Errors
///
/// [`ErrorCode::BudgetNotFound`], or [`ErrorCode::InvalidBudget`] if nothing is added.
pub async fn raise_budget(engine: &Engine, id: &str, more: Limits) -> Result<NamedAccount, Error> {
    if more == Limits::default() {
        let message = "nothing is added to the budget; give money, tokens or calls";
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidBudget, message));
    }
    let mut losses = 0;
    loop {
        let (mut named, revision) = read(engine, id).await?;
        named.account.raise(more);
        let records = engine.records::<Account>(BUDGETS);
        let terms = records.get(id).await?.map(|found| found.terms).unwrap_or_default();
        let mut change = RecordChange::put_own(BUDGETS, id, &named.account, revision)?;
        for (name, value) in terms.iter() {
            change = change.term(name, value)?;
        }
        match engine.commit_with(&[change], Vec::new()).await {
            Ok(_) => return Ok(named),
            Err(CommitError::Conflict(Conflict::Record { .. })) if losses < ROUNDS_MAX => {
                losses += 1;
                let env = engine.env();
                env.sleep(windlass_engine::conflict_delay(env.random(), losses)).await;
            }
            Err(error) => return Err(refusal(&error)),
        }
    }
}

/// The usage of calls, one entry for each day, workflow, model and lane.
///
/// # Errors
///
/// [`ErrorCode::InvalidQuery`] if a day is not written as `2026-11-18`; the store cannot be read; or there are too
/// many figures: then ask for fewer days.
pub async fn spend(engine: &Engine, query: &SpendQuery) -> Result<Vec<Spend>, Error> {
    query.from.iter().chain(&query.to).try_for_each(|day| check_day(day))?;
    let records = engine.records::<Spend>(SPEND);
    let limit = engine.options().limits.page_rows_max;
    let mut sums: BTreeMap<(String, String, String, String, bool), Spend> = BTreeMap::new();
    // Ids begin with the day, so the first day is a place in the listing.
    let mut after = query.from.as_deref().map(RecordId::new).transpose()?;
    let mut count = 0;
    loop {
        let mut listing = records.all();
        if let Some(after) = after.take() {
            listing = listing.after(after);
        }
        let page = listing.page(limit).await?;
        let is_last = page.len() < limit as usize;
        count += page.len();
        if count > RECORDS_MAX {
            let message = format!("more than {RECORDS_MAX} figures; ask for fewer days");
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidSize, message));
        }
        after = page.last().map(|found| found.id.clone());
        for found in page {
            let figures = found.value;
            if query.to.as_ref().is_some_and(|to| figures.day > *to) {
                return Ok(sums.into_values().collect());
            }
            let other = |wanted: &Option<String>, found: &str| {
                wanted.as_deref().is_some_and(|wanted| wanted != found)
            };
            if other(&query.workflow, &figures.workflow) || other(&query.model, &figures.model) {
                continue;
            }
            let Spend { day, workflow, provider, model, lane, .. } = figures.clone();
            let key = (day, workflow, provider, model, lane == PriceLane::Batch);
            match sums.get_mut(&key) {
                Some(sum) => sum.merge(&figures),
                None => drop(sums.insert(key, figures)),
            }
        }
        if is_last {
            return Ok(sums.into_values().collect());
        }
    }
}

fn check_day(day: &str) -> Result<(), Error> {
    let part = |at: std::ops::Range<usize>, max: u32| {
        let digits = day.get(at).filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|part| part.parse().ok()).is_some_and(|n: u32| (1..=max).contains(&n))
    };
    let dashes = day.get(4..5) == Some("-") && day.get(7..8) == Some("-");
    if day.len() == 10 && dashes && part(0..4, 9_999) && part(5..7, 12) && part(8..10, 31) {
        return Ok(());
    }
    let message = format!("{day:?} is no day; write it as 2026-11-18");
    Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidQuery, message))
}

/// The usage of a root run with all its branches, from their ledgers, at the prices of one table.
///
/// # Errors
///
/// The store cannot be read.
pub async fn root_spend(
    engine: &Engine,
    root: RunKey,
    prices: &PriceTable,
) -> Result<RootSpend, Error> {
    add_up(engine, root, &mut Tables::One(prices)).await
}

/// The usage of a root run with all its branches, from their ledgers, at the prices of the agents that this process
/// serves. Calls of other agents have the built-in prices.
///
/// # Errors
///
/// The store cannot be read.
pub async fn root_spend_served(engine: &Engine, root: RunKey) -> Result<RootSpend, Error> {
    add_up(engine, root, &mut Tables::Served(BTreeMap::new())).await
}

/// The tables with the prices of runs.
enum Tables<'a> {
    One(&'a PriceTable),
    /// By run.
    Served(BTreeMap<RunKey, Option<Arc<Agent>>>),
}

impl Tables<'_> {
    async fn of(&mut self, engine: &Engine, run: RunKey) -> Result<&PriceTable, Error> {
        let agents = match self {
            Self::One(table) => return Ok(table),
            Self::Served(agents) => agents,
        };
        if let Entry::Vacant(unknown) = agents.entry(run) {
            let overview = engine.store().run_overview_by_key(run).await?;
            unknown.insert(overview.and_then(|found| served(engine, &found.run.workflow)));
        }
        let agent = agents.get(&run).and_then(Option::as_ref);
        Ok(match agent {
            Some(agent) => agent.prices(),
            None => PriceTable::built_in(),
        })
    }
}

/// A call as its first event shows it.
#[derive(Default)]
struct Asked {
    model: String,
    lane: PriceLane,
    estimate: Option<Estimate>,
}

impl Asked {
    fn of(payload: &Value) -> Self {
        let bytes = payload["request_bytes"].as_u64();
        Self {
            model: payload["model"].as_str().unwrap_or_default().to_owned(),
            lane: lane_of(payload).unwrap_or_default(),
            estimate: bytes.map(|bytes| Estimate {
                input_tokens: bytes.div_ceil(BYTES_PER_TOKEN),
                output_tokens_max: payload["request"]["max_tokens"].as_u64(),
            }),
        }
    }
}

fn lane_of(payload: &Value) -> Option<PriceLane> {
    match payload["lane"].as_str()? {
        "batch" => Some(PriceLane::Batch),
        _ => Some(PriceLane::Live),
    }
}

async fn add_up(
    engine: &Engine,
    root: RunKey,
    tables: &mut Tables<'_>,
) -> Result<RootSpend, Error> {
    let limit = engine.options().limits.page_rows_max;
    let mut sum = RootSpend::default();
    let mut versions = BTreeSet::new();
    let mut after: Option<(Timestamp, windlass_kernel::EventId)> = None;
    let mut asked: BTreeMap<_, Asked> = BTreeMap::new();
    loop {
        let query = Query::RootEvents { root, after, limit };
        let events = engine.store().list(query).await?.events()?;
        after = events.last().map(|event| (event.created_at, event.event_id));
        for event in &events {
            let Some((family, what)) = event.event_type.as_str().split_once('.') else { continue };
            if !matches!(family, "anthropic" | "openai" | "llm") {
                continue;
            }
            let payload = event.payload_json()?;
            let call = (event.run_key, payload["continuation_id"].to_string());
            if !payload["request_bytes"].is_null() {
                asked.insert(call, Asked::of(&payload));
                continue;
            }
            let is_lost = what != "completed" && payload["possibly_paid"] == true;
            let next_lane = lane_of(&payload).filter(|_| what == "retried");
            if what != "completed" && !is_lost && next_lane.is_none() {
                continue;
            }
            let prices = tables.of(engine, event.run_key).await?;
            versions.insert(prices.version().to_owned());
            if what == "completed" {
                let known = asked.remove(&call).unwrap_or_default();
                let usage: Usage =
                    serde_json::from_value(payload["usage"].clone()).unwrap_or_default();
                let (answered, lane) = (payload["model"].as_str(), lane_of(&payload));
                let lane = lane.unwrap_or_default();
                sum.add(&usage, prices.cost_of_call(&known.model, answered, &usage, lane));
                continue;
            }
            let known = asked.entry(call).or_default();
            if is_lost {
                sum.add_uncertain(known, prices);
            }
            known.lane = next_lane.unwrap_or(known.lane);
        }
        if events.len() < limit as usize {
            break;
        }
    }
    if versions.is_empty() {
        versions.insert(tables.of(engine, root).await?.version().to_owned());
    }
    sum.prices = versions.into_iter().collect::<Vec<_>>().join(", ");
    Ok(sum)
}

impl RootSpend {
    fn add_uncertain(&mut self, asked: &Asked, prices: &PriceTable) {
        self.uncertain_calls += 1;
        let Some(estimate) = asked.estimate else { return };
        let most = Amount::most(prices, &asked.model, estimate, asked.lane);
        self.uncertain_cost = self.uncertain_cost.plus(most.usd_nanos);
    }

    fn add(&mut self, usage: &Usage, cost: Option<UsdNanos>) {
        self.calls += 1;
        let mine = &mut self.usage;
        mine.input_tokens += usage.input_tokens;
        mine.output_tokens += usage.output_tokens;
        mine.cache_creation_input_tokens += usage.cache_creation_input_tokens;
        mine.cache_read_input_tokens += usage.cache_read_input_tokens;
        mine.reasoning_output_tokens += usage.reasoning_output_tokens;
        match cost {
            Some(cost) => self.cost = self.cost.plus(cost),
            None => self.unpriced_calls += 1,
        }
    }
}
