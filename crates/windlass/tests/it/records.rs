//! Records through the engine: writers that meet, removals, reserved collections, listings.

use std::sync::Arc;

use windlass::{Ctx, Engine, ErrorCode, Result};

use crate::harness::{Harness, on_every_store};

on_every_store!(
    of_two_writers_one_loses_and_sees_why,
    a_removed_record_can_be_written_again,
    writers_without_an_expectation_all_succeed,
    records_are_found_by_terms_page_by_page,
    bad_input_is_refused_and_writes_nothing,
    a_page_shows_the_records_beside_one_of_another_type,
);

async fn echo(_: Ctx, text: String) -> Result<String> {
    Ok(text)
}

// The harness verifies the ledger at the end, so each test has a run.
async fn engine_with_a_run(h: &Harness) -> Engine {
    let engine = h.engine().await;
    let flow = engine.workflow("echo", echo).unwrap();
    flow.start("a".into()).id("one").await.unwrap().result().await.unwrap();
    engine
}

async fn of_two_writers_one_loses_and_sees_why(h: Arc<Harness>) {
    let engine = engine_with_a_run(&h).await;
    let carts = engine.records::<u32>("carts");
    assert_eq!(carts.get("c").await.unwrap(), None);
    assert_eq!(carts.put("c", &1).expect_absent().keep().send().await.unwrap(), 1);
    let read = carts.get("c").await.unwrap().unwrap();
    assert_eq!((read.revision, read.value), (1, 1));
    assert_eq!(carts.put("c", &2).expect_revision(1).keep().send().await.unwrap(), 2);
    let error = carts.put("c", &3).expect_revision(read.revision).send().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RecordConflict);
    assert!(error.message().contains("to have revision 1, but it has revision 2"), "{error}");
    let error = carts.put("c", &3).expect_absent().send().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RecordConflict);
    assert_eq!(carts.get("c").await.unwrap().unwrap().value, 2);
    let versions = carts.versions("c", None, 10).await.unwrap();
    let kept: Vec<_> = versions.iter().map(|kept| (kept.revision, kept.body.read())).collect();
    assert!(matches!(kept[..], [(2, Ok(2_u32)), (1, Ok(1))]), "{kept:?}");
    let other = engine.in_namespace("other").unwrap();
    assert_eq!(other.records::<u32>("carts").get("c").await.unwrap(), None);
}

async fn a_removed_record_can_be_written_again(h: Arc<Harness>) {
    let engine = engine_with_a_run(&h).await;
    let carts = engine.records::<u32>("carts");
    carts.put("c", &1).term("t", "v").send().await.unwrap();
    let error = carts.remove("c", 2).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RecordConflict);
    assert_eq!(carts.remove("c", 1).await.unwrap(), 2);
    assert_eq!(carts.get("c").await.unwrap(), None);
    assert!(carts.find("t", "v").page(10).await.unwrap().is_empty());
    let error = carts.put("c", &2).expect_revision(1).send().await.unwrap_err();
    assert!(error.message().contains("it was removed at revision 2"), "{error}");
    assert_eq!(carts.put("c", &2).expect_absent().send().await.unwrap(), 3);
    assert_eq!(carts.remove("c", 3).await.unwrap(), 4);
    assert_eq!(carts.put("c", &3).send().await.unwrap(), 5);
}

async fn writers_without_an_expectation_all_succeed(h: Arc<Harness>) {
    let engine = engine_with_a_run(&h).await;
    let carts = Arc::new(engine.records::<u32>("carts"));
    let mut writers = Vec::new();
    // A writer gives up with an error after 64 rounds, so none takes more. It cannot need more: each round that it
    // loses is a write of another one of the 63.
    for writer in 0..64 {
        let carts = Arc::clone(&carts);
        writers.push(tokio::spawn(async move { carts.put("c", &writer).send().await.unwrap() }));
    }
    let mut revisions = Vec::new();
    for writer in writers {
        revisions.push(writer.await.unwrap());
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=64).collect::<Vec<u64>>());
}

async fn records_are_found_by_terms_page_by_page(h: Arc<Harness>) {
    let engine = engine_with_a_run(&h).await;
    let carts = engine.records::<u32>("carts");
    for (id, customer) in [("a", "u-1"), ("b", "u-2"), ("c", "u-1"), ("d", "u-1")] {
        carts.put(id, &1).term("customer", customer).term("state", "open").send().await.unwrap();
    }
    let page = carts.find("customer", "u-1").page(2).await.unwrap();
    let ids: Vec<_> = page.iter().map(|cart| cart.id.as_str()).collect();
    assert_eq!(ids, ["a", "c"]);
    let rest = carts.find("customer", "u-1").after(page[1].id.clone()).page(2).await.unwrap();
    assert_eq!(rest.iter().map(|cart| cart.id.as_str()).collect::<Vec<_>>(), ["d"]);
    assert!(rest[0].terms.contains("state", "open"));
    assert_eq!(carts.all().page(10).await.unwrap().len(), 4);
}

async fn bad_input_is_refused_and_writes_nothing(h: Arc<Harness>) {
    let engine = engine_with_a_run(&h).await;
    let carts = engine.records::<String>("carts");
    let large = "x".repeat(1 << 20);
    let reserved = engine.records::<String>("windlass.requests");
    let slash = engine.records::<String>("a/b");
    let text = "1".to_owned();
    let table = [
        (reserved.put("c", &text).send().await.unwrap_err(), ErrorCode::CollectionReserved),
        (reserved.remove("c", 1).await.unwrap_err(), ErrorCode::CollectionReserved),
        (slash.put("c", &text).send().await.unwrap_err(), ErrorCode::InvalidName),
        (slash.all().page(1).await.unwrap_err(), ErrorCode::InvalidName),
        (carts.put("..", &text).send().await.unwrap_err(), ErrorCode::InvalidName),
        (carts.put("", &text).send().await.unwrap_err(), ErrorCode::InvalidName),
        (carts.put("c", &text).term("a b", "").send().await.unwrap_err(), ErrorCode::InvalidTerm),
        (carts.put("c", &large).send().await.unwrap_err(), ErrorCode::InvalidSize),
        (
            carts.put("c", &text).expect_revision(0).send().await.unwrap_err(),
            ErrorCode::InvalidRevision,
        ),
        (carts.all().page(0).await.unwrap_err(), ErrorCode::InvalidPageSize),
    ];
    for (error, code) in table {
        assert_eq!(error.code(), code, "{error}");
    }
    assert!(carts.all().page(10).await.unwrap().is_empty());
    assert_eq!(reserved.get("c").await.unwrap(), None, "reading is allowed");
}

async fn a_page_shows_the_records_beside_one_of_another_type(h: Arc<Harness>) {
    let engine = engine_with_a_run(&h).await;
    let carts = engine.records::<u32>("carts");
    for (id, value) in [("a", 1), ("c", 3)] {
        carts.put(id, &value).send().await.unwrap();
    }
    engine.records::<String>("carts").put("b", &"two".to_owned()).send().await.unwrap();
    let error = carts.all().page(10).await.unwrap_err();
    assert!(error.message().contains("carts/b"), "{error}");
    let page = carts.all().page_of_any(10).await.unwrap();
    let shown: Vec<String> = page
        .into_iter()
        .map(|found| found.map_or_else(|e| e.code().to_string(), |found| found.value.to_string()))
        .collect();
    assert_eq!(shown, ["1", "INVALID_BODY", "3"]);
}
