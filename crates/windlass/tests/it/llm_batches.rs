//! Batches of both providers against the scripted provider, with results that are late, cut, repeated,
//! foreign and broken.

use std::collections::BTreeMap;

use serde_json::json;
use windlass::agents::batches::{
    Arrival, Batch, BatchRequest, BatchState, Expected, MemberEnd, ResultLine, Results,
};
use windlass::agents::{AnthropicClient, ClientOptions, OpenaiClient, ProviderErrorKind as Kind};
use windlass_testkit::scripted_llm::{
    BatchEnd, BatchPlan, Fail, Lose, Op, Rule, Script, ScriptedLlm, When,
};

struct Clients {
    server: ScriptedLlm,
    anthropic: AnthropicClient,
    openai: OpenaiClient,
}

fn clients(script: Script) -> Clients {
    let server = ScriptedLlm::start(script).unwrap();
    let options = || ClientOptions::new("key").base_url(server.url()).answer_bytes_max(1 << 20);
    let anthropic = AnthropicClient::new(options()).unwrap();
    let openai = OpenaiClient::new(options()).unwrap();
    Clients { server, anthropic, openai }
}

fn anthropic_requests(count: usize) -> Vec<BatchRequest> {
    let body = |n: usize| json!({ "model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{ "role": "user", "content": format!("number {n}") }] });
    (0..count)
        .map(|n| BatchRequest { custom_id: format!("r-{n}"), body: body(n).to_string().into() })
        .collect()
}

fn openai_requests(count: usize) -> Vec<BatchRequest> {
    let body = |n: usize| format!("{{\n\"model\":\"gpt-5\",\r\n\"input\":\"number {n}\"}}");
    (0..count).map(|n| BatchRequest { custom_id: format!("r-{n}"), body: body(n).into() }).collect()
}

impl Clients {
    // A batch of each provider, read until it has ended.
    async fn ended(&self, count: usize) -> (Batch, Batch) {
        let mut first = self.anthropic.create_batch(&anthropic_requests(count)).await.unwrap();
        let file =
            self.openai.upload_batch("intent-1.jsonl", &openai_requests(count)).await.unwrap();
        let notes = BTreeMap::from([("windlass_intent".to_owned(), "1".to_owned())]);
        let mut second = self.openai.create_batch(&file.id, &notes).await.unwrap();
        assert!(!first.state.is_final() && !second.state.is_final());
        assert_eq!(second.metadata, notes);
        assert_eq!(second.input_file, Some(file.id));
        while !first.state.is_final() {
            first = self.anthropic.batch(&first.id).await.unwrap();
        }
        while !second.state.is_final() {
            second = self.openai.batch(&second.id).await.unwrap();
        }
        (first, second)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    succeeded: usize,
    errored: usize,
    cancelled: usize,
    expired: usize,
    duplicate: usize,
    unknown: usize,
    bad: usize,
    missing: usize,
}

async fn tally(mut results: Results<'_>, count: usize) -> Result<Tally, Kind> {
    let mut expected = Expected::new((0..count).map(|n| format!("r-{n}")));
    let mut tally = Tally::default();
    while let Some(line) = results.next().await.map_err(|error| error.kind())? {
        let member = match line {
            ResultLine::Bad { line, why } => {
                assert!(line > 0 && !why.is_empty());
                tally.bad += 1;
                continue;
            }
            ResultLine::Member(member) => member,
        };
        match expected.take(&member.custom_id) {
            Arrival::Duplicate => tally.duplicate += 1,
            Arrival::Unknown => tally.unknown += 1,
            Arrival::First => match member.end {
                MemberEnd::Succeeded(response) => {
                    let number = member.custom_id.trim_start_matches("r-");
                    let text = String::from_utf8_lossy(&response.body).into_owned();
                    assert!(text.contains(&format!("You said: number {number}\"")), "{text}");
                    assert!(response.usage.input_tokens > 0 && response.message_id.is_some());
                    tally.succeeded += 1;
                }
                MemberEnd::Errored(error) => {
                    assert_eq!(error.kind(), Kind::Overloaded);
                    tally.errored += 1;
                }
                MemberEnd::Cancelled => tally.cancelled += 1,
                MemberEnd::Expired => tally.expired += 1,
            },
        }
    }
    tally.missing = expected.missing().count();
    Ok(tally)
}

#[tokio::test]
async fn results_are_read_whatever_the_provider_does_to_them() {
    let expire = |finished| BatchPlan { end: BatchEnd::Expire, finished, ..BatchPlan::default() };
    for (plan, expect) in [
        (BatchPlan::default(), Tally { succeeded: 9, errored: 1, ..Tally::default() }),
        (
            BatchPlan { polls: 5, ..BatchPlan::default() },
            Tally { succeeded: 9, errored: 1, ..Tally::default() },
        ),
        (
            BatchPlan { shuffle: true, duplicate: true, ..BatchPlan::default() },
            Tally { succeeded: 9, errored: 1, duplicate: 10, ..Tally::default() },
        ),
        (
            BatchPlan { missing: 2, foreign: 3, bad_lines: 2, ..BatchPlan::default() },
            Tally { succeeded: 7, errored: 1, missing: 2, unknown: 3, bad: 2, ..Tally::default() },
        ),
        (expire(4), Tally { succeeded: 3, errored: 1, expired: 6, ..Tally::default() }),
        (
            BatchPlan { end: BatchEnd::Cancel, finished: 4, ..BatchPlan::default() },
            Tally { succeeded: 3, errored: 1, cancelled: 6, ..Tally::default() },
        ),
    ] {
        let failing = When { custom_id_ends: Some("-2".into()), ..When::default() };
        let script = Script::echo().batch(plan.clone());
        let script = Script {
            rules: [vec![Rule::when(failing).fail(Fail::overloaded())], script.rules.clone()]
                .concat(),
            ..script
        };
        let clients = clients(script);
        let (first, second) = clients.ended(10).await;
        assert_eq!(first.state, BatchState::Ended);
        assert_eq!(first.counts.total(), 10);
        let openai_end = match plan.end {
            BatchEnd::Expire => BatchState::Expired,
            BatchEnd::Cancel => BatchState::Cancelled,
            _ => BatchState::Ended,
        };
        assert_eq!(second.state, openai_end);
        let found = tally(clients.anthropic.batch_results(&first), 10).await;
        assert_eq!(found.as_ref(), Ok(&expect), "anthropic {plan:?}");
        let found = tally(clients.openai.batch_results(&second), 10).await;
        assert_eq!(found.as_ref(), Ok(&expect), "openai {plan:?}");
        assert_eq!(
            clients.server.report().messages as usize,
            2 * (expect.succeeded + expect.missing)
        );
    }
}

#[tokio::test]
async fn results_that_are_cut_are_read_again_from_the_start() {
    let plan = BatchPlan { cut_bytes: Some(1_500), ..BatchPlan::default() };
    let clients = clients(Script::echo().batch(plan));
    let (first, second) = clients.ended(20).await;
    let whole = Tally { succeeded: 20, ..Tally::default() };
    let cut = Err(Kind::UnknownOutcome);
    assert_eq!(tally(clients.anthropic.batch_results(&first), 20).await, cut);
    assert_eq!(tally(clients.anthropic.batch_results(&first), 20).await.as_ref(), Ok(&whole));
    assert_eq!(tally(clients.openai.batch_results(&second), 20).await, cut);
    assert_eq!(tally(clients.openai.batch_results(&second), 20).await, Ok(whole));
}

#[tokio::test]
async fn a_line_over_the_limit_is_a_bad_line_and_the_others_are_read() {
    let long = When { custom_id_ends: Some("-1".into()), ..When::default() };
    let script = Script::new()
        .rule(Rule::when(long).text("x".repeat(3 << 20)))
        .rule(Rule::any().text("You said: {{input}}"));
    let clients = clients(script);
    let (first, second) = clients.ended(3).await;
    let expect = Tally { succeeded: 2, bad: 1, missing: 1, ..Tally::default() };
    assert_eq!(tally(clients.anthropic.batch_results(&first), 3).await.as_ref(), Ok(&expect));
    assert_eq!(tally(clients.openai.batch_results(&second), 3).await, Ok(expect));
}

#[tokio::test]
async fn a_batch_whose_creation_got_no_answer_is_found_again() {
    let script = Script::echo().rule(Rule::op(Op::CreateBatch).lose(Lose::After));
    let clients = clients(script);
    let error = clients.anthropic.create_batch(&anthropic_requests(3)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::UnknownOutcome);
    let page = clients.anthropic.batches(100, None).await.unwrap();
    assert_eq!(page.batches[0].counts.total(), 3);
    let file = clients.openai.upload_batch("intent-7.jsonl", &openai_requests(3)).await.unwrap();
    assert_eq!(clients.openai.batch_files().await.unwrap(), std::slice::from_ref(&file));
    let notes = BTreeMap::from([("windlass_intent".to_owned(), "7".to_owned())]);
    let error = clients.openai.create_batch(&file.id, &notes).await.unwrap_err();
    assert_eq!(error.kind(), Kind::UnknownOutcome);
    let page = clients.openai.batches(100, None).await.unwrap();
    assert_eq!(page.batches[0].metadata, notes);
    clients.openai.delete_file(&file.id).await.unwrap();
    assert_eq!(clients.openai.batch_files().await.unwrap(), []);
}

#[tokio::test]
async fn batches_are_listed_page_by_page_cancelled_and_deleted() {
    let plan = BatchPlan { polls: 100, ..BatchPlan::default() };
    let clients = clients(Script::echo().batch(plan));
    let mut ids = Vec::new();
    for count in 1..=5 {
        let batch = clients.anthropic.create_batch(&anthropic_requests(count)).await.unwrap();
        ids.push(batch.id);
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = clients.anthropic.batches(2, after.as_deref()).await.unwrap();
        found.extend(page.batches.into_iter().map(|batch| batch.id));
        after = page.after;
        if after.is_none() {
            break;
        }
    }
    ids.reverse();
    assert_eq!(found, ids);
    let money = clients.server.report().money;
    let cancelled = clients.anthropic.cancel_batch(&ids[0]).await.unwrap();
    assert_eq!(cancelled.state, BatchState::Cancelling);
    assert!(clients.server.report().money < money, "what is cancelled is not paid");
    assert!(clients.anthropic.delete_batch(&ids[1]).await.is_err(), "it has not ended");
    let ended = clients.anthropic.batch(&ids[0]).await.unwrap();
    assert_eq!((ended.state, ended.counts.cancelled), (BatchState::Ended, 5));
    clients.anthropic.delete_batch(&ids[0]).await.unwrap();
    assert_eq!(clients.anthropic.batch(&ids[0]).await.unwrap_err().status(), Some(404));
    let file = clients.openai.upload_batch("f", &openai_requests(2)).await.unwrap();
    let batch = clients.openai.create_batch(&file.id, &BTreeMap::new()).await.unwrap();
    let batch = clients.openai.cancel_batch(&batch.id).await.unwrap();
    assert_eq!(batch.state, BatchState::Cancelling);
    assert_eq!(clients.openai.batch(&batch.id).await.unwrap().state, BatchState::Cancelled);
}

#[tokio::test]
async fn a_batch_that_failed_or_vanished_says_so() {
    let failed = BatchPlan { end: BatchEnd::Fail, polls: 0, ..BatchPlan::default() };
    let vanished = BatchPlan { vanish: true, ..BatchPlan::default() };
    let clients = clients(Script::echo().batch(failed).batch(vanished));
    let file = clients.openai.upload_batch("f", &openai_requests(2)).await.unwrap();
    let batch = clients.openai.create_batch(&file.id, &BTreeMap::new()).await.unwrap();
    let batch = clients.openai.batch(&batch.id).await.unwrap();
    assert_eq!(batch.state, BatchState::Failed);
    assert_eq!(batch.errors[0].code, "scripted_failure");
    let batch = clients.anthropic.create_batch(&anthropic_requests(2)).await.unwrap();
    assert_eq!(clients.anthropic.batch(&batch.id).await.unwrap_err().status(), Some(404));
    let foreign = Batch { results: vec!["http://127.0.0.1:1/results".to_owned()], ..batch };
    let error = clients.anthropic.batch_results(&foreign).next().await.unwrap_err();
    assert!(error.message().contains("another host"), "the key stays here: {error}");
}
