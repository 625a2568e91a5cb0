//! Lost answers: a TCP proxy before PostgreSQL that passes a commit on, waits for its answer, and
//! closes both connections instead of passing the answer back.

mod frontend;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use self::frontend::Frontend;
use super::Torture;
use super::log::Entry;
use super::phase::{Outcomes, Phase, Setting};

/// The time between two cuts.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(600);

pub(crate) fn run(torture: &Torture<'_>, setting: &Setting<'_>) -> Result<Outcomes> {
    let mut phase = Phase::new(setting, "lost-answers")?;
    let direct = torture.database("lost_answers")?;
    let proxy = Proxy::start(torture.cluster()?.address())?;
    phase.store = torture.cluster()?.url_at(proxy.address.port(), "lost_answers");
    phase.start_processes(2, 2)?;
    // `verify` needs no proxy.
    phase.store = direct;
    phase.start_clients(setting.lasts);
    let mut seen = 0;
    while phase.pause(PAUSE_MIN, PAUSE_MAX)? {
        while seen < proxy.cuts() {
            phase.fault(Entry::Fault { what: "the answer to a commit was dropped".into() });
            seen += 1;
        }
        proxy.arm();
    }
    proxy.disarm();
    phase.finish()
}

/// The state that all connections share.
#[derive(Default)]
struct State {
    /// The next commit loses its answer.
    is_armed: AtomicBool,
    cuts: AtomicU64,
    stop: AtomicBool,
}

/// A running proxy. It stops accepting on drop; open connections end with their ends.
struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.stop.load(Ordering::Relaxed) {
                    break;
                }
                // An unreachable PostgreSQL closes the client's connection, as it would itself.
                let Ok(server) = TcpStream::connect(to) else { continue };
                if let Err(error) = relay(&client, &server, &shared) {
                    eprintln!("the proxy dropped a connection: {error:#}");
                }
            }
        });
        Ok(Self { address, state, thread: Some(thread) })
    }

    /// Drops the answer to the next commit.
    fn arm(&self) {
        self.state.is_armed.store(true, Ordering::SeqCst);
    }

    fn disarm(&self) {
        self.state.is_armed.store(false, Ordering::SeqCst);
    }

    fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        // The connection wakes the thread from `accept`.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Copies both directions in threads of their own.
fn relay(client: &TcpStream, server: &TcpStream, state: &Arc<State>) -> Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let is_cut = Arc::new(AtomicBool::new(false));
    let up = (client.try_clone()?, server.try_clone()?);
    let down = (server.try_clone()?, client.try_clone()?);
    let (shared, cut) = (Arc::clone(state), Arc::clone(&is_cut));
    thread::spawn(move || {
        let mut frontend = Frontend::default();
        copy(&up.0, &up.1, |bytes| {
            if frontend.has_commit(bytes) && shared.is_armed.swap(false, Ordering::SeqCst) {
                cut.store(true, Ordering::SeqCst);
            }
            true
        });
    });
    let shared = Arc::clone(state);
    thread::spawn(move || {
        copy(&down.0, &down.1, |_| {
            let drop_it = is_cut.load(Ordering::SeqCst);
            if drop_it {
                shared.cuts.fetch_add(1, Ordering::SeqCst);
            }
            !drop_it
        });
    });
    Ok(())
}

/// Copies bytes until an end closes or `pass` returns false for what was read; then closes both.
fn copy(mut from: &TcpStream, mut to: &TcpStream, mut pass: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) if pass(&buffer[..read]) => {
                if to.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
