//! Budgets: what a run with all its branches may use, and the account that knows what it has used.
//!
//! Everything here is pure. An account reserves the most that a call can use before the call, and settles the
//! reservation with the usage that the provider reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use windlass_kernel::request::Assignee;
use windlass_kernel::{Error, ErrorCode, ErrorKind, RunKey};

use super::Usage;
use super::env::invalid;
use super::prices::{Estimate, PriceLane, PriceTable, UsdNanos};

/// The collection of the accounts of budgets.
pub const BUDGETS: &str = "windlass.budgets";
/// The longest output that a reservation assumes if the request names no maximum.
pub const OUTPUT_TOKENS_ASSUMED: u64 = 32_000;
/// How many calls of one budget are under way at most. A further call waits.
pub const RESERVATIONS_MAX: usize = 4_096;

/// The limits of a run with all its branches, in all its generations. Every limit that is set holds.
///
/// ```
/// use windlass_models::agents::{Agent, Budget};
///
/// let agent = Agent::new("research", "plan").budget(Budget::usd(2.50).calls(200).ask("role:owner"));
/// # drop(agent);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The money, in billionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usd_nanos: Option<UsdNanos>,
    /// Tokens, input and output together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    /// Calls of models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    /// The people and roles that are asked when a call does not fit. If there are none, the run fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ask: Vec<String>,
}

impl Budget {
    /// A budget of money, in US dollars. Every model that the run calls must have a price.
    ///
    /// ```
    /// # use windlass::agents::Budget;
    /// let budget = Budget::usd(0.5);
    /// # drop(budget);
    /// ```
    pub fn usd(dollars: f64) -> Self {
        Self { usd_nanos: Some(nanos(dollars)), ..Self::default() }
    }

    /// A budget of tokens, input and output together.
    ///
    /// ```
    /// # use windlass::agents::Budget;
    /// let budget = Budget::tokens(100_000);
    /// # drop(budget);
    /// ```
    pub fn tokens(tokens: u64) -> Self {
        Self { tokens: Some(tokens), ..Self::default() }
    }

    /// A budget of calls.
    ///
    /// ```
    /// # use windlass::agents::Budget;
    /// let budget = Budget::calls_only(20);
    /// # drop(budget);
    /// ```
    pub fn calls_only(calls: u64) -> Self {
        Self { calls: Some(calls), ..Self::default() }
    }

    /// Limits the number of calls too. An attempt that may be paid counts as a call.
    ///
    /// ```
    /// # use windlass::agents::Budget;
    /// let budget = Budget::usd(0.5).calls(20);
    /// # drop(budget);
    /// ```
    pub fn calls(mut self, calls: u64) -> Self {
        self.calls = Some(calls);
        self
    }

    /// Limits the money too.
    ///
    /// ```
    /// # use windlass::agents::Budget;
    /// let budget = Budget::tokens(100_000).and_usd(0.5);
    /// # drop(budget);
    /// ```
    pub fn and_usd(mut self, dollars: f64) -> Self {
        self.usd_nanos = Some(nanos(dollars));
        self
    }

    /// Limits the tokens too.
    ///
    /// ```
    /// # use windlass::agents::Budget;
    /// let budget = Budget::usd(0.5).and_tokens(100_000);
    /// # drop(budget);
    /// ```
    pub fn and_tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Asks a person or a role (`role:owner`) when a call does not fit, instead of failing the run. Each approval
    /// adds the original budget once more. May be called several times: anyone of them decides.
    ///
    /// ```
    /// # use windlass::agents::Budget;
    /// let budget = Budget::usd(0.5).ask("role:owner");
    /// # drop(budget);
    /// ```
    pub fn ask(mut self, assignee: impl Into<String>) -> Self {
        self.ask.push(assignee.into());
        self
    }

    /// Reads the budget in the input of a run.
    pub(crate) fn from_input(value: &serde_json::Value) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Wire {
            usd: Option<f64>,
            tokens: Option<u64>,
            calls: Option<u64>,
            #[serde(default)]
            ask: Vec<String>,
        }
        let wire = Wire::deserialize(value).map_err(|error| {
            let message = format!("the budget of the run does not read: {error}");
            invalid(ErrorCode::InvalidBudget, message)
        })?;
        let usd_nanos = wire.usd.map(nanos);
        let budget = Self { usd_nanos, tokens: wire.tokens, calls: wire.calls, ask: wire.ask };
        budget.check()?;
        Ok(budget)
    }

    pub(crate) fn assignees(&self) -> &[String] {
        &self.ask
    }

    pub(crate) fn counts_money(&self) -> bool {
        self.usd_nanos.is_some()
    }

    /// Refuses a budget that limits nothing, or asks nobody that can exist.
    ///
    /// ```
    /// # use windlass::agents::Budget;
    /// assert!(Budget::usd(0.5).check().is_ok());
    /// assert!(Budget::usd(0.5).ask("").check().is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidBudget`].
    pub fn check(&self) -> Result<(), Error> {
        let refused = |message: String| Err(invalid(ErrorCode::InvalidBudget, message));
        if self.usd_nanos.is_none() && self.tokens.is_none() && self.calls.is_none() {
            return refused("the budget has no limit; set money, tokens or calls".to_owned());
        }
        for assignee in &self.ask {
            if let Err(error) = Assignee::parse(assignee) {
                let why = error.message();
                return refused(format!("the budget asks {assignee:?}, which is not valid: {why}"));
            }
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits { usd_nanos: self.usd_nanos, tokens: self.tokens, calls: self.calls }
    }
}

fn nanos(dollars: f64) -> UsdNanos {
    // A cast of a float saturates, and a negative budget allows nothing.
    UsdNanos((dollars * 1e9).round() as u64)
}

/// An amount of all that a budget counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// The money, in billionths of a US dollar.
    #[serde(default)]
    pub usd_nanos: UsdNanos,
    /// Tokens, input and output together.
    #[serde(default)]
    pub tokens: u64,
    /// Calls of models.
    #[serde(default)]
    pub calls: u64,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.usd_nanos = self.usd_nanos.plus(other.usd_nanos);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.calls = self.calls.saturating_add(other.calls);
    }

    /// The most that a call can use.
    pub(crate) fn most(
        prices: &PriceTable,
        model: &str,
        estimate: Estimate,
        lane: PriceLane,
    ) -> Self {
        let output = estimate.output_tokens_max.unwrap_or(OUTPUT_TOKENS_ASSUMED);
        let price = prices.of(model);
        let usd = price.map(|price| price.cost_max(estimate, OUTPUT_TOKENS_ASSUMED, lane));
        Self {
            usd_nanos: usd.unwrap_or_default(),
            tokens: estimate.input_tokens.saturating_add(output),
            calls: 1,
        }
    }

    /// The usage of a call.
    pub(crate) fn used(cost: Option<UsdNanos>, usage: &Usage) -> Self {
        let tokens = [
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_creation_input_tokens,
            usage.cache_read_input_tokens,
        ];
        Self { usd_nanos: cost.unwrap_or_default(), tokens: tokens.iter().sum(), calls: 1 }
    }
}

/// The limits of an account. A limit that is not set does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The money, in billionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_nanos: Option<UsdNanos>,
    /// Tokens, input and output together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Calls of models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
}

impl Limits {
    fn add(&mut self, other: Self) {
        let sum = |a: Option<u64>, b: Option<u64>| a.map(|a| a.saturating_add(b.unwrap_or(0)));
        self.usd_nanos = self.usd_nanos.map(|usd| usd.plus(other.usd_nanos.unwrap_or_default()));
        self.tokens = sum(self.tokens, other.tokens);
        self.calls = sum(self.calls, other.calls);
    }

    fn allow(&self, amount: Amount) -> bool {
        self.usd_nanos.is_none_or(|max| amount.usd_nanos <= max)
            && self.tokens.is_none_or(|max| amount.tokens <= max)
            && self.calls.is_none_or(|max| amount.calls <= max)
    }
}

/// The account of a budget, as its record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The workflow of the run with the budget.
    pub workflow: String,
    /// The id of that run.
    pub run: String,
    /// The budget as the run began with it. An approval adds it once more.
    pub original: Limits,
    /// The limits now.
    pub limits: Limits,
    /// The usage of calls, as the provider reported it.
    pub spent: Amount,
    /// The highest possible usage of attempts without an answer. The provider may have charged for them.
    pub uncertain: Amount,
    /// The highest possible usage of calls that are under way, by the run that makes the call.
    pub reserved: BTreeMap<RunKey, Amount>,
    /// The version of the prices that the last call was settled with.
    pub prices: String,
    /// The run that asks for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asking: Option<RunKey>,
    /// Whether a person refused more.
    #[serde(default)]
    pub refused: bool,
}

/// Why a call cannot be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The budget does not allow it.
    Overrun,
    /// Too many calls are under way.
    Busy,
}

impl Account {
    pub(crate) fn new(workflow: &str, run: &str, budget: &Budget) -> Self {
        Self {
            workflow: workflow.to_owned(),
            run: run.to_owned(),
            original: budget.limits(),
            limits: budget.limits(),
            spent: Amount::default(),
            uncertain: Amount::default(),
            reserved: BTreeMap::new(),
            prices: String::new(),
            asking: None,
            refused: false,
        }
    }

    /// All that is spent, may be spent, and is reserved.
    pub fn committed(&self) -> Amount {
        let mut sum = self.spent;
        sum.add(self.uncertain);
        self.reserved.values().for_each(|amount| sum.add(*amount));
        sum
    }

    /// Reserves a call of a run. A run has one call at a time.
    pub(crate) fn reserve(&mut self, run: RunKey, amount: Amount) -> Result<(), Refused> {
        let mut sum = self.committed();
        sum.add(amount);
        if !self.limits.allow(sum) {
            return Err(Refused::Overrun);
        }
        if self.reserved.len() >= RESERVATIONS_MAX {
            return Err(Refused::Busy);
        }
        self.reserved.insert(run, amount);
        Ok(())
    }

    /// The call of a run has ended with this.
    pub(crate) fn settle(&mut self, run: RunKey, used: Amount, prices: &str) {
        self.reserved.remove(&run);
        self.spent.add(used);
        prices.clone_into(&mut self.prices);
    }

    /// The call of a run was not charged.
    pub(crate) fn release(&mut self, run: RunKey) {
        self.reserved.remove(&run);
    }

    /// Nobody knows whether the call of a run was charged: it counts in full.
    pub(crate) fn lose(&mut self, run: RunKey) {
        if let Some(amount) = self.reserved.remove(&run) {
            self.uncertain.add(amount);
        }
    }

    /// Adds the original budget once more.
    pub(crate) fn extend(&mut self) {
        self.limits.add(self.original);
        (self.asking, self.refused) = (None, false);
    }

    /// Adds to the limits that are set.
    pub(crate) fn raise(&mut self, more: Limits) {
        self.limits.add(more);
        self.refused = false;
    }
}

pub(crate) fn exceeded(account: &Account) -> Error {
    let Amount { usd_nanos, tokens, calls } = account.committed();
    let mut limits = Vec::new();
    let Limits { usd_nanos: usd_max, tokens: tokens_max, calls: calls_max } = account.limits;
    limits.extend(usd_max.map(|max| format!("{usd_nanos} of {max}")));
    limits.extend(tokens_max.map(|max| format!("{tokens} of {max} tokens")));
    limits.extend(calls_max.map(|max| format!("{calls} of {max} calls")));
    let message = format!(
        "the next call does not fit into the budget of run {:?}: {} are used or reserved",
        account.run,
        limits.join(", ")
    );
    Error::new(ErrorKind::Refused, ErrorCode::BudgetExceeded, message)
}

pub(crate) fn no_price(model: &str, prices: &PriceTable) -> Error {
    let message = format!(
        "the budget counts money, and model {model:?} has no price in the table {:?}; add the price or \
         limit tokens instead",
        prices.version()
    );
    invalid(ErrorCode::BudgetNoPrice, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u128) -> RunKey {
        RunKey(uuid::Uuid::from_u128(n))
    }

    fn amount(usd: u64, tokens: u64) -> Amount {
        Amount { usd_nanos: UsdNanos(usd), tokens, calls: 1 }
    }

    #[test]
    fn reservations_never_exceed_the_limits() {
        for (budget, fits) in [
            (Budget::tokens(300), 3),
            (Budget::tokens(299), 2),
            (Budget::tokens(1_000).calls(4), 4),
            (Budget::usd(0.000_000_05), 5),
            (Budget::usd(0.000_000_05).and_tokens(100), 1),
            (Budget::usd(-1.0), 0),
        ] {
            let mut account = Account::new("w", "r", &budget);
            let reserved = (0..10).filter(|n| account.reserve(run(*n), amount(10, 100)).is_ok());
            assert_eq!(reserved.count(), fits, "{budget:?}");
        }
    }

    #[test]
    fn a_reservation_ends_in_one_of_three_ways() {
        let mut account = Account::new("w", "r", &Budget::tokens(300));
        (1..=3).for_each(|n| account.reserve(run(n), amount(0, 100)).unwrap());
        assert_eq!(account.reserve(run(4), amount(0, 1)), Err(Refused::Overrun));
        account.settle(run(1), amount(0, 40), "v");
        account.release(run(2));
        account.lose(run(3));
        assert!(account.reserved.is_empty());
        assert_eq!((account.spent.tokens, account.uncertain.tokens), (40, 100));
        // The second end of a call changes nothing.
        account.lose(run(3));
        assert_eq!(account.committed().tokens, 140);
        account.extend();
        assert_eq!(account.limits.tokens, Some(600));
        account.raise(Limits { tokens: Some(5), usd_nanos: Some(UsdNanos(1)), calls: None });
        assert_eq!(account.limits, Limits { tokens: Some(605), ..Limits::default() });
    }

    #[test]
    fn a_budget_without_limits_is_refused() {
        assert!(Budget::default().check().is_err());
        assert!(Budget::tokens(1).ask("role:owner").check().is_ok());
        assert!(Budget::tokens(1).ask("").check().is_err());
    }
}
