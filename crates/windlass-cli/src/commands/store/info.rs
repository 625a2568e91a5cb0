//! `windlass info`: what a store is and what is in it.

use windlass::kernel::{Health, QueueHealth};

use super::open_existing;
use crate::args::StoreArg;
use crate::exit::{Exit, Outcome};
use crate::shown::without_password;

pub(crate) async fn info(arg: StoreArg) -> Outcome {
    let store = open_existing(&arg).await?;
    let health = store.health().await?;
    println!("windlass {}", env!("CARGO_PKG_VERSION"));
    println!("store    {}", without_password(&arg.store));
    println!("clock    {}", health.now);
    print_health(&health);
    store.close().await?;
    Ok(Exit::Ok)
}

fn print_health(health: &Health) {
    if health.runs.is_empty() {
        println!("runs     none yet");
    }
    for row in &health.runs {
        println!("runs     {} {}/{} {}", row.count, row.namespace, row.workflow, row.status);
    }
    print_queue("turns", &health.turns);
    print_queue("tasks", &health.tasks);
    println!("letters  {} dead", health.dead_letters);
    println!("workers  {} live", health.workers_live);
}

fn print_queue(what: &str, queue: &QueueHealth) {
    let (ready, held, scheduled) = (queue.ready, queue.held, queue.scheduled);
    println!("{what:<8} {ready} ready, {held} held, {scheduled} scheduled");
}
