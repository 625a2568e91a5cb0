//! The dashboard: the files of `ui/dist`, embedded in the binary.
//!
//! All URLs in the files are relative. Each page gets a relative `<base>` from the depth of its own path,
//! so that one build works under any prefix, also one that a proxy has removed.

use std::sync::OnceLock;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::options::Options;
use crate::table::{Access, Routes};

/// Only files of this server, and no frames. React sets styles through the DOM, which needs no exception.
const POLICY: &str = "default-src 'self'; base-uri 'self'; form-action 'self'; object-src 'none'; \
                      frame-ancestors 'none'";

const INDEX: &str = include_str!("../ui/dist/index.html");
const JS: &str = "text/javascript; charset=utf-8";

/// A file: path, content type, content, and the content with brotli.
type File = (&'static str, &'static str, Asset, Option<Asset>);

/// Bytes of the binary with their tag, which is computed at the first request.
struct Asset {
    bytes: &'static [u8],
    tag: OnceLock<String>,
}

impl Asset {
    const fn new(bytes: &'static [u8]) -> Self {
        Self { bytes, tag: OnceLock::new() }
    }

    fn tag(&self) -> &str {
        self.tag.get_or_init(|| tag_of(self.bytes))
    }
}

macro_rules! asset {
    ($($part:literal),+) => {
        Asset::new(include_bytes!(concat!("../ui/dist/", $($part),+)))
    };
}

macro_rules! packed {
    ($path:literal) => {
        Some(asset!($path, ".br"))
    };
}

static FILES: [File; 6] = [
    ("assets/index.js", JS, asset!("assets/index.js"), packed!("assets/index.js")),
    (
        "assets/index.css",
        "text/css; charset=utf-8",
        asset!("assets/index.css"),
        packed!("assets/index.css"),
    ),
    ("assets/live.worker.js", JS, asset!("assets/live.worker.js"), None),
    (
        "assets/graph.worker.js",
        JS,
        asset!("assets/graph.worker.js"),
        packed!("assets/graph.worker.js"),
    ),
    ("theme.js", JS, asset!("theme.js"), None),
    ("icon.svg", "image/svg+xml", asset!("icon.svg"), None),
];

/// Adds the dashboard, if the options ask for it.
pub(crate) fn routes(routes: Routes, options: &Options) -> Routes {
    if !options.dashboard {
        return routes;
    }
    let routes = routes
        .add_outside(Access::Public, "/ui", get(to_page))
        .add_outside(Access::Public, "/ui/", get(index))
        .add_outside(Access::Public, "/ui/{*path}", get(page));
    // Without a base path, the index of the API is there.
    match options.base.is_empty() {
        true => routes,
        false => routes.add_outside(Access::Public, "/", get(to_dashboard)),
    }
}

async fn to_dashboard() -> Redirect {
    Redirect::temporary("ui/")
}

async fn to_page() -> Redirect {
    Redirect::permanent("ui/")
}

async fn index(State(app): State<App>, headers: HeaderMap) -> Response {
    html(&app, &headers, "")
}

async fn page(State(app): State<App>, headers: HeaderMap, uri: Uri) -> Response {
    let path = uri.path().strip_prefix("/ui/").unwrap_or_default();
    match FILES.iter().find(|(name, ..)| *name == path) {
        Some((_, kind, content, packed)) => {
            let packed = packed.as_ref().filter(|_| accepts_brotli(&headers));
            let is_packed = packed.is_some();
            let asset = packed.unwrap_or(content);
            let mut response = file(&headers, kind, Bytes::from_static(asset.bytes), asset.tag());
            let headers = response.headers_mut();
            headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            if is_packed {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
            }
            response
        }
        // The path of a view: the page reads it.
        None => html(&app, &headers, path),
    }
}

fn html(app: &App, headers: &HeaderMap, path: &str) -> Response {
    let text = INDEX.replacen("href=\"./\"", &format!("href=\"{}\"", base_of(path)), 1).replacen(
        "content=\"../api\"",
        &format!("content=\"..{}\"", app.options.base),
        1,
    );
    let tag = tag_of(text.as_bytes());
    file(headers, "text/html; charset=utf-8", text.into(), &tag)
}

/// Whether the client reads brotli. `br;q=0` refuses it.
fn accepts_brotli(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    lists.filter_map(|list| list.to_str().ok()).flat_map(|list| list.split(',')).any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        let weight = weight.trim().strip_prefix("q=").map(str::parse::<f32>);
        name.trim().eq_ignore_ascii_case("br") && weight != Some(Ok(0.0))
    })
}

/// The way from the page of a view to `/ui/`. The path is as the browser sent it: an escaped slash in the id
/// of a run does not count.
fn base_of(path: &str) -> String {
    match path.matches('/').count() {
        0 => "./".to_owned(),
        depth => "../".repeat(depth),
    }
}

fn tag_of(content: &[u8]) -> String {
    format!("\"{}\"", hex::encode(&Sha256::digest(content)[..12]))
}

fn file(headers: &HeaderMap, kind: &'static str, content: Bytes, tag: &str) -> Response {
    let known =
        headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = match known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => content.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_leads_back_to_the_root() {
        for (path, expect) in
            [("", "./"), ("runs", "./"), ("runs/", "../"), ("runs/a/b%2Fc", "../../")]
        {
            assert_eq!(base_of(path), expect, "{path}");
        }
    }

    #[test]
    fn brotli_is_sent_to_those_who_ask() {
        for (asked, expect) in [
            ("gzip, deflate, br, zstd", true),
            ("BR;q=0.5", true),
            ("gzip", false),
            ("br;q=0", false),
            ("br; q=0.000, gzip", false),
            ("brotli", false),
            ("", false),
        ] {
            let value = HeaderValue::from_static(asked);
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]);
            assert_eq!(accepts_brotli(&headers), expect, "{asked}");
        }
        assert!(!accepts_brotli(&HeaderMap::new()));
    }

    #[test]
    fn the_tag_of_a_file_is_computed_once() {
        for (path, _, plain, packed) in &FILES {
            for asset in std::iter::once(plain).chain(packed) {
                assert_eq!(asset.tag(), tag_of(asset.bytes), "{path}");
                assert!(std::ptr::eq(asset.tag(), asset.tag()), "{path}");
            }
        }
    }

    #[test]
    fn the_page_has_what_the_server_replaces() {
        for text in ["href=\"./\"", "content=\"../api\"", "./assets/index.js", "./assets/index.css"]
        {
            assert!(INDEX.contains(text), "{text}");
        }
        assert!(!INDEX.contains("<style"), "the policy refuses inline styles");
    }
}
