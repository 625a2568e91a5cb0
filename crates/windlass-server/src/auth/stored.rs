//! API keys in the engine's store, where all processes on it share them.

use std::sync::Arc;

use windlass::kernel::{Body, BoxFuture, Query, Setting, SettingName};
use windlass::{Error, Store};

use super::keys::{ApiKey, KeyStore};

/// The kind of setting that a key is.
const KIND: &str = "api_key";
const ROWS: u32 = 1_000;

/// Keys as settings of a store, by their id.
pub struct StoredKeys(Arc<dyn Store>);

impl StoredKeys {
    /// The keys of a store.
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
            // Everything but the last digit sorts right before all ids that begin with it, and there
            // are sixteen digits.
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
