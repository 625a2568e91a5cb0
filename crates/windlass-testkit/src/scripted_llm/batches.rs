//! Batches of both APIs: their members, their progress by reads, and the lines of their results.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::report::Charge;
use super::script::{Api, BatchEnd, BatchPlan, Fail};
use super::{anthropic, openai};

/// How long a batch may take, in seconds.
const EXPIRES_AFTER: i64 = 24 * 60 * 60;

pub(super) struct Batch {
    pub(super) id: String,
    pub(super) api: Api,
    pub(super) plan: BatchPlan,
    pub(super) members: Vec<Member>,
    pub(super) created_at: i64,
    pub(super) input_file: String,
    pub(super) endpoint: String,
    pub(super) metadata: Value,
    /// Why the batch as a whole is refused (OpenAI).
    pub(super) errors: Vec<Value>,
    reads: u32,
    cancel_at: Option<i64>,
    ended_at: Option<i64>,
    cut: bool,
}

pub(super) struct Member {
    pub(super) custom_id: String,
    pub(super) end: MemberEnd,
    pub(super) charge: Option<Charge>,
}

pub(super) enum MemberEnd {
    Succeeded(Value),
    Errored(Fail),
    Cancelled,
    Expired,
}

/// Which of the lines of a batch: OpenAI has a file for results and one for errors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lines {
    All,
    Results,
    Errors,
}

impl Batch {
    pub(super) fn new(api: Api, id: String, created_at: i64, plan: BatchPlan) -> Self {
        Self {
            id,
            api,
            plan,
            members: Vec::new(),
            created_at,
            input_file: String::new(),
            endpoint: String::new(),
            metadata: Value::Null,
            errors: Vec::new(),
            reads: 0,
            cancel_at: None,
            ended_at: None,
            cut: false,
        }
    }

    /// Ends members as the plan says. Returns what is not charged after all.
    pub(super) fn apply_plan(&mut self) -> Vec<Charge> {
        if self.plan.end == BatchEnd::Complete {
            return Vec::new();
        }
        let mut refunds = Vec::new();
        for member in self.members.iter_mut().skip(self.plan.finished) {
            refunds.extend(member.charge.take());
            member.end = match self.plan.end {
                BatchEnd::Expire => MemberEnd::Expired,
                BatchEnd::Fail => MemberEnd::Errored(Fail::status(500)),
                _ => MemberEnd::Cancelled,
            };
        }
        refunds
    }

    /// Counts a read. The batch ends when there were enough of them.
    pub(super) fn read(&mut self, now: i64) {
        self.reads += 1;
        let done = self.reads > self.plan.polls || self.cancel_at.is_some();
        if done && self.ended_at.is_none() {
            self.ended_at = Some(now);
        }
    }

    /// Cancels the batch, if it has not ended. Returns what is not charged after all.
    pub(super) fn cancel(&mut self, now: i64) -> Vec<Charge> {
        if self.has_ended() || self.cancel_at.is_some() {
            return Vec::new();
        }
        self.cancel_at = Some(now);
        let cancel = |member: &mut Member| {
            member.end = MemberEnd::Cancelled;
            member.charge.take()
        };
        self.members.iter_mut().filter_map(cancel).collect()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// The batch as JSON. `base` is the address of the server.
    pub(super) fn show(&self, base: &str) -> Value {
        match self.api {
            Api::Anthropic => self.show_anthropic(base),
            Api::Openai => self.show_openai(),
        }
    }

    fn show_anthropic(&self, base: &str) -> Value {
        let status = match (self.has_ended(), self.cancel_at) {
            (true, _) => "ended",
            (false, Some(_)) => "canceling",
            (false, None) => "in_progress",
        };
        let count = |of: fn(&MemberEnd) -> bool| match self.has_ended() {
            true => self.members.iter().filter(|member| of(&member.end)).count(),
            false => 0,
        };
        let results =
            self.has_ended().then(|| format!("{base}/v1/messages/batches/{}/results", self.id));
        json!({
            "id": self.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": {
                "processing": if self.has_ended() { 0 } else { self.members.len() },
                "succeeded": count(|end| matches!(end, MemberEnd::Succeeded(_))),
                "errored": count(|end| matches!(end, MemberEnd::Errored(_))),
                "canceled": count(|end| matches!(end, MemberEnd::Cancelled)),
                "expired": count(|end| matches!(end, MemberEnd::Expired)),
            },
            "created_at": rfc3339(self.created_at),
            "expires_at": rfc3339(self.created_at + EXPIRES_AFTER),
            "ended_at": self.ended_at.map(rfc3339),
            "cancel_initiated_at": self.cancel_at.map(rfc3339),
            "archived_at": null,
            "results_url": results,
        })
    }

    fn show_openai(&self) -> Value {
        let failed = !self.errors.is_empty() || self.plan.end == BatchEnd::Fail;
        let status = match (self.has_ended(), self.cancel_at) {
            (true, Some(_)) => "cancelled",
            (false, Some(_)) => "cancelling",
            (true, None) if failed => "failed",
            (true, None) => match self.plan.end {
                BatchEnd::Expire => "expired",
                BatchEnd::Cancel => "cancelled",
                _ => "completed",
            },
            (false, None) if self.reads == 0 => "validating",
            (false, None) => "in_progress",
        };
        let ok = |member: &&Member| matches!(member.end, MemberEnd::Succeeded(_));
        let completed = self.members.iter().filter(ok).count();
        let failures = self.members.len() - completed;
        let file = |kind: &str, count: usize| {
            (self.has_ended() && count > 0).then(|| format!("file-{kind}-{}", self.id))
        };
        let at = |wanted: &str| (status == wanted).then_some(self.ended_at);
        let errors = match (failed && self.has_ended(), self.errors.is_empty()) {
            (false, _) => Value::Null,
            (true, false) => json!({ "object": "list", "data": self.errors }),
            (true, true) => json!({ "object": "list", "data": [
                { "code": self.plan.code.as_deref().unwrap_or("scripted_failure"),
                  "message": "the script fails this batch", "param": null,
                  "line": self.plan.line },
            ] }),
        };
        json!({
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file,
            "completion_window": "24h",
            "status": status,
            "output_file_id": file("results", completed),
            "error_file_id": file("errors", failures),
            "created_at": self.created_at,
            "in_progress_at": (self.reads > 0).then_some(self.created_at),
            "expires_at": self.created_at + EXPIRES_AFTER,
            "completed_at": at("completed"),
            "failed_at": at("failed"),
            "expired_at": at("expired"),
            "cancelling_at": self.cancel_at,
            "cancelled_at": at("cancelled"),
            "request_counts": {
                "total": self.members.len(),
                "completed": if self.has_ended() { completed } else { 0 },
                "failed": if self.has_ended() { failures } else { 0 },
            },
            "metadata": self.metadata,
        })
    }

    /// Whether this read of the results is cut, and after how many bytes. Only the first one is.
    pub(super) fn take_cut(&mut self) -> Option<u64> {
        let cut = self.plan.cut_bytes.filter(|_| !self.cut);
        self.cut |= cut.is_some();
        cut
    }

    /// The results as JSON Lines.
    pub(super) fn lines(&self, which: Lines, seed: u64) -> String {
        let kept = self.members.len() - self.plan.missing.min(self.members.len());
        let mut lines: Vec<(u64, String)> = Vec::new();
        let order = |id: &str, index: usize| match self.plan.shuffle {
            true => hash(seed, id),
            false => index as u64,
        };
        for (index, member) in self.members[..kept].iter().enumerate() {
            let is_result = matches!(member.end, MemberEnd::Succeeded(_));
            let wanted = match which {
                Lines::All => true,
                Lines::Results => is_result,
                Lines::Errors => !is_result,
            };
            if wanted {
                let line = self.line(&member.custom_id, &member.end).to_string();
                lines.push((order(&member.custom_id, index), line));
            }
        }
        if self.plan.duplicate {
            lines.extend(lines.clone());
        }
        if which != Lines::Errors {
            for index in 0..self.plan.foreign {
                let id = format!("foreign-{index}");
                let line = self.line(&id, &MemberEnd::Expired).to_string();
                lines.push((order(&id, kept), line));
            }
            for index in 0..self.plan.bad_lines {
                let at = order(&format!("bad-{index}"), index);
                lines.push((at, format!("{{\"custom_id\": no JSON {index}")));
            }
        }
        if self.plan.shuffle {
            lines.sort();
        }
        lines.into_iter().map(|(_, line)| line + "\n").collect()
    }

    fn line(&self, custom_id: &str, end: &MemberEnd) -> Value {
        let id = format!("{}-{custom_id}", self.id);
        match self.api {
            Api::Anthropic => {
                let result = match end {
                    MemberEnd::Succeeded(message) => {
                        json!({ "type": "succeeded", "message": message })
                    }
                    MemberEnd::Errored(fail) => {
                        json!({ "type": "errored", "error": anthropic::error(fail, &id) })
                    }
                    MemberEnd::Cancelled => json!({ "type": "canceled" }),
                    MemberEnd::Expired => json!({ "type": "expired" }),
                };
                json!({ "custom_id": custom_id, "result": result })
            }
            Api::Openai => {
                let response = |status: u16, body: &Value| json!({ "status_code": status, "request_id": id, "body": body });
                let error =
                    |code: &str| json!({ "code": code, "message": format!("scripted {code}") });
                let (response, error) = match end {
                    MemberEnd::Succeeded(body) => (response(200, body), Value::Null),
                    MemberEnd::Errored(fail) => {
                        (response(fail.status, &openai::error(fail)), Value::Null)
                    }
                    MemberEnd::Cancelled => (Value::Null, error("batch_cancelled")),
                    MemberEnd::Expired => (Value::Null, error("batch_expired")),
                };
                json!({ "id": id, "custom_id": custom_id, "response": response, "error": error })
            }
        }
    }
}

fn hash(seed: u64, text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, text).hash(&mut hasher);
    hasher.finish()
}

fn rfc3339(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}
