//! Records over HTTP: preconditions, listings, versions, bad input, lost answers, reserved collections.

use std::sync::Arc;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use windlass::Limits;
use windlass::Store;
use windlass::admin::Options as EngineOptions;
use windlass::kernel::{
    Actor, Body, Collection, Commit, Expect, Namespace, Op, RecordId, RecordKey, RecordOp,
    RecordPut, RecordWrite, Terms, Timestamp, WriteId,
};
use windlass_server::auth::Scope;
use windlass_server::{Options, ServeOptions};
use windlass_testkit::outage::{Outage, Reach};

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, assert_error, on_every_store, open, read, wait_until};

on_every_store!(
    a_record_is_created_changed_and_removed,
    of_two_writers_one_loses_and_sees_why,
    writers_of_any_revision_all_succeed,
    ids_are_percent_encoded,
    records_are_listed_by_term_page_by_page,
    collections_are_listed_page_by_page,
    kept_versions_are_listed_and_read,
    bad_input_is_refused_and_writes_nothing,
    reserved_collections_are_for_the_engine,
    the_limit_of_a_body_follows_the_setting,
    a_write_that_was_made_is_not_refused,
    a_lost_answer_stays_unknown,
    a_lost_answer_before_other_writes_stays_unknown,
);

const CART: &str = "/records/carts/c-7";

fn create(server: &Server, path: &str, body: &Value) -> RequestBuilder {
    server.request(Method::PUT, path).header("if-none-match", "*").json(body)
}

fn change(server: &Server, path: &str, tag: &str, body: &Value) -> RequestBuilder {
    server.request(Method::PUT, path).header("if-match", tag).json(body)
}

fn remove(server: &Server, path: &str, tag: &str) -> RequestBuilder {
    server.request(Method::DELETE, path).header("if-match", tag)
}

async fn created(server: &Server, path: &str, body: &Value) {
    let (status, answer) = read(create(server, path, body)).await;
    assert_eq!(status, 201, "{path}: {answer}");
}

/// The status, the tag and the body of an answer.
async fn tagged(request: RequestBuilder) -> (u16, String, Value) {
    let response = request.send().await.expect("an answer");
    let tag = response.headers().get("etag").map(|tag| tag.to_str().unwrap().to_owned());
    let status = response.status().as_u16();
    let text = response.text().await.expect("a body");
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, tag.unwrap_or_default(), body)
}

async fn a_record_is_created_changed_and_removed(kind: Kind) {
    let server = Server::start(kind).await;
    assert_error(server.get(CART).await, (404, "RECORD_NOT_FOUND"));
    let (status, tag, answer) = tagged(create(&server, CART, &json!({ "items": [1] }))).await;
    assert_eq!((status, tag.as_str()), (201, "\"1\""));
    assert_eq!(answer, json!({ "collection": "carts", "id": "c-7", "revision": 1 }));
    let get = || server.request(Method::GET, CART);
    assert_eq!(tagged(get()).await, (200, "\"1\"".into(), json!({ "items": [1] })));
    let head = server.request(Method::HEAD, CART).send().await.unwrap();
    assert_eq!((head.status().as_u16(), head.headers()["etag"].to_str().unwrap()), (200, "\"1\""));
    let known = tagged(get().header("if-none-match", "\"1\"")).await;
    assert_eq!((known.0, known.1.as_str(), known.2), (304, "\"1\"", json!("")));

    // The bytes are kept as they were sent, also numbers that a float cannot hold.
    let exact = "{\"b\": 12345678901234567890123, \"a\":1.10}";
    let request = server.request(Method::PUT, CART).header("if-match", "\"1\"");
    let request = request.header("content-type", "application/json").body(format!(" {exact}\n"));
    assert_eq!(tagged(request).await.1, "\"2\"");
    let text = get().send().await.unwrap().text().await.unwrap();
    assert_eq!(text, exact);
    assert_eq!(tagged(get().header("if-none-match", "\"1\"")).await.0, 200);
    let put = change(&server, &format!("{CART}?term=state:open&term=customer:u:1"), "*", &json!(3));
    assert_eq!(tagged(put).await.1, "\"3\"");
    let full = server.get_ok(&format!("{CART}?view=full")).await;
    assert_eq!(
        (&full["id"], &full["revision"], &full["value"]),
        (&json!("c-7"), &json!(3), &json!(3))
    );
    let terms =
        json!([{ "name": "customer", "value": "u:1" }, { "name": "state", "value": "open" }]);
    assert_eq!(full["terms"], terms);
    assert!(full["createdAt"].as_str() <= full["updatedAt"].as_str(), "{full}");

    let (status, removed) = read(remove(&server, CART, "\"3\"")).await;
    assert_eq!((status, &removed["revision"]), (200, &json!(4)), "{removed}");
    let gone = server.get(CART).await;
    assert!(gone.1["message"].as_str().unwrap().contains("was removed at revision 4"), "{gone:?}");
    assert_error(gone, (404, "RECORD_NOT_FOUND"));
    for tag in ["\"4\"", "\"3\"", "*"] {
        assert_error(read(remove(&server, CART, tag)).await, (404, "RECORD_NOT_FOUND"));
    }
    assert_error(read(change(&server, CART, "*", &json!(5))).await, (412, "RECORD_CONFLICT"));
    assert_error(read(change(&server, CART, "\"3\"", &json!(5))).await, (412, "RECORD_CONFLICT"));
    assert_eq!(tagged(create(&server, CART, &json!(null))).await.1, "\"5\"", "no revision repeats");
    assert_eq!(tagged(get()).await.2, Value::Null);
    assert_eq!(tagged(remove(&server, CART, "*")).await.2["revision"], 6);
    server.stop().await;
}

async fn of_two_writers_one_loses_and_sees_why(kind: Kind) {
    let server = Server::start(kind).await;
    let both = |request: fn(&Server, u64) -> RequestBuilder| {
        let (one, two) = (read(request(&server, 1)), read(request(&server, 2)));
        async { tokio::join!(one, two) }
    };
    let check =
        |(one, two): ((u16, Value), (u16, Value)), won: u16, expected: Value, found: u64| {
            let (winner, loser) = if one.0 == won { (one, two) } else { (two, one) };
            assert_eq!(winner.0, won, "{winner:?}");
            let details = json!({
                "collection": "carts", "id": "c-7", "expected": expected,
                "found": { "state": "present", "revision": found },
            });
            assert_eq!(loser.1["details"], details);
            assert!(loser.1["message"].as_str().unwrap().contains("it has revision"), "{loser:?}");
            assert_error(loser, (412, "RECORD_CONFLICT"));
            winner.1["revision"].as_u64()
        };
    let answers = both(|server, n| create(server, CART, &json!({ "writer": n }))).await;
    assert_eq!(check(answers, 201, json!({ "state": "absent" }), 1), Some(1));
    let answers = both(|server, n| change(server, CART, "\"1\"", &json!({ "writer": n }))).await;
    assert_eq!(check(answers, 200, json!({ "state": "present", "revision": 1 }), 2), Some(2));
    // The loser reads again and decides again.
    let (_, tag, _) = tagged(server.request(Method::GET, CART)).await;
    assert_eq!(read(change(&server, CART, &tag, &json!("both"))).await.0, 200);
    server.stop().await;
}

async fn writers_of_any_revision_all_succeed(kind: Kind) {
    let server = Arc::new(Server::start(kind).await);
    created(&server, CART, &json!(0)).await;
    let writers = (1..=8).map(|n| {
        let server = Arc::clone(&server);
        tokio::spawn(async move { tagged(change(&server, CART, "*", &json!(n))).await })
    });
    let mut tags = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        let (status, _, answer) = writer.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        tags.push(answer["revision"].as_u64().unwrap());
    }
    tags.sort_unstable();
    assert_eq!(tags, (2..=9).collect::<Vec<_>>());
    Arc::into_inner(server).expect("the writers have ended").stop().await;
}

async fn ids_are_percent_encoded(kind: Kind) {
    let server = Server::start(kind).await;
    let ids = [
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("Größe 漢字", "Gr%C3%B6%C3%9Fe%20%E6%BC%A2%E5%AD%97"),
        ("a+b?c#d", "a+b%3Fc%23d"),
        ("versions", "versions"),
        ("\"*\"", "%22*%22"),
    ];
    for (n, (id, encoded)) in ids.iter().enumerate() {
        let path = format!("/records/a.b:c-1/{encoded}");
        let (status, _, answer) =
            tagged(create(&server, &format!("{path}?term=n:{n}&keep=true"), &json!(n))).await;
        assert_eq!((status, &answer["id"]), (201, &json!(id)), "{answer}");
        assert_eq!(server.get_ok(&path).await, json!(n));
        assert_eq!(server.get_ok(&format!("{path}/")).await, json!(n));
        let kept = server.get_ok(&format!("{path}/versions")).await;
        assert_eq!(kept["versions"].as_array().unwrap().len(), 1, "{kept}");
        let found = server.get_ok(&format!("/records/a.b:c-1?term=n:{n}")).await;
        assert_eq!(found["records"][0]["id"], json!(id), "{found}");
    }
    // Every id can be the position of a cursor.
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for _ in 0..ids.len() {
        let page = server.get_ok(&format!("/records/a.b:c-1?limit=1{cursor}")).await;
        seen.push(page["records"][0]["id"].as_str().unwrap().to_owned());
        cursor = format!("&cursor={}", page["nextCursor"].as_str().unwrap_or_default());
    }
    assert_eq!(cursor, "&cursor=");
    seen.sort();
    let mut all: Vec<_> = ids.iter().map(|(id, _)| (*id).to_owned()).collect();
    all.sort();
    assert_eq!(seen, all);
    server.stop().await;
}

async fn records_are_listed_by_term_page_by_page(kind: Kind) {
    let server = Server::start(kind).await;
    // More rows than the server reads from the store at once.
    for n in 0..45 {
        let customer = if n % 2 == 0 { "even" } else { "odd" };
        let path = format!("/records/carts/c-{n:02}?term=customer:{customer}&term=all:yes");
        created(&server, &path, &json!({ "n": n })).await;
    }
    read(remove(&server, "/records/carts/c-04", "*")).await;
    let ids = |page: &Value| -> Vec<String> {
        let rows = page["records"].as_array().unwrap().iter();
        rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let page = server.get_ok("/records/carts?term=customer:even&limit=3").await;
    assert_eq!(ids(&page), ["c-00", "c-02", "c-06"]);
    assert_eq!((&page["hasNextPage"], &page["cursor"]), (&json!(true), &page["nextCursor"]));
    assert_eq!(page["records"][1]["value"], json!({ "n": 2 }));
    let cursor = page["cursor"].as_str().unwrap();
    let path = format!("/records/carts?term=customer:even&limit=2&cursor={cursor}");
    assert_eq!(ids(&server.get_ok(&path).await), ["c-08", "c-10"]);
    let all = server.get_ok("/records/carts?limit=100").await;
    assert_eq!((ids(&all).len(), &all["hasNextPage"]), (44, &json!(false)));
    assert_eq!(ids(&server.get_ok("/records/carts").await).len(), 25, "the default");
    assert_eq!(ids(&server.get_ok("/records/carts?term=customer:odd&limit=22").await).len(), 22);
    assert!(ids(&server.get_ok("/records/carts?term=customer:none").await).is_empty());
    assert!(ids(&server.get_ok("/records/nothing").await).is_empty());
    for (query, code) in [
        (format!("carts?cursor={cursor}"), "INVALID_CURSOR"),
        (format!("carts?term=customer:odd&cursor={cursor}"), "INVALID_CURSOR"),
        (format!("others?term=customer:even&cursor={cursor}"), "INVALID_CURSOR"),
        ("carts?term=customer".into(), "INVALID_TERM"),
        ("carts?term=a%20b:c".into(), "INVALID_TERM"),
        ("carts?term=a:%00".into(), "INVALID_TERM"),
        ("carts?term=a:b&term=c:d".into(), "INVALID_QUERY"),
        ("carts?limit=0".into(), "INVALID_PAGE_SIZE"),
        ("carts?limit=101".into(), "INVALID_PAGE_SIZE"),
        ("carts?pageSize=5".into(), "INVALID_QUERY"),
        ("a%2Fb".into(), "INVALID_NAME"),
    ] {
        assert_error(server.get(&format!("/records/{query}")).await, (400, code));
    }
    server.stop().await;
}

async fn collections_are_listed_page_by_page(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let keys = KeyFactory::new(&store, &server);
    let ours = keys.key("default", &[Scope::Records, Scope::Create, Scope::Manage]).await;
    let admin = keys.key("default", &[Scope::Admin]).await;
    let theirs = keys.key("other", &[Scope::Records]).await;
    for path in ["/records/carts/1", "/records/carts/2", "/records/stock/1", "/records/a/1"] {
        assert_eq!(read(create(&server, path, &json!(1)).bearer_auth(&ours)).await.0, 201);
    }
    // The record of the key belongs to the engine.
    let event = server.request(Method::POST, "/events/scanned/parcel-17").bearer_auth(&admin);
    assert_eq!(read(event).await.0, 200);
    let list = async |key: &str, query: &str| {
        let path = format!("/records{query}");
        let (status, page) = read(server.request(Method::GET, &path).bearer_auth(key)).await;
        assert_eq!(status, 200, "{page}");
        (page["collections"].clone(), page["nextCursor"].as_str().map(str::to_owned))
    };
    assert_eq!(list(&ours, "").await, (json!(["a", "carts", "stock"]), None));
    assert_eq!(list(&admin, "").await.0, json!(["a", "carts", "stock", "windlass.events"]));
    assert_eq!(list(&theirs, "").await, (json!([]), None));
    let (first, next) = list(&ours, "?limit=2").await;
    assert_eq!(first, json!(["a", "carts"]));
    let rest = list(&ours, &format!("?limit=2&cursor={}", next.unwrap())).await;
    assert_eq!(rest, (json!(["stock"]), None));
    let bad = |query: &str| {
        let request = server.request(Method::GET, &format!("/records{query}"));
        read(request.bearer_auth(&ours))
    };
    assert_error(bad("?limit=0").await, (400, "INVALID_PAGE_SIZE"));
    assert_error(bad("?cursor=x").await, (400, "INVALID_CURSOR"));
    server.stop().await;
}

async fn kept_versions_are_listed_and_read(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let key = KeyFactory::new(&store, &server).key("default", &[Scope::Records]).await;
    let send = |request: RequestBuilder| tagged(request.bearer_auth(&key));
    let get = |path: String| send(server.request(Method::GET, &path));
    assert_eq!(get(format!("{CART}/versions")).await.2["code"], "RECORD_NOT_FOUND");
    let at = |keep: &str| format!("{CART}?keep={keep}");
    assert_eq!(send(create(&server, &at("true"), &json!("v1"))).await.0, 201);
    for (n, keep) in [(2, "false"), (3, "true"), (4, "true")] {
        let tag = format!("\"{}\"", n - 1);
        let put = change(&server, &at(keep), &tag, &json!(format!("v{n}")));
        assert_eq!(send(put).await.0, 200);
    }
    assert_eq!(send(remove(&server, CART, "*")).await.0, 200);
    let (_, _, page) = get(format!("{CART}/versions?limit=2")).await;
    let revisions = |page: &Value| -> Vec<u64> {
        let rows = page["versions"].as_array().unwrap().iter();
        rows.map(|row| row["revision"].as_u64().unwrap()).collect()
    };
    assert_eq!((revisions(&page), &page["hasNextPage"]), (vec![4, 3], &json!(true)));
    assert_eq!(page["versions"][0].get("value"), None, "{page}");
    let cursor = page["cursor"].as_str().unwrap();
    let (_, _, rest) = get(format!("{CART}/versions?cursor={cursor}")).await;
    assert_eq!((revisions(&rest), rest.get("cursor")), (vec![1], None));
    let (status, tag, document) = get(format!("{CART}/versions/3")).await;
    assert_eq!((status, tag.as_str(), document), (200, "\"3\"", json!("v3")));
    let (_, _, full) = get(format!("{CART}/versions/3?view=full")).await;
    assert_eq!((&full["value"], &full["bytes"]), (&json!("v3"), &json!(4)));
    let digest = windlass::kernel::Body::json("\"v3\"").digest().to_string();
    assert_eq!(full["digest"], digest, "{full}");
    let id = key.trim_start_matches("wl_").split('_').next().unwrap();
    assert_eq!(full["actor"], json!(Actor::new("api_key", id)), "{full}");
    for (path, code) in [
        (format!("{CART}/versions/2"), "RECORD_VERSION_NOT_FOUND"),
        (format!("{CART}/versions/9"), "RECORD_VERSION_NOT_FOUND"),
        (format!("{CART}/versions/9223372036854775806"), "RECORD_VERSION_NOT_FOUND"),
        (format!("{CART}/versions/0"), "INVALID_REVISION"),
        (format!("{CART}/versions/18446744073709551615"), "INVALID_REVISION"),
        (format!("{CART}/versions/+1"), "INVALID_REVISION"),
        (format!("{CART}/versions/x"), "INVALID_REVISION"),
        (format!("{CART}/versions?cursor=x"), "INVALID_CURSOR"),
        (format!("/records/carts/other/versions?cursor={cursor}"), "INVALID_CURSOR"),
    ] {
        let (status, _, answer) = get(path.clone()).await;
        let expect = if code.ends_with("NOT_FOUND") { 404 } else { 400 };
        assert_eq!((status, &answer["code"]), (expect, &json!(code)), "{path}");
    }
    server.stop().await;
}

async fn bad_input_is_refused_and_writes_nothing(kind: Kind) {
    let server = Server::start(kind).await;
    created(&server, CART, &json!("before")).await;
    let put = |path: &str| server.request(Method::PUT, path).header("if-none-match", "*");
    let fine = |path: &str| put(path).json(&json!(1));
    let typed = |body: &str| {
        put("/records/carts/x").header("content-type", "application/json").body(body.to_owned())
    };
    let tag = |tag: &str| change(&server, CART, tag, &json!("after"));
    let plain = |method: Method| server.request(method, CART);
    let terms: Vec<String> = (0..33).map(|n| format!("term=t:{n}")).collect();
    let long = "x".repeat(257);
    let weak = "W/\"1\"";
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    let table = [
        (fine("/records/a%2Fb/x"), 400, "INVALID_NAME"),
        (fine(&format!("/records/{}/x", "c".repeat(65))), 400, "INVALID_NAME"),
        (fine(&format!("/records/carts/{long}")), 400, "INVALID_NAME"),
        (fine("/records/carts/a%0Ab"), 400, "INVALID_NAME"),
        (fine("/records/carts/%FF"), 400, "INVALID_PATH"),
        (fine("/records/windlass.requests/x"), 400, "COLLECTION_RESERVED"),
        (remove(&server, "/records/windlass.requests/x", "*"), 400, "COLLECTION_RESERVED"),
        (tag("\"0\""), 400, "INVALID_REVISION"),
        // As a signed number this is -1.
        (tag("\"18446744073709551615\""), 400, "INVALID_REVISION"),
        (tag("\"9223372036854775807\""), 400, "INVALID_REVISION"),
        (tag(weak), 400, "INVALID_PRECONDITION"),
        (tag("1"), 400, "INVALID_PRECONDITION"),
        (tag("\"1\", \"2\""), 400, "INVALID_PRECONDITION"),
        (tag("\"1\"").header("if-match", "\"2\""), 400, "INVALID_PRECONDITION"),
        (tag("\"1\"").header("if-none-match", "*"), 400, "INVALID_PRECONDITION"),
        (plain(Method::PUT).header("if-none-match", "\"7\"").json(&1), 400, "INVALID_PRECONDITION"),
        (plain(Method::DELETE).header("if-none-match", "*"), 400, "INVALID_PRECONDITION"),
        (remove(&server, CART, weak), 400, "INVALID_PRECONDITION"),
        (remove(&server, CART, "\"0\""), 400, "INVALID_REVISION"),
        (remove(&server, CART, "\"2\""), 412, "RECORD_CONFLICT"),
        (plain(Method::PUT).json(&json!("after")), 428, "PRECONDITION_REQUIRED"),
        (plain(Method::DELETE), 428, "PRECONDITION_REQUIRED"),
        (typed("{"), 400, "INVALID_BODY"),
        (typed(""), 400, "INVALID_BODY"),
        (typed("1 2"), 400, "INVALID_BODY"),
        (typed("NaN"), 400, "INVALID_BODY"),
        (typed(&deep), 400, "INVALID_DEPTH"),
        (put("/records/carts/x").body("1"), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (typed(&format!("\"{}\"", "x".repeat(1 << 20))), 413, "BODY_TOO_LARGE"),
        (fine(&format!("/records/carts/x?{}", terms.join("&"))), 400, "INVALID_SIZE"),
        (fine("/records/carts/x?term=a"), 400, "INVALID_TERM"),
        (fine("/records/carts/x?term=:b"), 400, "INVALID_TERM"),
        (fine("/records/carts/x?term=a%20b:c"), 400, "INVALID_TERM"),
        (fine("/records/carts/x?term=a:%07"), 400, "INVALID_TERM"),
        (fine(&format!("/records/carts/x?term=a:{long}")), 400, "INVALID_TERM"),
        (fine("/records/carts/x?keep=perhaps"), 400, "INVALID_QUERY"),
        (fine("/records/carts/x?terms=a:b"), 400, "INVALID_QUERY"),
        (server.request(Method::POST, CART).json(&1), 405, "METHOD_NOT_ALLOWED"),
    ];
    for (request, status, code) in table {
        let shown = format!("{request:?}");
        let (found, answer) = read(request).await;
        assert_eq!((found, &answer["code"]), (status, &json!(code)), "{shown}: {answer}");
        let page = format!("{}/../../docs/errors/{code}.md", env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(page).expect("each code has a page");
        assert!(page.contains(&format!("HTTP: {status}")), "{code}: {page}");
    }
    let all = server.get_ok("/records/carts?limit=100").await;
    let rows = all["records"].as_array().unwrap();
    assert_eq!(
        (rows.len(), &rows[0]["value"], &rows[0]["revision"]),
        (1, &json!("before"), &json!(1))
    );
    for other in ["windlass.requests", "nothing"] {
        let all = server.get_ok(&format!("/records/{other}")).await;
        assert_eq!(all["records"], json!([]), "{other}");
    }
    server.stop().await;
}

async fn reserved_collections_are_for_the_engine(kind: Kind) {
    let (store, options) = options_with_keys();
    let server = Server::start_with(kind, options).await;
    let keys = KeyFactory::new(&store, &server);
    let every: Vec<_> = Scope::ALL.into_iter().filter(|scope| *scope != Scope::Admin).collect();
    let member = keys.key("default", &every).await;
    let admin = keys.key("default", &[Scope::Admin]).await;
    for path in ["", "/x", "/x/versions", "/x/versions/1"] {
        let path = format!("/records/windlass.requests{path}");
        let ask = |key: &str| read(server.request(Method::GET, &path).bearer_auth(key));
        let (status, answer) = ask(&member).await;
        assert_eq!((status, &answer["details"]["scope"]), (403, &json!("admin")), "{path}");
        let status = ask(&admin).await.0;
        assert!(matches!(status, 200 | 404), "{path}: {status}");
    }
    for key in [&member, &admin] {
        let put = create(&server, "/records/windlass.requests/x", &json!(1)).bearer_auth(key);
        assert_error(read(put).await, (400, "COLLECTION_RESERVED"));
    }
    server.stop().await;
}

async fn the_limit_of_a_body_follows_the_setting(kind: Kind) {
    // The events that are kept for one key are in one record.
    let limits = Limits::default().with_record_bytes_max(1_000);
    let engine = EngineOptions { limits, ..EngineOptions::default() };
    // The limit of other bodies does not apply to records.
    let options = Options { body_bytes_max: 500, ..open() };
    let server = Server::start_as(kind, options, engine, ServeOptions::default()).await;
    let body = |bytes: usize| json!("x".repeat(bytes - 2));
    created(&server, CART, &body(1_000)).await;
    let (status, answer) = read(change(&server, CART, "*", &body(1_001))).await;
    assert!(answer["message"].as_str().unwrap().contains("larger than 1000 bytes"), "{answer}");
    assert_error((status, answer), (413, "BODY_TOO_LARGE"));
    // A body without a length.
    let put = |chunks: usize| {
        let chunks = (0..chunks).map(|_| Ok::<_, std::io::Error>(vec![b'1'; 100]));
        let body = reqwest::Body::wrap_stream(futures::stream::iter(chunks));
        let request = server.request(Method::PUT, CART).header("if-match", "*");
        read(request.header("content-type", "application/json").body(body))
    };
    assert_error(put(11).await, (413, "BODY_TOO_LARGE"));
    assert_eq!(put(10).await.0, 200);
    server.stop().await;
}

async fn start_with_outage(kind: Kind) -> (Server, Arc<Outage>) {
    let mut outage = None;
    let options: Options = open();
    let server = Server::start_on(
        kind,
        options,
        EngineOptions::default(),
        ServeOptions::default(),
        |store| {
            let around = Outage::new(store);
            outage = Some(Arc::clone(&around));
            around
        },
    );
    let server = server.await;
    (server, outage.expect("the store is wrapped"))
}

async fn a_write_that_was_made_is_not_refused(kind: Kind) {
    let (server, outage) = start_with_outage(kind).await;
    let mut revision = 0;
    for request in [
        create(&server, CART, &json!(1)),
        change(&server, CART, "\"1\"", &json!(2)),
        change(&server, CART, "*", &json!(3)),
        remove(&server, CART, "\"3\""),
        create(&server, CART, &json!(5)),
        remove(&server, CART, "*"),
    ] {
        outage.set(Reach::BlindAfterCommit);
        let (status, answer) = read(request).await;
        outage.set(Reach::Fine);
        revision += 1;
        assert!(matches!(status, 200 | 201), "{answer}");
        assert_eq!(answer["revision"], revision, "{answer}");
    }
    server.stop().await;
}

async fn a_lost_answer_stays_unknown(kind: Kind) {
    let (server, outage) = start_with_outage(kind).await;
    outage.set(Reach::ClosedAfterCommit);
    let answer = read(create(&server, CART, &json!("new"))).await;
    outage.set(Reach::Fine);
    assert_error(answer, (503, "STORE_UNKNOWN"));
    assert_eq!(server.get_ok(CART).await, json!("new"), "the commit was written");
    outage.set(Reach::ReadOnly);
    let answer = read(change(&server, CART, "\"1\"", &json!("other"))).await;
    outage.set(Reach::Fine);
    assert_error(answer, (503, "STORE_UNAVAILABLE"));
    assert_eq!(server.get_ok(CART).await, json!("new"), "nothing was written");
    server.stop().await;
}

async fn a_lost_answer_before_other_writes_stays_unknown(kind: Kind) {
    let (mut outage, mut inner) = (None, None);
    let engine = EngineOptions::default();
    let server = Server::start_on(kind, open(), engine, ServeOptions::default(), |store| {
        inner = Some(Arc::clone(&store));
        let around = Outage::new(store);
        outage = Some(Arc::clone(&around));
        around
    });
    let server = server.await;
    let (outage, inner): (Arc<Outage>, Arc<dyn Store>) = (outage.unwrap(), inner.unwrap());
    created(&server, CART, &json!("first")).await;
    let key = RecordKey {
        namespace: Namespace::default_namespace(),
        collection: Collection::new("carts").unwrap(),
        id: RecordId::new("c-7").unwrap(),
    };
    outage.set(Reach::Deaf);
    let lost = tokio::spawn(read(change(&server, CART, "\"1\"", &json!("lost"))));
    wait_until("the write is made", async || {
        let row = inner.records(vec![key.clone()]).await.unwrap().remove(0);
        row.is_some_and(|row| row.revision == 2)
    })
    .await;
    // Another writer, whose write replaces the id of the lost one.
    let put = RecordPut {
        write_id: WriteId(windlass_engine::new_uuid(
            &**server.engine.core().env(),
            Timestamp::ZERO,
        )),
        body: Body::json("\"other\""),
        terms: Terms::default(),
        keep: None,
        at: Timestamp::ZERO,
        revision: None,
    };
    let write = RecordWrite::Put(Box::new(put));
    let op = Op::Record(Box::new(RecordOp { key, expect: Expect::At(2), write }));
    inner.commit(vec![Commit::new(None, None, vec![op])]).await.remove(0).unwrap();
    outage.set(Reach::Fine);
    assert_error(lost.await.unwrap(), (409, "OUTCOME_UNKNOWN"));
    assert_eq!(server.get_ok(CART).await, json!("other"));
    server.stop().await;
}
