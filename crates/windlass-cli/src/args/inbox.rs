//! Arguments of `windlass inbox`.

use clap::{Args, Subcommand};

use super::{PageArgs, Remote};

#[derive(Args)]
pub(crate) struct InboxArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: InboxCommand,
}

#[derive(Subcommand)]
pub(crate) enum InboxCommand {
    /// List requests to people.
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  windlass inbox list                          requests that ask you
  windlass inbox list --of role:cfo --by-due
  windlass inbox list --of all --status approved"
    )]
    List {
        /// Whose requests: mine, role:ROLE, person:ID or all.
        #[arg(long, default_value = "mine", value_name = "WHO")]
        of: String,
        /// With --of all: open, approved, rejected, expired, withdrawn or stale.
        #[arg(long)]
        status: Option<String>,
        /// With --of all: the day on which open requests are due, such as 2026-11-18.
        #[arg(long, value_name = "DAY", conflicts_with = "status")]
        due: Option<String>,
        /// Those that are due next first.
        #[arg(long)]
        by_due: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show a request with its decisions and comments.
    Show {
        /// The id of the request.
        id: String,
    },
    /// Decide about a request.
    #[command(after_help = "\
Examples:
  windlass inbox decide 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10 approve
  windlass inbox decide 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10 reject --comment 'too much'
  windlass inbox decide 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10 approve --answer '{\"limit\":9}'")]
    Decide {
        /// The id of the request.
        id: String,
        /// The choice: approve, reject, or another choice of the request.
        choice: String,
        /// The answer: JSON, @FILE, or - for standard input.
        #[arg(long, value_name = "JSON")]
        answer: Option<String>,
        /// A comment.
        #[arg(long)]
        comment: Option<String>,
        /// The digest of what you have seen.
        #[arg(long, value_name = "DIGEST")]
        about: Option<String>,
    },
    /// Let another person decide for you until a time.
    #[command(after_help = "\
Examples:
  windlass inbox delegate 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10 bob --until 2026-11-30T00:00:00Z")]
    Delegate {
        /// The id of the request.
        id: String,
        /// The person who decides for you.
        to: String,
        /// When it ends, RFC 3339.
        #[arg(long, value_name = "TIME")]
        until: String,
    },
    /// Add a comment to a request.
    #[command(after_help = "\
Examples:
  windlass inbox comment 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10 'which budget is it?'")]
    Comment {
        /// The id of the request.
        id: String,
        /// The text.
        text: String,
    },
    /// Take a request back.
    #[command(after_help = "\
Examples:
  windlass inbox withdraw 0199a3c2-7a4e-7c11-9c55-2f1b8f6f2d10 --reason 'no longer needed'")]
    Withdraw {
        /// The id of the request.
        id: String,
        /// Why.
        #[arg(long)]
        reason: Option<String>,
    },
}
