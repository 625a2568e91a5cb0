//! Rate limits and spend limits of a provider's account, shared by all processes on a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_engine::Callees;
use windlass_kernel::{BoxFuture, Error, ErrorCode, ErrorKind, IntoDuration, LimitKey, Timestamp};
use windlass_models::agents::{
    BatchLimits, BatchMember, BatchProvider, BatchResults, BatchView, EventFamily, Provider,
    ProviderError, ProviderErrorKind as Kind, ProviderRequest, ProviderResponse, RateLimit,
    RateLimits, TokenSink, WireFormat,
};

use super::ApiKey;
use super::account::{self, Account};
use crate::Engine;

/// A call that may begin within this time waits here. One that must wait longer is an error, so that its
/// run is parked.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long an account is closed if the provider names no time.
const CLOSED_FOR: Duration = Duration::from_secs(5);
/// How long an account is closed after its spend limit was reached. Then one call finds out whether it
/// still is; such a call is not charged.
const SPEND_CLOSED_FOR: Duration = Duration::from_secs(60 * 60);
/// How often a call that waits for a person asks whether the account is open again.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// A provider whose account has the same limits in all processes on a store.
///
/// Before each call it asks the store whether the account is open. A `retry-after`, an exhausted rate limit
/// in the headers of any answer, or a spend limit closes the account for every process, from their next
/// call on. A call that is not sent for this reason fails with the kind of the limit, without an HTTP
/// status. A run waits until the account is open again; that does not count as an attempt.
///
/// A spend limit also opens a request to a person, one for each account: a run of the workflow
/// `llm-account` asks `role:operator`. Approving it opens the account for all processes. Registering that
/// workflow is part of [`LimitedProvider::new`].
///
/// The limits have the keys `llm:<key id>:requests`, `llm:<key id>:tokens` and `llm:<key id>:spend`.
/// [`Admin::set_rate`](crate::admin::Admin::set_rate) can set a rate of requests for the first one.
pub struct LimitedProvider {
    provider: Arc<dyn Provider>,
    callees: Callees,
    requests: LimitKey,
    tokens: LimitKey,
    spend: LimitKey,
    account: Account,
    ask_every: Duration,
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
        let core = engine.core();
        if let Err(error) = account::serve(core) {
            let workflow = account::WORKFLOW;
            tracing::warn!(workflow, %error, "failed to serve the requests about spend limits");
        }
        Self {
            ask_every: ASK_EVERY,
            account: Account::new(core, provider.name(), id.to_string()),
            spend: account::spend_key(&id.to_string()),
            provider: Arc::new(provider),
            callees: core.callees(),
            requests: limit("requests"),
            tokens: limit("tokens"),
        }
    }

    /// Sets who is asked when the spend limit is reached: a person, or a role as `role:finance`. Default
    /// `role:operator`.
    #[must_use]
    pub fn ask(mut self, assignee: impl Into<String>) -> Self {
        self.account.assignee = assignee.into();
        self
    }

    /// How often a run that waits for this person asks whether the account is open again. Default 30 seconds.
    ///
    /// # Errors
    ///
    /// The text is no duration, or it is zero.
    pub fn ask_every(mut self, interval: impl IntoDuration) -> Result<Self, Error> {
        let interval = interval.into_duration().map_err(|source| {
            let message = "the interval is no duration";
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, message).with_source(source)
        })?;
        if interval.is_zero() {
            let message = "a run that waits for a person asks at least every millisecond";
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, message));
        }
        self.ask_every = interval;
        Ok(self)
    }

    /// Opens the account again after its spend limit was raised, for all processes, and withdraws the request
    /// about it.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn reopen(&self) -> Result<(), Error> {
        self.callees.open(&self.spend).await?;
        self.account.withdraw().await
    }

    #[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
    async fn wait(&self, again: bool) -> Result<(), ProviderError> {
        for (key, kind) in [
            (&self.spend, Kind::SpendLimitReached),
            (&self.tokens, Kind::TokenRateLimited),
            (&self.requests, Kind::RequestRateLimited),
        ] {
            let mut waited = Duration::ZERO;
            while let Some(after) = self.open_in(key, again || !waited.is_zero()).await? {
                if kind == Kind::SpendLimitReached || waited + after > WAIT_MAX {
                    let name = self.provider.name();
                    let message = match kind {
                        Kind::SpendLimitReached => format!(
                            "{name} is closed because its spend limit was reached; raise it, then reopen the provider"
                        ),
                        _ => format!("{name} is closed for {after:?}, because it limits the rate"),
                    };
                    let after = match kind {
                        Kind::SpendLimitReached => after.min(self.ask_every),
                        _ => after,
                    };
                    return Err(ProviderError::new(kind, message).postponed(after));
                }
                tokio::time::sleep(after).await;
                waited += after;
            }
        }
        Ok(())
    }

    async fn open_in(
        &self,
        key: &LimitKey,
        again: bool,
    ) -> Result<Option<Duration>, ProviderError> {
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
    async fn learn_limits(&self, limits: &RateLimits, tokens_of_call: u64) {
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

    fn inner(&self) -> &dyn BatchProvider {
        self.provider.batches().expect("a provider without batches is not asked for them")
    }

    // A call about a batch learns from its own error: no attempt of a run reports it.
    async fn taught<T>(&self, called: Result<T, ProviderError>) -> Result<T, ProviderError> {
        if let Err(error) = &called {
            self.learn_error(error).await;
        }
        self.waiting_for_person(called)
    }

    // A run or a lane waits for the person who is asked about a spend limit.
    fn waiting_for_person<T>(&self, called: Result<T, ProviderError>) -> Result<T, ProviderError> {
        called.map_err(|error| match error.kind() {
            Kind::SpendLimitReached => error.with_retry_after(self.ask_every),
            _ => error,
        })
    }

    async fn learn_error(&self, error: &ProviderError) {
        let limits = error.rate_limits();
        let (key, limit) = match error.kind() {
            Kind::SpendLimitReached => {
                self.close(&self.spend, SPEND_CLOSED_FOR).await;
                if let Err(error) = self.account.ask().await {
                    let provider = self.provider.name();
                    tracing::warn!(provider, %error, "failed to open a request about a spend limit");
                }
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

    fn server_address(&self) -> Option<&str> {
        self.provider.server_address()
    }

    fn batches(&self) -> Option<&dyn BatchProvider> {
        self.provider.batches().map(|_| self as &dyn BatchProvider)
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        sink: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        Box::pin(async move {
            self.wait(request.attempt > 1).await?;
            self.waiting_for_person(self.provider.call(request, sink).await)
        })
    }

    fn learn<'a>(
        &'a self,
        called: Result<&'a ProviderResponse, &'a ProviderError>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            match called {
                Ok(response) => {
                    let usage = &response.usage;
                    let tokens = usage.input_tokens + usage.output_tokens;
                    self.learn_limits(&response.rate_limits, tokens).await;
                }
                // This object refused the call, so the provider has shown nothing.
                Err(error) if error.postponed_by().is_some() => {}
                Err(error) => self.learn_error(error).await,
            }
            self.provider.learn(called).await;
        })
    }
}

/// Batches have the limits of the account too. Reading one is free, so only their creation waits.
impl BatchProvider for LimitedProvider {
    fn limits(&self) -> BatchLimits {
        self.inner().limits()
    }

    fn create<'a>(
        &'a self,
        intent: &'a str,
        members: Vec<BatchMember>,
    ) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move {
            self.wait(false).await?;
            self.taught(self.inner().create(intent, members).await).await
        })
    }

    fn read<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move {
            let mut view = self.taught(self.inner().read(id).await).await?;
            // The provider looks at some batches only after it has taken them.
            if let Some(refused) = &mut view.refused
                && refused.kind == Kind::SpendLimitReached
            {
                let error = ProviderError::new(refused.kind, &refused.message);
                self.learn_error(&error).await;
                refused.retry_after = Some(self.ask_every);
            }
            Ok(view)
        })
    }

    fn since(&self, since: Timestamp) -> BoxFuture<'_, Result<Vec<BatchView>, ProviderError>> {
        Box::pin(async move { self.taught(self.inner().since(since).await).await })
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move { self.taught(self.inner().cancel(id).await).await })
    }

    fn results<'a>(&'a self, batch: &'a BatchView) -> Box<dyn BatchResults + 'a> {
        self.inner().results(batch)
    }
}

impl fmt::Debug for LimitedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedProvider")
            .field("name", &self.provider.name())
            .finish_non_exhaustive()
    }
}
