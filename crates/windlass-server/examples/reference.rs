//! Prints the HTTP reference as Markdown, for docs/http-reference.md.

mod sets;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let routes = sets::all().await?;
    let options = windlass_server::Options { tick: true, routes, ..Default::default() };
    print!("{}", windlass_server::reference(&options));
    Ok(())
}
