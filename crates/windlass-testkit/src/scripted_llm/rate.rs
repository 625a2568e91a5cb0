//! A limit on requests and tokens in fixed windows, with the headers of both APIs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::script::{Api, Fail, RatePlan};

/// The window that is open now.
pub(super) struct Window {
    plan: RatePlan,
    number: u64,
    requests: u64,
    tokens: u64,
}

impl Window {
    pub(super) fn new(plan: RatePlan) -> Self {
        Self { plan, number: 0, requests: 0, tokens: 0 }
    }

    /// Counts a request, or refuses it until the window ends.
    pub(super) fn take(&mut self, api: Api, tokens: u64, elapsed_ms: u64) -> Result<(), Fail> {
        let number = elapsed_ms / self.plan.window_ms.max(1);
        if number != self.number {
            (self.number, self.requests, self.tokens) = (number, 0, 0);
        }
        let requests_used_up = self.requests >= self.plan.requests;
        if requests_used_up || self.tokens + tokens > self.plan.tokens {
            let mut fail = Fail::status(429);
            fail.retry_after_ms = Some(self.left(elapsed_ms).as_millis() as u64);
            fail.headers = self.headers(api, 0, elapsed_ms).into_iter().collect();
            fail.message = Some(match requests_used_up {
                true => "too many requests in this window".to_owned(),
                false => "too many tokens in this window".to_owned(),
            });
            if api == Api::Openai {
                let kind = if requests_used_up { "requests" } else { "tokens" };
                fail.kind = Some(kind.to_owned());
            }
            return Err(fail);
        }
        self.requests += 1;
        self.tokens += tokens;
        Ok(())
    }

    /// Counts output tokens.
    pub(super) fn spend(&mut self, tokens: u64) {
        self.tokens += tokens;
    }

    fn left(&self, elapsed_ms: u64) -> Duration {
        let length = self.plan.window_ms.max(1);
        Duration::from_millis(length - elapsed_ms % length)
    }

    pub(super) fn headers(&self, api: Api, now: i64, elapsed_ms: u64) -> Vec<(String, String)> {
        let left = self.left(elapsed_ms);
        let rows = [
            ("requests", self.plan.requests, self.requests),
            ("tokens", self.plan.tokens, self.tokens),
        ];
        rows.into_iter()
            .flat_map(|(what, limit, used)| {
                let remaining = limit.saturating_sub(used);
                let (prefix, reset) = match api {
                    Api::Anthropic => {
                        let now = Timestamp::from_second(now).unwrap_or_default();
                        let left = SignedDuration::try_from(left).unwrap_or_default();
                        (format!("anthropic-ratelimit-{what}-"), (now + left).to_string())
                    }
                    Api::Openai => ("x-ratelimit-".to_owned(), format!("{}ms", left.as_millis())),
                };
                let name = |part: &str| match api {
                    Api::Anthropic => format!("{prefix}{part}"),
                    Api::Openai => format!("{prefix}{part}-{what}"),
                };
                [
                    (name("limit"), limit.to_string()),
                    (name("remaining"), remaining.to_string()),
                    (name("reset"), reset),
                ]
            })
            .collect()
    }
}
