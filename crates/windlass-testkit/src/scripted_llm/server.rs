//! The HTTP server of the scripted provider, on a thread and a runtime of its own.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, Stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::provider::{Call, Provider};
use super::reply::{Reply, Sent, Tail};

/// The largest request, as large as the largest batch of the real APIs.
pub(super) const REQUEST_BYTES_MAX: usize = 256 << 20;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Accepts connections until `stop` is used or dropped.
pub(super) async fn serve(
    listener: TcpListener,
    provider: Arc<Mutex<Provider>>,
    mut stop: oneshot::Receiver<()>,
) {
    let started = Instant::now();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = &mut stop => return,
            accepted = listener.accept() => accepted,
        };
        // Without a connection there is nothing to tell about the failure.
        let Ok((socket, _)) = accepted else { continue };
        let provider = Arc::clone(&provider);
        connections.spawn(async move {
            let service = hyper::service::service_fn(|request| {
                handle(request, Arc::clone(&provider), started)
            });
            // An error here is a connection that one side cut.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn handle(
    request: Request<Incoming>,
    provider: Arc<Mutex<Provider>>,
    started: Instant,
) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, REQUEST_BYTES_MAX).collect().await else {
        let message = format!("the request has more than {REQUEST_BYTES_MAX} bytes");
        return respond(413, Vec::new(), full(message));
    };
    let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let call = Call {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: query(head.uri.query().unwrap_or_default()),
        headers: head.headers.iter().map(header).collect(),
        body: body.to_bytes(),
    };
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs() as i64);
    let Reply { delay_ms, answer } =
        provider.lock().handle(&call, now, started.elapsed().as_millis() as u64);
    if delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
    }
    match answer {
        // The connection is closed when the service fails.
        None => Err(io::Error::other("the script cuts the connection")),
        Some(Sent { status, headers, mut pieces, tail: Tail::End, .. }) if pieces.len() <= 2 => {
            let body = match pieces.len() {
                2 => [pieces.remove(0), pieces.remove(0)].concat().into(),
                1 => pieces.remove(0),
                _ => Bytes::new(),
            };
            respond(status, headers, full(body))
        }
        Some(sent) => {
            let (status, headers) = (sent.status, sent.headers.clone());
            respond(status, headers, StreamBody::new(frames(sent)).boxed_unsync())
        }
    }
}

fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn respond(status: u16, headers: Vec<(String, String)>, body: Body) -> io::Result<Response<Body>> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(body).map_err(io::Error::other)
}

fn frames(sent: Sent) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
    let Sent { pieces, tail, pause_ms, .. } = sent;
    let end = match tail.clone() {
        Tail::End | Tail::Repeat(_) => None,
        Tail::Cut => Some(Err(io::Error::other("the script cuts the connection"))),
    };
    let repeated = match tail {
        Tail::Repeat(piece) => stream::repeat(piece).boxed(),
        Tail::End | Tail::Cut => stream::empty().boxed(),
    };
    let pieces = stream::iter(pieces).filter(|piece| std::future::ready(!piece.is_empty()));
    let all = pieces.chain(repeated).then(move |piece| async move {
        match pause_ms {
            // Lets the other side stop an endless body.
            0 => tokio::task::yield_now().await,
            pause => tokio::time::sleep(Duration::from_millis(pause)).await,
        }
        Ok(Frame::data(piece))
    });
    all.chain(stream::iter(end))
}

// The names and values of a query; the calls of both APIs need no escapes.
fn query(text: &str) -> BTreeMap<String, String> {
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
