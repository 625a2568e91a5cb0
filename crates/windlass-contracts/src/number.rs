//! Numbers of contracts: integers and fixed decimals, never doubles.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Number;

/// The largest magnitude of an integer: every JSON reader keeps the integers up to 2^53 − 1.
pub const INTEGER_MAX: i64 = (1 << 53) - 1;
/// The most significant digits of a number with a fraction. A double keeps fifteen.
pub const DIGITS_MAX: usize = 15;

/// A number that JSON keeps exactly: an integer up to [`INTEGER_MAX`], or a decimal with at most
/// [`DIGITS_MAX`] significant digits.
///
/// ```
/// use windlass_contracts::number::Decimal;
///
/// let price: Decimal = "12.50".parse().unwrap();
/// assert_eq!(price, "12.5".parse().unwrap());
/// assert!(price > Decimal::from(12_i32));
/// assert!("9007199254740993".parse::<Decimal>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal {
    // The value is `unscaled / 10^scale`. The fraction has no trailing zero, so that equal numbers
    // have equal members.
    unscaled: i64,
    scale: u8,
}

/// A number that the language does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a JSON number.
    #[error("{0:?} is not a number")]
    NotANumber(String),
    /// The number has too many digits.
    #[error(
        "the number {0} could lose digits; the limit is ±{INTEGER_MAX} for integers and \
         {DIGITS_MAX} digits for decimals"
    )]
    Inexact(String),
}

impl Decimal {
    /// Zero.
    pub const ZERO: Self = Self { unscaled: 0, scale: 0 };

    /// Reads a number that `serde_json` has parsed.
    ///
    /// # Errors
    /// Fails if the number may have lost digits.
    pub fn from_json(number: &Number) -> Result<Self, Error> {
        number.to_string().parse()
    }

    /// The number as a JSON number with the same value.
    pub fn to_json(self) -> Number {
        if self.scale == 0 {
            return self.unscaled.into();
        }
        // At most fifteen digits: the text reads as the nearest double, which prints as that text.
        self.to_string()
            .parse()
            .ok()
            .and_then(Number::from_f64)
            .unwrap_or_else(|| self.unscaled.into())
    }

    /// The number of digits of the fraction.
    pub const fn scale(self) -> u32 {
        self.scale as u32
    }

    /// The number times 10^`scale`, if that is an integer. `scale` is at most [`DIGITS_MAX`].
    pub fn in_units(self, scale: u32) -> Option<i128> {
        if scale as usize > DIGITS_MAX {
            return None;
        }
        let more = scale.checked_sub(self.scale())?;
        Some(i128::from(self.unscaled) * 10_i128.pow(more))
    }

    /// The number that is `units` / 10^`scale`, if the language accepts it.
    pub fn from_units(units: i128, scale: u32) -> Option<Self> {
        let mut units = units;
        let mut scale = scale;
        while scale > 0 && units % 10 == 0 {
            units /= 10;
            scale -= 1;
        }
        let unscaled = i64::try_from(units).ok()?;
        let fits = if scale == 0 {
            unscaled.unsigned_abs() <= INTEGER_MAX.unsigned_abs()
        } else {
            scale as usize <= DIGITS_MAX && unscaled.unsigned_abs() < 10_u64.pow(DIGITS_MAX as u32)
        };
        fits.then_some(Self { unscaled, scale: scale as u8 })
    }
}

impl FromStr for Decimal {
    type Err = Error;

    /// Reads a JSON number: sign, digits, fraction, exponent.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::NotANumber(shorten(text));
        let inexact = || Error::Inexact(shorten(text));
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent).ok_or_else(wrong)?),
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return Err(wrong()),
            None => (mantissa, ""),
        };
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty()
            || (whole.len() > 1 && whole.starts_with('0'))
            || !is_digits(whole)
            || !is_digits(fraction)
        {
            return Err(wrong());
        }
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Ok(Self::ZERO);
        }
        let kept = digits.trim_end_matches('0');
        // The value is kept × 10^power.
        let power =
            i64::from(exponent) - fraction.len() as i64 + (digits.len() - kept.len()) as i64;
        if kept.len() > 16 || !(-(DIGITS_MAX as i64)..=16).contains(&power) {
            return Err(inexact());
        }
        let unscaled: i128 = kept.parse().map_err(|_| wrong())?;
        let (units, scale) = match u32::try_from(power) {
            Ok(power) => (unscaled * 10_i128.pow(power), 0),
            Err(_) => (unscaled, power.unsigned_abs() as u32),
        };
        Self::from_units(if negative { -units } else { units }, scale).ok_or_else(inexact)
    }
}

/// Exponents beyond any accepted number are cut, so that arithmetic with them cannot overflow.
fn parse_exponent(text: &str) -> Option<i32> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value = digits.parse::<i32>().unwrap_or(1_000_000).min(1_000_000);
    Some(if negative { -value } else { value })
}

fn shorten(text: &str) -> String {
    const SHOWN_MAX: usize = 40;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

impl From<i32> for Decimal {
    fn from(value: i32) -> Self {
        Self { unscaled: value.into(), scale: 0 }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        // At most 16 digits times 10^15, which an i128 holds.
        let aligned = |number: &Self, scale: u8| {
            i128::from(number.unscaled) * 10_i128.pow(u32::from(scale - number.scale))
        };
        let scale = self.scale.max(other.scale);
        aligned(self, scale).cmp(&aligned(other, scale))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scale == 0 {
            return write!(f, "{}", self.unscaled);
        }
        let digits = self.unscaled.unsigned_abs().to_string();
        let scale = usize::from(self.scale);
        let digits = format!("{digits:0>width$}", width = scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        let sign = if self.unscaled < 0 { "-" } else { "" };
        write!(f, "{sign}{whole}.{fraction}")
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(&Number::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl schemars::JsonSchema for Decimal {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Decimal".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "number"})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_exactly_or_refused() {
        for (text, expect) in [
            ("0", Some("0")),
            ("-0", Some("0")),
            ("-0.0", Some("0")),
            ("12.50", Some("12.5")),
            ("-0.05", Some("-0.05")),
            ("1e3", Some("1000")),
            ("1.5E+2", Some("150")),
            ("15e-1", Some("1.5")),
            ("1000000000000000", Some("1000000000000000")),
            ("1e15", Some("1000000000000000")),
            ("9007199254740991", Some("9007199254740991")),
            ("-9007199254740991", Some("-9007199254740991")),
            ("9007199254740992", None),
            ("9007199254740993", None),
            ("1e16", None),
            ("1e999999999999", None),
            ("1e-999999999999", None),
            ("123456789012.345", Some("123456789012.345")),
            ("123456789012.3456", None),
            ("0.000000000000001", Some("0.000000000000001")),
            ("0.0000000000000001", None),
            ("0.10000000000000000001", None),
            ("01", None),
            ("1.", None),
            (".5", None),
            ("+1", None),
            ("1e", None),
            ("0x10", None),
            ("", None),
            ("-", None),
            ("NaN", None),
        ] {
            let found = text.parse::<Decimal>().ok().map(|number| number.to_string());
            assert_eq!(found.as_deref(), expect, "{text}");
        }
    }

    #[test]
    fn comparison_is_exact() {
        for (left, right, expect) in [
            ("0.1", "0.10", Ordering::Equal),
            ("1", "1.0", Ordering::Equal),
            ("0.3", "0.30000000000001", Ordering::Less),
            ("-0.5", "-0.4", Ordering::Less),
            ("9007199254740991", "90071992547409.1", Ordering::Greater),
            ("-1", "0.000000000000001", Ordering::Less),
        ] {
            let [left, right] = [left, right].map(|text| text.parse::<Decimal>().unwrap());
            assert_eq!(left.cmp(&right), expect, "{left} {right}");
            assert_eq!(right.cmp(&left), expect.reverse(), "{left} {right}");
        }
    }

    proptest! {
        #[test]
        fn json_keeps_every_accepted_number(units in -999_999_999_999_999_i64..=999_999_999_999_999,
                                            scale in 0_u32..=15) {
            let number = Decimal::from_units(units.into(), scale).unwrap();
            prop_assert_eq!(number.to_string().parse::<Decimal>().unwrap(), number);
            let text = serde_json::to_string(&number).unwrap();
            prop_assert_eq!(serde_json::from_str::<Decimal>(&text).unwrap(), number);
        }

        #[test]
        fn reading_never_panics(text in "[-+0-9.eE]{0,30}") {
            let _ = text.parse::<Decimal>();
        }
    }
}
