//! The guard of calls to others: nothing of a long list gets through, names that change their address
//! are dialled where they were checked, and nothing here leaves loopback.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use windlass::kernel::BoxFuture;
use windlass::outbound::{Answer, Call, Destination, Dial, Outbound, Policy, Resolve};
use windlass::{Error, ErrorCode};

use crate::receiver::{Receiver, answer};

const REFUSED: &str = include_str!("../data/outbound_refused.txt");
const ALLOWED: &str = include_str!("../data/outbound_allowed.txt");
/// The addresses of a name that is not in the list.
const PUBLIC: &str = "93.184.216.34";

/// A line of a list: a URL, and what its host resolves to.
fn lines(list: &str) -> Vec<(&str, Vec<IpAddr>)> {
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let (url, addresses) = line.split_once(" -> ").unwrap_or((line, PUBLIC));
            let addresses = addresses.split(' ').map(|text| text.parse().unwrap());
            (url, addresses.collect())
        })
        .collect()
}

/// Answers each question after the first with the next set of addresses, then with the last one.
#[derive(Default)]
struct Names {
    answers: Vec<Vec<IpAddr>>,
    asked: Mutex<Vec<String>>,
}

impl Names {
    fn new(answers: impl IntoIterator<Item = Vec<IpAddr>>) -> Arc<Self> {
        Arc::new(Self { answers: answers.into_iter().collect(), ..Self::default() })
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, Error>> {
        let mut asked = self.asked.lock();
        asked.push(host.to_owned());
        let nth = (asked.len() - 1).min(self.answers.len() - 1);
        Box::pin(std::future::ready(Ok(self.answers[nth].clone())))
    }
}

/// Notes where it would have gone.
#[derive(Default)]
struct Stub(Mutex<Vec<SocketAddr>>);

impl Dial for Stub {
    fn dial<'a>(
        &'a self,
        to: &'a Destination,
        _: &'a Call,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        self.0.lock().extend(&to.addresses);
        let answer =
            Answer { status: 200, headers: Default::default(), body: Vec::new(), is_cut: false };
        Box::pin(std::future::ready(Ok(answer)))
    }
}

fn lax() -> Policy {
    Policy { plain_http: true, ..Policy::default() }
}

fn guard(policy: Policy, names: &Arc<Names>, stub: &Arc<Stub>) -> Outbound {
    let outbound = Outbound::new(policy).unwrap();
    outbound.with_resolver(names.clone()).with_dialer(stub.clone())
}

#[tokio::test]
async fn nothing_of_the_list_gets_through() {
    let refused = lines(REFUSED);
    assert!(refused.len() >= 200, "{}", refused.len());
    let mut through = BTreeMap::new();
    // Making one reads the system's certificates.
    let guards = [lax(), Policy::default()].map(|policy| Outbound::new(policy).unwrap());
    for (url, addresses) in refused {
        for outbound in guards.clone() {
            let (names, stub) = (Names::new([addresses.clone()]), Arc::<Stub>::default());
            let outbound = outbound.with_resolver(names.clone()).with_dialer(stub.clone());
            let called = outbound.call(Call::post(url, "{}")).await;
            let code = called.as_ref().map_err(Error::code);
            let dialled = stub.0.lock().clone();
            let refused = matches!(code, Err(ErrorCode::InvalidUrl | ErrorCode::AddressRefused));
            if !refused || !dialled.is_empty() {
                through.insert(url, (format!("{called:?}"), dialled));
            }
        }
    }
    assert!(through.is_empty(), "{through:#?}");
}

#[tokio::test]
async fn good_urls_are_dialled_where_they_resolve_to() {
    for (url, addresses) in lines(ALLOWED) {
        let (names, stub) = (Names::new([addresses.clone()]), Arc::<Stub>::default());
        let outbound = guard(lax(), &names, &stub);
        outbound.check_url(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let called = outbound.call(Call::post(url, "{}")).await;
        assert_eq!(called.unwrap_or_else(|error| panic!("{url}: {error}")).status, 200);
        let dialled = stub.0.lock().clone();
        let asked = names.asked.lock().len();
        assert!(!dialled.is_empty() && asked <= 1, "{url}: {dialled:?} {asked}");
        if asked == 1 {
            let ips: Vec<IpAddr> = dialled.iter().map(SocketAddr::ip).collect();
            assert_eq!(ips, addresses, "{url}");
        }
    }
}

#[tokio::test]
async fn a_name_that_rebinds_is_asked_once_and_dialled_where_it_was_checked() {
    let public: IpAddr = PUBLIC.parse().unwrap();
    for inner in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"] {
        let inner: IpAddr = inner.parse().unwrap();
        // Public when it is checked, ours when it would be asked again.
        let (names, stub) = (Names::new([vec![public], vec![inner]]), Arc::<Stub>::default());
        let outbound = guard(Policy::default(), &names, &stub);
        outbound.check_url("https://rebind.example/").unwrap();
        outbound.call(Call::post("https://rebind.example/", "{}")).await.unwrap();
        assert_eq!(*stub.0.lock(), [SocketAddr::new(public, 443)]);
        assert_eq!(names.asked.lock().len(), 1);
        // The next call is a check of its own.
        let next = outbound.call(Call::post("https://rebind.example/", "{}")).await;
        assert_eq!(next.unwrap_err().code(), "ADDRESS_REFUSED");
        // And the other way round.
        let (names, stub) = (Names::new([vec![inner], vec![public]]), Arc::<Stub>::default());
        let outbound = guard(Policy::default(), &names, &stub);
        let first = outbound.call(Call::post("https://rebind.example/", "{}")).await;
        assert_eq!(first.unwrap_err().code(), "ADDRESS_REFUSED");
        assert!(stub.0.lock().is_empty());
    }
}

#[tokio::test]
async fn a_range_that_is_allowed_is_called_and_its_neighbours_are_not() {
    let allow = vec!["10.1.0.0/16".parse().unwrap(), "fd00:1::/32".parse().unwrap()];
    for (address, passes) in [
        ("10.1.2.3", true),
        ("::ffff:10.1.2.3", true),
        ("fd00:1::5", true),
        ("8.8.8.8", true),
        ("10.2.0.1", false),
        ("fd00:2::5", false),
        ("127.0.0.1", false),
    ] {
        let policy = Policy { allow: allow.clone(), ..Policy::default() };
        let names = Names::new([vec![address.parse().unwrap()]]);
        let outbound = guard(policy, &names, &Arc::default());
        let called = outbound.call(Call::post("https://inner.example/", "{}")).await;
        assert_eq!(called.is_ok(), passes, "{address}: {called:?}");
        // The error does not show which kind of address a host has.
        if let Err(error) = called {
            let text = error.to_string();
            assert!(text.contains("not public"), "{text}");
            assert!(!text.contains("private") && !text.contains("loopback"), "{text}");
        }
    }
}

fn ours() -> Policy {
    Policy { allow: vec!["127.0.0.1".parse().unwrap()], ..lax() }
}

#[tokio::test]
async fn the_network_is_dialled_where_the_name_was_checked() {
    let server = Receiver::start([answer("200 OK", "", "fine")]).await;
    // Where it would lead if it were asked again, nobody is allowed.
    let names = Names::new([vec![[127, 0, 0, 1].into()], vec![[127, 0, 0, 2].into()]]);
    let outbound = Outbound::new(ours()).unwrap().with_resolver(names.clone());
    let got = outbound.call(Call::post(server.url_of("rebind.example"), "{}")).await.unwrap();
    assert_eq!((got.status, got.body.as_slice()), (200, &b"fine"[..]));
    assert_eq!(*names.asked.lock(), ["rebind.example"]);
    let request = &server.requests()[0];
    assert_eq!(request.line, "POST /hook HTTP/1.1");
    assert!(request.header("host").starts_with("rebind.example:"), "{request:?}");
    assert_eq!(request.header("content-type"), "application/json");
    let other = outbound.call(Call::post(server.url_of("rebind.example"), "{}")).await;
    assert_eq!(other.unwrap_err().code(), "ADDRESS_REFUSED");
}

#[tokio::test]
async fn an_address_in_brackets_is_dialled_as_it_is_written() {
    // A machine without IPv6 has nothing to show here.
    let Ok(listener) = TcpListener::bind("[::1]:0").await else { return };
    let url = format!("http://[::1]:{}/hook", listener.local_addr().unwrap().port());
    let names = Names::new([vec![PUBLIC.parse().unwrap()]]);
    let refused = Outbound::new(ours()).unwrap().with_resolver(names.clone());
    let error = refused.call(Call::post(&url, "{}")).await.unwrap_err();
    assert_eq!(error.code(), "ADDRESS_REFUSED");
    let policy = Policy { allow: vec!["::1".parse().unwrap()], ..lax() };
    let outbound = Outbound::new(policy).unwrap().with_resolver(names.clone());
    let served = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 1024];
        let read = stream.read(&mut bytes).await.unwrap();
        stream.write_all(answer("200 OK", "", "").as_bytes()).await.unwrap();
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    };
    let (called, request) = tokio::join!(outbound.call(Call::post(&url, "{}")), served);
    assert_eq!(called.unwrap().status, 200);
    assert!(request.contains("host: [::1]:"), "{request}");
    assert!(names.asked.lock().is_empty(), "an address is not resolved");
}

#[tokio::test]
async fn redirects_are_answers_and_long_answers_are_cut() {
    let target = Receiver::start([answer("200 OK", "", "secret")]).await;
    let location = format!("location: {}\r\n", target.url());
    let server = Receiver::start([answer("307 Moved", &location, "")]).await;
    let outbound = Outbound::new(ours()).unwrap();
    let got = outbound.call(Call::post(server.url(), "{}")).await.unwrap();
    assert_eq!(got.status, 307);
    assert!(target.requests().is_empty());
    let server = Receiver::start([answer("200 OK", "", &"x".repeat(100_000))]).await;
    let mut call = Call::post(server.url(), "{}");
    call.answer_bytes_max = 1_000;
    let got = outbound.call(call).await.unwrap();
    assert_eq!((got.body.len(), got.is_cut), (1_000, true));
}

#[tokio::test]
async fn a_call_without_an_answer_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let outbound = Outbound::new(ours()).unwrap();
    let url = format!("http://{address}/?token=s3cret");
    let mut call = Call::post(&url, "{}");
    call.timeout = Duration::from_millis(100);
    let error = outbound.call(call).await.unwrap_err();
    assert_eq!(error.code(), "CALL_TIMEOUT");
    assert!(error.is_retryable() && !error.to_string().contains("s3cret"), "{error}");
    drop(silent);
    let error = outbound.call(Call::post(&url, "{}")).await.unwrap_err();
    assert_eq!(error.code(), "CALL_FAILED");
    assert!(error.is_retryable() && !error.to_string().contains("s3cret"), "{error}");
}

#[tokio::test]
async fn headers_cannot_frame_a_request_anew() {
    let mut call = Call::post("https://example.com/", "{}");
    call.header("X-Tenant", "a").unwrap();
    for (name, value) in [
        ("Host", "127.0.0.1"),
        ("Content-Length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("x y", "z"),
        ("x-split", "a\r\nhost: b"),
    ] {
        let error = call.header(name, value).unwrap_err();
        assert_eq!(error.code(), "INVALID_HEADER", "{name}");
    }
}
