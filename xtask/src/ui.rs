//! `cargo xtask ui`: checks the sources of the dashboard, builds it again, compares the output with the
//! committed one, and opens every view in a browser. This is the only command that needs Node and npm.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::interrupt::Interrupt;
use crate::{packages, process, workspace};

const NODE: &str = "Install Node 20.19 or later with npm: https://nodejs.org/.";

/// Runs all checks. The committed output must be what the sources give.
pub(crate) fn run(root: &Path, interrupt: &Interrupt) -> Result<ExitCode> {
    if process::capture(Command::new("npm").arg("--version")).is_err() {
        bail!("the dashboard needs npm, and none was found. {NODE}");
    }
    packages::chromium(interrupt)?;
    let ui = root.join("crates/windlass-server/ui");
    let committed = generated(&ui)?;
    write_openapi(root, &ui)?;
    let binary = workspace::target_dir(root).join("debug/examples/showcase");
    let npm = |args: &[&str]| -> Result<bool> {
        println!("npm {}", args.join(" "));
        let mut npm = Command::new("npm");
        npm.args(args).current_dir(&ui).env("SHOWCASE", &binary).stdin(Stdio::null());
        Ok(process::run(&mut npm, interrupt)?.success())
    };
    for args in [
        &["ci", "--no-audit", "--no-fund"][..],
        &["run", "types"],
        &["run", "lint"],
        &["run", "check"],
        &["run", "test"],
        &["run", "build"],
    ] {
        if !npm(args)? {
            return Ok(ExitCode::FAILURE);
        }
    }
    if generated(&ui)? != committed {
        println!(
            "the committed output of the dashboard differs from what its sources give; it was written \
             again: commit it"
        );
        return Ok(ExitCode::FAILURE);
    }
    let mut cargo = workspace::cargo(root);
    cargo
        .args(["build", "-p", "windlass-server", "--all-features", "--example", "showcase"])
        .stdin(Stdio::null());
    if !process::run(&mut cargo, interrupt)?.success() || !npm(&["run", "views"])? {
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn write_openapi(root: &Path, ui: &Path) -> Result<()> {
    let mut cargo = workspace::cargo(root);
    cargo.args([
        "run",
        "--quiet",
        "-p",
        "windlass-server",
        "--all-features",
        "--example",
        "openapi",
    ]);
    let document = process::capture(&mut cargo).context("could not print the OpenAPI document")?;
    fs::write(ui.join("openapi.json"), format!("{}\n", document.trim_end()))?;
    Ok(())
}

/// The files that are generated and committed: path and bytes.
fn generated(ui: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for directory in ["dist", "dist/assets"] {
        let Ok(entries) = fs::read_dir(ui.join(directory)) else { continue };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let name = format!("{directory}/{}", entry.file_name().to_string_lossy());
                files.insert(name, fs::read(entry.path())?);
            }
        }
    }
    for name in ["openapi.json", "src/api/schema.d.ts"] {
        files.insert(name.to_owned(), fs::read(ui.join(name)).unwrap_or_default());
    }
    Ok(files)
}
