//! Tests of the binary: exit codes, output, and servers that are killed under load.

#![allow(clippy::disallowed_methods, reason = "the tests run real processes")]

mod admin;
mod agents;
mod collector;
mod contracts;
mod dev;
mod documents;
mod errors;
mod events;
mod evidence;
mod fake_server;
mod genai;
mod generations;
mod help;
mod inbox;
mod jwt;
mod kill;
mod llm;
mod manage;
mod mcp;
mod records;
mod relays;
mod settings;
mod stores;
mod support;
mod telemetry;
mod terminal;
mod toy_model;
mod waiting;
mod why;
