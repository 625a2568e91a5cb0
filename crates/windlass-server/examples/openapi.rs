//! Prints the OpenAPI document of the HTTP API.

mod sets;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let routes = sets::all().await?;
    let options = windlass_server::Options { tick: true, routes, ..Default::default() };
    println!("{}", windlass_server::openapi(&options));
    Ok(())
}
