//! Tests of retry policies: examples of each rule, then properties of valid policies.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[track_caller]
fn check_delays(policy: &RetryPolicy, seconds: &[f64]) {
    policy.validate().unwrap();
    let delays: Vec<_> = (1..).map_while(|attempt| policy.next_delay(attempt, 7)).collect();
    let expect: Vec<_> = seconds.iter().map(|s| Duration::from_secs_f64(*s)).collect();
    assert_eq!(delays, expect);
}

fn doubling() -> RetryPolicy {
    RetryPolicy::exponential(RetryLimit::Times(4), SECOND).with_max_delay(SECOND * 60)
}

#[test]
fn delays_follow_the_backoff() {
    let times = RetryLimit::Times;
    check_delays(&RetryPolicy::none(), &[]);
    check_delays(&RetryPolicy::constant(times(3), SECOND), &[1.0, 1.0, 1.0]);
    check_delays(&RetryPolicy::constant(times(2), Duration::ZERO), &[0.0, 0.0]);
    check_delays(&RetryPolicy::linear(times(3), SECOND), &[1.0, 2.0, 3.0]);
    check_delays(&RetryPolicy::exponential(times(4), SECOND), &[1.0, 2.0, 4.0, 8.0]);
    check_delays(&doubling(), &[1.0, 2.0, 4.0, 8.0]);
    let capped = RetryPolicy::linear(times(4), SECOND).with_max_delay(SECOND * 5 / 2);
    check_delays(&capped, &[1.0, 2.0, 2.5, 2.5]);
    // The cap includes jitter.
    check_delays(
        &RetryPolicy::constant(times(2), SECOND).with_max_delay(SECOND).with_jitter(1.0),
        &[1.0, 1.0],
    );
    let by_three = RetryPolicy {
        backoff: Backoff::Exponential { factor: 1.5 },
        ..RetryPolicy::exponential(times(3), SECOND)
    };
    check_delays(&by_three, &[1.0, 1.5, 2.25]);
    let hour = 3_600.0;
    let webhooks = RetryPolicy::webhooks().with_jitter(0.0);
    let hours = [2.0, 5.0, 10.0, 14.0, 20.0, 24.0].map(|hours| hours * hour);
    check_delays(&webhooks, &[&[5.0, 300.0, 1_800.0][..], &hours].concat());
    // The last delay repeats, and no delay is shorter than the policy's own.
    let listed = RetryPolicy::listed([Duration::ZERO, SECOND * 3]);
    check_delays(&RetryPolicy { limit: times(4), delay: SECOND, ..listed }, &[1.0, 3.0, 3.0, 3.0]);
}

#[test]
fn huge_attempts_saturate() {
    #[track_caller]
    fn check(policy: RetryPolicy, expect: Option<Duration>) {
        assert_eq!(policy.next_delay(u32::MAX, 1), expect);
    }
    let forever = RetryLimit::Forever;
    check(RetryPolicy::exponential(forever, SECOND), Some(DELAY_MAX));
    check(RetryPolicy::exponential(forever, Duration::ZERO), Some(Duration::ZERO));
    check(RetryPolicy::exponential(forever, DELAY_MAX).with_jitter(1.0), Some(DELAY_MAX));
    check(RetryPolicy::linear(forever, DELAY_MAX), Some(DELAY_MAX));
    check(RetryPolicy::constant(forever, SECOND), Some(SECOND));
    check(RetryPolicy::constant(RetryLimit::Times(u32::MAX), SECOND), Some(SECOND));
    check(RetryPolicy::constant(RetryLimit::Times(u32::MAX - 1), SECOND), None);
    // Attempts count from 1; 0 is treated as 1.
    assert_eq!(doubling().next_delay(0, 1), Some(SECOND));
}

#[test]
fn attempts_count_the_first_one() {
    #[track_caller]
    fn check(policy: RetryPolicy, expect: Option<u32>) {
        assert_eq!(policy.attempts_max(), expect);
    }
    check(RetryPolicy::none(), Some(1));
    check(doubling(), Some(5));
    check(RetryPolicy::constant(RetryLimit::Times(u32::MAX), SECOND), Some(u32::MAX));
    check(RetryPolicy::constant(RetryLimit::Forever, SECOND), None);
}

#[test]
fn unit_is_splitmix64() {
    // The first three outputs of the reference generator for seed 1234567.
    let reference = [6457827717110365317_u64, 3203168211198807973, 9817491932198370423];
    for (attempt, output) in (1..).zip(reference) {
        assert_eq!(unit(1_234_567, attempt), (output >> 11) as f64 / 2_f64.powi(53));
    }
}

#[test]
fn jitter_spreads_over_seeds() {
    let policy = RetryPolicy::constant(RetryLimit::Forever, SECOND).with_jitter(0.5);
    let mut quarters = [0; 4];
    for seed in 0..1_000 {
        let extra = policy.next_delay(1, seed).unwrap() - SECOND;
        quarters[(extra.as_micros() * 4 / 500_000) as usize] += 1;
    }
    assert!(quarters.iter().all(|n| (200..300).contains(n)), "{quarters:?}");
}

#[test]
fn jitter_spreads_delays_at_the_cap() {
    let policy = RetryPolicy::exponential(RetryLimit::Forever, SECOND)
        .with_max_delay(SECOND * 60)
        .with_jitter(0.5);
    let delays: Vec<Duration> =
        (0..1_000).map(|seed| policy.next_delay(20, seed).unwrap()).collect();
    assert!(delays.iter().all(|delay| (SECOND * 40..=SECOND * 60).contains(delay)));
    let below = delays.iter().filter(|delay| **delay < SECOND * 50).count();
    assert!((400..600).contains(&below), "{below} of 1,000 are in the lower half");
}

#[test]
fn decides() {
    let policy = RetryPolicy::constant(RetryLimit::Times(2), SECOND)
        .with_max_delay(SECOND * 2)
        .with_non_retryable(["CardDeclined"]);
    let check = |attempt, name, retryable, after: Option<u64>, expect| {
        let after = after.map(Duration::from_secs);
        assert_eq!(policy.decide(attempt, name, retryable, after, 0), expect);
    };
    let retry_in = |seconds| Decision::RetryIn(Duration::from_secs(seconds));
    let give_up = Decision::GiveUp;
    check(1, "Timeout", true, None, retry_in(1));
    check(2, "Timeout", true, None, retry_in(1));
    check(3, "Timeout", true, None, give_up(GiveUpReason::Exhausted));
    check(1, "Timeout", false, None, give_up(GiveUpReason::NotRetryable));
    check(1, "CardDeclined", true, None, give_up(GiveUpReason::NonRetryableName));
    check(1, "carddeclined", true, None, retry_in(1));
    check(1, "Timeout", true, Some(0), retry_in(1));
    check(1, "Timeout", true, Some(30), retry_in(30));
    check(1, "Timeout", true, Some(u64::MAX), Decision::RetryIn(DELAY_MAX));
    check(3, "Timeout", true, Some(30), give_up(GiveUpReason::Exhausted));
    assert_eq!(json!(GiveUpReason::NonRetryableName), "non_retryable_name");
}

#[test]
fn invalid_policies_say_why_and_do_not_panic() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut RetryPolicy), expect: &str) {
        let mut policy = doubling().with_jitter(0.1);
        change(&mut policy);
        let error = policy.validate().unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
        for attempt in [0, 1, 2, u32::MAX] {
            let _ = policy.next_delay(attempt, u64::MAX);
            policy.limit = RetryLimit::Forever;
        }
        if let Ok(written) = serde_json::to_value(&policy) {
            // A NaN is written as null, and sub-millisecond delays as 0.
            let _ = serde_json::from_value::<RetryPolicy>(written);
        }
    }
    let forever = RetryLimit::Forever;
    check(|p| *p = RetryPolicy::constant(forever, "soon"), "delay: \"soon\" is not a duration");
    check(|p| *p = RetryPolicy::linear(forever, Duration::MAX), "delay: ");
    check(|p| *p = p.clone().with_max_delay("1 year"), "max_delay: \"1 year\" uses months or");
    check(|p| *p = RetryPolicy::listed(["1 s", "-1 s"]), "a listed delay: \"-1 s\" is a negative");
    check(|p| p.delay = Duration::MAX, "delay is");
    check(|p| p.max_delay = Some(Duration::MAX), "the limit is 365 days");
    check(|p| p.delay = Duration::from_micros(1_500), "delay is 1.5ms; policies keep whole");
    check(|p| p.max_delay = Some(Duration::from_nanos(1)), "max_delay is 1ns");
    check(|p| p.delay = SECOND * 61, "max_delay (1m) is below delay (1m 1s)");
    for factor in [0.99, -2.0, f64::NAN, f64::INFINITY] {
        check(|p| p.backoff = Backoff::Exponential { factor }, "backoff factor is");
    }
    check(|p| p.backoff = Backoff::Listed(Vec::new()), "lists 0 delays; list 1 to 64");
    check(|p| p.backoff = Backoff::Listed(vec![SECOND; 65]), "lists 65 delays");
    check(|p| p.backoff = Backoff::Listed(vec![Duration::MAX]), "a listed delay is");
    for jitter in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        check(|p| p.jitter = jitter, "jitter is");
    }
    check(|p| p.non_retryable = vec!["x".into(); 65], "65 names, the limit is 64");
    check(|p| p.non_retryable = vec![String::new()], "a name of 0 bytes");
    check(|p| p.non_retryable = vec!["x".repeat(257)], "257 bytes; names have 1 to 256");
}

#[test]
fn json_round_trips_and_is_validated() {
    #[track_caller]
    fn check(json: Value, expect: Result<RetryPolicy, &str>) {
        match (serde_json::from_value::<RetryPolicy>(json), expect) {
            (Ok(got), Ok(expect)) => assert_eq!(got, expect),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, expect) => panic!("{got:?} is not {expect:?}"),
        }
    }
    assert_eq!(
        json!(doubling().with_jitter(0.1)),
        json!({"limit": 4, "delay_ms": 1000, "backoff": "exponential", "factor": 2.0,
               "max_delay_ms": 60000, "jitter": 0.1, "non_retryable": []})
    );
    check(
        json!({"limit": 5, "delay_ms": 10_000}),
        Ok(RetryPolicy::exponential(RetryLimit::Times(5), SECOND * 10)),
    );
    check(
        json!({"limit": "forever", "delay_ms": 1000, "backoff": "linear"}),
        Ok(RetryPolicy::linear(RetryLimit::Forever, SECOND)),
    );
    check(
        json!({"limit": 2, "delay_ms": 0, "backoff": "listed", "delays_ms": [1000, 3000]}),
        Ok(RetryPolicy::listed([SECOND, SECOND * 3])),
    );
    check(json!({"limit": 2, "delay_ms": 0, "backoff": "listed"}), Err("lists 0 delays"));
    check(json!({"limit": 2, "delay_ms": 0, "delays_ms": [1]}), Err("\"listed\""));
    check(json!({"limit": 5}), Err("delay_ms"));
    check(json!({"limit": 5, "delay_ms": 1, "max_dely_ms": 5}), Err("max_dely_ms"));
    check(json!({"limit": "never", "delay_ms": 1}), Err("\"forever\""));
    check(json!({"limit": -1, "delay_ms": 1}), Err("\"forever\""));
    check(json!({"limit": 1, "delay_ms": 5, "max_delay_ms": 4}), Err("is below delay"));
    check(
        json!({"limit": 1, "delay_ms": 5, "backoff": "linear", "factor": 2}),
        Err("only valid with exponential"),
    );
    check(json!({"limit": 1, "delay_ms": u64::MAX}), Err("365 days"));
}

fn any_policy() -> impl Strategy<Value = RetryPolicy> {
    let limit = prop_oneof![(0_u32..40).prop_map(RetryLimit::Times), Just(RetryLimit::Forever)];
    let backoff = prop_oneof![
        Just(Backoff::Constant),
        Just(Backoff::Linear),
        (1.0..10.0).prop_map(|factor| Backoff::Exponential { factor }),
        prop::collection::btree_set(0..100_000_u64, 1..9).prop_map(|delays| {
            Backoff::Listed(delays.into_iter().map(Duration::from_millis).collect())
        }),
    ];
    let millis_max = DELAY_MAX.as_millis() as u64;
    let delay = prop_oneof![0..100_000_u64, 0..=millis_max];
    let above = prop::option::of(prop_oneof![0..100_000_u64, 0..=millis_max]);
    let names = prop::collection::vec("[a-z]{1,9}", 0..3);
    (limit, backoff, delay, above, 0.0..=1.0, names).prop_map(
        move |(limit, backoff, delay, above, jitter, non_retryable)| RetryPolicy {
            limit,
            delay: Duration::from_millis(delay),
            backoff,
            max_delay: above.map(|ms| Duration::from_millis((delay + ms).min(millis_max))),
            jitter,
            non_retryable,
            unreadable: None,
        },
    )
}

fn any_attempt() -> impl Strategy<Value = u32> {
    prop_oneof![1_u32..60, any::<u32>()]
}

proptest! {
    #[test]
    fn delays_stay_within_delay_and_cap(
        policy in any_policy(), attempt in any_attempt(), seed in any::<u64>(),
    ) {
        policy.validate().unwrap();
        if let Some(delay) = policy.next_delay(attempt, seed) {
            prop_assert!(delay >= policy.delay);
            prop_assert!(delay <= policy.max_delay.unwrap_or(DELAY_MAX));
            let plain = policy.clone().with_jitter(0.0).next_delay(attempt, seed).unwrap();
            // At the cap, delays are spread below it.
            let (spread, micro) = (1.0 + policy.jitter, Duration::from_micros(1));
            prop_assert!(delay <= plain.mul_f64(spread) + micro);
            prop_assert!(plain.div_f64(spread) <= delay + micro);
            prop_assert_eq!(policy.next_delay(attempt, seed), Some(delay));
        }
    }

    #[test]
    fn delays_without_jitter_never_shrink(policy in any_policy(), attempt in 1..u32::MAX) {
        let policy = RetryPolicy { limit: RetryLimit::Forever, ..policy.with_jitter(0.0) };
        for first in [attempt, attempt % 60 + 1] {
            prop_assert!(policy.next_delay(first, 0) <= policy.next_delay(first + 1, 0));
        }
    }

    #[test]
    fn retries_are_exactly_the_limit(policy in any_policy(), seed in any::<u64>()) {
        let retries = (1..100).take_while(|n| policy.next_delay(*n, seed).is_some()).count();
        match policy.limit {
            RetryLimit::Times(times) => prop_assert_eq!(retries, times as usize),
            RetryLimit::Forever => prop_assert_eq!(retries, 99),
        }
    }

    #[test]
    fn a_policy_survives_json(policy in any_policy()) {
        let text = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(serde_json::from_str::<RetryPolicy>(&text).unwrap(), policy);
    }

    #[test]
    fn retry_after_only_raises(
        policy in any_policy(), attempt in any_attempt(), after in any::<u64>(), seed in any::<u64>(),
    ) {
        let after = Duration::from_secs(after);
        match (policy.next_delay(attempt, seed), policy.decide(attempt, "E", true, Some(after), seed)) {
            (Some(own), Decision::RetryIn(delay)) => {
                prop_assert_eq!(delay, own.max(after.min(DELAY_MAX)));
            }
            (None, Decision::GiveUp(GiveUpReason::Exhausted)) => {}
            (own, decision) => prop_assert!(false, "{own:?} {decision:?}"),
        }
    }
}
