//! The hooks of an embedding program on the routes of documents and approvals.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use axum::http::request::Parts;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use windlass::Engine;
use windlass::contracts::language::approvers::{Directory, Person};
use windlass::contracts::language::templates;
use windlass::contracts::{ActionOutcome, Contracts};
use windlass::kernel::{BoxFuture, Namespace, Subject};
use windlass_server::auth::{Auth, Authorize, Caller, Denied, Scope, Target};
use windlass_server::{Options, ServeOptions};

use crate::harness::{http_client, wait_until, with_timeout};

/// Writes down each question, and denies those that contain the text of the header `x-deny`.
#[derive(Default)]
struct Questions {
    asked: Mutex<Vec<String>>,
    denied: Mutex<String>,
}

impl Questions {
    fn answer<'a>(
        &'a self,
        hook: &str,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        let text = |part: Option<&str>| part.unwrap_or("-").to_owned();
        let parts = [text(target.action), text(target.collection), text(target.id)];
        let question = format!("{hook} {}", parts.join(" "));
        let denied = question.contains(&*self.denied.lock());
        self.asked.lock().push(question);
        let answer = if denied { Err(Denied::forbidden("denied")) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock())
    }
}

struct Asked(Arc<Questions>);

impl Authorize for Asked {
    fn request<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        *self.0.denied.lock() = header("x-deny").unwrap_or("-").to_owned();
        let caller = Caller {
            namespace: Namespace::default_namespace(),
            scopes: Scope::ALL.into_iter().collect(),
            actor: None,
            subject: header("x-person").map(|text| Subject::parse(text).unwrap()),
            key: None,
        };
        Box::pin(std::future::ready(Ok(Some(caller))))
    }

    fn read<'a>(
        &'a self,
        _: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        self.0.answer("read", target)
    }

    fn manage<'a>(
        &'a self,
        _: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        self.0.answer("manage", target)
    }

    fn records<'a>(
        &'a self,
        _: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        self.0.answer("records", target)
    }

    fn decide<'a>(
        &'a self,
        _: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        self.0.answer("decide", target)
    }
}

struct Client {
    base: String,
    http: reqwest::Client,
    asked: Arc<Questions>,
}

impl Client {
    async fn ask(&self, method: Method, path: &str, deny: &str, body: Value) -> (u16, Value) {
        let request = self.http.request(method, format!("{}{path}", self.base)).json(&body);
        let request = request.header("x-person", "fay").header("x-deny", deny);
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or(Value::Null))
    }

    async fn get(&self, path: &str, deny: &str) -> (u16, Value) {
        self.ask(Method::GET, path, deny, json!({})).await
    }

    async fn ids(&self, path: &str, deny: &str) -> Vec<String> {
        let (status, answer) = self.get(path, deny).await;
        assert_eq!(status, 200, "{answer}");
        let rows = answer.as_object().unwrap().values().next().unwrap().as_array().unwrap();
        rows.iter()
            .map(|row| row["document"].as_str().or(row["id"].as_str()).unwrap().to_owned())
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_are_asked_about_each_document_and_approval() {
    with_timeout(flow()).await;
}

async fn flow() {
    let engine = Engine::open("memory:").await.unwrap();
    let builder =
        Contracts::builder().action("ledger.post", Arc::new(|_| Ok(ActionOutcome::none())));
    let contracts = builder.open(engine.core()).await.unwrap();
    let finance = Person { roles: ["finance_manager".to_owned()].into(), ..Person::default() };
    let people = [("fay".to_owned(), finance)].into();
    contracts.put_directory(&Directory { people, delegations: Vec::new() }).await.unwrap();
    let template = templates::all().into_iter().find(|one| one.name == "invoice_approval").unwrap();
    let rita = Subject::parse("rita").unwrap();
    contracts.publish_type(&template.contract, &rita).await.unwrap();
    for n in 1..=4 {
        let id = format!("i-{n}");
        let content = json!({
            "id": id, "total": 90, "currency": "EUR", "requester": "rita", "vendor_class": "new",
            "budget_owner": "bob",
        });
        contracts.create("invoice", &id, &content, &rita).await.unwrap();
    }
    let asked = Arc::new(Questions::default());
    let authorize: Option<Arc<dyn Authorize>> = Some(Arc::new(Asked(Arc::clone(&asked))));
    let routes = vec![windlass_server::contracts::routes(&contracts)];
    let options = Options { auth: Auth::Hooks, authorize, routes, ..Options::default() };
    let router = windlass_server::router(&engine, options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/api", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let until_stop = async {
        let _ = stopped.await;
    };
    let serving =
        windlass_server::serve_with(listener, router, ServeOptions::default(), until_stop);
    let served = tokio::spawn(serving);
    let client = Client { base, http: http_client(), asked };
    documents(&client).await;
    approvals(&client, &contracts).await;
    drop(stop);
    served.await.unwrap().unwrap();
    engine.stop(Duration::from_secs(5)).await.unwrap();
}

async fn documents(client: &Client) {
    let document = "/documents/invoice/i-1";
    for (method, path, question) in [
        (Method::GET, document.to_owned(), "records get invoice i-1"),
        (Method::PATCH, document.to_owned(), "records edit invoice i-1"),
        (Method::POST, format!("{document}/actions/submit"), "records submit invoice i-1"),
        (Method::POST, format!("{document}/amend"), "records amend invoice i-1"),
        (Method::POST, format!("{document}/fail"), "manage fail invoice i-1"),
        (Method::POST, "/contracts/invoice/publish".to_owned(), "manage publish invoice -"),
    ] {
        client.asked.take();
        let (status, answer) = client.ask(method.clone(), &path, question, json!({})).await;
        assert_eq!((status, client.asked.take()), (403, vec![question.to_owned()]), "{answer}");
    }
    // The path of a create does not name the document.
    let new = json!({ "id": "i-9", "content": {} });
    let denied = client.ask(Method::POST, "/documents/invoice", "create invoice i-9", new).await;
    assert_eq!(denied.0, 403, "{denied:?}");
    assert_eq!(client.get("/documents/invoice/i-9", "nothing").await.0, 404);
    // A page is filled with the documents behind the hidden ones.
    let hide = "list invoice i-2";
    assert_eq!(client.ids("/documents/invoice", hide).await, ["i-1", "i-3", "i-4"]);
    assert_eq!(client.ids("/documents/invoice?limit=2", hide).await, ["i-1", "i-3"]);
    assert_eq!(client.ids("/documents/invoice?limit=2&after=i-3", hide).await, ["i-4"]);
}

async fn approvals(client: &Client, contracts: &Contracts) {
    // Nobody is asked about what they have submitted, so fay does not submit.
    let rita = Subject::parse("rita").unwrap();
    for id in ["i-1", "i-2"] {
        contracts.act("invoice", id, "submit", &rita, None).await.unwrap();
    }
    wait_until("fay is asked twice", async || client.ids("/approvals", "nothing").await.len() == 2)
        .await;
    let (_, inbox) = client.get("/approvals", "nothing").await;
    let ids = inbox["approvals"].as_array().unwrap().iter();
    let ids: Vec<String> = ids.map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    let shown = client.ids("/approvals", &format!("list - {}", ids[0])).await;
    assert_eq!(shown, [inbox["approvals"][1]["document"].as_str().unwrap()]);
    let path = format!("/approvals/{}", ids[0]);
    for (method, path, action) in
        [(Method::GET, path.clone(), "get"), (Method::POST, format!("{path}/approve"), "approve")]
    {
        client.asked.take();
        let question = format!("decide {action} - {}", ids[0]);
        let (status, answer) = client.ask(method, &path, &question, json!({})).await;
        assert_eq!((status, client.asked.take()), (403, vec![question]), "{answer}");
    }
}
