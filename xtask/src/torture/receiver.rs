//! The receiver of steps: an HTTP server of the harness that does the work of the relay `chain`, of
//! the steps of `tally` and of the activities of `assembly`, and logs each attempt before it answers.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::http::read_message;
use super::log::{Effect, Entry, Log};
use super::random::Random;

/// The relay of the servers, and the workflow and the machine of the workers. All of them do one
/// step after the other.
pub(crate) const CHAIN: &str = "chain";
pub(crate) const TALLY: &str = "tally";
pub(crate) const ASSEMBLY: &str = "assembly";
/// A client that sends nothing is dropped after this time.
const READ: Duration = Duration::from_secs(30);

/// A running receiver. It stops on drop.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    finished: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    pub(crate) fn start(log: Arc<Log>, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
        let address = listener.local_addr()?;
        let (finished, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (ends, stopped) = (Arc::clone(&finished), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().flatten()) {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (log, ends) = (Arc::clone(&log), Arc::clone(&ends));
                let random = Random::new(seed.wrapping_add(number));
                // An error is the fault of a process that was killed while it sent or read.
                thread::spawn(move || answer(&stream, &log, &ends, random).ok());
            }
        });
        Ok(Self { address, finished, stop, thread: Some(thread) })
    }

    /// The number of answers that ended a run.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The connection wakes the thread from `accept`.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: &TcpStream, log: &Log, ends: &AtomicU64, mut random: Random) -> Result<()> {
    stream.set_read_timeout(Some(READ))?;
    let (first, body) = read_message(&mut BufReader::new(stream))?;
    let path = first.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    // The path is the process, and for a worker the workflow too.
    let (process, workflow) = path.split_once('/').unwrap_or((path, CHAIN));
    let call: Value = serde_json::from_slice(&body).context("a step without JSON")?;
    let (effect, steps) =
        effect(process, workflow, &call, random.next()).context("a step lacks fields")?;
    let outcome = outcome(&effect, steps, &mut random);
    log.add(Entry::Effect(effect));
    // Some work takes time, so that faults hit it in the middle.
    if random.below(4) == 0 {
        thread::sleep(Duration::from_millis(random.below(80)));
    }
    if outcome["outcome"] == "succeed" {
        ends.fetch_add(1, Ordering::Relaxed);
    }
    let body = outcome.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
    stream
        .write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
    Ok(())
}

/// Reads the call of a step. Returns the work and the number of steps of the run.
fn effect(process: &str, workflow: &str, call: &Value, token: u64) -> Option<(Effect, usize)> {
    let payload = &call["payload"];
    let earlier = payload["tokens"].as_array()?.iter();
    let earlier = earlier.map(|token| token.as_str().map(str::to_owned));
    let effect = Effect {
        process: process.to_owned(),
        run_key: call["run_key"].as_str()?.to_owned(),
        run: format!("{workflow}/{}", call["run_id"].as_str()?),
        step: usize::try_from(call["step"].as_u64()?).ok()?,
        attempt: call["attempt"].as_u64()?,
        token: format!("{token:016x}"),
        earlier: earlier.collect::<Option<_>>()?,
    };
    Some((effect, usize::try_from(payload["steps"].as_u64()?).ok()?))
}

/// The answer of a step: the next step at once or after a short sleep, or the end.
fn outcome(effect: &Effect, steps: usize, random: &mut Random) -> Value {
    let mut tokens = effect.earlier.clone();
    tokens.push(effect.token.clone());
    if effect.step + 1 >= steps {
        return json!({ "outcome": "succeed", "result": tokens });
    }
    let payload = json!({ "steps": steps, "tokens": tokens });
    match random.below(3) {
        0 => {
            let delay = 20 + random.below(400);
            json!({ "outcome": "continue_after", "delay_ms": delay, "payload": payload })
        }
        _ => json!({ "outcome": "continue", "payload": payload }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_hands_the_tokens_on_and_the_last_one_ends_the_run() {
        let call = |step: u64, tokens: &[&str]| {
            json!({ "run_key": "k", "run_id": "c", "step": step, "attempt": 1,
                    "payload": { "steps": 2, "tokens": tokens } })
        };
        let mut random = Random::new(1);
        let (first, steps) = effect("a.1", CHAIN, &call(0, &[]), 10).unwrap();
        let answer = outcome(&first, steps, &mut random);
        assert_eq!(answer["payload"]["tokens"], json!(["000000000000000a"]));
        let (last, steps) = effect("a.1", TALLY, &call(1, &["000000000000000a"]), 11).unwrap();
        let answer = outcome(&last, steps, &mut random);
        assert_eq!(answer["result"], json!(["000000000000000a", "000000000000000b"]));
        assert_eq!(last.run, "tally/c");
        assert!(effect("a.1", CHAIN, &json!({}), 1).is_none());
    }
}
