//! The binary `windlass`: opens a store and says what it is.

use std::ops::Range;

use clap::Parser;

/// Durable workflows: one SQLite file, or PostgreSQL for many machines.
#[derive(Parser)]
#[command(name = "windlass", version)]
struct Cli {
    /// Where the state is kept: `sqlite:PATH` or `postgres://…`.
    #[arg(
        long,
        value_name = "URL",
        env = "WINDLASS_STORE",
        hide_env_values = true,
        default_value = "sqlite:.windlass/windlass.db"
    )]
    store: String,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    println!("windlass {}", env!("CARGO_PKG_VERSION"));
    println!("store    {}", without_password(&cli.store));
    Ok(())
}

/// The address as it may be shown, without a password in any of the places one can be.
fn without_password(url: &str) -> String {
    let mut shown = url.to_owned();
    if let Some(at) = authority_password(url) {
        shown.replace_range(at, "…");
    }
    if let Some(at) = shown.find("password=") {
        let start = at + "password=".len();
        let length = shown[start..].find(['&', ' ']).unwrap_or(shown.len() - start);
        shown.replace_range(start..start + length, "…");
    }
    shown
}

/// Where the password of `scheme://user:password@host` stands.
fn authority_password(url: &str) -> Option<Range<usize>> {
    let start = url.find("://")? + "://".len();
    let length = url[start..].find(['/', '?']).unwrap_or(url.len() - start);
    let user_end = start + url[start..start + length].rfind('@')?;
    let password = start + url[start..user_end].find(':')? + 1;
    Some(password..user_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, expect) in [
            ("sqlite:.windlass/windlass.db", "sqlite:.windlass/windlass.db"),
            ("postgres://me@host:5432/db", "postgres://me@host:5432/db"),
            ("postgres://me:secret@host:5432/db", "postgres://me:…@host:5432/db"),
            ("postgres://me:se@cret@host/db?a=b@c", "postgres://me:…@host/db?a=b@c"),
            ("postgres://host/db", "postgres://host/db"),
            ("postgres://host/db?password=secret&a=b", "postgres://host/db?password=…&a=b"),
            ("host=localhost password=secret", "host=localhost password=…"),
        ] {
            assert_eq!(without_password(url), expect);
        }
    }
}
