//! Report of a scripted provider: requests by kind, tokens, and what they would have cost.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use serde::Serialize;
use windlass_models::agents::Usage;
use windlass_models::agents::prices::{PriceLane, PriceTable, UsdNanos};

use super::script::{Api, Op, Tokens};

/// How many requests are kept for [`ScriptedLlm::seen`](super::ScriptedLlm::seen).
const SEEN_MAX: usize = 10_000;
/// How many bytes of their bodies.
const SEEN_BYTES_MAX: usize = 64 << 20;

/// The requests to a scripted provider so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// HTTP requests by kind. A member of a batch is no request.
    pub requests: BTreeMap<Op, u64>,
    /// Requests that were answered with an error.
    pub refused: u64,
    /// Requests whose connection was cut on purpose.
    pub lost: u64,
    /// Requests for a message that no rule matched.
    pub unmatched: u64,
    /// Messages that were charged.
    pub messages: u64,
    /// Their tokens.
    pub tokens: Tokens,
    /// Their price, with the built-in price table.
    pub money: UsdNanos,
    /// The price by model.
    pub money_by_model: BTreeMap<String, UsdNanos>,
    /// Charged messages of models without a price.
    pub unpriced: u64,
}

impl Report {
    /// How many requests of a kind there were.
    pub fn count(&self, op: Op) -> u64 {
        self.requests.get(&op).copied().unwrap_or_default()
    }
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The API.
    pub api: Api,
    /// The kind of call.
    pub op: Op,
    /// The path and the query.
    pub path: String,
    /// The headers, without those that hold a key.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Bytes,
}

/// The cost of a message.
#[derive(Clone, Debug)]
pub(super) struct Charge {
    pub(super) model: String,
    pub(super) used: Tokens,
    pub(super) lane: PriceLane,
}

#[derive(Default)]
pub(super) struct Counter {
    pub(super) report: Report,
    seen: VecDeque<Seen>,
    seen_bytes: usize,
}

impl Counter {
    pub(super) fn arrived(&mut self, seen: Seen) {
        *self.report.requests.entry(seen.op).or_default() += 1;
        self.seen_bytes += seen.body.len();
        self.seen.push_back(seen);
        while self.seen.len() > SEEN_MAX || self.seen_bytes > SEEN_BYTES_MAX {
            let Some(oldest) = self.seen.pop_front() else { return };
            self.seen_bytes -= oldest.body.len();
        }
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.iter().cloned().collect()
    }

    pub(super) fn charge(&mut self, charge: &Charge) {
        let Tokens { input, output, cache_write, cache_read } = charge.used;
        let report = &mut self.report;
        report.messages += 1;
        report.tokens.input += input;
        report.tokens.output += output;
        report.tokens.cache_write += cache_write;
        report.tokens.cache_read += cache_read;
        match cost(charge) {
            Some(cost) => {
                report.money = report.money.plus(cost);
                let of_model = report.money_by_model.entry(charge.model.clone()).or_default();
                *of_model = of_model.plus(cost);
            }
            None => report.unpriced += 1,
        }
    }

    /// Takes a charge back: a member of a batch that was cancelled is not paid.
    pub(super) fn refund(&mut self, charge: &Charge) {
        let Tokens { input, output, cache_write, cache_read } = charge.used;
        let report = &mut self.report;
        report.messages -= 1;
        report.tokens.input -= input;
        report.tokens.output -= output;
        report.tokens.cache_write -= cache_write;
        report.tokens.cache_read -= cache_read;
        match cost(charge) {
            Some(cost) => {
                report.money = report.money.minus(cost);
                let of_model = report.money_by_model.entry(charge.model.clone()).or_default();
                *of_model = of_model.minus(cost);
            }
            None => report.unpriced -= 1,
        }
    }
}

fn cost(charge: &Charge) -> Option<UsdNanos> {
    let usage = Usage {
        input_tokens: charge.used.input,
        output_tokens: charge.used.output,
        cache_creation_input_tokens: charge.used.cache_write,
        cache_read_input_tokens: charge.used.cache_read,
        reasoning_output_tokens: 0,
    };
    PriceTable::built_in().cost(&charge.model, &usage, charge.lane)
}
