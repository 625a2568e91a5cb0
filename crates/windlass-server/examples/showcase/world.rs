//! A server with data of all five models, for the views of the dashboard. The test in a browser and the
//! script with the screenshots open it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agents::{
    Agent, AnthropicClient, Budget, CallResult, ClientOptions, Continuation, Lane, LaneOptions,
    LlmRequest, Workflow as AgentState,
};
use windlass::contracts::language::approvers::{Directory, Person};
use windlass::contracts::language::templates;
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::{ActionOutcome, Contracts};
use windlass::kernel::{LogLevel, Subject};
use windlass::machines::{ActivityError, Workflow, WorkflowAction, WorkflowError};
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
use windlass::requests::Request;
use windlass::{AnyError, Ctx, Engine, Limits, RetryPolicy};
use windlass_server::Options;
use windlass_testkit::scripted_llm::{Script, ScriptedLlm};

/// A value that runs as a script if a page does not treat it as text.
pub(crate) const XSS: &str =
    "<img src=x onerror=\"window.__xss=1\"><script>window.__xss=1</script>";

/// Values that run as a script where a page puts them into a tag, an attribute, an address, a style or a script.
pub(crate) const CORPUS: &[&str] = &[
    XSS,
    "\" autofocus onfocus=\"window.__xss=1\" x=\"",
    "' onmouseover='window.__xss=1' x='",
    "<svg onload=\"window.__xss=1\">",
    "<iframe srcdoc=\"<script>parent.__xss=1</script>\"></iframe>",
    "</script><script>window.__xss=1</script>",
    "</textarea></title></style><img src=x onerror=window.__xss=1>",
    "<details open ontoggle=window.__xss=1>",
    "javascript:window.__xss=1",
    "{{constructor.constructor('window.__xss=1')()}}${window.__xss=1}",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=window.__xss=1>",
];

/// The values of users.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// Those that run as a script where a page does not treat them as text.
    Hostile,
    /// Those of a usual day, for screenshots.
    #[allow(dead_code, reason = "the test in a browser has hostile values only")]
    Usual,
}

impl Values {
    /// This text, or a hostile one instead.
    fn text(self, usual: &str) -> &str {
        match self {
            Self::Hostile => XSS,
            Self::Usual => usual,
        }
    }

    fn corpus(self) -> impl Iterator<Item = (usize, &'static str)> {
        let all = if self == Self::Hostile { CORPUS } else { &[] };
        all.iter().copied().enumerate()
    }
}

/// The person who looks at the pages.
pub(crate) fn fay() -> Subject {
    Subject::parse("fay:finance_manager,approver").expect("a person")
}

/// The engine of the showcase, and what has to live as long as it does.
pub(crate) struct World {
    pub(crate) engine: Engine,
    contracts: Contracts,
    _llm: ScriptedLlm,
}

impl World {
    pub(crate) async fn open() -> windlass::Result<Self> {
        let limits = Limits { steps_per_run_max: 10_000, ..Limits::default() };
        let builder = Engine::builder().worker_name("showcase").limits(limits);
        let engine = builder.open("memory:").await?;
        steps(&engine)?;
        engine.machine::<Parcel>()?;
        engine.activity("weigh", async |_, input: Value| match &input["broken"] {
            Value::Bool(true) => Err(AnyError::msg("the scale is broken")),
            Value::String(why) => Err(AnyError::msg(why.clone())),
            _ => Ok(json!({ "kg": 2 })),
        })?;
        engine.relay("shout", Shout, NoopTerminalHook).build()?;
        let llm = ScriptedLlm::start(Script::echo())?;
        let client = AnthropicClient::new(ClientOptions::new("scripted").base_url(llm.url()))?;
        let client = Arc::new(client);
        let asking =
            |name| Agent::new(name, "ask").function("ask", ask).function("answered", answered);
        let live = asking("ask").output("answer").budget(Budget::usd(0.25));
        engine.agent(live.provider(Arc::clone(&client) as _))?;
        let lane = LaneOptions::default().gather("20 ms").poll("20 ms", "20 ms");
        let batch = asking("ask-later").output("answer").lane(Lane::Batch).lane_options(lane);
        engine.agent(batch.provider(client))?;
        let contracts = Contracts::builder()
            .action("ledger.post", Arc::new(|_| Ok(ActionOutcome::none())))
            .open(engine.core())
            .await?;
        let person = |roles: &[&str]| Person {
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            ..Person::default()
        };
        let people =
            [("fay", person(&["finance_manager"])), ("bob", person(&[])), ("rita", person(&[]))];
        let people = people.map(|(id, person)| (id.to_owned(), person)).into();
        contracts.put_directory(&Directory { people, delegations: Vec::new() }).await?;
        Ok(Self { engine, contracts, _llm: llm })
    }

    /// Options with the dashboard, and the routes of documents and agents.
    pub(crate) fn options(&self) -> Options {
        let documents = windlass_server::contracts::routes(&self.contracts);
        let routes = vec![documents, windlass_server::llm::routes()];
        Options { routes, dashboard: true, ..Options::default() }
    }

    /// Creates documents as another person, so that `fay` can approve them. She approves one.
    pub(crate) async fn add_documents(&self, values: Values) -> windlass::Result<()> {
        let template = templates::all().into_iter().find(|one| one.name == "invoice_approval");
        let template = template.expect("the template exists");
        let rita = Subject::parse("rita")?;
        self.contracts.publish_type(&template.contract, &rita).await?;
        let mut definition = json!(template.definition);
        definition["slots"]["approved_to_active"]["nodes"][0]["label"] = json!(values.text("Post"));
        let definition = serde_json::from_value(definition).expect("a definition");
        self.contracts.put_draft("invoice", &definition).await?;
        self.contracts.publish("invoice", &rita).await?;
        let create = async |id: &str, total: u32, note: &str| {
            let content = json!({
                "id": id, "total": total, "currency": "EUR", "requester": "rita",
                "vendor_class": "new", "budget_owner": "bob", "note": note, "cost_center": note,
            });
            self.contracts.create("invoice", id, &content, &rita).await?;
            self.contracts.act("invoice", id, "submit", &rita, Some(note)).await
        };
        for (id, total) in [("i-1", 90), ("i-2", 5_000_000), ("i-3", 5_000_000)] {
            create(id, total, "for the office").await?;
        }
        for (n, text) in values.corpus() {
            create(&format!("i-c{n}"), 90, text).await?;
        }
        for _ in 0..3_000 {
            let asked = self.contracts.inbox(&fay(), None, 100).await?;
            if let Some(request) = asked.into_iter().find(|one| one.document == "i-3") {
                let (id, digest) = (&request.id, request.digest);
                let (contracts, why) = (&self.contracts, values.text("as agreed"));
                let verdict = Verdict::Approved;
                contracts.decide_approval(id, verdict, digest, &fay(), Some(why)).await?;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nobody is asked about the document")
    }
}

/// Writes a comment on each request, and creates keys with all names.
pub(crate) async fn seed_people(http: &reqwest::Client, api: &str, values: Values) {
    let inbox = format!("{api}/inbox?of=all");
    let page: Value = http.get(&inbox).send().await.unwrap().json().await.unwrap();
    for request in page["requests"].as_array().expect("a list of requests") {
        let id = request["id"].as_str().expect("an id");
        for (_, text) in values.corpus() {
            post(http, &format!("{api}/inbox/{id}/comment"), &json!({ "text": text })).await;
        }
    }
    for (_, text) in values.corpus() {
        let body = json!({ "name": text, "scopes": ["read"] });
        post(http, &format!("{api}/keys"), &body).await;
    }
}

fn steps(engine: &Engine) -> windlass::Result<()> {
    engine.workflow(
        "hello",
        async |ctx: Ctx, name: Option<String>| -> windlass::Result<String> {
            let name = name.unwrap_or_else(|| "world".into());
            ctx.log().write(
                LogLevel::Info,
                format!("greeting {name}"),
                &json!({ "name": name }),
            )?;
            let text = ctx.step("compose", async || Ok(format!("Hello, {name}!"))).await?;
            ctx.sleep("pause for effect", "20 ms").await?;
            Ok(ctx.step("shout", async || Ok(text.to_uppercase())).await?)
        },
    )?;
    engine.workflow("order", async |ctx: Ctx, order: Value| -> windlass::Result<Value> {
        ctx.step("charge", async || Ok(order.clone())).await?;
        Ok(ctx.event("approval", "approval").timeout("1 day").await?)
    })?;
    engine.workflow("flaky", async |ctx: Ctx, _: Value| -> windlass::Result<()> {
        let call = ctx.step("call", async || Err::<(), _>(AnyError::msg("connection refused")));
        Ok(call.retries(1).delay("10 ms").await?)
    })?;
    engine.workflow("broken", async |_: Ctx, why: String| -> windlass::Result<()> {
        Err(AnyError::msg(why))
    })?;
    engine.workflow(
        "fan-out",
        async |ctx: Ctx, width: Option<u32>| -> windlass::Result<usize> {
            let steps = (0..width.unwrap_or(20)).map(|n| {
                ctx.step(
                    format!("square-{n}"),
                    move || async move { Ok(u64::from(n) * u64::from(n)) },
                )
            });
            let squares: Vec<u64> = futures::future::try_join_all(steps).await?;
            Ok(squares.len())
        },
    )?;
    engine.workflow("expense", async |ctx: Ctx, expense: Value| -> windlass::Result<String> {
        let request = Request::to("role:approver")
            .title(format!("Pay {}", expense["purpose"].as_str().unwrap_or("it")))
            .text("Please look at the amount.")
            .about_snapshot(&expense)
            .due("3 days");
        let outcome = ctx.request("approval", request).await?;
        Ok(outcome.status.to_string())
    })?;
    let hello = engine.remote_workflow::<Value, String>("hello")?;
    engine.workflow("family", move |ctx: Ctx, _: Value| {
        let hello = hello.clone();
        async move { Ok::<_, AnyError>(ctx.child("greet", &hello, &json!("child")).await?) }
    })?;
    Ok(())
}

/// Weighs a parcel. A broken scale ends in a dead letter.
struct Parcel(Value);

impl Workflow for Parcel {
    const TYPE: &'static str = "parcel";
    type Input = Value;
    type Output = Value;

    fn new(input: Value) -> Self {
        Self(input)
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let options = windlass::machines::ActivityOptions::retrying(RetryPolicy::none());
        vec![WorkflowAction::activity_with("scale", "weigh", self.0.clone(), options)]
    }

    fn on_activity_completed(&mut self, _: &str, weight: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(weight)]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(WorkflowError::from(error))]
    }
}

struct Shout;

impl StepRunner for Shout {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        Ok(StepOutcome::done(step.payload.to_ascii_uppercase()))
    }
}

async fn ask(workflow: &mut AgentState, next: Continuation) -> CallResult {
    let question: String = workflow.get("question")?;
    workflow.transcript("chat").push_user(&question)?;
    let request = LlmRequest::new("anthropic", "claude-haiku-4-5").param("max_tokens", 100);
    Ok(next.llm(request.transcript("chat"), "response", "answered"))
}

async fn answered(workflow: &mut AgentState, next: Continuation) -> CallResult {
    let text = workflow.response("response")?.text()?;
    workflow.set("answer", &text)?;
    Ok(next.halt())
}

/// Starts runs of all models through the HTTP API, and waits until those that end have ended.
pub(crate) async fn seed(http: &reqwest::Client, api: &str, values: Values) {
    // First, so that the list of runs begins with the others.
    for (n, text) in values.corpus() {
        for (workflow, id) in [("hello", format!("hello-c{n}")), ("broken", format!("broken-{n}"))]
        {
            let labels = json!({ "note": text, "key<b>": "x" });
            let body = json!({ "id": id, "params": text, "labels": labels });
            post(http, &format!("{api}/workflows/{workflow}/instances"), &body).await;
        }
        let body = json!({ "id": format!("parcel-c{n}"), "params": { "broken": text } });
        post(http, &format!("{api}/workflows/parcel/instances"), &body).await;
    }
    for (workflow, id, params) in [
        ("hello", "hello-1", json!("Ada")),
        ("hello", "hello-xss", json!(values.text("Grace"))),
        ("order", "order-1", json!({ "total": 12.5, "customer": values.text("Ada") })),
        ("order", "order-2", json!(7)),
        ("flaky", "flaky-1", json!(null)),
        ("fan-out", "fan-1", json!(20)),
        ("expense", "expense-1", json!({ "amount": 120, "purpose": values.text("a new chair") })),
        ("expense", "expense-2", json!({ "amount": 60, "purpose": "train tickets" })),
        ("family", "family-1", json!({})),
        ("parcel", "parcel-1", json!({})),
        ("parcel", "parcel-2", json!({ "broken": true })),
        ("parcel", "parcel-3", json!({ "broken": true })),
        ("shout", "shout-1", json!("quiet")),
        ("ask", "ask-1", json!({ "question": values.text("How high is the tide?") })),
        ("ask-later", "later-1", json!({ "question": values.text("How high is the tide?") })),
    ] {
        let body = json!({ "id": id, "params": params, "labels": { "note": "a&b" } });
        post(http, &format!("{api}/workflows/{workflow}/instances"), &body).await;
    }
    let note = json!({ "type": "note", "payload": { "text": values.text("by noon") } });
    post(http, &format!("{api}/workflows/order/instances/order-2/events"), &note).await;
    for (name, schedule) in [
        (
            "nightly",
            json!({ "workflow": "hello", "cron": "0 3 * * *", "params": values.text("Ada") }),
        ),
        ("often", json!({ "workflow": "hello", "everyMs": 3_600_000 })),
    ] {
        let request = http.put(format!("{api}/schedules/{name}")).json(&schedule);
        succeed(request).await;
    }
    for total in ["12345678901234567890.10", "12345678901234567890.11"] {
        let body = format!("{{\"total\":{total},\"note\":{}}}", json!(values.text("a gift")));
        let request = http.put(format!("{api}/records/carts/cart-1?term=owner:ada&keep=true"));
        let request = request.header("content-type", "application/json").body(body);
        let request = match total.ends_with('0') {
            true => request.header("if-none-match", "*"),
            false => request.header("if-match", "\"1\""),
        };
        succeed(request).await;
    }
    for (workflow, id) in [
        ("hello", "hello-1"),
        ("hello", "hello-xss"),
        ("flaky", "flaky-1"),
        ("fan-out", "fan-1"),
        ("family", "family-1"),
        ("parcel", "parcel-1"),
        ("parcel", "parcel-3"),
        ("shout", "shout-1"),
        ("ask", "ask-1"),
        ("ask-later", "later-1"),
    ] {
        let run = format!("{api}/workflows/{workflow}/instances/{id}/result?waitMs=30000");
        http.get(run).send().await.expect("an answer");
    }
    let waiting = format!("{api}/runs?workflow=expense&status=waiting");
    for _ in 0..3_000 {
        let page: Value = http.get(&waiting).send().await.unwrap().json().await.unwrap();
        if page["runs"].as_array().is_some_and(|runs| runs.len() == 2) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the expenses do not wait");
}

async fn post(http: &reqwest::Client, url: &str, body: &Value) {
    succeed(http.post(url).json(body)).await;
}

async fn succeed(request: reqwest::RequestBuilder) {
    let answer = request.send().await.expect("an answer");
    let status = answer.status();
    let text = answer.text().await.unwrap_or_default();
    assert!(status.is_success(), "{status}: {text}");
}
