//! Endpoints that answered 410, stored so that no process calls them again.

use std::sync::Arc;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use windlass_engine::after_write;
use windlass_kernel::{
    Body, Error, Namespace, Query, Setting, SettingName, Sha256Digest, Store, Timestamp,
};

/// How many endpoints are listed at once.
const ROWS: u32 = 500;
/// How many a tenant may have; then the oldest is forgotten, and has to say again that it is gone.
const ENDPOINTS_MAX: usize = 5_000;
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
        let known = self.all(of).await?;
        let oldest = known.iter().min_by_key(|setting| setting.updated_at);
        if let Some(oldest) = oldest.filter(|_| known.len() >= ENDPOINTS_MAX) {
            self.0.put_setting(oldest.name.clone(), None).await?;
        }
        let value = Body::of(&Value { url: display_url(url), webhook_id: id.to_owned() })?;
        self.0.put_setting(SettingName::new(&kind(of), &name(url)), Some(value)).await
    }

    /// Without a query, all that are shown as this URL.
    pub(super) async fn enable(&self, of: &Namespace, url: &str) -> Result<bool, Error> {
        let one = Url::parse(url).is_ok_and(|url| url.query().is_some());
        let (name, shown) = (name(url), display_url(url));
        let mut was = false;
        for setting in self.all(of).await? {
            let meant = match one {
                true => *setting.name.name == name,
                false => setting.value.read::<Value>()?.url == shown,
            };
            if meant {
                self.0.put_setting(setting.name, None).await.map_err(after_write)?;
                was = true;
            }
        }
        Ok(was)
    }

    pub(super) async fn list(&self, of: &Namespace) -> Result<Vec<DisabledEndpoint>, Error> {
        let all = self.all(of).await?;
        let endpoint = |setting: &Setting| {
            let Value { url, webhook_id } = setting.value.read()?;
            Ok(DisabledEndpoint { url, since: setting.updated_at, webhook_id })
        };
        all.iter().map(endpoint).collect()
    }

    async fn all(&self, of: &Namespace) -> Result<Vec<Setting>, Error> {
        let mut all: Vec<Setting> = Vec::new();
        loop {
            let after = all.last().map(|setting| Arc::clone(&setting.name.name));
            let page = self.page(of, after, ROWS).await?;
            let last = page.len() < ROWS as usize;
            all.extend(page);
            if last {
                return Ok(all);
            }
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

// A URL may be longer than the name of a setting. Its query belongs to it: it may be all by which one
// run's callback differs from another's.
fn name(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else {
        return Sha256Digest::of(url.as_bytes()).to_string();
    };
    parsed.set_fragment(None);
    Sha256Digest::of(parsed.as_str().as_bytes()).to_string()
}

/// The part of a URL that is shown to people: without its query, fragment, user and password.
///
/// ```
/// let shown = windlass::webhooks::display_url("https://me:pass@example.org/hook?token=1");
/// assert_eq!(shown, "https://example.org/hook");
/// ```
pub fn display_url(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else { return url.to_owned() };
    parsed.set_query(None);
    parsed.set_fragment(None);
    // Refused by URLs that cannot have any.
    let _ = parsed.set_username("");
    let _ = parsed.set_password(None);
    parsed.into()
}
