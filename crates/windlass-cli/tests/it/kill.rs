//! Kills the server with SIGKILL under load and restarts it. Every acknowledged create must finish,
//! and every acknowledged event must be consumed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Server, http_client, postgres, run_cli, sqlite_in};

/// The number of kills.
const KILLS: usize = 3;
const CLIENTS: usize = 4;

#[test]
fn acknowledged_requests_survive_a_kill_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check_kills(&sqlite_in(folder.path(), "app.db"));
}

#[test]
fn acknowledged_requests_survive_a_kill_postgres() {
    let database = postgres();
    check_kills(&database.url);
}

fn check_kills(store: &str) {
    let acknowledged = Arc::new(Acknowledged::default());
    let mut server = Server::start(store);
    for round in 0..KILLS {
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (url, stop) = (server.url.clone(), Arc::clone(&stop));
                let acknowledged = Arc::clone(&acknowledged);
                std::thread::spawn(move || {
                    load(&url, &format!("r{round}c{client}"), &acknowledged, &stop);
                })
            })
            .collect();
        // Kills the server at an arbitrary moment, while all clients send requests.
        crate::support::wait_until("the clients have sent enough requests", || {
            acknowledged.events.lock().unwrap().len() > (round + 1) * 20
        });
        server.kill();
        stop.store(true, Ordering::Release);
        clients.into_iter().for_each(|client| client.join().unwrap());
        server = Server::start(store);
    }
    let created = acknowledged.created.lock().unwrap().clone();
    let events = acknowledged.events.lock().unwrap().clone();
    assert!(created.len() > 60 && events.len() > 60, "{} {}", created.len(), events.len());
    // Sends the missing events. The event id makes a duplicate harmless.
    let runtime = runtime();
    runtime.block_on(async {
        let client = http_client();
        for id in &created {
            if !events.contains(id) {
                send_event(&client, &server.url, id).await.expect("the server answers");
            }
        }
        for id in &created {
            let ended = end(&client, &server.url, id).await;
            assert_eq!(ended["details"]["status"], "complete", "{id}: {ended}");
            let history = history(&client, &server.url, id).await;
            let consumed = history["events"].as_array().into_iter().flatten();
            let consumed: Vec<_> =
                consumed.filter(|event| event["consumedByStepKey"] == "approval").collect();
            assert_eq!(consumed.len(), 1, "{id}: {history}");
        }
    });
    assert_eq!(server.terminate(), Some(0));
    let output = run_cli(&["verify", "--store", store]).expect(0);
    assert!(output.stdout.contains(": 0 flaws"), "{output:?}");
}

/// The requests that the server acknowledged.
#[derive(Default)]
struct Acknowledged {
    created: Mutex<Vec<String>>,
    events: Mutex<Vec<String>>,
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

// Creates orders and sends their approvals until the server is gone.
fn load(url: &str, name: &str, acknowledged: &Acknowledged, stop: &AtomicBool) {
    runtime().block_on(async {
        let client = http_client();
        for n in 0.. {
            if stop.load(Ordering::Acquire) {
                return;
            }
            let id = format!("{name}-{n}");
            let body = json!({ "id": id, "params": { "item": "lamp" } });
            let path = format!("{url}/workflows/order/instances");
            match client.post(path).json(&body).send().await {
                Ok(answer) if answer.status().is_success() => {
                    acknowledged.created.lock().unwrap().push(id.clone());
                }
                _ => return,
            }
            if send_event(&client, url, &id).await.is_ok() {
                acknowledged.events.lock().unwrap().push(id);
            }
        }
    });
}

async fn send_event(client: &reqwest::Client, url: &str, id: &str) -> Result<(), reqwest::Error> {
    let path = format!("{url}/workflows/order/instances/{id}/events");
    let body = json!({ "type": "approval", "payload": { "approved": true }, "id": "once" });
    client.post(path).json(&body).send().await?.error_for_status().map(drop)
}

async fn end(client: &reqwest::Client, url: &str, id: &str) -> Value {
    for _ in 0..12 {
        let path = format!("{url}/workflows/order/instances/{id}/result?waitMs=10000");
        let answer = client.get(path).timeout(Duration::from_secs(60)).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        if answer["done"] == true {
            return answer;
        }
    }
    json!("the run did not end")
}

async fn history(client: &reqwest::Client, url: &str, id: &str) -> Value {
    let path = format!("{url}/workflows/order/instances/{id}/history");
    client.get(path).send().await.unwrap().json().await.unwrap()
}
