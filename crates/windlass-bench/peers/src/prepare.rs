//! Builds the measured programs: Cargo workspaces, npm packages, and Windlass.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context as _, bail};

use crate::peer::{Load, Peer, Program, Store};
use crate::{place, process};

/// Builds programs. Knows the directory of this workspace and the build directory.
pub(crate) struct Builder {
    home: PathBuf,
    target: PathBuf,
}

/// A program that is ready to run.
pub(crate) struct Built {
    path: PathBuf,
    script: Option<PathBuf>,
    node_modules: PathBuf,
}

impl Builder {
    /// Creates the build directory.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf();
        let target = home.join("target");
        fs::create_dir_all(target.join("logs")).context("failed to create the log directory")?;
        Ok(Self { home, target })
    }

    /// The build directory.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// The log file of an engine.
    pub(crate) fn log(&self, name: &str, store: Store) -> PathBuf {
        self.target.join("logs").join(format!("{name}-{store}.log"))
    }

    /// Builds the program of a peer.
    pub(crate) fn build(&self, peer: &Peer) -> anyhow::Result<Built> {
        eprintln!("building {}", peer.name);
        let node_modules = self.target.join("node/node_modules");
        let built = |path, script| Built { path, script, node_modules: node_modules.clone() };
        match peer.program {
            Program::Windlass(_) => self.build_windlass().map(|path| built(path, None)),
            Program::Cargo { folder, packages, .. } => {
                if packages {
                    self.install_packages()?;
                }
                let mut cargo = cargo(&self.home.join(folder));
                cargo.args(["build", "--release", "--locked", "--target-dir"]).arg(&self.target);
                // Same settings as Windlass's profile `dist`.
                cargo.env("CARGO_PROFILE_RELEASE_LTO", "fat");
                cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
                process::run_to_success(&mut cargo)?;
                Ok(built(self.target.join("release").join(format!("peer-{folder}")), None))
            }
            Program::Node(script) => {
                self.install_packages()?;
                Ok(built("node".into(), Some(self.target.join("node").join(script))))
            }
        }
    }

    fn build_windlass(&self) -> anyhow::Result<PathBuf> {
        let root = self.home.join("../../..");
        process::run_to_success(cargo(&root).args([
            "build",
            "--profile",
            "dist",
            "-p",
            "windlass-bench",
        ]))?;
        let mut metadata = cargo(&root);
        metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
        let answer = metadata.stderr(Stdio::inherit()).output().context("failed to start cargo")?;
        let answer: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
        match answer["target_directory"].as_str() {
            Some(target) => Ok(Path::new(target).join("dist/windlass-bench")),
            None => bail!("`cargo metadata` reports no target directory"),
        }
    }

    /// Copies the scripts and installs their packages below the build directory, so that npm leaves
    /// no files in the sources.
    fn install_packages(&self) -> anyhow::Result<()> {
        let (from, to) = (self.home.join("node"), self.target.join("node"));
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(&from).context("failed to read the scripts")? {
            let entry = entry?;
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        let done = to.join("installed");
        let lock = fs::read(from.join("package-lock.json"))?;
        if fs::read(&done).is_ok_and(|installed| installed == lock) {
            return Ok(());
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts"]).current_dir(&to);
        process::run_to_success(&mut npm)?;
        fs::write(done, lock).context("failed to record the installed packages")
    }
}

impl Built {
    /// The command that runs a load on a data location.
    pub(crate) fn command(&self, peer: &Peer, load: &[&str], address: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.script);
        match peer.program {
            // A sequential load of relays is the same load with one run in flight.
            Program::Windlass(Load::Relays) => {
                command.arg("relays").args(&load[1..]).arg("--uncalibrated");
                if load.first() == Some(&"sequential") {
                    command.args(["--in-flight", "1"]);
                }
            }
            Program::Windlass(Load::Steps) if matches!(load.first(), Some(&"steps" | &"tasks")) => {
                command.args(load).arg("--uncalibrated");
            }
            _ => {
                command.args(load);
            }
        }
        match peer.program {
            Program::Windlass(_) => {
                command.args(place::windlass_arguments(peer, address)).arg("--json");
            }
            Program::Cargo { unsynced, .. } => {
                command.arg("--place").arg(address);
                if unsynced {
                    command.env("PEERS_UNSYNCED", "1");
                }
            }
            Program::Node(_) => {
                command.arg("--place").arg(address);
            }
        }
        command.env("PEERS_NODE_MODULES", &self.node_modules);
        command
    }
}

/// A cargo command without the variables of the cargo that runs this program: build scripts that
/// watch them would run again each time.
fn cargo(directory: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(directory).stdin(Stdio::null());
    let ours = |name: &OsStr| {
        let name = name.to_string_lossy();
        ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in env::vars_os().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command
}
