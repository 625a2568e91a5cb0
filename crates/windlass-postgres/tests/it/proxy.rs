//! A TCP proxy that loses answers: it forwards a request and closes the connection before the
//! reply. It also counts the messages of clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A proxy in front of the test server.
pub(crate) struct Proxy {
    address: SocketAddr,
    cuts: Arc<Cuts>,
}

#[derive(Default)]
struct Cuts {
    // How many more executions lose their answer.
    left: AtomicUsize,
    // Smaller requests keep their answer.
    bytes_min: AtomicUsize,
    // Close the client's connection while the server may still be working.
    at_once: AtomicBool,
    done: AtomicUsize,
    refuse: AtomicBool,
    // The number of client messages by their type byte.
    sent: Mutex<BTreeMap<u8, usize>>,
}

// Splits the bytes of a client into messages. Only the first message has no type byte.
#[derive(Default)]
struct Messages {
    started: bool,
    rest: Vec<u8>,
    // A Bind that is large enough has come, and its Sync has not.
    binds: bool,
}

impl Messages {
    /// Whether the bytes complete a request to execute a prepared statement.
    fn feed(&mut self, bytes: &[u8], cuts: &Cuts) -> bool {
        self.rest.extend_from_slice(bytes);
        let mut executes = false;
        loop {
            let at = usize::from(self.started);
            let Some(length) = self.rest.get(at..at + 4) else { return executes };
            let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if self.rest.len() < at + length {
                return executes;
            }
            if self.started {
                match self.rest[0] {
                    b'B' => self.binds |= length >= cuts.bytes_min.load(Ordering::SeqCst),
                    b'S' => executes |= std::mem::take(&mut self.binds),
                    _ => {}
                }
                *cuts.sent.lock().unwrap().entry(self.rest[0]).or_default() += 1;
            }
            self.rest.drain(..at + length);
            self.started = true;
        }
    }
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let config: tokio_postgres::Config = crate::support::dsn().parse().expect("invalid DSN");
        let host = match &config.get_hosts()[0] {
            tokio_postgres::config::Host::Tcp(host) => host.clone(),
            other => panic!("the proxy needs a server on TCP, found {other:?}"),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let cuts = Arc::new(Cuts::default());
        let shared = cuts.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shared.refuse.load(Ordering::SeqCst) {
                    continue;
                }
                let server =
                    TcpStream::connect((host.as_str(), port)).await.expect("cannot connect");
                tokio::spawn(forward(client, server, shared.clone()));
            }
        });
        Self { address, cuts }
    }

    /// The DSN of the server behind the proxy, for a schema.
    pub(crate) fn dsn(&self, schema: &crate::support::Schema) -> String {
        let config: tokio_postgres::Config = crate::support::dsn().parse().expect("invalid DSN");
        let user = config.get_user().unwrap_or("postgres");
        let password = config
            .get_password()
            .map(|password| format!(":{}", String::from_utf8_lossy(password)))
            .unwrap_or_default();
        let database = config.get_dbname().unwrap_or("postgres");
        format!(
            "postgres://{user}{password}@{}/{database}?sslmode=disable&options=-csearch_path%3D{}",
            self.address, schema.name
        )
    }

    /// Closes the connections of the next `count` executions before their answers.
    pub(crate) fn cut(&self, count: usize) {
        self.cuts.bytes_min.store(0, Ordering::SeqCst);
        self.cuts.left.store(count, Ordering::SeqCst);
    }

    /// Like [`Proxy::cut`], but only for commits, which are large. Requests for types, which new
    /// connections send, keep their answers.
    pub(crate) fn cut_commits(&self, count: usize) {
        self.cuts.bytes_min.store(400, Ordering::SeqCst);
        self.cuts.left.store(count, Ordering::SeqCst);
    }

    /// Like [`Proxy::cut`], but closes the client's connection while the server is still working.
    pub(crate) fn cut_at_once(&self, count: usize) {
        self.cuts.at_once.store(true, Ordering::SeqCst);
        self.cut(count);
    }

    /// Sets whether new connections are refused.
    pub(crate) fn refuse(&self, refuse: bool) {
        self.cuts.refuse.store(refuse, Ordering::SeqCst);
    }

    /// Returns and resets how many messages of each type clients have sent.
    pub(crate) fn take_sent(&self) -> BTreeMap<u8, usize> {
        std::mem::take(&mut self.cuts.sent.lock().unwrap())
    }

    /// How many executions lost their answer.
    pub(crate) fn cut_so_far(&self) -> usize {
        self.cuts.done.load(Ordering::SeqCst)
    }
}

async fn forward(mut client: TcpStream, mut server: TcpStream, cuts: Arc<Cuts>) {
    let (mut request, mut response) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut messages = Messages::default();
    loop {
        tokio::select! {
            biased;
            read = client.read(&mut request) => {
                let Ok(count @ 1..) = read else { return };
                let executes = messages.feed(&request[..count], &cuts);
                let decrement = |left: usize| left.checked_sub(1);
                let cut = executes
                    && cuts.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement).is_ok();
                if server.write_all(&request[..count]).await.is_err() {
                    return;
                }
                if cut {
                    let done = async move { until_ready(&mut server).await };
                    let done = tokio::time::timeout(std::time::Duration::from_secs(20), done);
                    if cuts.at_once.load(Ordering::SeqCst) {
                        tokio::spawn(done);
                    } else {
                        // The second attempt must not overtake the first.
                        let _ = done.await;
                    }
                    cuts.done.fetch_add(1, Ordering::SeqCst);
                    return;
                }
            }
            read = server.read(&mut response) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&response[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

// ReadyForQuery is the last message of a response: the transaction has ended.
async fn until_ready(server: &mut TcpStream) {
    let mut tail = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = server.read(&mut buffer).await {
        tail.extend_from_slice(&buffer[..count]);
        if tail.len() >= 6 && tail[tail.len() - 6..][..5] == [b'Z', 0, 0, 0, 5] {
            return;
        }
    }
}
