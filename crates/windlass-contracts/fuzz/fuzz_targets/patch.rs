//! Any text as a definition, against the contracts of all templates: it compiles or fails, and an
//! artefact loads again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use windlass_contracts::{compile, compile::read_definition, load, templates};

fuzz_target!(|text: &str| {
    let Ok(definition) = read_definition(text) else { return };
    for template in templates::all() {
        if let Ok(artefact) = compile(&template.contract, &definition) {
            let stored = serde_json::to_vec(&artefact).expect("an artefact is JSON");
            load(&stored).expect("a stored artefact loads");
        }
    }
});
