//! Starts, stops, kills and freezes servers: processes of the real binary.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail};

use super::http::{Peer, Reply, request_within};
use super::load::Role;
use super::receiver::CHAIN;
use crate::interrupt::Interrupt;
use crate::process;

/// Flags that shorten leases, so that a phase does not wait for the default of 30 seconds. Only those
/// that the binary knows are used.
const LEASE_FLAGS: &[(&str, &str)] = &[
    ("--lease", "5 seconds"),
    // At most a third of the lease.
    ("--renew-every", "1 second"),
    ("--scan-every", "2 seconds"),
];
/// The lease of a binary with and without these flags.
const LEASE_SHORT: Duration = Duration::from_secs(5);
const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// The secret that signs calls of steps. The receiver listens on loopback only.
const SECRET: &str = "whsec_dG9ydHVyZS10b3J0dXJlLXRvcnR1cmUtdG9ydHVyZSE=";
const POLL: Duration = Duration::from_millis(20);
/// A server that is not ready by then hangs. Recovery itself takes less than a second.
const READY_MAX: Duration = Duration::from_secs(120);

/// The binary, with the flags that it knows.
#[derive(Clone)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
    flags: Vec<&'static str>,
    pub(crate) lease: Duration,
}

impl Binary {
    /// Asks the binary which flags it knows.
    pub(crate) fn inspect(path: PathBuf) -> Result<Self> {
        let help = process::capture(Command::new(&path).args(["server", "--help"]))?;
        let known = LEASE_FLAGS.iter().filter(|(flag, _)| knows(&help, flag));
        let flags: Vec<&'static str> = known.flat_map(|(flag, value)| [*flag, *value]).collect();
        let lease = if flags.contains(&"--lease") { LEASE_SHORT } else { LEASE_DEFAULT };
        Ok(Self { path, flags, lease })
    }
}

fn knows(help: &str, flag: &str) -> bool {
    help.split_whitespace().any(|word| word == flag)
}

/// The program of a process.
#[derive(Clone)]
pub(crate) enum Program {
    /// `windlass server`.
    Binary(Binary),
    /// The example `torture_worker`, with workflows of our own.
    Worker(PathBuf),
}

impl Program {
    pub(crate) fn role(&self) -> Role {
        match self {
            Self::Binary(_) => Role::Server,
            Self::Worker(_) => Role::Worker,
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Binary(binary) => &binary.path,
            Self::Worker(path) => path,
        }
    }
}

/// The place of a server: its store, address and files. It survives the process.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    /// The program that the next start uses.
    pub(crate) program: Program,
    store: String,
    directory: PathBuf,
    receiver: SocketAddr,
    /// A program and arguments that start the binary, such as `strace`; mostly empty.
    pub(crate) wrapper: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
    /// Flags of the binary for authentication.
    pub(crate) auth: Vec<String>,
    incarnation: u32,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn new(
        name: &str,
        program: Program,
        store: &str,
        directory: &Path,
        receiver: SocketAddr,
    ) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
            program,
            store: store.to_owned(),
            directory: directory.to_owned(),
            receiver,
            wrapper: Vec::new(),
            variables: Vec::new(),
            auth: ["--auth", "off"].map(str::to_owned).to_vec(),
            incarnation: 0,
            child: None,
        })
    }

    /// The name of the current process in the log.
    pub(crate) fn process(&self) -> String {
        format!("{}.{}", self.name, self.incarnation)
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.name))
    }

    /// Starts a new process and returns when it answers.
    pub(crate) fn start(&mut self, interrupt: &Interrupt) -> Result<()> {
        self.spawn()?;
        self.wait_until_ready(interrupt)
    }

    /// Starts a new process without waiting.
    pub(crate) fn spawn(&mut self) -> Result<()> {
        self.incarnation += 1;
        let mut command = self.command();
        let address = self.address.to_string();
        match &self.program {
            Program::Binary(binary) => {
                let config = self.directory.join(format!("{}.toml", self.name));
                fs::write(&config, self.config()).context("could not write a config")?;
                command.args(["server", "--store", &self.store, "--samples"]).args(&self.auth);
                command.args(["--bind", &address, "--config"]).arg(&config);
                command.args(["--log", "warn", "--drain", "2 seconds"]).args(&binary.flags);
            }
            Program::Worker(_) => {
                let harness = format!("{}/{}", self.receiver, self.process());
                command.args([&self.store, &address, &harness]);
            }
        }
        for (variable, _) in env::vars_os() {
            if variable.to_str().is_some_and(|name| name.starts_with("WINDLASS_")) {
                command.env_remove(variable);
            }
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let log = self.open_log()?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("could not start a server")?;
        self.child = Some(child);
        Ok(())
    }

    fn command(&self) -> Command {
        match self.wrapper.split_first() {
            Some((program, args)) => {
                let mut command = Command::new(program);
                command.args(args).arg(self.program.path());
                command
            }
            None => Command::new(self.program.path()),
        }
    }

    fn open_log(&self) -> Result<File> {
        let path = self.log_file();
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("could not open {}", path.display()))
    }

    /// The URL of the relay names the process, so that the log shows which one did the work.
    fn config(&self) -> String {
        format!(
            "[[relays]]\nname = \"{CHAIN}\"\nurl = \"http://{}/{}\"\nsecret = \"{SECRET}\"\n\
             allow = [\"127.0.0.1\"]\nmax_attempts = 1000\nbackoff = \"200 ms\"\n",
            self.receiver,
            self.process()
        )
    }

    pub(crate) fn wait_until_ready(&mut self, interrupt: &Interrupt) -> Result<()> {
        let until = Instant::now() + READY_MAX;
        while !self.is_ready() {
            interrupt.check()?;
            if let Some(status) = self.ended()? {
                bail!("{} ended with {status}; see {}", self.name, self.log_file().display());
            }
            if Instant::now() > until {
                bail!("{} is not ready after {READY_MAX:?}", self.name);
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    pub(crate) fn is_ready(&self) -> bool {
        let limit = Duration::from_secs(10);
        matches!(
            request_within(&Peer::from(self.address), "GET", "/readyz", None, limit),
            Reply::Answered { status: 200, .. }
        )
    }

    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.is_some() && self.ended()?.is_none())
    }

    /// The exit status, if the process ended by itself.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("could not kill a server")?;
            child.wait()?;
        }
        Ok(())
    }

    /// Sends SIGTERM and waits for the end; kills a process that does not stop.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        process::signal("TERM", &child.id().to_string()).ok();
        let until = Instant::now() + READY_MAX;
        while child.try_wait()?.is_none() && Instant::now() < until {
            thread::sleep(POLL);
        }
        self.kill()
    }

    /// The id of the process, if it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        match &self.child {
            Some(child) => process::signal(name, &child.id().to_string()),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL also ends a process that SIGSTOP froze.
        if let Err(error) = self.kill() {
            eprintln!("error: {error:#}");
        }
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_flags_are_known() {
        let help = "  --lease-max <X>  text\n  --bind <Y>";
        assert!(knows(help, "--bind"));
        assert!(!knows(help, "--lease"));
    }
}
