//! Sets of values of one input: exact, so that gaps and overlaps can be computed.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Condition, Input, InputType, RULE_INVALID, RULE_TOO_LARGE, SCALE_MAX, VALUES_MAX};
use crate::{
    diagnostic::{Code, Diagnostic, pointer_join},
    number::{DIGITS_MAX, Decimal, INTEGER_MAX},
};

/// Farther than any number, in units. It leaves room for one more unit.
const FAR: i128 = 10_i128.pow(30);

/// A set of values of one input, and whether it has the absent value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) absent: bool,
    pub(super) present: Present,
}

/// Booleans are the texts `true` and `false`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Present {
    /// Closed ranges of units, sorted, with a space between two of them.
    Numbers(Vec<(i128, i128)>),
    /// These texts.
    Texts(BTreeSet<String>),
    /// All texts but these.
    AllBut(BTreeSet<String>),
}

impl Present {
    fn is_empty(&self) -> bool {
        match self {
            Self::Numbers(ranges) => ranges.is_empty(),
            Self::Texts(texts) => texts.is_empty(),
            Self::AllBut(_) => false,
        }
    }

    fn intersect(&self, other: &Self) -> Self {
        let keep = |texts: &BTreeSet<String>, test: &dyn Fn(&String) -> bool| {
            Self::Texts(texts.iter().filter(|text| test(text)).cloned().collect())
        };
        match (self, other) {
            (Self::Numbers(left), Self::Numbers(right)) => {
                let mut found: Vec<(i128, i128)> = Vec::new();
                common(left, right, |range| {
                    found.push(range);
                    true
                });
                Self::Numbers(found)
            }
            (Self::Texts(left), Self::Texts(right)) => keep(left, &|text| right.contains(text)),
            (Self::Texts(texts), Self::AllBut(not)) | (Self::AllBut(not), Self::Texts(texts)) => {
                keep(texts, &|text| !not.contains(text))
            }
            (Self::AllBut(left), Self::AllBut(right)) => {
                Self::AllBut(left.union(right).cloned().collect())
            }
            // Sets of one input have one type.
            _ => Self::Numbers(Vec::new()),
        }
    }

    /// Whether two sets have no common value. Unlike the intersection it allocates nothing.
    fn is_disjoint(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Numbers(left), Self::Numbers(right)) => {
                let mut disjoint = true;
                common(left, right, |_| {
                    disjoint = false;
                    false
                });
                disjoint
            }
            (Self::Texts(left), Self::Texts(right)) => left.is_disjoint(right),
            (Self::Texts(texts), Self::AllBut(not)) | (Self::AllBut(not), Self::Texts(texts)) => {
                texts.is_subset(not)
            }
            (Self::AllBut(_), Self::AllBut(_)) => false,
            // Sets of one input have one type.
            _ => true,
        }
    }

    fn complement(&self) -> Self {
        match self {
            Self::Numbers(ranges) => {
                let mut found = Vec::new();
                let mut next = -FAR;
                for (from, to) in ranges {
                    if next < *from {
                        found.push((next, from - 1));
                    }
                    next = to + 1;
                }
                if next <= FAR {
                    found.push((next, FAR));
                }
                Self::Numbers(found)
            }
            Self::Texts(texts) => Self::AllBut(texts.clone()),
            Self::AllBut(texts) => Self::Texts(texts.clone()),
        }
    }
}

/// Walks the ranges that two sorted lists have in common, until `visit` returns false.
fn common(
    left: &[(i128, i128)],
    right: &[(i128, i128)],
    mut visit: impl FnMut((i128, i128)) -> bool,
) {
    let (mut at, mut other) = (0, 0);
    while let (Some(a), Some(b)) = (left.get(at), right.get(other)) {
        let range = (a.0.max(b.0), a.1.min(b.1));
        if range.0 <= range.1 && !visit(range) {
            return;
        }
        if a.1 < b.1 { at += 1 } else { other += 1 }
    }
}

impl Set {
    pub(super) fn is_empty(&self) -> bool {
        !self.absent && self.present.is_empty()
    }

    /// Whether two sets have no common value.
    pub(super) fn is_disjoint(&self, other: &Self) -> bool {
        !(self.absent && other.absent) && self.present.is_disjoint(&other.present)
    }

    /// The work of comparing the set: its ranges, or its texts, which are larger, and one for itself.
    pub(super) fn size(&self) -> usize {
        match &self.present {
            Present::Numbers(ranges) => ranges.len() + 1,
            Present::Texts(texts) | Present::AllBut(texts) => 4 * texts.len() + 1,
        }
    }

    pub(super) fn intersect(&self, other: &Self) -> Self {
        Self {
            absent: self.absent && other.absent,
            present: self.present.intersect(&other.present),
        }
    }

    pub(super) fn subtract(&self, other: &Self) -> Self {
        Self {
            absent: self.absent && !other.absent,
            present: self.present.intersect(&other.present.complement()),
        }
    }

    pub(super) fn has(&self, value: &Point) -> bool {
        match (value, &self.present) {
            (Point::Absent, _) => self.absent,
            (Point::Number(units), Present::Numbers(ranges)) => {
                ranges.iter().any(|(from, to)| from <= units && units <= to)
            }
            (Point::Text(text), Present::Texts(texts)) => texts.contains(text),
            (Point::Text(text), Present::AllBut(texts)) => !texts.contains(text),
            _ => false,
        }
    }

    /// A value of the set, as it would be in a document.
    pub(super) fn example(&self, input: &Input) -> Value {
        match &self.present {
            Present::Numbers(ranges) => {
                let Some((from, to)) = ranges.first() else { return Value::Null };
                let units = 0.clamp(*from, *to);
                Decimal::from_units(units, scale(input))
                    .map_or(Value::Null, |number| Value::Number(number.to_json()))
            }
            Present::Texts(texts) => match texts.first() {
                None => Value::Null,
                Some(text) if input.kind == InputType::Boolean => Value::Bool(text == "true"),
                Some(text) => Value::String(text.clone()),
            },
            Present::AllBut(texts) => {
                // One of the first names is free, for the set is finite.
                let mut names = (0..).map(|index| match index {
                    0 => "other".to_owned(),
                    _ => format!("other{index}"),
                });
                names.find(|name| !texts.contains(name)).map_or(Value::Null, Value::String)
            }
        }
    }
}

/// A value of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Point {
    Absent,
    Number(i128),
    Text(String),
}

pub(super) fn scale(input: &Input) -> u32 {
    match input.kind {
        InputType::Decimal => input.scale.unwrap_or(1),
        _ => 0,
    }
}

/// Reads a value that must fit an input. Fails with the reason.
pub(super) fn point(value: &Value, input: &Input) -> Result<Point, String> {
    match (input.kind, value) {
        (_, Value::Null) => Ok(Point::Absent),
        (InputType::Integer | InputType::Decimal, Value::Number(number)) => {
            let number = Decimal::from_json(number).map_err(|error| error.to_string())?;
            units(number, input).map(Point::Number)
        }
        (InputType::Text, Value::String(text)) => Ok(Point::Text(text.clone())),
        (InputType::Boolean, Value::Bool(value)) => Ok(Point::Text(value.to_string())),
        _ => Err(format!("{value} is not {}", kind_name(input.kind))),
    }
}

fn units(number: Decimal, input: &Input) -> Result<i128, String> {
    let scale = scale(input);
    number
        .in_units(scale)
        .ok_or_else(|| format!("{number} has more than {scale} digits after the point"))
}

pub(super) const fn kind_name(kind: InputType) -> &'static str {
    match kind {
        InputType::Integer => "an integer",
        InputType::Decimal => "a decimal",
        InputType::Text => "a text",
        InputType::Boolean => "a boolean",
    }
}

/// All values that an input can have. `listed` are the texts that the schema lists.
pub(super) fn domain(
    input: &Input,
    listed: Option<&BTreeSet<String>>,
    pointer: &str,
) -> Result<Set, Diagnostic> {
    let wrong = |member: &str, text: String, help: &str| {
        Diagnostic::new(RULE_INVALID, text).at(pointer_join(pointer, member)).help(help)
    };
    if !is_numeric(input) && (input.min.is_some() || input.max.is_some()) {
        let text = format!("{} has no min and max", kind_name(input.kind));
        return Err(wrong("min", text, "remove `min` and `max`, or change the type"));
    }
    if input.kind != InputType::Text && input.values.is_some() {
        let text = format!("{} has no values", kind_name(input.kind));
        return Err(wrong("values", text, "remove `values`, or change the type to `text`"));
    }
    match (input.kind, input.scale) {
        (InputType::Decimal, Some(1..=SCALE_MAX)) => {}
        (InputType::Decimal, _) => {
            let text = format!("a decimal needs a scale from 1 to {SCALE_MAX}");
            let help = "write the number of digits after the point, or use an integer";
            return Err(wrong("scale", text, help));
        }
        (_, Some(_)) => {
            let text = "only a decimal has a scale".to_owned();
            return Err(wrong("scale", text, "remove `scale`, or change the type to `decimal`"));
        }
        (_, None) => {}
    }
    let present = match input.kind {
        InputType::Boolean => Present::Texts(["false", "true"].map(str::to_owned).into()),
        InputType::Text => match (&input.values, listed) {
            (Some(values), Some(listed)) if !listed.is_subset(values) => {
                let missing = listed.difference(values).next();
                let missing = missing.map(String::as_str).unwrap_or_default();
                let text = format!("the schema lists {missing:?}, which is not among the values");
                return Err(wrong("values", text, "add it to the values, or leave `values` out"));
            }
            (Some(values), _) => Present::Texts(values.clone()),
            (None, Some(listed)) => Present::Texts(listed.clone()),
            (None, None) => Present::AllBut(BTreeSet::new()),
        },
        InputType::Integer | InputType::Decimal => {
            let largest = match input.kind {
                InputType::Integer => i128::from(INTEGER_MAX),
                _ => 10_i128.pow(DIGITS_MAX as u32) - 1,
            };
            let bound = |given: Option<Decimal>, member: &str, default| match given {
                None => Ok(default),
                Some(number) => units(number, input)
                    .map_err(|text| wrong(member, text, "write fewer digits after the point")),
            };
            let range = (bound(input.min, "min", -largest)?, bound(input.max, "max", largest)?);
            if range.0 > range.1 {
                return Err(wrong("min", "min is larger than max".to_owned(), "swap them"));
            }
            Present::Numbers(vec![range])
        }
    };
    if present.is_empty() {
        let text = "the input has no value at all".to_owned();
        return Err(wrong("values", text, "add at least one value"));
    }
    Ok(Set { absent: input.optional, present })
}

/// The values that fulfil a condition.
pub(super) fn set(condition: &Condition, input: &Input, pointer: &str) -> Result<Set, Diagnostic> {
    let wrong = |member: &str, text: &str, help: &str| {
        Diagnostic::new(RULE_INVALID, text).at(pointer_join(pointer, member)).help(help)
    };
    let others = Condition { absent: None, ..condition.clone() };
    match (condition.absent, others == Condition::default()) {
        (None, true) => {
            return Err(Diagnostic::new(RULE_INVALID, "the condition is empty")
                .at(pointer)
                .help("leave the input out if it does not matter"));
        }
        (Some(true), _) if !input.optional => {
            let help = "set `optional` of the input, or remove the condition";
            return Err(wrong("absent", "the input is not optional", help));
        }
        (Some(true), false) => {
            let help = "remove the other conditions, which an absent value never fulfils";
            return Err(wrong("absent", "absent: true stands alone", help));
        }
        (Some(true), true) => return Ok(Set { absent: true, present: none(input) }),
        _ => {}
    }
    let listed = |values: &[Value], member: &str| {
        let wrong = |(code, text, help): (Code, String, &str)| {
            Diagnostic::new(code, text).at(pointer_join(pointer, member)).help(help)
        };
        list(values, input).map_err(wrong)
    };
    let mut present = none(input).complement();
    if let Some(value) = &condition.equals {
        present = present.intersect(&listed(std::slice::from_ref(value), "equals")?);
    }
    if let Some(values) = &condition.any_of {
        present = present.intersect(&listed(values, "in")?);
    }
    if let Some(values) = &condition.none_of {
        present = present.intersect(&listed(values, "notIn")?.complement());
    }
    for (bound, member, is_lower, open) in [
        (condition.at_least, "atLeast", true, 0),
        (condition.above, "above", true, 1),
        (condition.at_most, "atMost", false, 0),
        (condition.below, "below", false, 1),
    ] {
        let Some(bound) = bound else { continue };
        if !is_numeric(input) {
            let kind = kind_name(input.kind);
            let text = format!("{member} needs a number, the input is {kind}");
            return Err(wrong(member, &text, "compare with `equals`, `in` or `notIn`"));
        }
        let units = units(bound, input)
            .map_err(|text| wrong(member, &text, "write fewer digits after the point"))?;
        let range = if is_lower { (units + open, FAR) } else { (-FAR, units - open) };
        present = present.intersect(&Present::Numbers(vec![range]));
    }
    Ok(Set { absent: false, present })
}

const fn is_numeric(input: &Input) -> bool {
    matches!(input.kind, InputType::Integer | InputType::Decimal)
}

/// The empty set of the input's type.
fn none(input: &Input) -> Present {
    if is_numeric(input) { Present::Numbers(Vec::new()) } else { Present::Texts(BTreeSet::new()) }
}

/// The set of listed values. Fails with the code, the reason and the advice.
fn list(values: &[Value], input: &Input) -> Result<Present, (Code, String, &'static str)> {
    if values.len() > VALUES_MAX {
        let text = format!("the condition has {} values, the limit is {VALUES_MAX}", values.len());
        return Err((RULE_TOO_LARGE, text, "split the row into several rows"));
    }
    let mut found = none(input);
    for value in values {
        let fits = point(value, input)
            .map_err(|text| (RULE_INVALID, text, "write a value that the input can have"))?;
        match (fits, &mut found) {
            (Point::Number(units), Present::Numbers(ranges)) => ranges.push((units, units)),
            (Point::Text(text), Present::Texts(texts)) => {
                texts.insert(text);
            }
            _ => {
                let text = "null is not a value".to_owned();
                return Err((RULE_INVALID, text, "write `absent: true`"));
            }
        }
    }
    if let Present::Numbers(ranges) = &mut found {
        ranges.sort_unstable();
        ranges.dedup();
    }
    Ok(found)
}
