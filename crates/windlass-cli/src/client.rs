//! The HTTP client of the management commands: one base URL, the caller's headers, one error shape.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde_json::{Value, json};

use crate::args::Remote;
use crate::exit::{Exit, Failure};
use crate::output::now;

/// How long a request may take that is not a long poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const WRONG_BASE: &str =
    "is --url right? It is the base of the API and ends in /api unless it was moved";

/// A server, as the command line names it.
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
}

/// The words of a path below the base; each is quoted by itself.
pub(crate) type Path<'a> = &'a [&'a str];

/// Parameters after the `?`.
pub(crate) type Params = Vec<(&'static str, String)>;

impl Client {
    pub(crate) fn new(remote: &Remote) -> Result<Self, Failure> {
        let is_http = |url: &Url| url.has_host() && matches!(url.scheme(), "http" | "https");
        let base = Url::parse(&remote.url).ok().filter(is_http).ok_or_else(|| {
            let message = format!("{:?} is not the URL of a server", remote.url);
            Failure::usage(message).with_hint("write it in full, as http://127.0.0.1:7878/api")
        })?;
        let http = reqwest::Client::builder()
            .default_headers(headers(remote)?)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::error(format!("no HTTP client can be made: {error}")))?;
        Ok(Self { http, base })
    }

    /// The base URL, without what may be secret in it.
    pub(crate) fn shown(&self) -> String {
        crate::shown::without_password(self.base.as_str())
    }

    pub(crate) async fn get(&self, path: Path<'_>, params: &Params) -> Result<Value, Failure> {
        self.call(Method::GET, path, params, None, REQUEST_TIMEOUT).await
    }

    /// All rows of a listing, page by page, in the shape of one page that has all of them.
    pub(crate) async fn all(&self, path: Path<'_>, items: &str) -> Result<Value, Failure> {
        let mut rows: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut params: Params = vec![("pageSize", "100".to_owned())];
            params.extend(cursor.clone().map(|cursor| ("cursor", cursor)));
            let mut page = self.get(path, &params).await?;
            rows.extend(page[items].as_array_mut().map(std::mem::take).unwrap_or_default());
            let next = page["cursor"].as_str().map(ToOwned::to_owned);
            if next.is_none() {
                return Ok(json!({ items: rows, "hasNextPage": false }));
            }
            if next == cursor {
                return Err(Failure::error("the server answers the same page for ever"));
            }
            cursor = next;
        }
    }

    /// A GET that the server answers when something has happened, or after `wait`.
    pub(crate) async fn long_poll(
        &self,
        path: Path<'_>,
        params: &Params,
        wait: Duration,
    ) -> Result<Value, Failure> {
        self.call(Method::GET, path, params, None, wait + REQUEST_TIMEOUT).await
    }

    pub(crate) async fn post(&self, path: Path<'_>, body: &Value) -> Result<Value, Failure> {
        self.call(Method::POST, path, &Vec::new(), Some(body), REQUEST_TIMEOUT).await
    }

    pub(crate) async fn put(&self, path: Path<'_>, body: &Value) -> Result<Value, Failure> {
        self.call(Method::PUT, path, &Vec::new(), Some(body), REQUEST_TIMEOUT).await
    }

    pub(crate) async fn delete(&self, path: Path<'_>) -> Result<Value, Failure> {
        self.call(Method::DELETE, path, &Vec::new(), None, REQUEST_TIMEOUT).await
    }

    /// Opens a stream of server-sent events, from after `last_id` if there is one.
    pub(crate) async fn stream(
        &self,
        path: Path<'_>,
        last_id: Option<&str>,
    ) -> Result<Response, Failure> {
        let mut request = self.http.get(self.url(path)?).header("accept", "text/event-stream");
        if let Some(last_id) = last_id {
            request = request.header("last-event-id", last_id);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refused(response, path, None).await)
    }

    async fn call(
        &self,
        method: Method,
        path: Path<'_>,
        params: &Params,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let mut request: RequestBuilder =
            self.http.request(method, self.url(path)?).query(params).timeout(timeout);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() {
            return Err(self.refused(response, path, body).await);
        }
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        let text = response.text().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_str(&text).map_err(|_| {
            let shown = self.shown();
            Failure::error(format!("what {shown} answers is not JSON"))
                .with_hint("--url is the base of the API; it ends in /api unless it was moved")
        })
    }

    fn url(&self, path: Path<'_>) -> Result<Url, Failure> {
        let mut url = self.base.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => {
                segments.pop_if_empty().extend(path);
            }
            Err(()) => {
                let message = format!("{} cannot have a path below it", self.shown());
                return Err(Failure::usage(message));
            }
        }
        Ok(url)
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let shown = self.shown();
        if error.is_timeout() && !error.is_connect() {
            let message = format!("the server at {shown} did not answer in time");
            return Failure::new(Exit::Timeout, message).transient();
        }
        let cause = innermost(error);
        if error.is_connect() {
            return Failure::error(format!("no server answers at {shown}: {cause}"))
                .with_hint(
                    "start one with `windlass dev`, or say where it is with --url or WINDLASS_URL",
                )
                .transient();
        }
        Failure::error(format!("the connection to {shown} broke: {cause}")).transient()
    }

    // What the server says, in its own words and code; and what the words do not say.
    async fn refused(&self, response: Response, path: Path<'_>, body: Option<&Value>) -> Failure {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| retry_after(text, now()));
        let failure = self.refusal(response, path, body).await;
        // The server, or a proxy before it, has no room or cannot reach what it needs just now.
        match status {
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => failure.transient().retry_after(after),
            _ => failure,
        }
    }

    async fn refusal(&self, response: Response, path: Path<'_>, asked: Option<&Value>) -> Failure {
        let status = response.status();
        let body: Value = match response.bytes().await {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            Err(_) => Value::Null,
        };
        let exit = match status {
            StatusCode::NOT_FOUND => Exit::NotFound,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::Auth,
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Exit::Timeout,
            _ => Exit::Error,
        };
        let (code, message) = (body["code"].as_str(), body["message"].as_str());
        let (Some(code), Some(message)) = (code, message) else {
            let shown = self.shown();
            let message = format!("the server at {shown} answered {status} to /{}", path.join("/"));
            let failure = Failure::new(exit, message);
            return match status {
                StatusCode::NOT_FOUND => failure.with_hint(WRONG_BASE),
                _ => failure,
            };
        };
        let failure = Failure::new(exit, message).with_code(code);
        match (code, path) {
            ("WORKFLOW_NOT_FOUND", ["workflows", name, ..]) => self.nearest(failure, name).await,
            ("WORKFLOW_NOT_FOUND", _) => match asked.and_then(asked_workflow) {
                Some(name) => self.nearest(failure, name).await,
                None => failure,
            },
            ("ROUTE_NOT_FOUND", _) => failure.with_hint(WRONG_BASE),
            // The run may be missing because its workflow is.
            ("INSTANCE_NOT_FOUND", ["workflows", name, ..]) => match self.workflows().await {
                Some(known) if !known.iter().any(|known| known == name) => {
                    failure.or_hint(hint(name, &known))
                }
                _ => {
                    let list = format!("windlass runs list --workflow {name}");
                    failure.with_hint(format!("see which there are: {list}"))
                }
            },
            ("UNAUTHENTICATED", _) => {
                failure.with_hint("give a key with --key or WINDLASS_KEY, or a header with -H")
            }
            _ => failure,
        }
    }

    // A name that is not known is usually one that was mistyped.
    async fn nearest(&self, failure: Failure, name: &str) -> Failure {
        match self.workflows().await {
            Some(known) => failure.or_hint(hint(name, &known)),
            None => failure,
        }
    }

    // The names of all workflows, if the server tells them to this caller.
    async fn workflows(&self) -> Option<Vec<String>> {
        let url = self.url(&["workflows"]).ok()?;
        let response = self.http.get(url).timeout(REQUEST_TIMEOUT).send().await.ok()?;
        let body: Value = serde_json::from_slice(&response.bytes().await.ok()?).ok()?;
        let names = body["workflows"].as_array()?.iter().filter_map(|row| row["name"].as_str());
        Some(names.map(str::to_owned).collect())
    }
}

/// When to ask again: seconds, or a time.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

/// The workflow that the body of a request names.
fn asked_workflow(asked: &Value) -> Option<&str> {
    asked["workflow"].as_str().or_else(|| asked["filter"]["workflow"].as_str())
}

/// What to say to somebody who wrote a name that is not among `known`.
fn hint(name: &str, known: &[String]) -> Option<String> {
    let distance = |other: &&String| strsim::damerau_levenshtein(name, other);
    let nearest = known.iter().min_by_key(distance)?;
    // Half the letters wrong is another word.
    if distance(&nearest) <= (name.chars().count() / 2).max(1) {
        return Some(format!("did you mean {nearest:?}?"));
    }
    let shown: Vec<&str> = known.iter().map(String::as_str).take(8).collect();
    let more = if known.len() > shown.len() { ", …" } else { "" };
    Some(format!("there are: {}{more}", shown.join(", ")))
}

fn headers(remote: &Remote) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &remote.key {
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim()))
            .map_err(|_| Failure::usage("the key has characters that no header can have"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    for line in &remote.header {
        let wrong = || {
            let name = line.split(':').next().unwrap_or_default();
            Failure::usage(format!("the header beginning with {name:?} is not \"Name: value\""))
        };
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| wrong())?;
        let mut value = HeaderValue::try_from(value.trim()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_recognised() {
        let known = ["hello", "order", "fan-out"].map(str::to_owned);
        assert_eq!(hint("helo", &known).unwrap(), "did you mean \"hello\"?");
        assert_eq!(hint("odrer", &known).unwrap(), "did you mean \"order\"?");
        assert_eq!(hint("billing", &known).unwrap(), "there are: hello, order, fan-out");
        assert_eq!(hint("billing", &[]), None);
    }

    #[test]
    fn when_to_ask_again_is_a_number_or_a_time() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        for (text, expect) in [
            ("3", Some(3)),
            (" 0 ", Some(0)),
            ("Sun, 01 Mar 2026 12:00:30 GMT", Some(30)),
            ("Sun, 01 Mar 2026 11:00:00 GMT", Some(0)),
            ("soon", None),
        ] {
            assert_eq!(retry_after(text, now), expect.map(Duration::from_secs), "{text}");
        }
    }
}
