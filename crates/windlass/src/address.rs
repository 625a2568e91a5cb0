//! The address of a store: what users write in one string.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use windlass_kernel::{Error, ErrorCode, ErrorKind, Timestamp};

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// In memory.
    Memory,
    /// In a file.
    Sqlite(PathBuf),
    /// In PostgreSQL, by its connection string.
    Postgres(String),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
        if is_url || is_keyword_list(text) {
            return Ok(Self::Postgres(text.to_owned()));
        }
        let path = text.strip_prefix("sqlite://").or_else(|| text.strip_prefix("sqlite:"));
        match path {
            Some("") | None => {}
            Some(path) => return Ok(Self::Sqlite(path.into())),
        }
        // An address may hold a password: only its scheme is shown.
        let is_word = |scheme: &&str| {
            scheme.len() <= 20 && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+')
        };
        let scheme = text.split_once(':').map(|(scheme, _)| scheme).filter(is_word);
        let shown = scheme.map(|scheme| format!(" beginning with {scheme:?}")).unwrap_or_default();
        let message = format!(
            "the store address{shown} is not understood; use sqlite://FILE, \
             postgres://USER@HOST/DATABASE, \"host=HOST user=USER dbname=DATABASE\" or memory:"
        );
        Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidStoreUrl, message))
    }
}

// A list of libpq's parameters, such as `host=a,b user=u`.
fn is_keyword_list(text: &str) -> bool {
    let first = text.trim_start().split('=').next().unwrap_or_default().trim_end();
    let keywords = ["host", "hostaddr", "port", "user", "dbname", "password", "service"];
    text.contains('=') && (keywords.contains(&first) || first.starts_with("ssl"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Sqlite(path) => write!(f, "SQLite at {}", path.display()),
            Self::Postgres(_) => f.write_str("PostgreSQL"),
        }
    }
}

/// Makes the folder that a file is to be in.
#[cfg(feature = "sqlite")]
pub(crate) fn make_folder_of(path: &std::path::Path) -> Result<(), Error> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    std::fs::create_dir_all(folder).map_err(|source| {
        let message = format!("the folder {} cannot be made", folder.display());
        Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message).with_source(source)
    })
}

/// The system's clock; the memory store needs somebody to tell it the time.
#[expect(clippy::disallowed_methods, reason = "this is the edge where time comes in")]
pub(crate) fn system_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let sqlite = |path: &str| Address::Sqlite(path.into());
        let cases = [
            ("memory:", Ok(Address::Memory)),
            ("sqlite://app.db", Ok(sqlite("app.db"))),
            ("sqlite:app.db", Ok(sqlite("app.db"))),
            ("sqlite:///var/app.db", Ok(sqlite("/var/app.db"))),
            ("postgres://u:p@h/d", Ok(Address::Postgres("postgres://u:p@h/d".into()))),
            ("host=a,b port=1 user=u", Ok(Address::Postgres("host=a,b port=1 user=u".into()))),
            ("dbname = d", Ok(Address::Postgres("dbname = d".into()))),
            ("nonsense=a password=secret", Err("the store address is not understood")),
            ("sqlite:", Err("sqlite")),
            ("mysql://u:secret@h/d", Err("mysql")),
            ("", Err("memory:")),
            ("hots=h password=secret user=u", Err("the store address is not understood")),
            ("hots=h password=secret:1 user=u", Err("the store address is not understood")),
        ];
        for (text, expect) in cases {
            match (text.parse::<Address>(), expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found, expect),
                (Err(error), Err(expect)) => {
                    assert!(error.to_string().contains(expect), "{error}");
                    assert!(!error.to_string().contains("secret"), "{error}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
