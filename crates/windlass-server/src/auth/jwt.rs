//! JSON web tokens of somebody else's: which are believed, and what they say.

use std::collections::HashMap;
use std::sync::Arc;

use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Map, Value};
use windlass::kernel::{Actor, Namespace};
use windlass::{Error, ErrorKind};

use super::{Caller, Scope, Scopes};
use crate::error::ApiError;

/// A key that tokens are checked with.
#[derive(Clone)]
pub struct JwtKey {
    /// The only algorithm that it is used with: a token does not choose.
    algorithm: Algorithm,
    key: DecodingKey,
}

/// A shared secret is as good as its length.
const SECRET_BYTES_MIN: usize = 32;

impl JwtKey {
    /// A secret that is shared with the issuer, for HS256, HS384 or HS512.
    pub fn from_secret(algorithm: Algorithm, secret: &[u8]) -> Result<Self, Error> {
        use Algorithm::{HS256, HS384, HS512};
        if !matches!(algorithm, HS256 | HS384 | HS512) {
            return Err(unusable(format!("{algorithm:?} does not go with a shared secret")));
        }
        if secret.len() < SECRET_BYTES_MIN {
            let bytes = secret.len();
            return Err(unusable(format!(
                "the secret has {bytes} bytes; use at least {SECRET_BYTES_MIN}"
            )));
        }
        Ok(Self { algorithm, key: DecodingKey::from_secret(secret) })
    }

    /// The issuer's public key in PEM, for an RSA, elliptic-curve or Edwards algorithm.
    pub fn from_pem(algorithm: Algorithm, pem: &[u8]) -> Result<Self, Error> {
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        let key = match algorithm {
            RS256 | RS384 | RS512 | PS256 | PS384 | PS512 => DecodingKey::from_rsa_pem(pem),
            ES256 | ES384 => DecodingKey::from_ec_pem(pem),
            EdDSA => DecodingKey::from_ed_pem(pem),
            _ => return Err(unusable(format!("{algorithm:?} does not go with a public key"))),
        };
        let key =
            key.map_err(|error| unusable(format!("the public key does not read: {error}")))?;
        Ok(Self { algorithm, key })
    }
}

fn unusable(message: String) -> Error {
    Error::new(ErrorKind::Invalid, "INVALID_OPTION", message)
}

/// Which tokens are believed.
#[derive(Clone)]
pub struct Jwt {
    keys: Arc<HashMap<Option<String>, JwtKey>>,
    issuer: String,
    audience: String,
    namespace_claim: String,
    leeway_s: u64,
}

impl Jwt {
    /// Tokens of an issuer for an audience. Issuer, audience and expiry must be in every token.
    pub fn new(issuer: impl Into<String>, audience: impl Into<String>) -> Self {
        Self {
            keys: Arc::default(),
            issuer: issuer.into(),
            audience: audience.into(),
            namespace_claim: "namespace".into(),
            leeway_s: 30,
        }
    }

    /// Adds a key. One without a `kid` is for tokens without one; as long as it is the only key, it is
    /// for all tokens, because most issuers name their key even if there is but one.
    pub fn key(mut self, kid: Option<String>, key: JwtKey) -> Self {
        Arc::make_mut(&mut self.keys).insert(kid, key);
        self
    }

    /// The claim that holds the namespace. Default `namespace`.
    pub fn namespace_claim(mut self, claim: impl Into<String>) -> Self {
        self.namespace_claim = claim.into();
        self
    }

    fn key_for(&self, kid: &Option<String>) -> Option<&JwtKey> {
        let only = || self.keys.get(&None).filter(|_| self.keys.len() == 1);
        self.keys.get(kid).or_else(only)
    }

    /// Who a token speaks for.
    pub(super) fn caller(&self, token: &str) -> Result<Caller, ApiError> {
        let refused = |why: String| {
            // What exactly is wrong helps the operator; the client could be anybody.
            tracing::debug!(why, "a token was refused");
            ApiError::unauthenticated("the token is not valid")
        };
        let header =
            jsonwebtoken::decode_header(token).map_err(|error| refused(error.to_string()))?;
        let key = self.key_for(&header.kid).ok_or_else(|| refused("unknown key".into()))?;
        if header.alg != key.algorithm {
            return Err(refused(format!("algorithm {:?}", header.alg)));
        }
        // Whatever it names must be understood, and nothing of it is.
        if header.crit.is_some() {
            return Err(refused("critical header".into()));
        }
        let mut validation = Validation::new(key.algorithm);
        validation.leeway = self.leeway_s;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let token = jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &validation);
        let claims = token.map_err(|error| refused(error.to_string()))?.claims;
        // A list of issuers would do for the library if one of them were right.
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(refused("issuer".into()));
        }
        let namespace = claims.get(&self.namespace_claim).and_then(Value::as_str);
        let namespace = namespace.ok_or_else(|| refused("no namespace".into()))?;
        let namespace =
            Namespace::new(namespace).map_err(|error| refused(error.message().to_owned()))?;
        let subject = claims.get("sub").and_then(Value::as_str);
        Ok(Caller {
            namespace,
            scopes: scopes(&claims),
            actor: subject.map(|subject| Actor::new("user", subject)),
        })
    }
}

/// The scopes in `scope` (words in a text) or `scopes` (a list). Words of others are passed over.
fn scopes(claims: &Map<String, Value>) -> Scopes {
    let words = claims.get("scope").and_then(Value::as_str).unwrap_or_default();
    let words = words.split_ascii_whitespace();
    let list = claims.get("scopes").and_then(Value::as_array);
    let list = list.into_iter().flatten().filter_map(Value::as_str);
    words.chain(list).filter_map(Scope::parse).collect()
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn jwt() -> Jwt {
        let key = JwtKey::from_secret(Algorithm::HS256, SECRET).unwrap();
        Jwt::new("https://issuer.example", "windlass").key(None, key)
    }

    fn token(algorithm: Algorithm, secret: &[u8], claims: &Value) -> String {
        encode(&Header::new(algorithm), claims, &EncodingKey::from_secret(secret)).unwrap()
    }

    fn claims(change: impl FnOnce(&mut Value)) -> Value {
        let now = jsonwebtoken::get_current_timestamp();
        let mut claims = json!({
            "iss": "https://issuer.example", "aud": "windlass", "sub": "ann", "exp": now + 600,
            "nbf": now - 5, "namespace": "tenant", "scope": "read send-event other:thing",
        });
        change(&mut claims);
        claims
    }

    #[test]
    fn keys_that_cannot_work_are_refused() {
        for (made, expect) in [
            (JwtKey::from_secret(Algorithm::RS256, SECRET), "does not go with a shared secret"),
            (JwtKey::from_secret(Algorithm::HS256, b"short"), "has 5 bytes"),
            (JwtKey::from_pem(Algorithm::HS256, b""), "does not go with a public key"),
            (JwtKey::from_pem(Algorithm::RS256, b"no pem"), "does not read"),
        ] {
            let error = made.err().expect("it is refused");
            assert!(error.message().contains(expect), "{error}");
        }
    }

    #[test]
    fn a_token_of_the_issuer_is_believed() {
        let caller = jwt().caller(&token(Algorithm::HS256, SECRET, &claims(|_| ()))).unwrap();
        assert_eq!(caller.namespace.as_str(), "tenant");
        assert_eq!(caller.scopes.list(), [Scope::Read, Scope::SendEvent]);
        assert!(caller.actor.is_some());
        let listed = claims(|claims| {
            claims["scope"] = Value::Null;
            claims["scopes"] = json!(["manage"]);
        });
        let caller = jwt().caller(&token(Algorithm::HS256, SECRET, &listed)).unwrap();
        assert_eq!(caller.scopes.list(), [Scope::Manage]);
    }

    #[test]
    fn a_key_without_a_name_serves_tokens_of_any_as_long_as_it_is_alone() {
        let named = |kid: &str| {
            let header = Header { kid: Some(kid.into()), ..Header::new(Algorithm::HS256) };
            encode(&header, &claims(|_| ()), &EncodingKey::from_secret(SECRET)).unwrap()
        };
        let bare = token(Algorithm::HS256, SECRET, &claims(|_| ()));
        assert!(jwt().caller(&named("2026-01")).is_ok());
        assert!(jwt().caller(&bare).is_ok());
        let key = JwtKey::from_secret(Algorithm::HS256, SECRET).unwrap();
        let two = jwt().key(Some("2026-01".into()), key.clone());
        for (token, fine) in [(named("2026-01"), true), (named("2025-12"), false), (bare, true)] {
            assert_eq!(two.caller(&token).is_ok(), fine);
        }
        let only = Jwt::new("https://issuer.example", "windlass").key(Some("a".into()), key);
        assert!(only.caller(&named("a")).is_ok());
        assert!(only.caller(&named("b")).is_err(), "a key with a name is for that name");
    }

    #[test]
    fn every_other_token_is_refused() {
        let past = jsonwebtoken::get_current_timestamp() - 3_600;
        type Change = fn(&mut Value, u64);
        let changes: [(&str, Change); 10] = [
            ("expired", |claims, past| claims["exp"] = past.into()),
            ("no expiry", |claims, _| drop(claims.as_object_mut().unwrap().remove("exp"))),
            ("not yet", |claims, past| claims["nbf"] = (past + 7_200).into()),
            ("another issuer", |claims, _| claims["iss"] = "https://evil.example".into()),
            ("many issuers", |claims, _| {
                claims["iss"] = json!(["https://issuer.example", "https://evil.example"]);
            }),
            ("no issuer", |claims, _| drop(claims.as_object_mut().unwrap().remove("iss"))),
            ("another audience", |claims, _| claims["aud"] = "payroll".into()),
            ("no audience", |claims, _| drop(claims.as_object_mut().unwrap().remove("aud"))),
            ("no namespace", |claims, _| drop(claims.as_object_mut().unwrap().remove("namespace"))),
            ("no such namespace", |claims, _| claims["namespace"] = "../x".into()),
        ];
        for (what, change) in changes {
            let claims = claims(|claims| change(claims, past));
            let refused = jwt().caller(&token(Algorithm::HS256, SECRET, &claims));
            assert_eq!(refused.unwrap_err().code(), "UNAUTHENTICATED", "{what}");
        }
        let fine = claims(|_| ());
        let signed = token(Algorithm::HS256, SECRET, &fine);
        let mut parts = signed.split('.');
        let body = format!("{}.{}", parts.next().unwrap(), parts.next().unwrap());
        let unsigned =
            format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{}.", body.split('.').nth(1).unwrap());
        let critical = |names: &[&str]| {
            let crit = Some(names.iter().map(|name| (*name).to_owned()).collect());
            let header = Header { crit, ..Header::new(Algorithm::HS256) };
            encode(&header, &fine, &EncodingKey::from_secret(SECRET)).unwrap()
        };
        for (what, token) in [
            ("something critical", critical(&["b64"])),
            ("nothing critical", critical(&[])),
            ("another secret", token(Algorithm::HS256, b"another secret of some length...", &fine)),
            ("another algorithm", token(Algorithm::HS384, SECRET, &fine)),
            ("cut off", body.clone()),
            ("alg none", unsigned),
            ("nothing", String::new()),
        ] {
            assert_eq!(jwt().caller(&token).unwrap_err().code(), "UNAUTHENTICATED", "{what}");
        }
    }
}
