//! A TCP proxy that loses answers: it forwards what a client sends and cuts before the reply. It also
//! counts what clients send.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A proxy before the test server.
pub(crate) struct Proxy {
    address: SocketAddr,
    cuts: Arc<Cuts>,
}

#[derive(Default)]
struct Cuts {
    // How many more executions are cut off from their answer.
    left: AtomicUsize,
    // Smaller ones are not.
    bytes_min: AtomicUsize,
    // The server may still be at it when the client's connection ends.
    at_once: AtomicBool,
    done: AtomicUsize,
    refuse: AtomicBool,
    // Messages of clients, by their first byte.
    sent: Mutex<BTreeMap<u8, usize>>,
}

// Finds the messages in what a client sends. Only the first has no byte for its type.
#[derive(Default)]
struct Messages {
    started: bool,
    rest: Vec<u8>,
    // A Bind that is large enough to be cut has come, and its Sync has not.
    binds: bool,
}

impl Messages {
    /// Whether the bytes end the request to execute a prepared statement.
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
        let config: tokio_postgres::Config = crate::support::dsn().parse().expect("the DSN reads");
        let host = match &config.get_hosts()[0] {
            tokio_postgres::config::Host::Tcp(host) => host.clone(),
            other => panic!("the proxy needs a server on TCP, not {other:?}"),
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
                let server = TcpStream::connect((host.as_str(), port)).await.expect("the server");
                tokio::spawn(forward(client, server, shared.clone()));
            }
        });
        Self { address, cuts }
    }

    /// The address of the server behind the proxy, for a schema.
    pub(crate) fn dsn(&self, schema: &crate::support::Schema) -> String {
        let config: tokio_postgres::Config = crate::support::dsn().parse().expect("the DSN reads");
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

    /// Cuts the connections of the next so many executions off from their answers.
    pub(crate) fn cut(&self, count: usize) {
        self.cuts.bytes_min.store(0, Ordering::SeqCst);
        self.cuts.left.store(count, Ordering::SeqCst);
    }

    /// As [`Proxy::cut`], but only of commits, which are large: connections that ask for types, as
    /// new ones do, are left alone.
    pub(crate) fn cut_commits(&self, count: usize) {
        self.cuts.bytes_min.store(400, Ordering::SeqCst);
        self.cuts.left.store(count, Ordering::SeqCst);
    }

    /// As [`Proxy::cut`], but the client's connection ends while the server is still at work.
    pub(crate) fn cut_at_once(&self, count: usize) {
        self.cuts.at_once.store(true, Ordering::SeqCst);
        self.cut(count);
    }

    /// Whether new connections are refused.
    pub(crate) fn refuse(&self, refuse: bool) {
        self.cuts.refuse.store(refuse, Ordering::SeqCst);
    }

    /// Forgets what clients have sent so far, and answers it: how many messages of each type.
    pub(crate) fn take_sent(&self) -> BTreeMap<u8, usize> {
        std::mem::take(&mut self.cuts.sent.lock().unwrap())
    }

    /// How many were cut.
    pub(crate) fn cut_so_far(&self) -> usize {
        self.cuts.done.load(Ordering::SeqCst)
    }
}

async fn forward(mut client: TcpStream, mut server: TcpStream, cuts: Arc<Cuts>) {
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut messages = Messages::default();
    loop {
        tokio::select! {
            biased;
            read = client.read(&mut asked) => {
                let Ok(count @ 1..) = read else { return };
                let executes = messages.feed(&asked[..count], &cuts);
                let arm = |left: usize| left.checked_sub(1);
                let cut = executes
                    && cuts.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, arm).is_ok();
                if server.write_all(&asked[..count]).await.is_err() {
                    return;
                }
                if cut {
                    let done = async move { until_ready(&mut server).await };
                    let done = tokio::time::timeout(std::time::Duration::from_secs(20), done);
                    if cuts.at_once.load(Ordering::SeqCst) {
                        tokio::spawn(done);
                    } else {
                        // What is sent again must not overtake the first.
                        let _ = done.await;
                    }
                    cuts.done.fetch_add(1, Ordering::SeqCst);
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&answered[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

// ReadyForQuery is the last message of an answer: the transaction is over by then.
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
