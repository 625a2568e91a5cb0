//! Serves documents in the servers of this program.

use std::time::Duration;

use windlass::Engine;
use windlass::contracts::Contracts;

use crate::exit::Failure;
use crate::settings::Tables;

/// How often a server looks for stuck documents.
const STUCK_EVERY: Duration = Duration::from_secs(60);

/// The documents of a store. The program has no actions of its own, so definitions use the built-in ones.
pub(crate) async fn open(engine: &Engine, tables: &Tables) -> Result<Contracts, Failure> {
    let mut builder = Contracts::builder().watch_stuck(STUCK_EVERY);
    if tables.has_webhooks() {
        builder = builder.webhooks();
    }
    if tables.smtp.is_some() {
        builder = builder.mail();
    }
    Ok(builder.open(engine.core()).await?)
}
