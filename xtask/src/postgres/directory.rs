//! Creates and deletes a directory for a cluster that its user can access.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, process, thread};

use anyhow::{Context, Result, bail};

use super::account::Account;

/// The number of deletion attempts: backends that are ending may still write into the directory.
const REMOVALS_MAX: u32 = 50;

/// Creates a directory that the account owns and can access: below `target`, or in the temporary
/// directory if the user cannot enter a parent of `target`.
pub(super) fn create(target: &Path, account: &Account) -> Result<PathBuf> {
    fs::create_dir_all(target).with_context(|| format!("could not create {}", target.display()))?;
    let mut parents = vec![(target.to_owned(), "pg")];
    for parent in [env::temp_dir(), "/tmp".into(), "/var/tmp".into()] {
        parents.push((parent, "windlass-pg"));
    }
    create_in_first(&parents, account)
}

/// Deletes the directory and its contents.
pub(super) fn remove(directory: &Path) -> Result<()> {
    for removal in 1.. {
        match fs::remove_dir_all(directory) {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::NotFound && !directory.exists() => break,
            Err(error) if removal == REMOVALS_MAX => {
                return Err(error)
                    .with_context(|| format!("could not delete {}", directory.display()));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    Ok(())
}

fn create_in_first(parents: &[(PathBuf, &str)], account: &Account) -> Result<PathBuf> {
    for (parent, name) in parents {
        let Ok(directory) = create_new(parent, name) else { continue };
        if account.give(&directory).is_ok() && account.can_use(&directory) {
            return Ok(directory);
        }
        remove(&directory)?;
    }
    let tried: Vec<String> =
        parents.iter().map(|(parent, _)| parent.display().to_string()).collect();
    bail!("no directory for PostgreSQL's data that its user can reach; tried {}", tried.join(", "))
}

/// Never uses an existing directory: an earlier process with the same id may have left it with a
/// running server.
fn create_new(parent: &Path, name: &str) -> std::io::Result<PathBuf> {
    let mut suffix = String::new();
    for number in 1.. {
        let directory = parent.join(format!("{name}-{}{suffix}", process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < 100 => {
                suffix = format!("-{number}");
            }
            result => return result.map(|()| directory),
        }
    }
    unreachable!("the loop above ends by returning")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_parent_is_passed_over_and_left_clean() {
        let open = tempfile::tempdir().unwrap();
        let absent = open.path().join("absent");
        let parents = [(absent.clone(), "a"), (open.path().to_owned(), "b")];
        let directory = create_in_first(&parents, &Account::Own).unwrap();
        assert_eq!(directory.parent(), Some(open.path()));
        remove(&directory).unwrap();
        assert!(!directory.exists() && !absent.exists());
        assert!(create_in_first(&parents[..1], &Account::Own).is_err());
    }

    #[test]
    fn a_directory_that_was_there_is_not_taken() {
        let parent = tempfile::tempdir().unwrap();
        let first = create_new(parent.path(), "pg").unwrap();
        let second = create_new(parent.path(), "pg").unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn removing_twice_is_removing() {
        let parent = tempfile::tempdir().unwrap();
        let directory = create_new(parent.path(), "pg").unwrap();
        fs::write(directory.join("file"), "text").unwrap();
        remove(&directory).unwrap();
        remove(&directory).unwrap();
    }
}
