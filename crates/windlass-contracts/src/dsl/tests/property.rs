//! Random expressions: parsing never panics, printing and parsing agree, and evaluation agrees with
//! a second interpreter that works on a simpler tree and on integers.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A tree of its own, so that the oracle shares nothing with the code under test.
#[derive(Debug, Clone)]
enum Tree {
    Flag(usize),
    Constant(bool),
    Number(&'static str, usize, i64),
    Fields(&'static str, usize, usize),
    Within(usize, Vec<i64>),
    IsNull(usize, bool),
    Not(Box<Tree>),
    All(Vec<Tree>),
    Any(Vec<Tree>),
}

const NUMBERS: usize = 3;
const OPERATORS: [&str; 6] = ["==", "!=", ">", ">=", "<", "<="];

#[derive(Debug, Clone)]
struct World {
    flags: [Option<bool>; NUMBERS],
    numbers: [Option<i64>; NUMBERS],
}

impl World {
    fn document(&self) -> Value {
        let mut members = serde_json::Map::new();
        for (index, (flag, number)) in self.flags.iter().zip(self.numbers).enumerate() {
            members.insert(format!("f{index}"), json!(flag));
            // An absent field and a null are the same.
            if let Some(number) = number {
                members.insert(format!("n{index}"), json!(number as f64 / 4.0));
            }
        }
        Value::Object(members)
    }
}

/// Quarters as a decimal: 5 is 1.25.
fn quarters(value: i64) -> String {
    format!("{}", value as f64 / 4.0)
}

impl Tree {
    fn write(&self) -> String {
        let join = |items: &[Self], operator: &str| {
            let items: Vec<String> =
                items.iter().map(|item| format!("({})", item.write())).collect();
            items.join(operator)
        };
        match self {
            Self::Flag(index) => format!("entity.f{index}"),
            Self::Constant(value) => value.to_string(),
            Self::Number(operator, index, value) => {
                format!("entity.n{index} {operator} {}", quarters(*value))
            }
            Self::Fields(operator, left, right) => {
                format!("entity.n{left} {operator} entity.n{right}")
            }
            Self::Within(index, values) => {
                let values: Vec<String> = values.iter().map(|value| quarters(*value)).collect();
                format!("entity.n{index} in [{}]", values.join(","))
            }
            Self::IsNull(index, true) => format!("entity.n{index} == null"),
            Self::IsNull(index, false) => format!("entity.n{index} != null"),
            Self::Not(inner) => format!("!({})", inner.write()),
            Self::All(items) => join(items, "&&"),
            Self::Any(items) => join(items, " || "),
        }
    }

    fn run(&self, world: &World) -> bool {
        let compare = |operator: &str, left: Option<i64>, right: Option<i64>| {
            let (Some(left), Some(right)) = (left, right) else { return false };
            match operator {
                "==" => left == right,
                "!=" => left != right,
                ">" => left > right,
                ">=" => left >= right,
                "<" => left < right,
                _ => left <= right,
            }
        };
        match self {
            Self::Flag(index) => world.flags[*index] == Some(true),
            Self::Constant(value) => *value,
            Self::Number(operator, index, value) => {
                compare(operator, world.numbers[*index], Some(*value))
            }
            Self::Fields(operator, left, right) => {
                compare(operator, world.numbers[*left], world.numbers[*right])
            }
            Self::Within(index, values) => {
                world.numbers[*index].is_some_and(|value| values.contains(&value))
            }
            Self::IsNull(index, is_null) => world.numbers[*index].is_none() == *is_null,
            Self::Not(inner) => !inner.run(world),
            Self::All(items) => items.iter().all(|item| item.run(world)),
            Self::Any(items) => items.iter().any(|item| item.run(world)),
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let operator = || proptest::sample::select(&OPERATORS[..]);
    let leaf = prop_oneof![
        (0..NUMBERS).prop_map(Tree::Flag),
        any::<bool>().prop_map(Tree::Constant),
        (operator(), 0..NUMBERS, -8_i64..8).prop_map(|(o, i, v)| Tree::Number(o, i, v)),
        (operator(), 0..NUMBERS, 0..NUMBERS).prop_map(|(o, l, r)| Tree::Fields(o, l, r)),
        (0..NUMBERS, prop::collection::vec(-8_i64..8, 1..4)).prop_map(|(i, v)| Tree::Within(i, v)),
        (0..NUMBERS, any::<bool>()).prop_map(|(i, v)| Tree::IsNull(i, v)),
    ];
    leaf.prop_recursive(4, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|item| Tree::Not(Box::new(item))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Tree::All),
            prop::collection::vec(inner, 2..4).prop_map(Tree::Any),
        ]
    })
}

fn world() -> impl Strategy<Value = World> {
    (
        prop::array::uniform3(any::<Option<bool>>()),
        prop::array::uniform3(prop::option::of(-8_i64..8)),
    )
        .prop_map(|(flags, numbers)| World { flags, numbers })
}

/// Texts that are nearly expressions.
fn near_expression() -> impl Strategy<Value = String> {
    const PIECES: [&str; 36] = [
        "entity",
        "actor",
        "org",
        "now",
        "context",
        ".",
        ".a",
        ".total",
        "==",
        "!=",
        ">",
        ">=",
        "<",
        "<=",
        " in ",
        " contains ",
        "&&",
        "||",
        "!",
        "(",
        ")",
        "((",
        "))",
        "[",
        "]",
        ",",
        "'",
        "'x'",
        "\\",
        "null",
        "true",
        "false",
        "1",
        "-2.5",
        " ",
        "é",
    ];
    prop::collection::vec(proptest::sample::select(&PIECES[..]), 0..60).prop_map(|p| p.concat())
}

/// The properties of any text.
fn check_any_text(text: &str) -> Result<(), TestCaseError> {
    match Expression::parse(text) {
        Ok(parsed) => {
            prop_assert!(text.chars().count() <= CHARACTERS_MAX);
            prop_assert!(parsed.root.depth <= DEPTH_MAX);
            let mut steps = 0;
            parsed.root.visit_paths(&mut |path| steps += path.fields().len());
            prop_assert!(steps <= DEREFERENCES_MAX);
            let printed = parsed.to_string();
            if printed.chars().count() <= CHARACTERS_MAX {
                let again = Expression::parse(&printed);
                prop_assert_eq!(again.as_ref(), Ok(&parsed));
                prop_assert_eq!(again.unwrap().to_string(), printed);
            }
            let document = json!({"a": 1, "total": "x"});
            let _ = parsed.evaluate(&Scope::new(&document, jiff::Timestamp::UNIX_EPOCH));
            let _ = parsed.check(&schemas());
        }
        Err(error) => {
            let found = crate::diagnostic::Diagnostic::from(error);
            let shown = found.place.expression.clone().unwrap_or_default();
            let span = found.place.span.unwrap();
            prop_assert!(shown.get(span.start..span.end).is_some(), "{found:?}");
            let _ = found.render(None);
        }
    }
    if let Ok(template) = Template::parse(text) {
        let document = json!({"a": "{now}", "total": 1});
        let _ = template.render(&Scope::new(&document, jiff::Timestamp::UNIX_EPOCH));
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_parses_or_fails_within_the_limits(text in any::<String>()) {
        check_any_text(&text)?;
    }

    #[test]
    fn any_near_expression_parses_or_fails_within_the_limits(text in near_expression()) {
        check_any_text(&text)?;
    }

    #[test]
    fn printing_and_evaluation_agree_with_a_second_interpreter(tree in tree(), world in world()) {
        let text = tree.write();
        match Expression::parse(&text) {
            Ok(parsed) => {
                check_any_text(&text)?;
                let document = world.document();
                let scope = Scope::new(&document, jiff::Timestamp::UNIX_EPOCH);
                let found = parsed.evaluate(&scope).unwrap();
                prop_assert_eq!(found.is_true(), tree.run(&world), "{}", found);
            }
            Err(error) => prop_assert!(
                [EXPRESSION_TOO_LONG, EXPRESSION_TOO_DEEP, EXPRESSION_TOO_MANY_DEREFERENCES]
                    .contains(&error.code()),
                "{error}"
            ),
        }
    }
}
