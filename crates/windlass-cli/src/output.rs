//! Output of the commands: text for a terminal, or JSON.

mod progress;
mod sanitize;
mod table;
mod time;

use std::io::{IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style};
use serde_json::Value;

use crate::args::Format;
use crate::exit::Failure;

pub(crate) use progress::Progress;
pub(crate) use sanitize::{indent_continuation, sanitize, sanitize_line};
pub(crate) use table::Table;
pub(crate) use time::{ago, clock, now, time_until};

/// Standard output with the format of a command.
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

    /// Prints a document in JSON formats. Does nothing in text mode: the caller prints the text
    /// itself.
    pub(crate) fn value(self, value: &Value) -> Result<(), Failure> {
        match self.format {
            Format::Text => Ok(()),
            Format::Json => self.line(&pretty(value)),
            Format::Jsonl => self.record(value),
        }
    }

    /// Prints JSON as it is, apart from characters that control a terminal.
    pub(crate) fn raw(self, json: &str) -> Result<(), Failure> {
        self.line(&sanitize::sanitize_json(json.to_owned()))
    }

    /// Prints a document on one line, as one item of a sequence.
    pub(crate) fn record(self, value: &Value) -> Result<(), Failure> {
        self.line(&sanitize::sanitize_json(value.to_string()))
    }

    /// Prints a document that contains a list. JSON Lines prints one line per item.
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

    /// Creates a table with these column headings.
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

    /// Colours the status of a run or step.
    pub(crate) fn status(self, status: &str) -> String {
        self.paint(status_style(status), status)
    }

    /// The marker of a passed or failed check.
    pub(crate) fn check_mark(self, ok: bool) -> String {
        match ok {
            true => self.paint(AnsiColor::Green.on_default(), "ok"),
            false => self.paint(AnsiColor::Red.on_default().bold(), "!!"),
        }
    }

    /// Colours the level of a log line.
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

// See https://no-color.org.
fn colours(terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints a failure and its hint to standard error.
pub(crate) fn error(failure: &Failure) {
    let colours = colours(std::io::stderr().is_terminal());
    let word = paint(colours, AnsiColor::Red.on_default().bold(), "error:");
    warn(&format!("{word} {}", indent_continuation(&sanitize(&failure.to_string()), 7)));
    if let Some(hint) = &failure.hint {
        let word = paint(colours, AnsiColor::Cyan.on_default().bold(), "hint:");
        warn(&format!(" {word} {}", sanitize(hint)));
    }
}

/// Prints a note to standard error, so that standard output has only data.
pub(crate) fn note(text: &str) {
    warn(&sanitize(text));
}

/// Prints a question to standard error, without a line break.
pub(crate) fn ask(question: &str) -> Result<(), Failure> {
    let mut out = std::io::stderr();
    Ok(write!(out, "{}", sanitize(question)).and_then(|()| out.flush())?)
}

fn warn(text: &str) {
    // A closed standard error must not fail the command.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Formats JSON with indentation.
pub(crate) fn pretty(value: &Value) -> String {
    sanitize::sanitize_json(serde_json::to_string_pretty(value).unwrap_or_default())
}

/// Formats JSON on one line, truncated to `chars_max`.
pub(crate) fn short_json(value: &Value, chars_max: usize) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => format!("{text:?}"),
        other => sanitize::sanitize_json(other.to_string()),
    };
    if text.chars().count() <= chars_max {
        return text;
    }
    let mut cut: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Formats a member of a JSON object as a table cell; empty if it is missing.
pub(crate) fn cell(value: &Value, key: &str) -> String {
    match &value[key] {
        Value::Null => String::new(),
        Value::String(text) => sanitize_line(text),
        other => sanitize::sanitize_json(other.to_string()),
    }
}

/// A string member that may have several lines; empty if it is missing.
pub(crate) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().map(sanitize).unwrap_or_default()
}

/// A time member, relative to now.
pub(crate) fn cell_ago(value: &Value, key: &str) -> String {
    match &value[key] {
        Value::String(text) => ago(text),
        // Records hold microseconds.
        Value::Number(us) => us
            .as_i64()
            .map(|us| ago(&windlass::Timestamp::from_micros(us).to_string()))
            .unwrap_or_default(),
        _ => String::new(),
    }
}

/// Formats an API error as `Name: message`.
pub(crate) fn error_text(error: &Value) -> String {
    sanitize(&match (error["name"].as_str(), error["message"].as_str()) {
        (Some(name), Some(message)) if !name.is_empty() => format!("{name}: {message}"),
        (_, Some(message)) => message.to_owned(),
        (Some(name), None) => name.to_owned(),
        (None, None) => String::new(),
    })
}

/// Formats labels as `key=value`, separated by spaces.
pub(crate) fn labels_text(labels: &Value) -> String {
    let Some(labels) = labels.as_object() else { return String::new() };
    let pair = |(key, value): (&String, &Value)| match value.as_str() {
        Some(value) => format!("{key}={value}"),
        None => format!("{key}={value}"),
    };
    sanitize_line(&labels.iter().map(pair).collect::<Vec<_>>().join(" "))
}
