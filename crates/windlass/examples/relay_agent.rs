//! An agent in two stages, research and then write, each an HTTP call to a model. The answers are
//! memos: an attempt that fails after a call is not paid for twice.
//!
//! The model here is a script on loopback that answers what it is asked; put another address in its
//! place. `cargo run --example relay_agent [STORE]`

#![allow(clippy::disallowed_methods, reason = "the scripted model is a task of the real world")]

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, Typed, TypedOutcome, TypedRunner};
use windlass::{Engine, Result};

#[derive(Serialize, Deserialize)]
struct Article {
    topic: String,
    notes: Option<String>,
}

struct Agent {
    model: SocketAddr,
}

impl TypedRunner for Agent {
    type Payload = Article;
    type Output = String;

    async fn run_step(
        &self,
        step: &RelayStep,
        article: Article,
    ) -> Result<TypedOutcome<Article, String>, RelayError> {
        let prompt = match &article.notes {
            None => format!("research {}", article.topic),
            Some(notes) => format!("write about {} from: {notes}", article.topic),
        };
        // A cancellation does not wait for the model.
        let ask = step.memo("model", || ask(self.model, &prompt));
        let answer = tokio::select! {
            answer = ask => answer?,
            () = step.cancel_token.cancelled() => {
                return Ok(TypedOutcome::Cancel("cancelled while the model was thinking".into()));
            }
        };
        if step.step_number == 0 && step.attempt == 1 {
            return Err(RelayError::transient("the notes could not be filed"));
        }
        Ok(match article.notes {
            None => TypedOutcome::Continue(Article { notes: Some(answer), ..article }),
            Some(_) => TypedOutcome::Succeed(answer),
        })
    }
}

async fn ask(model: SocketAddr, prompt: &str) -> Result<String, RelayError> {
    let mut stream = TcpStream::connect(model).await?;
    let head = format!(
        "POST /complete HTTP/1.1\r\nhost: {model}\r\ncontent-length: {}\r\n\r\n{prompt}",
        prompt.len()
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    body.ok_or_else(|| RelayError::transient("the model answered no HTTP"))
}

// The scripted model: notes when it is to research, a text when it is to write.
async fn model(calls: Arc<AtomicU32>) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            calls.fetch_add(1, Ordering::Relaxed);
            let mut asked = vec![0; 4096];
            let read = stream.read(&mut asked).await.unwrap_or(0);
            let asked = String::from_utf8_lossy(&asked[..read]).into_owned();
            let prompt = asked.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let body = match prompt.strip_prefix("research ") {
                Some(topic) => format!("three facts about {topic}"),
                None => format!("An article: {prompt}"),
            };
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    Ok(address)
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let calls = Arc::new(AtomicU32::new(0));
    let agent = Agent { model: model(Arc::clone(&calls)).await? };
    let engine = Engine::open(&store).await?;
    let relay = engine
        .relay("agent", Typed(agent), NoopTerminalHook)
        .backoff("50 ms", "1 second")
        .build()?;
    let input = serde_json::to_vec(&Article { topic: "windlasses".into(), notes: None })?;
    let run = relay.start(input.into()).json().await?;
    println!("{}", String::from_utf8_lossy(&run.result().await?));
    println!("{} calls for two answers and three attempts", calls.load(Ordering::Relaxed));
    engine.stop("1 second").await?;
    Ok(())
}
