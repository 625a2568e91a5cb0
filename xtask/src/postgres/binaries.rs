//! Finds PostgreSQL's programs, and installs them if we run as root on Debian.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Result, bail};

use crate::interrupt::Interrupt;
use crate::{packages, process};

const MAJOR_MIN: u32 = 13;
/// The required programs. A directory without all of them is a client installation.
const PROGRAMS: &[&str] = &["initdb", "pg_ctl", "postgres"];
/// The directories of packages; `*` matches any part of a name.
const PLACES: &[&str] = &[
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
];
const HOW: &str = "Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install \
                   postgresql-server; macOS: brew install postgresql. If it is installed \
                   elsewhere, put its pg_config on the PATH.";

/// PostgreSQL's programs of one version.
pub(super) struct Binaries {
    pub(super) directory: PathBuf,
    pub(super) version: String,
    major: u32,
}

/// Finds the newest PostgreSQL of this machine. Installs it for root on Debian if there is none.
pub(super) fn find_or_install(interrupt: &Interrupt) -> Result<Binaries> {
    if let Some(found) = newest(candidates()) {
        return Ok(found);
    }
    if packages::install("postgresql", HOW, interrupt)?
        && let Some(found) = newest(candidates())
    {
        return Ok(found);
    }
    bail!("the tests need PostgreSQL {MAJOR_MIN} or later, and none was found. {HOW}")
}

fn newest(directories: Vec<PathBuf>) -> Option<Binaries> {
    directories
        .into_iter()
        .filter_map(|directory| inspect(&directory))
        .filter(|found| found.major >= MAJOR_MIN)
        .max_by_key(|found| found.major)
}

fn inspect(directory: &Path) -> Option<Binaries> {
    if !PROGRAMS.iter().all(|program| directory.join(program).is_file()) {
        return None;
    }
    let printed = process::capture(Command::new(directory.join("postgres")).arg("--version"));
    let (major, version) = parse_version(&printed.ok()?)?;
    Some(Binaries { directory: directory.to_owned(), version, major })
}

/// `postgres (PostgreSQL) 15.4 (Debian 15.4-1)` is 15 and `15.4`; a beta is `18beta1`.
fn parse_version(printed: &str) -> Option<(u32, String)> {
    let version = printed.split_whitespace().nth(2)?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    Some((digits.parse().ok()?, version.to_owned()))
}

fn candidates() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = Vec::new();
    if let Ok(printed) = process::capture(Command::new("pg_config").arg("--bindir")) {
        directories.push(printed.trim().into());
    }
    directories.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    directories.extend(PLACES.iter().flat_map(|place| expand(Path::new(place))));
    directories
}

/// Expands a path with at most one `*` to directories.
fn expand(place: &Path) -> Vec<PathBuf> {
    let star =
        |path: &&Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains('*'));
    let Some(pattern) = place.ancestors().find(star) else { return vec![place.to_owned()] };
    let (Some(parent), Some(name), Ok(rest)) =
        (pattern.parent(), pattern.file_name(), place.strip_prefix(pattern))
    else {
        return Vec::new();
    };
    let name = name.to_string_lossy();
    let (before, after) = name.split_once('*').unwrap_or((&name, ""));
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let given = entry.file_name();
            let given = given.to_string_lossy();
            given.starts_with(before) && given.ends_with(after)
        })
        .map(|entry| entry.path().join(rest))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn versions_of_all_shapes() {
        for (printed, expect) in [
            ("postgres (PostgreSQL) 15.4 (Debian 15.4-1)\n", Some((15, "15.4"))),
            ("postgres (PostgreSQL) 18beta1", Some((18, "18beta1"))),
            ("postgres (PostgreSQL) 9.6.24", Some((9, "9.6.24"))),
            ("postgres", None),
            ("postgres (PostgreSQL) devel", None),
        ] {
            let expect = expect.map(|(major, version)| (major, version.to_owned()));
            assert_eq!(parse_version(printed), expect, "{printed}");
        }
    }

    fn fake(root: &Path, version: &str, programs: &[&str]) -> PathBuf {
        let bin = root.join(version).join("bin");
        fs::create_dir_all(&bin).unwrap();
        for program in programs {
            let path = bin.join(program);
            fs::write(&path, format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n"))
                .unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        bin
    }

    #[test]
    fn the_newest_complete_one_wins_and_old_ones_do_not_count() {
        let root = tempfile::tempdir().unwrap();
        let old = fake(root.path(), "12.1", PROGRAMS);
        assert!(newest(vec![old.clone()]).is_none());
        let nine = fake(root.path(), "9.6", PROGRAMS);
        let thirteen = fake(root.path(), "13.9", PROGRAMS);
        let client_only = fake(root.path(), "17.0", &["postgres"]);
        let sixteen = fake(root.path(), "16.2", PROGRAMS);
        let found = newest(vec![old, thirteen, sixteen.clone(), nine, client_only]).unwrap();
        assert_eq!((found.directory, found.version.as_str()), (sixteen, "16.2"));
    }

    #[test]
    fn a_star_stands_for_a_part_of_a_name() {
        let root = tempfile::tempdir().unwrap();
        for name in ["pg-13", "pg-14", "other"] {
            fs::create_dir_all(root.path().join(name).join("bin")).unwrap();
        }
        let mut found = expand(&root.path().join("pg-*/bin"));
        found.sort();
        assert_eq!(found, [root.path().join("pg-13/bin"), root.path().join("pg-14/bin")]);
        assert_eq!(expand(Path::new("/a/bin")), [Path::new("/a/bin")]);
        assert!(expand(&root.path().join("absent/*/bin")).is_empty());
    }
}
