//! Endpoints that said that they are gone: kept in the store, so that every process leaves them alone.

use std::sync::Arc;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Body, Error, Namespace, Query, Setting, SettingName, Sha256Digest, Store, Timestamp,
};

/// How many endpoints are listed at once.
const ROWS: u32 = 500;
/// How many names can begin with all but the last digit of a digest.
const NEAR: u32 = 16;

/// An endpoint that nothing is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisabledEndpoint {
    /// Its URL, without query and credentials: there are secrets in them.
    pub url: String,
    /// Since when, by the store's clock.
    pub since: Timestamp,
    /// Which webhook it refused.
    pub webhook_id: String,
}

#[derive(Serialize, Deserialize)]
struct Value {
    url: String,
    webhook_id: String,
}

/// The endpoints of one store that are disabled, by tenant.
#[derive(Clone)]
pub(super) struct Endpoints(Arc<dyn Store>);

impl Endpoints {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    pub(super) async fn is_disabled(&self, of: &Namespace, url: &str) -> Result<bool, Error> {
        let name = name(url);
        // Everything but the last digit sorts right before all digests that begin with it.
        let near = self.page(of, Some(name[..name.len() - 1].into()), NEAR).await?;
        Ok(near.iter().any(|setting| *setting.name.name == name))
    }

    pub(super) async fn disable(&self, of: &Namespace, url: &str, id: &str) -> Result<(), Error> {
        let value = Body::of(&Value { url: plain(url), webhook_id: id.to_owned() })?;
        self.0.put_setting(SettingName::new(&kind(of), &name(url)), Some(value)).await
    }

    pub(super) async fn enable(&self, of: &Namespace, url: &str) -> Result<bool, Error> {
        let was = self.is_disabled(of, url).await?;
        self.0.put_setting(SettingName::new(&kind(of), &name(url)), None).await?;
        Ok(was)
    }

    pub(super) async fn list(&self, of: &Namespace) -> Result<Vec<DisabledEndpoint>, Error> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = self.page(of, after, ROWS).await?;
            for setting in &page {
                let value: Value = setting.value.read()?;
                all.push(DisabledEndpoint {
                    url: value.url,
                    since: setting.updated_at,
                    webhook_id: value.webhook_id,
                });
            }
            if page.len() < ROWS as usize {
                return Ok(all);
            }
            after = page.last().map(|setting| Arc::clone(&setting.name.name));
        }
    }

    async fn page(
        &self,
        of: &Namespace,
        after: Option<Arc<str>>,
        limit: u32,
    ) -> Result<Vec<Setting>, Error> {
        self.0.list(Query::Settings { kind: kind(of).into(), after, limit }).await?.settings()
    }
}

fn kind(namespace: &Namespace) -> String {
    format!("webhook_disabled:{namespace}")
}

// A URL may be longer than the name of a setting.
fn name(url: &str) -> String {
    Sha256Digest::of(plain(url).as_bytes()).to_string()
}

// An endpoint is where a URL leads, by whatever token one is let in there.
fn plain(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else { return url.to_owned() };
    parsed.set_query(None);
    parsed.set_fragment(None);
    // Refused by URLs that cannot have any.
    let _ = parsed.set_username("");
    let _ = parsed.set_password(None);
    parsed.into()
}
