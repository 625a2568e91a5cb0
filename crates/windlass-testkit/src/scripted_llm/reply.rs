//! The reply over the connection: headers, pieces of a body, and how the body ends.

use bytes::Bytes;
use serde_json::Value;

use super::script::{Api, Fail, Lose, Raw, Rule};
use super::{anthropic, openai};

/// The size of the pieces that padding is sent in.
const PADDING_PIECE: usize = 64 * 1024;

/// The answer to a request, before faults of the connection.
pub(super) struct Outcome {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) content: Content,
    /// Cuts the connection after this many bytes of the body.
    pub(super) cut_after: Option<u64>,
}

pub(super) enum Content {
    Json(Value),
    Bytes(String, Bytes),
    Events(Vec<String>, Api),
}

/// The treatment of the connection.
pub(super) struct Reply {
    pub(super) delay_ms: u64,
    /// None: closes the connection without an answer.
    pub(super) answer: Option<Sent>,
}

pub(super) struct Sent {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) pieces: Vec<Bytes>,
    pub(super) tail: Tail,
    pub(super) pause_ms: u64,
}

/// The end of a body, after its pieces.
#[derive(Clone)]
pub(super) enum Tail {
    End,
    Cut,
    Repeat(Bytes),
}

impl Outcome {
    pub(super) fn json(status: u16, value: Value) -> Self {
        Self { status, headers: Vec::new(), content: Content::Json(value), cut_after: None }
    }

    pub(super) fn raw(raw: &Raw) -> Self {
        let content = Content::Bytes(raw.content_type.clone(), raw.body.clone().into());
        Self { content, ..Self::json(raw.status, Value::Null) }
    }

    pub(super) fn fail(api: Api, fail: &Fail) -> Self {
        let error = match api {
            Api::Anthropic => anthropic::error(fail, "req_scripted"),
            Api::Openai => openai::error(fail),
        };
        let mut outcome = Self::json(fail.status, error);
        let own = fail.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        outcome.headers.extend(own);
        if let Some(after) = &fail.retry_after {
            outcome.headers.push(("retry-after".to_owned(), after.clone()));
        }
        if let Some(after) = fail.retry_after_ms {
            outcome.headers.push(("retry-after-ms".to_owned(), after.to_string()));
        }
        outcome
    }

    /// Adds the faults of a rule.
    pub(super) fn into_reply(mut self, rule: Option<&Rule>) -> Reply {
        let default = Rule::default();
        let rule = rule.unwrap_or(&default);
        if matches!(rule.lose, Some(Lose::Before | Lose::After)) {
            return Reply { delay_ms: rule.delay_ms, answer: None };
        }
        let is_stream = matches!(self.content, Content::Events(..));
        let (content_type, body, filler) = match self.content {
            Content::Json(value) => (
                "application/json".to_owned(),
                vec![Bytes::from(value.to_string())],
                " ".to_owned(),
            ),
            Content::Bytes(content_type, body) => (content_type, vec![body], " ".to_owned()),
            Content::Events(events, api) => {
                let filler = match api {
                    Api::Anthropic => anthropic::ping(),
                    Api::Openai => openai::ping(),
                };
                let pieces = events.into_iter().map(Bytes::from).collect();
                ("text/event-stream".to_owned(), pieces, filler)
            }
        };
        let pause_ms = if is_stream { rule.stream.chunk_ms } else { 0 };
        let mut pieces = padding(rule.padding_bytes, &filler);
        let mut tail = Tail::End;
        if rule.endless {
            // An endless body has its beginning and never its end.
            let keep = body.len() / 2;
            pieces.extend(body.into_iter().take(keep));
            tail = Tail::Repeat(filler.repeat(PADDING_PIECE / filler.len()).into());
        } else {
            pieces.extend(body);
        }
        let cut = match rule.lose {
            Some(Lose::AfterBytes(bytes)) => Some(bytes),
            _ => self.cut_after,
        };
        if let Some(bytes) = cut {
            truncate(&mut pieces, bytes);
            tail = Tail::Cut;
        }
        self.headers.push(("content-type".to_owned(), content_type));
        for name in ["request-id", "x-request-id"] {
            self.headers.push((name.to_owned(), "req_scripted".to_owned()));
        }
        let sent = Sent { status: self.status, headers: self.headers, pieces, tail, pause_ms };
        Reply { delay_ms: rule.delay_ms, answer: Some(sent) }
    }
}

fn padding(bytes: u64, filler: &str) -> Vec<Bytes> {
    let piece = Bytes::from(filler.repeat(PADDING_PIECE / filler.len()));
    let whole = bytes / piece.len() as u64;
    let rest = bytes as usize % piece.len() / filler.len() * filler.len();
    let mut pieces = vec![piece.clone(); whole as usize];
    pieces.push(piece.slice(..rest));
    pieces
}

fn truncate(pieces: &mut Vec<Bytes>, bytes: u64) {
    let mut left = bytes as usize;
    for piece in pieces.iter_mut() {
        piece.truncate(left);
        left -= piece.len();
    }
    pieces.retain(|piece| !piece.is_empty());
}
