//! HTTP over one TCP connection per request: enough for a client that must know whether a request
//! was sent, and for the receiver of steps.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// How long to wait for a connection, and for each part of an answer.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(40);
/// A limit on bodies; the workload sends and receives little.
const BODY_BYTES_MAX: u64 = 4 << 20;

/// The address of a server, and the key that the caller shows.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) bearer: Option<Arc<str>>,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { address, bearer: None }
    }
}

/// The fate of a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// An answer with a status.
    Answered { status: u16, body: Value },
    /// No connection: the server cannot have seen the request.
    NotSent,
    /// The connection broke, or no answer came in time.
    Lost(String),
}

/// Sends a request and waits for the answer.
pub(crate) fn request(to: &Peer, method: &str, path: &str, body: Option<&Value>) -> Reply {
    request_within(to, method, path, body, ANSWER)
}

pub(crate) fn request_within(
    to: &Peer,
    method: &str,
    path: &str,
    body: Option<&Value>,
    limit: Duration,
) -> Reply {
    let Ok(stream) = TcpStream::connect_timeout(&to.address, CONNECT) else {
        return Reply::NotSent;
    };
    let first = format!("{method} {path} HTTP/1.1\r\n{}", authorization(to));
    match exchange(&stream, &first, body, limit) {
        Ok((status, body)) => Reply::Answered { status, body },
        Err(error) => Reply::Lost(format!("{error:#}")),
    }
}

fn authorization(to: &Peer) -> String {
    let line = |key: &Arc<str>| format!("authorization: Bearer {key}\r\n");
    to.bearer.as_ref().map(line).unwrap_or_default()
}

fn exchange(
    mut stream: &TcpStream,
    first: &str,
    body: Option<&Value>,
    limit: Duration,
) -> Result<(u16, Value)> {
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{first}host: 127.0.0.1\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes())?;
    let mut reader = BufReader::new(stream);
    let (first, body) = read_message(&mut reader)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("{first:?} is no status line"))?;
    Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

/// Reads a request or an answer: its first line and its body, which needs a `content-length` or the
/// end of the connection.
pub(crate) fn read_message(reader: &mut impl BufRead) -> Result<(String, Vec<u8>)> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        bail!("the connection was closed without an answer");
    }
    let mut length = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            bail!("the connection was closed inside the headers");
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = Some(value.trim().parse::<u64>().context("content-length is no number")?);
        }
    }
    let mut body = Vec::new();
    match length {
        Some(length) if length > BODY_BYTES_MAX => bail!("a body of {length} bytes"),
        Some(length) => {
            reader.take(length).read_to_end(&mut body)?;
            if body.len() as u64 != length {
                bail!("the connection was closed inside the body");
            }
        }
        None => drop(reader.take(BODY_BYTES_MAX).read_to_end(&mut body)?),
    }
    Ok((first.trim_end().to_owned(), body))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use serde_json::json;

    use super::*;

    /// Answers one request with these bytes and returns what the client understood.
    fn answered_with(answer: &'static str) -> Reply {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let (first, body) = read_message(&mut BufReader::new(&stream)).unwrap();
            assert_eq!(first, "POST /x HTTP/1.1");
            assert_eq!(body, br#"{"a":1}"#);
            (&stream).write_all(answer.as_bytes()).unwrap();
        });
        let reply = request(&address.into(), "POST", "/x", Some(&json!({ "a": 1 })));
        server.join().unwrap();
        reply
    }

    #[test]
    fn an_answer_is_complete_or_lost() {
        let whole = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";
        let Reply::Answered { status: 201, body } = answered_with(whole) else { panic!() };
        assert_eq!(body, json!({}));
        for cut in [0, 10, 30, whole.len() - 1] {
            let reply = answered_with(&whole[..cut]);
            assert!(matches!(reply, Reply::Lost(_)), "{cut}: {reply:?}");
        }
    }

    #[test]
    fn without_a_listener_nothing_is_sent() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(matches!(request(&address.into(), "GET", "/", None), Reply::NotSent));
    }
}
