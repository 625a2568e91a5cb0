//! The clients of language models against the scripted provider: answers, streams, errors, broken answers.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agents::{
    AnthropicClient, ClientOptions, NoSink, OpenaiClient, Provider, ProviderError,
    ProviderErrorKind as Kind, ProviderRequest, ProviderResponse, StreamPart, TokenSink, Usage,
};
use windlass_testkit::scripted_llm::{
    Answer, Api, Fail, Lose, Op, Pace, RatePlan, Rule, Script, ScriptedLlm, Tokens, When,
};

const KEY: &str = "sk-planted-s3cret";

struct Pair {
    server: ScriptedLlm,
    clients: [(Api, Box<dyn Provider>); 2],
}

fn pair(script: Script) -> Pair {
    pair_with(script, |options| options)
}

fn pair_with(script: Script, change: impl Fn(ClientOptions) -> ClientOptions) -> Pair {
    let server = ScriptedLlm::start(script.key(KEY)).unwrap();
    let options = || change(ClientOptions::new(KEY).base_url(server.url()));
    let clients: [(Api, Box<dyn Provider>); 2] = [
        (Api::Anthropic, Box::new(AnthropicClient::new(options()).unwrap())),
        (Api::Openai, Box::new(OpenaiClient::new(options()).unwrap())),
    ];
    Pair { server, clients }
}

fn request(api: Api, text: &str, stream: bool) -> ProviderRequest {
    let body = match api {
        Api::Anthropic => {
            json!({ "model": "claude-sonnet-4-5", "max_tokens": 100,
                    "messages": [{ "role": "user", "content": text }] })
        }
        Api::Openai => json!({ "model": "gpt-5", "input": text }),
    };
    ProviderRequest {
        provider: "p".to_owned(),
        model: "m".to_owned(),
        body: body.to_string().into(),
        call_id: "call".to_owned(),
        attempt: 1,
        stream,
    }
}

async fn call(
    client: &(Api, Box<dyn Provider>),
    stream: bool,
) -> Result<ProviderResponse, ProviderError> {
    client.1.call(&request(client.0, "hello", stream), &NoSink).await
}

#[derive(Default)]
struct Parts(Mutex<Vec<String>>);

impl TokenSink for Parts {
    fn part(&self, part: StreamPart<'_>) {
        self.0.lock().unwrap().push(match part {
            StreamPart::Text(text) => format!("text {text}"),
            StreamPart::Thinking(text) => format!("thinking {text}"),
            StreamPart::ToolUse { name, .. } => format!("tool {name}"),
            StreamPart::ToolInput(text) => format!("input {text}"),
        });
    }
}

fn rich_answer() -> Answer {
    let block = json!({ "z": [1.50, { "b": null }], "type": "new_block", "a": "\u{e9}" });
    Answer {
        thinking: Some("let me think about it".to_owned()),
        usage: Some(Tokens { input: 10, output: 20, cache_write: 0, cache_read: 30 }),
        blocks: vec![block],
        ..Rule::any()
            .text("You said: {{input}}")
            .tool("weather", json!({ "city": "Oslo" }))
            .answer
            .unwrap()
    }
}

#[tokio::test]
async fn a_stream_amounts_to_the_same_response_as_one_body() {
    let pair = pair(Script::new().rule(
        Rule::any().answer(rich_answer()).stream(Pace { chunk_chars: Some(3), ..Pace::default() }),
    ));
    for client in &pair.clients {
        let parts = Parts::default();
        let whole = call(client, false).await.unwrap();
        let streamed = client.1.call(&request(client.0, "hello", true), &parts).await.unwrap();
        let usage = Usage {
            input_tokens: 10,
            output_tokens: 20,
            cache_read_input_tokens: 30,
            ..Usage::default()
        };
        for response in [&whole, &streamed] {
            assert_eq!(response.usage, usage, "{:?}", client.0);
            assert_eq!(response.content.len(), 4);
            assert_eq!(response.request_id.as_deref(), Some("req_scripted"));
        }
        assert_eq!(whole.stop_reason, streamed.stop_reason);
        let bare = |response: &ProviderResponse| {
            let mut text = String::from_utf8(response.body.to_vec()).unwrap();
            // The second message has ids of its own.
            for piece in response.message_id.as_deref().unwrap().split('_').skip(1) {
                text = text.replace(piece, "ID");
            }
            serde_json::from_str::<Value>(&text).unwrap()
        };
        assert_eq!(bare(&whole), bare(&streamed), "{:?}", client.0);
        let heard = parts.0.into_inner().unwrap();
        let joined = |kind: &str| -> String {
            heard.iter().filter_map(|part| part.strip_prefix(kind)).collect()
        };
        assert_eq!(joined("text "), "You said: hello");
        assert_eq!(joined("thinking "), "let me think about it");
        assert_eq!(joined("tool "), "weather");
        assert_eq!(joined("input "), r#"{"city":"Oslo"}"#);
    }
}

#[tokio::test]
async fn blocks_that_nobody_knows_and_signatures_keep_their_bytes() {
    let body = r#"{"id":"m","type":"message","role":"assistant","model":"x","content":[ {"type":"thinking","signature":"S==","thinking":"t"},{"b": 1.0,"type":"future","a":"\u0041"} ],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":2},"new":{}}"#;
    let server = ScriptedLlm::start(Script::new().rule(Rule::any().raw(200, body))).unwrap();
    let options = ClientOptions::new(KEY).base_url(server.url());
    let client = AnthropicClient::new(options).unwrap();
    let response = client.call(&request(Api::Anthropic, "x", false), &NoSink).await.unwrap();
    assert_eq!(response.body, body);
    let blocks: Vec<&str> = response.content.iter().map(|block| block.get()).collect();
    assert_eq!(
        blocks,
        [
            r#"{"type":"thinking","signature":"S==","thinking":"t"}"#,
            r#"{"b": 1.0,"type":"future","a":"\u0041"}"#
        ]
    );
    // A stream keeps the bytes of a block that came whole, too.
    let events = [
        r#"{"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":3,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"b": 1.0,"type":"future","a":"\u0041"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"event_of_tomorrow"}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"pause_turn","stop_details":{"x":1}},"usage":{"output_tokens":9}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    let stream: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let mut rule = Rule::any().raw(200, stream);
    rule.raw.as_mut().unwrap().content_type = "text/event-stream".to_owned();
    let server = ScriptedLlm::start(Script::new().rule(rule)).unwrap();
    let options = ClientOptions::new(KEY).base_url(server.url());
    let client = AnthropicClient::new(options).unwrap();
    let response = client.call(&request(Api::Anthropic, "x", true), &NoSink).await.unwrap();
    assert_eq!(response.content[0].get(), blocks[1]);
    assert_eq!(response.stop_reason.as_deref(), Some("pause_turn"));
    assert_eq!((response.usage.input_tokens, response.usage.output_tokens), (3, 9));
    assert!(String::from_utf8_lossy(&response.body).contains(r#""stop_details":{"x":1}"#));
}

#[tokio::test]
async fn the_bytes_of_a_request_are_sent_as_they_are() {
    let pair = pair(Script::echo());
    for client in &pair.clients {
        let mut sent = request(client.0, "hello", false);
        let text = String::from_utf8(sent.body.to_vec()).unwrap();
        sent.body = text.replace("{\"", "{ \"unknown\" : 1.0 ,\"").into();
        client.1.call(&sent, &NoSink).await.unwrap();
        assert_eq!(pair.server.seen().last().unwrap().body, sent.body);
        sent.stream = true;
        client.1.call(&sent, &NoSink).await.unwrap();
        let streamed = pair.server.seen().last().unwrap().body.clone();
        let text = String::from_utf8(streamed.to_vec()).unwrap();
        assert_eq!(text.replacen("{\"stream\":true,", "{", 1), sent.body);
    }
}

#[tokio::test]
async fn every_error_has_its_kind() {
    let token_limit = Fail {
        message: Some("this exceeds 30000 input tokens per minute".to_owned()),
        ..Fail::rate_limit(3)
    };
    for (fail, kind, after) in [
        (Fail::rate_limit(3), Kind::RequestRateLimited, Some(3)),
        (token_limit, Kind::TokenRateLimited, Some(3)),
        (Fail::overloaded(), Kind::Overloaded, None),
        (Fail::spend_limit(), Kind::SpendLimitReached, None),
        (
            Fail { kind: Some("billing_error".into()), ..Fail::status(400) },
            Kind::SpendLimitReached,
            None,
        ),
        (Fail::status(400), Kind::Invalid, None),
        (Fail::status(401), Kind::Invalid, None),
        (Fail::status(403), Kind::Invalid, None),
        (Fail::status(404), Kind::Invalid, None),
        (Fail::status(413), Kind::Invalid, None),
        (Fail::status(500), Kind::Retryable, None),
        (Fail::status(503), Kind::Retryable, None),
        (Fail::status(504), Kind::UnknownOutcome, None),
        (Fail::status(500).header("x-should-retry", "false"), Kind::Invalid, None),
        (Fail::status(400).header("x-should-retry", "true"), Kind::Retryable, None),
        (
            Fail { kind: Some("overloaded_error".into()), ..Fail::status(200) },
            Kind::Overloaded,
            None,
        ),
        (
            Fail { kind: Some("invalid_request_error".into()), ..Fail::status(200) },
            Kind::Invalid,
            None,
        ),
        (Fail { kind: Some("api_error".into()), ..Fail::status(200) }, Kind::UnknownOutcome, None),
    ] {
        let echoed =
            Fail { message: fail.message.clone().or(Some(format!("no {KEY}"))), ..fail.clone() };
        let pair = pair(Script::new().rule(Rule::any().fail(echoed)));
        for client in &pair.clients {
            for stream in [false, true] {
                let error = call(client, stream).await.unwrap_err();
                let what = format!("{:?} {fail:?} {error:?}", client.0);
                assert_eq!(error.kind(), kind, "{what}");
                assert_eq!(error.status(), Some(fail.status), "{what}");
                assert_eq!(error.retry_after(), after.map(Duration::from_secs), "{what}");
                assert_eq!(error.request_id(), Some("req_scripted"), "{what}");
                assert!(
                    !what.contains("s3cret") && !error.to_string().contains("s3cret"),
                    "{what}"
                );
            }
        }
        assert_eq!(pair.server.report().money.0, 0);
    }
}

#[tokio::test]
async fn broken_answers_are_typed_errors() {
    let answer = || Rule::any().text("a long answer of many words, sent in many small pieces");
    let pace = |end_after, error_after| Pace { end_after, error_after, ..Pace::default() };
    let fail = Fail { kind: Some("overloaded_error".into()), ..Fail::status(529) };
    let openai_fail = Fail { code: Some("server_is_overloaded".into()), ..fail };
    for (rule, stream, kind, part) in [
        (Rule::any().lose(Lose::Before), false, Kind::UnknownOutcome, "closed the connection"),
        (answer().lose(Lose::After), false, Kind::UnknownOutcome, "closed the connection"),
        (answer().lose(Lose::After), true, Kind::UnknownOutcome, "closed the connection"),
        (answer().lose(Lose::AfterBytes(40)), false, Kind::UnknownOutcome, "closed the connection"),
        (answer().lose(Lose::AfterBytes(400)), true, Kind::UnknownOutcome, "closed the connection"),
        (answer().stream(pace(Some(4), None)), true, Kind::UnknownOutcome, "ended before"),
        (
            answer().fail(openai_fail).stream(pace(None, Some(3))),
            true,
            Kind::Overloaded,
            "overloaded",
        ),
        (
            Rule::any().raw(200, "{\"id\":\"x\",\"con"),
            false,
            Kind::InvalidResponse,
            "cannot be read",
        ),
        (Rule::any().raw(200, ""), false, Kind::InvalidResponse, "cannot be read"),
        (Rule::any().raw(200, "[]"), false, Kind::InvalidResponse, "cannot be read"),
        (
            Rule::any().raw(200, r#"{"content":"x","output":7,"status":"completed"}"#),
            false,
            Kind::InvalidResponse,
            "cannot be read",
        ),
        (
            Rule::any().raw(200, r#"{"content":["x"],"output":["x"],"status":"completed"}"#),
            false,
            Kind::InvalidResponse,
            "no object",
        ),
        (answer().padding_bytes(50 << 20), false, Kind::InvalidResponse, "`answer_bytes_max`"),
        (answer().padding_bytes(50 << 20), true, Kind::InvalidResponse, "`answer_bytes_max`"),
        (answer().endless(), false, Kind::InvalidResponse, "`answer_bytes_max`"),
        (answer().endless(), true, Kind::InvalidResponse, "`answer_bytes_max`"),
        (Rule::any().raw(302, ""), false, Kind::Invalid, "refused"),
    ] {
        let pair = pair_with(Script::new().rule(rule.clone()), |options| {
            options.answer_bytes_max(1 << 20)
        });
        for client in &pair.clients {
            let error = call(client, stream).await.unwrap_err();
            let what = format!("{:?} {rule:?}: {error:?}", client.0);
            assert_eq!(error.kind(), kind, "{what}");
            assert!(error.message().contains(part), "{what}");
        }
        let lost = rule.lose.is_some();
        assert_eq!(pair.server.report().lost > 0, lost);
    }
}

#[tokio::test]
async fn a_slow_or_endless_stream_ends_with_the_timeout() {
    let slow = Pace { chunk_ms: 3_600_000, ..Pace::default() };
    for rule in [Rule::any().text("x").stream(slow), Rule::any().text("x").delay_ms(3_600_000)] {
        let pair = pair_with(Script::new().rule(rule), |options| {
            options.timeout(Duration::from_millis(100)).unwrap()
        });
        for client in &pair.clients {
            let error = call(client, true).await.unwrap_err();
            assert_eq!(error.kind(), Kind::UnknownOutcome, "{error:?}");
            assert!(error.message().contains("within 100ms"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_provider_that_is_not_there_was_not_paid() {
    let server = ScriptedLlm::start(Script::echo()).unwrap();
    let options = ClientOptions::new(KEY).base_url(server.url());
    drop(server);
    let client = AnthropicClient::new(options).unwrap();
    let error = client.call(&request(Api::Anthropic, "x", false), &NoSink).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Retryable, "{error:?}");
    assert!(!error.kind().may_be_paid());
}

#[tokio::test]
async fn rate_limits_of_answers_are_read() {
    let plan = RatePlan { requests: 1, tokens: 1_000, window_ms: 3_600_000 };
    for at in [0, 1] {
        let pair = pair(Script::echo().rate(plan));
        let client = &pair.clients[at];
        let limits = call(client, false).await.unwrap().rate_limits;
        let requests = limits.requests.unwrap();
        assert_eq!((requests.limit, requests.remaining), (Some(1), Some(0)), "{:?}", client.0);
        assert!(requests.reset_after.unwrap() > Duration::from_secs(60));
        assert_eq!(limits.tokens.unwrap().limit, Some(1_000));
        let error = call(client, false).await.unwrap_err();
        assert_eq!(error.kind(), Kind::RequestRateLimited);
        assert!(error.retry_after().unwrap() > Duration::from_secs(60));
    }
}

#[tokio::test]
async fn tokens_are_counted_without_a_message() {
    let server = ScriptedLlm::start(Script::new()).unwrap();
    let options = || ClientOptions::new(KEY).base_url(server.url());
    let anthropic = AnthropicClient::new(options()).unwrap();
    let openai = OpenaiClient::new(options()).unwrap();
    let body = |api| request(api, "four words are here", false).body;
    assert!(anthropic.count_tokens(body(Api::Anthropic)).await.unwrap() > 0);
    assert!(openai.count_tokens(body(Api::Openai)).await.unwrap() > 0);
    assert_eq!(server.report().count(Op::CountTokens), 2);
    assert_eq!(server.report().messages, 0);
}

#[tokio::test]
async fn a_response_in_the_background_is_read_until_it_has_finished() {
    let rule = Rule { polls: 1, ..Rule::any().text("done") };
    let server = ScriptedLlm::start(Script::new().rule(rule)).unwrap();
    let client = OpenaiClient::new(ClientOptions::new(KEY).base_url(server.url())).unwrap();
    let mut sent = request(Api::Openai, "x", false);
    sent.body = r#"{"model":"gpt-5","input":"x","background":true}"#.into();
    let response = client.call(&sent, &NoSink).await.unwrap();
    assert_eq!(response.stop_reason.as_deref(), Some("completed"));
    let id = response.message_id.unwrap();
    assert!(client.response(&id).await.unwrap().is_some());
    assert!(server.report().count(Op::GetResponse) >= 3);
    client.cancel_response(&id).await.unwrap();
    assert_eq!(client.response("resp_other").await.unwrap_err().status(), Some(404));
}

#[tokio::test]
async fn what_was_asked_is_counted_as_money() {
    let usage = Tokens { input: 1_000, output: 100, ..Tokens::default() };
    let answer = Answer { text: Some("x".into()), usage: Some(usage), ..Answer::default() };
    let script = Script::new()
        .rule(Rule::when(When::last("twice")).answer(answer.clone()).duplicate())
        .rule(Rule::when(When::last("lost")).answer(answer.clone()).lose(Lose::After))
        .rule(Rule::any().answer(answer));
    let pair = pair(script);
    // 1,000 input tokens for $3 and 100 output tokens for $15 a million.
    let each = 4_500_000;
    for (text, total) in [("once", each), ("twice", 3 * each), ("lost", 4 * each)] {
        let client = &pair.clients[0];
        let _ = client.1.call(&request(client.0, text, false), &NoSink).await;
        assert_eq!(pair.server.report().money.0, total, "{text}");
    }
    let report = pair.server.report();
    assert_eq!((report.messages, report.lost, report.count(Op::Live)), (4, 1, 3));
    assert_eq!(report.money_by_model["claude-sonnet-4-5"], report.money);
}

#[test]
fn clients_without_a_usable_key_or_address_are_refused() {
    for (options, code) in [
        (ClientOptions::new(""), "INVALID_OPTION"),
        (ClientOptions::new("a\nb"), "INVALID_HEADER"),
        (ClientOptions::new(KEY).base_url("http://example.com"), "INVALID_URL"),
        (ClientOptions::new(KEY).header("a b", "c"), "INVALID_HEADER"),
    ] {
        let error = AnthropicClient::new(options).unwrap_err();
        assert_eq!(error.code(), code);
        assert!(!format!("{error:?}").contains("s3cret"));
    }
    let client = OpenaiClient::new(ClientOptions::new(KEY)).unwrap();
    assert!(!format!("{client:?} {:?}", client.key()).contains("s3cret"));
    let error =
        ClientOptions::from_env("WINDLASS_NO_SUCH_KEY", "WINDLASS_NO_SUCH_URL").unwrap_err();
    assert!(error.message().contains("WINDLASS_NO_SUCH_KEY"));
}
