//! Verification of a store without an engine.

use windlass_engine::description::opens_step;
use windlass_kernel::verify::{self, Anchor, Report, WholeRun};
use windlass_kernel::{Error, RunKey, Store};
use windlass_models::MODELS;

/// Verifies every run of a store, that each anchor is on the chain of its run, and the kept versions of all
/// records. Of a run of a model that this program was built without, fewer changes are noticed.
///
/// ```
/// # async fn example() -> windlass::Result<()> {
/// let store = windlass::admin::inspect_store("sqlite://app.db").await?;
/// let report = windlass::admin::verify_store(&*store, &[]).await?;
/// assert!(report.is_clean());
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The store cannot be read. Flaws are no error: see [`Report`].
pub async fn verify_store(store: &dyn Store, anchors: &[Anchor]) -> Result<Report, Error> {
    verify::verify_store(store, anchors, &opens_step(MODELS)).await
}

/// As [`verify_store`], of one run.
///
/// # Errors
///
/// The store cannot be read. Flaws are no error: see [`Report`].
pub async fn verify_one(
    store: &dyn Store,
    run_key: RunKey,
    anchors: &[Anchor],
) -> Result<Report, Error> {
    verify::verify_one(store, run_key, anchors, &opens_step(MODELS)).await
}

/// Verifies a run that is in no store.
pub(crate) fn verify_whole(whole: &WholeRun) -> Result<(), verify::Flaw> {
    whole.verify(&[], &opens_step(MODELS))
}
