//! Puts Windlass and its peers under the same load, one after the other, and prints one table.

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
use crate::place::Places;
use crate::prepare::Workshop;
use crate::table::{Figures, Outcome, Row};

/// Puts Windlass and its peers under the same load and prints one table.
#[derive(Parser)]
pub(crate) struct Cli {
    /// How many runs of three steps, at most.
    #[arg(long, default_value_t = 10_000)]
    runs: u64,
    /// About how many seconds one load may last: an engine that is slower does fewer runs.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// How many are in flight at once; of several numbers each engine is shown with its best.
    #[arg(long, value_delimiter = ',', default_values_t = [20, 100, 2_000])]
    in_flight: Vec<u64>,
    /// How many runs one after the other.
    #[arg(long, default_value_t = 300)]
    sequential: u64,
    /// How many queued tasks in the load of the queues, on PostgreSQL; 0 leaves it out.
    #[arg(long, default_value_t = 100_000)]
    tasks: u64,
    /// The peers to run, by name; all by default. Windlass always runs.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The address of a PostgreSQL server, without TLS, on which databases may be made.
    #[arg(long, env = "WINDLASS_TEST_PG")]
    dsn: Option<String>,
    /// Seconds that one load of one engine may take.
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
        ensure!(names.contains(&name.as_str()), "--only {name}: there are {}", names.join(", "));
    }
    let workshop = Workshop::new()?;
    if tasks::is_wanted(&cli) {
        tasks::run(&cli, &workshop, &Places::new(&workshop, cli.dsn.as_deref())?);
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
    // Everything is built before anything is measured.
    let built: Vec<_> = PEERS.iter().filter(wanted).map(|p| (p, workshop.build(p))).collect();
    let places = Places::new(&workshop, cli.dsn.as_deref())?;
    let mut rows = Vec::new();
    for (peer, program) in &built {
        eprintln!("{} on {}", peer.name, peer.store);
        let measured = match program {
            Ok(program) => measure(&cli, peer, program, &workshop, &places),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        let outcome = match measured {
            Ok(figures) => Outcome::Measured(figures),
            Err(error) => Outcome::NotRun(format!("{error:#}")),
        };
        rows.push(Row { name: peer.name, version: peer.version, store: peer.store, outcome });
    }
    // Again at the end, so that a machine that changes meanwhile does not favour anybody.
    for ((peer, program), row) in built.iter().zip(&mut rows) {
        if let (Program::Windlass(_), Ok(program), Outcome::Measured(first)) =
            (&peer.program, program, &mut row.outcome)
        {
            eprintln!("{} on {} again", peer.name, peer.store);
            match measure(&cli, peer, program, &workshop, &places) {
                Ok(again) => *first = first.mean(&again),
                Err(error) => first.failed.push(format!("again at the end: {error:#}")),
            }
        }
    }
    table::print(&rows, &cli);
    Ok(())
}

/// The best of the loads with many callers, and the load with one. An engine that cannot bear one
/// number of callers is measured with the others.
fn measure(
    cli: &Cli,
    peer: &Peer,
    program: &prepare::Built,
    workshop: &Workshop,
    places: &Places,
) -> anyhow::Result<Figures> {
    let timeout = Duration::from_secs(cli.timeout);
    let run = |load: &[&str], figure: &str| -> anyhow::Result<f64> {
        let place = places.fresh(peer)?;
        let mut command = program.command(peer, load, place.address());
        let log = workshop.log(peer.name, peer.store);
        let figures = process::last_json(&mut command, &log, timeout);
        place.remove()?;
        process::number(&figures?, figure)
    };
    let mut figures = Figures { in_flight: 0, runs_per_s: 0.0, p50_ms: 0.0, failed: Vec::new() };
    let steps = |runs: u64, in_flight: u64| {
        let (runs, in_flight) = (runs.to_string(), in_flight.to_string());
        run(&["steps", "--runs", &runs, "--in-flight", &in_flight], "runs_per_s")
    };
    // A first look says how many runs fit into the time.
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
