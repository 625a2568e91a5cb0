//! Collects the pages of the documentation for the tool of MCP that searches them.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&manifest).join("pages");
    let mut pages = Vec::new();
    for folder in ["", "errors/"] {
        let path = root.join(folder);
        println!("cargo::rerun-if-changed={}", path.display());
        for entry in fs::read_dir(&path)? {
            let name = entry?.file_name().into_string().expect("a page has a plain name");
            if name.ends_with(".md") {
                pages.push(format!("{folder}{name}"));
            }
        }
    }
    pages.sort();
    let mut list = String::from("&[\n");
    for page in pages {
        let path = root.join(&page);
        println!("cargo::rerun-if-changed={}", path.display());
        let path = path.display().to_string();
        writeln!(list, "    ({page:?}, include_str!({path:?})),").expect("a text takes all");
    }
    list.push_str("]\n");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("pages.rs"), list)
}
