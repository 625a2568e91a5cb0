//! Webhooks as Standard Webhooks describes them: signed, delivered at least once under a stable id,
//! and sent only to where the guard of [`crate::outbound`] lets calls through.
//!
//! A webhook is an effect: a commit enqueues it, and any process that serves webhooks delivers it. Effects have the
//! names of secrets; the secrets themselves stay in the processes.

mod answer;
#[cfg(feature = "contracts")]
mod documents;
mod endpoints;
#[cfg(feature = "relays")]
mod hook;
mod secret;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tracing::Instrument as _;
use windlass_engine::{Engine, Metrics, TaskContext, TaskFailure, TaskHandler, TaskResult};
use windlass_kernel::{
    Body, BoxFuture, Error, ErrorCode, ErrorKind, IntoDuration, Namespace, RetryPolicy, RunKey,
    Task, Timestamp,
};

pub(crate) use answer::{excerpt, retry_after};
pub use endpoints::{DisabledEndpoint, display_url};
#[cfg(feature = "relays")]
pub use hook::{CALLBACK_URL, WebhookTerminalHook};
pub use reqwest::header::HeaderMap;
pub use secret::{ID_HEADER, SIGNATURE_HEADER, Secret, TIMESTAMP_HEADER, sign, verify};

use crate::outbound::{Call, Outbound, Policy, duration_of};
use endpoints::Endpoints;

/// The name of the effects that are webhooks.
pub const WEBHOOK_EFFECT: &str = "webhook";
/// The set of secrets of webhooks that name no other.
pub const DEFAULT_SECRETS: &str = "default";

/// An effect's attempt is cut off after a minute; the answer is to be known before.
const TIMEOUT_MAX: Duration = Duration::from_secs(50);
/// How many headers a webhook may add.
const HEADERS_MAX: usize = 64;
/// How many characters the type of an event may have.
const TYPE_CHARS_MAX: usize = 200;

/// Options for delivering webhooks.
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// Where they may go.
    pub policy: Policy,
    /// Sets of secrets by name, the newest first: while they are rotated, every one of a set signs.
    pub secrets: BTreeMap<String, Vec<Secret>>,
    /// Sets of secrets of one namespace, by the name of the namespace. A namespace that is in here uses
    /// its own sets alone, so that no other namespace can have calls signed with them. Default none.
    pub namespaces: BTreeMap<String, BTreeMap<String, Vec<Secret>>>,
    /// How long a receiver may take. Default 15 s, at most 50 s.
    pub timeout: Duration,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            secrets: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            timeout: Duration::from_secs(15),
        }
    }
}

impl WebhookOptions {
    /// How long a receiver may take: a text, a [`Duration`], or milliseconds. At most 50 s.
    ///
    /// ```
    /// # use windlass::webhooks::WebhookOptions;
    /// let options = WebhookOptions::default().timeout("5 seconds")?;
    /// # drop(options);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidDuration`] if the text is no duration.
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Result<Self, Error> {
        self.timeout = duration_of("the timeout of webhooks", timeout)?;
        Ok(self)
    }
}

/// A webhook, as the input of an effect.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// The endpoint.
    pub url: String,
    /// The type of the event, such as `invoice.paid`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// When it happened. Left out, it is the time at which the effect was enqueued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// The data of the event.
    pub data: Box<RawValue>,
    /// Headers beside those of Standard Webhooks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The set of secrets that signs it. Left out, it is [`DEFAULT_SECRETS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl Webhook {
    /// A webhook with the default secrets and no further headers.
    ///
    /// ```
    /// use windlass::webhooks::Webhook;
    ///
    /// let webhook = Webhook::new("https://example.org/hook", "invoice.paid", &4_200)?;
    /// # drop(webhook);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidBody`] if the data cannot be written as JSON.
    pub fn new<T: Serialize + ?Sized>(
        url: impl Into<String>,
        event_type: impl Into<String>,
        data: &T,
    ) -> Result<Self, Error> {
        let data = to_raw_value(data).map_err(|source| {
            let message = "the webhook's data cannot be written as JSON";
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message).with_source(source)
        })?;
        Ok(Self {
            url: url.into(),
            event_type: event_type.into(),
            timestamp: None,
            data,
            headers: BTreeMap::new(),
            secret: None,
        })
    }

    /// The effect that sends it, to enqueue with a commit.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::webhooks::Webhook;
    ///
    /// let webhook = Webhook::new("https://example.org/hook", "invoice.paid", &4_200)?;
    /// let task = webhook.effect(&engine, None)?;
    /// # drop(task);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidWebhook`] if the type or a header is not valid.
    pub fn effect(&self, engine: &crate::Engine, run_key: Option<RunKey>) -> Result<Task, Error> {
        self.validate()?;
        let input = to_raw_value(self).map_err(|source| {
            Error::new(
                ErrorKind::Invalid,
                ErrorCode::InvalidBody,
                "the webhook cannot be written as JSON",
            )
            .with_source(source)
        })?;
        engine.core().effect(WEBHOOK_EFFECT, run_key, input, RetryPolicy::webhooks())
    }

    fn validate(&self) -> Result<(), Error> {
        let wrong =
            |message: String| Error::new(ErrorKind::Invalid, ErrorCode::InvalidWebhook, message);
        if !(1..=TYPE_CHARS_MAX).contains(&self.event_type.chars().count()) {
            let message = format!("the type of a webhook has 1 to {TYPE_CHARS_MAX} characters");
            return Err(wrong(message));
        }
        if self.headers.len() > HEADERS_MAX {
            let count = self.headers.len();
            return Err(wrong(format!(
                "a webhook has {count} headers; the limit is {HEADERS_MAX}"
            )));
        }
        let own = |name: &&String| name.to_ascii_lowercase().starts_with("webhook-");
        if let Some(name) = self.headers.keys().find(own) {
            let message = format!("the header {name:?} of a webhook is set by the sender itself");
            return Err(wrong(message));
        }
        Ok(())
    }
}

/// The posted body.
#[derive(Serialize)]
struct Posted<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    timestamp: &'a str,
    data: &'a RawValue,
}

/// Delivers webhooks. Cheap to clone.
#[derive(Clone)]
pub struct Webhooks {
    inner: Arc<Inner>,
}

struct Inner {
    outbound: Outbound,
    secrets: BTreeMap<String, Vec<Secret>>,
    namespaces: BTreeMap<String, BTreeMap<String, Vec<Secret>>>,
    timeout: Duration,
    endpoints: Endpoints,
    metrics: Arc<Metrics>,
}

impl Webhooks {
    /// A sender for an engine's webhooks. It delivers nothing by itself: see [`Webhooks::serve`].
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::webhooks::{DEFAULT_SECRETS, WebhookOptions, Webhooks};
    ///
    /// let mut options = WebhookOptions::default();
    /// options.secrets.insert(DEFAULT_SECRETS.into(), vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?]);
    /// Webhooks::new(&engine, options)?.serve(&engine)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`] if the timeout is out of range or a set of secrets is empty.
    pub fn new(engine: &crate::Engine, options: WebhookOptions) -> Result<Self, Error> {
        let outbound = Outbound::new(options.policy.clone())?;
        Self::with_outbound(engine, options, outbound)
    }

    /// The same with a guard of the caller's, whose policy counts.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::outbound::{Outbound, Policy};
    /// use windlass::webhooks::{WebhookOptions, Webhooks};
    ///
    /// let outbound = Outbound::new(Policy::default())?;
    /// let webhooks = Webhooks::with_outbound(&engine, WebhookOptions::default(), outbound)?;
    /// # drop(webhooks);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Webhooks::new`].
    pub fn with_outbound(
        engine: &crate::Engine,
        options: WebhookOptions,
        outbound: Outbound,
    ) -> Result<Self, Error> {
        let WebhookOptions { policy: _, secrets, namespaces, timeout } = options;
        let wrong =
            |message: String| Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message);
        if timeout.is_zero() || timeout > TIMEOUT_MAX {
            return Err(wrong(format!("webhooks time out after {timeout:?}; use up to 50 s")));
        }
        let mut sets = namespaces.values().flatten().chain(&secrets);
        if let Some((name, _)) = sets.find(|(_, set)| set.is_empty()) {
            return Err(wrong(format!("the set {name:?} of webhook secrets is empty")));
        }
        let endpoints = Endpoints::new(Arc::clone(engine.core().store()));
        let metrics = Arc::clone(engine.core().metrics());
        let inner = Arc::new(Inner { outbound, secrets, namespaces, timeout, endpoints, metrics });
        Ok(Self { inner })
    }

    /// Delivers the effects of an engine that are webhooks, those of all models.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine, webhooks: windlass::webhooks::Webhooks) -> windlass::Result<()> {
    /// webhooks.serve(&engine)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ActivityExists`] if this process delivers webhooks already.
    pub fn serve(&self, engine: &crate::Engine) -> Result<(), Error> {
        engine.serve_effects(WEBHOOK_EFFECT, Arc::new(self.clone()))
    }

    /// Refuses a URL that could never be delivered to.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine, webhooks: windlass::webhooks::Webhooks) -> windlass::Result<()> {
    /// webhooks.check_url("https://example.org/hook")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidUrl`] or [`ErrorCode::AddressRefused`]: the policy does not allow the URL.
    pub fn check_url(&self, url: &str) -> Result<(), Error> {
        self.inner.outbound.check_url(url)
    }

    /// Refuses a set of secrets that this process does not have.
    #[cfg(feature = "relays")]
    fn check_secret(&self, name: Option<&str>) -> Result<(), Error> {
        let name = name.unwrap_or(DEFAULT_SECRETS);
        let mut sets = self.inner.namespaces.values().chain([&self.inner.secrets]);
        match sets.any(|sets| sets.contains_key(name)) {
            true => Ok(()),
            false => Err(unknown_set(name)),
        }
    }

    /// Whether it can sign anything. A process that cannot leaves webhooks to others.
    #[cfg(feature = "relays")]
    fn has_secrets(&self) -> bool {
        !self.inner.secrets.is_empty() || !self.inner.namespaces.is_empty()
    }

    /// The endpoints of a tenant that nothing is sent to, because they answered 410. Without a sender,
    /// [`disabled_endpoints`] returns the same.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine, webhooks: windlass::webhooks::Webhooks) -> windlass::Result<()> {
    /// for endpoint in webhooks.disabled(engine.namespace()).await? {
    ///     println!("{endpoint:?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn disabled(&self, of: &Namespace) -> Result<Vec<DisabledEndpoint>, Error> {
        self.inner.endpoints.list(of).await
    }

    /// Sends to an endpoint again: to one alone if the URL has a query, else to all that are shown as
    /// this URL. False if none was disabled.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine, webhooks: windlass::webhooks::Webhooks) -> windlass::Result<()> {
    /// webhooks.enable(engine.namespace(), "https://example.org/hook").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn enable(&self, of: &Namespace, url: &str) -> Result<bool, Error> {
        self.inner.endpoints.enable(of, url).await
    }

    /// Makes one attempt. `id` is the same for every attempt, `at` is when it happened.
    pub(crate) async fn deliver(
        &self,
        of: &Namespace,
        id: &str,
        at: Timestamp,
        webhook: &Webhook,
    ) -> Result<(), TaskFailure> {
        let span = tracing::debug_span!(
            "windlass.webhook", webhook_id = id, event_type = %webhook.event_type,
            status = tracing::field::Empty
        );
        let delivered = self.inner.attempt(of, id, at, webhook).instrument(span).await;
        let metrics = &self.inner.metrics;
        match &delivered {
            Ok(()) => metrics.webhooks_delivered.add(1),
            Err(_) => metrics.webhooks_failed.add(1),
        }
        delivered
    }
}

fn unknown_set(name: &str) -> Error {
    let message = format!("no set {name:?} of webhook secrets is configured here");
    // Another process may have it, or this one after its next start.
    Error::new(ErrorKind::Unavailable, ErrorCode::WebhookSecretUnknown, message)
}

impl Inner {
    fn secrets(&self, of: &Namespace, name: Option<&str>) -> Result<&[Secret], Error> {
        let name = name.unwrap_or(DEFAULT_SECRETS);
        let sets = self.namespaces.get(of.as_str()).unwrap_or(&self.secrets);
        sets.get(name).map(Vec::as_slice).ok_or_else(|| unknown_set(name))
    }

    async fn attempt(
        &self,
        of: &Namespace,
        id: &str,
        at: Timestamp,
        webhook: &Webhook,
    ) -> Result<(), TaskFailure> {
        webhook.validate().map_err(failure)?;
        let url = &webhook.url;
        if self.endpoints.is_disabled(of, url).await.map_err(failure)? {
            let message = "the endpoint answered 410 and is disabled; enable it and requeue";
            return Err(failed("WEBHOOK_DISABLED", message, false));
        }
        let secrets = self.secrets(of, webhook.secret.as_deref()).map_err(failure)?;
        let told = at.to_string();
        let timestamp = webhook.timestamp.as_deref().unwrap_or(&told);
        let posted =
            Posted { event_type: &webhook.event_type, timestamp, data: webhook.data.as_ref() };
        let body = Body::of(&posted).map_err(failure)?.bytes;
        let mut call = Call::post(url, body);
        for (name, value) in &webhook.headers {
            call.header(name, value).map_err(failure)?;
        }
        sign_call(&mut call, secrets, id).map_err(failure)?;
        call.timeout = self.timeout;
        call.answer_bytes_max = answer::READ_BYTES_MAX;
        let answer = self.outbound.call(call).await.map_err(failure)?;
        tracing::Span::current().record("status", answer.status);
        match answer.status {
            200..=299 => Ok(()),
            410 => {
                self.endpoints.disable(of, url, id).await.map_err(failure)?;
                self.metrics.webhooks_disabled.add(1);
                let message = "the endpoint answered 410 Gone and is disabled from now on";
                Err(failed("WEBHOOK_GONE", message, false))
            }
            status => {
                let message = format!("the endpoint answered {status}: {}", excerpt(&answer.body));
                let retry_after = retry_after(&answer);
                Err(TaskFailure { retry_after, ..failed("WEBHOOK_STATUS", message, true) })
            }
        }
    }
}

impl TaskHandler for Webhooks {
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let this = self.clone();
        Box::pin(async move {
            let webhook: Webhook = input.read().map_err(failure)?;
            let id = context.idempotency_key();
            let at = made_at(&context);
            this.deliver(&context.namespace, &id, at, &webhook).await?;
            Ok(Body::json("null"))
        })
    }
}

/// The endpoints of an engine's tenant that nothing is sent to, because they answered 410.
///
/// ```
/// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
/// let disabled = windlass::webhooks::disabled_endpoints(engine.core()).await?;
/// # drop(disabled);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The store cannot be read.
pub async fn disabled_endpoints(engine: &Engine) -> Result<Vec<DisabledEndpoint>, Error> {
    Endpoints::new(Arc::clone(engine.store())).list(engine.namespace()).await
}

/// Sends to an endpoint again, as [`Webhooks::enable`] does, for a process that delivers no webhooks.
///
/// ```
/// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
/// windlass::webhooks::enable_endpoint(engine.core(), "https://example.org/hook").await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The store cannot be written.
pub async fn enable_endpoint(engine: &Engine, url: &str) -> Result<bool, Error> {
    Endpoints::new(Arc::clone(engine.store())).enable(engine.namespace(), url).await
}

/// Adds the headers of Standard Webhooks to a call whose body is complete.
pub(crate) fn sign_call(call: &mut Call, secrets: &[Secret], id: &str) -> Result<(), Error> {
    // Receivers compare it with their own clocks, so it is this machine's and not the store's.
    let seconds = crate::address::system_clock().as_millis() / 1_000;
    let signature = sign(secrets, id, seconds, &call.body)?;
    call.header(ID_HEADER, id)?;
    call.header(TIMESTAMP_HEADER, &seconds.to_string())?;
    call.header(SIGNATURE_HEADER, &signature)
}

// A task's id begins with the milliseconds at which it was made.
fn made_at(context: &TaskContext) -> Timestamp {
    Timestamp::from_millis((context.task_id.0.as_u128() >> 80) as i64)
}

fn failure(error: Error) -> TaskFailure {
    failed(error.code().as_str(), error.to_string(), error.is_retryable())
}

fn failed(name: &str, message: impl Into<String>, retryable: bool) -> TaskFailure {
    TaskFailure::new(name, message, retryable)
}
