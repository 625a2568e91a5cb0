//! Reads the URL of a call: one spelling for each place, so that no two parsers can disagree on it.

use std::net::IpAddr;

use reqwest::Url;
use windlass_kernel::{Error, ErrorCode, ErrorKind};

use super::Policy;

/// How long a URL may be, in bytes.
pub const URL_BYTES_MAX: usize = 2_048;

/// The lowest port that is open to all programs; below it are other protocols than HTTP.
const PORT_USER_MIN: u16 = 1_024;

/// A URL that reads, and what it names.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) url: Url,
    pub(super) host: Host,
    pub(super) port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Address(IpAddr),
    Name(String),
}

impl Target {
    /// The place without path and query, which may hold secrets.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.url.host_str().unwrap_or_default(), self.port)
    }
}

/// Reads a URL, and refuses what a policy does not let through whatever its host resolves to.
pub(super) fn parse(text: &str, policy: &Policy) -> Result<Target, Error> {
    if text.len() > URL_BYTES_MAX {
        let message = format!("a URL of {} bytes; the limit is {URL_BYTES_MAX}", text.len());
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidUrl, message));
    }
    // Other parsers drop, decode or turn these, each in its own way.
    let odd = |c: &char| !c.is_ascii_graphic() || "\\\"<>^`{|}".contains(*c);
    if let Some(odd) = text.chars().find(odd) {
        return Err(wrong(&format!(
            "it holds {odd:?}; percent-encode it, or write a host as xn--"
        )));
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme://"))?;
    let plain = match scheme.to_ascii_lowercase().as_str() {
        "https" => false,
        "http" => true,
        _ => return Err(wrong("its scheme is not https")),
    };
    if plain && !policy.plain_http {
        return Err(wrong("its scheme is http, which is not allowed here; use https"));
    }
    if rest.contains('#') {
        return Err(wrong("it has a fragment, which is never sent"));
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(wrong("it holds credentials; send them as a header"));
    }
    let (host, port) = split_port(authority)?;
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    let read = url.host_str().unwrap_or_default();
    let host = host.to_ascii_lowercase();
    let host = match (host.strip_prefix('['), read.parse::<IpAddr>()) {
        (Some(inner), _) => {
            let inner = inner.strip_suffix(']').unwrap_or(inner);
            Host::Address(inner.parse().map_err(|_| wrong("its IPv6 address does not read"))?)
        }
        (None, Ok(address)) if host == address.to_string() => Host::Address(address),
        (None, Ok(_)) => return Err(wrong("its IPv4 address is not four plain decimal numbers")),
        (None, Err(_)) => Host::Name(name(&host, read)?),
    };
    let port = port.unwrap_or(if plain { 80 } else { 443 });
    let open = match &policy.ports {
        Some(ports) => ports.contains(&port),
        None => matches!(port, 80 | 443 | PORT_USER_MIN..),
    };
    if !open {
        return Err(wrong(&format!("port {port} is not allowed here")));
    }
    Ok(Target { url, host, port })
}

fn split_port(authority: &str) -> Result<(&str, Option<u16>), Error> {
    let after_host = authority.find(']').map_or(0, |end| end + 1);
    let Some(colon) = authority[after_host..].find(':').map(|at| after_host + at) else {
        return Ok((authority, None));
    };
    let digits = &authority[colon + 1..];
    let plain = !digits.is_empty() && !digits.starts_with('0');
    let plain = plain && digits.bytes().all(|b| b.is_ascii_digit());
    let port = digits.parse().ok().filter(|_| plain);
    let port = port.ok_or_else(|| wrong("its port is not a plain number from 1 to 65535"))?;
    Ok((&authority[..colon], Some(port)))
}

// A name in the letters of DNS, as the parser reads it too.
fn name(host: &str, read: &str) -> Result<String, Error> {
    let letters = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if host != read || host.len() > 253 || !host.split('.').all(letters) {
        let why =
            "its host is no plain name: letters, digits, hyphens and single dots between them";
        return Err(wrong(why));
    }
    Ok(host.to_owned())
}

// The URL itself is not shown: it may hold tokens.
fn wrong(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidUrl, format!("the URL is refused: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Target, Error> {
        parse(text, &Policy { plain_http: true, ..Policy::default() })
    }

    #[test]
    fn plain_urls_read() {
        for (text, host, port) in [
            ("https://example.com", "example.com", 443),
            ("HTTPS://Example.COM/a?b=c", "example.com", 443),
            ("http://example.com:8080/x", "example.com", 8080),
            ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443),
            ("https://my_service:9000/", "my_service", 9000),
            ("https://8.8.8.8/", "8.8.8.8", 443),
            ("https://[2606:4700::1111]:8443/", "[2606:4700::1111]", 8443),
            ("https://[::FFFF:8.8.8.8]/", "[::ffff:808:808]", 443),
        ] {
            let target = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(target.place(), format!("{host}:{port}"), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_why_and_shows_no_secret() {
        let long = format!("https://example.com/{}", "x".repeat(URL_BYTES_MAX));
        for (text, expect) in [
            ("ftp://example.com/?token=s3cret", "scheme"),
            ("example.com/?token=s3cret", "scheme"),
            ("https://user:s3cret@example.com/", "credentials"),
            ("https://example.com/#s3cret", "fragment"),
            ("https://example.com:0/s3cret", "port"),
            ("https://example.com:22/s3cret", "port 22"),
            ("https://example.com:065536/", "port"),
            ("https://0x7f.1/", "decimal"),
            ("https://example.com./", "plain name"),
            ("https://a.b.1e3.09/", "IPv4"),
            ("https://ex\u{e4}mple.com/", "xn--"),
            (&long, "2048"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.code(), "INVALID_URL");
            assert!(error.to_string().contains(expect), "{text}: {error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        let strict = parse("http://example.com/", &Policy::default()).unwrap_err();
        assert!(strict.to_string().contains("use https"), "{strict}");
        let ports = Policy { ports: Some(vec![443]), ..Policy::default() };
        assert!(parse("https://example.com:8443/", &ports).is_err());
        assert!(parse("https://example.com/", &ports).is_ok());
    }
}
