//! API keys: created here, issued once, stored as digests, looked up by id.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use windlass::kernel::{Actor, BoxFuture, Namespace, Subject};
use windlass::{Error, ErrorCode, ErrorKind, Timestamp};
use windlass_engine::after_write;

use super::{Caller, CallerKey, Scope};
use crate::error::ApiError;

/// The prefix of every API key, so that people and secret scanners recognize it.
pub(super) const PREFIX: &str = "wl_";

const SECRET_BYTES: usize = 32;
const ID_BYTES: usize = 8;
/// How long a cached key is used. A key that another process revokes is accepted here for at most
/// this time.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// The maximum number of cached ids, whether they exist or not.
const CACHED_KEYS_MAX: usize = 10_000;
/// The maximum number of keys of a namespace.
const KEYS_MAX: usize = 1_000;
/// The most people who created a key, directly or through other keys.
const CREATORS_MAX: usize = 32;

/// A stored API key. Contains a digest, never the key itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// The id: the part of the key between the two underscores.
    pub id: String,
    /// The display name.
    pub name: String,
    /// The namespace of the key.
    pub namespace: Namespace,
    /// The permissions of the key.
    #[serde(deserialize_with = "known_scopes")]
    pub scopes: Vec<Scope>,
    /// The person that the key was created for. Keys of programs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// The credential that created the key. Keys of earlier builds have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<KeyCreator>,
    /// SHA-256 of the whole key, in hexadecimal.
    pub digest: String,
    /// When the key was created.
    pub created_at: Timestamp,
    /// When the key expires.
    pub expires_at: Option<Timestamp>,
    /// When the key was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// Reads the scopes that this build knows. A newer build on the same store may have created a key with
/// another one: the key then works with its other scopes, and the list of all keys can be read.
fn known_scopes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Scope>, D::Error> {
    let words = Vec::<String>::deserialize(from)?;
    Ok(words.iter().filter_map(|word| Scope::parse(word)).collect())
}

/// The credential that created an API key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyCreator {
    /// The id of the API key that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The person that the credential stood for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The people who created the API key that was used, or a key before it. Each of them can use all keys
    /// that follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub creators: Vec<String>,
}

impl KeyCreator {
    /// The creator of a key that a caller creates.
    pub fn of(caller: &Caller) -> Self {
        Self {
            key_id: caller.key.as_ref().map(|key| key.id.clone()),
            subject: caller.subject.as_ref().map(|subject| subject.id().to_owned()),
            creators: caller.key.as_ref().map_or_else(Vec::new, |key| key.creators.clone()),
        }
    }

    /// All people who can use the key.
    pub fn people(&self) -> Vec<String> {
        let mut people = self.creators.clone();
        people.extend(self.subject.iter().filter(|id| !self.creators.contains(id)).cloned());
        people
    }
}

impl ApiKey {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| now < at)
    }
}

/// A store of API keys. All processes on one store should share it.
pub trait KeyStore: Send + Sync + 'static {
    /// Adds a key, or replaces the one with its id.
    fn put(&self, key: ApiKey) -> BoxFuture<'_, Result<(), Error>>;

    /// The key with an id.
    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<ApiKey>, Error>>;

    /// All keys, by id.
    fn list(&self) -> BoxFuture<'_, Result<Vec<ApiKey>, Error>>;

    /// Removes a key.
    fn remove<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>>;
}

/// Keys in memory, for tests and for programs that create them at every start.
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

/// The parameters of a new key.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The display name.
    pub name: String,
    /// The namespace of the key.
    pub namespace: Namespace,
    /// The permissions of the key.
    pub scopes: Vec<Scope>,
    /// The person that the key is for; `None` for a program.
    pub subject: Option<Subject>,
    /// The credential that creates it; `None` if a program does.
    pub created_by: Option<KeyCreator>,
    /// The lifetime; unlimited if `None`.
    pub expires_in: Option<Duration>,
}

/// A new key. This is the only value that contains the key itself.
#[derive(Clone, Debug)]
pub struct IssuedKey {
    /// The key.
    pub key: String,
    /// The stored part.
    pub stored: ApiKey,
}

type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Creates, checks and revokes keys.
pub struct Keys {
    store: Arc<dyn KeyStore>,
    now: Now,
    cache: Mutex<HashMap<String, CacheEntry>>,
}

/// The time of a lookup, and its result.
type CacheEntry = (Timestamp, Option<Arc<CachedKey>>);

struct CachedKey {
    key: ApiKey,
    digest: [u8; 32],
    caller: Arc<Caller>,
}

impl Keys {
    /// Manages the keys in a store, with a clock.
    pub fn new(store: Arc<dyn KeyStore>, now: Now) -> Self {
        Self { store, now, cache: Mutex::default() }
    }

    /// Creates a key. If the namespace has reached its limit, expired and revoked keys are removed
    /// first.
    pub async fn create(&self, new: NewKey) -> Result<IssuedKey, Error> {
        check_creators(new.created_by.as_ref())?;
        self.remove_invalid_keys(&new.namespace).await?;
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        getrandom::fill(&mut random).map_err(|source| {
            let message = "failed to get random bytes for a key";
            Error::new(ErrorKind::Unavailable, ErrorCode::NoRandomness, message)
                .with_source(source.to_string())
        })?;
        let (id, secret) = random.split_at(ID_BYTES);
        let id = hex::encode(id);
        let key = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        let now = (self.now)();
        let stored = ApiKey {
            id,
            name: new.name,
            namespace: new.namespace,
            scopes: new.scopes,
            subject: new.subject,
            created_by: new.created_by,
            digest: hex::encode(Sha256::digest(key.as_bytes())),
            created_at: now,
            expires_at: new.expires_in.map(|span| now.plus(span)),
            revoked_at: None,
        };
        self.store.put(stored.clone()).await.map_err(after_write)?;
        self.cache.lock().remove(&stored.id);
        Ok(IssuedKey { key, stored })
    }

    async fn remove_invalid_keys(&self, namespace: &Namespace) -> Result<(), Error> {
        let mut all = self.store.list().await?;
        all.retain(|key| key.namespace == *namespace);
        if all.len() < KEYS_MAX {
            return Ok(());
        }
        let now = (self.now)();
        let mut removed = false;
        for key in all.iter().filter(|key| !key.is_valid(now)) {
            self.store.remove(&key.id).await.map_err(after_write)?;
            removed = true;
        }
        if removed {
            return Ok(());
        }
        let message = format!(
            "namespace {namespace:?} has {KEYS_MAX} keys, which is the limit; revoke some first"
        );
        Err(Error::new(ErrorKind::Refused, ErrorCode::KeysLimit, message))
    }

    /// All keys.
    pub async fn list(&self) -> Result<Vec<ApiKey>, Error> {
        self.store.list().await
    }

    /// The key with an id.
    pub async fn get(&self, id: &str) -> Result<Option<ApiKey>, Error> {
        self.store.get(id).await
    }

    /// Revokes a key: immediately in this process, within five seconds in others.
    pub async fn revoke(&self, mut key: ApiKey) -> Result<ApiKey, Error> {
        key.revoked_at.get_or_insert((self.now)());
        self.store.put(key.clone()).await.map_err(after_write)?;
        self.cache.lock().remove(&key.id);
        Ok(key)
    }

    /// Verifies a key and returns its caller.
    pub(super) async fn caller(&self, token: &str) -> Result<Arc<Caller>, ApiError> {
        let invalid = || ApiError::unauthenticated("the API key is not valid");
        let id = token.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_'));
        let (id, _) = id.ok_or_else(invalid)?;
        if id.len() != ID_BYTES * 2 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let known = self.lookup(id).await.map_err(ApiError::from)?.ok_or_else(invalid)?;
        let digest = Sha256::digest(token.as_bytes());
        let same: bool = known.digest.as_slice().ct_eq(digest.as_slice()).into();
        if !same || !known.key.is_valid((self.now)()) {
            return Err(invalid());
        }
        Ok(Arc::clone(&known.caller))
    }

    async fn lookup(&self, id: &str) -> Result<Option<Arc<CachedKey>>, Error> {
        let now = (self.now)();
        if let Some((at, known)) = self.cache.lock().get(id)
            && now.since(*at) < CACHE_TTL
        {
            return Ok(known.clone());
        }
        let known = self.store.get(id).await?.and_then(CachedKey::new).map(Arc::new);
        let mut cache = self.cache.lock();
        if cache.len() >= CACHED_KEYS_MAX {
            // Requests with random ids must not let the cache grow.
            cache.clear();
        }
        cache.insert(id.to_owned(), (now, known.clone()));
        Ok(known)
    }
}

fn check_creators(creator: Option<&KeyCreator>) -> Result<(), Error> {
    let people = creator.map_or(0, |creator| creator.people().len());
    if people <= CREATORS_MAX {
        return Ok(());
    }
    let message = format!(
        "{people} people created this key or a key before it; at most {CREATORS_MAX} are allowed; \
         create it with another credential"
    );
    Err(Error::new(ErrorKind::Refused, ErrorCode::KeysLimit, message))
}

impl CachedKey {
    fn new(key: ApiKey) -> Option<Self> {
        let digest: [u8; 32] = hex::decode(&key.digest).ok()?.try_into().ok()?;
        let mut caller = Caller {
            namespace: key.namespace.clone(),
            scopes: key.scopes.iter().copied().collect(),
            actor: Some(Actor::new("api_key", &key.id)),
            subject: None,
            key: Some(CallerKey {
                id: key.id.clone(),
                creators: key.created_by.as_ref().map_or_else(Vec::new, KeyCreator::people),
            }),
        };
        if let Some(subject) = &key.subject {
            caller = caller.on_behalf_of(subject.clone());
            // The person who created the key could use it too, so the ledger also names the key.
            if let Some(actor) = &mut caller.actor {
                actor.metadata.insert("api_key".into(), key.id.clone().into());
            }
        }
        Some(Self { key, digest, caller: Arc::new(caller) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::super::Scopes;
    use super::*;

    #[tokio::test]
    async fn a_key_is_valid_until_it_expires_or_is_revoked() {
        let time = Arc::new(AtomicI64::new(1_000_000));
        let clock = Arc::clone(&time);
        let now: Now = Arc::new(move || Timestamp::from_micros(clock.load(Ordering::Relaxed)));
        let store = Arc::new(MemoryKeys::default());
        let keys = Keys::new(Arc::clone(&store) as _, now);
        let new = NewKey {
            name: "ci".into(),
            namespace: Namespace::new("tenant").unwrap(),
            scopes: vec![Scope::Read],
            subject: None,
            created_by: None,
            expires_in: Some(Duration::from_secs(60)),
        };
        let issued = keys.create(new.clone()).await.unwrap();
        assert!(
            issued.key.starts_with("wl_") && issued.key.len() == 3 + 16 + 1 + 43,
            "{}",
            issued.key
        );
        assert!(!format!("{:?}", store.0.lock()).contains(&issued.key), "the key itself is stored");
        let caller = keys.caller(&issued.key).await.unwrap();
        assert_eq!(caller.namespace.as_str(), "tenant");
        assert!(caller.scopes.allow(Scope::Read) && !caller.scopes.allow(Scope::Manage));

        let mut other = issued.key.clone();
        let last = other.pop().unwrap();
        other.push(if last == 'A' { 'B' } else { 'A' });
        for wrong in [other.as_str(), "wl_", "wl_0000000000000000_x", "wl_zz_x", ""] {
            assert_eq!(keys.caller(wrong).await.unwrap_err().code(), "UNAUTHENTICATED", "{wrong}");
        }

        time.fetch_add(60_000_000, Ordering::Relaxed);
        assert!(keys.caller(&issued.key).await.is_err(), "it has expired");
        let issued = keys.create(NewKey { expires_in: None, ..new }).await.unwrap();
        assert!(keys.caller(&issued.key).await.is_ok());
        keys.revoke(issued.stored).await.unwrap();
        assert!(keys.caller(&issued.key).await.is_err(), "it was revoked");
    }

    #[test]
    fn stored_keys_keep_their_scopes() {
        // A key as a build wrote it that knew only six scopes.
        let stored = |scopes: &str| {
            format!(
                r#"{{"id":"0000000000000001","name":"ci","namespace":"default","scopes":{scopes},
                "digest":"00","created_at":1,"expires_at":null,"revoked_at":null}}"#
            )
        };
        let old = [Scope::Read, Scope::Create, Scope::Manage, Scope::SendEvent, Scope::Tick];
        for (scopes, expect) in [
            (r#"["read","create","manage","send-event","tick"]"#, &old[..]),
            (r#"["admin"]"#, &[Scope::Admin]),
            (r#"["records","decide","define"]"#, &[Scope::Records, Scope::Decide, Scope::Define]),
            (r#"["read","of-a-newer-build"]"#, &[Scope::Read]),
        ] {
            let key: ApiKey = serde_json::from_str(&stored(scopes)).unwrap();
            assert_eq!(key.scopes, expect, "{scopes}");
        }
        let old: Scopes = old.into_iter().collect();
        for new in [Scope::Records, Scope::Decide, Scope::Define] {
            assert!(!old.allow(new), "a key that lists the old scopes gains nothing");
        }
    }

    #[tokio::test]
    async fn the_limit_of_keys_is_per_namespace() {
        let keys = Keys::new(
            Arc::new(MemoryKeys::default()),
            Arc::new(|| Timestamp::from_micros(1_000_000)),
        );
        let new = |namespace: &str| NewKey {
            name: "many".into(),
            namespace: Namespace::new(namespace).unwrap(),
            scopes: vec![Scope::Read],
            subject: None,
            created_by: None,
            expires_in: None,
        };
        let mut last = None;
        for _ in 0..KEYS_MAX {
            last = Some(keys.create(new("full")).await.unwrap());
        }
        assert_eq!(keys.create(new("full")).await.unwrap_err().code(), "KEYS_LIMIT");
        keys.create(new("other")).await.unwrap();
        keys.revoke(last.unwrap().stored).await.unwrap();
        keys.create(new("full")).await.expect("the revoked key is removed");
    }
}
