//! Registers the relays, the webhooks and the mail server of the config file.

use windlass::Engine;
use windlass::mail::Mailer;
use windlass::webhooks::{WebhookTerminalHook, Webhooks};

use crate::exit::Failure;
use crate::settings::{RelaySettings, Tables};

pub(super) fn register(engine: &Engine, tables: &Tables) -> Result<(), Failure> {
    let webhooks = Webhooks::new(engine, tables.webhooks.clone())?;
    // A process without secrets leaves delivery to processes that have them.
    if tables.has_webhooks() {
        webhooks.serve(engine)?;
        webhooks.serve_contracts(engine)?;
    }
    if let Some(smtp) = &tables.smtp {
        Mailer::new(smtp.clone())?.serve(engine)?;
    }
    for relay in &tables.relays {
        serve(engine, relay, &webhooks).map_err(|error| {
            Failure::usage(format!("failed to serve relay {:?}: {error}", relay.name))
        })?;
    }
    Ok(())
}

fn serve(
    engine: &Engine,
    relay: &RelaySettings,
    webhooks: &Webhooks,
) -> Result<(), windlass::Error> {
    let runner = relay.runner()?;
    let hook = WebhookTerminalHook::new(webhooks.clone());
    let (delay, max_delay) = relay.backoff;
    let mut builder = engine.relay(&relay.name, runner, hook).backoff(delay, max_delay);
    if let Some(attempts) = relay.max_attempts {
        builder = builder.retries(attempts.saturating_sub(1));
    }
    if let Some(steps) = relay.concurrency {
        builder = builder.concurrency(steps);
    }
    builder.build().map(drop)
}
