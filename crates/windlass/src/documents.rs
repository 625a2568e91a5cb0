//! Compiles the Rust blocks of the guides as doc tests. `windlass-server` and `windlass-testkit` have theirs.
//! `cargo xtask tidy` finds a page whose blocks nobody compiles.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/steps.md")]
struct Steps;

#[doc = include_str!("../../../docs/events.md")]
struct Events;

#[doc = include_str!("../../../docs/records.md")]
struct Records;

#[doc = include_str!("../../../docs/requests.md")]
struct Requests;

#[doc = include_str!("../../../docs/contracts.md")]
struct Contracts;

#[doc = include_str!("../../../docs/machines.md")]
struct Machines;

#[doc = include_str!("../../../docs/relays.md")]
struct Relays;

#[doc = include_str!("../../../docs/webhooks.md")]
struct Webhooks;

#[doc = include_str!("../../../docs/agents-providers.md")]
struct AgentsProviders;

#[doc = include_str!("../../../docs/agents.md")]
struct Agents;

#[cfg(feature = "mcp")]
#[doc = include_str!("../../../docs/mcp.md")]
struct Mcp;
