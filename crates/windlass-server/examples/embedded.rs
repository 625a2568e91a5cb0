//! Merges the HTTP API of an engine with the routes of a program.
//!
//!     cargo run -p windlass-server --example embedded
//!     curl -X POST localhost:7979/api/workflows/greet/instances?waitMs=5000 \
//!         -H 'content-type: application/json' -d '{"params":"Ann"}'

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use windlass::{Ctx, Engine};
use windlass_server::auth::Auth;
use windlass_server::{Options, router, serve};

async fn greet(ctx: Ctx, name: String) -> windlass::Result<String> {
    let text = ctx.step("compose", async || Ok(format!("Hello, {name}!"))).await?;
    ctx.sleep("a moment", "100 ms").await?;
    Ok(text)
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let engine = Engine::open("sqlite://.windlass/embedded.db").await?;
    engine.workflow("greet", greet)?;

    // No authentication on this machine. Without `auth`, the API requires API keys.
    let options = Options { auth: Auth::Loopback, ..Options::default() };
    let app = Router::new()
        .route("/", get(|| async { "The program's own page. The API is under /api." }))
        .merge(router(&engine, options)?);

    let listener = TcpListener::bind("127.0.0.1:7979").await?;
    println!("http://{}/api/docs", listener.local_addr()?);
    serve(listener, app, async {
        let _ = tokio::signal::ctrl_c().await;
    })
    .await?;
    engine.stop(Duration::from_secs(10)).await?;
    Ok(())
}
