//! Connection strings: URLs and `key=value` lists, with libpq's TLS parameters and
//! `target_session_attrs`.

use tokio_postgres::config::TargetSessionAttrs;
use windlass_kernel::Error;

use super::invalid;

/// The TLS mode, as libpq's `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Never use TLS.
    Disable,
    /// Use TLS if the server supports it; do not check the certificate.
    Prefer,
    /// Require TLS; do not check the certificate.
    Require,
    /// Require TLS and a certificate that a trusted authority signed.
    VerifyCa,
    /// Require TLS and a certificate that a trusted authority signed for this host.
    VerifyFull,
}

impl TlsMode {
    fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "disable" => Ok(Self::Disable),
            "allow" | "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            other => Err(invalid(format!(
                "sslmode {other:?} is not supported; use disable, prefer, require, verify-ca or verify-full"
            ))),
        }
    }

    // The driver only needs to know whether to use TLS; `tls.rs` checks the certificate.
    fn for_driver(self) -> tokio_postgres::config::SslMode {
        use tokio_postgres::config::SslMode;
        match self {
            Self::Disable => SslMode::Disable,
            Self::Prefer => SslMode::Prefer,
            _ => SslMode::Require,
        }
    }
}

/// A parsed connection string.
#[derive(Debug)]
pub(crate) struct Dsn {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) mode: TlsMode,
    pub(crate) root_cert: Option<String>,
}

impl Dsn {
    /// Parses a URL (`postgres://…`) or a list (`host=… user=…`).
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let url = text.starts_with("postgres://") || text.starts_with("postgresql://");
        let (rest, own) = if url { split_url(text)? } else { split_list(text)? };
        let mut config: tokio_postgres::Config = rest.parse().map_err(|error| {
            // The text may contain a password, so the message must not quote it. The driver's
            // message does not either.
            let error: tokio_postgres::Error = error;
            let reason = crate::error::error_text(&error);
            invalid(format!("cannot parse the connection string: {reason}"))
        })?;
        let mut mode = TlsMode::Prefer;
        let mut root_cert = None;
        let mut session = TargetSessionAttrs::ReadWrite;
        for (key, value) in own {
            match key.as_str() {
                "target_session_attrs" => session = session_attrs(&value)?,
                "load_balance_hosts" if value == "disable" => {}
                "load_balance_hosts" => {
                    return Err(invalid(
                        "load_balance_hosts must be disable: all connections go to the one server \
                         that accepts writes",
                    ));
                }
                "sslmode" => mode = TlsMode::parse(&value)?,
                "sslrootcert" => root_cert = Some(value),
                other => return Err(invalid(format!("{other} is not supported"))),
            }
        }
        config.ssl_mode(mode.for_driver());
        config.target_session_attrs(session);
        Ok(Self { config, mode, root_cert })
    }
}

type Pairs = Vec<(String, String)>;

// Every connection of a store writes, so a server that accepts no writes is of no use. `any` takes
// the first host that answers, for example to read a standby with `doctor`.
fn session_attrs(value: &str) -> Result<TargetSessionAttrs, Error> {
    match value {
        "any" => Ok(TargetSessionAttrs::Any),
        "read-write" | "primary" => Ok(TargetSessionAttrs::ReadWrite),
        other => Err(invalid(format!(
            "target_session_attrs {other:?} is not supported, because a store needs a server that \
             accepts writes; use read-write (the default), primary or any"
        ))),
    }
}

// The parameters that this module reads. `sslnegotiation` is the driver's.
fn is_own(key: &str) -> bool {
    (key.starts_with("ssl") && key != "sslnegotiation")
        || matches!(key, "target_session_attrs" | "load_balance_hosts")
}

fn split_url(text: &str) -> Result<(String, Pairs), Error> {
    let Some((base, query)) = text.split_once('?') else {
        return Ok((text.to_owned(), Vec::new()));
    };
    let mut kept = Vec::new();
    let mut own = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if is_own(key) {
            own.push((key.to_owned(), percent_decoded(value)?));
        } else {
            kept.push(pair);
        }
    }
    let rest = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    Ok((rest, own))
}

fn percent_decoded(text: &str) -> Result<String, Error> {
    let wrong = || invalid(format!("{text:?} is not percent-encoded text"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(wrong)?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

fn split_list(text: &str) -> Result<(String, Pairs), Error> {
    let mut kept = Vec::new();
    let mut own = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest
            .split_once('=')
            .ok_or_else(|| invalid("the connection string is not a list of key=value"))?;
        let (value, raw, tail) = take_value(after.trim_start())?;
        if is_own(key.trim()) {
            own.push((key.trim().to_owned(), value));
        } else {
            kept.push(format!("{}={raw}", key.trim()));
        }
        rest = tail.trim_start();
    }
    Ok((kept.join(" "), own))
}

// Returns the unescaped value, its original text, and the rest.
fn take_value(text: &str) -> Result<(String, &str, &str), Error> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Ok((value, &text[..=at], &text[at + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, &text[..at], &text[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        return Err(invalid("a quoted value of the connection string has no closing quote"));
    }
    Ok((value, text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let found = match Dsn::parse(text) {
            Ok(dsn) => format!(
                "{:?} {:?} user={:?} db={:?} hosts={} ports={:?} {:?}",
                dsn.mode,
                dsn.root_cert,
                dsn.config.get_user(),
                dsn.config.get_dbname(),
                dsn.config.get_hosts().len(),
                dsn.config.get_ports(),
                dsn.config.get_target_session_attrs()
            ),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expect), "{text}: expected {expect:?} in {found:?}");
    }

    #[test]
    fn tls_parameters_are_parsed_in_both_forms() {
        check("postgres://u@h/d", "Prefer None user=Some(\"u\") db=Some(\"d\")");
        check("postgres://u@h/d?sslmode=disable", "Disable");
        check("postgres://u@h/d?sslmode=verify-full&connect_timeout=3", "VerifyFull None");
        check("postgres://u@h/d?sslrootcert=%2Fetc%2Fca.pem&sslmode=verify-ca", "/etc/ca.pem");
        check("host=h user=u dbname=d sslmode=require", "Require None user=Some(\"u\")");
        check("host=h user='a b' sslrootcert='/my ca.pem' dbname=d", "/my ca.pem");
        check("host=h password='it\\'s' user=u", "user=Some(\"u\")");
        check("postgres://u@h/d?sslmode=maybe", "sslmode \"maybe\" is not supported");
        check("postgres://u@h/d?sslcert=x", "sslcert is not supported");
        check("postgres://u@h/d?sslrootcert=%2", "is not percent-encoded");
        check("host=h user='a", "has no closing quote");
        check("nonsense", "not a list of key=value");
    }

    #[test]
    fn several_hosts_and_session_attributes_are_parsed_in_both_forms() {
        check("postgres://u@a:1,b:2/d", "hosts=2 ports=[1, 2] ReadWrite");
        check("host=a,b port=1,2 user=u", "hosts=2 ports=[1, 2] ReadWrite");
        check("host=a,b user=u target_session_attrs=any", "hosts=2 ports=[] Any");
        check("postgres://u@a,b/d?target_session_attrs=read-write", "ReadWrite");
        check("postgres://u@a,b/d?target_session_attrs=primary", "ReadWrite");
        check(
            "host=a target_session_attrs=standby",
            "use read-write (the default), primary or any",
        );
        check(
            "host=a target_session_attrs='prefer-standby'",
            "\"prefer-standby\" is not supported",
        );
        check("host=a,b load_balance_hosts=random", "load_balance_hosts must be disable");
        check("host=a,b load_balance_hosts=disable", "hosts=2");
        check(
            "host=a port=x",
            "cannot parse the connection string: invalid connection string: invalid value for option",
        );
    }
}
