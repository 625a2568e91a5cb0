//! The JSON blocks of docs/contracts-language.md compile.

use windlass_contracts::compile::{compile, read_definition};

use crate::support::template;

#[test]
fn the_examples_of_the_documentation_compile() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/contracts-language.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> =
        text.split("```json\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    let blocks: Vec<&str> = blocks.into_iter().filter(|block| block.contains("baseRef")).collect();
    assert_eq!(blocks.len(), 4);
    let contract = template("invoice_approval").contract;
    for (index, block) in blocks.into_iter().enumerate() {
        let definition = read_definition(block).unwrap_or_else(|error| panic!("{block}: {error}"));
        match (index, compile(&contract, &definition)) {
            // The second one shows an empty patch.
            (1, result) => {
                assert_eq!(result.unwrap_err().problems[0].code.as_str(), "OBLIGATION_BROKEN")
            }
            (_, result) => drop(result.unwrap_or_else(|error| panic!("{block}: {error}"))),
        }
    }
}
