//! The scripted provider without its sockets: takes a request, returns a reply, and counts.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bytes::Bytes;
use serde_json::{Value, json};
use windlass_models::agents::prices::PriceLane;

use super::batches::{Batch, Lines};
use super::rate::Window;
use super::report::{Charge, Counter, Seen};
use super::script::{Answer, Api, Fail, Op, Rule, Script, Tokens};
use super::view::View;
use super::{anthropic, openai, reply};
use reply::{Content, Outcome, Reply};

/// How many responses are kept for `GET /v1/responses/{id}`.
const RESPONSES_MAX: usize = 10_000;
/// Four bytes of text are a token.
const BYTES_PER_TOKEN: u64 = 4;

/// A request without its socket.
pub(super) struct Call {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Bytes,
}

pub(super) struct Provider {
    pub(super) script: Script,
    pub(super) counter: Counter,
    pub(super) base: String,
    pub(super) batches: Vec<Batch>,
    pub(super) files: BTreeMap<String, super::files::File>,
    uses: Vec<u32>,
    occurrences: BTreeMap<u64, u32>,
    responses: BTreeMap<String, Stored>,
    window: Option<Window>,
}

struct Stored {
    response: Value,
    polls_left: u32,
    charge: Option<Charge>,
}

/// A call with its place in the API.
pub(super) struct Placed<'a> {
    pub(super) call: &'a Call,
    pub(super) api: Api,
    pub(super) op: Op,
    pub(super) id: &'a str,
    pub(super) now: i64,
}

impl Provider {
    pub(super) fn new(script: Script, base: String) -> Self {
        let uses = vec![0; script.rules.len()];
        let window = script.rate.map(Window::new);
        Self {
            script,
            counter: Counter::default(),
            base,
            batches: Vec::new(),
            files: BTreeMap::new(),
            uses,
            occurrences: BTreeMap::new(),
            responses: BTreeMap::new(),
            window,
        }
    }

    /// Handles a request. `now` is in seconds since 1970, `elapsed_ms` since the start of the server.
    pub(super) fn handle(&mut self, call: &Call, now: i64, elapsed_ms: u64) -> Reply {
        if call.path == "/scripted/report" {
            let report = serde_json::to_value(&self.counter.report).unwrap_or_default();
            return Outcome::json(200, report).into_reply(None);
        }
        let Some((api, op, id)) = route(&call.method, &call.path) else {
            let api =
                if call.headers.contains_key("x-api-key") { Api::Anthropic } else { Api::Openai };
            return Outcome::fail(api, &Fail::status(404)).into_reply(None);
        };
        let now = self.script.now.unwrap_or(now);
        let placed = Placed { call, api, op, id, now };
        self.counter.arrived(seen(&placed));
        if let Err(fail) = self.check_key(&placed) {
            self.counter.report.refused += 1;
            return Outcome::fail(api, &fail).into_reply(None);
        }
        let body: Value = match (call.body.is_empty(), op) {
            (true, _) | (_, Op::UploadFile) => Value::Null,
            (false, _) => match serde_json::from_slice(&call.body) {
                Ok(body) => body,
                Err(error) => {
                    self.counter.report.refused += 1;
                    let fail = invalid(format!("the body is no JSON: {error}"));
                    return Outcome::fail(api, &fail).into_reply(None);
                }
            },
        };
        let view = match op {
            Op::Live => View::of(api, op, &body, None),
            _ => View::other(api, op),
        };
        let rule = self.take_rule(&view);
        let outcome = self.outcome(&placed, &view, &body, rule.as_ref(), elapsed_ms);
        if outcome.status >= 400 {
            self.counter.report.refused += 1;
        }
        if rule.as_ref().is_some_and(|rule| rule.lose.is_some()) || outcome.cut_after.is_some() {
            self.counter.report.lost += 1;
        }
        outcome.into_reply(rule.as_ref())
    }

    fn outcome(
        &mut self,
        placed: &Placed<'_>,
        view: &View,
        body: &Value,
        rule: Option<&Rule>,
        elapsed_ms: u64,
    ) -> Outcome {
        if let Some(rule) = rule {
            if rule.lose == Some(super::script::Lose::Before) {
                return Outcome::json(200, Value::Null);
            }
            if let Some(raw) = &rule.raw {
                return Outcome::raw(raw);
            }
            if let (Some(fail), None) = (&rule.fail, rule.stream.error_after) {
                return Outcome::fail(placed.api, fail);
            }
        }
        if placed.op == Op::Live
            && let Some(window) = &mut self.window
            && let Err(fail) =
                window.take(placed.api, view.input_bytes / BYTES_PER_TOKEN, elapsed_ms)
        {
            return Outcome::fail(placed.api, &fail);
        }
        let mut outcome = self.execute(placed, view, body, rule);
        if rule.is_some_and(|rule| rule.duplicate) {
            // The first one is the one that nobody hears of.
            outcome = self.execute(placed, view, body, rule);
        }
        if let (Op::Live, Some(window)) = (placed.op, &self.window) {
            outcome.headers.extend(window.headers(placed.api, placed.now, elapsed_ms));
        }
        outcome
    }

    fn execute(
        &mut self,
        placed: &Placed<'_>,
        view: &View,
        body: &Value,
        rule: Option<&Rule>,
    ) -> Outcome {
        let result = match placed.op {
            Op::Live => self.live(placed, view, body, rule),
            Op::CountTokens => Ok(self.count_tokens(placed, body)),
            Op::GetResponse => self.get_response(placed),
            Op::CancelResponse => self.cancel_response(placed),
            Op::CreateBatch => self.create_batch(placed, body),
            Op::GetBatch => self.get_batch(placed),
            Op::ListBatches => self.list_batches(placed),
            Op::CancelBatch => self.cancel_batch(placed),
            Op::DeleteBatch => self.delete_batch(placed),
            Op::BatchResults => self.results(placed, Lines::All),
            Op::UploadFile => self.upload(placed),
            Op::ListFiles => Ok(self.list_files(placed)),
            Op::GetFile => self.get_file(placed),
            Op::FileContent => self.file_content(placed),
            Op::DeleteFile => self.delete_file(placed),
            Op::BatchMember => Err(Fail::status(404)),
        };
        result.unwrap_or_else(|fail| Outcome::fail(placed.api, &fail))
    }

    fn check_key(&self, placed: &Placed<'_>) -> Result<(), Fail> {
        let headers = &placed.call.headers;
        let key = match placed.api {
            Api::Anthropic => headers.get("x-api-key").map(String::as_str),
            Api::Openai => {
                headers.get("authorization").and_then(|value| value.strip_prefix("Bearer "))
            }
        };
        let keys = &self.script.keys;
        let known = |key: &&str| match keys.is_empty() {
            true => !key.is_empty(),
            false => keys.iter().any(|known| known == key),
        };
        if key.filter(known).is_none() {
            return Err(Fail { message: Some("invalid key".to_owned()), ..Fail::status(401) });
        }
        if placed.api == Api::Anthropic && !headers.contains_key("anthropic-version") {
            return Err(invalid("the header anthropic-version is missing"));
        }
        Ok(())
    }

    /// The first rule that matches and has uses left.
    pub(super) fn take_rule(&mut self, view: &View) -> Option<Rule> {
        let mut rules = self.script.rules.iter().zip(&mut self.uses);
        let left = |rule: &Rule, used: u32| rule.times.is_none_or(|times| used < times);
        let (rule, used) =
            rules.find(|(rule, used)| left(rule, **used) && view.matches(&rule.when))?;
        *used = used.saturating_add(1);
        Some(rule.clone())
    }

    /// Ids follow from what was sent and how often, so that they do not depend on the order of arrival.
    pub(super) fn id(&mut self, prefix: &str, content: &[u8]) -> String {
        let mut hasher = DefaultHasher::new();
        (prefix, content).hash(&mut hasher);
        let hash = hasher.finish();
        let occurrence = self.occurrences.entry(hash).or_default();
        *occurrence += 1;
        format!("{prefix}{hash:016x}{occurrence:02}")
    }

    /// Makes the message that a rule answers with.
    pub(super) fn message(
        &mut self,
        view: &View,
        body: &Value,
        rule: Option<&Rule>,
        (lane, now): (PriceLane, i64),
    ) -> Result<(Value, Charge), Fail> {
        check_request(view.api, body)?;
        let Some(answer) = rule.and_then(|rule| rule.answer.as_ref()) else {
            self.counter.report.unmatched += 1;
            let text: String = view.last_text.chars().take(200).collect();
            return Err(invalid(format!(
                "no rule of the script matches; the last text is {text:?}"
            )));
        };
        let text = answer.text.as_deref().unwrap_or_default().replace("{{input}}", &view.last_text);
        let used = answer.usage.unwrap_or_else(|| tokens(view, answer, &text));
        let content = format!("{:?}{body}", view.custom_id);
        let message = match view.api {
            Api::Anthropic => {
                let id = self.id("msg_", content.as_bytes());
                anthropic::message(&id, &view.model, answer, &text, used)
            }
            Api::Openai => {
                let id = self.id("resp_", content.as_bytes());
                openai::response(&id, &view.model, now, (answer, &text, used))
            }
        };
        Ok((message, Charge { model: view.model.clone(), used, lane }))
    }

    fn live(
        &mut self,
        placed: &Placed<'_>,
        view: &View,
        body: &Value,
        rule: Option<&Rule>,
    ) -> Result<Outcome, Fail> {
        let (message, charge) = self.message(view, body, rule, (PriceLane::Live, placed.now))?;
        self.counter.charge(&charge);
        if let Some(window) = &mut self.window {
            window.spend(charge.used.output);
        }
        let flag = |name: &str| body.get(name).and_then(Value::as_bool);
        let polls = rule.map_or(0, |rule| rule.polls);
        if placed.api == Api::Openai && flag("store") != Some(false) {
            let id = message["id"].as_str().unwrap_or_default().to_owned();
            let background = flag("background") == Some(true);
            let shown = match background {
                true => openai::unfinished(&message, "queued"),
                false => message.clone(),
            };
            let polls_left = if background { polls } else { 0 };
            let charge = background.then_some(charge);
            self.responses.insert(id, Stored { response: message.clone(), polls_left, charge });
            if self.responses.len() > RESPONSES_MAX {
                self.responses.pop_first();
            }
            if background {
                return Ok(Outcome::json(200, shown));
            }
        }
        if flag("stream") != Some(true) {
            return Ok(Outcome::json(200, message));
        }
        let pace = rule.map(|rule| rule.stream).unwrap_or_default();
        let chars = pace.chunk_chars.unwrap_or(12);
        let mut events = match placed.api {
            Api::Anthropic => anthropic::events(&message, chars),
            Api::Openai => openai::events(&message, chars),
        };
        if let Some(end) = pace.end_after {
            events.truncate(end);
        }
        if let (Some(after), Some(fail)) = (pace.error_after, rule.and_then(|r| r.fail.as_ref())) {
            events.truncate(after);
            events.push(match placed.api {
                Api::Anthropic => anthropic::error_event(fail),
                Api::Openai => openai::error_event(fail),
            });
        }
        Ok(Outcome {
            content: Content::Events(events, placed.api),
            ..Outcome::json(200, Value::Null)
        })
    }

    fn count_tokens(&mut self, placed: &Placed<'_>, body: &Value) -> Outcome {
        let view = View::of(placed.api, Op::CountTokens, body, None);
        let count = view.input_bytes.div_ceil(BYTES_PER_TOKEN);
        let answer = match placed.api {
            Api::Anthropic => json!({ "input_tokens": count }),
            Api::Openai => json!({ "object": "response.input_tokens", "input_tokens": count }),
        };
        Outcome::json(200, answer)
    }

    fn get_response(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        let stored = self.responses.get_mut(placed.id).ok_or(Fail::status(404))?;
        if stored.polls_left > 0 {
            stored.polls_left -= 1;
            let shown = openai::unfinished(&stored.response, "in_progress");
            return Ok(Outcome::json(200, shown));
        }
        stored.charge = None;
        Ok(Outcome::json(200, stored.response.clone()))
    }

    fn cancel_response(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        let stored = self.responses.get_mut(placed.id).ok_or(Fail::status(404))?;
        if let Some(charge) = stored.charge.take() {
            self.counter.refund(&charge);
            stored.polls_left = 0;
            stored.response = openai::unfinished(&stored.response, "cancelled");
        }
        Ok(Outcome::json(200, stored.response.clone()))
    }
}

// Refuses a request that both APIs refuse before a model sees it.
fn check_request(api: Api, body: &Value) -> Result<(), Fail> {
    let text = |name: &str| body.get(name).and_then(Value::as_str).is_some_and(|t| !t.is_empty());
    if !text("model") {
        return Err(invalid("model: field required"));
    }
    match api {
        Api::Anthropic => {
            if body.get("max_tokens").and_then(Value::as_u64).unwrap_or_default() == 0 {
                return Err(invalid("max_tokens: at least 1 is required"));
            }
            match body.get("messages").and_then(Value::as_array) {
                Some(messages) if !messages.is_empty() => Ok(()),
                _ => Err(invalid("messages: at least one message is required")),
            }
        }
        Api::Openai => match body.get("input") {
            Some(Value::String(_) | Value::Array(_)) => Ok(()),
            _ => Err(invalid("input: a text or a list is required")),
        },
    }
}

fn tokens(view: &View, answer: &Answer, text: &str) -> Tokens {
    let tools: usize = answer.tools.iter().map(|call| call.input.to_string().len()).sum();
    let thinking = answer.thinking.as_deref().unwrap_or_default().len();
    let output = (text.len() + tools + thinking) as u64;
    Tokens {
        input: view.input_bytes.div_ceil(BYTES_PER_TOKEN).max(1),
        output: output.div_ceil(BYTES_PER_TOKEN).max(1),
        ..Tokens::default()
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Fail {
    Fail { message: Some(message.into()), ..Fail::status(400) }
}

fn seen(placed: &Placed<'_>) -> Seen {
    let call = placed.call;
    let secret = ["authorization", "x-api-key"];
    let headers = call.headers.iter().filter(|(name, _)| !secret.contains(&name.as_str()));
    Seen {
        api: placed.api,
        op: placed.op,
        path: call.path.clone(),
        headers: headers.map(|(name, value)| (name.clone(), value.clone())).collect(),
        body: call.body.clone(),
    }
}

// The call that a method and a path name, and the id in the path.
fn route<'a>(method: &str, path: &'a str) -> Option<(Api, Op, &'a str)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (&version, parts) = parts.split_first()?;
    if version != "v1" {
        return None;
    }
    let (api, op, id) = match (method, parts) {
        ("POST", ["messages"]) => (Api::Anthropic, Op::Live, ""),
        ("POST", ["messages", "count_tokens"]) => (Api::Anthropic, Op::CountTokens, ""),
        ("POST", ["messages", "batches"]) => (Api::Anthropic, Op::CreateBatch, ""),
        ("GET", ["messages", "batches"]) => (Api::Anthropic, Op::ListBatches, ""),
        ("GET", ["messages", "batches", id]) => (Api::Anthropic, Op::GetBatch, *id),
        ("DELETE", ["messages", "batches", id]) => (Api::Anthropic, Op::DeleteBatch, *id),
        ("POST", ["messages", "batches", id, "cancel"]) => (Api::Anthropic, Op::CancelBatch, *id),
        ("GET", ["messages", "batches", id, "results"]) => (Api::Anthropic, Op::BatchResults, *id),
        ("POST", ["responses"]) => (Api::Openai, Op::Live, ""),
        ("POST", ["responses", "input_tokens"]) => (Api::Openai, Op::CountTokens, ""),
        ("GET", ["responses", id]) => (Api::Openai, Op::GetResponse, *id),
        ("POST", ["responses", id, "cancel"]) => (Api::Openai, Op::CancelResponse, *id),
        ("POST", ["files"]) => (Api::Openai, Op::UploadFile, ""),
        ("GET", ["files"]) => (Api::Openai, Op::ListFiles, ""),
        ("GET", ["files", id]) => (Api::Openai, Op::GetFile, *id),
        ("DELETE", ["files", id]) => (Api::Openai, Op::DeleteFile, *id),
        ("GET", ["files", id, "content"]) => (Api::Openai, Op::FileContent, *id),
        ("POST", ["batches"]) => (Api::Openai, Op::CreateBatch, ""),
        ("GET", ["batches"]) => (Api::Openai, Op::ListBatches, ""),
        ("GET", ["batches", id]) => (Api::Openai, Op::GetBatch, *id),
        ("POST", ["batches", id, "cancel"]) => (Api::Openai, Op::CancelBatch, *id),
        _ => return None,
    };
    Some((api, op, id))
}
