//! Flipped bits and truncated files: the store reports the damage, or no committed data changed.

use std::path::PathBuf;
use std::sync::Arc;

use windlass_kernel::{BoxFuture, Error, Store};
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::damage::{
    Damage, Open, Outcome, Record, Remains, examine, examine_log, write_log, write_sample,
};

use crate::support::StoreDir;

fn opener() -> Open {
    Arc::new(|path: PathBuf| -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
        let opened = SqliteStore::open(path, Options { readers: 1, ..Options::default() });
        Box::pin(std::future::ready(opened.map(|store| store as Arc<dyn Store>)))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_noticed_or_harmless() {
    let dir = StoreDir::new();
    let open = opener();
    let store = open(dir.path()).await.unwrap();
    write_sample(store.clone(), 40).await;
    let before = Record::read(&*store).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let bytes = std::fs::read(dir.path()).unwrap();
    let mut missed = Vec::new();
    let mut noticed = 0;
    for seed in 0..300 {
        let copy = StoreDir::new();
        let damage = Damage::draw(seed, bytes.len());
        std::fs::write(copy.path(), damage.inflict(&bytes)).unwrap();
        match examine(&open, copy.path(), &before).await {
            Outcome::Missed(what) => missed.push(format!("{damage:?}: {what}")),
            Outcome::Unchanged | Outcome::Beside(_) => {}
            _ => noticed += 1,
        }
    }
    assert!(missed.is_empty(), "damage was not noticed: {missed:#?}");
    assert!(noticed > 0, "no damage had an effect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_leaves_a_prefix_and_anchors_name_the_rest() {
    let dir = StoreDir::new();
    let open = opener();
    let store = open(dir.path()).await.unwrap();
    let journal = write_log(store.clone(), 100, 7).await;
    // Nothing is being written: the two files are what a crash at this moment would leave.
    let log_of = |path: &PathBuf| PathBuf::from(format!("{}-wal", path.display()));
    let bytes = std::fs::read(dir.path()).unwrap();
    let log = std::fs::read(log_of(&dir.path())).unwrap();
    store.close().await.unwrap();
    let (mut shorter, mut missed) = (0, Vec::new());
    for seed in 0..100 {
        let copy = StoreDir::new();
        let damage = Damage::draw(seed, log.len());
        std::fs::write(copy.path(), &bytes).unwrap();
        std::fs::write(log_of(&copy.path()), damage.inflict(&log)).unwrap();
        match examine_log(&open, copy.path(), &journal).await {
            Remains::Missed(what) => missed.push(format!("{damage:?}: {what}")),
            Remains::Prefix(found) => shorter += usize::from(found < journal.commits()),
            Remains::Refused(_) | Remains::Noticed(_) => {}
        }
    }
    assert!(missed.is_empty(), "neither a prefix nor noticed: {missed:#?}");
    assert!(shorter > 0, "no damage lost a commit");
}
