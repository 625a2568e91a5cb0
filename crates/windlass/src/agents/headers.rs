//! Reads the headers about waiting and about rate limits, in the formats of both providers.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use reqwest::header::HeaderMap;
use windlass_models::agents::{RateLimit, RateLimits};

/// Longer waits are an error of the provider.
const WAIT_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// How long the provider asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |text: &str, unit: f64| {
        let seconds = text.parse::<f64>().ok()? * unit;
        Duration::try_from_secs_f64(seconds).ok()
    };
    let millis = text(headers, "retry-after-ms").and_then(|text| number(text, 0.001));
    let after = millis.or_else(|| {
        let text = text(headers, "retry-after")?;
        number(text, 1.0).or_else(|| until(http_date(text)?, headers))
    });
    after.map(|after| after.min(WAIT_MAX))
}

/// The id of the request.
pub(super) fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = text(headers, "request-id").or_else(|| text(headers, "x-request-id"))?;
    Some(id.chars().take(200).collect())
}

/// The rate limits that the answer states.
pub(super) fn rate_limits(headers: &HeaderMap) -> RateLimits {
    let anthropic = |what: &str| {
        let part = |part: &str| text(headers, &format!("anthropic-ratelimit-{what}-{part}"));
        limit(part("limit"), part("remaining"), || until(part("reset")?.parse().ok()?, headers))
    };
    let openai = |what: &str| {
        let part = |part: &str| text(headers, &format!("x-ratelimit-{part}-{what}"));
        limit(part("limit"), part("remaining"), || go_duration(part("reset")?))
    };
    let tightest = |limits: [Option<RateLimit>; 3]| {
        let left = |limit: &RateLimit| limit.remaining.unwrap_or(u64::MAX);
        limits.into_iter().flatten().min_by_key(left)
    };
    RateLimits {
        requests: anthropic("requests").or_else(|| openai("requests")),
        tokens: tightest(["tokens", "input-tokens", "output-tokens"].map(anthropic))
            .or_else(|| openai("tokens")),
    }
}

fn limit(
    limit: Option<&str>,
    remaining: Option<&str>,
    reset: impl FnOnce() -> Option<Duration>,
) -> Option<RateLimit> {
    let limit = limit.and_then(|text| text.parse().ok());
    let remaining = remaining.and_then(|text| text.parse().ok());
    if limit.is_none() && remaining.is_none() {
        return None;
    }
    Some(RateLimit { limit, remaining, reset_after: reset().map(|after| after.min(WAIT_MAX)) })
}

// The time from the answer's own date to another time of the same clock. Without a date it is the clock
// of this machine.
#[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
fn until(at: Timestamp, headers: &HeaderMap) -> Option<Duration> {
    let from = text(headers, "date").and_then(http_date);
    let from = from.or_else(|| Timestamp::try_from(SystemTime::now()).ok())?;
    Some(Duration::try_from(at.duration_since(from)).unwrap_or_default())
}

// `Wed, 21 Oct 2026 07:28:00 GMT`.
fn http_date(text: &str) -> Option<Timestamp> {
    let at = jiff::fmt::rfc2822::parse(text.replace("GMT", "+0000").as_str()).ok()?;
    Some(at.timestamp())
}

// `1m6s`, `6s`, `12ms`, `1.5s`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let seconds = match unit {
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            "us" | "µs" => 0.000_001,
            _ => return None,
        };
        let seconds = number.parse::<f64>().ok()? * seconds;
        total += Duration::try_from_secs_f64(seconds).ok()?;
        rest = next;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn waits_are_read_in_every_format() {
        let date = ("date", "Wed, 21 Oct 2026 07:28:00 GMT");
        for (pairs, expect) in [
            (vec![("retry-after", "7")], Some(7_000)),
            (vec![("retry-after", "0.5")], Some(500)),
            (vec![("retry-after-ms", "250"), ("retry-after", "7")], Some(250)),
            (vec![date, ("retry-after", "Wed, 21 Oct 2026 07:29:30 GMT")], Some(90_000)),
            (vec![date, ("retry-after", "Wed, 21 Oct 2026 07:00:00 GMT")], Some(0)),
            (vec![("retry-after", "99999999999")], Some(7 * 86_400_000)),
            (vec![("retry-after", "-1")], None),
            (vec![("retry-after", "soon")], None),
            (vec![], None),
        ] {
            let found = retry_after(&headers(&pairs)).map(|after| after.as_millis() as u64);
            assert_eq!(found, expect, "{pairs:?}");
        }
    }

    #[test]
    fn rate_limits_are_read_in_both_formats() {
        let limit = |limit, remaining, ms: u64| {
            let reset_after = Some(Duration::from_millis(ms));
            Some(RateLimit { limit: Some(limit), remaining: Some(remaining), reset_after })
        };
        let found = rate_limits(&headers(&[
            ("date", "Wed, 21 Oct 2026 07:28:00 GMT"),
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-10-21T07:28:02Z"),
            ("anthropic-ratelimit-tokens-limit", "90000"),
            ("anthropic-ratelimit-tokens-remaining", "80000"),
            ("anthropic-ratelimit-tokens-reset", "2026-10-21T07:28:30Z"),
            ("anthropic-ratelimit-output-tokens-limit", "8000"),
            ("anthropic-ratelimit-output-tokens-remaining", "10"),
            ("anthropic-ratelimit-output-tokens-reset", "2026-10-21T07:29:00Z"),
        ]));
        assert_eq!(found.requests, limit(50, 49, 2_000));
        assert_eq!(found.tokens, limit(8_000, 10, 60_000), "the tightest");
        let found = rate_limits(&headers(&[
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-reset-requests", "120ms"),
            ("x-ratelimit-limit-tokens", "30000"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "1m6.5s"),
        ]));
        assert_eq!(found.requests, limit(500, 499, 120));
        assert_eq!(found.tokens, limit(30_000, 0, 66_500));
        assert_eq!(rate_limits(&headers(&[])), RateLimits::default());
        let wrong = headers(&[("x-ratelimit-limit-requests", "many")]);
        assert_eq!(rate_limits(&wrong), RateLimits::default());
    }
}
