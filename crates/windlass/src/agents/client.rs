//! The HTTP side that the clients of all providers share: options, key, limits of an answer.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, Url};
use windlass_kernel::{Error, ErrorCode, ErrorKind, IntoDuration, Sha256Digest};
use windlass_models::agents::{ProviderError, ProviderErrorKind};

use crate::tls;

/// How long a call may take, from connecting to the end of the answer.
const TIMEOUT: Duration = Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that nobody uses is kept.
const POOL_IDLE: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The key of an account. `Debug` shows none of it.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// A key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// Names the key without showing it: the beginning of its SHA-256 digest, in hexadecimal digits.
    /// Processes with the same key share its rate limits under this name.
    pub fn id(&self) -> String {
        let digest = Sha256Digest::of(self.0.as_bytes()).to_string();
        digest.trim_start_matches("sha256:").chars().take(16).collect()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// The options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The name under which programs call the provider. Default `anthropic` or `openai`.
    pub name: Option<String>,
    /// The address without `/v1`. Default the provider's own. Plain `http` is only for loopback: the key
    /// would be readable on its way.
    pub base_url: Option<String>,
    /// The key.
    pub key: ApiKey,
    /// How long a call may take, from connecting to the end of the answer. Default 10 minutes.
    pub timeout: Duration,
    /// How long connecting may take. Default 10 s.
    pub connect_timeout: Duration,
    /// How large an answer may be, as a body or as a whole stream. Default 16 MiB.
    pub answer_bytes_max: usize,
    /// More headers, for example `anthropic-beta` or `openai-organization`.
    pub headers: Vec<(String, String)>,
}

impl ClientOptions {
    /// The defaults with a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            name: None,
            base_url: None,
            key: ApiKey::new(key),
            timeout: TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            answer_bytes_max: ANSWER_BYTES_MAX,
            headers: Vec::new(),
        }
    }

    /// The key and the address of two variables of the environment.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`] if the variable of the key is missing or empty.
    pub fn from_env(key: &str, base_url: &str) -> Result<Self, Error> {
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let found = read(key).ok_or_else(|| {
            let message =
                format!("the variable {key} is not set; it holds the key of the provider");
            invalid(message)
        })?;
        Ok(Self { base_url: read(base_url), ..Self::new(found) })
    }

    /// The same at another address.
    #[must_use]
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.base_url = Some(url.into());
        self
    }

    /// The same under another name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The same with another limit on the size of an answer.
    #[must_use]
    pub fn answer_bytes_max(mut self, bytes: usize) -> Self {
        self.answer_bytes_max = bytes;
        self
    }

    /// How long a call may take: a text, a [`Duration`], or milliseconds.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidDuration`] if the text is no duration.
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Result<Self, Error> {
        self.timeout = timeout.into_duration().map_err(|error| {
            let message = format!("the timeout of a provider: {error}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, message)
        })?;
        Ok(self)
    }

    /// The same with one more header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message)
}

/// Sends requests of one account.
#[derive(Clone)]
pub(super) struct Http {
    pub(super) name: String,
    pub(super) key: ApiKey,
    pub(super) timeout: Duration,
    pub(super) bytes_max: usize,
    client: reqwest::Client,
    base: Url,
}

/// The differences between the providers.
pub(super) struct Defaults {
    pub(super) name: &'static str,
    pub(super) base_url: &'static str,
    /// The header that holds the key, and what comes before the key.
    pub(super) key_header: (&'static str, &'static str),
    pub(super) headers: &'static [(&'static str, &'static str)],
}

impl Http {
    pub(super) fn new(options: ClientOptions, defaults: &Defaults) -> Result<Self, Error> {
        let name = options.name.unwrap_or_else(|| defaults.name.to_owned());
        let text = options.base_url.unwrap_or_else(|| defaults.base_url.to_owned());
        let base = base(&text).map_err(|why| {
            let message = format!("the base URL of the provider {name:?} is refused: {why}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidUrl, message)
        })?;
        let mut headers = HeaderMap::new();
        let mut insert = |key: &str, value: &str, secret: bool| {
            let wrong = || {
                let message = format!("the header {key:?} of the provider {name:?} cannot be sent");
                Error::new(ErrorKind::Invalid, ErrorCode::InvalidHeader, message)
            };
            let key: HeaderName = key.parse().map_err(|_| wrong())?;
            let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
            value.set_sensitive(secret);
            headers.insert(key, value);
            Ok::<_, Error>(())
        };
        for (key, value) in defaults.headers {
            insert(key, value, false)?;
        }
        for (key, value) in &options.headers {
            insert(key, value, false)?;
        }
        let (key_header, prefix) = defaults.key_header;
        if options.key.0.is_empty() {
            return Err(invalid(format!("the key of the provider {name:?} is empty")));
        }
        insert(key_header, &format!("{prefix}{}", options.key.0), true)?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config().map_err(tls::unusable)?)
            .redirect(reqwest::redirect::Policy::none())
            // Without this, variables of the environment would send the key to a third party.
            .no_proxy()
            .connect_timeout(options.connect_timeout)
            .pool_idle_timeout(POOL_IDLE)
            .default_headers(headers)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(tls::unusable)?;
        let bytes_max = options.answer_bytes_max;
        Ok(Self { name, key: options.key, timeout: options.timeout, bytes_max, client, base })
    }

    /// The host, without the port.
    pub(super) fn address(&self) -> Option<&str> {
        self.base.host_str()
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Bytes)>,
    ) -> Result<Response, ProviderError> {
        let url = self.base.join(path.trim_start_matches('/')).map_err(|error| {
            let message = format!("the path {path:?} is no URL: {error}");
            ProviderError::new(ProviderErrorKind::Invalid, message)
        })?;
        self.send_to(method, url, body).await
    }

    /// Sends a request to an address that the provider named. Another origin does not get the key.
    pub(super) async fn get_at(&self, url: &str) -> Result<Response, ProviderError> {
        let url = Url::parse(url).ok().filter(|url| url.origin() == self.base.origin());
        let url = url.ok_or_else(|| {
            let message = format!("{} names an address on another host; it is not read", self.name);
            ProviderError::new(ProviderErrorKind::InvalidResponse, message)
        })?;
        self.send_to(Method::GET, url, None).await
    }

    async fn send_to(
        &self,
        method: Method,
        url: Url,
        body: Option<(&str, Bytes)>,
    ) -> Result<Response, ProviderError> {
        let mut request = self.client.request(method, url);
        if let Some((content_type, body)) = body {
            request = request.header("content-type", content_type).body(body);
        }
        request.send().await.map_err(|error| self.failed(error))
    }

    /// Reads the body up to the limit.
    pub(super) async fn read(&self, mut response: Response) -> Result<Bytes, ProviderError> {
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error))? {
            if body.len() + chunk.len() > self.bytes_max {
                return Err(self.too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    pub(super) fn too_large(&self) -> ProviderError {
        let message = format!(
            "the answer of {} has more than {} bytes (`answer_bytes_max`)",
            self.name, self.bytes_max
        );
        ProviderError::new(ProviderErrorKind::InvalidResponse, message)
    }

    /// A call without a complete answer: not sent if there was no connection, else unknown.
    pub(super) fn failed(&self, error: reqwest::Error) -> ProviderError {
        let not_sent = error.is_connect() || error.is_builder();
        // Without the URL, which may hold the ids of others.
        let error = error.without_url();
        let mut reason: &dyn std::error::Error = &error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        let (kind, what) = match not_sent {
            true => (ProviderErrorKind::Retryable, "cannot be reached"),
            false => (ProviderErrorKind::UnknownOutcome, "closed the connection before its answer"),
        };
        let message = format!("{} {what}: {reason}", self.name);
        ProviderError::new(kind, self.without_key(&message)).with_source(error)
    }

    /// Limits a call in time. A call that takes too long may have been paid.
    #[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| {
            let message =
                format!("{} has not finished its answer within {:?}", self.name, self.timeout);
            Err(ProviderError::new(ProviderErrorKind::UnknownOutcome, message))
        })
    }

    /// A text of the provider, without the key if the provider repeats it.
    pub(super) fn without_key(&self, text: &str) -> String {
        text.replace(&self.key.0, "[key]")
    }
}

/// Shows neither the key nor the headers.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("name", &self.name)
            .field("base_url", &self.base.as_str())
            .finish_non_exhaustive()
    }
}

fn base(text: &str) -> Result<Url, &'static str> {
    let text = text.trim_end_matches('/');
    check_url(&format!("{text}/"))
}

/// Reads an address to which a key is sent.
pub(super) fn check_url(text: &str) -> Result<Url, &'static str> {
    // The error does not show the URL: it may hold credentials.
    let url = Url::parse(text).map_err(|_| "it does not read")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it holds credentials; use the key");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it has a query or a fragment");
    }
    let loopback = match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback()),
        None => return Err("it has no host"),
    };
    match url.scheme() {
        "https" => Ok(url),
        "http" if loopback => Ok(url),
        "http" => Err("plain http is only for loopback, because it shows the key; use https"),
        _ => Err("its scheme is not https"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_are_checked() {
        for (text, expect) in [
            ("https://api.example.com", Ok("https://api.example.com/")),
            ("https://example.com/proxy/", Ok("https://example.com/proxy/")),
            ("http://127.0.0.1:80", Ok("http://127.0.0.1/")),
            ("http://[::1]:9/", Ok("http://[::1]:9/")),
            ("http://localhost:9", Ok("http://localhost:9/")),
            ("http://example.com", Err("use https")),
            ("ftp://example.com", Err("scheme")),
            ("https://a:b@example.com", Err("credentials")),
            ("https://example.com/?a=b", Err("query")),
            ("nothing", Err("does not read")),
        ] {
            match (base(text), expect) {
                (Ok(url), Ok(expect)) => assert_eq!(url.as_str(), expect),
                (Err(why), Err(expect)) => assert!(why.contains(expect), "{text}: {why}"),
                (found, expect) => panic!("{text}: {found:?} instead of {expect:?}"),
            }
        }
    }

    #[test]
    fn a_key_is_named_but_never_shown() {
        let options = ClientOptions::new("sk-s3cret").header("x-a", "b");
        assert!(!format!("{options:?}").contains("s3cret"));
        assert_eq!(options.key.id().len(), 16);
        assert_eq!(options.key.id(), ApiKey::new("sk-s3cret").id());
        assert_ne!(options.key.id(), ApiKey::new("sk-other").id());
    }
}
