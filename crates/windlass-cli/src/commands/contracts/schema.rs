//! `windlass contracts schema`: the JSON schemas of files, for editors.

use schemars::{Schema, schema_for};
use windlass_contracts::approvers::Directory;
use windlass_contracts::rules::DecisionTable;
use windlass_contracts::simulate::Scenario;
use windlass_contracts::templates::Template;
use windlass_contracts::types::{
    CompiledWorkflow, LifecycleContract, OrgWorkflowDefinition, SlotGraphPatch,
};

use crate::args::{Format, SchemaKind};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Out;

pub(super) fn print(kind: SchemaKind) -> Outcome {
    let text = serde_json::to_string_pretty(&of(kind))
        .map_err(|error| Failure::error(format!("failed to write the schema: {error}")))?;
    Out::new(Format::Text).line(&text)?;
    Ok(Exit::Ok)
}

fn of(kind: SchemaKind) -> Schema {
    match kind {
        SchemaKind::Contract => schema_for!(LifecycleContract),
        SchemaKind::Definition => schema_for!(OrgWorkflowDefinition),
        SchemaKind::Patch => schema_for!(SlotGraphPatch),
        SchemaKind::Table => schema_for!(DecisionTable),
        SchemaKind::Scenario => schema_for!(Scenario),
        SchemaKind::Directory => schema_for!(Directory),
        SchemaKind::Template => schema_for!(Template),
        SchemaKind::Artefact => schema_for!(CompiledWorkflow),
    }
}
