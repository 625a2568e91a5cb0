//! A scripted provider, functions and tools for the tests of agents.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::agents::{
    EventFamily, Provider, ProviderError, ProviderErrorKind, ProviderRequest, ProviderResponse,
    RateLimits, TokenSink, Usage, WireFormat,
};
use windlass::kernel::{BoxFuture, CausalRef, Event, Query, RunKey};
use windlass::{Backoff, Engine, RetryLimit, RetryPolicy};

/// Answers from a list; after the list it repeats the last answer. Remembers what it was asked.
pub(crate) struct Script {
    name: &'static str,
    format: WireFormat,
    answers: Mutex<VecDeque<Answer>>,
    pub(crate) asked: Mutex<Vec<String>>,
}

#[derive(Clone)]
pub(crate) enum Answer {
    Content(Value),
    Body(String),
    Fails(ProviderErrorKind),
    Hangs,
}

impl Script {
    pub(crate) fn new(answers: impl IntoIterator<Item = Answer>) -> Arc<Self> {
        Self::named("anthropic", WireFormat::AnthropicMessages, answers)
    }

    pub(crate) fn named(
        name: &'static str,
        format: WireFormat,
        answers: impl IntoIterator<Item = Answer>,
    ) -> Arc<Self> {
        let answers = Mutex::new(answers.into_iter().collect());
        Arc::new(Self { name, format, answers, asked: Mutex::default() })
    }

    pub(crate) fn count(&self) -> usize {
        self.asked.lock().len()
    }
}

pub(crate) fn text(text: &str) -> Answer {
    Answer::Content(json!([{ "type": "text", "text": text }]))
}

pub(crate) fn uses(name: &str, inputs: &[Value]) -> Answer {
    let block = |(n, input)| json!({ "type": "tool_use", "id": format!("tu_{n}"), "name": name, "input": input });
    Answer::Content(inputs.iter().enumerate().map(block).collect())
}

impl Provider for Script {
    fn name(&self) -> &str {
        self.name
    }

    fn wire_format(&self) -> WireFormat {
        self.format
    }

    fn event_family(&self) -> EventFamily {
        match self.format {
            WireFormat::AnthropicMessages => EventFamily::Anthropic,
            WireFormat::OpenaiResponses => EventFamily::Openai,
        }
    }

    fn call<'a>(
        &'a self,
        request: &'a ProviderRequest,
        _: &'a dyn TokenSink,
    ) -> BoxFuture<'a, Result<ProviderResponse, ProviderError>> {
        self.asked.lock().push(String::from_utf8(request.body.to_vec()).unwrap());
        let answer = {
            let mut answers = self.answers.lock();
            match answers.len() {
                1 => answers[0].clone(),
                _ => answers.pop_front().expect("the script has an answer"),
            }
        };
        Box::pin(async move {
            let body = match answer {
                Answer::Content(content) => json!({ "content": content }).to_string(),
                Answer::Body(body) => body,
                Answer::Fails(kind) => {
                    let error = ProviderError::new(kind, "the script says so");
                    return Err(error.with_retry_after(Duration::from_millis(1)));
                }
                Answer::Hangs => std::future::pending().await,
            };
            Ok(ProviderResponse {
                body: body.into(),
                content: Vec::new(),
                stop_reason: Some("end_turn".into()),
                model: Some("m-1".into()),
                usage: Usage { input_tokens: 7, output_tokens: 3, ..Usage::default() },
                message_id: Some("msg_1".into()),
                request_id: Some("req_1".into()),
                rate_limits: RateLimits::default(),
            })
        })
    }
}

/// Retries at once.
pub(crate) fn at_once(retries: u32) -> RetryPolicy {
    RetryPolicy {
        limit: RetryLimit::Times(retries),
        delay: Duration::from_millis(1),
        backoff: Backoff::Constant,
        ..RetryPolicy::none()
    }
}

pub(crate) async fn events_of(engine: &Engine, run_key: RunKey) -> Vec<Event> {
    let query = Query::Events { run_key, from: 0, limit: 1_000 };
    engine.admin().store().list(query).await.unwrap().events().unwrap()
}

pub(crate) async fn types_of(engine: &Engine, run_key: RunKey) -> Vec<String> {
    let events = events_of(engine, run_key).await;
    events.iter().map(|event| event.event_type.as_str().to_owned()).collect()
}

/// The events of a tree; from each of them the chain of causes must lead to the first event of the root.
pub(crate) async fn tree_events(engine: &Engine, root: RunKey) -> Vec<Event> {
    let query = Query::RootEvents { root, after: None, limit: 1_000 };
    let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
    for event in &events {
        let (mut at, mut left) = (event, 1_000);
        while let CausalRef::EventId { event_id } = at.caused_by {
            let cause = events.iter().find(|event| event.event_id == event_id);
            let Some(cause) = cause else {
                // The event before a retry is in the generation before.
                assert_eq!(at.event_type.as_str(), "workflow.enqueued", "{at:?} has no cause");
                break;
            };
            at = cause;
            left -= 1;
            assert!(left > 0, "the causes of {event:?} have no end");
        }
        assert_eq!((at.ordinal, at.event_type.as_str()), (0, "workflow.enqueued"), "{event:?}");
    }
    events
}

/// No payload may contain one of these texts.
pub(crate) fn assert_redacted(events: &[Event], secrets: &[&str]) {
    for event in events {
        let payload = String::from_utf8_lossy(&event.payload);
        for secret in secrets {
            assert!(!payload.contains(secret), "{} shows {secret:?}: {payload}", event.event_type);
        }
    }
}
