//! A server on loopback that answers as it is told, and keeps what it was sent.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Method, path and version.
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    /// Gives these answers one after the other, and then the last one again and again.
    pub(crate) async fn start<A: Into<String>>(answers: impl IntoIterator<Item = A>) -> Self {
        let answers: Vec<String> = answers.into_iter().map(Into::into).collect();
        Self::answering(move |nth, _| answers[nth.min(answers.len() - 1)].clone()).await
    }

    /// Answers as a function of the request, and of how many there were before it.
    pub(crate) async fn answering(
        answer: impl Fn(usize, &Request) -> String + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                tokio::spawn(async move {
                    let Some(request) = read(&mut stream).await else { return };
                    let text = {
                        let mut seen = seen.lock();
                        let text = answer(seen.len(), &request);
                        seen.push(request);
                        text
                    };
                    let _ = stream.write_all(text.as_bytes()).await;
                });
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        self.url_of("127.0.0.1")
    }

    pub(crate) fn url_of(&self, host: &str) -> String {
        format!("http://{host}:{}/hook", self.address.port())
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }
}

/// An answer with a body, after which the connection is closed.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
    )
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let (line, rest) = head.split_once("\r\n")?;
    let headers: HeaderMap = rest
        .split("\r\n")
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?))
        })
        .collect();
    let length: usize = headers.get("content-length")?.to_str().ok()?.parse().ok()?;
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Request { line: line.to_owned(), headers, body })
}
