//! Authentication with JSON web tokens of an external issuer.

use std::collections::HashMap;
use std::sync::Arc;

use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Map, Value};
use windlass::kernel::{Actor, Namespace, ROLES_MAX, Subject};
use windlass::{Error, ErrorCode, ErrorKind};

use super::{Caller, Scope, Scopes, signatures};
use crate::error::ApiError;

/// A key that verifies tokens.
#[derive(Clone)]
pub struct JwtKey {
    /// The only accepted algorithm: the token must not choose it.
    algorithm: Algorithm,
    key: DecodingKey,
}

/// Shorter shared secrets are rejected because they can be guessed.
const SECRET_BYTES_MIN: usize = 32;

impl JwtKey {
    /// Creates a key from a secret that is shared with the issuer, for HS256, HS384 or HS512.
    pub fn from_secret(algorithm: Algorithm, secret: &[u8]) -> Result<Self, Error> {
        use Algorithm::{HS256, HS384, HS512};
        if !matches!(algorithm, HS256 | HS384 | HS512) {
            return Err(invalid_key(format!("{algorithm:?} cannot be used with a shared secret")));
        }
        if secret.len() < SECRET_BYTES_MIN {
            let bytes = secret.len();
            return Err(invalid_key(format!(
                "the secret has {bytes} bytes; at least {SECRET_BYTES_MIN} are required"
            )));
        }
        signatures::install();
        Ok(Self { algorithm, key: DecodingKey::from_secret(secret) })
    }

    /// Creates a key from the public key of the issuer (PEM), for an RSA, ECDSA or EdDSA algorithm.
    pub fn from_pem(algorithm: Algorithm, pem: &[u8]) -> Result<Self, Error> {
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        let key = match algorithm {
            RS256 | RS384 | RS512 | PS256 | PS384 | PS512 => DecodingKey::from_rsa_pem(pem),
            ES256 | ES384 => DecodingKey::from_ec_pem(pem),
            EdDSA => DecodingKey::from_ed_pem(pem),
            _ => {
                return Err(invalid_key(format!("{algorithm:?} cannot be used with a public key")));
            }
        };
        let key =
            key.map_err(|error| invalid_key(format!("failed to parse the public key: {error}")))?;
        signatures::install();
        Ok(Self { algorithm, key })
    }
}

fn invalid_key(message: String) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message)
}

/// Which tokens are accepted.
#[derive(Clone)]
pub struct Jwt {
    keys: Arc<HashMap<Option<String>, JwtKey>>,
    issuer: String,
    audience: String,
    namespace_claim: String,
    subject_claim: String,
    roles_claim: String,
    leeway_s: u64,
}

impl Jwt {
    /// Accepts tokens of an issuer for an audience. Every token must have an issuer, an audience
    /// and an expiry.
    pub fn new(issuer: impl Into<String>, audience: impl Into<String>) -> Self {
        Self {
            keys: Arc::default(),
            issuer: issuer.into(),
            audience: audience.into(),
            namespace_claim: "namespace".into(),
            subject_claim: "sub".into(),
            roles_claim: "roles".into(),
            leeway_s: 30,
        }
    }

    /// Adds a key. A key without a `kid` verifies tokens without one. If it is the only key, it
    /// verifies all tokens, because many issuers set a `kid` even with a single key.
    pub fn key(mut self, kid: Option<String>, key: JwtKey) -> Self {
        Arc::make_mut(&mut self.keys).insert(kid, key);
        self
    }

    /// Sets the claim with the namespace. Default `namespace`.
    pub fn namespace_claim(mut self, claim: impl Into<String>) -> Self {
        self.namespace_claim = claim.into();
        self
    }

    /// Sets the claim with the id of the person. Default `sub`.
    pub fn subject_claim(mut self, claim: impl Into<String>) -> Self {
        self.subject_claim = claim.into();
        self
    }

    /// Sets the claim with the roles of the person: a list of texts, or one text with spaces between
    /// them. Default `roles`.
    pub fn roles_claim(mut self, claim: impl Into<String>) -> Self {
        self.roles_claim = claim.into();
        self
    }

    fn key_for(&self, kid: &Option<String>) -> Option<&JwtKey> {
        let only = || self.keys.get(&None).filter(|_| self.keys.len() == 1);
        self.keys.get(kid).or_else(only)
    }

    /// Verifies a token and returns its caller.
    pub(super) fn caller(&self, token: &str) -> Result<Caller, ApiError> {
        let reject = |why: String| {
            // The log has the reason for the operator; the client may be an attacker and gets no
            // details.
            tracing::debug!(why, "rejected a JWT");
            ApiError::unauthenticated("the token is not valid")
        };
        let header =
            jsonwebtoken::decode_header(token).map_err(|error| reject(error.to_string()))?;
        let key = self.key_for(&header.kid).ok_or_else(|| reject("unknown key".into()))?;
        if header.alg != key.algorithm {
            return Err(reject(format!("algorithm {:?}", header.alg)));
        }
        // RFC 7515: all critical extensions must be understood, and this server supports none.
        if header.crit.is_some() {
            return Err(reject("critical header".into()));
        }
        let mut validation = Validation::new(key.algorithm);
        validation.leeway = self.leeway_s;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let token = jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &validation);
        let claims = token.map_err(|error| reject(error.to_string()))?.claims;
        // The library also accepts a list that contains the issuer.
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(reject("issuer".into()));
        }
        let namespace = claims.get(&self.namespace_claim).and_then(Value::as_str);
        let namespace = namespace.ok_or_else(|| reject("no namespace".into()))?;
        let namespace =
            Namespace::new(namespace).map_err(|error| reject(error.message().to_owned()))?;
        let subject = self.subject(&claims).map_err(|error| reject(error.message().to_owned()))?;
        let sub = claims.get("sub").and_then(Value::as_str);
        let actor = match &subject {
            Some(subject) => Some(subject.actor()),
            None => sub.map(|sub| Actor::new("user", sub)),
        };
        Ok(Caller { namespace, scopes: scopes(&claims), actor, subject, key: None })
    }

    // A token without the claim stands for no person. Roles that are not valid are left out: the claim
    // may hold groups that have nothing to do with this server, and fewer roles allow less.
    fn subject(&self, claims: &Map<String, Value>) -> Result<Option<Subject>, Error> {
        let Some(id) = claims.get(&self.subject_claim).and_then(Value::as_str) else {
            return Ok(None);
        };
        let mut roles: Vec<&str> = split_words(claims.get(&self.roles_claim)).collect();
        roles.retain(|role| Subject::is_role(role));
        roles.truncate(ROLES_MAX);
        Subject::new(id, roles).map(Some)
    }
}

/// The scopes in `scope` (separated by spaces) or `scopes` (a list). Unknown scopes are ignored.
fn scopes(claims: &Map<String, Value>) -> Scopes {
    let words = split_words(claims.get("scope")).chain(split_words(claims.get("scopes")));
    words.filter_map(Scope::parse).collect()
}

/// The words of a claim: a text with spaces between them, or a list of texts.
fn split_words(claim: Option<&Value>) -> impl Iterator<Item = &str> {
    let text = claim.and_then(Value::as_str).unwrap_or_default().split_ascii_whitespace();
    let list = claim.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    text.chain(list)
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

    fn sign(header: &Header, secret: &[u8], claims: &Value) -> String {
        signatures::install();
        encode(header, claims, &EncodingKey::from_secret(secret)).unwrap()
    }

    fn token(algorithm: Algorithm, secret: &[u8], claims: &Value) -> String {
        sign(&Header::new(algorithm), secret, claims)
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
    fn unusable_keys_are_rejected() {
        for (made, expect) in [
            (JwtKey::from_secret(Algorithm::RS256, SECRET), "cannot be used with a shared secret"),
            (JwtKey::from_secret(Algorithm::HS256, b"short"), "has 5 bytes"),
            (JwtKey::from_pem(Algorithm::HS256, b""), "cannot be used with a public key"),
            (JwtKey::from_pem(Algorithm::RS256, b"no pem"), "failed to parse"),
        ] {
            let error = made.err().expect("the key is rejected");
            assert!(error.message().contains(expect), "{error}");
        }
    }

    #[test]
    fn a_valid_token_is_accepted() {
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
    fn claims_name_the_person_and_the_roles() {
        let caller = |jwt: Jwt, change: fn(&mut Value)| {
            jwt.caller(&token(Algorithm::HS256, SECRET, &claims(change)))
        };
        let subject = |jwt, change| caller(jwt, change).unwrap().subject;
        let ann = |roles: &[&str]| Some(Subject::new("ann", roles.iter().copied()).unwrap());
        assert_eq!(subject(jwt(), |_| ()), ann(&[]));
        assert_eq!(subject(jwt(), |claims| claims["roles"] = json!(["cfo"])), ann(&["cfo"]));
        assert_eq!(subject(jwt(), |claims| claims["roles"] = json!("a b")), ann(&["a", "b"]));
        let other = || jwt().subject_claim("email").roles_claim("groups");
        assert_eq!(subject(other(), |_| ()), None, "a token of a program");
        let mail = |claims: &mut Value| {
            claims["email"] = json!("ann");
            claims["groups"] = json!(["cfo"]);
        };
        assert_eq!(subject(other(), mail), ann(&["cfo"]));
        let many = |claims: &mut Value| {
            let groups: Vec<String> = (0..100).map(|n| format!("g{n}")).collect();
            claims["roles"] = json!(groups);
        };
        assert_eq!(subject(jwt(), many).unwrap().roles().len(), ROLES_MAX);
        let mixed = |claims: &mut Value| {
            claims["roles"] = json!(["a,b", "Finance Managers", "cfo", ""]);
        };
        assert_eq!(subject(jwt(), mixed), ann(&["cfo"]));
    }

    #[test]
    fn a_single_key_without_a_kid_verifies_all_tokens() {
        let named = |kid: &str| {
            let header = Header { kid: Some(kid.into()), ..Header::new(Algorithm::HS256) };
            sign(&header, SECRET, &claims(|_| ()))
        };
        let bare = token(Algorithm::HS256, SECRET, &claims(|_| ()));
        assert!(jwt().caller(&named("2026-01")).is_ok());
        assert!(jwt().caller(&bare).is_ok());
        let key = JwtKey::from_secret(Algorithm::HS256, SECRET).unwrap();
        let two = jwt().key(Some("2026-01".into()), key.clone());
        for (token, valid) in [(named("2026-01"), true), (named("2025-12"), false), (bare, true)] {
            assert_eq!(two.caller(&token).is_ok(), valid);
        }
        let only = Jwt::new("https://issuer.example", "windlass").key(Some("a".into()), key);
        assert!(only.caller(&named("a")).is_ok());
        assert!(only.caller(&named("b")).is_err(), "a key with a kid verifies only that kid");
    }

    #[test]
    fn invalid_tokens_are_rejected() {
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
            let result = jwt().caller(&token(Algorithm::HS256, SECRET, &claims));
            assert_eq!(result.unwrap_err().code(), "UNAUTHENTICATED", "{what}");
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
            sign(&header, SECRET, &fine)
        };
        for (what, token) in [
            ("a critical extension", critical(&["b64"])),
            ("an empty list of critical extensions", critical(&[])),
            ("another secret", token(Algorithm::HS256, b"another secret of some length...", &fine)),
            ("another algorithm", token(Algorithm::HS384, SECRET, &fine)),
            ("without a signature", body.clone()),
            ("alg none", unsigned),
            ("empty", String::new()),
        ] {
            assert_eq!(jwt().caller(&token).unwrap_err().code(), "UNAUTHENTICATED", "{what}");
        }
    }
}
