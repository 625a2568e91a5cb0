//! The files of the repository: paths from its root, and their text.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Hidden directories that belong to the repository; all others belong to tools.
const DOT_DIRECTORIES: &[&str] = &[".cargo", ".ci", ".github"];
/// In a git worktree, `.git` is a file.
const WORKTREE_LINK: &str = ".git";
/// Larger files are data and are not checked.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// All files by path; the text of binary files is empty.
pub(super) struct Tree {
    files: BTreeMap<String, String>,
    binaries: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// Reads the working tree, committed or not, without build output and files of tools.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self { files: BTreeMap::new(), binaries: BTreeMap::new() };
        tree.read_directory(root, "")?;
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Self { files: files.iter().map(own).collect(), binaries: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// All files: path and text.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The bytes of a file; none if there is no such file.
    pub(super) fn bytes(&self, path: &str) -> Option<&[u8]> {
        let text = || self.files.get(path).map(String::as_bytes);
        self.binaries.get(path).map(Vec::as_slice).or_else(text)
    }

    /// All Rust files.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// All files below a directory, whose name must end in `/`, with relative paths.
    pub(super) fn below<'a>(
        &'a self,
        directory: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter_map(move |(path, text)| Some((path.strip_prefix(directory)?, text)))
    }

    /// Whether a file or a non-empty directory has this path; `*` matches any part of one name.
    pub(super) fn has(&self, path: &str) -> bool {
        let wanted: Vec<&str> = path.trim_end_matches('/').split('/').collect();
        self.files.keys().any(|file| {
            let given: Vec<&str> = file.split('/').collect();
            given.len() >= wanted.len() && wanted.iter().zip(given).all(|(w, g)| name_fits(w, g))
        })
    }
}

impl Tree {
    fn read_directory(&mut self, directory: &Path, prefix: &str) -> Result<()> {
        let entries = fs::read_dir(directory)
            .with_context(|| format!("could not read {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && is_ours(&name) {
                self.read_directory(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && path != WORKTREE_LINK {
                let small = entry.metadata()?.len() <= TEXT_BYTES_MAX;
                let bytes = if small { fs::read(entry.path())? } else { Vec::new() };
                let text = String::from_utf8(bytes).unwrap_or_else(|error| {
                    self.binaries.insert(path.clone(), error.into_bytes());
                    String::new()
                });
                self.files.insert(path, text);
            }
        }
        Ok(())
    }
}

fn name_fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => {
            let Some(rest) = name.strip_prefix(before) else { return false };
            (0..=rest.len()).filter_map(|at| rest.get(at..)).any(|rest| name_fits(after, rest))
        }
    }
}

fn is_ours(directory: &str) -> bool {
    let is_of_tools =
        directory.starts_with('.') || directory == "target" || directory == "node_modules";
    DOT_DIRECTORIES.contains(&directory) || !is_of_tools
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_ours() {
        let root = tempfile::tempdir().unwrap();
        for path in
            ["a/b.rs", "target/c.rs", ".git/d", ".ci/run", "a/target/e.rs", "a/node_modules/f.js"]
        {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        fs::write(root.path().join("binary"), [0xff, 0x00]).unwrap();
        let tree = Tree::read(root.path()).unwrap();
        let files: Vec<_> = tree.files().collect();
        assert_eq!(files, [(".ci/run", "text"), ("a/b.rs", "text"), ("binary", "")]);
        assert_eq!(tree.bytes("binary"), Some([0xff, 0x00].as_slice()));
        assert_eq!((tree.bytes("a/b.rs"), tree.bytes("none")), (Some(b"text".as_slice()), None));
    }

    #[test]
    fn the_link_of_a_worktree_is_not_ours() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(".git"), "gitdir: elsewhere").unwrap();
        assert_eq!(Tree::read(root.path()).unwrap().len(), 0);
    }

    #[test]
    fn files_directories_and_stars_are_found() {
        let tree = Tree::of(&[("crates/a/src/lib.rs", "")]);
        for (path, expect) in [
            ("crates/a/src/lib.rs", true),
            ("crates/a/", true),
            ("crates/a", true),
            ("crates/*/src/*.rs", true),
            ("crates/b", false),
            ("crates/a/src/lib", false),
            ("crates/*/tests", false),
            ("crates/a/src/lib.rs/x", false),
        ] {
            assert_eq!(tree.has(path), expect, "{path}");
        }
    }
}
