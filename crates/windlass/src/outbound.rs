//! The guard of calls to addresses that users name: webhooks, relays over HTTP, tools.
//!
//! A URL is read strictly, its host is resolved once, every address is checked, and the connection goes
//! to the addresses that were checked. Redirects are not followed, and no proxy is taken from the
//! environment. Addresses that are not public are refused unless the policy allows their range.

mod address;
mod dial;
mod resolve;
mod target;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use windlass_kernel::{Error, ErrorCode, ErrorKind, IntoDuration};

pub use address::Cidr;
pub use dial::{Destination, Dial};
pub use resolve::{Resolve, SystemResolver};
pub use target::URL_BYTES_MAX;

use target::{Host, Target};

/// How many addresses a name may have.
const ADDRESSES_MAX: usize = 64;

/// The allowed targets and timeouts of calls.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Whether `http://` is let through. Default no: what is sent could be read and changed on its way.
    pub plain_http: bool,
    /// The ports that are let through. Default (`None`): 80, 443, and all from 1024.
    pub ports: Option<Vec<u16>>,
    /// Ranges that are let through though they are not public. Default none.
    pub allow: Vec<Cidr>,
    /// How long connecting may take. Default 5 s.
    pub connect_timeout: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            plain_http: false,
            ports: None,
            allow: Vec::new(),
            connect_timeout: Duration::from_secs(5),
        }
    }
}

impl Policy {
    /// How long connecting may take: a text, a [`Duration`], or milliseconds.
    ///
    /// ```
    /// # use windlass::outbound::Policy;
    /// let policy = Policy::default().connect_timeout("2 seconds")?;
    /// # drop(policy);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidDuration`] if the text is no duration.
    pub fn connect_timeout(mut self, timeout: impl IntoDuration) -> Result<Self, Error> {
        self.connect_timeout = duration_of("connect_timeout", timeout)?;
        Ok(self)
    }
}

/// Reads the duration of an option.
pub(crate) fn duration_of(name: &str, duration: impl IntoDuration) -> Result<Duration, Error> {
    duration.into_duration().map_err(|error| {
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, format!("{name}: {error}"))
    })
}

/// A request.
#[derive(Clone, Debug)]
pub struct Call {
    /// Where to.
    pub url: String,
    /// The method.
    pub method: Method,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: bytes::Bytes,
    /// How long it may take, from resolving to the end of the answer. Default 15 s.
    pub timeout: Duration,
    /// How much of the answer's body is read. Default 64 KiB.
    pub answer_bytes_max: usize,
}

impl Call {
    /// A POST of JSON.
    ///
    /// ```
    /// use windlass::outbound::Call;
    ///
    /// let call = Call::post("https://example.org/hook", r#"{"paid":true}"#);
    /// # drop(call);
    /// ```
    pub fn post(url: impl Into<String>, json: impl Into<bytes::Bytes>) -> Self {
        let json_type = HeaderValue::from_static("application/json");
        Self {
            url: url.into(),
            method: Method::POST,
            headers: HeaderMap::from_iter([(CONTENT_TYPE, json_type)]),
            body: json.into(),
            timeout: Duration::from_secs(15),
            answer_bytes_max: 64 * 1024,
        }
    }

    /// How long it may take, from resolving to the end of the answer: a text, a [`Duration`], or milliseconds.
    ///
    /// ```
    /// # use windlass::outbound::Call;
    /// let call = Call::post("https://example.org/hook", "{}").timeout("5 seconds")?;
    /// # drop(call);
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidDuration`] if the text is no duration.
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Result<Self, Error> {
        self.timeout = duration_of("the timeout of a call", timeout)?;
        Ok(self)
    }

    /// Adds a header. Headers that frame the request are refused.
    ///
    /// ```
    /// use windlass::outbound::Call;
    ///
    /// let mut call = Call::post("https://example.org/hook", "{}");
    /// call.header("x-tenant", "7")?;
    /// assert!(call.header("host", "example.com").is_err());
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidHeader`] if the name or the value has wrong characters, or the client sets the header
    /// itself.
    pub fn header(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let wrong = |why: &str| {
            let message = format!("the header {name:?} cannot be sent: {why}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidHeader, message)
        };
        let key: HeaderName = name.parse().map_err(|_| wrong("its name has wrong characters"))?;
        if FRAMING.contains(&key.as_str()) {
            return Err(wrong("the client sets it itself"));
        }
        let value = value.parse().map_err(|_| wrong("its value has wrong characters"))?;
        self.headers.insert(key, value);
        Ok(())
    }
}

/// Headers with which a request could be taken for two, or for one to another host.
const FRAMING: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The answer of a call, with any status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, or its beginning.
    pub body: Vec<u8>,
    /// Whether there was more than was to be read.
    pub is_cut: bool,
}

/// Makes calls under a policy. Cheap to clone.
#[derive(Clone)]
pub struct Outbound {
    policy: Arc<Policy>,
    resolver: Arc<dyn Resolve>,
    dialer: Arc<dyn Dial>,
}

impl Outbound {
    /// Calls over the network, with the system's resolver.
    ///
    /// ```
    /// # fn example() -> windlass::Result<()> {
    /// use windlass::outbound::{Outbound, Policy};
    ///
    /// let outbound = Outbound::new(Policy::default())?;
    /// # drop(outbound);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The TLS client cannot be made, for instance because the system has no root certificates.
    pub fn new(policy: Policy) -> Result<Self, Error> {
        let dialer = dial::Network::new(policy.connect_timeout)?;
        Ok(Self {
            policy: Arc::new(policy),
            resolver: Arc::new(SystemResolver),
            dialer: Arc::new(dialer),
        })
    }

    /// The same with another resolver.
    ///
    /// ```
    /// # fn example(outbound: windlass::outbound::Outbound) {
    /// use std::sync::Arc;
    /// use windlass::outbound::SystemResolver;
    ///
    /// let outbound = outbound.with_resolver(Arc::new(SystemResolver));
    /// # drop(outbound); }
    /// ```
    pub fn with_resolver(mut self, resolver: Arc<dyn Resolve>) -> Self {
        self.resolver = resolver;
        self
    }

    /// The same with another way to reach what was checked.
    ///
    /// ```
    /// # fn example(outbound: windlass::outbound::Outbound, dialer: std::sync::Arc<dyn windlass::outbound::Dial>) {
    /// let outbound = outbound.with_dialer(dialer);
    /// # drop(outbound); }
    /// ```
    pub fn with_dialer(mut self, dialer: Arc<dyn Dial>) -> Self {
        self.dialer = dialer;
        self
    }

    /// Refuses a URL that no call could be made to whatever its host resolves to.
    ///
    /// ```
    /// # fn example(outbound: windlass::outbound::Outbound) {
    /// assert!(outbound.check_url("https://example.org/hook").is_ok());
    /// assert!(outbound.check_url("https://127.0.0.1/hook").is_err());
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidUrl`] or [`ErrorCode::AddressRefused`]: the policy does not allow the URL.
    pub fn check_url(&self, url: &str) -> Result<(), Error> {
        let target = target::parse(url, &self.policy)?;
        match target.host {
            Host::Address(address) => self.check(&target, &[address]).map(drop),
            Host::Name(_) => Ok(()),
        }
    }

    /// Makes a call.
    ///
    /// | code | kind | |
    /// |---|---|---|
    /// | `INVALID_URL` | invalid | the URL is refused as it is written |
    /// | `ADDRESS_REFUSED` | invalid | its host has an address that is not let through |
    /// | `HOST_UNRESOLVED` | unavailable | its host has no address |
    /// | `CALL_FAILED`, `CALL_TIMEOUT` | unavailable | there is no answer |
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// use windlass::outbound::{Call, Outbound, Policy};
    ///
    /// let outbound = Outbound::new(Policy::default())?;
    /// let answer = outbound.call(Call::post("https://example.org/hook", "{}")).await?;
    /// # drop(answer);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// See the table.
    #[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
    pub async fn call(&self, call: Call) -> Result<Answer, Error> {
        let target = target::parse(&call.url, &self.policy)?;
        let place = target.place();
        let timeout = call.timeout;
        let work = async move {
            let to = self.destination(target).await?;
            self.dialer.dial(&to, &call).await
        };
        tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
            let message = format!("{place} has not answered within {timeout:?}");
            Err(Error::new(ErrorKind::Unavailable, ErrorCode::CallTimeout, message))
        })
    }

    async fn destination(&self, target: Target) -> Result<Destination, Error> {
        let found = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolver.resolve(name).await?,
        };
        let addresses = self.check(&target, &found)?;
        Ok(Destination { url: target.url, addresses })
    }

    // One address that is not let through refuses them all: a name that has such an address among
    // others is set up by mistake or on purpose, and which one is dialled would be chance.
    fn check(&self, target: &Target, found: &[IpAddr]) -> Result<Vec<SocketAddr>, Error> {
        if found.is_empty() || found.len() > ADDRESSES_MAX {
            let message = format!(
                "{} has {} addresses; 1 to {ADDRESSES_MAX} can be called",
                target.place(),
                found.len()
            );
            return Err(Error::new(ErrorKind::Unavailable, ErrorCode::HostUnresolved, message));
        }
        for address in found {
            let plain = address.to_canonical();
            let allowed = self.policy.allow.iter().any(|range| range.contains(plain));
            if let Some(what) = address::special(plain).filter(|_| !allowed) {
                // The error has neither the address nor its kind: callers could map a network by
                // requesting its names. Operators find the kind in the log.
                tracing::warn!(host = target.place(), kind = what, "an address is refused");
                let message = format!(
                    "{} is refused: it has an address that is not public; if it is meant, allow its range",
                    target.place()
                );
                return Err(Error::new(ErrorKind::Invalid, ErrorCode::AddressRefused, message));
            }
        }
        Ok(found.iter().map(|address| SocketAddr::new(*address, target.port)).collect())
    }
}
