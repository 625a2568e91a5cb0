//! Ledgers of deleted runs over HTTP: by run, by root, page by page, and only for their tenant.

use std::time::Duration;

use reqwest::Method;
use windlass::admin::{Options as EngineOptions, Retention};
use windlass::{Ctx, Result};
use windlass_server::ServeOptions;
use windlass_server::auth::Scope;

use crate::auth::{KeyFactory, options_with_keys};
use crate::harness::{Kind, Server, assert_error, on_every_store, read, wait_until};

on_every_store!(a_kept_ledger_is_read_by_run_and_by_root,);

async fn leaf(_: Ctx, n: u32) -> Result<u32> {
    Ok(n)
}

async fn parent(ctx: Ctx, n: u32) -> Result<u32> {
    Ok(ctx.child_named("leaf", "leaf", &n).await?)
}

async fn a_kept_ledger_is_read_by_run_and_by_root(kind: Kind) {
    let (store, options) = options_with_keys();
    let brief =
        EngineOptions { create_resend_max: Duration::from_millis(250), ..EngineOptions::default() };
    let server = Server::start_as(kind, options, brief, ServeOptions::default()).await;
    server.engine.workflow("leaf", leaf).unwrap();
    let flow = server.engine.workflow("parent", parent).unwrap();
    let keys = KeyFactory::new(&store, &server);
    let ours = keys.key("default", &[Scope::Read]).await;
    let theirs = keys.key("other", &[Scope::Read]).await;
    let get = |key: &str, path: &str| read(server.request(Method::GET, path).bearer_auth(key));
    let run = flow.start(1).id("a").await.unwrap();
    run.result().await.unwrap();
    let path = format!("/ledgers/{}", run.run_key());
    assert_error(get(&ours, &path).await, (404, "RUN_NOT_FOUND"));
    let policy = Retention::keep_for(Duration::from_secs(1)).unwrap().keep_ledger();
    server.engine.admin().set_retention("parent", Some(&policy)).await.unwrap();
    wait_until("the tree is deleted", async || {
        server.engine.admin().sweep().await.unwrap();
        flow.get("a").await.is_err()
    })
    .await;
    let (status, kept) = get(&ours, &format!("{path}?pageSize=100")).await;
    assert_eq!((status, &kept["ledger"]["id"]), (200, &"a".into()), "{kept}");
    let count = kept["ledger"]["events"].as_u64().unwrap() as usize;
    assert_eq!(kept["events"].as_array().unwrap().len(), count);
    // Page by page.
    let (mut events, mut query) = (Vec::new(), "?pageSize=1".to_owned());
    loop {
        let (status, page) = get(&ours, &format!("{path}{query}")).await;
        assert_eq!(status, 200, "{page}");
        events.extend(page["events"].as_array().unwrap().clone());
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        query = format!("?pageSize=1&cursor={cursor}");
    }
    assert_eq!(&events, kept["events"].as_array().unwrap());
    let root = format!("/ledgers?root={}&pageSize=1", run.run_key());
    let (_, first) = get(&ours, &root).await;
    assert_eq!(first["ledgers"][0]["workflowName"], "parent");
    let next = first["nextCursor"].as_str().expect("the child follows");
    let (_, second) = get(&ours, &format!("{root}&cursor={next}")).await;
    assert_eq!(second["ledgers"][0]["workflowName"], "leaf");
    assert_eq!(second["hasNextPage"], false);
    assert_eq!(get(&ours, "/ledgers").await.1["ledgers"].as_array().unwrap().len(), 2);
    // Another tenant sees nothing of it.
    assert_error(get(&theirs, &path).await, (404, "RUN_NOT_FOUND"));
    for list in ["/ledgers", &root] {
        assert!(get(&theirs, list).await.1["ledgers"].as_array().unwrap().is_empty());
    }
    assert_error(get(&ours, "/ledgers/nothing").await, (404, "RUN_NOT_FOUND"));
    assert_error(get(&ours, "/ledgers?root=nothing").await, (400, "INVALID_QUERY"));
    assert_error(get(&ours, &format!("{path}?cursor=x")).await, (400, "INVALID_CURSOR"));
    server.stop().await;
}
