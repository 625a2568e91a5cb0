//! A provider of language models that follows a script, on loopback, for tests and for development.
//!
//! It speaks Anthropic Messages and Message Batches and OpenAI Responses, files and batches. A
//! [`Script`] says which request gets which answer, and which go wrong: errors, rate limits, delays,
//! cut connections, endless bodies, batches that expire. It counts what it was asked and what that
//! would have cost. The same requests get the same answers, with the same ids.
//!
//! ```
//! use windlass_testkit::scripted_llm::{Fail, Rule, Script, ScriptedLlm, When};
//!
//! let script = Script::new()
//!     .rule(Rule::any().fail(Fail::rate_limit(1)).times(1))
//!     .rule(Rule::when(When::last("weather")).tool("weather", serde_json::json!({ "city": "Oslo" })))
//!     .rule(Rule::any().text("You said: {{input}}"));
//! let provider = ScriptedLlm::start(script)?;
//! // Give provider.url() to a client as its base URL, with any key.
//! assert!(provider.url().starts_with("http://127.0.0.1:"));
//! assert_eq!(provider.report().messages, 0);
//! # Ok::<(), std::io::Error>(())
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a server for clients that use real sockets lives in real time"
)]
#![allow(clippy::result_large_err, reason = "scripted errors are values that the script owns")]

mod anthropic;
mod batches;
mod files;
mod openai;
mod provider;
mod rate;
mod reply;
mod report;
mod script;
mod server;
mod view;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::oneshot;

pub use report::{Report, Seen};
pub use script::{
    Answer, Api, BatchEnd, BatchPlan, Fail, Lose, Op, Pace, RULES_MAX, RatePlan, Raw, Rule, Script,
    ScriptError, Tokens, ToolCall, When,
};

use provider::Provider;

/// A running scripted provider. Dropping it stops the server and closes its connections.
pub struct ScriptedLlm {
    url: String,
    provider: Arc<Mutex<Provider>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedLlm {
    /// Starts a server on a free port of 127.0.0.1, on a thread of its own: a test may stop or move the
    /// time of its own runtime.
    ///
    /// # Errors
    ///
    /// The script contradicts itself, or no port can be opened.
    pub fn start(script: Script) -> io::Result<Self> {
        Self::start_on(script, 0)
    }

    /// Starts a server on a port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// The script contradicts itself, or the port is in use.
    pub fn start_on(script: Script, port: u16) -> io::Result<Self> {
        script.validate().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let listener = std::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        listener.set_nonblocking(true)?;
        let url = format!("http://{}", listener.local_addr()?);
        let provider = Arc::new(Mutex::new(Provider::new(script, url.clone())));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served = Arc::clone(&provider);
        let thread =
            std::thread::Builder::new().name("scripted-llm".to_owned()).spawn(move || {
                runtime.block_on(async {
                    if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                        server::serve(listener, served, stopped).await;
                    }
                });
            })?;
        Ok(Self { url, provider, stop: Some(stop), thread: Some(thread) })
    }

    /// The base URL for clients of both APIs, without a slash at its end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The requests so far.
    pub fn report(&self) -> Report {
        self.provider.lock().counter.report.clone()
    }

    /// The latest requests, in the order of their arrival: at most 10,000, and 64 MiB of their bodies.
    pub fn seen(&self) -> Vec<Seen> {
        self.provider.lock().counter.seen()
    }
}

impl fmt::Debug for ScriptedLlm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedLlm").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Drop for ScriptedLlm {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has panicked if this fails, and the panic was printed.
            let _ = thread.join();
        }
    }
}
