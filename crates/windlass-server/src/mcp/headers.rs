//! The HTTP headers of a request, which must agree with its message.

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::rpc::{Request, RpcError, Version, is_modern};

/// The version of a request, from its header and its metadata.
pub(super) fn version(headers: &HeaderMap, request: &Request) -> Result<Version, RpcError> {
    let header = text(headers, "mcp-protocol-version")?;
    if request.method == "initialize" {
        return Ok(Version::LEGACY);
    }
    let meta = request.meta("protocolVersion").as_str();
    let is_modern =
        meta.is_some() || header.is_some_and(is_modern) || request.method == "server/discover";
    if !is_modern {
        let Some(header) = header else { return Ok(Version::LEGACY) };
        return Version::parse(header).ok_or_else(|| RpcError::unsupported_version(header));
    }
    let (Some(asked), true) = (meta, request.meta("clientCapabilities").is_object()) else {
        let message = "`_meta` of the request needs `io.modelcontextprotocol/protocolVersion` and \
                       `io.modelcontextprotocol/clientCapabilities`";
        return Err(RpcError::params(message).malformed());
    };
    if header != Some(asked) {
        let message = format!("the header `MCP-Protocol-Version` is not {asked:?} as in `_meta`");
        return Err(RpcError::header(message));
    }
    let version = Version::parse(asked).ok_or_else(|| RpcError::unsupported_version(asked))?;
    if version.is_modern() {
        agrees(headers, "mcp-method", &request.method)?;
        if let Some(name) = name(request) {
            agrees(headers, "mcp-name", name)?;
        }
    }
    Ok(version)
}

/// The name that the header `Mcp-Name` repeats.
fn name(request: &Request) -> Option<&str> {
    match request.method.as_str() {
        "tools/call" => request.params["name"].as_str(),
        "tasks/get" | "tasks/update" | "tasks/cancel" => request.params["taskId"].as_str(),
        _ => None,
    }
}

fn agrees(headers: &HeaderMap, header: &'static str, expect: &str) -> Result<(), RpcError> {
    let found = text(headers, header)?;
    let decoded = found.and_then(|found| {
        let encoded = found.strip_prefix("=?base64?")?.strip_suffix("?=")?;
        String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
    });
    if decoded.as_deref().or(found) == Some(expect) {
        return Ok(());
    }
    let shown: String = expect.chars().take(80).collect();
    Err(RpcError::header(format!("the header `{header}` is not {shown:?} as in the message")))
}

/// The value of a header that may come once.
fn text<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    match (first.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text)),
        _ => Err(RpcError::header(format!("the header `{name}` is not one plain text"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(headers: &[(&'static str, &'static str)], method: &str, params: Value) -> String {
        let headers = headers.iter().map(|(name, value)| {
            (axum::http::HeaderName::from_static(name), value.parse().expect("a value"))
        });
        let request = Request { id: 1.into(), method: method.to_owned(), params };
        match version(&headers.collect(), &request) {
            Ok(version) => version.as_str().to_owned(),
            Err(error) => error.code.to_string(),
        }
    }

    #[test]
    fn headers_agree_with_the_message() {
        let meta = |version: &str| {
            json!({ "name": "why", "_meta": {
                "io.modelcontextprotocol/protocolVersion": version,
                "io.modelcontextprotocol/clientCapabilities": {},
            }})
        };
        let new = "2026-07-28";
        let version = ("mcp-protocol-version", new);
        let (method, name) = (("mcp-method", "tools/call"), ("mcp-name", "why"));
        for (headers, asked, expect) in [
            (&[][..], json!({}), "2025-11-25"),
            (&[("mcp-protocol-version", "2025-06-18")], json!({}), "2025-06-18"),
            (&[("mcp-protocol-version", "1999-01-01")], json!({}), "-32022"),
            (&[version, method, name], json!({}), "-32602"),
            (&[method, name], meta(new), "-32020"),
            (&[("mcp-protocol-version", "2025-11-25"), method, name], meta(new), "-32020"),
            (&[version, version, method, name], meta(new), "-32020"),
            (&[version, name], meta(new), "-32020"),
            (&[version, method], meta(new), "-32020"),
            (&[version, ("mcp-method", "tools/list"), name], meta(new), "-32020"),
            (&[version, method, ("mcp-name", "get_run")], meta(new), "-32020"),
            (&[version, method, ("mcp-name", "=?base64?d2h5?=")], meta(new), new),
            (&[version, method, name], meta(new), new),
            (&[("mcp-protocol-version", "2099-01-01"), method], meta("2099-01-01"), "-32022"),
        ] {
            assert_eq!(check(headers, "tools/call", asked.clone()), expect, "{headers:?} {asked}");
        }
        assert_eq!(check(&[], "server/discover", json!({})), "-32602");
        assert_eq!(check(&[], "initialize", json!({})), "2025-11-25");
    }
}
