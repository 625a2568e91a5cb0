//! API keys in the engine's store, shared by all its processes.

use std::sync::Arc;

use windlass::kernel::{Body, BoxFuture, Query, Setting, SettingName};
use windlass::{Error, Store};

use super::keys::{ApiKey, KeyStore};

/// The kind of the settings that contain keys.
const KIND: &str = "api_key";
const ROWS: u32 = 1_000;

/// Stores each key as a setting of the store, by id.
pub struct StoredKeys(Arc<dyn Store>);

impl StoredKeys {
    /// Manages the keys of a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    async fn page(&self, after: Option<Arc<str>>, limit: u32) -> Result<Vec<Setting>, Error> {
        self.0.list(Query::Settings { kind: KIND.into(), after, limit }).await?.settings()
    }
}

impl KeyStore for StoredKeys {
    fn put(&self, key: ApiKey) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let value = Body::of(&key)?;
            self.0.put_setting(SettingName::new(KIND, &key.id), Some(value)).await
        })
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<ApiKey>, Error>> {
        Box::pin(async move {
            // The store only lists. The id without its last digit sorts directly before all ids
            // with that prefix, and at most 16 ids differ only in the last digit.
            let Some((last, _)) = id.char_indices().next_back() else { return Ok(None) };
            let near = self.page(Some(id[..last].into()), 16).await?;
            let found = near.iter().find(|setting| &*setting.name.name == id);
            found.map(|setting| setting.value.read()).transpose()
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, Error>> {
        Box::pin(async move {
            let mut keys = Vec::new();
            let mut after = None;
            loop {
                let page = self.page(after, ROWS).await?;
                for setting in &page {
                    keys.push(setting.value.read()?);
                }
                if page.len() < ROWS as usize {
                    return Ok(keys);
                }
                after = page.last().map(|setting| Arc::clone(&setting.name.name));
            }
        })
    }

    fn remove<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        self.0.put_setting(SettingName::new(KIND, id), None)
    }
}
