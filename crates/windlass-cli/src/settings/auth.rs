//! Authentication settings: the mode, JWT requirements, and the admin key.

use std::net::SocketAddr;
use std::path::Path;

use windlass_server::auth::{Algorithm, Jwt, JwtKey};

use super::{Setting, invalid};
use crate::exit::Failure;

/// Shorter admin keys are rejected because they can be guessed.
const ADMIN_KEY_CHARS_MIN: usize = 32;

/// How callers authenticate.
#[derive(Clone)]
pub(crate) enum AuthSettings {
    /// No authentication; only for loopback addresses.
    Off,
    /// API keys in the store, and an optional admin key.
    Keys { admin_key: Option<String> },
    /// JSON web tokens.
    Jwt(Jwt),
}

impl AuthSettings {
    /// The name of the mode in the settings.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Keys { .. } => "keys",
            Self::Jwt(_) => "jwt",
        }
    }

    pub(super) fn read<'a>(
        get: impl Fn(&str) -> &'a Setting,
        bind: SocketAddr,
    ) -> Result<Self, Failure> {
        let (mode, admin_key) = (get("auth"), get("admin_key"));
        let loopback = bind.ip().is_loopback();
        let auth = match mode.value.as_str() {
            "off" if loopback => Self::Off,
            "" | "keys" => Self::Keys { admin_key: admin(admin_key)? },
            "jwt" => Self::Jwt(jwt(&get)?),
            "off" => {
                let why =
                    format!("without authentication, anyone who can reach {bind} has full access");
                return Err(invalid(mode, &why)
                    .with_hint("listen on 127.0.0.1, or use --auth keys or --auth jwt"));
            }
            _ => return Err(invalid(mode, "expected off, keys or jwt")),
        };
        if !admin_key.value.is_empty() && !matches!(auth, Self::Keys { .. }) {
            return Err(invalid(admin_key, "admin_key needs auth = keys"));
        }
        Ok(auth)
    }
}

fn admin(setting: &Setting) -> Result<Option<String>, Failure> {
    if setting.value.is_empty() {
        return Ok(None);
    }
    if setting.value.chars().count() < ADMIN_KEY_CHARS_MIN {
        let why = format!("the key is shorter than {ADMIN_KEY_CHARS_MIN} characters");
        return Err(invalid(setting, &why).with_hint("generate one with: openssl rand -hex 32"));
    }
    Ok(Some(setting.value.clone()))
}

fn jwt<'a>(get: &impl Fn(&str) -> &'a Setting) -> Result<Jwt, Failure> {
    let needed = |name: &str| match get(name) {
        setting if setting.value.is_empty() => {
            let message = format!("auth = jwt needs the setting {name}");
            Err(Failure::usage(message))
        }
        setting => Ok(setting),
    };
    let (issuer, audience) = (needed("jwt_issuer")?, needed("jwt_audience")?);
    let (file, name) = (needed("jwt_key")?, get("jwt_algorithm"));
    let claims = ["jwt_namespace_claim", "jwt_subject_claim", "jwt_roles_claim"].map(get);
    if let Some(claim) = claims.iter().find(|claim| claim.value.is_empty()) {
        return Err(invalid(claim, "the name of the claim is empty"));
    }
    let [namespace, subject, roles] = claims.map(|claim| claim.value.as_str());
    let bytes = std::fs::read(Path::new(&file.value))
        .map_err(|error| invalid(file, &format!("failed to read the key: {error}")))?;
    let algorithm: Algorithm =
        name.value.parse().map_err(|_| invalid(name, "unknown JWT algorithm"))?;
    let key = match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
            JwtKey::from_secret(algorithm, bytes.trim_ascii())
        }
        _ => JwtKey::from_pem(algorithm, &bytes),
    };
    let key = key.map_err(|error| {
        invalid(file, &format!("not a valid key for {}: {}", name.value, error.message()))
    })?;
    let jwt = Jwt::new(&issuer.value, &audience.value).key(None, key);
    Ok(jwt.namespace_claim(namespace).subject_claim(subject).roles_claim(roles))
}
