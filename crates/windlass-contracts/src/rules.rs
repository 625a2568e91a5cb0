//! Decision tables: rows of conditions over typed inputs. A table is checked for gaps, overlaps and
//! rows that can never apply before it is used.
//!
//! ```
//! use serde_json::json;
//! use windlass_contracts::{dsl::{Schemas, Scope}, rules::DecisionTable};
//!
//! let table: DecisionTable = serde_json::from_value(json!({
//!     "hitPolicy": "unique",
//!     "inputs": [{"name": "total", "path": "entity.total", "type": "integer", "min": 0}],
//!     "outputs": [{"name": "outcome", "type": "text"}],
//!     "rows": [
//!         {"id": "small", "when": {"total": {"below": 500}}, "then": {"outcome": "clerk"}},
//!         {"id": "large", "when": {"total": {"atLeast": 500}}, "then": {"outcome": "cfo"}},
//!     ],
//! })).unwrap();
//! table.check(&Schemas::new(json!({"properties": {"total": {"type": "integer"}}})))?;
//!
//! let document = json!({"total": 700});
//! let decision = table.decide(&Scope::new(&document, jiff::Timestamp::UNIX_EPOCH))?;
//! assert_eq!(decision.text("outcome"), Some("cfo"));
//! assert_eq!(decision.row.as_deref(), Some("large"));
//! # Ok::<(), windlass_contracts::diagnostic::Diagnostic>(())
//! ```

mod analyse;
mod decide;
mod domain;
mod table;

pub(crate) use analyse::Budget;
pub use decide::{Considered, Decision};
pub use table::{Condition, DecisionTable, HitPolicy, Input, InputType, Output, OutputType, Row};

use crate::diagnostic::Code;

/// The table is malformed: a name, a type or a condition is wrong.
pub const RULE_INVALID: Code = Code::new("RULE_INVALID");
/// A list or a text of the table is larger than its limit.
pub const RULE_TOO_LARGE: Code = Code::new("RULE_TOO_LARGE");
/// Some input has no row.
pub const RULE_GAP: Code = Code::new("RULE_GAP");
/// Some input has two rows, and the hit policy is `unique`.
pub const RULE_OVERLAP: Code = Code::new("RULE_OVERLAP");
/// A row applies to no input, or only to inputs of earlier rows.
pub const RULE_ROW_UNREACHABLE: Code = Code::new("RULE_ROW_UNREACHABLE");
/// The check of the table needs more steps than the limit.
pub const RULE_TOO_COMPLEX: Code = Code::new("RULE_TOO_COMPLEX");
/// A value of the document does not fit the declared input.
pub const RULE_VALUE: Code = Code::new("RULE_VALUE");

/// The codes of this module.
pub const CODES: &[Code] = &[
    RULE_INVALID,
    RULE_TOO_LARGE,
    RULE_GAP,
    RULE_OVERLAP,
    RULE_ROW_UNREACHABLE,
    RULE_TOO_COMPLEX,
    RULE_VALUE,
];

/// The most inputs of a table, and the most outputs.
pub const COLUMNS_MAX: usize = 8;
/// The most rows of a table.
pub const ROWS_MAX: usize = 200;
/// The most values of one condition or one input.
pub const VALUES_MAX: usize = 100;
/// The most characters of a name, an id or a text value.
pub const TEXT_CHARACTERS_MAX: usize = 200;
/// The most digits after the point of a decimal input.
pub const SCALE_MAX: u32 = 6;
/// The most comparisons of ranges and texts that the search for gaps and overlaps needs. The tables of a
/// contract share them, and so do those of a definition.
pub const STEPS_MAX: usize = 20_000_000;

#[cfg(test)]
mod tests;
