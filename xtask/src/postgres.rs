//! A temporary PostgreSQL cluster that is stopped and deleted on drop.

mod account;
mod binaries;
mod directory;
mod pair;
mod snapshot;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use self::account::Account;
pub(crate) use self::account::is_root;
use self::binaries::Binaries;
pub(crate) use self::pair::Pair;
pub(crate) use self::snapshot::Snapshot;
use crate::interrupt::Interrupt;
use crate::process;

/// The file with our settings; `postgresql.conf` includes it last.
const CONFIG: &str = "windlass.conf";
/// Allows only TCP connections from this machine.
const ACCESS: &str = "host all all 127.0.0.1/32 trust\n";
/// The number of attempts: another process may take the free port before the server.
const STARTS_MAX: u32 = 3;

/// A running cluster.
pub(crate) struct Cluster {
    binaries: Binaries,
    account: Account,
    directory: PathBuf,
    port: u16,
}

impl Cluster {
    /// Starts a cluster below `target`, or in the temporary directory if the user of PostgreSQL
    /// cannot access `target`.
    pub(crate) fn start(target: &Path, interrupt: &Interrupt) -> Result<Self> {
        let binaries = binaries::find_or_install(interrupt)?;
        let account = Account::choose()?;
        let directory = directory::create(target, &account)?;
        // From here on, dropping `cluster` cleans up after any failure.
        let mut cluster = Self { binaries, account, directory, port: 0 };
        cluster.initialise()?;
        interrupt.check()?;
        cluster.serve(interrupt)?;
        eprintln!(
            "PostgreSQL {} on port {}, data in {}",
            cluster.binaries.version,
            cluster.port,
            cluster.data().display()
        );
        Ok(cluster)
    }

    /// The variables for tests: the address, and the data for restarting the server.
    pub(crate) fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("WINDLASS_TEST_PG", format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)),
            ("WINDLASS_TEST_PG_BIN", self.binaries.directory.display().to_string()),
            ("WINDLASS_TEST_PG_DATA", self.data().display().to_string()),
            ("WINDLASS_TEST_PG_USER", self.account.user().to_owned()),
        ]
    }

    /// The variables of PostgreSQL's clients, so that `psql` connects without arguments.
    pub(crate) fn client_environment(&self) -> [(&'static str, String); 4] {
        [
            ("PGHOST", "127.0.0.1".to_owned()),
            ("PGPORT", self.port.to_string()),
            ("PGUSER", "postgres".to_owned()),
            ("PGDATABASE", "postgres".to_owned()),
        ]
    }

    /// Creates a database, and returns its address.
    pub(crate) fn create_database(&self, name: &str) -> Result<String> {
        let mut createdb = self.program("createdb");
        createdb.envs(self.client_environment());
        process::capture(createdb.arg(name))
            .with_context(|| format!("could not create the database {name}"))?;
        Ok(self.url_at(self.port, name))
    }

    pub(crate) fn drop_database(&self, name: &str) -> Result<()> {
        let mut dropdb = self.program("dropdb");
        dropdb.envs(self.client_environment());
        process::capture(dropdb.args(["--if-exists", "--force", name]))
            .with_context(|| format!("could not drop the database {name}"))
            .map(drop)
    }

    /// The address of a database behind another port of this machine, such as a proxy's.
    pub(crate) fn url_at(&self, port: u16, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{database}")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Stops the server without a checkpoint, as a crash does, and starts it again.
    pub(crate) fn crash_and_restart(&self) -> Result<()> {
        let mut pg_ctl = self.program("pg_ctl");
        pg_ctl.args(["restart", "--silent", "--mode=immediate", "--wait", "--timeout=60"]);
        pg_ctl.arg("--pgdata").arg(self.data()).arg("--log").arg(self.log());
        process::capture(&mut pg_ctl).map(drop)
    }

    /// Runs a query in a database and returns its rows as text.
    pub(crate) fn query(&self, database: &str, query: &str) -> Result<String> {
        process::capture(self.psql(database).args(["--command", query]))
    }

    /// Opens a transaction that keeps seeing the rows of now.
    pub(crate) fn hold_snapshot(&self, database: &str) -> Result<Snapshot> {
        Snapshot::hold(&mut self.psql(database))
    }

    fn psql(&self, database: &str) -> Command {
        let mut psql = self.program("psql");
        psql.envs(self.client_environment()).env("PGDATABASE", database);
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        psql
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// A command for one of PostgreSQL's programs, with its user and in a directory that this user
    /// can access.
    fn program(&self, name: &str) -> Command {
        let mut command = self.account.command(&self.binaries.directory.join(name));
        command.current_dir(&self.directory).env("LC_ALL", "C");
        for (variable, _) in std::env::vars_os() {
            if variable.to_str().is_some_and(|variable| variable.starts_with("PG")) {
                command.env_remove(variable);
            }
        }
        command
    }

    fn initialise(&self) -> Result<()> {
        let data = self.data();
        let mut initdb = self.program("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
        process::capture(initdb.arg("--no-sync").arg("--pgdata").arg(&data))?;
        write(&data.join("pg_hba.conf"), ACCESS)?;
        let main = data.join("postgresql.conf");
        let given = fs::read_to_string(&main).context("initdb left no postgresql.conf")?;
        write(&main, &format!("{given}\ninclude '{CONFIG}'\n"))
    }

    fn serve(&mut self, interrupt: &Interrupt) -> Result<()> {
        for start in 1.. {
            self.port = free_port()?;
            self.account.write(&self.data().join(CONFIG), &config(self.port))?;
            let mut pg_ctl = self.program("pg_ctl");
            pg_ctl.args(["start", "--silent", "--wait", "--timeout=60", "--pgdata"]);
            match process::capture(pg_ctl.arg(self.data()).arg("--log").arg(self.log())) {
                Ok(_) => break,
                Err(error) if start == STARTS_MAX => {
                    let log = fs::read_to_string(self.log()).unwrap_or_default();
                    bail!("PostgreSQL does not start: {error:#}\n{}", tail(&log, 20));
                }
                Err(_) => self.stop()?,
            }
            interrupt.check()?;
        }
        Ok(())
    }

    /// Stops the server, also one that a test started on the same data.
    fn stop(&self) -> Result<()> {
        let pid_file = self.data().join("postmaster.pid");
        if !pid_file.exists() {
            return Ok(());
        }
        let mut pg_ctl = self.program("pg_ctl");
        pg_ctl.args(["stop", "--silent", "--mode=immediate", "--wait", "--timeout=30"]);
        let stopped = process::capture(pg_ctl.arg("--pgdata").arg(self.data()));
        match fs::read_to_string(&pid_file).ok().and_then(|text| server_pid(&text)) {
            Some(pid) => process::signal("KILL", &pid.to_string())
                .with_context(|| format!("PostgreSQL does not stop: {stopped:?}")),
            None => Ok(()),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.stop().and_then(|()| directory::remove(&self.directory)) {
            eprintln!("error: {error:#}");
        }
    }
}

/// Durable like production, because tests and benchmarks depend on that. Only full-page writes,
/// which protect against torn pages after a power failure, are off.
fn config(port: u16) -> String {
    format!(
        "listen_addresses = '127.0.0.1'\n\
         port = {port}\n\
         unix_socket_directories = ''\n\
         max_connections = 200\n\
         shared_buffers = '128MB'\n\
         fsync = on\n\
         synchronous_commit = on\n\
         full_page_writes = off\n"
    )
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// The process id in the first line of `postmaster.pid`. A stand-alone backend writes a negative
/// number.
fn server_pid(text: &str) -> Option<u32> {
    text.lines().next()?.trim().parse().ok()
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("could not write {}", path.display()))
}

fn tail(text: &str, lines_max: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(lines_max)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_keep_what_was_committed() {
        let config = config(5433);
        for line in ["port = 5433", "fsync = on", "synchronous_commit = on"] {
            assert!(config.lines().any(|given| given == line), "{line} is not in\n{config}");
        }
    }

    #[test]
    fn the_pid_is_the_first_line() {
        for (text, expect) in [
            ("4711\n/data\n", Some(4711)),
            ("-4711\n/data\n", None),
            ("", None),
            ("nonsense", None),
        ] {
            assert_eq!(server_pid(text), expect, "{text:?}");
        }
    }

    #[test]
    fn the_tail_is_the_end() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
