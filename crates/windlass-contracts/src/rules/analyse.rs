//! Checks a table: its shape, then whether its rows cover each input, once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    COLUMNS_MAX, DecisionTable, HitPolicy, InputType, Output, OutputType, ROWS_MAX, RULE_GAP,
    RULE_INVALID, RULE_OVERLAP, RULE_ROW_UNREACHABLE, RULE_TOO_COMPLEX, RULE_TOO_LARGE, STEPS_MAX,
    TEXT_CHARACTERS_MAX, VALUES_MAX,
    domain::{Set, domain, kind_name, set},
};
use crate::{
    diagnostic::{Diagnostic, pointer_join},
    dsl::{self, Schemas, Type},
    number::Decimal,
};

/// One set for each input: the product of them is a region of the input space.
type Region = Vec<Set>;

/// The comparisons that the check of several tables may need together.
#[derive(Debug)]
pub(crate) struct Budget(usize);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(STEPS_MAX)
    }

    /// Takes the work of comparing two sets.
    fn compare(&mut self, left: &Set, right: &Set) -> Result<(), Diagnostic> {
        self.spend(left.size() + right.size())
    }

    /// Takes the work of copying a region. Copies count more, because they also need memory.
    fn copy(&mut self, region: &Region) -> Result<(), Diagnostic> {
        self.spend(8 * region.iter().map(Set::size).sum::<usize>())
    }

    fn spend(&mut self, steps: usize) -> Result<(), Diagnostic> {
        self.0 = self.0.checked_sub(steps).ok_or_else(|| {
            let text = format!("the check of the tables needs more than {STEPS_MAX} comparisons");
            Diagnostic::new(RULE_TOO_COMPLEX, text)
                .at("/rows")
                .help("split the table, or use fewer inputs and shorter lists of values")
        })?;
        Ok(())
    }

    /// Whether two regions have a common input.
    fn meet(&mut self, left: &Region, right: &Region) -> Result<bool, Diagnostic> {
        for (a, b) in left.iter().zip(right) {
            self.compare(a, b)?;
            if a.is_disjoint(b) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

pub(super) fn check(
    table: &DecisionTable,
    schemas: &Schemas,
    budget: &mut Budget,
) -> Result<(), Diagnostic> {
    check_sizes(table)?;
    check_names(table)?;
    let space = space(table, schemas)?;
    let rows = regions(table, &space)?;
    check_outputs(table)?;
    for (index, row) in rows.iter().enumerate() {
        if row.iter().any(Set::is_empty) {
            return Err(unreachable_row(table, index, "its conditions exclude every input"));
        }
    }
    match table.hit_policy {
        HitPolicy::Unique => check_overlaps(table, &rows, budget)?,
        HitPolicy::First => {
            for (index, row) in rows.iter().enumerate() {
                if uncovered(row.clone(), &rows[..index], budget)?.is_none() {
                    return Err(unreachable_row(table, index, "earlier rows match all its inputs"));
                }
            }
        }
    }
    if table.otherwise.is_some() {
        return Ok(());
    }
    match uncovered(space, &rows, budget)? {
        None => Ok(()),
        Some(gap) => {
            Err(Diagnostic::new(RULE_GAP, format!("no row decides for {}", example(table, &gap)))
                .at("/rows")
                .help("add a row, or add `otherwise`"))
        }
    }
}

fn check_sizes(table: &DecisionTable) -> Result<(), Diagnostic> {
    let too_large = |pointer: String, what: &str, count: usize, max: usize| {
        let text = format!("the table has {count} {what}, the limit is {max}");
        let help = "split the table into several tables, or shorten it";
        Err(Diagnostic::new(RULE_TOO_LARGE, text).at(pointer).help(help))
    };
    for (pointer, what, count, max) in [
        ("/inputs", "inputs", table.inputs.len(), COLUMNS_MAX),
        ("/outputs", "outputs", table.outputs.len(), COLUMNS_MAX),
        ("/rows", "rows", table.rows.len(), ROWS_MAX),
    ] {
        if count > max {
            return too_large(pointer.to_owned(), what, count, max);
        }
        if count == 0 {
            let text = format!("the table has no {what}");
            return Err(Diagnostic::new(RULE_INVALID, text).at(pointer).help("add at least one"));
        }
    }
    for (index, input) in table.inputs.iter().enumerate() {
        let count = input.values.as_ref().map_or(0, BTreeSet::len);
        if count > VALUES_MAX {
            return too_large(format!("/inputs/{index}/values"), "values", count, VALUES_MAX);
        }
    }
    let description = table.description.as_deref().map_or(0, |text| text.chars().count());
    if description > 10 * TEXT_CHARACTERS_MAX {
        let max = 10 * TEXT_CHARACTERS_MAX;
        return too_large("/description".to_owned(), "characters of description", description, max);
    }
    Ok(())
}

fn check_names(table: &DecisionTable) -> Result<(), Diagnostic> {
    let inputs = table.inputs.iter().enumerate();
    let outputs = table.outputs.iter().enumerate();
    let rows = table.rows.iter().enumerate();
    unique(inputs.map(|(index, input)| (format!("/inputs/{index}/name"), input.name.as_str())))?;
    unique(outputs.map(|(index, output)| (format!("/outputs/{index}/name"), &*output.name)))?;
    unique(rows.map(|(index, row)| (format!("/rows/{index}/id"), row.id.as_str())))
}

fn unique<'a>(names: impl Iterator<Item = (String, &'a str)>) -> Result<(), Diagnostic> {
    let mut seen = BTreeSet::new();
    for (pointer, name) in names {
        check_text(name, &pointer)?;
        if name.is_empty() {
            return Err(Diagnostic::new(RULE_INVALID, "the name is empty")
                .at(pointer)
                .help("write a name"));
        }
        if !seen.insert(name) {
            let text = format!("the name {name:?} occurs twice");
            return Err(Diagnostic::new(RULE_INVALID, text).at(pointer).help("use each name once"));
        }
    }
    Ok(())
}

fn check_text(text: &str, pointer: &str) -> Result<(), Diagnostic> {
    let count = text.chars().count();
    if count > TEXT_CHARACTERS_MAX {
        let text = format!("the text has {count} characters, the limit is {TEXT_CHARACTERS_MAX}");
        return Err(Diagnostic::new(RULE_TOO_LARGE, text).at(pointer).help("shorten it"));
    }
    if text.chars().any(char::is_control) {
        return Err(Diagnostic::new(RULE_INVALID, "the text has a control character")
            .at(pointer)
            .help("remove it"));
    }
    Ok(())
}

/// The region of all inputs, after the types of their paths are checked.
fn space(table: &DecisionTable, schemas: &Schemas) -> Result<Region, Diagnostic> {
    let mut space = Vec::with_capacity(table.inputs.len());
    for (index, input) in table.inputs.iter().enumerate() {
        let pointer = format!("/inputs/{index}");
        let leaf = dsl::path_type(&input.path, schemas)
            .map_err(|error| Diagnostic::from(error).at(pointer_join(&pointer, "path")))?;
        let fits = match input.kind {
            InputType::Integer | InputType::Decimal => leaf.kind == Type::Number,
            InputType::Text => matches!(leaf.kind, Type::Text | Type::Date),
            InputType::Boolean => leaf.kind == Type::Bool,
        };
        if !fits {
            let text = format!(
                "the input {:?} is {}, but {} is {}",
                input.name,
                kind_name(input.kind),
                input.path,
                leaf.kind
            );
            return Err(Diagnostic::new(RULE_INVALID, text)
                .at(pointer_join(&pointer, "type"))
                .help("give the input the type of its path"));
        }
        for value in input.values.iter().flatten() {
            check_text(value, &pointer_join(&pointer, "values"))?;
        }
        space.push(domain(input, leaf.values.as_ref(), &pointer)?);
    }
    Ok(space)
}

fn regions(table: &DecisionTable, space: &Region) -> Result<Vec<Region>, Diagnostic> {
    let mut regions = Vec::with_capacity(table.rows.len());
    for (index, row) in table.rows.iter().enumerate() {
        let pointer = format!("/rows/{index}/when");
        let known = |name: &String| table.inputs.iter().any(|input| input.name == *name);
        if let Some(name) = row.when.keys().find(|name| !known(name)) {
            let text = format!("{name:?} is not an input of the table");
            let known: Vec<&str> = table.inputs.iter().map(|input| input.name.as_str()).collect();
            return Err(Diagnostic::new(RULE_INVALID, text)
                .at(pointer_join(&pointer, name))
                .help(format!("use one of: {}", known.join(", "))));
        }
        let mut region = Vec::with_capacity(space.len());
        for (input, all) in table.inputs.iter().zip(space) {
            region.push(match row.when.get(&input.name) {
                None => all.clone(),
                Some(condition) => {
                    let pointer = pointer_join(&pointer, &input.name);
                    set(condition, input, &pointer)?.intersect(all)
                }
            });
        }
        regions.push(region);
    }
    Ok(regions)
}

fn check_outputs(table: &DecisionTable) -> Result<(), Diagnostic> {
    let rows = table.rows.iter().enumerate();
    rows.map(|(index, row)| (format!("/rows/{index}/then"), &row.then))
        .chain(table.otherwise.iter().map(|values| ("/otherwise".to_owned(), values)))
        .try_for_each(|(pointer, values)| check_values(&table.outputs, values, &pointer))
}

fn check_values(
    outputs: &[Output],
    values: &BTreeMap<String, Value>,
    pointer: &str,
) -> Result<(), Diagnostic> {
    let wrong = |name: &str, text: String, help: &str| {
        Err(Diagnostic::new(RULE_INVALID, text).at(pointer_join(pointer, name)).help(help))
    };
    for name in values.keys() {
        if !outputs.iter().any(|output| output.name == *name) {
            let help = "remove it, or add it to the outputs";
            return wrong(name, format!("{name:?} is not an output of the table"), help);
        }
    }
    for output in outputs {
        let name = &output.name;
        let Some(value) = values.get(name) else {
            let text = format!("the output {name:?} is missing");
            return Err(Diagnostic::new(RULE_INVALID, text).at(pointer).help("add its value"));
        };
        let help = "write a value of the type that the output has";
        match (output.kind, value) {
            (OutputType::Text, Value::String(text)) => {
                check_text(text, &pointer_join(pointer, name))?;
            }
            (OutputType::Boolean, Value::Bool(_)) => {}
            (OutputType::Number, Value::Number(number)) => {
                if let Err(error) = Decimal::from_json(number) {
                    return wrong(name, error.to_string(), "write fewer digits");
                }
            }
            (OutputType::Text, _) => return wrong(name, format!("{value} is not a text"), help),
            (OutputType::Boolean, _) => {
                return wrong(name, format!("{value} is not a boolean"), help);
            }
            (OutputType::Number, _) => {
                return wrong(name, format!("{value} is not a number"), help);
            }
        }
    }
    Ok(())
}

fn unreachable_row(table: &DecisionTable, index: usize, reason: &str) -> Diagnostic {
    let text = format!("the row {:?} never decides: {reason}", table.rows[index].id);
    Diagnostic::new(RULE_ROW_UNREACHABLE, text)
        .at(format!("/rows/{index}"))
        .help("remove the row, or move it up")
}

fn check_overlaps(
    table: &DecisionTable,
    rows: &[Region],
    budget: &mut Budget,
) -> Result<(), Diagnostic> {
    for (index, row) in rows.iter().enumerate() {
        for (earlier, other) in rows[..index].iter().enumerate() {
            if budget.meet(row, other)? {
                let both: Region = row.iter().zip(other).map(|(a, b)| a.intersect(b)).collect();
                let text = format!(
                    "the rows {:?} and {:?} both decide for {}",
                    table.rows[earlier].id,
                    table.rows[index].id,
                    example(table, &both)
                );
                return Err(Diagnostic::new(RULE_OVERLAP, text)
                    .at(format!("/rows/{index}"))
                    .help("change one of the rows, or use the hit policy `first`"));
            }
        }
    }
    Ok(())
}

/// Finds a part of a region that no row covers.
///
/// A row cuts a region into at most one part for each input. Parts that no row meets are the
/// answer; the work of the search is limited.
fn uncovered(
    region: Region,
    rows: &[Region],
    budget: &mut Budget,
) -> Result<Option<Region>, Diagnostic> {
    let mut open = vec![(region, 0)];
    'regions: while let Some((region, from)) = open.pop() {
        for (next, row) in rows.iter().enumerate().skip(from) {
            if !budget.meet(row, &region)? {
                continue;
            }
            let mut inside = region;
            for (index, cut) in row.iter().enumerate() {
                budget.compare(&inside[index], cut)?;
                let outside = inside[index].subtract(cut);
                if !outside.is_empty() {
                    budget.copy(&inside)?;
                    let mut part = inside.clone();
                    part[index] = outside;
                    open.push((part, next + 1));
                }
                inside[index] = inside[index].intersect(cut);
            }
            continue 'regions;
        }
        return Ok(Some(region));
    }
    Ok(None)
}

fn example(table: &DecisionTable, region: &Region) -> String {
    let values: Vec<String> = table
        .inputs
        .iter()
        .zip(region)
        .map(|(input, set)| format!("{} = {}", input.name, set.example(input)))
        .collect();
    values.join(", ")
}
