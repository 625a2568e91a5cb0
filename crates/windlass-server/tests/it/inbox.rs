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
    large_requests_are_listed_and_decided,
    bad_decisions_are_refused_and_write_nothing,
    the_creator_of_a_key_cannot_approve_with_it,
    editors_cannot_approve_what_they_edited,
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

pub(crate) type Flow = WorkflowRef<Request, RequestOutcome>;

pub(crate) async fn ask(ctx: Ctx, request: Request) -> Result<RequestOutcome> {
    Ok(ctx.request("approve", request).await?)
}

async fn start(kind: Kind) -> (Flow, Server, KeyFactory) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let flow = server.engine.workflow("ask", ask).unwrap();
    let keys = KeyFactory::new(&store, &server);
    (flow, server, keys)
}

pub(crate) async fn opened(flow: &Flow, server: &Server, id: &str, request: Request) -> String {
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

// The answer has a status and a code, and the page of the code names the status.
#[track_caller]
fn refused((status, body): &(u16, Value), expect: u16, code: &str) {
    assert_eq!((*status, body["code"].as_str()), (expect, Some(code)), "{body}");
    let page = format!("{}/../../docs/errors/{code}.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).expect("each code has a page");
    assert!(page.contains(&format!("HTTP: {expect}")), "{code}: {page}");
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
        refused(&answer, status, code);
    }
    // Others, and other tenants, do not see that it exists.
    for key in [&zoe, &other] {
        let answer = call(&server, key, Method::GET, &path, None).await;
        refused(&answer, 404, "REQUEST_NOT_FOUND");
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
    assert_eq!((&view["decisions"][1]["by"], &view["closedBy"]), (&json!("bob"), &json!("bob")));
    assert!(view["decisions"][1]["keyId"].is_string(), "{view}");
    let id = opened(&flow, &server, "two", Request::to("ann")).await;
    let withdraw = format!("/inbox/{id}/withdraw");
    let answer = call(&server, &ann, Method::POST, &withdraw, None).await;
    refused(&answer, 403, "NOT_ASSIGNED");
    let (status, view) = call(&server, &operator, Method::POST, &withdraw, None).await;
    assert_eq!((status, &view["status"]), (200, &json!("withdrawn")), "{view}");
    // The operator's key stands for no person.
    assert!(view.get("closedBy").is_none() && view["closedKeyId"].is_string(), "{view}");
    let id = opened(&flow, &server, "three", Request::to("ann").requester("rae")).await;
    let withdraw = format!("/inbox/{id}/withdraw");
    let olga = keys.of_person("default", &[Scope::Decide, Scope::Manage], "olga", None).await;
    let (status, view) = call(&server, &olga, Method::POST, &withdraw, None).await;
    assert_eq!((status, &view["closedBy"]), (200, &json!("olga")), "{view}");
    assert!(view["closedKeyId"].is_string(), "{view}");
    let id = opened(&flow, &server, "four", Request::to("ann").requester("zoe")).await;
    let (status, view) =
        call(&server, &zoe, Method::POST, &format!("/inbox/{id}/withdraw"), None).await;
    assert_eq!((status, &view["closedBy"]), (200, &json!("zoe")), "{view}");
}

async fn large_requests_are_listed_and_decided(kind: Kind) {
    let (flow, server, keys) = start(kind).await;
    let ann = keys.of_person("default", &[Scope::Decide], "ann:cfo", None).await;
    let text = "x".repeat(200 * 1024);
    let large = Request::to("role:cfo").about_snapshot(&json!({ "text": text })).due("2 days");
    let large = opened(&flow, &server, "large", large).await;
    let small = opened(&flow, &server, "small", Request::to("ann").due("1 day")).await;
    for (query, expect) in [("", [&large, &small]), ("?order=due", [&small, &large])] {
        let (status, list) =
            call(&server, &ann, Method::GET, &format!("/inbox{query}"), None).await;
        assert_eq!(status, 200, "{query}: {}", list["code"]);
        let found = list["requests"].as_array().unwrap();
        let ids: Vec<&str> = found.iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!(ids, expect, "{query}");
        let shown = found.iter().find(|one| one["id"] == large.as_str()).unwrap();
        assert_eq!(shown["about"]["snapshot"]["text"], text.as_str(), "{query}");
    }
    let yes = Some(json!({ "choice": "approve" }));
    let path = format!("/inbox/{large}/decide");
    let (status, view) = call(&server, &ann, Method::POST, &path, yes).await;
    assert_eq!((status, &view["status"]), (200, &json!("approved")));
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
    let bob = keys.of_person("default", &decide, "bob", None).await;
    let request = Request::to("ann").and_to("bob").and_to("rae").requester("rae").schema(schema);
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
        refused(&answer, status, code);
    }
    let state = server.engine.requests().get(&id).await.unwrap();
    assert!(state.votes.is_empty() && state.comments.is_empty() && state.delegations.is_empty());
    let path = format!("/inbox/{id}/decide");
    let no = json!({ "choice": "reject" });
    assert_eq!(call(&server, &ann, Method::POST, &path, Some(no)).await.0, 200);
    // After the end: the person who has decided, one who was asked, and one who was not.
    for (key, code) in
        [(&ann, "DECISION_EXISTS"), (&bob, "REQUEST_CLOSED"), (&zoe, "REQUEST_CLOSED")]
    {
        let late = call(&server, key, Method::POST, &path, Some(yes.clone())).await;
        refused(&late, 409, code);
    }
    let late = json!({ "to": "cy", "until": "2100-01-01T00:00:00Z" });
    let delegate = format!("/inbox/{id}/delegate");
    let late = call(&server, &bob, Method::POST, &delegate, Some(late)).await;
    refused(&late, 409, "REQUEST_CLOSED");
    let state = server.engine.requests().get(&id).await.unwrap();
    assert_eq!((state.votes.len(), state.delegations.len()), (1, 0));
    let missing = call(&server, &ann, Method::GET, "/inbox/nothing", None).await;
    refused(&missing, 404, "REQUEST_NOT_FOUND");
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
    refused(&answer, 403, "DECIDER_EXCLUDED");
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
        refused(&answer, 403, "DECIDER_EXCLUDED");
    }
    // A request of somebody else: the decision names the key.
    let other = opened(&flow, &server, "other", Request::to("role:cfo").requester("rae")).await;
    let path = format!("/inbox/{other}/decide");
    let (status, view) = call(&server, as_ann, Method::POST, &path, yes()).await;
    assert_eq!((status, &view["decisions"][0]["keyId"]), (200, &created["id"]), "{view}");
}

async fn editors_cannot_approve_what_they_edited(kind: Kind) {
    let (flow, server, keys) = start(kind).await;
    let both = [Scope::Decide, Scope::Records];
    let person = |id: &'static str, creator| keys.of_person("default", &both, id, creator);
    let (ann, bob) = (person("ann:cfo", None).await, person("bob:cfo", None).await);
    let (dan, eve) = (person("dan", None).await, person("eve:cfo", Some("ann")).await);
    let (gus, cy) = (person("gus:cfo", None).await, person("cy:cfo", None).await);
    let program = NewKey {
        name: "program".into(),
        namespace: Namespace::default_namespace(),
        scopes: both.to_vec(),
        subject: None,
        created_by: Some(KeyCreator { subject: Some("bob".into()), ..KeyCreator::default() }),
        expires_in: None,
    };
    let program = keys.0.create(program).await.unwrap().key;
    let put = async |key: &str, id: &str, query: &str, revision: u64, value: u32| {
        let path = format!("/records/invoices/{id}{query}");
        let request = server.request(Method::PUT, &path).bearer_auth(key).json(&value);
        let request = match revision {
            0 => request.header("If-None-Match", "*"),
            _ => request.header("If-Match", format!("\"{revision}\"")),
        };
        let (status, written) = read(request).await;
        assert_eq!((status / 100, &written["revision"]), (2, &json!(revision + 1)), "{written}");
    };
    let about = async |id: &str| {
        let invoice = server.engine.records::<u32>("invoices").get(id).await.unwrap().unwrap();
        Request::to("role:cfo").about(invoice.reference())
    };
    put(&ann, "i", "?keep=true", 0, 1).await;
    put(&program, "i", "?keep=true", 1, 2).await;
    let id = opened(&flow, &server, "kept", about("i").await).await;
    let path = format!("/inbox/{id}/decide");
    let yes = || Some(json!({ "choice": "approve" }));
    let until = server.engine.core().clock().now().plus(std::time::Duration::from_secs(600));
    let mine = json!({ "to": "dan", "until": until.to_string() });
    let delegate = format!("/inbox/{id}/delegate");
    // The editor, the creator of a program key that edited, and a key that an editor created.
    for key in [&ann, &bob, &eve] {
        for (path, body) in [(&path, yes()), (&delegate, Some(mine.clone()))] {
            let answer = call(&server, key, Method::POST, path, body).await;
            refused(&answer, 403, "DECIDER_EXCLUDED");
        }
    }
    // Somebody for whom another one decides, and who then writes the same document.
    assert_eq!(call(&server, &cy, Method::POST, &delegate, Some(mine)).await.0, 200);
    put(&cy, "i", "?keep=true", 2, 2).await;
    let answer = call(&server, &dan, Method::POST, &path, yes()).await;
    refused(&answer, 403, "DECIDER_EXCLUDED");
    assert!(server.engine.requests().get(&id).await.unwrap().votes.is_empty());
    let (status, view) = call(&server, &gus, Method::POST, &path, yes()).await;
    assert_eq!((status, &view["status"]), (200, &json!("approved")), "{view}");

    // A revision that is not kept has no known editor: nobody decides.
    put(&ann, "j", "", 0, 1).await;
    put(&bob, "j", "?keep=true", 1, 2).await;
    let id = opened(&flow, &server, "not-kept", about("j").await).await;
    let path = format!("/inbox/{id}/decide");
    for key in [&ann, &gus] {
        let answer = call(&server, key, Method::POST, &path, yes()).await;
        refused(&answer, 409, "EDITORS_UNKNOWN");
    }
    assert!(server.engine.requests().get(&id).await.unwrap().votes.is_empty());
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
