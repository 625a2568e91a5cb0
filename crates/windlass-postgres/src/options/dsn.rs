//! Connection strings: URLs and `key=value` lists, with libpq's TLS parameters.

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
        let (rest, tls) = if url { split_url(text)? } else { split_list(text)? };
        let mut config: tokio_postgres::Config = rest.parse().map_err(|error| {
            // The text may contain a password, so the message must not quote it. The driver's
            // message does not either.
            invalid("cannot parse the connection string").with_source(error)
        })?;
        let mut mode = TlsMode::Prefer;
        let mut root_cert = None;
        for (key, value) in tls {
            match key.as_str() {
                "sslmode" => mode = TlsMode::parse(&value)?,
                "sslrootcert" => root_cert = Some(value),
                other => return Err(invalid(format!("{other} is not supported"))),
            }
        }
        config.ssl_mode(mode.for_driver());
        Ok(Self { config, mode, root_cert })
    }
}

type Pairs = Vec<(String, String)>;

fn is_tls(key: &str) -> bool {
    key.starts_with("ssl")
}

fn split_url(text: &str) -> Result<(String, Pairs), Error> {
    let Some((base, query)) = text.split_once('?') else {
        return Ok((text.to_owned(), Vec::new()));
    };
    let mut kept = Vec::new();
    let mut tls = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if is_tls(key) {
            tls.push((key.to_owned(), percent_decoded(value)?));
        } else {
            kept.push(pair);
        }
    }
    let rest = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    Ok((rest, tls))
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
    let mut tls = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest
            .split_once('=')
            .ok_or_else(|| invalid("the connection string is not a list of key=value"))?;
        let (value, raw, tail) = take_value(after.trim_start())?;
        if is_tls(key.trim()) {
            tls.push((key.trim().to_owned(), value));
        } else {
            kept.push(format!("{}={raw}", key.trim()));
        }
        rest = tail.trim_start();
    }
    Ok((kept.join(" "), tls))
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
                "{:?} {:?} user={:?} db={:?}",
                dsn.mode,
                dsn.root_cert,
                dsn.config.get_user(),
                dsn.config.get_dbname()
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
}
