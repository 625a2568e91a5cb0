//! The people of a tenant, from a record or from a directory that the application has already.

use windlass_contracts::approvers::Directory;
use windlass_kernel::{BoxFuture, Error, Namespace};

/// Gives the people, roles, managers and delegations of tenants, for example from the identity provider of an
/// organisation. Without one, they come from [`super::Contracts::put_directory`].
pub trait DirectorySource: Send + Sync + 'static {
    /// The people of a tenant at this time. A run asks once for each decision that names people; a source that
    /// is slow keeps its own cache.
    ///
    /// # Errors
    ///
    /// If the source does not answer: retryable errors make the run try again, others end it.
    fn directory<'a>(&'a self, namespace: &'a Namespace)
    -> BoxFuture<'a, Result<Directory, Error>>;
}
