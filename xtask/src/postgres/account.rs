//! The user that runs PostgreSQL: the current user, or another one if that is root, which
//! PostgreSQL refuses.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process;

/// Users to use instead of root, in order of preference.
const USERS: &[&str] = &["postgres", "nobody"];

/// Commands that switch the user, in order of preference: the program and its arguments with
/// placeholders in braces. The first one that works is used, because not every `setpriv` supports
/// it.
const WAYS: &[(&str, &[&str])] = &[
    ("setpriv", &["--reuid={uid}", "--regid={gid}", "--init-groups"]),
    ("runuser", &["-u", "{user}", "--"]),
    ("su", &["-s", "/bin/sh", "-c", "exec \"$0\" \"$@\"", "--", "{user}"]),
];

/// The user that runs PostgreSQL.
pub(super) enum Account {
    Own,
    Other(Other),
}

/// Another user than the current one.
pub(super) struct Other {
    name: String,
    uid: u32,
    gid: u32,
    /// The prefix that runs a command as this user.
    prefix: Vec<String>,
}

impl Account {
    /// The current user, or another user if that is root.
    pub(super) fn choose() -> Result<Self> {
        if !is_root()? {
            return Ok(Self::Own);
        }
        match USERS.iter().find_map(|name| Other::find(name)) {
            Some(other) => Ok(Self::Other(other)),
            None => bail!(
                "PostgreSQL refuses to run as root, and none of {} could be used to become one \
                 of the users {}: run this as another user",
                WAYS.iter().map(|(program, _)| *program).collect::<Vec<_>>().join(", "),
                USERS.join(", ")
            ),
        }
    }

    /// The name of the other user; empty for the current user.
    pub(super) fn user(&self) -> &str {
        match self {
            Self::Own => "",
            Self::Other(other) => &other.name,
        }
    }

    /// A command that runs a program as this user.
    pub(super) fn command(&self, program: &Path) -> Command {
        match self {
            Self::Own => Command::new(program),
            Self::Other(other) => {
                let mut command = other.command();
                command.arg(program);
                command
            }
        }
    }

    /// Changes the owner of a file or directory to this user.
    pub(super) fn give(&self, path: &Path) -> Result<()> {
        match self {
            Self::Own => Ok(()),
            Self::Other(other) => chown(path, Some(other.uid), Some(other.gid))
                .with_context(|| format!("could not give {} to {}", path.display(), other.name)),
        }
    }

    /// Writes a file with this owner.
    pub(super) fn write(&self, path: &Path, text: &str) -> Result<()> {
        fs::write(path, text).with_context(|| format!("could not write {}", path.display()))?;
        self.give(path)
    }

    /// Whether this user can enter a directory and write there.
    pub(super) fn can_use(&self, directory: &Path) -> bool {
        let mut shell = self.command(Path::new("/bin/sh"));
        shell.args(["-c", "cd \"$0\" && : > probe && rm probe"]).arg(directory);
        process::capture(shell.current_dir("/")).is_ok()
    }
}

impl Other {
    fn find(name: &str) -> Option<Self> {
        let uid = id(&["-u", name]).ok()?;
        let gid = id(&["-g", name]).ok()?;
        WAYS.iter()
            .map(|(program, args)| Self {
                name: name.to_owned(),
                uid,
                gid,
                prefix: filled(program, args, name, uid, gid),
            })
            .find(Self::works)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.prefix[0]);
        command.args(&self.prefix[1..]);
        command
    }

    fn works(&self) -> bool {
        let mut command = self.command();
        command.args(["id", "-u"]).current_dir("/").stderr(Stdio::null());
        process::capture(&mut command).is_ok_and(|uid| uid.trim() == self.uid.to_string())
    }
}

/// Whether we are root.
pub(crate) fn is_root() -> Result<bool> {
    Ok(id(&["-u"])? == 0)
}

fn id(args: &[&str]) -> Result<u32> {
    let printed = process::capture(Command::new("id").args(args))?;
    printed.trim().parse().with_context(|| format!("`id` printed {printed:?}"))
}

fn filled(program: &str, args: &[&str], user: &str, uid: u32, gid: u32) -> Vec<String> {
    let fill = |arg: &&str| {
        arg.replace("{user}", user)
            .replace("{uid}", &uid.to_string())
            .replace("{gid}", &gid.to_string())
    };
    std::iter::once(program.to_owned()).chain(args.iter().map(fill)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_are_filled_in() {
        let lines: Vec<String> =
            WAYS.iter().map(|(way, args)| filled(way, args, "pg", 7, 8).join(" ")).collect();
        assert_eq!(
            lines,
            [
                "setpriv --reuid=7 --regid=8 --init-groups",
                "runuser -u pg --",
                "su -s /bin/sh -c exec \"$0\" \"$@\" -- pg",
            ]
        );
    }

    #[test]
    fn we_can_use_a_directory_of_ours_and_none_that_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Account::Own.can_use(directory.path()));
        assert!(!Account::Own.can_use(&directory.path().join("absent")));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the probe is gone");
    }

    /// Each command that this machine has must switch to the user. Only root can test this.
    #[test]
    fn every_way_here_becomes_the_other_user() {
        if !is_root().unwrap() {
            return;
        }
        let (uid, gid) = (id(&["-u", "nobody"]).unwrap(), id(&["-g", "nobody"]).unwrap());
        for (program, args) in WAYS {
            if process::capture(Command::new(program).arg("--version")).is_err() {
                continue;
            }
            let prefix = filled(program, args, "nobody", uid, gid);
            let other = Other { name: "nobody".to_owned(), uid, gid, prefix };
            assert!(other.works(), "{program}");
        }
    }
}
