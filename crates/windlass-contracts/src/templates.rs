//! Templates: complete examples of contracts and definitions, ready to be copied and changed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tokens::Verdict;
use crate::types::{LifecycleContract, OrgWorkflowDefinition};

const TEXTS: &[&str] = &[
    include_str!("../templates/invoice_approval.json"),
    include_str!("../templates/purchase_order_approval.json"),
    include_str!("../templates/return_credit_note.json"),
    include_str!("../templates/amendment_loop.json"),
    include_str!("../templates/fast_track.json"),
];

/// A contract and a definition, with sample documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Template {
    /// The name.
    pub name: String,
    /// The title for people.
    pub title: String,
    /// A description of the workflow.
    pub description: String,
    /// The contract.
    pub contract: LifecycleContract,
    /// The definition.
    pub definition: OrgWorkflowDefinition,
    /// Sample documents and their results.
    pub samples: Vec<Sample>,
}

/// A sample document and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sample {
    /// The name.
    pub name: String,
    /// The document.
    pub document: Value,
    /// The decisions by node. [default: approved]
    #[serde(default)]
    pub verdicts: BTreeMap<String, Verdict>,
    /// The approval at which the document changes once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_at: Option<String>,
    /// The expected result.
    pub expect: Expected,
}

/// The expected result of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expected {
    /// The lifecycle state at the end, or at the first repetition after a rejection.
    pub state: String,
    /// The approval nodes that ask people, in order.
    pub asked: Vec<String>,
}

/// All templates.
///
/// # Panics
/// Panics if a template is not valid JSON, which the tests of this crate exclude.
pub fn all() -> Vec<Template> {
    TEXTS.iter().map(|text| serde_json::from_str(text).expect("the templates are tested")).collect()
}
