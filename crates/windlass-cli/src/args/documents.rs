//! Arguments of `windlass documents` and `windlass approvals`.

use clap::{Args, Subcommand};

use super::Remote;

#[derive(Args)]
pub(crate) struct DocumentsArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: DocumentsCommand,
}

/// The type and the id of a document.
#[derive(Args)]
pub(crate) struct DocumentRef {
    /// The document type.
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    /// The id of the document.
    pub(crate) id: String,
}

/// The part of a listing.
#[derive(Args)]
pub(crate) struct AfterArgs {
    /// Begin after the row with this id.
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<String>,
    /// The most rows.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) limit: u32,
}

#[derive(Subcommand)]
pub(crate) enum DocumentsCommand {
    /// Create a document and start its run.
    #[command(after_help = "\
Examples:
  windlass documents create invoice i-7 @invoice.json")]
    Create {
        #[command(flatten)]
        document: DocumentRef,
        /// The content: JSON, @FILE, or - for standard input.
        #[arg(value_name = "JSON")]
        content: String,
    },
    /// Print the content of a document. Its version and state go to standard error.
    #[command(after_help = "\
Examples:
  windlass documents get invoice i-7
  windlass documents get invoice i-7 --version 1
  windlass documents get invoice i-7 -o json   with state, open actions and audit note")]
    Get {
        #[command(flatten)]
        document: DocumentRef,
        /// A version of the content, instead of the current one.
        #[arg(long, value_name = "N")]
        version: Option<u64>,
    },
    /// List the documents of a type by id.
    #[command(visible_alias = "ls")]
    List {
        /// The document type.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// Only documents in this state.
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        page: AfterArgs,
    },
    /// Replace the content of a document that has the expected version.
    #[command(after_help = "\
Examples:
  windlass documents edit invoice i-7 @invoice.json --if-version 1 --reason 'wrong total'")]
    Edit {
        #[command(flatten)]
        document: DocumentRef,
        /// The content: JSON, @FILE, or - for standard input.
        #[arg(value_name = "JSON")]
        content: String,
        /// The version that you have read.
        #[arg(long, value_name = "N")]
        if_version: u64,
        /// Why.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Call an action of a document, such as submit or cancel.
    #[command(after_help = "\
Examples:
  windlass documents act invoice i-7 submit")]
    Act {
        #[command(flatten)]
        document: DocumentRef,
        /// The name of the action.
        action: String,
        /// Why.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Create a document that amends a locked one.
    #[command(after_help = "\
Examples:
  windlass documents amend invoice i-7 i-7a")]
    Amend {
        #[command(flatten)]
        document: DocumentRef,
        /// The id of the new document.
        new_id: String,
    },
    /// Show the fields that differ between two versions.
    #[command(after_help = "\
Examples:
  windlass documents diff invoice i-7 1 2")]
    Diff {
        #[command(flatten)]
        document: DocumentRef,
        /// The earlier version.
        from: u64,
        /// The later version.
        to: u64,
    },
    /// Show where the run of a document stands.
    #[command(after_help = "\
Examples:
  windlass documents position invoice i-7")]
    Position {
        #[command(flatten)]
        document: DocumentRef,
    },
    /// List the requests for approval of a document, open and closed.
    #[command(after_help = "\
Examples:
  windlass documents approvals invoice i-7")]
    Approvals {
        #[command(flatten)]
        document: DocumentRef,
        #[command(flatten)]
        page: AfterArgs,
    },
    /// Rebuild the state of a run from its steps, and compare it. The exit code is 1 if it differs.
    #[command(after_help = "\
Examples:
  windlass documents rebuild invoice i-7")]
    Rebuild {
        #[command(flatten)]
        document: DocumentRef,
    },
    /// Make the run of a document go on: wake it, retry a failed run, or restart a terminated one.
    #[command(after_help = "\
Examples:
  windlass documents advance invoice i-7")]
    Advance {
        #[command(flatten)]
        document: DocumentRef,
    },
    /// End the run of a document at once. `advance` begins a run at the state of the document.
    #[command(after_help = "\
Examples:
  windlass documents fail invoice i-7 --reason 'wrong definition'")]
    Fail {
        #[command(flatten)]
        document: DocumentRef,
        /// Why.
        #[arg(long)]
        reason: String,
    },
    /// List your notifications, the newest first.
    #[command(after_help = "\
Examples:
  windlass documents notifications --as rita")]
    Notifications {
        #[command(flatten)]
        page: AfterArgs,
    },
    /// Dismiss one of your notifications.
    #[command(after_help = "\
Examples:
  windlass documents dismiss fffa2c…")]
    Dismiss {
        /// The id of the notification.
        id: String,
    },
}

#[derive(Args)]
pub(crate) struct ApprovalsArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: ApprovalsCommand,
}

/// A decision about a request for approval.
#[derive(Args)]
pub(crate) struct VerdictArgs {
    /// The id of the request.
    pub(crate) id: String,
    /// The digest of the content that you have seen, as `show` and `list` print it.
    #[arg(long)]
    pub(crate) digest: String,
    /// Why.
    #[arg(long)]
    pub(crate) reason: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List the open requests for approval that ask you.
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        page: AfterArgs,
    },
    /// Show a request for approval with its decisions.
    #[command(after_help = "\
Examples:
  windlass approvals show 4c1f…")]
    Show {
        /// The id of the request.
        id: String,
    },
    /// Approve the content with a digest.
    #[command(after_help = "\
Examples:
  windlass approvals approve 4c1f… --digest 9a0b…
  windlass approvals approve 4c1f… --digest 9a0b… --reason 'matches the order'")]
    Approve(VerdictArgs),
    /// Reject the content with a digest.
    #[command(after_help = "\
Examples:
  windlass approvals reject 4c1f… --digest 9a0b… --reason 'no order'")]
    Reject(VerdictArgs),
    /// Leave the decision to the others who are asked.
    #[command(after_help = "\
Examples:
  windlass approvals abstain 4c1f… --digest 9a0b…")]
    Abstain(VerdictArgs),
    /// Let another person decide instead of you.
    #[command(after_help = "\
Examples:
  windlass approvals delegate 4c1f… bob")]
    Delegate {
        /// The id of the request.
        id: String,
        /// The person who decides.
        to: String,
    },
}
