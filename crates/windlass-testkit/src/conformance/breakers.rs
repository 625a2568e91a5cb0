//! Circuit breakers: one value for all processes. A writer replaces it only if it has read the last
//! version.

use std::time::Duration;

use windlass_kernel::{
    Body, BreakerRow, BreakerStatus, LimitKey, Namespace, Query, Rate, RateRow, Timestamp,
};

use crate::world::World;

fn row(key: &str, version: u64, data: &str) -> BreakerRow {
    BreakerRow {
        namespace: Namespace::default_namespace(),
        key: LimitKey::new(key).unwrap(),
        status: BreakerStatus::HalfOpen,
        retry_at: Some(Timestamp::from_micros(version as i64)),
        data: Body::json(data.to_owned()),
        version,
        updated_at: Timestamp::ZERO,
    }
}

/// Of two that read the same version, one wins.
pub async fn are_swapped_only_from_the_latest_version(world: World) {
    let read = || async {
        let (namespace, key) = (Namespace::default_namespace(), LimitKey::new("k").unwrap());
        world.store.breaker(namespace, key).await.unwrap()
    };
    let (none, before) = read().await;
    assert_eq!(none, None);
    let store = &world.store;
    let swap = |row| async move { store.swap_breaker(row).await.unwrap() };
    assert!(!swap(row("k", 2, "2")).await, "there is nothing to follow");
    assert!(swap(row("k", 1, "1")).await);
    assert!(!swap(row("k", 1, "other")).await);
    assert!(swap(row("k", 2, "2")).await);
    assert!(!swap(row("k", 2, "other")).await);
    assert!(!swap(row("k", 4, "4")).await);
    let (found, now) = read().await;
    let found = found.unwrap();
    assert!(found.updated_at >= before && found.updated_at <= now, "its time is the store's");
    assert_eq!(found, BreakerRow { updated_at: found.updated_at, ..row("k", 2, "2") });
}

/// So are rates.
pub async fn rates_are_swapped_too(world: World) {
    let (namespace, key) = (Namespace::default_namespace(), LimitKey::new("k").unwrap());
    let read = || async { world.store.rate(namespace.clone(), key.clone()).await.unwrap().0 };
    assert_eq!(read().await, None);
    let now = world.now().await;
    let mut row = RateRow::new(namespace.clone(), key.clone());
    row.set(Some(&Rate { count: 7, period: Duration::from_secs(3), burst: 4 }));
    row.take(now, 2, 9);
    let version = |version| RateRow { version, ..row.clone() };
    assert!(!world.store.swap_rate(version(2), false).await.unwrap());
    assert!(world.store.swap_rate(version(1), false).await.unwrap());
    assert!(!world.store.swap_rate(version(1), true).await.unwrap());
    assert_eq!(read().await, Some(version(1)));
    let next = RateRow { burst: 9, ..version(2) };
    assert!(world.store.swap_rate(next.clone(), true).await.unwrap());
    assert!(!world.store.swap_rate(version(2), true).await.unwrap());
    assert_eq!(read().await, Some(next));
    let other = Namespace::new("other").unwrap();
    assert_eq!(world.store.rate(other, key.clone()).await.unwrap().0, None);
}

/// By key, within a namespace.
pub async fn are_listed(world: World) {
    for key in ["b", "a", "c"] {
        world.store.swap_breaker(row(key, 1, "{}")).await.unwrap();
    }
    let other = Namespace::new("other").unwrap();
    let elsewhere = BreakerRow { namespace: other.clone(), ..row("d", 1, "{}") };
    world.store.swap_breaker(elsewhere).await.unwrap();
    let list = |namespace: Namespace, after: Option<&str>, limit| {
        let after = after.map(|key| LimitKey::new(key).unwrap());
        let query = Query::Breakers { namespace, after, limit };
        let store = world.store.clone();
        async move {
            let rows = store.list(query).await.unwrap().breakers().unwrap();
            rows.iter().map(|row| row.key.as_str().to_owned()).collect::<Vec<_>>()
        }
    };
    let own = Namespace::default_namespace;
    assert_eq!(list(own(), None, 2).await, ["a", "b"]);
    assert_eq!(list(own(), Some("b"), 2).await, ["c"]);
    assert_eq!(list(other, None, 10).await, ["d"]);
}

/// Rates by key, within a namespace.
pub async fn rates_are_listed(world: World) {
    let (own, other) = (Namespace::default_namespace(), Namespace::new("other").unwrap());
    for (namespace, key) in [(&own, "b"), (&own, "a"), (&other, "d"), (&own, "c")] {
        let new = RateRow::new(namespace.clone(), LimitKey::new(key).unwrap());
        let row = RateRow { interval_us: 1_000, burst: 3, version: 1, ..new };
        assert!(world.store.swap_rate(row, false).await.unwrap());
    }
    let list = async |namespace: &Namespace, after: Option<&str>, limit| {
        let after = after.map(|key| LimitKey::new(key).unwrap());
        let query = Query::Rates { namespace: namespace.clone(), after, limit };
        let rows = world.store.list(query).await.unwrap().rates().unwrap();
        assert!(rows.iter().all(|row| (row.interval_us, row.burst, row.version) == (1_000, 3, 1)));
        rows.iter().map(|row| row.key.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list(&own, None, 2).await, ["a", "b"]);
    assert_eq!(list(&own, Some("b"), 2).await, ["c"]);
    assert_eq!(list(&other, None, 10).await, ["d"]);
}

/// Rows that restrict nothing are deleted after a day. Open breakers and rates stay.
pub async fn old_ones_are_deleted(world: World) {
    let closed = |key: &str| BreakerRow { status: BreakerStatus::Closed, ..row(key, 1, "1") };
    assert!(world.store.swap_breaker(closed("closed")).await.unwrap());
    assert!(world.store.swap_breaker(row("open", 1, "1")).await.unwrap());
    let (namespace, key) =
        (Namespace::default_namespace(), |key: &str| LimitKey::new(key).unwrap());
    let rate = |name: &str, interval_us| {
        let new = RateRow::new(namespace.clone(), key(name));
        RateRow { interval_us, version: 1, spent_until: Timestamp::from_micros(1), ..new }
    };
    assert!(world.store.swap_rate(rate("idle", 0), false).await.unwrap());
    assert!(world.store.swap_rate(rate("set", 1_000), false).await.unwrap());
    world.advance_ms(24 * 60 * 60 * 1_000 + 1).await;
    assert!(world.store.swap_breaker(closed("recent")).await.unwrap());
    let worker = world.steady_worker().await;
    assert!(world.store.reap(worker, 10).await.unwrap().permitted);
    let query = Query::Breakers { namespace: namespace.clone(), after: None, limit: 10 };
    let left = world.store.list(query).await.unwrap().breakers().unwrap();
    let left: Vec<&str> = left.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(left, ["open", "recent"]);
    let rate = |name: &str| world.store.rate(namespace.clone(), key(name));
    assert_eq!(rate("idle").await.unwrap().0, None);
    assert!(rate("set").await.unwrap().0.is_some());
}
