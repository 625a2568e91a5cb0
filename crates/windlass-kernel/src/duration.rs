//! Durations as people write them ("10 seconds", "3 days", `250` ms), with microsecond precision.

use std::{fmt::Write as _, time::Duration};

use jiff::{Span, SpanRelativeTo};

/// The longest duration that is accepted: 3650 days, about ten years.
pub const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

/// The reasons why a text or number is not a duration.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no text.
    #[error("the duration is empty; write one such as \"10 seconds\", \"1h 30m\" or \"250\" (ms)")]
    Empty,
    /// The text cannot be read.
    #[error(
        "{text:?} is not a duration: {reason}; write one such as \"10 seconds\", \"1h 30m\", \
         \"PT10S\" or \"250\" (ms)"
    )]
    Syntax {
        /// The text, shortened if it is long.
        text: String,
        /// The reason.
        reason: String,
    },
    /// The text counts in months or years.
    #[error(
        "{text:?} uses months or years, whose length depends on the date; \
         write days or weeks, or wait until a date"
    )]
    CalendarUnit {
        /// The text, shortened if it is long.
        text: String,
    },
    /// The duration is below zero.
    #[error("{text:?} is a negative duration; write zero or more")]
    Negative {
        /// The text or number.
        text: String,
    },
    /// The duration is above [`DURATION_MAX`].
    #[error("{text:?} is longer than the limit of 3650 days; write a shorter duration")]
    TooLong {
        /// The text or number, shortened if it is long.
        text: String,
    },
}

/// Reads a duration: "10 seconds", "3 days", "1h 30m", "1.5 hours", "PT10S", or "250" for ms.
///
/// A day is 24 hours and a week is 7 days. Fractions of a microsecond are rounded up, so that a
/// positive duration never becomes zero.
///
/// ```
/// # use windlass_kernel::duration::parse_duration;
/// # use std::time::Duration;
/// assert_eq!(parse_duration("1h 30m")?, Duration::from_secs(5400));
/// # Ok::<(), windlass_kernel::duration::Error>(())
/// ```
///
/// # Errors
///
/// The text is no duration, is negative, counts in months or years, or is longer than 3650 days.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(Error::Empty);
    }
    if let Some(result) = parse_millis(trimmed) {
        return result;
    }
    // jiff reads "1,000 ms" as one millisecond with a decimal comma; most people mean one second.
    let digit_comma_digit =
        |w: &[u8]| w[0].is_ascii_digit() && w[1] == b',' && w[2].is_ascii_digit();
    if trimmed.as_bytes().windows(3).any(digit_comma_digit) {
        return Err(Error::Syntax {
            text: shorten(text),
            reason: "a comma inside a number is ambiguous".into(),
        });
    }
    match trimmed.parse() {
        Ok(span) => from_span(&span, text),
        Err(error) => Err(why_unreadable(text, trimmed, &error)),
    }
}

/// Formats a duration in a short form that [`parse_duration`] can read: "1h 30m", "250ms", "3d".
pub fn format_duration(duration: Duration) -> String {
    let duration = round_up_to_micros(duration);
    let (seconds, micros) = (duration.as_secs(), u64::from(duration.subsec_micros()));
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (micros / 1_000, "ms"),
        (micros % 1_000, "us"),
    ];
    let mut text = String::new();
    for (amount, unit) in parts.into_iter().filter(|(amount, _)| *amount > 0) {
        let space = if text.is_empty() { "" } else { " " };
        // Writing to a String does not fail.
        let _ = write!(text, "{space}{amount}{unit}");
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

/// The types that are accepted as a duration: a text, a [`Duration`], or milliseconds.
///
/// Floats do not implement it: `1.5` could mean seconds or milliseconds.
pub trait IntoDuration {
    /// Converts to a duration within the bounds of [`parse_duration`].
    ///
    /// # Errors
    ///
    /// As [`parse_duration`].
    fn into_duration(self) -> Result<Duration, Error>;
}

impl IntoDuration for &str {
    fn into_duration(self) -> Result<Duration, Error> {
        parse_duration(self)
    }
}

impl IntoDuration for String {
    fn into_duration(self) -> Result<Duration, Error> {
        parse_duration(&self)
    }
}

impl IntoDuration for &String {
    fn into_duration(self) -> Result<Duration, Error> {
        parse_duration(self)
    }
}

impl IntoDuration for Duration {
    fn into_duration(self) -> Result<Duration, Error> {
        bounded(self).ok_or_else(|| Error::TooLong { text: format_duration(self) })
    }
}

impl IntoDuration for u64 {
    fn into_duration(self) -> Result<Duration, Error> {
        Duration::from_millis(self).into_duration()
    }
}

impl IntoDuration for u32 {
    fn into_duration(self) -> Result<Duration, Error> {
        u64::from(self).into_duration()
    }
}

impl IntoDuration for i64 {
    fn into_duration(self) -> Result<Duration, Error> {
        let millis =
            u64::try_from(self).map_err(|_| Error::Negative { text: format!("{self} ms") })?;
        millis.into_duration()
    }
}

impl IntoDuration for i32 {
    fn into_duration(self) -> Result<Duration, Error> {
        i64::from(self).into_duration()
    }
}

/// Parses a bare integer as milliseconds. Returns `None` for any other text.
fn parse_millis(text: &str) -> Option<Result<Duration, Error>> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // A text of digits fails to parse only if the number is too large.
    let result = match text.parse::<i64>() {
        Ok(millis) => millis.into_duration(),
        Err(_) if text.starts_with('-') => Err(Error::Negative { text: shorten(text) }),
        Err(_) => Err(Error::TooLong { text: shorten(text) }),
    };
    Some(result)
}

fn from_span(span: &Span, text: &str) -> Result<Duration, Error> {
    let text = || shorten(text);
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(Error::CalendarUnit { text: text() });
    }
    if span.is_negative() {
        return Err(Error::Negative { text: text() });
    }
    span.to_duration(SpanRelativeTo::days_are_24_hours())
        .and_then(Duration::try_from)
        .ok()
        .and_then(bounded)
        .ok_or_else(|| Error::TooLong { text: text() })
}

/// jiff's error does not say whether the text or the size of its numbers is wrong. If the same text
/// with small numbers parses, the numbers were too large.
fn why_unreadable(text: &str, trimmed: &str, error: &jiff::Error) -> Error {
    match with_small_numbers(trimmed).parse::<Span>() {
        Ok(span) => match from_span(&span, text) {
            Ok(_) => Error::TooLong { text: shorten(text) },
            Err(error) => error,
        },
        Err(_) => Error::Syntax { text: shorten(text), reason: shorten(&error.to_string()) },
    }
}

/// Replaces each run of ten or more digits by a 1, except after a decimal point.
fn with_small_numbers(text: &str) -> String {
    const DIGITS_LARGE: usize = 10;
    let mut small = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(start);
        let (digits, after) =
            from.split_at(from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len()));
        small.push_str(before);
        let is_large = digits.len() >= DIGITS_LARGE && !before.ends_with(['.', ',']);
        small.push_str(if is_large { "1" } else { digits });
        rest = after;
    }
    small.push_str(rest);
    small
}

fn bounded(duration: Duration) -> Option<Duration> {
    let duration = round_up_to_micros(duration);
    (duration <= DURATION_MAX).then_some(duration)
}

fn round_up_to_micros(duration: Duration) -> Duration {
    let rest = duration.subsec_nanos() % 1_000;
    if rest == 0 {
        return duration;
    }
    duration.saturating_add(Duration::from_nanos(u64::from(1_000 - rest)))
}

/// Cuts a text that an error message quotes.
fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 120;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_common_spellings() {
        #[track_caller]
        fn check(text: &str, micros: u64) {
            let got = parse_duration(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(got, Duration::from_micros(micros), "{text}");
        }
        const SECOND: u64 = 1_000_000;
        const HOUR: u64 = 3_600 * SECOND;
        check("10 seconds", 10 * SECOND);
        check("1 second", SECOND);
        check("10s", 10 * SECOND);
        check("10 minutes", HOUR / 6);
        check("3 days", 72 * HOUR);
        check("1 week", 168 * HOUR);
        check("1w 2d", 216 * HOUR);
        check("1h 30m", HOUR + HOUR / 2);
        check("1h30m", HOUR + HOUR / 2);
        check("1 hour, 30 minutes", HOUR + HOUR / 2);
        check("1.5 hours", HOUR + HOUR / 2);
        check("01:30:00", HOUR + HOUR / 2);
        check("500 ms", SECOND / 2);
        check("0.5 ms", 500);
        check("20us", 20);
        check("20 µs", 20);
        check("PT10S", 10 * SECOND);
        check("P1DT12H", 36 * HOUR);
        check("P1W", 168 * HOUR);
        check("250", 250_000);
        check("007", 7_000);
        check("  5 s\n", 5 * SECOND);
        check("0", 0);
        check("0 days", 0);
        check("1 ns", 1);
        check("1001 ns", 2);
        check("3650 days", 3650 * 24 * HOUR);
    }

    #[test]
    fn errors_name_the_text_and_a_fix() {
        #[track_caller]
        fn check(text: &str, expect: &[&str]) {
            let error = parse_duration(text).unwrap_err().to_string();
            for part in expect {
                assert!(error.contains(part), "{part:?} is not in: {error}");
            }
            assert!(error.len() < 800, "{error}");
        }
        let form = "write one such as \"10 seconds\"";
        check("", &["empty", form]);
        check(" \t", &["empty", form]);
        check("soon", &["\"soon\" is not a duration", form]);
        check("10 parsecs", &["\"10 parsecs\"", form]);
        check("1.5", &["\"1.5\" is not", form]);
        check("1.5 days", &["\"1.5 days\" is not", form]);
        check("1M", &["\"1M\" is not", form]);
        check("1,000 ms", &["\"1,000 ms\"", "comma"]);
        check("forever", &["\"forever\"", form]);
        check("NaN s", &["\"NaN s\"", form]);
        check("1 month", &["\"1 month\"", "depends on the date", "days or weeks"]);
        check("2 years 1 day", &["\"2 years 1 day\"", "depends on the date"]);
        check("P1M", &["\"P1M\"", "depends on the date"]);
        check("-5 seconds", &["\"-5 seconds\"", "negative"]);
        check("5 seconds ago", &["\"5 seconds ago\"", "negative"]);
        check("-250", &["\"-250 ms\"", "negative"]);
        check("-99999999999999999999", &["-99999999999999999999", "negative"]);
        check("3651 days", &["\"3651 days\"", "3650 days"]);
        check("99999999999999999999", &["99999999999999999999", "3650 days"]);
        check("99999999999999999 seconds", &["99999999999999999 seconds", "3650 days"]);
        check("99999999999999999999999 weeks", &["99999999999999999999999 weeks", "3650 days"]);
        check("P99999999999999D", &["\"P99999999999999D\"", "3650 days"]);
        check("-99999999999999999 s", &["\"-99999999999999999 s\"", "negative"]);
        check("99999999999999999 years", &["depends on the date"]);
        check("1.99999999999999 s", &["\"1.99999999999999 s\" is not", form]);
        check("99999999999999999 parsecs", &["parsecs\" is not", form]);
        check(&"é".repeat(100_000), &["ééé", "…"]);
        check(&"9".repeat(100_000), &["999", "…", "3650 days"]);
    }

    #[test]
    fn takes_texts_durations_and_milliseconds() {
        #[track_caller]
        fn check(value: impl IntoDuration, expect: Result<u64, &str>) {
            match (value.into_duration(), expect) {
                (Ok(got), Ok(millis)) => assert_eq!(got, Duration::from_millis(millis)),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (got, expect) => panic!("{got:?} is not {expect:?}"),
            }
        }
        check("2s", Ok(2_000));
        let text = String::from("2s");
        check(&text, Ok(2_000));
        check(text, Ok(2_000));
        check(Duration::from_secs(2), Ok(2_000));
        check(500, Ok(500));
        check(500_u32, Ok(500));
        check(500_u64, Ok(500));
        check(500_i64, Ok(500));
        check(-1, Err("\"-1 ms\" is a negative duration"));
        check(i64::MIN, Err("negative"));
        check(u64::MAX, Err("3650 days"));
        check(Duration::MAX, Err("3650 days"));
        let above = DURATION_MAX + Duration::from_nanos(1);
        check(above, Err("3650 days"));
    }

    #[test]
    fn formats_the_short_form() {
        #[track_caller]
        fn check(duration: Duration, expect: &str) {
            assert_eq!(format_duration(duration), expect);
        }
        check(Duration::ZERO, "0s");
        check(Duration::from_millis(250), "250ms");
        check(Duration::from_secs(5_400), "1h 30m");
        check(Duration::from_secs(3 * 86_400), "3d");
        check(Duration::from_micros(1_500), "1ms 500us");
        check(Duration::from_nanos(1), "1us");
        check(Duration::new(0, 999_999_999), "1s");
        check(Duration::from_secs(90_061), "1d 1h 1m 1s");
        check(Duration::MAX, "213503982334601d 7h 15s 999ms 999us");
    }

    proptest! {
        #[test]
        fn the_short_form_parses_back(micros in 0..=DURATION_MAX.as_micros() as u64) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration);
        }

        #[test]
        fn no_text_causes_a_panic(text in any::<String>(), number in "-?P?T?[0-9., ]{0,40}[a-zA-Z ]{0,8}") {
            let _ = parse_duration(&text);
            let _ = parse_duration(&number);
        }
    }
}
