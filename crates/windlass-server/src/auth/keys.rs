//! API keys: made here, shown once, kept as digests, looked up by their id.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use windlass::kernel::{Actor, BoxFuture, Namespace};
use windlass::{Error, ErrorKind, Timestamp};

use super::{Caller, Scope};
use crate::error::ApiError;

/// What every API key begins with, so that people and scanners know one when they see it.
pub(super) const PREFIX: &str = "wl_";

const SECRET_BYTES: usize = 32;
const ID_BYTES: usize = 8;
/// How long a key that was looked up is believed without asking again: so long after it was revoked
/// in another process, a key may still be taken here.
const BELIEVED_FOR: Duration = Duration::from_secs(5);
/// Ids that were looked up lately, known or not.
const REMEMBERED_MAX: usize = 10_000;
/// Keys of a namespace: what one tenant makes takes no room from another.
const KEYS_MAX: usize = 1_000;

/// An API key as it is kept: never the key itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// Names it; the part of the key between the two underscores.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// The tenant that it acts in.
    pub namespace: Namespace,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// SHA-256 of the whole key, in hexadecimal.
    pub digest: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it is no longer taken.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

impl ApiKey {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| now < at)
    }
}

/// Where API keys are kept. All processes that serve one store should share one.
pub trait KeyStore: Send + Sync + 'static {
    /// Adds a key, or replaces the one with its id.
    fn put(&self, key: ApiKey) -> BoxFuture<'_, Result<(), Error>>;

    /// The key with an id.
    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<ApiKey>, Error>>;

    /// All keys, by id.
    fn list(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, Error>>;

    /// Forgets a key.
    fn remove<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>>;
}

/// Keys in memory, for tests and for programs that make them anew at every start.
#[derive(Default)]
pub struct MemoryKeys(Mutex<BTreeMap<String, ApiKey>>);

impl KeyStore for MemoryKeys {
    fn put(&self, key: ApiKey) -> BoxFuture<'_, Result<(), Error>> {
        self.0.lock().insert(key.id.clone(), key);
        Box::pin(std::future::ready(Ok(())))
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<ApiKey>, Error>> {
        let found = self.0.lock().get(id).cloned();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, Error>> {
        let all = self.0.lock().values().cloned().collect();
        Box::pin(std::future::ready(Ok(all)))
    }

    fn remove<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        self.0.lock().remove(id);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A key to be made.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// What people call it.
    pub name: String,
    /// The tenant that it acts in.
    pub namespace: Namespace,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// How long it is taken; for ever if there is none.
    pub expires_in: Option<Duration>,
}

/// A key that was just made. This is the only time that it is shown.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The key.
    pub key: String,
    /// What is kept of it.
    pub kept: ApiKey,
}

type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Makes keys, checks them, revokes them.
pub struct Keys {
    store: Arc<dyn KeyStore>,
    now: Now,
    remembered: Mutex<HashMap<String, Remembered>>,
}

/// When an id was looked up, and what was found.
type Remembered = (Timestamp, Option<Arc<Known>>);

struct Known {
    key: ApiKey,
    digest: [u8; 32],
    caller: Arc<Caller>,
}

impl Keys {
    /// Keys in a store, on a clock.
    pub fn new(store: Arc<dyn KeyStore>, now: Now) -> Self {
        Self { store, now, remembered: Mutex::default() }
    }

    /// Makes a key. There is a bound on the keys of a namespace: before it is reached, those that are
    /// no longer taken are forgotten.
    pub async fn make(&self, new: NewKey) -> Result<Shown, Error> {
        self.make_room(&new.namespace).await?;
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        getrandom::fill(&mut random).map_err(|source| {
            let message = "this machine gives no random bytes for a key";
            Error::new(ErrorKind::Unavailable, "NO_RANDOMNESS", message)
                .with_source(source.to_string())
        })?;
        let (id, secret) = random.split_at(ID_BYTES);
        let id = hex::encode(id);
        let key = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        let now = (self.now)();
        let kept = ApiKey {
            id,
            name: new.name,
            namespace: new.namespace,
            scopes: new.scopes,
            digest: hex::encode(Sha256::digest(key.as_bytes())),
            created_at: now,
            expires_at: new.expires_in.map(|span| now.plus(span)),
            revoked_at: None,
        };
        self.store.put(kept.clone()).await?;
        self.remembered.lock().remove(&kept.id);
        Ok(Shown { key, kept })
    }

    async fn make_room(&self, namespace: &Namespace) -> Result<(), Error> {
        let mut all = self.store.list().await?;
        all.retain(|key| key.namespace == *namespace);
        if all.len() < KEYS_MAX {
            return Ok(());
        }
        let now = (self.now)();
        let mut room = false;
        for key in all.iter().filter(|key| !key.is_valid(now)) {
            self.store.remove(&key.id).await?;
            room = true;
        }
        if room {
            return Ok(());
        }
        let message = format!(
            "namespace {namespace:?} has {KEYS_MAX} keys, which is as many as may be; revoke some"
        );
        Err(Error::new(ErrorKind::Refused, "KEYS_LIMIT", message))
    }

    /// All keys.
    pub async fn list(&self) -> Result<Vec<ApiKey>, Error> {
        self.store.list().await
    }

    /// The key with an id.
    pub async fn get(&self, id: &str) -> Result<Option<ApiKey>, Error> {
        self.store.get(id).await
    }

    /// Revokes a key: here at once, in other processes within five seconds.
    pub async fn revoke(&self, mut key: ApiKey) -> Result<ApiKey, Error> {
        key.revoked_at.get_or_insert((self.now)());
        self.store.put(key.clone()).await?;
        self.remembered.lock().remove(&key.id);
        Ok(key)
    }

    /// Who a key speaks for.
    pub(super) async fn caller(&self, token: &str) -> Result<Arc<Caller>, ApiError> {
        let refused = || ApiError::unauthenticated("the API key is not valid");
        let id = token.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_'));
        let (id, _) = id.ok_or_else(refused)?;
        if id.len() != ID_BYTES * 2 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let known = self.known(id).await.map_err(ApiError::from)?.ok_or_else(refused)?;
        let digest = Sha256::digest(token.as_bytes());
        let same: bool = known.digest.as_slice().ct_eq(digest.as_slice()).into();
        if !same || !known.key.is_valid((self.now)()) {
            return Err(refused());
        }
        Ok(Arc::clone(&known.caller))
    }

    async fn known(&self, id: &str) -> Result<Option<Arc<Known>>, Error> {
        let now = (self.now)();
        if let Some((at, known)) = self.remembered.lock().get(id)
            && now.since(*at) < BELIEVED_FOR
        {
            return Ok(known.clone());
        }
        let known = self.store.get(id).await?.and_then(Known::new).map(Arc::new);
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            // Whoever tries keys at random makes us forget, not grow.
            remembered.clear();
        }
        remembered.insert(id.to_owned(), (now, known.clone()));
        Ok(known)
    }
}

impl Known {
    fn new(key: ApiKey) -> Option<Self> {
        let digest: [u8; 32] = hex::decode(&key.digest).ok()?.try_into().ok()?;
        let caller = Caller {
            namespace: key.namespace.clone(),
            scopes: key.scopes.iter().copied().collect(),
            actor: Some(Actor::new("api_key", &key.id)),
        };
        Some(Self { key, digest, caller: Arc::new(caller) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_key_is_taken_until_it_expires_or_is_revoked() {
        let time = Arc::new(AtomicI64::new(1_000_000));
        let clock = Arc::clone(&time);
        let now: Now = Arc::new(move || Timestamp::from_micros(clock.load(Ordering::Relaxed)));
        let store = Arc::new(MemoryKeys::default());
        let keys = Keys::new(Arc::clone(&store) as _, now);
        let new = NewKey {
            name: "ci".into(),
            namespace: Namespace::new("tenant").unwrap(),
            scopes: vec![Scope::Read],
            expires_in: Some(Duration::from_secs(60)),
        };
        let shown = keys.make(new.clone()).await.unwrap();
        assert!(
            shown.key.starts_with("wl_") && shown.key.len() == 3 + 16 + 1 + 43,
            "{}",
            shown.key
        );
        assert!(!format!("{:?}", store.0.lock()).contains(&shown.key), "the key itself is kept");
        let caller = keys.caller(&shown.key).await.unwrap();
        assert_eq!(caller.namespace.as_str(), "tenant");
        assert!(caller.scopes.allow(Scope::Read) && !caller.scopes.allow(Scope::Manage));

        let mut other = shown.key.clone();
        let last = other.pop().unwrap();
        other.push(if last == 'A' { 'B' } else { 'A' });
        for wrong in [other.as_str(), "wl_", "wl_0000000000000000_x", "wl_zz_x", ""] {
            assert_eq!(keys.caller(wrong).await.unwrap_err().code(), "UNAUTHENTICATED", "{wrong}");
        }

        time.fetch_add(60_000_000, Ordering::Relaxed);
        assert!(keys.caller(&shown.key).await.is_err(), "it has expired");
        let shown = keys.make(NewKey { expires_in: None, ..new }).await.unwrap();
        assert!(keys.caller(&shown.key).await.is_ok());
        keys.revoke(shown.kept).await.unwrap();
        assert!(keys.caller(&shown.key).await.is_err(), "it was revoked");
    }

    #[tokio::test]
    async fn a_tenant_with_many_keys_takes_no_room_from_another() {
        let keys = Keys::new(
            Arc::new(MemoryKeys::default()),
            Arc::new(|| Timestamp::from_micros(1_000_000)),
        );
        let new = |namespace: &str| NewKey {
            name: "many".into(),
            namespace: Namespace::new(namespace).unwrap(),
            scopes: vec![Scope::Read],
            expires_in: None,
        };
        let mut last = None;
        for _ in 0..KEYS_MAX {
            last = Some(keys.make(new("loud")).await.unwrap());
        }
        assert_eq!(keys.make(new("loud")).await.unwrap_err().code(), "KEYS_LIMIT");
        keys.make(new("quiet")).await.unwrap();
        keys.revoke(last.unwrap().kept).await.unwrap();
        keys.make(new("loud")).await.expect("the revoked one is forgotten");
    }
}
