//! The script of the scripted provider: rules that match requests and say what happens to them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How many rules a script may have.
pub const RULES_MAX: usize = 10_000;

/// The answers of a scripted provider, as data. The first rule that matches a request and has uses left
/// decides. As JSON, unknown members are refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// The rules, in the order in which they are tried.
    pub rules: Vec<Rule>,
    /// How batches proceed: the n-th created batch follows the n-th plan, and later ones the last plan.
    pub batches: Vec<BatchPlan>,
    /// The API keys that are accepted. Empty: any key that is not empty.
    pub keys: Vec<String>,
    /// A limit on requests and tokens that the server enforces by real time.
    pub rate: Option<RatePlan>,
    /// Orders shuffled results.
    pub seed: u64,
    /// The time that all answers show, in seconds since 1970. None: the time of this machine.
    pub now: Option<i64>,
}

/// The reasons why a script is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError(pub(super) String);

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScriptError {}

impl Script {
    /// A script without rules: every request for a message is refused with status 400.
    pub fn new() -> Self {
        Self::default()
    }

    /// A script that answers every request with the text that it received.
    pub fn echo() -> Self {
        Self::new().rule(Rule::any().text("You said: {{input}}"))
    }

    /// Reads a script.
    ///
    /// ```
    /// use windlass_testkit::scripted_llm::Script;
    ///
    /// let script = Script::from_json(
    ///     r#"{ "rules": [
    ///         { "when": { "last_contains": "weather" }, "answer": { "tools": [{ "name": "weather", "input": { "city": "Oslo" } }] } },
    ///         { "answer": { "text": "You said: {{input}}" } }
    ///     ] }"#,
    /// )?;
    /// assert_eq!(script.rules.len(), 2);
    /// # Ok::<(), windlass_testkit::scripted_llm::ScriptError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The text is no JSON, has an unknown member, or a rule contradicts itself; the error names the rule.
    pub fn from_json(json: &str) -> Result<Self, ScriptError> {
        // An array would be read as a struct whose members all have defaults.
        let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(json);
        let script: Self = object
            .and_then(|_| serde_json::from_str(json))
            .map_err(|error| ScriptError(format!("the script does not read: {error}")))?;
        script.validate()?;
        Ok(script)
    }

    /// Adds a rule.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Adds the plan of the next batch.
    #[must_use]
    pub fn batch(mut self, plan: BatchPlan) -> Self {
        self.batches.push(plan);
        self
    }

    /// Enforces a limit on requests and tokens.
    #[must_use]
    pub fn rate(mut self, rate: RatePlan) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Accepts only this key, beside those that were accepted before.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    pub(super) fn validate(&self) -> Result<(), ScriptError> {
        if self.rules.len() > RULES_MAX {
            let count = self.rules.len();
            return Err(ScriptError(format!(
                "a script of {count} rules; the limit is {RULES_MAX}"
            )));
        }
        for (index, rule) in self.rules.iter().enumerate() {
            rule.validate().map_err(|why| ScriptError(format!("rule {index}: {why}")))?;
        }
        Ok(())
    }
}

/// The reply to the requests that it matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Which requests.
    pub when: When,
    /// How many requests it takes. None: all that match.
    pub times: Option<u32>,
    /// Waits before anything else.
    pub delay_ms: u64,
    /// The message to answer with.
    pub answer: Option<Answer>,
    /// The error to answer with. With a status of 200 it is an error body in a successful answer.
    pub fail: Option<Fail>,
    /// Sends this instead of what belongs to the request.
    pub raw: Option<Raw>,
    /// Cuts the connection.
    pub lose: Option<Lose>,
    /// The body never ends.
    pub endless: bool,
    /// Puts this many bytes in front of the body.
    pub padding_bytes: u64,
    /// How a stream is sent.
    pub stream: Pace,
    /// The server handles and charges the request twice, as if something between had repeated it, and
    /// answers once.
    pub duplicate: bool,
    /// How many reads of a background response show it unfinished.
    pub polls: u32,
}

impl Rule {
    /// A rule for every request for a message.
    pub fn any() -> Self {
        Self::default()
    }

    /// A rule for the requests that match.
    pub fn when(when: When) -> Self {
        Self { when, ..Self::default() }
    }

    /// A rule for one kind of call.
    pub fn op(op: Op) -> Self {
        Self::when(When { op: Some(op), ..When::default() })
    }

    /// Applies to this many requests only.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// Answers with a text. `{{input}}` stands for the last text of the request.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.answer.get_or_insert_default().text = Some(text.into());
        self
    }

    /// Answers with a tool call, after what the answer already has.
    #[must_use]
    pub fn tool(mut self, name: impl Into<String>, input: Value) -> Self {
        let call = ToolCall { name: name.into(), input, id: None };
        self.answer.get_or_insert_default().tools.push(call);
        self
    }

    /// Answers with this message.
    #[must_use]
    pub fn answer(mut self, answer: Answer) -> Self {
        self.answer = Some(answer);
        self
    }

    /// Fails.
    #[must_use]
    pub fn fail(mut self, fail: Fail) -> Self {
        self.fail = Some(fail);
        self
    }

    /// Sends these bytes with this status.
    #[must_use]
    pub fn raw(mut self, status: u16, body: impl Into<String>) -> Self {
        self.raw = Some(Raw { status, body: body.into(), ..Raw::default() });
        self
    }

    /// Cuts the connection.
    #[must_use]
    pub fn lose(mut self, lose: Lose) -> Self {
        self.lose = Some(lose);
        self
    }

    /// Waits first.
    #[must_use]
    pub fn delay_ms(mut self, delay: u64) -> Self {
        self.delay_ms = delay;
        self
    }

    /// Sends a stream in this way.
    #[must_use]
    pub fn stream(mut self, pace: Pace) -> Self {
        self.stream = pace;
        self
    }

    /// Never ends the body.
    #[must_use]
    pub fn endless(mut self) -> Self {
        self.endless = true;
        self
    }

    /// Puts this many bytes in front of the body.
    #[must_use]
    pub fn padding_bytes(mut self, bytes: u64) -> Self {
        self.padding_bytes = bytes;
        self
    }

    /// Handles and charges the request twice.
    #[must_use]
    pub fn duplicate(mut self) -> Self {
        self.duplicate = true;
        self
    }

    fn validate(&self) -> Result<(), String> {
        if self.times == Some(0) {
            return Err("`times` is 0; leave the rule out".to_owned());
        }
        if self.stream.chunk_chars == Some(0) {
            return Err("`stream.chunk_chars` is 0; use 1 or more".to_owned());
        }
        let middle = self.stream.error_after.is_some();
        if self.raw.is_some() && (self.answer.is_some() || self.fail.is_some()) {
            return Err("`raw` and another answer exclude each other".to_owned());
        }
        if self.answer.is_some() && self.fail.is_some() && !middle {
            let why = "`answer` and `fail` exclude each other, except with `stream.error_after`";
            return Err(why.to_owned());
        }
        let does_nothing = self.answer.is_none() && self.fail.is_none() && self.raw.is_none();
        if does_nothing && self.lose.is_none() && self.when.wants_message() {
            return Err("it has none of `answer`, `fail`, `raw` and `lose`".to_owned());
        }
        let statuses = [self.fail.as_ref().map(|f| f.status), self.raw.as_ref().map(|r| r.status)];
        match statuses.into_iter().flatten().find(|status| !(200..=599).contains(status)) {
            Some(status) => Err(format!("the status is {status}; use 200 to 599")),
            None => Ok(()),
        }
    }
}

/// Which requests a rule is for. All members that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// The kind of call. None: a request for a message, live or as a member of a batch.
    pub op: Option<Op>,
    /// The API.
    pub api: Option<Api>,
    /// The requested model. A `*` at the end stands for any rest.
    pub model: Option<String>,
    /// A text that is anywhere in the conversation, the instructions or the tools.
    pub contains: Option<String>,
    /// A text that is in the last message or tool result.
    pub last_contains: Option<String>,
    /// How many turns of the assistant the conversation has.
    pub turn: Option<usize>,
    /// Whether the last message has a tool result.
    pub tool_result: Option<bool>,
    /// The `custom_id` of a member of a batch ends with this text.
    pub custom_id_ends: Option<String>,
}

impl When {
    /// Requests whose last message contains a text.
    pub fn last(text: impl Into<String>) -> Self {
        Self { last_contains: Some(text.into()), ..Self::default() }
    }

    /// Requests with this many turns of the assistant in them.
    pub fn turn(turn: usize) -> Self {
        Self { turn: Some(turn), ..Self::default() }
    }

    fn wants_message(&self) -> bool {
        matches!(self.op, None | Some(Op::Live | Op::BatchMember))
    }
}

/// One of the two APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// Anthropic Messages and Message Batches.
    Anthropic,
    /// OpenAI Responses, files and batches.
    Openai,
}

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A message that is answered at once, or in the background.
    Live,
    /// A member of a batch, when the batch is created.
    BatchMember,
    /// Counts the tokens of a request.
    CountTokens,
    /// Reads a stored response.
    GetResponse,
    /// Cancels a background response.
    CancelResponse,
    /// Creates a batch.
    CreateBatch,
    /// Reads a batch.
    GetBatch,
    /// Lists batches.
    ListBatches,
    /// Cancels a batch.
    CancelBatch,
    /// Deletes a batch.
    DeleteBatch,
    /// Reads the results of a batch (Anthropic).
    BatchResults,
    /// Uploads a file.
    UploadFile,
    /// Lists files.
    ListFiles,
    /// Reads the description of a file.
    GetFile,
    /// Reads a file.
    FileContent,
    /// Deletes a file.
    DeleteFile,
}

/// A message of the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Answer {
    /// Reasoning before the answer.
    pub thinking: Option<String>,
    /// Text. `{{input}}` stands for the last text of the request.
    pub text: Option<String>,
    /// Tool calls.
    pub tools: Vec<ToolCall>,
    /// Content blocks or output items, sent as they are.
    pub blocks: Vec<Value>,
    /// The stop reason in Anthropic's words. None: `tool_use` with tool calls, else `end_turn`.
    pub stop: Option<String>,
    /// The usage. None: counted from the texts, four bytes for each token.
    pub usage: Option<Tokens>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its input.
    #[serde(default)]
    pub input: Value,
    /// The id of the call. None: computed from the request.
    #[serde(default)]
    pub id: Option<String>,
}

/// The usage of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tokens {
    /// Input without what a cache had.
    pub input: u64,
    /// Output.
    pub output: u64,
    /// Input that was written to a cache.
    pub cache_write: u64,
    /// Input that was read from a cache.
    pub cache_read: u64,
}

/// An error of the provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// The HTTP status.
    pub status: u16,
    /// The type of the error. None: the type that belongs to the status.
    #[serde(default)]
    pub kind: Option<String>,
    /// The message.
    #[serde(default)]
    pub message: Option<String>,
    /// `details.error_code` (Anthropic) or `code` (OpenAI).
    #[serde(default)]
    pub code: Option<String>,
    /// Sends `retry-after` with this value: seconds or an HTTP date.
    #[serde(default)]
    pub retry_after: Option<String>,
    /// Sends `retry-after-ms`.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
    /// More headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

impl Fail {
    /// An error with this status.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            kind: None,
            message: None,
            code: None,
            retry_after: None,
            retry_after_ms: None,
            headers: BTreeMap::new(),
        }
    }

    /// Too many requests; try again after so many seconds.
    pub fn rate_limit(retry_after_secs: u64) -> Self {
        Self { retry_after: Some(retry_after_secs.to_string()), ..Self::status(429) }
    }

    /// The provider is overloaded.
    pub fn overloaded() -> Self {
        Self::status(529)
    }

    /// The spend limit of the account is reached. Waiting does not help.
    pub fn spend_limit() -> Self {
        Self { code: Some("enforced_spend_limit_reached".to_owned()), ..Self::status(429) }
    }

    /// The same with a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }
}

/// An answer as bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    /// The HTTP status.
    pub status: u16,
    /// Its `content-type`.
    pub content_type: String,
    /// The body.
    pub body: String,
}

impl Default for Raw {
    fn default() -> Self {
        Self { status: 200, content_type: "application/json".to_owned(), body: String::new() }
    }
}

/// When the connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lose {
    /// Before the request is handled: nothing is charged.
    Before,
    /// After the request is handled and charged, without a byte of the answer.
    After,
    /// After this many bytes of the answer's body.
    AfterBytes(u64),
}

/// How a stream is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pace {
    /// How many characters of text an event has. None: 12.
    pub chunk_chars: Option<usize>,
    /// The time between two events.
    pub chunk_ms: u64,
    /// Sends the error of the rule after this many events, and ends the stream.
    pub error_after: Option<usize>,
    /// Ends the stream after this many events, as if it were complete.
    pub end_after: Option<usize>,
}

/// A limit on requests and tokens in a fixed window of real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatePlan {
    /// Requests in each window.
    pub requests: u64,
    /// Tokens in each window.
    pub tokens: u64,
    /// The length of the window.
    pub window_ms: u64,
}

/// How a batch proceeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchPlan {
    /// How many reads show the batch unfinished. Default 1.
    pub polls: u32,
    /// How it ends.
    pub end: BatchEnd,
    /// How many members have a result when it expires, is cancelled or fails. Default none.
    pub finished: usize,
    /// Sends the results in another order.
    pub shuffle: bool,
    /// Sends every result twice.
    pub duplicate: bool,
    /// Leaves out the results of the last so many members.
    pub missing: usize,
    /// Adds so many results with a `custom_id` that nobody sent.
    pub foreign: usize,
    /// Adds so many lines that are no JSON.
    pub bad_lines: usize,
    /// Cuts the connection after this many bytes of the results, once.
    pub cut_bytes: Option<u64>,
    /// Reads answer 404, as if the batch had never been there.
    pub vanish: bool,
    /// The code of the error when it fails as a whole (OpenAI). None: `scripted_failure`.
    pub code: Option<String>,
    /// The line of the file that this error names, from 1.
    pub line: Option<u64>,
}

impl Default for BatchPlan {
    fn default() -> Self {
        Self {
            polls: 1,
            end: BatchEnd::Complete,
            finished: 0,
            shuffle: false,
            duplicate: false,
            missing: 0,
            foreign: 0,
            bad_lines: 0,
            cut_bytes: None,
            vanish: false,
            code: None,
            line: None,
        }
    }
}

/// How a batch ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchEnd {
    /// Every member has a result.
    #[default]
    Complete,
    /// Members without a result expire.
    Expire,
    /// Somebody else cancels it.
    Cancel,
    /// The batch fails as a whole (OpenAI); of Anthropic, every member is an error.
    Fail,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_contradicts_itself_is_refused() {
        for (json, expect) in [
            ("[]", "does not read"),
            (r#"{"rules":[{"answer":{"txt":"x"}}]}"#, "txt"),
            (r#"{"rules":[{"answer":{"text":"x"}},{}]}"#, "rule 1: it has none of"),
            (r#"{"rules":[{"answer":{},"fail":{"status":500}}]}"#, "exclude each other"),
            (r#"{"rules":[{"fail":{"status":99}}]}"#, "99"),
            (r#"{"rules":[{"answer":{},"times":0}]}"#, "times"),
            (r#"{"rules":[{"when":{"op":"nothing"},"answer":{}}]}"#, "nothing"),
        ] {
            let error = Script::from_json(json).unwrap_err().to_string();
            assert!(error.contains(expect), "{json}: {error}");
        }
    }

    #[test]
    fn a_script_survives_its_own_json() {
        let script = Script::echo()
            .rule(Rule::op(Op::CreateBatch).lose(Lose::AfterBytes(3)).times(1))
            .rule(Rule::any().fail(Fail::rate_limit(3).header("x", "y")))
            .batch(BatchPlan { end: BatchEnd::Expire, ..BatchPlan::default() })
            .rate(RatePlan { requests: 1, tokens: 2, window_ms: 3 });
        let json = serde_json::to_string(&script).unwrap();
        assert_eq!(Script::from_json(&json).unwrap(), script);
    }
}
