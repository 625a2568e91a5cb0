//! The loop of an agent against the scripted provider: tools, ends, long conversations, sub-agents.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, AgentLoop, AnthropicClient, ClientOptions, OpenaiClient, Overflow, SubAgent, Tool,
    ToolContext, ToolOutput,
};
use windlass::{AnyError, Engine};
use windlass_testkit::scripted_llm::{Answer, Api, Fail, Rule, Script, ScriptedLlm, When};

use crate::agents_fixtures::{at_once, tree_events};
use crate::harness::{Harness, on_every_store};

on_every_store!(
    a_loop_calls_tools_until_the_model_has_finished,
    a_loop_ends_with_a_code,
    a_conversation_that_is_too_long_is_compacted,
    a_model_calls_sub_agents,
);

const MODEL: &str = "claude-sonnet-4-5";

struct Add;

impl Tool for Add {
    type Input = serde_json::Map<String, Value>;

    fn name(&self) -> &str {
        "add"
    }

    fn description(&self) -> &str {
        "Adds two numbers."
    }

    async fn call(&self, _: ToolContext, input: Self::Input) -> Result<ToolOutput, AnyError> {
        let number = |name: &str| input.get(name).and_then(Value::as_i64).unwrap_or(0);
        Ok(ToolOutput::new(number("a") + number("b")))
    }
}

fn tool_result() -> When {
    When { tool_result: Some(true), ..When::default() }
}

fn stop(reason: &str) -> Rule {
    let answer = Answer { text: Some("so".into()), stop: Some(reason.into()), ..Answer::default() };
    Rule::any().answer(answer)
}

fn anthropic(server: &ScriptedLlm) -> Arc<AnthropicClient> {
    let options = ClientOptions::new("key").base_url(server.url());
    Arc::new(AnthropicClient::new(options).unwrap())
}

fn agent(spec: AgentLoop, server: &ScriptedLlm) -> Agent {
    Agent::new("loops", "main")
        .agent_loop(spec)
        .tool(Add)
        .output("answer")
        .retry_policy(at_once(1))
        .provider(anthropic(server))
}

fn main_loop() -> AgentLoop {
    AgentLoop::new("main", "anthropic", MODEL).param("max_tokens", 500).system("You calculate.")
}

async fn run(engine: &Engine, agent: Agent) -> Result<Value, windlass::Error> {
    let loops = engine.agent(agent).unwrap();
    loops.start(json!({ "prompt": "1 + 2?" })).await.unwrap().result().await
}

async fn a_loop_calls_tools_until_the_model_has_finished(h: Arc<Harness>) {
    for api in [Api::Anthropic, Api::Openai] {
        let engine = h.engine().await;
        let script = Script::new().rule(Rule::when(tool_result()).text("It is {{input}}")).rule(
            Rule::any()
                .tool("add", json!({ "a": 1, "b": 2 }))
                .tool("add", json!({ "a": 3, "b": 4 })),
        );
        let server = ScriptedLlm::start(script).unwrap();
        let agent = match api {
            Api::Anthropic => agent(main_loop(), &server),
            Api::Openai => {
                let options = ClientOptions::new("key").base_url(server.url());
                let client = Arc::new(OpenaiClient::new(options).unwrap());
                let spec = AgentLoop::new("main", "openai", "gpt-5").system("You calculate.");
                let agent = Agent::new("loops", "main").agent_loop(spec).tool(Add);
                agent.output("answer").provider(client)
            }
        };
        let answer = run(&engine, agent).await.unwrap();
        assert!(answer.as_str().unwrap().starts_with("It is "), "{answer}");
        let asked = server.seen();
        assert_eq!(asked.len(), 2);
        let body: Value = serde_json::from_slice(&asked[1].body).unwrap();
        assert!(body["tools"].to_string().contains("Adds two numbers."), "{body}");
        let text = String::from_utf8_lossy(&asked[1].body).into_owned();
        assert!(text.contains("\"3\"") && text.contains("\"7\""), "{text}");
        h.stop(&engine).await;
    }
}

async fn a_loop_ends_with_a_code(h: Arc<Harness>) {
    let long = Fail { message: Some("prompt is too long: 9 > 8".into()), ..Fail::status(400) };
    let endless = Rule::any().tool("add", json!({ "a": 1 }));
    for (rules, expect) in [
        (vec![endless.clone()], Err("AGENT_TURN_LIMIT")),
        (vec![stop("refusal")], Err("AGENT_REFUSED")),
        (vec![stop("max_tokens")], Err("AGENT_OUTPUT_LIMIT")),
        (vec![stop("model_context_window_exceeded")], Err("AGENT_CONTEXT_OVERFLOW")),
        (vec![Rule::any().fail(long)], Err("AGENT_CONTEXT_OVERFLOW")),
        (vec![stop("pause_turn").times(2), Rule::any().text("done")], Ok("done")),
        (vec![Rule::any().fail(Fail::status(400))], Err("PROVIDER_FAILED")),
    ] {
        let engine = h.engine().await;
        let script = rules.into_iter().fold(Script::new(), Script::rule);
        let server = ScriptedLlm::start(script).unwrap();
        let ended = run(&engine, agent(main_loop().turns_max(4), &server)).await;
        match expect {
            Ok(text) => assert_eq!(ended.unwrap(), text),
            Err(code) => {
                let error = ended.unwrap_err().to_string();
                assert!(error.contains(code), "{error} instead of {code}");
            }
        }
        h.stop(&engine).await;
    }
}

async fn a_conversation_that_is_too_long_is_compacted(h: Arc<Harness>) {
    let long = Fail { message: Some("prompt is too long: 9 > 8".into()), ..Fail::status(400) };
    let refusing = Rule::when(When::turn(3)).fail(long).times(1);
    for (above_tokens, first) in [(None, Some(refusing)), (Some(1), None)] {
        let engine = h.engine().await;
        let contains = |text: &str| When { contains: Some(text.into()), ..When::default() };
        let summary = Rule::when(contains("Summarise this conversation")).text("S-U-M");
        let script = first
            .into_iter()
            .fold(Script::new().rule(summary), Script::rule)
            .rule(Rule::when(contains("S-U-M")).text("done"))
            .rule(Rule::any().tool("add", json!({ "a": 1, "b": 2 })));
        let server = ScriptedLlm::start(script).unwrap();
        let spec = main_loop().on_overflow(Overflow::Compact { above_tokens });
        let answer = run(&engine, agent(spec, &server)).await;
        match above_tokens {
            None => {
                assert_eq!(answer.unwrap(), "done");
                let last = server.seen().pop().unwrap();
                let body: Value = serde_json::from_slice(&last.body).unwrap();
                let messages = body["messages"].as_array().unwrap();
                assert!(messages[0].to_string().contains("S-U-M"), "{body}");
                assert_eq!(messages[1]["role"], "assistant", "{body}");
                assert!(messages.len() < 7, "{body}");
            }
            // A first exchange of three items has no place to cut.
            Some(_) => assert!(answer.unwrap_err().to_string().contains("AGENT_CONTEXT_OVERFLOW")),
        }
        h.stop(&engine).await;
    }
}

async fn a_model_calls_sub_agents(h: Arc<Harness>) {
    let engine = h.engine().await;
    let last = |text: &str| When::last(text);
    let script = Script::new()
        .rule(Rule::when(tool_result()).text("got {{input}}"))
        .rule(Rule::when(last("task one")).text("first"))
        .rule(Rule::when(last("task two")).text("second"))
        .rule(
            Rule::any()
                .tool("helper", json!({ "prompt": "task one" }))
                .tool("add", json!({ "a": 20, "b": 2 }))
                .tool("helper", json!({ "prompt": "task two" })),
        );
    let server = ScriptedLlm::start(script).unwrap();
    let helper = AgentLoop::new("helper-loop", "anthropic", MODEL).param("max_tokens", 50);
    let spec = main_loop().sub_agent(SubAgent::new("helper", "Helps.", "helper-loop"));
    let loops = engine.agent(agent(spec, &server).agent_loop(helper)).unwrap();
    let run = loops.start(json!({ "prompt": "do it" })).await.unwrap();
    let answer = run.result().await.unwrap();
    assert!(answer.as_str().unwrap().starts_with("got "), "{answer}");
    let last = server.seen().pop().unwrap();
    let body: Value = serde_json::from_slice(&last.body).unwrap();
    let results = body["messages"][2]["content"].as_array().unwrap();
    let said: Vec<&str> = results.iter().map(|block| block["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["first", "22", "second"], "in the order of the calls");
    let events = tree_events(&engine, run.run_key()).await;
    let count = |name: &str| events.iter().filter(|e| e.event_type.as_str() == name).count();
    assert_eq!((count("fork_join.completed"), count("anthropic.completed")), (1, 4));
    // A restart has sub-agents of its own.
    let again = run.restart().await.unwrap();
    assert_eq!(again.result().await.unwrap(), answer);
    let events = tree_events(&engine, again.run_key()).await;
    let count = |name: &str| events.iter().filter(|e| e.event_type.as_str() == name).count();
    assert_eq!((count("fork_join.completed"), count("anthropic.completed")), (1, 4));
}
