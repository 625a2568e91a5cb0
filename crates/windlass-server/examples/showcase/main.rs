//! Serves the dashboard with data of all five models, to look at its views.
//!
//!     cargo run -p windlass-server --all-features --example showcase -- 7979
//!     # open http://127.0.0.1:7979/
//!
//! Two more numbers add runs that start tomorrow, and one run with many steps. A word after them: `usual` has no hostile
//! values, `empty` has no data, `keys` needs an API key, and `plain` has no data and no dashboard.

#![allow(clippy::disallowed_methods, reason = "the example waits for its runs with the real clock")]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use windlass_server::auth::Auth;
use windlass_server::{Options, router, serve};

mod world;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let number = |at: usize| std::env::args().nth(at).and_then(|text| text.parse::<u32>().ok());
    let port = number(1).and_then(|port| u16::try_from(port).ok()).unwrap_or(7979);
    let mode = std::env::args().nth(4).unwrap_or_default();
    let world = world::World::open().await?;
    let mut options = Options { auth: Auth::LoopbackAs(world::fay()), ..world.options() };
    match mode.as_str() {
        "keys" => options.auth = Auth::Keys,
        "plain" => options.dashboard = false,
        _ => {}
    }
    let app = router(&world.engine, options)?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let origin = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(serve(listener, app, async {
        let _ = tokio::signal::ctrl_c().await;
    }));
    if !["empty", "keys", "plain"].contains(&mode.as_str()) {
        let values = if mode == "usual" { world::Values::Usual } else { world::Values::Hostile };
        let (http, api) = (reqwest::Client::new(), format!("{origin}/api"));
        world.add_documents(values).await?;
        world::seed(&http, &api, values).await;
        world::seed_people(&http, &api, values).await;
        add_many(&api, number(2).unwrap_or(0), number(3).unwrap_or(0)).await?;
    }
    println!("{origin}/");
    serving.await??;
    world.engine.stop(Duration::from_secs(5)).await?;
    Ok(())
}

const BATCH: u32 = 100;
const DAY_MS: u32 = 86_400_000;

async fn add_many(api: &str, runs: u32, steps: u32) -> windlass::Result<()> {
    let http = reqwest::Client::new();
    let batch = format!("{api}/workflows/hello/instances/batch");
    for first in (0..runs).step_by(BATCH as usize) {
        let instances: Vec<Value> = (first..runs.min(first + BATCH))
            .map(|n| json!({ "id": format!("run-{n}"), "delayMs": DAY_MS }))
            .collect();
        let request = http.post(&batch).json(&json!({ "instances": instances }));
        request.send().await?.error_for_status()?;
    }
    if steps > 0 {
        let body = json!({ "id": "many-steps", "params": steps });
        let url = format!("{api}/workflows/fan-out/instances?waitMs=60000");
        http.post(url).json(&body).send().await?.error_for_status()?;
    }
    Ok(())
}
