//! The `windlass` binary: a development server, a production server, and commands that manage runs
//! over HTTP or maintain a store.

#![allow(
    clippy::disallowed_methods,
    reason = "the command line needs the real clock and environment"
)]

mod args;
mod client;
mod commands;
mod exit;
mod output;
mod redact;
mod retrier;
mod samples;
mod settings;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Cli;
use crate::exit::Exit;

// One thread creates a commit and another drops it. glibc's allocator takes locks for that pattern,
// which costs a fifth of the processor time under load.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // It fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match commands::run(cli).await {
        Ok(exit) => exit.into(),
        Err(failure) => {
            // A closed pipe (`windlass runs list | head`) is not an error.
            if failure.exit != Exit::Ok {
                output::error(&failure);
            }
            failure.exit.into()
        }
    }
}
