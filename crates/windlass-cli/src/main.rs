//! The binary `windlass`: opens a store, says what is in it, and verifies it.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use windlass::Store;
use windlass::kernel::verify::{Anchor, Report, verify_store};
use windlass::kernel::{Health, QueueHealth};

/// Durable workflows: one SQLite file, or PostgreSQL for many machines.
#[derive(Parser)]
#[command(name = "windlass", version)]
struct Cli {
    /// Where the state is kept: `sqlite:PATH`, `postgres://…` or `memory:`.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "WINDLASS_STORE",
        hide_env_values = true,
        default_value = "sqlite:.windlass/windlass.db"
    )]
    store: String,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Says what the store is and what is in it. The default.
    Info,
    /// Recomputes the hash chain of every run, and what its events say of its rows.
    ///
    /// Ends with 1 if anything is wrong.
    Verify {
        /// Heads that were saved before: each must still lie on its run's chain.
        #[arg(long, value_name = "FILE")]
        anchors: Option<PathBuf>,
        /// Saves the heads of all runs, to be kept where the store's owner cannot change them.
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(code) => code,
        Err(error) => {
            // Each error tells its own source, so only the outermost two are needed.
            eprint!("error: {error}");
            match error.source() {
                Some(source) => eprintln!(": {source}"),
                None => eprintln!(),
            }
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let shown = without_password(&cli.store);
    let opened = windlass::open_store(&cli.store).await;
    let store = opened.with_context(|| format!("the store {shown} cannot be opened"))?;
    let code = match cli.command.unwrap_or(Command::Info) {
        Command::Info => info(&*store, &shown).await?,
        Command::Verify { anchors, save } => verify(&*store, anchors, save).await?,
    };
    store.close().await?;
    Ok(code)
}

async fn info(store: &dyn Store, shown: &str) -> anyhow::Result<ExitCode> {
    let health = store.health().await?;
    println!("windlass {}", env!("CARGO_PKG_VERSION"));
    println!("store    {shown}");
    println!("clock    {}", health.now);
    print_health(&health);
    println!();
    println!("This build has the kernel and its stores; workflows come with the engine. Try:");
    println!("  cargo run --release -- verify     recompute every run's hash chain");
    println!("  cargo xtask test                  try to break the stores");
    println!("  cargo run --release -p windlass-bench -- store --store sqlite");
    Ok(ExitCode::SUCCESS)
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
    println!("workers  {} live", health.workers_live);
}

fn print_queue(what: &str, queue: &QueueHealth) {
    let (ready, held, scheduled) = (queue.ready, queue.held, queue.scheduled);
    println!("{what:<8} {ready} ready, {held} held, {scheduled} scheduled");
}

async fn verify(
    store: &dyn Store,
    anchors: Option<PathBuf>,
    save: Option<PathBuf>,
) -> anyhow::Result<ExitCode> {
    let anchors = match anchors {
        Some(path) => read_anchors(&path)?,
        None => Vec::new(),
    };
    let damage = store.check().await?;
    let report = verify_store(store, &anchors).await?;
    for sentence in &damage {
        println!("damaged: {sentence}");
    }
    print_report(&report, anchors.len());
    let clean = damage.is_empty() && report.is_clean();
    if let Some(path) = save {
        if !clean {
            println!("no anchors were saved: what is wrong must not become what is right");
        } else {
            let lines: Vec<String> = report.anchors.iter().map(Anchor::to_string).collect();
            std::fs::write(&path, lines.join("\n") + "\n")
                .with_context(|| format!("{} cannot be written", path.display()))?;
            println!("{} anchors saved to {}", lines.len(), path.display());
        }
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_anchors(path: &PathBuf) -> anyhow::Result<Vec<Anchor>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(n, line): (usize, &str)| {
        let anchor = line.parse::<Anchor>();
        anchor.with_context(|| format!("{} line {}", path.display(), n + 1))
    };
    lines.map(parse).collect()
}

fn print_report(report: &Report, anchors: usize) {
    for sentence in &report.unreadable {
        println!("unreadable: {sentence}");
    }
    for flaw in &report.flaws {
        println!("flawed: {flaw}");
    }
    let (runs, events, flaws) = (report.runs, report.events, report.flaws.len());
    println!("{runs} runs, {events} events, {anchors} anchors: {flaws} flaws");
}

/// The address as it may be shown, without a password in any of the places one can be.
fn without_password(url: &str) -> String {
    let mut shown = url.to_owned();
    if let Some(at) = authority_password(url) {
        shown.replace_range(at, "…");
    }
    if let Some(at) = shown.find("password=") {
        let start = at + "password=".len();
        let length = shown[start..].find(['&', ' ']).unwrap_or(shown.len() - start);
        shown.replace_range(start..start + length, "…");
    }
    shown
}

/// Where the password of `scheme://user:password@host` stands.
fn authority_password(url: &str) -> Option<Range<usize>> {
    let start = url.find("://")? + "://".len();
    let length = url[start..].find(['/', '?']).unwrap_or(url.len() - start);
    let user_end = start + url[start..start + length].rfind('@')?;
    let password = start + url[start..user_end].find(':')? + 1;
    Some(password..user_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, expect) in [
            ("sqlite:.windlass/windlass.db", "sqlite:.windlass/windlass.db"),
            ("postgres://me@host:5432/db", "postgres://me@host:5432/db"),
            ("postgres://me:secret@host:5432/db", "postgres://me:…@host:5432/db"),
            ("postgres://me:se@cret@host/db?a=b@c", "postgres://me:…@host/db?a=b@c"),
            ("postgres://host/db", "postgres://host/db"),
            ("postgres://host/db?password=secret&a=b", "postgres://host/db?password=…&a=b"),
            ("host=localhost password=secret", "host=localhost password=…"),
        ] {
            assert_eq!(without_password(url), expect);
        }
    }
}
