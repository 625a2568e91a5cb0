//! Files and batch calls of both APIs.

use bytes::Bytes;
use serde_json::{Value, json};
use windlass_models::agents::prices::PriceLane;

use super::batches::{Batch, Lines, Member, MemberEnd};
use super::provider::{Placed, Provider, invalid};
use super::reply::{Content, Outcome};
use super::script::{Api, Fail, Op};
use super::view::View;

/// How many requests a batch may have.
const MEMBERS_MAX: [(Api, usize); 2] = [(Api::Anthropic, 100_000), (Api::Openai, 50_000)];
const CUSTOM_ID_CHARS_MAX: usize = 64;

/// An uploaded file.
pub(super) struct File {
    name: String,
    purpose: String,
    content: Bytes,
    created_at: i64,
}

impl File {
    fn show(&self, id: &str) -> Value {
        json!({
            "id": id, "object": "file", "bytes": self.content.len(), "created_at": self.created_at,
            "filename": self.name, "purpose": self.purpose, "status": "processed",
        })
    }
}

impl Provider {
    pub(super) fn upload(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        let kind = placed.call.headers.get("content-type").map(String::as_str).unwrap_or_default();
        let boundary = kind.split("boundary=").nth(1).map(|text| text.trim_matches('"'));
        let boundary = boundary.ok_or_else(|| invalid("the body is no multipart form"))?;
        let parts = multipart(&placed.call.body, boundary);
        let part = |name: &str| parts.iter().find(|part| part.name == name);
        let purpose = part("purpose").ok_or_else(|| invalid("purpose: field required"))?;
        let file = part("file").ok_or_else(|| invalid("file: field required"))?;
        let id = self.id("file-", &file.content);
        let file = File {
            name: file.file_name.clone().unwrap_or_default(),
            purpose: String::from_utf8_lossy(&purpose.content).into_owned(),
            content: file.content.clone(),
            created_at: placed.now,
        };
        let shown = file.show(&id);
        self.files.insert(id, file);
        Ok(Outcome::json(200, shown))
    }

    pub(super) fn list_files(&mut self, placed: &Placed<'_>) -> Outcome {
        let purpose = placed.call.query.get("purpose");
        let mut all: Vec<(&String, &File)> = self
            .files
            .iter()
            .filter(|(_, file)| purpose.is_none_or(|purpose| *purpose == file.purpose))
            .collect();
        all.sort_by_key(|(_, file)| std::cmp::Reverse(file.created_at));
        let data: Vec<Value> = all.into_iter().map(|(id, file)| file.show(id)).collect();
        Outcome::json(200, json!({ "object": "list", "data": data, "has_more": false }))
    }

    pub(super) fn get_file(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        let file = self.files.get(placed.id).ok_or(Fail::status(404))?;
        Ok(Outcome::json(200, file.show(placed.id)))
    }

    pub(super) fn delete_file(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        self.files.remove(placed.id).ok_or(Fail::status(404))?;
        let answer = json!({ "id": placed.id, "object": "file", "deleted": true });
        Ok(Outcome::json(200, answer))
    }

    pub(super) fn file_content(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        if let Some(file) = self.files.get(placed.id) {
            let content = Content::Bytes("application/octet-stream".into(), file.content.clone());
            return Ok(Outcome { content, ..Outcome::json(200, Value::Null) });
        }
        let (kind, batch) = placed
            .id
            .strip_prefix("file-")
            .and_then(|rest| rest.split_once('-'))
            .ok_or(Fail::status(404))?;
        let which = match kind {
            "results" => Lines::Results,
            "errors" => Lines::Errors,
            _ => return Err(Fail::status(404)),
        };
        self.results(&Placed { id: batch, ..*placed }, which)
    }

    pub(super) fn results(&mut self, placed: &Placed<'_>, which: Lines) -> Result<Outcome, Fail> {
        let seed = self.script.seed;
        let batch = self.batch(placed)?;
        if !batch.has_ended() {
            return Err(Fail::status(404));
        }
        let lines = batch.lines(which, seed);
        let cut_after = batch.take_cut();
        let content = Content::Bytes("application/x-jsonl".to_owned(), lines.into());
        Ok(Outcome { content, cut_after, ..Outcome::json(200, Value::Null) })
    }

    pub(super) fn create_batch(
        &mut self,
        placed: &Placed<'_>,
        body: &Value,
    ) -> Result<Outcome, Fail> {
        let plans = &self.script.batches;
        let plan = plans.get(self.batches.len()).or(plans.last()).cloned().unwrap_or_default();
        let prefix = if placed.api == Api::Anthropic { "msgbatch_" } else { "batch_" };
        let id = self.id(prefix, &placed.call.body);
        let mut batch = Batch::new(placed.api, id, placed.now, plan);
        match placed.api {
            Api::Anthropic => self.fill_anthropic(&mut batch, body)?,
            Api::Openai => self.fill_openai(&mut batch, body)?,
        }
        for charge in batch.members.iter().filter_map(|member| member.charge.as_ref()) {
            self.counter.charge(charge);
        }
        for charge in batch.apply_plan() {
            self.counter.refund(&charge);
        }
        let shown = batch.show(&self.base);
        self.batches.push(batch);
        Ok(Outcome::json(200, shown))
    }

    fn fill_anthropic(&mut self, batch: &mut Batch, body: &Value) -> Result<(), Fail> {
        let requests = body.get("requests").and_then(Value::as_array);
        let requests = requests.ok_or_else(|| invalid("requests: field required"))?;
        let mut ids = std::collections::BTreeSet::new();
        for request in requests {
            let id = request.get("custom_id").and_then(Value::as_str).unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if id.is_empty() || id.len() > CUSTOM_ID_CHARS_MAX || !id.chars().all(plain) {
                return Err(invalid(format!("requests.custom_id: {id:?} is not allowed")));
            }
            if !ids.insert(id) {
                return Err(invalid(format!("requests.custom_id: {id:?} is there twice")));
            }
        }
        check_count(Api::Anthropic, requests.len())?;
        for request in requests {
            let id = request["custom_id"].as_str().unwrap_or_default();
            let params = request.get("params").unwrap_or(&Value::Null);
            let member = self.member(batch, id, params);
            batch.members.push(member);
        }
        Ok(())
    }

    fn fill_openai(&mut self, batch: &mut Batch, body: &Value) -> Result<(), Fail> {
        let text = |name: &str| {
            let value = body.get(name).and_then(Value::as_str).map(str::to_owned);
            value.ok_or_else(|| invalid(format!("{name}: field required")))
        };
        batch.input_file = text("input_file_id")?;
        batch.endpoint = text("endpoint")?;
        text("completion_window")?;
        batch.metadata = body.get("metadata").cloned().unwrap_or_default();
        let file = self.files.get(&batch.input_file).ok_or(Fail::status(404))?;
        let content = file.content.clone();
        let lines: Vec<&[u8]> =
            content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        check_count(Api::Openai, lines.len())?;
        let mut ids = std::collections::BTreeSet::new();
        for (index, line) in lines.into_iter().enumerate() {
            let wrong = |code: &str, message: String| json!({ "code": code, "message": message, "param": null, "line": index + 1 });
            let request: Value = match serde_json::from_slice(line) {
                Ok(request) => request,
                Err(error) => {
                    batch.errors.push(wrong("invalid_json_line", error.to_string()));
                    continue;
                }
            };
            let id = request["custom_id"].as_str().unwrap_or_default();
            if id.is_empty() || !ids.insert(id.to_owned()) {
                batch.errors.push(wrong("duplicate_custom_id", format!("custom_id {id:?}")));
                continue;
            }
            if request["url"].as_str() != Some(&batch.endpoint) || request["method"] != "POST" {
                batch.errors.push(wrong("mismatched_url", "method or url".to_owned()));
                continue;
            }
            let member = self.member(batch, id, &request["body"]);
            batch.members.push(member);
        }
        if !batch.errors.is_empty() {
            batch.members.clear();
        }
        Ok(())
    }

    fn member(&mut self, batch: &Batch, custom_id: &str, body: &Value) -> Member {
        let view = View::of(batch.api, Op::BatchMember, body, Some(custom_id));
        let rule = self.take_rule(&view);
        let lane = (PriceLane::Batch, batch.created_at);
        let result = match rule.as_ref().and_then(|rule| rule.fail.clone()) {
            Some(fail) => Err(fail),
            None => self.message(&view, body, rule.as_ref(), lane),
        };
        let (end, charge) = match result {
            Ok((message, charge)) => (MemberEnd::Succeeded(message), Some(charge)),
            Err(fail) => (MemberEnd::Errored(fail), None),
        };
        Member { custom_id: custom_id.to_owned(), end, charge }
    }

    fn batch(&mut self, placed: &Placed<'_>) -> Result<&mut Batch, Fail> {
        let found = self
            .batches
            .iter_mut()
            .find(|batch| batch.api == placed.api && batch.id == placed.id && !batch.plan.vanish);
        found.ok_or(Fail::status(404))
    }

    pub(super) fn get_batch(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        let base = self.base.clone();
        let batch = self.batch(placed)?;
        batch.read(placed.now);
        Ok(Outcome::json(200, batch.show(&base)))
    }

    pub(super) fn cancel_batch(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        let base = self.base.clone();
        let batch = self.batch(placed)?;
        let refunds = batch.cancel(placed.now);
        let shown = batch.show(&base);
        for charge in refunds {
            self.counter.refund(&charge);
        }
        Ok(Outcome::json(200, shown))
    }

    pub(super) fn delete_batch(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        let batch = self.batch(placed)?;
        if !batch.has_ended() {
            return Err(invalid("the batch has not ended; cancel it first"));
        }
        self.batches.retain(|batch| batch.id != placed.id);
        let answer = json!({ "id": placed.id, "type": "message_batch_deleted" });
        Ok(Outcome::json(200, answer))
    }

    pub(super) fn list_batches(&mut self, placed: &Placed<'_>) -> Result<Outcome, Fail> {
        let query = &placed.call.query;
        let limit = match query.get("limit") {
            None => 20,
            Some(text) => text.parse().map_err(|_| invalid("limit: a number is required"))?,
        };
        // The newest first.
        let all: Vec<&Batch> =
            self.batches.iter().rev().filter(|batch| batch.api == placed.api).collect();
        let position = |id: &String| all.iter().position(|batch| batch.id == *id);
        let after = query.get("after_id").or(query.get("after"));
        let start = match after {
            None => 0,
            Some(id) => position(id).ok_or_else(|| invalid("after: no such batch"))? + 1,
        };
        let end = match query.get("before_id") {
            None => all.len(),
            Some(id) => position(id).ok_or_else(|| invalid("before_id: no such batch"))?,
        };
        let page: Vec<&Batch> = all[start.min(end)..end].iter().take(limit).copied().collect();
        let has_more = start + page.len() < end;
        let data: Vec<Value> = page.iter().map(|batch| batch.show(&self.base)).collect();
        let id = |batch: Option<&&Batch>| batch.map(|batch| batch.id.clone());
        Ok(Outcome::json(
            200,
            json!({
                "object": "list", "data": data, "has_more": has_more,
                "first_id": id(page.first()), "last_id": id(page.last()),
            }),
        ))
    }
}

fn check_count(api: Api, count: usize) -> Result<(), Fail> {
    let max = MEMBERS_MAX.iter().find(|(of, _)| *of == api).map_or(0, |(_, max)| *max);
    match count {
        0 => Err(invalid("a batch has at least one request")),
        count if count > max => Err(Fail {
            message: Some(format!("a batch of {count} requests; the limit is {max}")),
            ..Fail::status(413)
        }),
        _ => Ok(()),
    }
}

struct Part {
    name: String,
    file_name: Option<String>,
    content: Bytes,
}

// The parts of a form, without a copy of their content.
fn multipart(body: &Bytes, boundary: &str) -> Vec<Part> {
    let marker = format!("--{boundary}");
    let mut parts = Vec::new();
    let mut at = match find(body, marker.as_bytes()) {
        Some(first) => first + marker.len(),
        None => return parts,
    };
    while let Some(length) = find(&body[at..], marker.as_bytes()) {
        let part = &body[at..at + length];
        if let Some(head_end) = find(part, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&part[..head_end]).into_owned();
            let value = |name: &str| {
                let rest = head.split(&format!("; {name}=\"")).nth(1)?;
                rest.split('"').next().map(str::to_owned)
            };
            // The line break before the next marker is no content.
            let content = at + head_end + 4..at + length.saturating_sub(2);
            if let Some(name) = value("name") {
                parts.push(Part {
                    name,
                    file_name: value("filename"),
                    content: body.slice(content),
                });
            }
        }
        at += length + marker.len();
    }
    parts
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    let first = *part.first()?;
    let mut from = 0;
    while let Some(at) = text.get(from..)?.iter().position(|byte| *byte == first) {
        if text[from + at..].starts_with(part) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}
