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
}

impl Messages {
    fn feed(&mut self, bytes: &[u8], cuts: &Cuts) {
        self.rest.extend_from_slice(bytes);
        loop {
            let at = usize::from(self.started);
            let Some(length) = self.rest.get(at..at + 4) else { return };
            let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if self.rest.len() < at + length {
                return;
            }
            if self.started {
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

async fn forward(client: TcpStream, server: TcpStream, cuts: Arc<Cuts>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    });
    let mut buffer = vec![0; 1 << 16];
    let mut messages = Messages::default();
    while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
        messages.feed(&buffer[..count], &cuts);
        let arm = |left: usize| left.checked_sub(1);
        // A Bind message begins the execution of a prepared statement.
        let executes = buffer[0] == b'B' && count >= cuts.bytes_min.load(Ordering::SeqCst);
        let cut =
            executes && cuts.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, arm).is_ok();
        if cut {
            // Nothing comes back from here on, but the server gets all of it.
            back.abort();
        }
        if to_server.write_all(&buffer[..count]).await.is_err() {
            break;
        }
        if cut {
            let _ = to_server.flush().await;
            cuts.done.fetch_add(1, Ordering::SeqCst);
            // The server works on while the client sees its connection end.
            tokio::spawn(async move {
                tokio::time::sleep(std::time::Duration::from_secs(20)).await;
                drop(to_server);
            });
            return;
        }
    }
    back.abort();
}
