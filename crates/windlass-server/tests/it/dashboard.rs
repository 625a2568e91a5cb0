//! The files of the dashboard: where they are, their headers, and the base of each page.

use reqwest::{Method, header};
use windlass_server::Options;

use crate::harness::{Kind, Server, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_is_served_under_ui() {
    let options = Options { dashboard: true, ..open() };
    let server = Server::start_with(Kind::Memory, options).await;
    let get = |path: &str| server.request(Method::GET, path).send();
    let root = get("//").await.unwrap();
    assert_eq!((root.status().as_u16(), root.url().path()), (200, "/ui/"), "the root redirects");
    for (path, base) in
        [("//ui/", "./"), ("//ui/runs", "./"), ("//ui/runs/a/b%2Fc?tab=ledger", "../../")]
    {
        let page = get(path).await.unwrap();
        let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.contains("default-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        let text = page.text().await.unwrap();
        assert!(text.contains(&format!("<base href=\"{base}\"")), "{path}: {text}");
        assert!(text.contains("content=\"../api\""), "{path}: {text}");
    }
    for (path, kind) in [("assets/index.js", "text/javascript"), ("assets/index.css", "text/css")] {
        let file = get(&format!("//ui/{path}")).await.unwrap();
        assert!(file.headers()["content-type"].to_str().unwrap().starts_with(kind), "{path}");
        let tag = file.headers()[header::ETAG].clone();
        let again = server.request(Method::GET, &format!("//ui/{path}"));
        let again = again.header(header::IF_NONE_MATCH, tag).send().await.unwrap();
        assert_eq!(again.status(), 304, "{path}");
        // The same file in fewer bytes, with a tag of its own.
        let packed = server.request(Method::GET, &format!("//ui/{path}"));
        let packed = packed.header(header::ACCEPT_ENCODING, "gzip, br").send().await.unwrap();
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "br", "{path}");
        assert_ne!(packed.headers()[header::ETAG], file.headers()[header::ETAG], "{path}");
        let vary = |response: &reqwest::Response| response.headers()[header::VARY].clone();
        assert_eq!(
            (vary(&packed), vary(&file)),
            ("accept-encoding".parse().unwrap(), vary(&packed))
        );
        assert!(file.headers().get(header::CONTENT_ENCODING).is_none(), "{path}");
        let (packed, plain) = (packed.bytes().await.unwrap(), file.bytes().await.unwrap());
        assert!(packed.len() * 2 < plain.len(), "{path}: {} of {}", packed.len(), plain.len());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_is_off_by_default() {
    let server = Server::start(Kind::Memory).await;
    assert_eq!(server.request(Method::GET, "//ui/").send().await.unwrap().status(), 404);
    server.stop().await;
}
