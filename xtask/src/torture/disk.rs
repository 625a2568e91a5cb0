//! A full disk and room again: the store is on a small file system that a file fills up.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting, Unavailable};
use crate::process;

/// The size of the file system: enough for the store of a long phase.
const SIZE: &str = "512m";
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) fn run(_: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "disk-full")?;
    let disk = Disk::mount(phase.directory.join("disk"))?;
    phase.store = format!("sqlite:{}", disk.0.join("store.db").display());
    phase.start_processes(1, 0)?;
    phase.start_clients(setting.lasts);
    let filler = disk.0.join("filler");
    while phase.pause(Duration::from_millis(500), Duration::from_millis(2_500))? {
        phase.fault(Entry::Fault { what: "the disk is full".into() });
        fill(&filler)?;
        let full = Duration::from_millis(200 + phase.random.below(2_000));
        let slept = phase.sleep(full);
        fs::remove_file(&filler)?;
        phase.log().add(Entry::Fault { what: "the disk has room".into() });
        slept?;
    }
    // `phase` stops its servers before `disk` is unmounted.
    phase.finish()
}

/// Writes until the disk is full.
fn fill(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while !chunk.is_empty() {
        // Smaller chunks use the last pages too.
        if file.write_all(&chunk).is_err() {
            chunk.truncate(chunk.len() / 2);
        }
    }
    Ok(())
}

/// A mounted file system. It is unmounted on drop, lazily: after an error, servers still use it.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Result<Self> {
        fs::create_dir_all(&at)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={SIZE}"), "windlass-torture"]).arg(&at);
        match process::capture(&mut mount) {
            Ok(_) => Ok(Self(at)),
            Err(error) => {
                let why = format!("only root can mount a small file system: {error:#}");
                Err(Unavailable(why).into())
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = process::capture(Command::new("umount").arg("--lazy").arg(&self.0)) {
            eprintln!("error: {error:#}");
        }
    }
}
