//! Prints the reference of the HTTP API as Markdown: docs/http-reference.md is what it prints.

fn main() {
    let options = windlass_server::Options { tick: true, ..windlass_server::Options::default() };
    print!("{}", windlass_server::reference(&options));
}
