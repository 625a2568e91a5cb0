//! The binary `windlass`: a development server, a production server, and the commands that operate
//! runs over HTTP or look after a store.

#![allow(clippy::disallowed_methods, reason = "the command line lives in the real world")]

mod args;
mod client;
mod commands;
mod exit;
mod output;
mod patience;
mod samples;
mod settings;
mod shown;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Cli;
use crate::exit::Exit;

// A commit is made by one thread and dropped by another, which the allocator of glibc pays for with
// locks: a fifth of the processor time of a load.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::run(cli).await {
        Ok(exit) => exit.into(),
        Err(failure) => {
            // A reader that went away (`windlass runs list | head`) is no failure to speak of.
            if failure.exit != Exit::Ok {
                output::error(&failure);
            }
            failure.exit.into()
        }
    }
}
