//! Makes a call to addresses that were checked, and to no others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderMap;
use windlass_kernel::{BoxFuture, Error, ErrorCode, ErrorKind};

use super::{Answer, Call};
use crate::tls::{self, unusable};

/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(30);

/// Where a call goes: a URL, and the addresses of its host that were checked.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The URL.
    pub url: Url,
    /// The addresses, all of them allowed, with the URL's port. Never empty.
    pub addresses: Vec<SocketAddr>,
}

/// Makes calls.
pub trait Dial: Send + Sync + 'static {
    /// Sends a request to one of the addresses and reads the answer. Follows nothing.
    fn dial<'a>(
        &'a self,
        to: &'a Destination,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Answer, Error>>;
}

/// Calls over the network.
pub(super) struct Network {
    client: reqwest::Client,
    pins: Arc<Pins>,
}

impl Network {
    pub(super) fn new(connect_timeout: Duration) -> Result<Self, Error> {
        let pins = Arc::new(Pins::default());
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config().map_err(unusable)?)
            .dns_resolver(Arc::clone(&pins))
            .redirect(reqwest::redirect::Policy::none())
            // Without this, variables of the environment would send calls to a third party.
            .no_proxy()
            .connect_timeout(connect_timeout)
            .pool_idle_timeout(IDLE)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(unusable)?;
        Ok(Self { client, pins })
    }
}

impl Dial for Network {
    fn dial<'a>(
        &'a self,
        to: &'a Destination,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let _pinned = self.pins.pin(to);
            let request = self
                .client
                .request(call.method.clone(), to.url.clone())
                .headers(call.headers.clone())
                .body(call.body.clone());
            let mut response = request.send().await.map_err(failed)?;
            let mut answer = Answer {
                status: response.status().as_u16(),
                headers: std::mem::take::<HeaderMap>(response.headers_mut()),
                body: Vec::new(),
                is_cut: false,
            };
            while let Some(chunk) = response.chunk().await.map_err(failed)? {
                let room = call.answer_bytes_max - answer.body.len();
                answer.body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if chunk.len() > room {
                    answer.is_cut = true;
                    break;
                }
            }
            Ok(answer)
        })
    }
}

// The innermost reason, without the URL, which may hold tokens.
fn failed(error: reqwest::Error) -> Error {
    let error = error.without_url();
    let mut reason: &dyn std::error::Error = &error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    let message = format!("the call failed: {reason}");
    Error::new(ErrorKind::Unavailable, ErrorCode::CallFailed, message)
}

/// The resolver of the client: it knows the addresses of calls under way, as they were checked, and
/// asks nobody. Between the check and the connection nothing is looked up again.
#[derive(Default)]
struct Pins(Mutex<BTreeMap<String, Pinned>>);

struct Pinned {
    addresses: Vec<SocketAddr>,
    calls: usize,
}

impl Pins {
    fn pin(self: &Arc<Self>, to: &Destination) -> Pin {
        let host = to.url.host_str().unwrap_or_default().to_owned();
        let mut pins = self.0.lock();
        let pinned =
            pins.entry(host.clone()).or_insert_with(|| Pinned { addresses: Vec::new(), calls: 0 });
        // Those of the latest check; the earlier ones were checked as well. The port is each call's
        // own: with one here, a call would go where another call to the same host goes.
        let unported = to.addresses.iter().map(|address| SocketAddr::new(address.ip(), 0));
        pinned.addresses = unported.collect();
        pinned.calls += 1;
        Pin { pins: Arc::clone(self), host }
    }
}

impl Resolve for Pins {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.0.lock().get(name.as_str()).map(|pinned| pinned.addresses.clone());
        Box::pin(std::future::ready(match found {
            Some(addresses) => Ok(Box::new(addresses.into_iter()) as Addrs),
            None => Err("the host was not checked".into()),
        }))
    }
}

/// Keeps a host known while a call to it is under way.
struct Pin {
    pins: Arc<Pins>,
    host: String,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.pins.0.lock();
        if let Some(pinned) = pins.get_mut(&self.host) {
            pinned.calls -= 1;
            if pinned.calls == 0 {
                pins.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(pins: &Pins, host: &str) -> Option<Vec<SocketAddr>> {
        let name: Name = host.parse().ok()?;
        Some(pins.resolve(name).await.ok()?.collect())
    }

    #[tokio::test]
    async fn a_host_is_known_as_long_as_a_call_to_it_is_under_way() {
        let pins = Arc::new(Pins::default());
        let to = |address: &str| Destination {
            url: "https://example.com/".parse().unwrap(),
            addresses: vec![address.parse().unwrap()],
        };
        let (one, two) = (to("8.8.8.8:443"), to("8.8.4.4:443"));
        assert_eq!(ask(&pins, "example.com").await, None);
        let first = pins.pin(&one);
        // Without a port: each call brings its own, whatever another call to the host asks for.
        let unported = |address: &str| Some(vec![SocketAddr::new(address.parse().unwrap(), 0)]);
        assert_eq!(ask(&pins, "example.com").await, unported("8.8.8.8"));
        assert_eq!(ask(&pins, "other.example").await, None);
        let second = pins.pin(&two);
        drop(first);
        assert_eq!(ask(&pins, "example.com").await, unported("8.8.4.4"));
        drop(second);
        assert_eq!(ask(&pins, "example.com").await, None);
    }
}
