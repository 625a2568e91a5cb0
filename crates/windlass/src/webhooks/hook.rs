//! The terminal hook that sends a webhook at the end of a relay's run.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use windlass_engine::TaskFailure;
use windlass_kernel::{Error, ErrorKind, Namespace, RetryPolicy};
use windlass_models::relays::{HookError, RunOutcome, TerminalHook};

use super::{Webhook, Webhooks};
use crate::relays::Payload;

/// The header of a run with the URL for its terminal webhook.
pub const CALLBACK_URL: &str = "callback_url";

/// Sends a webhook at the end of a run to the URL in its header [`CALLBACK_URL`]. A run without that header sends
/// none. The start of a run with a URL that can never be called is refused.
#[derive(Clone)]
pub struct WebhookTerminalHook {
    webhooks: Webhooks,
    secret: Option<String>,
}

impl WebhookTerminalHook {
    /// A hook that signs with the default secrets.
    ///
    /// ```
    /// # fn example(engine: &windlass::Engine, webhooks: windlass::webhooks::Webhooks) {
    /// use windlass::webhooks::WebhookTerminalHook;
    ///
    /// let hook = WebhookTerminalHook::new(webhooks);
    /// # drop(hook); }
    /// ```
    pub fn new(webhooks: Webhooks) -> Self {
        Self { webhooks, secret: None }
    }

    /// The same with another set of secrets.
    ///
    /// ```
    /// # fn example(engine: &windlass::Engine, webhooks: windlass::webhooks::Webhooks) {
    /// use windlass::webhooks::WebhookTerminalHook;
    ///
    /// let hook = WebhookTerminalHook::new(webhooks).secret("partners");
    /// # drop(hook); }
    /// ```
    pub fn secret(mut self, name: impl Into<String>) -> Self {
        self.secret = Some(name.into());
        self
    }
}

/// The data about the end of a run.
#[derive(Serialize)]
struct Ended<'a> {
    namespace: &'a str,
    run_id: &'a str,
    run_key: String,
    generation: u32,
    workflow: &'a str,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    headers: &'a BTreeMap<String, String>,
}

impl TerminalHook for WebhookTerminalHook {
    async fn on_termination(&self, outcome: &RunOutcome) -> Result<(), HookError> {
        let Some(url) = outcome.headers.get(CALLBACK_URL) else { return Ok(()) };
        let namespace = Namespace::new(&outcome.namespace).map_err(HookError::permanent)?;
        let result = outcome.result.as_ref().map(Payload::of);
        let ended = Ended {
            namespace: &outcome.namespace,
            run_id: &outcome.run_id,
            run_key: outcome.run_key.to_string(),
            generation: outcome.generation,
            workflow: &outcome.workflow,
            status: outcome.status.as_str(),
            result: result.as_ref().and_then(Payload::json),
            result_base64: result.as_ref().and_then(Payload::base64),
            error: outcome.error.as_deref(),
            headers: &outcome.headers,
        };
        let mut webhook = Webhook::new(url, format!("run.{}", outcome.status), &ended)
            .map_err(HookError::permanent)?;
        webhook.secret.clone_from(&self.secret);
        let sent = self.webhooks.deliver(&namespace, &outcome.id, outcome.ended_at, &webhook);
        sent.await.map_err(hook_error)
    }

    fn wants(&self, headers: &BTreeMap<String, String>) -> Result<bool, Error> {
        let Some(url) = headers.get(CALLBACK_URL) else { return Ok(false) };
        self.webhooks.check_url(url)?;
        // Refuse the start: no later attempt of this process could sign the webhook.
        self.webhooks.check_secret(self.secret.as_deref()).map_err(|error| {
            let message =
                format!("{}, so the end of the run could not be delivered", error.message());
            Error::new(ErrorKind::Refused, error.code(), message)
        })?;
        Ok(true)
    }

    fn can_tell(&self) -> bool {
        self.webhooks.has_secrets()
    }

    fn retry(&self) -> RetryPolicy {
        RetryPolicy::webhooks()
    }
}

fn hook_error(failure: TaskFailure) -> HookError {
    let TaskFailure { name, message, retryable, retry_after, .. } = failure;
    let message = format!("{name}: {message}");
    let error = match retryable {
        true => HookError::transient(message),
        false => HookError::permanent(message),
    };
    match retry_after {
        Some(delay) => error.retry_after(delay),
        None => error,
    }
}
