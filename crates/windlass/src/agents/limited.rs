//! Rate limits and spend limits of a provider's account, shared by all processes on a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_engine::Callees;
use windlass_kernel::{BoxFuture, Error, LimitKey};
use windlass_models::agents::{
    BatchProvider, EventFamily, Provider, ProviderError, ProviderErrorKind as Kind,
    ProviderRequest, ProviderResponse, RateLimit, RateLimits, TokenSink, WireFormat,
};

use super::ApiKey;
use crate::Engine;

/// A call that may begin within this time waits here. One that must wait longer is an error, so that its
/// run is parked.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long an account is closed if the provider names no time.
const CLOSED_FOR: Duration = Duration::from_secs(5);
/// How long an account is closed after its spend limit was reached. Then one call finds out whether it
/// still is; such a call is not charged.
const SPEND_CLOSED_FOR: Duration = Duration::from_secs(60 * 60);

/// A provider whose account has the same limits in all processes on a store.
///
/// Before each call it asks the store whether the account is open. A `retry-after`, an exhausted rate limit
/// in the headers of any answer, or a spend limit closes the account for every process, from their next
/// call on. A call that is not sent for this reason fails with the kind of the limit, without an HTTP
/// status.
///
/// The limits have the keys `llm:<key id>:requests`, `llm:<key id>:tokens` and `llm:<key id>:spend`.
/// [`Admin::set_rate`](crate::admin::Admin::set_rate) can set a rate of requests for the first one.
pub struct LimitedProvider {
    provider: Arc<dyn Provider>,
    callees: Callees,
    requests: LimitKey,
    tokens: LimitKey,
    spend: LimitKey,
}

impl LimitedProvider {
    /// Shares the limits of a provider's account through the store of an engine.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// use windlass::Engine;
    /// use windlass::agents::{AnthropicClient, LimitedProvider};
    ///
    /// let engine = Engine::open("memory:").await?;
    /// let client = AnthropicClient::from_env()?;
    /// let key = client.key().clone();
    /// let provider = LimitedProvider::new(&engine, client, &key);
    /// # drop(provider);
    /// # Ok(()) }
    /// ```
    pub fn new(engine: &Engine, provider: impl Provider, key: &ApiKey) -> Self {
        let id = key.id();
        let limit = |what: &str| LimitKey::from_stored(format!("llm:{id}:{what}"));
        Self {
            provider: Arc::new(provider),
            callees: engine.core().callees(),
            requests: limit("requests"),
            tokens: limit("tokens"),
            spend: limit("spend"),
        }
    }

    /// Opens the account again after its spend limit was raised, for all processes.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn reopen(&self) -> Result<(), Error> {
        self.callees.open(&self.spend).await
    }

    #[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
    async fn wait(&self, again: bool) -> Result<(), ProviderError> {
        for (key, kind) in [
            (&self.spend, Kind::SpendLimitReached),
            (&self.tokens, Kind::TokenRateLimited),
            (&self.requests, Kind::RequestRateLimited),
        ] {
            let mut waited = Duration::ZERO;
            while let Some(after) = self.ask(key, again || !waited.is_zero()).await? {
                if kind == Kind::SpendLimitReached || waited + after > WAIT_MAX {
                    let name = self.provider.name();
                    let message = match kind {
                        Kind::SpendLimitReached => format!(
                            "{name} is closed because its spend limit was reached; raise it, then reopen the provider"
                        ),
                        _ => format!("{name} is closed for {after:?}, because it limits the rate"),
                    };
                    return Err(ProviderError::new(kind, message).with_retry_after(after));
                }
                tokio::time::sleep(after).await;
                waited += after;
            }
        }
        Ok(())
    }

    async fn ask(&self, key: &LimitKey, again: bool) -> Result<Option<Duration>, ProviderError> {
        self.callees.ask(key, again).await.map_err(|error| {
            let message =
                format!("the limits of {} cannot be read from the store", self.provider.name());
            ProviderError::new(Kind::Retryable, message).with_source(error)
        })
    }

    async fn close(&self, key: &LimitKey, after: Duration) {
        // The answer of the provider counts more than a limit that could not be stored.
        if let Err(error) = self.callees.close(key, after).await {
            let name = self.provider.name();
            tracing::warn!(provider = name, %error, "failed to store a limit of a provider");
        }
    }

    // Closes what the headers show as used up.
    async fn learn(&self, limits: &RateLimits, tokens_of_call: u64) {
        let used_up = |limit: &RateLimit, need: u64| {
            limit.reset_after.filter(|_| limit.remaining.is_some_and(|left| left < need))
        };
        // Another call like this one would not fit.
        for (key, limit, need) in [
            (&self.requests, limits.requests, 1),
            (&self.tokens, limits.tokens, tokens_of_call.max(1)),
        ] {
            if let Some(after) = limit.and_then(|limit| used_up(&limit, need)) {
                self.close(key, after).await;
            }
        }
    }

    async fn learn_error(&self, error: &ProviderError) {
        let limits = error.rate_limits();
        let (key, limit) = match error.kind() {
            Kind::SpendLimitReached => {
                self.close(&self.spend, SPEND_CLOSED_FOR).await;
                return;
            }
            Kind::TokenRateLimited => (&self.tokens, limits.tokens),
            Kind::RequestRateLimited => (&self.requests, limits.requests),
            // Only if it says how long: an overload is not about this account.
            _ if error.retry_after().is_some() => (&self.requests, None),
            _ => return,
        };
        let reset = limit.and_then(|limit| limit.reset_after);
        self.close(key, error.retry_after().or(reset).unwrap_or(CLOSED_FOR)).await;
    }
}

impl Provider for LimitedProvider {
    fn name(&self) -> &str {
        self.provider.name()
    }

    fn wire_format(&self) -> WireFormat {
        self.provider.wire_format()
    }

    fn event_family(&self) -> EventFamily {
        self.provider.event_family()
    }

    fn batches(&self) -> Option<&dyn BatchProvider> {
        self.provider.batches()
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        Box::pin(async move {
            self.wait(request.attempt > 1).await?;
            let called = self.provider.call(request, sink).await;
            match &called {
                Ok(response) => {
                    let usage = &response.usage;
                    let tokens = usage.input_tokens + usage.output_tokens;
                    self.learn(&response.rate_limits, tokens).await;
                }
                Err(error) => self.learn_error(error).await,
            }
            called
        })
    }
}

impl fmt::Debug for LimitedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedProvider")
            .field("name", &self.provider.name())
            .finish_non_exhaustive()
    }
}
