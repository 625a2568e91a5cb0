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

/// How long until a time of the API; none if it is over, or no time.
pub(crate) fn left(text: &str) -> Option<String> {
    let (time, now) = (parse(text)?, now());
    (time > now).then(|| relative(time, now))
}

/// The time of day, with the date if it is another than today's, for lines that come one after the
/// other. In UTC, as the API has every time, in whole sentences too.
pub(crate) fn clock(text: &str) -> String {
    match parse(text) {
        Some(time) => stamp(time, now()),
        None => plain_line(text),
    }
}

fn stamp(time: Timestamp, now: Timestamp) -> String {
    let (time, now) = (time.to_zoned(TimeZone::UTC), now.to_zoned(TimeZone::UTC));
    let format = if time.date() == now.date() { "%H:%M:%S%.3fZ" } else { "%F %H:%M:%S%.3fZ" };
    time.strftime(format).to_string()
}

fn relative(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - time.as_second();
    let (amount, past) = (seconds.unsigned_abs(), seconds >= 0);
    // To the nearest: a day less a second is not 23 hours.
    let of = |unit: u64| (amount + unit / 2) / unit;
    let text = match amount {
        0..=1 => return "now".to_owned(),
        2..=99 => format!("{amount} s"),
        100..=5_999 => format!("{} min", of(60)),
        6_000..=172_799 => format!("{} h", of(3_600)),
        _ => format!("{} days", of(86_400)),
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
            (86_399, "in 24 h"),
            (-110, "2 min ago"),
        ] {
            let time = Timestamp::from_second(10_000_000 + seconds).unwrap();
            assert_eq!(relative(time, now), expect);
        }
    }

    #[test]
    fn a_time_has_its_date_unless_that_is_today() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-03-02T00:30:00Z");
        assert_eq!(stamp(at("2026-03-02T00:29:59.5Z"), now), "00:29:59.500Z");
        assert_eq!(stamp(at("2026-03-01T23:30:00Z"), now), "2026-03-01 23:30:00.000Z");
    }
}
