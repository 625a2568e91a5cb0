//! The interface of a provider of language models whose calls can go into batches.

use std::time::Duration;

use bytes::Bytes;
use windlass_kernel::{BoxFuture, Timestamp};

use super::provider::{ProviderError, ProviderErrorKind, ProviderResponse};

/// The batches of a provider. A client makes one attempt of each call; the lane decides about the next one.
pub trait BatchProvider: Send + Sync {
    /// The limits of the provider.
    fn limits(&self) -> BatchLimits;

    /// Creates a batch. `intent` names it: a provider with marks keeps the name, so that the batch can be found
    /// when this answer is lost.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`]. After one whose kind may be paid there may be a batch.
    fn create<'a>(
        &'a self,
        intent: &'a str,
        members: Vec<BatchMember>,
    ) -> BoxFuture<'a, Result<BatchView, ProviderError>>;

    /// Reads a batch.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`]; status 404 if the provider has no such batch.
    fn read<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>>;

    /// The batches that were created since a time, the newest first.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`].
    fn since(&self, since: Timestamp) -> BoxFuture<'_, Result<Vec<BatchView>, ProviderError>>;

    /// Cancels a batch. Members that are under way may still finish, and then they are charged.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`].
    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>>;

    /// The results of a batch that has ended.
    fn results<'a>(&'a self, batch: &'a BatchView) -> Box<dyn BatchResults + 'a>;
}

/// The results of a batch, one after the other, in any order.
pub trait BatchResults: Send {
    /// The next result, or none at their end.
    ///
    /// # Errors
    ///
    /// The reading ends before all results came: read again from the start.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<BatchLine>, ProviderError>>;
}

/// The limits of a provider for one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// The most members of a batch.
    pub members_max: usize,
    /// The most bytes of a batch.
    pub bytes_max: usize,
    /// Whether all members must name the same model.
    pub one_model: bool,
    /// Whether a batch keeps the name of its intent.
    pub marks: bool,
    /// The longest time that one creation takes. After a crash in the middle of one, the batch is searched for so
    /// long before the grace of the lane begins.
    pub create_time_max: Duration,
}

/// A request of a batch.
#[derive(Clone, Debug)]
pub struct BatchMember {
    /// Names the request within the batch.
    pub custom_id: String,
    /// The body, as for a live call.
    pub body: Bytes,
}

/// A batch as its provider shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchView {
    /// The provider's id.
    pub id: String,
    /// The provider's name for its state.
    pub state: String,
    /// Whether nothing changes any more.
    pub ended: bool,
    /// Why the provider refused the batch as a whole. None of its members is charged.
    pub refused: Option<BatchRefused>,
    /// How many members it has.
    pub total: u64,
    /// How many of them have no end yet.
    pub processing: u64,
    /// The name of its intent, if the provider keeps one.
    pub intent: Option<String>,
    /// When the provider ends it at the latest, if it says so.
    pub expires_at: Option<Timestamp>,
    /// Where its results are.
    pub results: Vec<String>,
}

impl BatchView {
    /// Whether it should have ended this long ago.
    pub(crate) fn is_over(&self, now: Timestamp, grace: Duration) -> bool {
        self.expires_at.is_some_and(|at| at.plus(grace) < now)
    }
}

/// Why a provider refused a batch as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRefused {
    /// What helps. After a limit the lane sends the same batch again; after any other error its members follow the
    /// policy of their agents.
    pub kind: ProviderErrorKind,
    /// The reason.
    pub message: String,
    /// The requests that the provider does not accept, as numbers from 0 in the order in which they were sent. Their
    /// calls fail.
    pub members: Vec<usize>,
    /// How long the provider asks to wait.
    pub retry_after: Option<Duration>,
}

/// A line of results.
#[derive(Debug)]
pub enum BatchLine {
    /// A result.
    Member {
        /// The name that the request was sent under.
        custom_id: String,
        /// How it ended.
        end: BatchEnd,
    },
    /// A line that cannot be read.
    Bad,
}

/// How a member of a batch ended. Only the first kind is charged.
#[derive(Debug)]
pub enum BatchEnd {
    /// With a message.
    Succeeded(Box<ProviderResponse>),
    /// With an error.
    Errored(ProviderError),
    /// It was cancelled.
    Cancelled,
    /// It was not sent to the model in time.
    Expired,
}
