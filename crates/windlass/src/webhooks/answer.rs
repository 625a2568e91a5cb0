//! Details of an answer beyond its status: when to come back, and a little of its text.

use std::time::Duration;

use reqwest::header::RETRY_AFTER;

use crate::outbound::Answer;

/// How much of an answer is read to show some of it.
pub(super) const READ_BYTES_MAX: usize = 4 * 1024;
/// How much of an answer is shown.
const SHOWN_CHARS_MAX: usize = 500;
/// How long a receiver can ask to be left alone.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the other side asks to wait: seconds or a date, of the statuses that speak of load.
pub(crate) fn retry_after(answer: &Answer) -> Option<Duration> {
    if !matches!(answer.status, 429 | 503) {
        return None;
    }
    let text = answer.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp().as_microsecond();
            windlass_kernel::Timestamp::from_micros(date).since(crate::address::system_clock())
        }
    };
    Some(asked.min(WAIT_MAX))
}

/// The beginning of an answer as a text for people, on one line.
pub(crate) fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, retry_after: &str) -> Answer {
        let headers = [(RETRY_AFTER, retry_after.parse().unwrap())].into_iter().collect();
        Answer { status, headers, body: Vec::new(), is_cut: false }
    }

    #[test]
    fn who_is_busy_says_for_how_long() {
        let seconds = Duration::from_secs;
        assert_eq!(retry_after(&answer(429, "120")), Some(seconds(120)));
        assert_eq!(retry_after(&answer(503, " 0 ")), Some(seconds(0)));
        assert_eq!(retry_after(&answer(503, "99999999")), Some(WAIT_MAX));
        assert_eq!(retry_after(&answer(503, "soon")), None);
        assert_eq!(retry_after(&answer(503, "-5")), None);
        assert_eq!(retry_after(&answer(500, "120")), None);
        let past = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(retry_after(&answer(503, past)), Some(Duration::ZERO));
        let in_an_hour = crate::address::system_clock().plus(seconds(3_600));
        let in_an_hour = jiff::Timestamp::from_microsecond(in_an_hour.as_micros()).unwrap();
        let date = jiff::fmt::rfc2822::DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&in_an_hour)
            .unwrap();
        let asked = retry_after(&answer(503, &date)).unwrap();
        assert!(asked > seconds(3_500) && asked <= seconds(3_600), "{date} {asked:?}");
    }

    #[test]
    fn little_of_an_answer_is_shown() {
        assert_eq!(excerpt(b"no\r\nway\0\xff"), "no  way \u{fffd}");
        assert_eq!(excerpt("ä".repeat(2_000).as_bytes()).chars().count(), SHOWN_CHARS_MAX);
    }
}
