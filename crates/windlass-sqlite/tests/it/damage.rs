//! Bits that flip and files that are cut: somebody says so, or nothing that was promised changed.

use std::path::PathBuf;
use std::sync::Arc;

use windlass_kernel::{BoxFuture, Error, Store};
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::damage::{Damage, Open, Outcome, Record, examine, write_sample};

use crate::support::Home;

fn opener() -> Open {
    Arc::new(|path: PathBuf| -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
        let opened = SqliteStore::open(path, Options { readers: 1, ..Options::default() });
        Box::pin(std::future::ready(opened.map(|store| store as Arc<dyn Store>)))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_noticed_or_harmless() {
    let home = Home::new();
    let open = opener();
    let store = open(home.path()).await.unwrap();
    write_sample(store.clone(), 40).await;
    let before = Record::read(&*store).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let bytes = std::fs::read(home.path()).unwrap();
    let mut missed = Vec::new();
    let mut noticed = 0;
    for seed in 0..150 {
        let copy = Home::new();
        let damage = Damage::draw(seed, bytes.len());
        std::fs::write(copy.path(), damage.inflict(&bytes)).unwrap();
        match examine(&open, copy.path(), &before).await {
            Outcome::Missed(what) => missed.push(format!("{damage:?}: {what}")),
            Outcome::Unchanged | Outcome::Beside(_) => {}
            _ => noticed += 1,
        }
    }
    assert!(missed.is_empty(), "nobody noticed: {missed:#?}");
    assert!(noticed > 0, "no damage did any harm");
}
