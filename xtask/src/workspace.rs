//! The location of the repository, and commands for its cargo.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The root of the workspace: above this crate if cargo started this program, else above the
/// current directory.
pub(crate) fn root() -> Result<PathBuf> {
    let start = match env::var_os("CARGO_MANIFEST_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => env::current_dir().context("could not read the current directory")?,
    };
    start
        .ancestors()
        .find(|dir| dir.join("Cargo.lock").is_file())
        .map(Path::to_path_buf)
        .with_context(|| format!("no Cargo.lock above {}", start.display()))
}

/// The target directory of cargo.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root.join(dir),
        None => root.join("target"),
    }
}

/// A cargo command in the root of the workspace without the variables of our own `cargo run`: build
/// scripts that watch them would run again at every change between `cargo build` and `cargo xtask`.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
    command
}

fn is_ours(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| variable.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_holds_this_crate() {
        assert!(root().unwrap().join("xtask/Cargo.toml").is_file());
    }

    #[test]
    fn only_the_variables_of_one_package_are_taken_out() {
        for (variable, expect) in [
            ("CARGO_PKG_NAME", true),
            ("CARGO_MANIFEST_DIR", true),
            ("CARGO_HOME", false),
            ("CARGO_TARGET_DIR", false),
        ] {
            assert_eq!(is_ours(variable), expect, "{variable}");
        }
    }
}
