//! Times as people say them: "3 minutes ago", "in 2 hours".

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::plain_line;

/// This machine's clock.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Reads an RFC 3339 time.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// A time of the API relative to now; as it came if it is none.
pub(crate) fn ago(text: &str) -> String {
    match parse(text) {
        Some(time) => relative(time, now()),
        None => plain_line(text),
    }
}

/// The time of day in this machine's zone, for lines that come one after the other.
pub(crate) fn clock(text: &str) -> String {
    match parse(text) {
        Some(time) => time.to_zoned(TimeZone::system()).strftime("%H:%M:%S%.3f").to_string(),
        None => plain_line(text),
    }
}

fn relative(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - time.as_second();
    let (amount, past) = (seconds.unsigned_abs(), seconds >= 0);
    let text = match amount {
        0..=1 => return "now".to_owned(),
        2..=99 => format!("{amount} s"),
        100..=5_999 => format!("{} min", amount / 60),
        6_000..=172_799 => format!("{} h", amount / 3_600),
        _ => format!("{} days", amount / 86_400),
    };
    if past { format!("{text} ago") } else { format!("in {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_relative_to_now() {
        let now = Timestamp::from_second(10_000_000).unwrap();
        for (seconds, expect) in [
            (0, "now"),
            (-30, "30 s ago"),
            (45, "in 45 s"),
            (-300, "5 min ago"),
            (7_200, "in 2 h"),
            (-3 * 86_400, "3 days ago"),
        ] {
            let time = Timestamp::from_second(10_000_000 + seconds).unwrap();
            assert_eq!(relative(time, now), expect);
        }
    }
}
