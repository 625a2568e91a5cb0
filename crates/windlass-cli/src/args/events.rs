//! Arguments of `windlass events`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Remote, duration};

#[derive(Args)]
pub(crate) struct KeyEventsArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: EventsCommand,
}

#[derive(Subcommand)]
pub(crate) enum EventsCommand {
    /// Send an event to a key. Every run that waits for this type and key gets it once.
    #[command(after_help = "\
Examples:
  windlass events send scanned parcel-17 --payload '{\"place\":\"Oslo\"}'
  windlass events send scanned parcel-17 --payload @scan.json --event-id scan-1 --ttl 2d")]
    Send(Box<SendByKeyArgs>),
}

#[derive(Args)]
pub(crate) struct SendByKeyArgs {
    /// The type of the event.
    #[arg(value_name = "TYPE")]
    pub(crate) event_type: String,
    /// The key.
    pub(crate) key: String,
    /// The payload of the event: JSON, `@FILE`, or `-` for standard input.
    #[arg(short, long, value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// An id for deduplication: the server ignores a second event with the same id.
    #[arg(long, value_name = "ID")]
    pub(crate) event_id: Option<String>,
    /// How long the event is kept for runs that begin to wait later. [default: the setting `event_ttl` of
    /// the server]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
}
