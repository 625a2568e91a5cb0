//! Maps from JSON objects that refuse a duplicate key, where serde would keep the last value.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

pub(super) fn deserialize<'de, D, T>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Entries<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
        type Value = BTreeMap<String, T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some(key) = access.next_key::<String>()? {
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
                }
                let value = access.next_value()?;
                map.insert(key, value);
            }
            Ok(map)
        }
    }

    deserializer.deserialize_map(Entries(PhantomData))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    #[derive(serde::Deserialize, Debug)]
    struct Holder {
        #[serde(deserialize_with = "super::deserialize")]
        map: BTreeMap<String, u8>,
    }

    #[test]
    fn a_duplicate_key_is_refused() {
        let read: Holder = serde_json::from_str(r#"{"map":{"a":1,"b":2}}"#).unwrap();
        assert_eq!(read.map.len(), 2);
        let error = serde_json::from_str::<Holder>(r#"{"map":{"a":1,"a":2}}"#).unwrap_err();
        assert!(error.to_string().contains("duplicate key \"a\""), "{error}");
    }
}
