//! Formats times relative to now ("3 min ago", "in 2 h") or as a clock time.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::sanitize_line;

pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Formats an API time relative to now. Returns other text unchanged.
pub(crate) fn ago(text: &str) -> String {
    match parse(text) {
        Some(time) => relative(time, now()),
        None => sanitize_line(text),
    }
}

/// The remaining time until an API time; `None` if it has passed or is not a time.
pub(crate) fn time_until(text: &str) -> Option<String> {
    let (time, now) = (parse(text)?, now());
    (time > now).then(|| relative(time, now))
}

/// Formats an API time in UTC as a time of day, with the date if it is not today.
pub(crate) fn clock(text: &str) -> String {
    match parse(text) {
        Some(time) => stamp(time, now()),
        None => sanitize_line(text),
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
    // Rounds to the nearest unit: 24 hours minus one second is "24 h", not "23 h".
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
    fn times_are_relative_to_now() {
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
    fn the_date_is_omitted_if_it_is_today() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-03-02T00:30:00Z");
        assert_eq!(stamp(at("2026-03-02T00:29:59.5Z"), now), "00:29:59.500Z");
        assert_eq!(stamp(at("2026-03-01T23:30:00Z"), now), "2026-03-01 23:30:00.000Z");
    }
}
