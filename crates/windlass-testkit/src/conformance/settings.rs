//! Settings: small values that outlive a process.

use windlass_kernel::{Body, Error, Limits, Query, Setting, SettingName};

use crate::world::World;

async fn put(world: &World, name: &str, value: Option<&str>) -> Result<(), Error> {
    let value = value.map(|value| Body::of(&value).unwrap());
    world.store.put_setting(SettingName::new("policy", name), value).await
}

async fn listed(world: &World, after: Option<&str>, limit: u32) -> Vec<Setting> {
    let query = Query::Settings { kind: "policy".into(), after: after.map(Into::into), limit };
    world.store.list(query).await.unwrap().settings().unwrap()
}

fn names(settings: &[Setting]) -> Vec<&str> {
    settings.iter().map(|setting| &*setting.name.name).collect()
}

/// A setting is what it was last set to, under its kind and name.
pub async fn are_kept_replaced_and_forgotten(world: World) {
    for (name, value) in [("b", "1"), ("a", "2"), ("c", "3"), ("a", "4")] {
        put(&world, name, Some(value)).await.unwrap();
    }
    let other = SettingName::new("other", "a");
    world.store.put_setting(other, Some(Body::of(&1).unwrap())).await.unwrap();
    let all = listed(&world, None, 10).await;
    assert_eq!(names(&all), ["a", "b", "c"]);
    assert_eq!(all[0].value.read::<String>().unwrap(), "4");
    assert!(all[0].updated_at <= world.now().await);
    assert_eq!(names(&listed(&world, None, 2).await), ["a", "b"]);
    assert_eq!(names(&listed(&world, Some("a"), 1).await), ["b"]);
    put(&world, "b", None).await.unwrap();
    put(&world, "never set", None).await.unwrap();
    assert_eq!(names(&listed(&world, None, 10).await), ["a", "c"]);
}

/// A name that is empty or too long, and a value that is too large, are refused.
pub async fn have_limits(world: World) {
    let code = |error: Result<(), Error>| error.unwrap_err().code();
    assert_eq!(code(put(&world, "", Some("x")).await), "INVALID_SETTING");
    let long = "n".repeat(Limits::DEFAULT.setting_name_chars_max + 1);
    assert_eq!(code(put(&world, &long, Some("x")).await), "INVALID_SIZE");
    assert_eq!(code(put(&world, "a\0b", Some("x")).await), "INVALID_TEXT");
    let large = "v".repeat(Limits::DEFAULT.setting_bytes_max);
    assert_eq!(code(put(&world, "large", Some(&large)).await), "INVALID_SIZE");
    assert!(listed(&world, None, 10).await.is_empty());
}
