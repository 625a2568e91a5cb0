//! Metrics of calls of models, with the names of the GenAI conventions.

use std::time::Duration;

use windlass_engine::{Metrics, ModelMetric};

use super::{cost, input_tokens, lane_name, provider_name};
use crate::agents::prices::{PriceLane, PriceTable};
use crate::agents::provider::{Provider, ProviderError, ProviderResponse};

// The buckets are those of the conventions.
static TOKENS: ModelMetric = ModelMetric {
    name: "gen_ai.client.token.usage",
    unit: "{token}",
    buckets: Some(&[
        1.0,
        4.0,
        16.0,
        64.0,
        256.0,
        1_024.0,
        4_096.0,
        16_384.0,
        65_536.0,
        262_144.0,
        1_048_576.0,
        4_194_304.0,
        16_777_216.0,
        67_108_864.0,
    ]),
};
static DURATION: ModelMetric = ModelMetric {
    name: "gen_ai.client.operation.duration",
    unit: "s",
    buckets: Some(&[
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    ]),
};
static FIRST_CHUNK: ModelMetric = ModelMetric {
    name: "gen_ai.client.operation.time_to_first_chunk",
    unit: "s",
    buckets: Some(&[
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    ]),
};
static COST: ModelMetric = ModelMetric { name: "windlass.llm.cost", unit: "USD", buckets: None };
static BATCH_DURATION: ModelMetric = ModelMetric {
    name: "windlass.llm.batch.duration",
    unit: "s",
    buckets: Some(&[
        10.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 86_400.0,
    ]),
};
static BATCH_MEMBERS: ModelMetric = ModelMetric {
    name: "windlass.llm.batch.members",
    unit: "{request}",
    buckets: Some(&[1.0, 10.0, 100.0, 500.0, 1_000.0, 5_000.0, 10_000.0, 50_000.0]),
};

type Attributes<'a> = Vec<(&'static str, &'a str)>;

fn attributes<'a>(
    provider: &'a dyn Provider,
    model: &'a str,
    response: Option<&'a ProviderResponse>,
    lane: PriceLane,
) -> Attributes<'a> {
    let mut attributes = vec![
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", provider_name(provider)),
        ("gen_ai.request.model", model),
        ("windlass.llm.lane", lane_name(lane)),
    ];
    let answered = response.and_then(|response| response.model.as_deref());
    attributes.extend(answered.map(|model| ("gen_ai.response.model", model)));
    attributes.extend(provider.server_address().map(|address| ("server.address", address)));
    attributes
}

/// An attempt of a live call has ended.
pub(super) fn called(
    metrics: &Metrics,
    provider: &dyn Provider,
    model: &str,
    called: &Result<ProviderResponse, ProviderError>,
    took: Duration,
    first_part: Option<Duration>,
) {
    if !metrics.is_recorded() {
        return;
    }
    let mut attributes = attributes(provider, model, called.as_ref().ok(), PriceLane::Live);
    if let Some(first) = first_part {
        metrics.record(&FIRST_CHUNK, first.as_secs_f64(), &attributes);
    }
    if let Err(error) = called {
        attributes.push(("error.type", error.kind().as_str()));
    }
    metrics.record(&DURATION, took.as_secs_f64(), &attributes);
}

/// The answer of a call is recorded: its usage, and its cost if its model has a price.
pub(crate) fn used(
    metrics: &Metrics,
    provider: &dyn Provider,
    model: &str,
    response: &ProviderResponse,
    lane: PriceLane,
    prices: &PriceTable,
) {
    if !metrics.is_recorded() {
        return;
    }
    let mut attributes = attributes(provider, model, Some(response), lane);
    if let Some(cost) = cost(prices, model, response, lane) {
        metrics.record(&COST, cost.as_usd(), &attributes);
    }
    for (kind, tokens) in
        [("input", input_tokens(&response.usage)), ("output", response.usage.output_tokens)]
    {
        attributes.push(("gen_ai.token.type", kind));
        metrics.record(&TOKENS, tokens as f64, &attributes);
        attributes.pop();
    }
}

/// A batch has ended. `oldest` is the time since its oldest member asked.
pub(crate) fn batch_ended(
    metrics: &Metrics,
    provider: &dyn Provider,
    model: Option<&str>,
    status: &str,
    oldest: Duration,
    members: u64,
) {
    let mut attributes = vec![
        ("gen_ai.provider.name", provider_name(provider)),
        ("windlass.llm.batch.status", status),
    ];
    attributes.extend(model.map(|model| ("gen_ai.request.model", model)));
    metrics.record(&BATCH_DURATION, oldest.as_secs_f64(), &attributes);
    metrics.record(&BATCH_MEMBERS, members as f64, &attributes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_every_metric() {
        let page = include_str!("../../../../../docs/metrics.md");
        let all = [&TOKENS, &DURATION, &FIRST_CHUNK, &COST, &BATCH_DURATION, &BATCH_MEMBERS];
        for ModelMetric { name, .. } in all {
            assert!(page.contains(&format!("| `{name}` |")), "docs/metrics.md has no {name}");
        }
    }
}
