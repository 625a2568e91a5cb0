//! The JSON blocks of docs/contracts-language.md compile.

use windlass_contracts::compile::{compile, read_definition};

use crate::support::template;

#[test]
fn the_examples_of_the_documentation_compile() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/contracts-language.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> =
        text.split("```json\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    assert_eq!(blocks.len(), 3);
    let contract = template("invoice_approval").contract;
    for block in blocks {
        let definition = read_definition(block).unwrap_or_else(|error| panic!("{block}: {error}"));
        compile(&contract, &definition).unwrap_or_else(|error| panic!("{block}: {error}"));
    }
}
