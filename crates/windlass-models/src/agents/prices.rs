//! Prices of models as data, the cost of a call from its usage, and an estimate before a call.
//!
//! All functions are pure. The ledger holds usage and never cost: prices change, and a cost is only true
//! together with the version of the table that it was computed with.

use std::fmt;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_kernel::{Error, ErrorCode, ErrorKind};

use super::Usage;

/// How many models a price table may have.
pub const PRICES_MAX: usize = 10_000;
/// The highest price that a table may have, in USD per million tokens.
const USD_PER_MILLION_MAX: f64 = 100_000.0;
const PICO_PER_NANO: u128 = 1_000;
/// Text has about four bytes for each token. Three makes the estimate too high rather than too low.
pub(super) const BYTES_PER_TOKEN: u64 = 3;
/// The highest price of an image, for any number of bytes.
const TOKENS_PER_IMAGE: u64 = 1_600;
/// A PDF has about this many base64 characters for each token of its pages.
const DOCUMENT_BYTES_PER_TOKEN: u64 = 20;

/// An amount of money in billionths of a US dollar.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UsdNanos(pub u64);

impl UsdNanos {
    /// The sum. It saturates.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least nothing.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The same in dollars, for display: it is rounded.
    pub fn as_usd(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// Dollars with six digits after the point, rounded up: `$0.000123`.
impl fmt::Display for UsdNanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.div_ceil(1_000);
        write!(f, "${}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

/// How a call is made: batches cost half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceLane {
    /// A call that answers at once.
    #[default]
    Live,
    /// A member of a provider's batch.
    Batch,
}

/// Prices by model, with the version that a computed cost names.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceTable {
    version: String,
    models: Vec<ModelPrice>,
}

/// The prices of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPrice {
    model: String,
    rates: Rates,
    long: Option<(u64, Rates)>,
}

// In trillionths of a dollar for a token: a price of $0.005 for a million tokens is a whole number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    input: u64,
    output: u64,
    cache_write: u64,
    cache_read: u64,
}

impl PriceTable {
    /// The table of this build. Providers change their prices: give a table of your own where the sum
    /// matters.
    pub fn built_in() -> &'static Self {
        static TABLE: OnceLock<PriceTable> = OnceLock::new();
        TABLE.get_or_init(|| {
            Self::from_json(include_str!("prices.json")).expect("the built-in prices are valid")
        })
    }

    /// Reads a table.
    ///
    /// ```
    /// use windlass_models::agents::prices::PriceTable;
    ///
    /// let prices = PriceTable::from_json(
    ///     r#"{ "version": "ours-1", "models": [{ "model": "in-house", "input": 0.5, "output": 1 }] }"#,
    /// )?;
    /// assert_eq!(prices.version(), "ours-1");
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidPrices`] if a member is missing or wrong, or two entries have one name.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let table: WireTable = serde_json::from_str(json)
            .map_err(|error| invalid(format!("the price table does not read: {error}")))?;
        if table.version.trim().is_empty() {
            return Err(invalid("the price table has no version".to_owned()));
        }
        if table.models.len() > PRICES_MAX {
            return Err(invalid(format!(
                "the price table has {} models; the limit is {PRICES_MAX}",
                table.models.len()
            )));
        }
        let mut models: Vec<ModelPrice> =
            table.models.into_iter().map(WirePrice::read).collect::<Result<_, _>>()?;
        models.sort_by(|a, b| a.model.cmp(&b.model));
        if let Some(pair) = models.windows(2).find(|pair| pair[0].model == pair[1].model) {
            return Err(invalid(format!("the price table has {:?} twice", pair[0].model)));
        }
        Ok(Self { version: table.version, models })
    }

    /// The version. Show it beside every cost.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The prices of a model. `claude-sonnet-4-5-20250929` and `gpt-5-2025-08-07` have the prices of the
    /// model without its date. None: no price is known, and no cost can be computed.
    pub fn of(&self, model: &str) -> Option<&ModelPrice> {
        let exact = |name: &str| {
            self.models
                .binary_search_by(|price| price.model.as_str().cmp(name))
                .ok()
                .map(|at| &self.models[at])
        };
        exact(model).or_else(|| exact(without_date(model)?))
    }

    /// The cost of a call, or none if the model has no price.
    pub fn cost(&self, model: &str, usage: &Usage, lane: PriceLane) -> Option<UsdNanos> {
        Some(self.of(model)?.cost(usage, lane))
    }

    /// The cost of a call by the model that answered, or else by the one that was asked for.
    pub(crate) fn cost_of_call(
        &self,
        asked: &str,
        answered: Option<&str>,
        usage: &Usage,
        lane: PriceLane,
    ) -> Option<UsdNanos> {
        let price = answered.and_then(|model| self.of(model)).or_else(|| self.of(asked))?;
        Some(price.cost(usage, lane))
    }
}

// The model without `-20250929`, `-2025-08-07` or `-latest`.
fn without_date(model: &str) -> Option<&str> {
    if let Some(base) = model.strip_suffix("-latest") {
        return Some(base);
    }
    let is_date = |text: &str| {
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        let hyphens = text.bytes().filter(|b| *b == b'-').count();
        digits == 8 && digits + hyphens == text.len() && (hyphens == 0 || hyphens == 2)
    };
    [9, 11].into_iter().find_map(|length| {
        let at = model.len().checked_sub(length)?;
        let (base, suffix) = model.split_at_checked(at)?;
        suffix.strip_prefix('-').filter(|date| is_date(date)).map(|_| base)
    })
}

impl ModelPrice {
    /// The name of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The cost of a call with this usage, rounded up.
    pub fn cost(&self, usage: &Usage, lane: PriceLane) -> UsdNanos {
        let input =
            usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens;
        let rates = self.rates(input);
        let pico = [
            (usage.input_tokens, rates.input),
            (usage.output_tokens, rates.output),
            (usage.cache_creation_input_tokens, rates.cache_write),
            (usage.cache_read_input_tokens, rates.cache_read),
        ]
        .map(|(tokens, rate)| u128::from(tokens) * u128::from(rate));
        round(pico.into_iter().sum(), lane)
    }

    /// The most that a call can cost: all of its input is written to the prompt cache, and the output is as
    /// long as allowed.
    pub fn cost_max(
        &self,
        estimate: Estimate,
        output_tokens_max: u64,
        lane: PriceLane,
    ) -> UsdNanos {
        let rates = self.rates(estimate.input_tokens);
        let input = u128::from(rates.input.max(rates.cache_write));
        let pico = u128::from(estimate.input_tokens) * input
            + u128::from(estimate.output_tokens_max.unwrap_or(output_tokens_max))
                * u128::from(rates.output);
        round(pico, lane)
    }

    fn rates(&self, input_tokens: u64) -> Rates {
        match self.long {
            Some((above, rates)) if input_tokens > above => rates,
            _ => self.rates,
        }
    }
}

fn round(pico: u128, lane: PriceLane) -> UsdNanos {
    let divisor = match lane {
        PriceLane::Live => PICO_PER_NANO,
        PriceLane::Batch => PICO_PER_NANO * 2,
    };
    UsdNanos(u64::try_from(pico.div_ceil(divisor)).unwrap_or(u64::MAX))
}

/// The expected usage of a request, before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Input tokens; rather too many than too few.
    pub input_tokens: u64,
    /// The longest output that the request allows, if it says so.
    pub output_tokens_max: Option<u64>,
}

/// Estimates the tokens of a request body of either wire format, without a call.
///
/// ```
/// use windlass_models::agents::prices::estimate;
///
/// let body = br#"{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"Hello there"}]}"#;
/// let estimate = estimate(body);
/// assert_eq!(estimate.output_tokens_max, Some(100));
/// assert!(estimate.input_tokens >= 4);
/// ```
pub fn estimate(body: &[u8]) -> Estimate {
    let Ok(request) = serde_json::from_slice::<Value>(body) else {
        let input_tokens = (body.len() as u64).div_ceil(BYTES_PER_TOKEN);
        return Estimate { input_tokens, output_tokens_max: None };
    };
    let output = ["max_tokens", "max_output_tokens"];
    Estimate {
        input_tokens: tokens(&request),
        output_tokens_max: output.iter().find_map(|name| request.get(name)?.as_u64()),
    }
}

// The keys count too: tools and their schemas are part of the prompt.
fn tokens(value: &Value) -> u64 {
    let text = |text: &str| (text.len() as u64).div_ceil(BYTES_PER_TOKEN);
    match value {
        Value::String(value) => text(value),
        Value::Array(items) => items.iter().map(tokens).sum(),
        Value::Object(members) => match value.get("type").and_then(Value::as_str) {
            Some("image" | "input_image") => TOKENS_PER_IMAGE,
            Some("base64") => {
                let data = value.get("data").and_then(Value::as_str).unwrap_or_default();
                (data.len() as u64).div_ceil(DOCUMENT_BYTES_PER_TOKEN)
            }
            _ => members.iter().map(|(key, value)| text(key) + tokens(value)).sum(),
        },
        _ => 1,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireTable {
    version: String,
    #[serde(default, rename = "unit")]
    _unit: Option<String>,
    models: Vec<WirePrice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WirePrice {
    model: String,
    input: f64,
    output: f64,
    cache_write: Option<f64>,
    cache_read: Option<f64>,
    long: Option<WireLong>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireLong {
    above_input_tokens: u64,
    input: f64,
    output: f64,
    cache_write: Option<f64>,
    cache_read: Option<f64>,
}

impl WirePrice {
    fn read(self) -> Result<ModelPrice, Error> {
        let Self { model, input, output, cache_write, cache_read, long } = self;
        let read = |[input, output, write, cached]: [Option<f64>; 4]| {
            let pico = |name: &str, usd: Option<f64>| {
                let usd = usd.unwrap_or_default();
                // A price for a million tokens in dollars is one for a token in millionths.
                let valid = (0.0..=USD_PER_MILLION_MAX).contains(&usd);
                valid.then(|| (usd * 1_000_000.0).round() as u64).ok_or_else(|| {
                    invalid(format!(
                        "the {name} price of {model:?} is {usd}; use 0 to {USD_PER_MILLION_MAX} USD"
                    ))
                })
            };
            Ok::<_, Error>(Rates {
                input: pico("input", input)?,
                output: pico("output", output)?,
                cache_write: pico("cache_write", write.or(input))?,
                cache_read: pico("cache_read", cached.or(input))?,
            })
        };
        let rates = read([Some(input), Some(output), cache_write, cache_read])?;
        let long = match long {
            None => None,
            Some(long) => {
                let prices =
                    [Some(long.input), Some(long.output), long.cache_write, long.cache_read];
                Some((long.above_input_tokens, read(prices)?))
            }
        };
        if model.is_empty() {
            return Err(invalid("the price table has a model without a name".to_owned()));
        }
        Ok(ModelPrice { model, rates, long })
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidPrices, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, output: u64, write: u64, read: u64) -> Usage {
        Usage {
            input_tokens: input,
            output_tokens: output,
            cache_creation_input_tokens: write,
            cache_read_input_tokens: read,
            reasoning_output_tokens: 0,
        }
    }

    #[test]
    fn costs_follow_the_table() {
        let prices = PriceTable::built_in();
        for (model, used, lane, expect) in [
            ("claude-sonnet-4-5", usage(1_000_000, 0, 0, 0), PriceLane::Live, "$3.000000"),
            ("claude-sonnet-4-5", usage(0, 1_000_000, 0, 0), PriceLane::Live, "$15.000000"),
            ("claude-sonnet-4-5", usage(0, 0, 1_000_000, 1_000_000), PriceLane::Live, "$4.050000"),
            ("claude-sonnet-4-5", usage(1_000_000, 0, 0, 0), PriceLane::Batch, "$1.500000"),
            ("claude-sonnet-4-5-20250929", usage(1_000, 500, 0, 0), PriceLane::Live, "$0.010500"),
            ("gpt-5-2025-08-07", usage(1_000, 500, 0, 0), PriceLane::Live, "$0.006250"),
            ("gpt-5-nano", usage(1, 0, 0, 0), PriceLane::Live, "$0.000001"),
            ("gpt-5-nano", usage(0, 0, 0, 0), PriceLane::Live, "$0.000000"),
            // The longer prompt has another price for all of its tokens.
            ("claude-haiku-5-5", usage(100_000, 0, 0, 0), PriceLane::Live, "$0.010000"),
            ("claude-haiku-5-5", usage(100_001, 0, 0, 0), PriceLane::Live, "$0.050001"),
            ("claude-haiku-5-5", usage(1, 0, 0, 100_000), PriceLane::Live, "$0.005001"),
        ] {
            let cost = prices.cost(model, &used, lane).unwrap();
            assert_eq!(cost.to_string(), expect, "{model} {used:?} {lane:?}");
        }
    }

    #[test]
    fn a_model_without_a_price_has_no_cost() {
        let prices = PriceTable::built_in();
        for model in ["in-house", "gpt-5-maxi", "claude-sonnet-4-5-2025", "claude", "", "-20250929"]
        {
            assert!(prices.of(model).is_none(), "{model}");
        }
        assert_eq!(prices.of("claude-3-5-haiku-latest").unwrap().model(), "claude-3-5-haiku");
        assert_eq!(prices.of("gpt-5-mini").unwrap().model(), "gpt-5-mini");
    }

    #[test]
    fn a_reservation_covers_what_the_call_can_cost() {
        let price = PriceTable::built_in().of("claude-sonnet-4-5").unwrap();
        let estimate = Estimate { input_tokens: 1_000, output_tokens_max: Some(200) };
        let most = price.cost_max(estimate, 9_999, PriceLane::Live);
        for used in [usage(1_000, 200, 0, 0), usage(0, 200, 1_000, 0), usage(0, 200, 0, 1_000)] {
            assert!(price.cost(&used, PriceLane::Live) <= most, "{used:?}");
        }
        let open = Estimate { output_tokens_max: None, ..estimate };
        assert!(price.cost_max(open, 9_999, PriceLane::Live) > most);
    }

    #[test]
    fn an_estimate_counts_text_and_not_the_bytes_of_images() {
        let image = "x".repeat(1_000_000);
        let with_image = serde_json::json!({
            "model": "m", "max_output_tokens": 7,
            "input": [{ "type": "input_image", "image_url": image }],
        });
        let estimated = estimate(with_image.to_string().as_bytes());
        assert!((TOKENS_PER_IMAGE..TOKENS_PER_IMAGE + 50).contains(&estimated.input_tokens));
        assert_eq!(estimated.output_tokens_max, Some(7));
        let text =
            serde_json::json!({ "messages": [{ "role": "user", "content": "y".repeat(3_000) }] });
        assert!(estimate(text.to_string().as_bytes()).input_tokens >= 1_000);
        assert_eq!(estimate(b"not json").input_tokens, 3);
    }

    #[test]
    fn a_wrong_table_is_refused_by_name() {
        for (json, expect) in [
            (r#"{"models":[]}"#, "version"),
            (r#"{"version":" ","models":[]}"#, "no version"),
            (r#"{"version":"1","models":[{"model":"m","input":-1,"output":1}]}"#, "input price"),
            (r#"{"version":"1","models":[{"model":"m","input":1,"output":1e9}]}"#, "output price"),
            (r#"{"version":"1","models":[{"model":"","input":1,"output":1}]}"#, "without a name"),
            (
                r#"{"version":"1","models":[{"model":"m","input":1,"output":1},{"model":"m","input":1,"output":1}]}"#,
                "twice",
            ),
            (r#"{"version":"1","models":[{"model":"m","input":1,"output":1,"x":1}]}"#, "unknown"),
        ] {
            let error = PriceTable::from_json(json).unwrap_err();
            assert_eq!(error.code(), "INVALID_PRICES");
            assert!(error.message().contains(expect), "{json}: {error}");
        }
    }
}
