//! What people and programs see: text that fits the terminal, or JSON.

mod plain;
mod progress;
mod table;
mod time;

use std::io::{IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style};
use serde_json::Value;

use crate::args::Format;
use crate::exit::Failure;

pub(crate) use plain::{hanging, plain, plain_line};
pub(crate) use progress::Progress;
pub(crate) use table::Table;
pub(crate) use time::{ago, clock, left, now};

/// Where a command writes.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub(crate) format: Format,
    colours: bool,
}

impl Out {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, colours: colours(std::io::stdout().is_terminal()) }
    }

    pub(crate) fn is_text(self) -> bool {
        self.format == Format::Text
    }

    /// Prints a document; in text mode nothing, for the caller renders that itself.
    pub(crate) fn value(self, value: &Value) -> Result<(), Failure> {
        match self.format {
            Format::Text => Ok(()),
            Format::Json => self.line(&pretty(value)),
            Format::Jsonl => self.record(value),
        }
    }

    /// Prints a document on one line, as one of many.
    pub(crate) fn record(self, value: &Value) -> Result<(), Failure> {
        self.line(&plain::plain_json(value.to_string()))
    }

    /// Prints a document that is a list: in JSON Lines each item by itself.
    pub(crate) fn list(self, value: &Value, items: &str) -> Result<(), Failure> {
        match (self.format, value[items].as_array()) {
            (Format::Jsonl, Some(rows)) => rows.iter().try_for_each(|row| self.value(row)),
            _ => self.value(value),
        }
    }

    pub(crate) fn line(self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        Ok(writeln!(out, "{text}").and_then(|()| out.flush())?)
    }

    /// A table whose first line names the columns.
    pub(crate) fn table(self, columns: &[&'static str]) -> Table {
        Table::new(columns, self)
    }

    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        paint(self.colours, style, text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    /// A status of a run or a step, in its colour.
    pub(crate) fn status(self, status: &str) -> String {
        self.paint(status_style(status), status)
    }

    /// Whether something is well.
    pub(crate) fn mark(self, well: bool) -> String {
        match well {
            true => self.paint(AnsiColor::Green.on_default(), "ok"),
            false => self.paint(AnsiColor::Red.on_default().bold(), "!!"),
        }
    }

    /// The level of a log line, in its colour.
    pub(crate) fn level(self, level: &str) -> String {
        let style = match level {
            "error" => AnsiColor::Red.on_default(),
            "warn" => AnsiColor::Yellow.on_default(),
            "debug" => Style::new().dimmed(),
            _ => Style::new(),
        };
        self.paint(style, &format!("{level:<5}"))
    }
}

fn status_style(status: &str) -> Style {
    match status {
        "complete" | "completed" => AnsiColor::Green.on_default(),
        "errored" | "terminated" => AnsiColor::Red.on_default(),
        "waiting" | "pending" => AnsiColor::Yellow.on_default(),
        "paused" | "cancelled" | "skipped" => AnsiColor::Magenta.on_default(),
        "active" | "running" => AnsiColor::Cyan.on_default(),
        _ => Style::new(),
    }
}

fn paint(colours: bool, style: Style, text: &str) -> String {
    match colours {
        true => format!("{style}{text}{style:#}"),
        false => text.to_owned(),
    }
}

// A terminal that wants them, and a user who did not say otherwise.
fn colours(terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Says on standard error why the command failed, and what to do about it.
pub(crate) fn error(failure: &Failure) {
    let colours = colours(std::io::stderr().is_terminal());
    let word = paint(colours, AnsiColor::Red.on_default().bold(), "error:");
    warn(&format!("{word} {}", hanging(&plain(&failure.to_string()), 7)));
    if let Some(hint) = &failure.hint {
        let word = paint(colours, AnsiColor::Cyan.on_default().bold(), "hint:");
        warn(&format!(" {word} {}", plain(hint)));
    }
}

/// A note on standard error, which leaves standard output to the data.
pub(crate) fn note(text: &str) {
    warn(&plain(text));
}

/// A question on standard error, whose answer is typed behind it.
pub(crate) fn ask(question: &str) -> Result<(), Failure> {
    let mut out = std::io::stderr();
    Ok(write!(out, "{}", plain(question)).and_then(|()| out.flush())?)
}

fn warn(text: &str) {
    // Nobody may be listening, and a note is nothing to fail for.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// JSON as people read it.
pub(crate) fn pretty(value: &Value) -> String {
    plain::plain_json(serde_json::to_string_pretty(value).unwrap_or_default())
}

/// JSON on one line, cut to a length that a table can hold.
pub(crate) fn short_json(value: &Value, chars_max: usize) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => format!("{text:?}"),
        other => plain::plain_json(other.to_string()),
    };
    if text.chars().count() <= chars_max {
        return text;
    }
    let mut cut: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// A member of a JSON object as a cell of a table; empty if it is not there.
pub(crate) fn cell(value: &Value, key: &str) -> String {
    match &value[key] {
        Value::Null => String::new(),
        Value::String(text) => plain_line(text),
        other => plain::plain_json(other.to_string()),
    }
}

/// A member that is a text and may have several lines; empty if it is not there.
pub(crate) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().map(plain).unwrap_or_default()
}

/// A member that is a time, relative to now.
pub(crate) fn cell_ago(value: &Value, key: &str) -> String {
    value[key].as_str().map(ago).unwrap_or_default()
}

/// An error of the API as `Name: message`.
pub(crate) fn error_text(error: &Value) -> String {
    plain(&match (error["name"].as_str(), error["message"].as_str()) {
        (Some(name), Some(message)) if !name.is_empty() => format!("{name}: {message}"),
        (_, Some(message)) => message.to_owned(),
        (Some(name), None) => name.to_owned(),
        (None, None) => String::new(),
    })
}

/// Labels as `key=value`, with spaces between.
pub(crate) fn labels_text(labels: &Value) -> String {
    let Some(labels) = labels.as_object() else { return String::new() };
    let pair = |(key, value): (&String, &Value)| match value.as_str() {
        Some(value) => format!("{key}={value}"),
        None => format!("{key}={value}"),
    };
    plain_line(&labels.iter().map(pair).collect::<Vec<_>>().join(" "))
}
