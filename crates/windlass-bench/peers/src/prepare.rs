//! Builds what is measured: Cargo workspaces, npm packages, and Windlass itself.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context as _, bail};

use crate::peer::{Load, Peer, Program, Store};
use crate::{place, process};

/// The folder of this workspace, and the one that everything is built in.
pub(crate) struct Workshop {
    home: PathBuf,
    target: PathBuf,
}

/// A program that is ready to run.
pub(crate) struct Built {
    path: PathBuf,
    script: Option<PathBuf>,
    node_modules: PathBuf,
}

impl Workshop {
    /// Finds the folders.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf();
        let target = home.join("target");
        fs::create_dir_all(target.join("logs")).context("no directory for logs")?;
        Ok(Self { home, target })
    }

    /// Where everything is built.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Where an engine's words of distress go.
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
                // As Windlass's profile `dist` says it.
                cargo.env("CARGO_PROFILE_RELEASE_LTO", "fat");
                cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
                process::succeed(&mut cargo)?;
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
        process::succeed(cargo(&root).args(["build", "--profile", "dist", "-p", "windlass-bench"]))?;
        let mut metadata = cargo(&root);
        metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
        let answer = metadata.stderr(Stdio::inherit()).output().context("cargo does not start")?;
        let answer: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
        match answer["target_directory"].as_str() {
            Some(target) => Ok(Path::new(target).join("dist/windlass-bench")),
            None => bail!("cargo does not say where it builds"),
        }
    }

    /// The scripts and their packages live below the build's directory, so that the sources stay
    /// free of what npm leaves.
    fn install_packages(&self) -> anyhow::Result<()> {
        let (from, to) = (self.home.join("node"), self.target.join("node"));
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(&from).context("no folder with scripts")? {
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
        process::succeed(&mut npm)?;
        fs::write(done, lock).context("the installed packages are not noted")
    }
}

impl Built {
    /// The program with its load, at a place.
    pub(crate) fn command(&self, peer: &Peer, load: &[&str], address: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.script);
        match peer.program {
            // One caller of relays is the same load with one in flight.
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

/// A cargo without what the one that runs us has set: build scripts that watch those variables
/// would be built anew each time.
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
