//! Runs the steps of a relay by asking a URL: a signed POST with the payload, an answer with the
//! outcome. docs/relay-http.md describes every field.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::{Error, ErrorCode, ErrorKind, IntoDuration};
use windlass_models::relays::{RelayError, RelayStep, Signal, StepOutcome, StepRunner};

use super::payload::Payload;
use crate::outbound::{Answer, Call, Outbound, Policy, duration_of};
use crate::webhooks::{Secret, excerpt, retry_after, sign_call};

/// How to reach a runner.
#[derive(Clone, Debug)]
pub struct HttpRunnerOptions {
    /// Where it is asked.
    pub url: String,
    /// The secrets that sign requests, newest first.
    pub secrets: Vec<Secret>,
    /// How long one attempt of a step may take. Default 60 s.
    pub timeout: Duration,
    /// Where it may be. Its `plain_http` and `allow` are for runners beside this process.
    pub policy: Policy,
}

impl HttpRunnerOptions {
    /// A runner with the default timeout, at a public address.
    ///
    /// ```
    /// # fn example(secret: windlass::webhooks::Secret) {
    /// use windlass::relays::HttpRunnerOptions;
    ///
    /// let options = HttpRunnerOptions::new("https://example.org/step", vec![secret]);
    /// # drop(options); }
    /// ```
    pub fn new(url: impl Into<String>, secrets: Vec<Secret>) -> Self {
        let timeout = Duration::from_secs(60);
        Self { url: url.into(), secrets, timeout, policy: Policy::default() }
    }

    /// How long one attempt of a step may take: a text, a [`Duration`], or milliseconds.
    ///
    /// ```
    /// # fn example(secret: windlass::webhooks::Secret) -> windlass::Result<()> {
    /// use windlass::relays::HttpRunnerOptions;
    ///
    /// let options = HttpRunnerOptions::new("https://example.org/step", vec![secret]);
    /// let options = options.timeout("2 minutes")?;
    /// # drop(options);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidDuration`] if the text is no duration.
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Result<Self, Error> {
        self.timeout = duration_of("the timeout of an HTTP relay", timeout)?;
        Ok(self)
    }
}

/// Asks a URL to run each step.
#[derive(Clone)]
pub struct HttpRunner {
    outbound: Outbound,
    url: String,
    secrets: Vec<Secret>,
    timeout: Duration,
}

impl HttpRunner {
    /// A runner. A URL that could never be called, or no secret, is refused.
    ///
    /// ```
    /// # fn example(engine: &windlass::Engine, secret: windlass::webhooks::Secret) -> windlass::Result<()> {
    /// use windlass::relays::{HttpRunner, HttpRunnerOptions, NoopTerminalHook};
    ///
    /// let options = HttpRunnerOptions::new("https://example.org/step", vec![secret]);
    /// engine.relay("report", HttpRunner::new(options)?, NoopTerminalHook).build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidUrl`] or [`ErrorCode::AddressRefused`] if the URL can never be called,
    /// [`ErrorCode::InvalidOption`] if there is no secret or the timeout is zero.
    pub fn new(options: HttpRunnerOptions) -> Result<Self, Error> {
        let HttpRunnerOptions { url, secrets, timeout, policy } = options;
        let outbound = Outbound::new(policy)?;
        outbound.check_url(&url)?;
        let wrong =
            |message: &str| Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message);
        if secrets.is_empty() {
            return Err(wrong("an HTTP relay needs a secret that signs its requests"));
        }
        if timeout.is_zero() {
            return Err(wrong("the timeout of an HTTP relay is zero"));
        }
        Ok(Self { outbound, url, secrets, timeout })
    }

    fn call(&self, step: &RelayStep) -> Result<Call, Error> {
        let payload = Payload::of(&step.payload);
        let (status, signal) = match &step.signal {
            Some(Signal::Received(bytes)) => ("received", Some(Payload::of(bytes))),
            Some(Signal::TimedOut) | None => ("timed_out", None),
        };
        let asked = Asked {
            namespace: &step.namespace,
            run_id: &step.run_id,
            run_key: step.run_key.map(|key| key.to_string()),
            generation: step.generation,
            workflow: &step.workflow,
            step: step.step_number,
            attempt: step.attempt,
            headers: &step.headers,
            payload: payload.json(),
            payload_base64: payload.base64(),
            signal: step.signal.as_ref().map(|_| AskedSignal {
                status,
                payload: signal.as_ref().and_then(Payload::json),
                payload_base64: signal.as_ref().and_then(Payload::base64),
            }),
        };
        let body = windlass_kernel::Body::of(&asked)?.bytes;
        let mut call = Call::post(&self.url, body);
        // The same for every attempt of this step, and for no other step of any run.
        let id = match step.run_key {
            Some(run_key) => format!("{run_key}-{}", step.step_number),
            None => format!("{}-{}", step.run_id, step.step_number),
        };
        sign_call(&mut call, &self.secrets, &id)?;
        call.timeout = self.timeout;
        // A body in Base64 takes a third more.
        call.answer_bytes_max = step.answer_bytes_max / 2 * 3 + 64 * 1024;
        Ok(call)
    }
}

impl StepRunner for HttpRunner {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let call = self.call(step).map_err(RelayError::permanent)?;
        let called = step.cancel_token.run_until_cancelled(self.outbound.call(call)).await;
        // Dropping the call closes its connection, so the runner notices too.
        let Some(called) = called else {
            return Ok(StepOutcome::Cancel { reason: "the run was cancelled".to_owned() });
        };
        match called {
            Ok(answer) => read(&answer),
            Err(error) if error.is_retryable() => Err(RelayError::transient(error)),
            Err(error) => Err(RelayError::permanent(error)),
        }
    }
}

/// The request to a runner.
#[derive(Serialize)]
struct Asked<'a> {
    namespace: &'a str,
    run_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_key: Option<String>,
    generation: u32,
    workflow: &'a str,
    step: u32,
    attempt: u32,
    headers: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<AskedSignal<'a>>,
}

#[derive(Serialize)]
struct AskedSignal<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<&'a str>,
}

/// The answer of a runner. Which fields belong to which outcome is checked after reading.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answered {
    outcome: Option<String>,
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    result: Option<Box<RawValue>>,
    result_base64: Option<String>,
    delay_ms: Option<u64>,
    signal: Option<String>,
    timeout_ms: Option<u64>,
    reason: Option<String>,
    kind: Option<String>,
    name: Option<String>,
    message: Option<String>,
    retry_after_ms: Option<u64>,
}

// The status says whether another attempt can help; the body has the decision of the runner.
fn read(answer: &Answer) -> Result<StepOutcome, RelayError> {
    match answer.status {
        200 if answer.is_cut => {
            Err(RelayError::permanent("the runner's answer is larger than a payload may be"))
        }
        200 => match serde_json::from_slice(&answer.body) {
            Ok(answered) => outcome(answered).unwrap_or_else(|why| Err(unreadable(&why))),
            // It has begun to answer and died: nothing that another attempt would meet again.
            Err(error) if error.is_eof() => {
                let bytes = answer.body.len();
                let message = format!("the runner's answer ends too early, after {bytes} bytes");
                Err(RelayError::transient(message))
            }
            Err(error) => Err(unreadable(&error.to_string())),
        },
        status => {
            let message = format!("the runner answered {status}: {}", excerpt(&answer.body));
            let transient = matches!(status, 408 | 425 | 429 | 500..=599);
            let error = match transient {
                true => RelayError::transient(message),
                false => RelayError::permanent(message),
            };
            Err(match retry_after(answer) {
                Some(delay) => error.retry_after(delay),
                None => error,
            })
        }
    }
}

fn unreadable(why: &str) -> RelayError {
    RelayError::permanent(format!("the runner's answer does not read: {why}"))
}

fn outcome(answered: Answered) -> Result<Result<StepOutcome, RelayError>, String> {
    let mut rest = answered;
    let word = rest.outcome.take().ok_or("it has no outcome")?;
    let text = |field: &str, value: Option<String>| {
        value.ok_or_else(|| format!("the outcome {word} needs {field}"))
    };
    let found = match word.as_str() {
        "continue" => Ok(StepOutcome::Continue { payload: rest.payload()? }),
        "continue_after" => {
            let delay = rest.delay_ms.take().ok_or("continue_after needs delay_ms")?;
            let delay = Duration::from_millis(delay);
            Ok(StepOutcome::ContinueAfter { payload: rest.payload()?, delay })
        }
        "continue_on_signal" => {
            let signal = text("signal", rest.signal.take())?;
            let timeout = rest.timeout_ms.take().map(Duration::from_millis);
            Ok(StepOutcome::ContinueOnSignal { payload: rest.payload()?, signal, timeout })
        }
        "continue_as_new" => Ok(StepOutcome::ContinueAsNew { payload: rest.payload()? }),
        "succeed" => {
            let (json, base64) = (rest.result.take(), rest.result_base64.take());
            Ok(StepOutcome::Succeed { result: Payload::read("result", json, base64)? })
        }
        "fail" => Ok(StepOutcome::Fail { reason: text("reason", rest.reason.take())? }),
        "cancel" => Ok(StepOutcome::Cancel { reason: text("reason", rest.reason.take())? }),
        "error" => {
            let message = text("message", rest.message.take())?;
            let mut error = match text("kind", rest.kind.take())?.as_str() {
                "transient" => {
                    let after = rest.retry_after_ms.take().map(Duration::from_millis);
                    let error = RelayError::transient(message);
                    after.into_iter().fold(error, RelayError::retry_after)
                }
                "permanent" => RelayError::permanent(message),
                other => return Err(format!("kind is {other:?}; use transient or permanent")),
            };
            if let Some(name) = rest.name.take() {
                error = error.named(name);
            }
            Err(error)
        }
        other => return Err(format!("{other:?} is no outcome")),
    };
    match rest.first_left() {
        Some(field) => Err(format!("{field} does not belong to the outcome {word}")),
        None => Ok(found),
    }
}

impl Answered {
    fn payload(&mut self) -> Result<bytes::Bytes, String> {
        Payload::read("payload", self.payload.take(), self.payload_base64.take())
    }

    // A field that its outcome does not use is a mistake that would go unnoticed.
    fn first_left(&self) -> Option<&'static str> {
        let fields = [
            ("payload", self.payload.is_some()),
            ("payload_base64", self.payload_base64.is_some()),
            ("result", self.result.is_some()),
            ("result_base64", self.result_base64.is_some()),
            ("delay_ms", self.delay_ms.is_some()),
            ("signal", self.signal.is_some()),
            ("timeout_ms", self.timeout_ms.is_some()),
            ("reason", self.reason.is_some()),
            ("kind", self.kind.is_some()),
            ("name", self.name.is_some()),
            ("message", self.message.is_some()),
            ("retry_after_ms", self.retry_after_ms.is_some()),
        ];
        fields.into_iter().find(|(_, is)| *is).map(|(field, _)| field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_be_as_large_as_the_engine_takes_it() {
        let secrets = vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap()];
        let options = HttpRunnerOptions::new("https://runner.example/", secrets);
        let runner = HttpRunner::new(options).unwrap();
        let mut step = RelayStep::detached("r", 0, "1");
        step.answer_bytes_max = 8 * 1024 * 1024;
        assert!(runner.call(&step).unwrap().answer_bytes_max > 8 * 1024 * 1024 * 4 / 3);
    }
}
