//! Completions, man pages and the Markdown reference, generated from the clap definition.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::args::{Cli, Format};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Out;

pub(super) fn completions(shell: Shell) -> Outcome {
    // Generates into memory first: clap_complete panics if the output pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "windlass", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Exit::Ok)
}

pub(super) fn man(folder: &Path) -> Outcome {
    let shown = folder.display();
    let failed =
        |error: std::io::Error| Failure::error(format!("failed to write to {shown}: {error}"));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
    let pages = std::fs::read_dir(folder).map_err(failed)?.count();
    let text = format!("wrote {pages} pages to {shown}; read one with: man -l {shown}/windlass.1");
    Out::new(Format::Text).line(&text)?;
    Ok(Exit::Ok)
}

pub(super) fn print() -> Outcome {
    std::io::stdout().lock().write_all(markdown().as_bytes())?;
    Ok(Exit::Ok)
}

/// The Markdown reference, docs/cli.md.
pub(crate) fn markdown() -> String {
    let mut text = String::from(
        "# The command line\n\n\
         This page is the output of `windlass docs`; a test compares them.\n\
         `--help` shows the same text for each command.\n\n## Exit codes\n\n| code | meaning |\n|---|---|\n",
    );
    for (exit, meaning) in Exit::ALL {
        let _ = writeln!(text, "| {} | {meaning} |", *exit as u8);
    }
    let mut root = Cli::command().term_width(100);
    root.build();
    section(&mut text, &mut root, "windlass");
    text
}

fn section(text: &mut String, command: &mut Command, path: &str) {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## {path}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    let names: Vec<String> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
        .map(|sub| sub.get_name().to_owned())
        .collect();
    for name in names {
        if let Some(sub) = command.find_subcommand_mut(&name) {
            section(text, sub, &format!("{path} {name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_reference_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == markdown(),
            "docs/cli.md is out of date; generate it with: cargo run -- docs > docs/cli.md"
        );
    }
}
