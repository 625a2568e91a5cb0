//! Installs a Debian package that the tests need, if we run as root on Debian.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::interrupt::Interrupt;
use crate::postgres::is_root;
use crate::process;

const PYTHON: &str = "Debian, Ubuntu: apt-get install python3; Fedora: dnf install python3; macOS: \
                      brew install python3.";

const CHROMIUM: &str = "Debian, Ubuntu: apt-get install chromium; Fedora: dnf install chromium.";

const CHROMEDRIVER: &str =
    "Debian, Ubuntu: apt-get install chromium-driver; Fedora: dnf install chromedriver.";

/// Makes sure that Python is installed. It runs the example of a relay in another language.
pub(crate) fn python(interrupt: &Interrupt) -> Result<()> {
    let found = || process::capture(Command::new("python3").arg("--version")).is_ok();
    if found() || (install("python3", PYTHON, interrupt)? && found()) {
        return Ok(());
    }
    bail!("the tests need python3, and none was found. {PYTHON}")
}

/// Makes sure that Chromium is installed. It opens the views of the dashboard.
pub(crate) fn chromium(interrupt: &Interrupt) -> Result<()> {
    let found = || process::capture(Command::new("chromium").arg("--version")).is_ok();
    if found() || (install("chromium", CHROMIUM, interrupt)? && found()) {
        return Ok(());
    }
    bail!("the dashboard is tested with chromium, and none was found. {CHROMIUM}")
}

/// Makes sure that the WebDriver of Chromium is installed. The tests of the dashboard drive the browser with it.
pub(crate) fn chromedriver(interrupt: &Interrupt) -> Result<()> {
    let found = || process::capture(Command::new("chromedriver").arg("--version")).is_ok();
    if found() || (install("chromium-driver", CHROMEDRIVER, interrupt)? && found()) {
        return Ok(());
    }
    bail!("the dashboard is tested with chromedriver, and none was found. {CHROMEDRIVER}")
}

/// Installs a package as root on Debian and returns whether that was possible. `how` is the hint in
/// the error if apt-get fails.
pub(crate) fn install(package: &str, how: &str, interrupt: &Interrupt) -> Result<bool> {
    let has_apt = process::capture(Command::new("apt-get").arg("--version")).is_ok();
    if !has_apt || !is_root()? {
        return Ok(false);
    }
    eprintln!("{package} is missing: installing it with apt-get");
    // Ignores a failed update (for example, of one dead mirror): the package lists may still be
    // usable.
    for args in [&["update"][..], &["install", "-y", package]] {
        let mut apt = Command::new("apt-get");
        let status = process::run(
            apt.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()),
            interrupt,
        )?;
        if !status.success() && args[0] == "install" {
            bail!("`apt-get {}` failed ({status}). {how}", args.join(" "));
        }
    }
    Ok(true)
}
