//! The binary as people run it: exit codes, what it prints, and a server that dies under load.

#![allow(clippy::disallowed_methods, reason = "the tests live in the real world")]

mod admin;
mod dev;
mod errors;
mod generations;
mod help;
mod jwt;
mod kill;
mod manage;
mod relays;
mod scripted;
mod settings;
mod steady;
mod stores;
mod support;
mod telemetry;
mod terminal;
mod why;
