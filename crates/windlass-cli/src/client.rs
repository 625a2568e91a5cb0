//! The HTTP client of the management commands.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass::ErrorCode;

use crate::args::Remote;
use crate::exit::{Exit, Failure};
use crate::output::now;

/// The timeout of a request that is not a long poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const BASE_URL_HINT: &str = "check --url: it is the base URL of the API and usually ends in /api";

/// A connection to the server at `--url`.
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
}

/// The segments of a path below the base URL. Each is percent-encoded.
pub(crate) type Path<'a> = &'a [&'a str];

/// Query parameters.
pub(crate) type Params = Vec<(&'static str, String)>;

impl Client {
    pub(crate) fn new(remote: &Remote) -> Result<Self, Failure> {
        let is_http = |url: &Url| url.has_host() && matches!(url.scheme(), "http" | "https");
        let base = Url::parse(&remote.url).ok().filter(is_http).ok_or_else(|| {
            let message = format!("{:?} is not an HTTP URL", remote.url);
            Failure::usage(message)
                .with_hint("write the full URL, for example http://127.0.0.1:7878/api")
        })?;
        let http = reqwest::Client::builder()
            .default_headers(headers(remote)?)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| {
                Failure::error(format!("failed to create the HTTP client: {error}"))
            })?;
        Ok(Self { http, base })
    }

    /// The base URL without passwords.
    pub(crate) fn display(&self) -> String {
        crate::redact::without_password(self.base.as_str())
    }

    pub(crate) async fn get(&self, path: Path<'_>, params: &Params) -> Result<Value, Failure> {
        self.call(Method::GET, path, params, None, REQUEST_TIMEOUT).await
    }

    /// Reads all pages of a listing and merges them into one page.
    pub(crate) async fn get_all(&self, path: Path<'_>, items: &str) -> Result<Value, Failure> {
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
                return Err(Failure::error("the server returned the same page twice"));
            }
            cursor = next;
        }
    }

    /// Sends a GET that the server answers on a change, or after `wait`.
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

    /// Opens a stream of server-sent events that starts after `last_id`.
    pub(crate) async fn stream(
        &self,
        path: Path<'_>,
        last_id: Option<&str>,
    ) -> Result<Response, Failure> {
        let mut request = self.http.get(self.url(path)?).header("accept", "text/event-stream");
        if let Some(last_id) = last_id {
            request = request.header("last-event-id", last_id);
        }
        let response = request.send().await.map_err(|error| self.transport_failure(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.error_response(response, path, None).await)
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
        let response = request.send().await.map_err(|error| self.transport_failure(&error))?;
        if !response.status().is_success() {
            return Err(self.error_response(response, path, body).await);
        }
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        self.parse(response).await
    }

    /// Sends a request with headers and a body that is sent unchanged. The response can have any type:
    /// [`Value`] would round large numbers.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: Path<'_>,
        params: &Params,
        headers: HeaderMap,
        body: Option<String>,
    ) -> Result<T, Failure> {
        let request = self.http.request(method, self.url(path)?).query(params).headers(headers);
        let mut request = request.timeout(REQUEST_TIMEOUT);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response = request.send().await.map_err(|error| self.transport_failure(&error))?;
        if !response.status().is_success() {
            return Err(self.error_response(response, path, None).await);
        }
        self.parse(response).await
    }

    /// Posts JSON and returns the status and the body of the answer, also of an error.
    pub(crate) async fn exchange(
        &self,
        path: Path<'_>,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        let request = self.http.post(self.url(path)?).headers(headers).body(body);
        let request = request.header(CONTENT_TYPE, "application/json").timeout(REQUEST_TIMEOUT);
        let response = request.send().await.map_err(|error| self.transport_failure(&error))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| self.transport_failure(&error))?;
        Ok((status, body.to_vec()))
    }

    /// Reads an answer that is text.
    pub(crate) async fn get_text(&self, path: Path<'_>) -> Result<String, Failure> {
        let request = self.http.get(self.url(path)?).timeout(REQUEST_TIMEOUT);
        let response = request.send().await.map_err(|error| self.transport_failure(&error))?;
        if !response.status().is_success() {
            return Err(self.error_response(response, path, None).await);
        }
        response.text().await.map_err(|error| self.transport_failure(&error))
    }

    async fn parse<T: DeserializeOwned>(&self, response: Response) -> Result<T, Failure> {
        let text = response.text().await.map_err(|error| self.transport_failure(&error))?;
        serde_json::from_str(&text).map_err(|_| {
            let url = self.display();
            Failure::error(format!("the response of {url} is not JSON"))
                .with_hint("check --url: it is the base URL of the API and usually ends in /api")
        })
    }

    fn url(&self, path: Path<'_>) -> Result<Url, Failure> {
        // A URL has no such segments: the request would go to another route.
        if let Some(name) = path.iter().find(|name| ["", ".", ".."].contains(*name)) {
            return Err(Failure::usage(format!("{name:?} is not a name or an id")));
        }
        let mut url = self.base.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => {
                segments.pop_if_empty().extend(path);
            }
            Err(()) => {
                let message = format!("{} is not a valid base URL", self.display());
                return Err(Failure::usage(message));
            }
        }
        Ok(url)
    }

    fn transport_failure(&self, error: &reqwest::Error) -> Failure {
        let url = self.display();
        if error.is_timeout() && !error.is_connect() {
            let message = format!("the server at {url} did not answer in time");
            return Failure::new(Exit::Timeout, message).transient();
        }
        let cause = root_cause(error);
        if error.is_connect() {
            return Failure::error(format!("failed to connect to {url}: {cause}"))
                .with_hint(
                    "start a server with `windlass dev`, or set its address with --url or WINDLASS_URL",
                )
                .transient();
        }
        Failure::error(format!("the connection to {url} failed: {cause}")).transient()
    }

    // Converts an error response into a failure, with hints that the message does not contain.
    async fn error_response(
        &self,
        response: Response,
        path: Path<'_>,
        body: Option<&Value>,
    ) -> Failure {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| retry_after(text, now()));
        let failure = self.failure_from_body(response, path, body).await;
        // The server or a proxy is overloaded or temporarily unavailable.
        match status {
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => failure.transient().retry_after(after),
            _ => failure,
        }
    }

    async fn failure_from_body(
        &self,
        response: Response,
        path: Path<'_>,
        request: Option<&Value>,
    ) -> Failure {
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
            let url = self.display();
            let message = format!("the server at {url} answered {status} to /{}", path.join("/"));
            let failure = Failure::new(exit, message);
            return match status {
                StatusCode::NOT_FOUND => failure.with_hint(BASE_URL_HINT),
                _ => failure,
            };
        };
        let failure = Failure::new(exit, message).with_code(code);
        match (code.parse(), path) {
            (Ok(ErrorCode::WorkflowNotFound), ["workflows", name, ..]) => {
                self.with_suggestion(failure, name).await
            }
            (Ok(ErrorCode::WorkflowNotFound), _) => match request.and_then(requested_workflow) {
                Some(name) => self.with_suggestion(failure, name).await,
                None => failure,
            },
            (Ok(ErrorCode::RouteNotFound), _) => failure.with_hint(BASE_URL_HINT),
            // The run may be missing because its workflow does not exist.
            (Ok(ErrorCode::InstanceNotFound), ["workflows", name, ..]) => {
                match self.workflows().await {
                    Some(known) if !known.iter().any(|known| known == name) => {
                        failure.or_hint(suggest_name(name, &known))
                    }
                    _ => {
                        let list = format!("windlass runs list --workflow {name}");
                        failure.with_hint(format!("list the runs with: {list}"))
                    }
                }
            }
            (Ok(ErrorCode::RecordConflict), ["records", collection, id, ..]) => {
                let get = format!("windlass records get {collection} {id}");
                failure.with_hint(format!("read the record again with: {get}"))
            }
            (Ok(ErrorCode::RecordNotFound), ["records", collection, ..]) => {
                let list = format!("windlass records list {collection}");
                failure.with_hint(format!("list the records with: {list}"))
            }
            (Ok(ErrorCode::RecordVersionNotFound), ["records", collection, id, ..]) => {
                let versions = format!("windlass records versions {collection} {id}");
                failure.with_hint(format!("list the kept versions with: {versions}"))
            }
            (Ok(ErrorCode::Unauthenticated), _) => {
                failure.with_hint("set a key with --key or WINDLASS_KEY, or a header with -H")
            }
            _ => failure,
        }
    }

    // An unknown name is usually a typing error.
    async fn with_suggestion(&self, failure: Failure, name: &str) -> Failure {
        match self.workflows().await {
            Some(known) => failure.or_hint(suggest_name(name, &known)),
            None => failure,
        }
    }

    // The names of all workflows, if the caller may list them.
    async fn workflows(&self) -> Option<Vec<String>> {
        let url = self.url(&["workflows"]).ok()?;
        let response = self.http.get(url).timeout(REQUEST_TIMEOUT).send().await.ok()?;
        let body: Value = serde_json::from_slice(&response.bytes().await.ok()?).ok()?;
        let names = body["workflows"].as_array()?.iter().filter_map(|row| row["name"].as_str());
        Some(names.map(str::to_owned).collect())
    }
}

/// Parses `Retry-After`: seconds or an HTTP date.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

/// The workflow in the body of a request.
fn requested_workflow(request: &Value) -> Option<&str> {
    request["workflow"].as_str().or_else(|| request["filter"]["workflow"].as_str())
}

/// Suggests the most similar name in `known`, or lists some of them.
fn suggest_name(name: &str, known: &[String]) -> Option<String> {
    let distance = |other: &&String| strsim::damerau_levenshtein(name, other);
    let nearest = known.iter().min_by_key(distance)?;
    // If half of the characters differ, the names are unrelated.
    if distance(&nearest) <= (name.chars().count() / 2).max(1) {
        return Some(format!("did you mean {nearest:?}?"));
    }
    let shown: Vec<&str> = known.iter().map(String::as_str).take(8).collect();
    let more = if known.len() > shown.len() { ", …" } else { "" };
    Some(format!("known workflows: {}{more}", shown.join(", ")))
}

fn headers(remote: &Remote) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &remote.key {
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(|_| {
            Failure::usage("the key contains characters that are not allowed in a header")
        })?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    if let Some(person) = &remote.person {
        let value = HeaderValue::try_from(person.trim()).map_err(|_| {
            Failure::usage("--as contains characters that are not allowed in a header")
        })?;
        headers.insert(windlass_server::auth::PERSON_HEADER, value);
    }
    for line in &remote.header {
        let invalid = || {
            let name = line.split(':').next().unwrap_or_default();
            Failure::usage(format!("the header that starts with {name:?} is not \"Name: value\""))
        };
        let (name, value) = line.split_once(':').ok_or_else(invalid)?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| invalid())?;
        let mut value = HeaderValue::try_from(value.trim()).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn root_cause(error: &dyn std::error::Error) -> String {
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
    fn a_similar_name_is_suggested() {
        let known = ["hello", "order", "fan-out"].map(str::to_owned);
        assert_eq!(suggest_name("helo", &known).unwrap(), "did you mean \"hello\"?");
        assert_eq!(suggest_name("odrer", &known).unwrap(), "did you mean \"order\"?");
        assert_eq!(
            suggest_name("billing", &known).unwrap(),
            "known workflows: hello, order, fan-out"
        );
        assert_eq!(suggest_name("billing", &[]), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
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
