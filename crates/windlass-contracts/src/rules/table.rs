//! The JSON of a decision table.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_kernel::{canonical, digest::Sha256Digest};

use super::{Budget, RULE_INVALID, analyse, decide, decide::Decision};
use crate::{
    diagnostic::Diagnostic,
    dsl::{Schemas, Scope},
    number::Decimal,
};

/// A decision table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DecisionTable {
    /// A note for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Which row decides if several match.
    pub hit_policy: HitPolicy,
    /// The values that the table looks at.
    pub inputs: Vec<Input>,
    /// The values that a row gives.
    pub outputs: Vec<Output>,
    /// The rows, in order.
    pub rows: Vec<Row>,
    /// The outputs if no row matches. Without it, a gap is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<BTreeMap<String, Value>>,
}

/// Which row decides if several match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HitPolicy {
    /// The first one.
    First,
    /// Two rows never match the same input.
    Unique,
}

/// A value that the table looks at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// The name under which rows refer to it.
    pub name: String,
    /// The path of the value, such as `entity.total`.
    pub path: String,
    /// The type of the value.
    #[serde(rename = "type")]
    pub kind: InputType,
    /// The digits after the point of a decimal, from 1 to 6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<u32>,
    /// The smallest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Decimal>,
    /// The largest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Decimal>,
    /// All texts that the value can be. [default: those of the schema, or any text]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<BTreeSet<String>>,
    /// Whether the value can be absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// The type of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputType {
    /// A whole number.
    Integer,
    /// A number with a fixed number of digits after the point.
    Decimal,
    /// A text.
    Text,
    /// True or false.
    Boolean,
}

/// A value that a row gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Output {
    /// The name.
    pub name: String,
    /// The type of the value.
    #[serde(rename = "type")]
    pub kind: OutputType,
}

/// The type of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputType {
    /// A number.
    Number,
    /// A text.
    Text,
    /// True or false.
    Boolean,
}

/// Conditions and the outputs that follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Row {
    /// The name of the row in explanations.
    pub id: String,
    /// Conditions by input. An input without a condition can have any value, or none.
    #[serde(default)]
    pub when: BTreeMap<String, Condition>,
    /// The outputs.
    pub then: BTreeMap<String, Value>,
}

/// A condition on one input. All its members must hold; an absent value fulfils only `absent`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    /// The value is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals: Option<Value>,
    /// The value is one of these.
    #[serde(default, rename = "in", skip_serializing_if = "Option::is_none")]
    pub any_of: Option<Vec<Value>>,
    /// The value is none of these.
    #[serde(default, rename = "notIn", skip_serializing_if = "Option::is_none")]
    pub none_of: Option<Vec<Value>>,
    /// The number is this one or larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Decimal>,
    /// The number is larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Decimal>,
    /// The number is this one or smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<Decimal>,
    /// The number is smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<Decimal>,
    /// True: the value is absent. False: it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<bool>,
}

impl DecisionTable {
    /// Checks names, types, limits, and that each possible input has its row: no gaps, no overlaps
    /// under [`HitPolicy::Unique`], no row that can never decide.
    ///
    /// # Errors
    /// Fails with the first problem. A gap or an overlap comes with an example.
    pub fn check(&self, schemas: &Schemas) -> Result<(), Diagnostic> {
        self.check_within(schemas, &mut Budget::new())
    }

    /// Checks as [`Self::check`], with the comparisons that other tables have left.
    pub(crate) fn check_within(
        &self,
        schemas: &Schemas,
        budget: &mut Budget,
    ) -> Result<(), Diagnostic> {
        analyse::check(self, schemas, budget)
    }

    /// Finds the row for a document.
    ///
    /// # Errors
    /// Fails if a value does not fit its input, or if no row matches; a checked table with a
    /// document that fits its inputs never fails.
    pub fn decide(&self, scope: &Scope<'_>) -> Result<Decision, Diagnostic> {
        decide::decide(self, scope)
    }

    /// The SHA-256 digest of the canonical JSON of the table.
    ///
    /// # Errors
    /// Fails if a value of the table has no canonical form, which a checked table never does.
    pub fn digest(&self) -> Result<Sha256Digest, Diagnostic> {
        let bytes = canonical::to_canonical(self).map_err(|error| {
            let help = "write the numbers of the table with fewer digits";
            Diagnostic::new(RULE_INVALID, error.to_string()).help(help)
        })?;
        Ok(Sha256Digest::of(&bytes))
    }

    /// The table with its lists in one order. The rows of a `first` table keep theirs, because it
    /// has a meaning.
    pub(crate) fn normalized(&self) -> Self {
        let mut table = self.clone();
        table.inputs.sort_by(|a, b| a.name.cmp(&b.name));
        table.outputs.sort_by(|a, b| a.name.cmp(&b.name));
        if table.hit_policy == HitPolicy::Unique {
            table.rows.sort_by(|a, b| a.id.cmp(&b.id));
        }
        for condition in table.rows.iter_mut().flat_map(|row| row.when.values_mut()) {
            for list in [&mut condition.any_of, &mut condition.none_of].into_iter().flatten() {
                list.sort_by_cached_key(Value::to_string);
            }
        }
        table
    }

    /// The texts that an output can have, or nothing if there is no such text output.
    pub fn texts(&self, output: &str) -> Option<BTreeSet<&str>> {
        self.outputs
            .iter()
            .find(|column| column.name == output && column.kind == OutputType::Text)?;
        let rows = self.rows.iter().map(|row| &row.then).chain(&self.otherwise);
        Some(rows.filter_map(|values| values.get(output)?.as_str()).collect())
    }
}
