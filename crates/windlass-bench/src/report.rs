//! Figures: percentiles of times, lines for people, and one JSON object for programs.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

/// What a workload found, in the order in which it found it.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<(String, String)>,
    values: Map<String, Value>,
    failures: Vec<String>,
}

impl Report {
    /// Notes a figure. Floating-point ones are cut to what is worth reading.
    pub(crate) fn put(&mut self, name: &str, value: impl Serialize) -> &mut Self {
        let value = rounded(serde_json::to_value(value).unwrap_or(Value::Null));
        let shown = match &value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.lines.push((name.to_owned(), shown));
        self.values.insert(name.to_owned(), value);
        self
    }

    /// Notes something that must not be: the process then ends with 1.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failures.push(what.into());
    }

    /// Whether something was found that must not be.
    pub(crate) fn failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Prints it: lines, then the object if it is asked for.
    pub(crate) fn print(&self, json: bool) {
        let width = self.lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, shown) in &self.lines {
            println!("{name:width$}  {shown}");
        }
        for failure in &self.failures {
            println!("FAILED  {failure}");
        }
        if json {
            let mut values = self.values.clone();
            if self.failed() {
                values.insert("failures".to_owned(), Value::from(self.failures.clone()));
            }
            println!("{}", Value::Object(values));
        }
    }
}

/// Four significant digits are more than a benchmark knows.
fn rounded(value: Value) -> Value {
    match value.as_f64() {
        Some(number) if value.is_f64() && number != 0.0 && number.is_finite() => {
            let digits = 3 - number.abs().log10().floor() as i32;
            let scale = 10_f64.powi(digits.clamp(0, 9));
            Value::from((number * scale).round() / scale)
        }
        _ => value,
    }
}

/// Times of one kind of call, kept one by one so that percentiles are exact.
#[derive(Default)]
pub(crate) struct Times(Vec<u64>);

impl Times {
    /// Adds one.
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all of another.
    pub(crate) fn extend(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The times of one part, by position: the first tenth is `0.0..0.1`.
    pub(crate) fn part(&self, from: f64, to: f64) -> Times {
        let at = |share: f64| (self.0.len() as f64 * share).round() as usize;
        Times(self.0[at(from)..at(to)].to_vec())
    }

    /// The time that this share of all does not exceed, in milliseconds.
    pub(crate) fn percentile_ms(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(0.0, |nanos| *nanos as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let mut times = Times::default();
        for ms in (1..=100).rev() {
            times.add(Duration::from_millis(ms));
        }
        assert_eq!(times.percentile_ms(0.5), 50.0);
        assert_eq!(times.percentile_ms(0.99), 99.0);
        assert_eq!(times.part(0.0, 0.1).percentile_ms(0.5), 95.0);
        assert_eq!(Times::default().percentile_ms(0.5), 0.0);
    }

    #[test]
    fn figures_are_cut_to_four_digits() {
        for (value, expect) in
            [(12_345.678, "12346.0"), (0.123_456, "0.1235"), (3.0, "3.0"), (0.0, "0.0")]
        {
            assert_eq!(rounded(Value::from(value)).to_string(), expect);
        }
    }
}
