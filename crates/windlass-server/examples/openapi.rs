//! Prints the OpenAPI document of the HTTP API.

fn main() {
    let options = windlass_server::Options { tick: true, ..windlass_server::Options::default() };
    println!("{}", windlass_server::openapi(&options));
}
