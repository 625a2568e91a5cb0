//! The inbox over HTTP: who sees what, decisions, bad input, tenants, and the creators of keys.

use reqwest::Method;
use serde_json::{Value, json};
use windlass::kernel::{Namespace, Subject};
use windlass::requests::{InboxOrder, InboxQuery, Request, RequestOutcome, RequestStatus};
use windlass::{Ctx, Result, WorkflowRef};
use windlass_server::auth::{KeyCreator, NewKey, Scope};

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, on_every_store, read, wait_until};

on_every_store!(
    people_read_their_inbox_and_decide,
    bad_decisions_are_refused_and_write_nothing,
    the_creator_of_a_key_cannot_approve_with_it,
    a_request_names_the_revision_that_the_person_approved_last,
);

impl KeyFactory {
    /// A key for a person, which another person may have created.
    pub(crate) async fn of_person(
        &self,
        namespace: &str,
        scopes: &[Scope],
        subject: &str,
        creator: Option<&str>,
    ) -> String {
        let created_by =
            creator.map(|id| KeyCreator { subject: Some(id.to_owned()), ..KeyCreator::default() });
        let new = NewKey {
            name: "person".into(),
            namespace: Namespace::new(namespace).unwrap(),
            scopes: scopes.to_vec(),
            subject: Some(Subject::parse(subject).unwrap()),
            created_by,
            expires_in: None,
        };
        self.0.create(new).await.unwrap().key
    }
}

type Flow = WorkflowRef<Request, RequestOutcome>;

async fn ask(ctx: Ctx, request: Request) -> Result<RequestOutcome> {
    Ok(ctx.request("approve", request).await?)
}

async fn start(kind: Kind) -> (Flow, Server, KeyFactory) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let flow = server.engine.workflow("ask", ask).unwrap();
    let keys = KeyFactory::new(&store, &server);
    (flow, server, keys)
}

async fn opened(flow: &Flow, server: &Server, id: &str, request: Request) -> String {
    flow.start(request).id(id).await.unwrap();
    let query = InboxQuery::Status(RequestStatus::Open);
    let find = async || {
        let requests = server.engine.requests();
        let page = requests.inbox(&query, InboxOrder::Opened, None, 100).await.unwrap();
        page.requests.into_iter().find(|state| state.run.id == id).map(|state| state.id)
    };
    wait_until("the request is open", async || find().await.is_some()).await;
    find().await.unwrap()
}

async fn call(
    server: &Server,
    key: &str,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> (u16, Value) {
    let request = server.request(method, path).bearer_auth(key);
    let request = match &body {
        Some(body) => request.json(body),
        None => request,
    };
    read(request).await
}

async fn people_read_their_inbox_and_decide(kind: Kind) {
    let (flow, server, keys) = start(kind).await;
    let decide = [Scope::Decide];
    let ann = keys.of_person("default", &decide, "ann:cfo", None).await;
    let bob = keys.of_person("default", &decide, "bob:cfo", None).await;
    let zoe = keys.of_person("default", &decide, "zoe", None).await;
    let other = keys.of_person("tenant", &decide, "ann:cfo", None).await;
    let operator = keys.key("default", &[Scope::Decide, Scope::Manage]).await;
    let request = Request::to("role:cfo").title("Pay").requester("rae").quorum(2).due("1 day");
    let id = opened(&flow, &server, "one", request).await;
    let path = format!("/inbox/{id}");
    let post = |action: &str| format!("{path}/{action}");
    for (key, query, expect) in [
        (&ann, "", 1),
        (&ann, "?of=role:cfo&order=due", 1),
        (&zoe, "", 0),
        (&zoe, "?of=person:zoe", 0),
        (&other, "", 0),
        (&operator, "?of=all", 1),
        (&operator, "?of=all&status=approved", 0),
    ] {
        let (status, list) = call(&server, key, Method::GET, &format!("/inbox{query}"), None).await;
        assert_eq!(status, 200, "{query}: {list}");
        assert_eq!(list["requests"].as_array().map(Vec::len), Some(expect), "{query}: {list}");
    }
    for (key, query, status, code) in [
        (&zoe, "?of=role:cfo", 403, "FORBIDDEN"),
        (&zoe, "?of=all", 403, "FORBIDDEN"),
        (&zoe, "?of=person:ann", 403, "FORBIDDEN"),
        (&operator, "", 403, "SUBJECT_REQUIRED"),
        (&operator, "?of=all&status=done", 400, "INVALID_STATUS"),
        (&operator, "?of=all&due=monday", 400, "INVALID_QUERY"),
        (&ann, "?status=open", 400, "INVALID_QUERY"),
        (&ann, "?order=size", 400, "INVALID_QUERY"),
    ] {
        let answer = call(&server, key, Method::GET, &format!("/inbox{query}"), None).await;
        assert_eq!((answer.0, answer.1["code"].as_str()), (status, Some(code)), "{query}");
    }
    // Others, and other tenants, do not see that it exists.
    for key in [&zoe, &other] {
        let answer = call(&server, key, Method::GET, &path, None).await;
        assert_eq!((answer.0, answer.1["code"].as_str()), (404, Some("REQUEST_NOT_FOUND")));
    }
    // Another tenant cannot act on it either, not even an operator.
    let their_operator = keys.of_person("tenant", &Scope::ALL, "ann:cfo", None).await;
    for (action, body) in [
        ("decide", json!({ "choice": "approve" })),
        ("delegate", json!({ "to": "bob", "until": "2100-01-01T00:00:00Z" })),
        ("comment", json!({ "text": "hm" })),
        ("withdraw", json!({})),
    ] {
        for key in [&other, &their_operator] {
            let answer = call(&server, key, Method::POST, &post(action), Some(body.clone())).await;
            let code = answer.1["code"].as_str();
            assert_eq!((answer.0, code), (404, Some("REQUEST_NOT_FOUND")), "{action}");
        }
    }
    let yes = json!({ "choice": "approve", "comment": "ok" });
    let (status, _) =
        call(&server, &ann, Method::POST, &post("comment"), Some(json!({ "text": "hm" }))).await;
    assert_eq!(status, 200);
    let (status, view) =
        call(&server, &ann, Method::POST, &post("decide"), Some(yes.clone())).await;
    assert_eq!((status, &view["approvals"], &view["status"]), (200, &json!(1), &json!("open")));
    let (status, view) = call(&server, &bob, Method::POST, &post("decide"), Some(yes)).await;
    assert_eq!((status, &view["status"]), (200, &json!("approved")), "{view}");
    assert_eq!(view["decisions"][1]["by"], "bob");
    assert!(view["decisions"][1]["keyId"].is_string(), "{view}");
    let id = opened(&flow, &server, "two", Request::to("ann")).await;
    let withdraw = format!("/inbox/{id}/withdraw");
    let answer = call(&server, &ann, Method::POST, &withdraw, None).await;
    assert_eq!((answer.0, answer.1["code"].as_str()), (403, Some("NOT_ASSIGNED")));
    let (status, view) = call(&server, &operator, Method::POST, &withdraw, None).await;
    assert_eq!((status, &view["status"]), (200, &json!("withdrawn")), "{view}");
}

async fn bad_decisions_are_refused_and_write_nothing(kind: Kind) {
    let (flow, server, keys) = start(kind).await;
    let decide = [Scope::Decide];
    let ann = keys.of_person("default", &decide, "ann", None).await;
    let zoe = keys.of_person("default", &decide, "zoe", None).await;
    let rae = keys.of_person("default", &decide, "rae", None).await;
    let program = keys.key("default", &decide).await;
    let reader = keys.key("default", &[Scope::Read]).await;
    let schema = json!({ "type": "object", "required": ["limit"] });
    let request = Request::to("ann").and_to("rae").requester("rae").schema(schema);
    let id = opened(&flow, &server, "one", request.about_snapshot(&7)).await;
    let digest = format!("sha256:{}", "0".repeat(64));
    let yes = json!({ "choice": "approve", "answer": { "limit": 1 } });
    let until = "2020-01-01T00:00:00Z";
    for (key, action, body, status, code) in [
        (&reader, "decide", yes.clone(), 403, "FORBIDDEN"),
        (&program, "decide", yes.clone(), 403, "SUBJECT_REQUIRED"),
        (&zoe, "decide", yes.clone(), 403, "NOT_ASSIGNED"),
        (&rae, "decide", yes.clone(), 403, "DECIDER_EXCLUDED"),
        (&ann, "decide", json!({ "choice": "approve" }), 400, "ANSWER_INVALID"),
        (&ann, "decide", json!({ "choice": "approve", "answer": 7 }), 400, "ANSWER_INVALID"),
        (&ann, "decide", json!({ "choice": "maybe" }), 400, "INVALID_DECISION"),
        (&ann, "decide", json!({ "choice": "reject", "about": digest }), 409, "REQUEST_STALE"),
        (&ann, "decide", json!({ "choice": "reject", "about": "x" }), 400, "INVALID_DECISION"),
        (&ann, "decide", json!({ "choise": "reject" }), 400, "INVALID_BODY"),
        (&ann, "comment", json!({ "text": "" }), 400, "INVALID_DECISION"),
        (&zoe, "comment", json!({ "text": "hi" }), 403, "NOT_ASSIGNED"),
        (&ann, "delegate", json!({ "to": "bob", "until": "soon" }), 400, "INVALID_TIME"),
        (&ann, "delegate", json!({ "to": "bob", "until": until }), 409, "DELEGATION_REFUSED"),
        (&zoe, "delegate", json!({ "to": "bob", "until": until }), 403, "NOT_ASSIGNED"),
    ] {
        let path = format!("/inbox/{id}/{action}");
        let answer = call(&server, key, Method::POST, &path, Some(body.clone())).await;
        assert_eq!(
            (answer.0, answer.1["code"].as_str()),
            (status, Some(code)),
            "{body} {answer:?}"
        );
    }
    let state = server.engine.requests().get(&id).await.unwrap();
    assert!(state.votes.is_empty() && state.comments.is_empty() && state.delegations.is_empty());
    let path = format!("/inbox/{id}/decide");
    let no = json!({ "choice": "reject" });
    assert_eq!(call(&server, &ann, Method::POST, &path, Some(no)).await.0, 200);
    let again = call(&server, &ann, Method::POST, &path, Some(yes)).await;
    assert_eq!((again.0, again.1["code"].as_str()), (409, Some("DECISION_EXISTS")));
    let missing = call(&server, &ann, Method::GET, "/inbox/nothing", None).await;
    assert_eq!((missing.0, missing.1["code"].as_str()), (404, Some("REQUEST_NOT_FOUND")));
}

async fn the_creator_of_a_key_cannot_approve_with_it(kind: Kind) {
    let (flow, server, keys) = start(kind).await;
    let scopes = [Scope::Decide, Scope::Admin];
    let root = keys.of_person("default", &scopes, "root", None).await;
    // The administrator creates a key for somebody else through the API.
    let new =
        json!({ "name": "x", "scopes": ["decide"], "subject": { "id": "ann", "roles": ["cfo"] } });
    let (status, created) = call(&server, &root, Method::POST, "/keys", Some(new)).await;
    assert_eq!(status, 200, "{created}");
    assert_eq!(created["createdBy"]["subject"], "root");
    assert!(created["createdBy"]["keyId"].is_string(), "{created}");
    let as_ann = created["key"].as_str().unwrap();
    let yes = || Some(json!({ "choice": "approve" }));
    let own = opened(&flow, &server, "own", Request::to("role:cfo").requester("root")).await;
    let path = format!("/inbox/{own}/decide");
    let answer = call(&server, as_ann, Method::POST, &path, yes()).await;
    assert_eq!((answer.0, answer.1["code"].as_str()), (403, Some("DECIDER_EXCLUDED")));
    // Nor can the creator of a key that was used to create it, whether that key stood for a person or not.
    for subject in [None, Some(json!({ "id": "bob" }))] {
        let mut admin = json!({ "name": "y", "scopes": ["admin"] });
        admin["subject"] = subject.unwrap_or_default();
        let (_, between) = call(&server, &root, Method::POST, "/keys", Some(admin)).await;
        let between = between["key"].as_str().unwrap().to_owned();
        let new = json!({ "name": "z", "scopes": ["decide"], "subject": { "id": "cy", "roles": ["cfo"] } });
        let (status, last) = call(&server, &between, Method::POST, "/keys", Some(new)).await;
        assert_eq!(status, 200, "{last}");
        let answer = call(&server, last["key"].as_str().unwrap(), Method::POST, &path, yes()).await;
        assert_eq!((answer.0, answer.1["code"].as_str()), (403, Some("DECIDER_EXCLUDED")));
    }
    // A request of somebody else: the decision names the key.
    let other = opened(&flow, &server, "other", Request::to("role:cfo").requester("rae")).await;
    let path = format!("/inbox/{other}/decide");
    let (status, view) = call(&server, as_ann, Method::POST, &path, yes()).await;
    assert_eq!((status, &view["decisions"][0]["keyId"]), (200, &created["id"]), "{view}");
}

async fn a_request_names_the_revision_that_the_person_approved_last(kind: Kind) {
    let (flow, server, keys) = start(kind).await;
    let ann = keys.of_person("default", &[Scope::Decide], "ann:cfo", None).await;
    let bob = keys.of_person("default", &[Scope::Decide], "bob:cfo", None).await;
    let invoices = server.engine.records::<u32>("invoices");
    let mut last = String::new();
    for (revision, person, choice) in [
        (1, &ann, Some("approve")),
        (2, &bob, Some("approve")),
        (3, &ann, Some("reject")),
        (4, &ann, None),
    ] {
        let put = invoices.put("i-7", &u32::try_from(revision).unwrap()).keep();
        let put = match revision {
            1 => put.expect_absent(),
            _ => put.expect_revision(revision - 1),
        };
        put.send().await.unwrap();
        let invoice = invoices.get("i-7").await.unwrap().unwrap().reference();
        let request = Request::to("role:cfo").about(&invoice);
        let id = opened(&flow, &server, &format!("run-{revision}"), request).await;
        last = format!("/inbox/{id}");
        if let Some(choice) = choice {
            let body = Some(json!({ "choice": choice }));
            let path = format!("{last}/decide");
            let (status, view) = call(&server, person, Method::POST, &path, body).await;
            assert_eq!(status, 200, "{view}");
        }
    }
    for (key, revision) in [(&ann, 1), (&bob, 2)] {
        let (status, view) = call(&server, key, Method::GET, &last, None).await;
        assert_eq!((status, &view["lastApproved"]["revision"]), (200, &json!(revision)), "{view}");
    }
    let zoe = keys.of_person("default", &[Scope::Decide], "zoe:cfo", None).await;
    let (_, view) = call(&server, &zoe, Method::GET, &last, None).await;
    assert_eq!(view.get("lastApproved"), None, "{view}");
}
