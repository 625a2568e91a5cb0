//! Runs the same load on Windlass and its peers, one after the other, and prints a table.

mod peer;
mod place;
mod prepare;
mod process;
mod table;
mod tasks;

use std::time::Duration;

use anyhow::ensure;
use clap::Parser;

use crate::peer::{PEERS, Peer, Program};
use crate::place::DataLocations;
use crate::prepare::Builder;
use crate::table::{Figures, Outcome, Row};

/// Runs the same load on Windlass and its peers and prints a table.
#[derive(Parser)]
pub(crate) struct Cli {
    /// The maximum number of runs of three steps.
    #[arg(long, default_value_t = 10_000)]
    runs: u64,
    /// The approximate duration of one load in seconds; slower engines do fewer runs.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// The numbers of concurrent runs. The table shows the best result of each engine.
    #[arg(long, value_delimiter = ',', default_values_t = [20, 100, 2_000])]
    in_flight: Vec<u64>,
    /// The number of sequential runs.
    #[arg(long, default_value_t = 300)]
    sequential: u64,
    /// The number of tasks in the queue load on PostgreSQL; 0 omits it.
    #[arg(long, default_value_t = 100_000)]
    tasks: u64,
    /// The peers to run, by name. Default: all. Windlass always runs.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The address of a PostgreSQL server without TLS, on which databases can be created.
    #[arg(long, env = "WINDLASS_TEST_PG")]
    dsn: Option<String>,
    /// The time limit of one load of one engine, in seconds.
    #[arg(long, default_value_t = 900)]
    timeout: u64,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    for name in &cli.only {
        let names: Vec<&str> = PEERS.iter().chain(&tasks::PEERS).map(|peer| peer.name).collect();
        ensure!(
            names.contains(&name.as_str()),
            "unknown peer {name} in --only; known peers: {}",
            names.join(", ")
        );
    }
    let builder = Builder::new()?;
    if tasks::is_wanted(&cli) {
        tasks::run(&cli, &builder, &DataLocations::new(&builder, cli.dsn.as_deref())?);
    }
    let runs = |name: &String| PEERS.iter().any(|peer| peer.name == name);
    if !cli.only.is_empty() && !cli.only.iter().any(runs) {
        return Ok(());
    }
    let wanted = |peer: &&Peer| {
        matches!(peer.program, Program::Windlass(_))
            || cli.only.is_empty()
            || cli.only.iter().any(|name| name == peer.name)
    };
    // Builds everything before the first measurement.
    let built: Vec<_> = PEERS.iter().filter(wanted).map(|p| (p, builder.build(p))).collect();
    let places = DataLocations::new(&builder, cli.dsn.as_deref())?;
    let mut rows = Vec::new();
    for (peer, program) in &built {
        eprintln!("{} on {}", peer.name, peer.store);
        let measured = match program {
            Ok(program) => measure(&cli, peer, program, &builder, &places),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        let outcome = match measured {
            Ok(figures) => Outcome::Measured(figures),
            Err(error) => Outcome::NotRun(format!("{error:#}")),
        };
        rows.push(Row { name: peer.name, version: peer.version, store: peer.store, outcome });
    }
    // Measures Windlass again at the end, so that a change of the machine's speed favours no
    // engine.
    for ((peer, program), row) in built.iter().zip(&mut rows) {
        if let (Program::Windlass(_), Ok(program), Outcome::Measured(first)) =
            (&peer.program, program, &mut row.outcome)
        {
            eprintln!("{} on {} again", peer.name, peer.store);
            match measure(&cli, peer, program, &builder, &places) {
                Ok(again) => *first = first.mean(&again),
                Err(error) => first.failed.push(format!("again at the end: {error:#}")),
            }
        }
    }
    table::print(&rows, &cli);
    Ok(())
}

/// Measures the best of the concurrent loads, and the sequential load. If an engine fails with one
/// number of callers, the others are still measured.
fn measure(
    cli: &Cli,
    peer: &Peer,
    program: &prepare::Built,
    builder: &Builder,
    places: &DataLocations,
) -> anyhow::Result<Figures> {
    let timeout = Duration::from_secs(cli.timeout);
    let run = |load: &[&str], figure: &str| -> anyhow::Result<f64> {
        let place = places.fresh(peer)?;
        let mut command = program.command(peer, load, place.address());
        let log = builder.log(peer.name, peer.store);
        let figures = process::last_json(&mut command, &log, timeout);
        place.remove()?;
        process::number(&figures?, figure)
    };
    let mut figures = Figures { in_flight: 0, runs_per_s: 0.0, p50_ms: 0.0, failed: Vec::new() };
    let steps = |runs: u64, in_flight: u64| {
        let (runs, in_flight) = (runs.to_string(), in_flight.to_string());
        run(&["steps", "--runs", &runs, "--in-flight", &in_flight], "runs_per_s")
    };
    // A short load estimates how many runs fit into the time.
    let mut pace = steps((cli.runs / 20).max(100), cli.in_flight[0]).unwrap_or(f64::INFINITY);
    for in_flight in &cli.in_flight {
        let runs = (pace * cli.seconds as f64) as u64;
        match steps(runs.max(*in_flight).min(cli.runs), *in_flight) {
            Ok(runs_per_s) => {
                pace = runs_per_s;
                eprintln!("  {in_flight} in flight: {runs_per_s:.0} runs/s");
                if runs_per_s > figures.runs_per_s {
                    (figures.in_flight, figures.runs_per_s) = (*in_flight, runs_per_s);
                }
            }
            Err(error) => {
                eprintln!("  {in_flight} in flight: {error:#}");
                figures.failed.push(format!("{in_flight} in flight: {error:#}"));
            }
        }
    }
    ensure!(figures.in_flight > 0, "{}", figures.failed.join("; "));
    figures.p50_ms = run(&["sequential", "--runs", &cli.sequential.to_string()], "p50_ms")?;
    eprintln!("  one at a time: p50 {:.2} ms", figures.p50_ms);
    Ok(figures)
}
