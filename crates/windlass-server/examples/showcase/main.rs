//! Serves the dashboard with data of all five models, to look at its views.
//!
//!     cargo run -p windlass-server --all-features --example showcase -- 7979
//!     # open http://127.0.0.1:7979/

#![allow(clippy::disallowed_methods, reason = "the example waits for its runs with the real clock")]

use std::time::Duration;

use tokio::net::TcpListener;
use windlass_server::auth::Auth;
use windlass_server::{Options, router, serve};

mod world;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(7979);
    let world = world::World::open().await?;
    let options = Options { auth: Auth::LoopbackAs(world::fay()), ..world.options() };
    let app = router(&world.engine, options)?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let origin = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(serve(listener, app, async {
        let _ = tokio::signal::ctrl_c().await;
    }));
    world.add_documents().await?;
    world::seed(&reqwest::Client::new(), &format!("{origin}/api")).await;
    println!("{origin}/");
    serving.await??;
    world.engine.stop(Duration::from_secs(5)).await?;
    Ok(())
}
