//! Every template compiles, and its sample documents have the expected results.

use jiff::Timestamp;
use windlass_contracts::compile::{compile, default_definition};
use windlass_contracts::simulate::{Scenario, simulate};
use windlass_contracts::templates;

#[test]
fn every_sample_of_every_template_has_its_expected_result() {
    let all = templates::all();
    assert_eq!(all.len(), 5);
    for template in all {
        let artefact = compile(&template.contract, &template.definition)
            .unwrap_or_else(|error| panic!("{}: {error}", template.name));
        assert!(template.samples.len() >= 2, "{}", template.name);
        for sample in template.samples {
            let mut scenario = Scenario::new(sample.document, Timestamp::UNIX_EPOCH);
            scenario.verdicts = sample.verdicts;
            scenario.change_at = sample.change_at;
            let result = simulate(&artefact, &scenario).unwrap();
            let name = format!("{}: {}: {:?}", template.name, sample.name, result.failure);
            assert_eq!(result.state, sample.expect.state, "{name}");
            let mut asked: Vec<&str> = result.asked.iter().map(|one| one.node.as_str()).collect();
            asked.sort_unstable();
            assert_eq!(asked, sample.expect.asked, "{name}");
            if result.state == "active" {
                assert_eq!(result.obligations.len(), artefact.obligations.len(), "{name}");
            }
        }
    }
}

#[test]
fn a_tenant_without_a_definition_runs_the_defaults() {
    for template in templates::all() {
        let definition = default_definition(&template.contract);
        compile(&template.contract, &definition)
            .unwrap_or_else(|error| panic!("{}: {error}", template.name));
    }
}

#[test]
fn templates_survive_a_round_trip_through_json() {
    for template in templates::all() {
        let text = serde_json::to_string(&template).unwrap();
        let read: templates::Template = serde_json::from_str(&text).unwrap();
        assert_eq!(read, template);
    }
}
