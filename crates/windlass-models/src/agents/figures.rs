//! Reads accounts of budgets and figures of spending, and raises budgets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use windlass_engine::{Engine, RecordChange, refusal};
use windlass_kernel::{
    CommitError, Conflict, Error, ErrorCode, ErrorKind, Query, RecordId, RunKey, Timestamp,
};

use super::Usage;
use super::budget::{Account, BUDGETS, Limits};
use super::prices::{PriceLane, PriceTable, UsdNanos};
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
#[serde(default)]
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
    /// The version of the prices.
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
/// The store cannot be read, or there are too many figures: then ask for fewer days.
pub async fn spend(engine: &Engine, query: &SpendQuery) -> Result<Vec<Spend>, Error> {
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

/// The usage of a root run with all its branches, from their ledgers.
///
/// # Errors
///
/// The store cannot be read.
pub async fn root_spend(
    engine: &Engine,
    root: RunKey,
    prices: &PriceTable,
) -> Result<RootSpend, Error> {
    let limit = engine.options().limits.page_rows_max;
    let mut sum = RootSpend { prices: prices.version().to_owned(), ..RootSpend::default() };
    let mut after: Option<(Timestamp, windlass_kernel::EventId)> = None;
    // Models by call, for the calls whose answers name none.
    let mut asked = BTreeMap::new();
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
            match what {
                "suspended" | "blocked" => {
                    let model = payload["model"].as_str().unwrap_or_default();
                    asked.insert(call, model.to_owned());
                }
                "completed" => {
                    let usage: Usage =
                        serde_json::from_value(payload["usage"].clone()).unwrap_or_default();
                    let requested = asked.remove(&call).unwrap_or_default();
                    let answered = payload["model"].as_str();
                    let lane = match payload["lane"].as_str() {
                        Some("batch") => PriceLane::Batch,
                        _ => PriceLane::Live,
                    };
                    sum.add(&usage, prices.cost_of_call(&requested, answered, &usage, lane));
                }
                _ if payload["possibly_paid"] == true => sum.uncertain_calls += 1,
                _ => {}
            }
        }
        if events.len() < limit as usize {
            return Ok(sum);
        }
    }
}

impl RootSpend {
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
