//! Canonical JSON (RFC 8785): one byte string for one JSON value, so that hashes can be recomputed.

mod plain;

use serde::Serialize;

pub(crate) use plain::Plain;

/// The deepest nesting that [`to_canonical`] writes, which is the deepest that `serde_json` parses.
pub const DEPTH_READABLE_MAX: usize = 127;

/// The reasons why a value has no canonical form.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The value does not serialise to JSON, or an object in it has the same key twice.
    #[error(
        "the value has no canonical JSON form: {0}; use string keys, each once, and finite numbers"
    )]
    NotJson(#[source] serde_json::Error),
    /// The integer would change, because RFC 8785 reads all numbers as doubles.
    #[error(
        "the integer {0} would lose digits as a canonical JSON number (beyond 2^53 most do); \
         write it as a string"
    )]
    InexactInteger(String),
    /// The value nests deeper than `serde_json` parses.
    #[error("the value nests {depth} levels deep, the limit is {max}; flatten it")]
    TooDeep {
        /// Levels of arrays and objects in the value.
        depth: usize,
        /// The limit.
        max: usize,
    },
}

/// Writes a value as RFC 8785 canonical JSON: sorted keys, no spaces, one form for each number.
///
/// The result always satisfies [`is_canonical`]. A value that would change on the way is refused.
/// `serde_json` causes one exception: it writes a NaN or an infinity inside a struct or a list as
/// `null`.
pub fn to_canonical<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let bytes = serde_json_canonicalizer::to_vec(&value).map_err(Error::NotJson)?;
    check_depth(&bytes, DEPTH_READABLE_MAX)
        .map_err(|depth| Error::TooDeep { depth, max: DEPTH_READABLE_MAX })?;
    if may_have_rounded(&bytes) {
        let value = serde_json::to_value(value).map_err(Error::NotJson)?;
        if let Some(integer) = first_inexact_integer(&value) {
            return Err(Error::InexactInteger(integer));
        }
    }
    Ok(bytes)
}

/// As [`to_canonical`], and faster for most values: `serde_json` keeps the keys of a [`serde_json::Value`]
/// sorted, so the text that it writes usually is canonical already.
///
/// # Errors
///
/// As [`to_canonical`].
pub fn value_to_canonical(value: &serde_json::Value) -> Result<Vec<u8>, Error> {
    let text = serde_json::to_vec(value).map_err(Error::NotJson)?;
    if Plain::of(&text).is_some() { Ok(text) } else { to_canonical(value) }
}

/// Whether the bytes are JSON and exactly the bytes that [`to_canonical`] would write.
pub fn is_canonical(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(bytes)
        .is_ok_and(|value| serde_json_canonicalizer::to_vec(&value).is_ok_and(|own| own == bytes))
}

/// Checks how deep arrays and objects nest. Returns the depth if it is more than `max`.
///
/// A scalar has depth 0 and `[]` has depth 1. The scan needs constant space and does not validate
/// the JSON, so it can run before any recursive parser.
pub fn check_depth(bytes: &[u8], max: usize) -> Result<(), usize> {
    let mut depth = 0_usize;
    let mut deepest = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for &byte in bytes {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if deepest > max { Err(deepest) } else { Ok(()) }
}

/// Whether the canonical form keeps all digits of a number.
///
/// RFC 8785 writes the shortest text that gives the same double. Even 2^60, which is a double,
/// comes out as another integer. Floats are always exact in this sense.
pub(crate) fn is_exact(number: &serde_json::Number) -> bool {
    const DOUBLE_MAX: u64 = 1 << f64::MANTISSA_DIGITS;
    let magnitude = match (number.as_u64(), number.as_i64()) {
        (Some(n), _) => n,
        (None, Some(n)) => n.unsigned_abs(),
        (None, None) => return true,
    };
    magnitude <= DOUBLE_MAX
        || serde_json_canonicalizer::to_vec(number)
            .is_ok_and(|bytes| bytes == number.to_string().as_bytes())
}

/// A cheap test on the output. Ordinary values skip the walk over a second copy.
///
/// Integers below 10^15 are always exact. Longer ones have sixteen digits in a row, and those from
/// 10^21 on have an exponent. A string that looks like this costs only time.
fn may_have_rounded(canonical: &[u8]) -> bool {
    let mut digits = 0;
    for pair in canonical.windows(2) {
        if pair == b"e+" {
            return true;
        }
        digits = if pair[1].is_ascii_digit() { digits + 1 } else { 0 };
        if digits >= 15 {
            return true;
        }
    }
    false
}

fn first_inexact_integer(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Number(number) if !is_exact(number) => Some(number.to_string()),
        serde_json::Value::Array(items) => items.iter().find_map(first_inexact_integer),
        serde_json::Value::Object(map) => map.values().find_map(first_inexact_integer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    proptest! {
        #[test]
        fn plain_text_is_canonical(value in any_json()) {
            let text = serde_json::to_vec(&value).unwrap();
            if Plain::of(&text).is_some() {
                prop_assert_eq!(text, to_canonical(&value).unwrap());
            }
            let (fast, slow) = (value_to_canonical(&value), to_canonical(&value));
            prop_assert_eq!(fast.as_ref().ok(), slow.as_ref().ok());
            prop_assert_eq!(fast.is_err(), slow.is_err());
        }
    }

    /// Any JSON value, with numbers and strings that stress the canonical form.
    pub(crate) fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn canonical(value: &Value) -> String {
        String::from_utf8(to_canonical(value).unwrap()).unwrap()
    }

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn writes_one_form() {
        #[track_caller]
        fn check(json: &str, expect: &str) {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(canonical(&value), expect);
            assert!(is_canonical(expect.as_bytes()));
        }
        check(r#" {"b": 1, "a": {"d": 2, "c": 3}} "#, r#"{"a":{"c":3,"d":2},"b":1}"#);
        check("[3, 1, 2]", "[3,1,2]");
        check("1.0", "1");
        check("-0.0", "0");
        check("1e21", "1e+21");
        check("1e20", "100000000000000000000");
        check("9007199254740992", "9007199254740992");
        check("1152921504606846976.0", "1152921504606847000");
        check("1152921504606847000", "1152921504606847000");
        check("0.000001", "0.000001");
        check(r#""\u20ac\/\u0007\n\u0000""#, "\"€/\\u0007\\n\\u0000\"");
        // The RFC asks for UTF-16 order: the surrogates of 😀 sort before U+FB33.
        check(r#"{"\ufb33": 1, "😀": 2, "": 3}"#, "{\"\":3,\"😀\":2,\"\u{fb33}\":1}");
    }

    #[test]
    fn refuses_values_that_would_change() {
        #[track_caller]
        fn check<T: Serialize>(value: T, expect: &str) {
            let error = to_canonical(&value).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
        #[derive(Serialize)]
        struct Twice {
            a: u8,
            #[serde(flatten)]
            rest: serde_json::Map<String, Value>,
        }
        let rest = serde_json::Map::from_iter([("a".to_owned(), json!(2))]);
        check(Twice { a: 1, rest }, "duplicate object key");
        check(f64::NAN, "finite numbers");
        check(json!([9_007_199_254_740_993_u64]), "9007199254740993");
        check(json!({"a": u64::MAX}), "18446744073709551615");
        check(json!({"a": i64::MIN}), "write it as a string");
        check(1_u64 << 60, "1152921504606846976");
        check(u128::MAX, "no canonical JSON form");
        check(
            serde_json::from_str::<Value>(&nested(127)).map(|v| json!([v])).unwrap(),
            "nests 128 levels deep, the limit is 127",
        );
        // The exception in the doc comment of `to_canonical`.
        assert_eq!(to_canonical(&[f64::NAN]).unwrap(), b"[null]");
    }

    #[test]
    fn recognises_only_the_canonical_form() {
        #[track_caller]
        fn check(bytes: &[u8], expect: bool) {
            assert_eq!(is_canonical(bytes), expect, "{}", bytes.escape_ascii());
        }
        check(b"null", true);
        check(br#"{"a":1,"b":[]}"#, true);
        check(br#"{"b":1,"a":[]}"#, false);
        check(br#"{"a":1,"a":1}"#, false);
        check(br#"{"a": 1}"#, false);
        check(b"1.0", false);
        check(b"9007199254740993", false);
        check(b"1 ", false);
        check(b"", false);
        check(b"{", false);
        check(b"\"\xff\"", false);
        check(br#""\u0041""#, false);
    }

    #[test]
    fn measures_depth_without_parsing() {
        #[track_caller]
        fn check(json: &str, max: usize, expect: Result<(), usize>) {
            assert_eq!(check_depth(json.as_bytes(), max), expect, "{json}");
        }
        check("", 0, Ok(()));
        check("1", 0, Ok(()));
        check("[]", 0, Err(1));
        check(r#"[{"a":[1]},[]]"#, 3, Ok(()));
        check(r#"[{"a":[1]},[]]"#, 2, Err(3));
        check(r#""[[[[""#, 0, Ok(()));
        check(r#"["\"[[[", "\\", "]"]"#, 1, Ok(()));
        check(r#"["\\",[]]"#, 1, Err(2));
        check("]]]}}[", 1, Ok(()));
        check(&nested(200_000), 128, Err(200_000));
    }

    #[test]
    fn the_readable_depth_matches_serde_json() {
        let parses = |depth| serde_json::from_str::<Value>(&nested(depth)).is_ok();
        assert!(parses(DEPTH_READABLE_MAX));
        assert!(!parses(DEPTH_READABLE_MAX + 1));
    }

    proptest! {
        #[test]
        fn written_values_are_canonical(value in any_json()) {
            if let Ok(bytes) = to_canonical(&value) {
                prop_assert!(is_canonical(&bytes));
                let again: Value = serde_json::from_slice(&bytes).unwrap();
                prop_assert_eq!(to_canonical(&again).unwrap(), bytes);
            } else {
                prop_assert!(first_inexact_integer(&value).is_some());
            }
        }

        #[test]
        fn integers_read_back_the_same_or_are_refused(n in any::<i64>(), shift in 0_u32..20) {
            let value = json!({"n": [n >> shift]});
            match to_canonical(&value) {
                Ok(bytes) => {
                    prop_assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), value);
                }
                Err(_) => prop_assert!((n >> shift).unsigned_abs() > 1 << 53),
            }
        }
    }
}
