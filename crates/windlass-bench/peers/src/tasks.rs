//! The second load: a queue of empty tasks on PostgreSQL.

use std::time::Duration;

use serde_json::{Value, json};

use crate::peer::{Load, Peer, Program, Store};
use crate::place::DataLocations;
use crate::prepare::Builder;
use crate::{Cli, process};

/// Engines with a task queue. Windlass runs first and last, so that a change of the machine's speed
/// favours no engine.
pub(crate) const PEERS: [Peer; 3] = [WINDLASS, GRAPHILE, WINDLASS];

const WINDLASS: Peer = Peer {
    name: "windlass",
    version: "",
    store: Store::Postgres,
    program: Program::Windlass(Load::Steps),
};

const GRAPHILE: Peer = Peer {
    name: "graphile-worker",
    version: "0.17.3",
    store: Store::Postgres,
    program: Program::Node("graphile.mjs"),
};

/// The concurrency of Windlass: the size of the other engine's local queue.
const SLOTS: &str = "500";

/// Whether this load runs: only task queues take part in it.
pub(crate) fn is_wanted(cli: &Cli) -> bool {
    cli.tasks > 0 && (cli.only.is_empty() || cli.only.iter().any(|name| name == GRAPHILE.name))
}

/// Runs the load and prints the figures.
pub(crate) fn run(cli: &Cli, builder: &Builder, places: &DataLocations) {
    let mut rates = Vec::new();
    for peer in &PEERS {
        let rate = measure(cli, peer, builder, places);
        match &rate {
            Ok(rate) => println!("{} {}: {rate:.0} tasks/s", peer.name, peer.version),
            Err(error) => println!("{} {}: not run: {error:#}", peer.name, peer.version),
        }
        rates.push(rate.ok());
    }
    let ratio = ratio(&rates);
    if let Some(ratio) = ratio {
        println!("windlass ÷ graphile-worker: {ratio:.2}");
    }
    if cli.json {
        println!("{}", object(cli.tasks, &rates, ratio));
    }
}

fn measure(
    cli: &Cli,
    peer: &Peer,
    builder: &Builder,
    places: &DataLocations,
) -> anyhow::Result<f64> {
    let built = builder.build(peer)?;
    let place = places.fresh(peer)?;
    let tasks = cli.tasks.to_string();
    let mut load = vec!["tasks", "--tasks", &tasks];
    if matches!(peer.program, Program::Windlass(_)) {
        load.extend(["--slots", SLOTS]);
    }
    let mut command = built.command(peer, &load, place.address());
    let log = builder.log(peer.name, peer.store);
    let figures = process::last_json(&mut command, &log, Duration::from_secs(cli.timeout));
    place.remove()?;
    process::number(&figures?, "tasks_per_s")
}

/// The ratio of Windlass's mean to the peer.
fn ratio(rates: &[Option<f64>]) -> Option<f64> {
    match rates {
        [Some(before), Some(peer), Some(after)] => Some(f64::midpoint(*before, *after) / peer),
        _ => None,
    }
}

fn object(tasks: u64, rates: &[Option<f64>], ratio: Option<f64>) -> Value {
    let peers: Vec<Value> = PEERS
        .iter()
        .zip(rates)
        .map(
            |(peer, rate)| json!({"peer": peer.name, "version": peer.version, "tasks_per_s": rate}),
        )
        .collect();
    json!({"tasks": tasks, "peers": peers, "ratio": ratio})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_uses_the_mean_and_needs_all_figures() {
        assert_eq!(ratio(&[Some(10.0), Some(4.0), Some(6.0)]), Some(2.0));
        assert_eq!(ratio(&[Some(10.0), None, Some(6.0)]), None);
    }
}
