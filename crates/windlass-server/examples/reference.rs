//! Prints the HTTP reference as Markdown, for docs/http-reference.md.

fn main() {
    let options = windlass_server::Options { tick: true, ..windlass_server::Options::default() };
    print!("{}", windlass_server::reference(&options));
}
