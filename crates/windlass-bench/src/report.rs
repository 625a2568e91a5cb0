//! The figures of a benchmark: percentiles, a text report, and a JSON object.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

/// The figures of a workload, in order.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<(String, String)>,
    values: Map<String, Value>,
    failures: Vec<String>,
}

impl Report {
    /// Adds a figure. Rounds floating-point numbers.
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

    /// Adds a failure: the exit code is then 1.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failures.push(what.into());
    }

    /// Whether there is a failure.
    pub(crate) fn failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Prints the figures, and optionally the JSON object.
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

/// Rounds to four significant digits, which is more than the precision of a benchmark.
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

/// The durations of one kind of call, all stored so that percentiles are exact.
#[derive(Default)]
pub(crate) struct Times(Vec<u64>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all durations of another.
    pub(crate) fn extend(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    /// The number of durations.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The durations of one part by position: the first tenth is `0.0..0.1`.
    pub(crate) fn part(&self, from: f64, to: f64) -> Times {
        let at = |share: f64| (self.0.len() as f64 * share).round() as usize;
        Times(self.0[at(from)..at(to)].to_vec())
    }

    /// The percentile in milliseconds.
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
    fn figures_are_rounded_to_four_digits() {
        for (value, expect) in
            [(12_345.678, "12346.0"), (0.123_456, "0.1235"), (3.0, "3.0"), (0.0, "0.0")]
        {
            assert_eq!(rounded(Value::from(value)).to_string(), expect);
        }
    }
}
