//! The usage of all calls of a day, by workflow and model.

use serde::{Deserialize, Serialize};
use windlass_kernel::{RunKey, Sha256Digest};

use super::Usage;
use super::prices::{PriceLane, UsdNanos};

/// The collection of the figures.
pub const SPEND: &str = "windlass.spend";
/// The figures of one day, workflow and model are in so many records, so that runs do not wait for each other.
const SHARDS: u8 = 16;

/// The usage of the calls of a day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spend {
    /// The day in UTC, as `2026-11-18`.
    pub day: String,
    /// The workflow.
    pub workflow: String,
    /// The provider.
    pub provider: String,
    /// The model that was requested.
    pub model: String,
    /// How the calls were made.
    pub lane: PriceLane,
    /// Calls with an answer.
    pub calls: u64,
    /// The usage that the provider reported.
    pub usage: Usage,
    /// The cost by the prices of that time.
    pub cost: UsdNanos,
    /// Calls of models without a price: they are not part of the cost.
    pub unpriced_calls: u64,
    /// Attempts without an answer that the provider may have charged for.
    pub uncertain_calls: u64,
    /// The most that those attempts can have cost.
    pub uncertain_cost: UsdNanos,
    /// The version of the prices of the last call.
    pub prices: String,
}

impl Spend {
    pub(crate) fn new(
        day: &str,
        workflow: &str,
        provider: &str,
        model: &str,
        lane: PriceLane,
    ) -> Self {
        Self {
            day: day.to_owned(),
            workflow: workflow.to_owned(),
            provider: provider.to_owned(),
            model: model.to_owned(),
            lane,
            calls: 0,
            usage: Usage::default(),
            cost: UsdNanos::default(),
            unpriced_calls: 0,
            uncertain_calls: 0,
            uncertain_cost: UsdNanos::default(),
            prices: String::new(),
        }
    }

    /// The id of the record for a run.
    pub(crate) fn record_id(&self, run: RunKey) -> String {
        let Self { day, workflow, provider, model, lane, .. } = self;
        let lane = match lane {
            PriceLane::Live => "live",
            PriceLane::Batch => "batch",
        };
        let parts = [workflow.as_bytes(), provider.as_bytes(), model.as_bytes(), lane.as_bytes()];
        let digest = Sha256Digest::of_parts(&parts);
        let hex: String = digest.as_bytes()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let shard = run.0.as_bytes()[15] % SHARDS;
        format!("{day}:{hex}:{shard:02}")
    }

    /// Adds a call with an answer.
    pub(crate) fn add(&mut self, usage: &Usage, cost: Option<UsdNanos>, prices: &str) {
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
        prices.clone_into(&mut self.prices);
    }

    /// Adds an attempt that may have been charged.
    pub(crate) fn add_uncertain(&mut self, cost: UsdNanos, prices: &str) {
        self.uncertain_calls += 1;
        self.uncertain_cost = self.uncertain_cost.plus(cost);
        prices.clone_into(&mut self.prices);
    }

    /// Adds the figures of another record of the same day, workflow and model.
    pub(crate) fn merge(&mut self, other: &Self) {
        let Self { usage, cost, calls, unpriced_calls, uncertain_calls, uncertain_cost, .. } =
            other;
        let before = self.calls;
        self.add(usage, Some(*cost), &other.prices);
        self.calls = before + calls;
        self.unpriced_calls += unpriced_calls;
        self.uncertain_calls += uncertain_calls;
        self.uncertain_cost = self.uncertain_cost.plus(*uncertain_cost);
    }
}
