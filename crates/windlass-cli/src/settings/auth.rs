//! Who may call: the mode, what tokens must look like, and the key with which the first keys are made.

use std::net::SocketAddr;
use std::path::Path;

use windlass_server::auth::{Algorithm, Jwt, JwtKey};

use super::{Setting, wrong};
use crate::exit::Failure;

/// An admin key that could be guessed is refused.
const ADMIN_KEY_CHARS_MIN: usize = 32;

/// How callers prove who they are.
#[derive(Clone)]
pub(crate) enum AuthSettings {
    /// Not at all: only this machine may call.
    Off,
    /// By API keys, and by this one that is not in the store.
    Keys { admin_key: Option<String> },
    /// By tokens.
    Jwt(Jwt),
}

impl AuthSettings {
    /// The mode as it is written.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Keys { .. } => "keys",
            Self::Jwt(_) => "jwt",
        }
    }

    pub(super) fn read<'a>(
        of: impl Fn(&str) -> &'a Setting,
        bind: SocketAddr,
    ) -> Result<Self, Failure> {
        let (mode, admin_key) = (of("auth"), of("admin_key"));
        let loopback = bind.ip().is_loopback();
        let auth = match mode.value.as_str() {
            "" | "off" if loopback => Self::Off,
            "" | "keys" => Self::Keys { admin_key: admin(admin_key)? },
            "jwt" => Self::Jwt(jwt(&of)?),
            // Without credentials only this machine may call.
            "off" => {
                let why = format!("everybody who reaches {bind} could do everything");
                return Err(wrong(mode, &why)
                    .with_hint("listen on 127.0.0.1, or use --auth keys or --auth jwt"));
            }
            _ => return Err(wrong(mode, "use off, keys or jwt")),
        };
        if !admin_key.value.is_empty() && !matches!(auth, Self::Keys { .. }) {
            return Err(wrong(admin_key, "auth is not keys, so it would be ignored"));
        }
        Ok(auth)
    }
}

fn admin(setting: &Setting) -> Result<Option<String>, Failure> {
    if setting.value.is_empty() {
        return Ok(None);
    }
    if setting.value.chars().count() < ADMIN_KEY_CHARS_MIN {
        let why = format!("it has less than {ADMIN_KEY_CHARS_MIN} characters");
        return Err(wrong(setting, &why).with_hint("make one with: openssl rand -hex 32"));
    }
    Ok(Some(setting.value.clone()))
}

fn jwt<'a>(of: &impl Fn(&str) -> &'a Setting) -> Result<Jwt, Failure> {
    let needed = |name: &str| match of(name) {
        setting if setting.value.is_empty() => {
            let message = format!("auth is jwt and {name} is not set: any token would do");
            Err(Failure::usage(message))
        }
        setting => Ok(setting),
    };
    let (issuer, audience) = (needed("jwt_issuer")?, needed("jwt_audience")?);
    let (file, name) = (needed("jwt_key")?, of("jwt_algorithm"));
    let claim = of("jwt_namespace_claim");
    if claim.value.is_empty() {
        return Err(wrong(claim, "name a claim"));
    }
    let bytes = std::fs::read(Path::new(&file.value))
        .map_err(|error| wrong(file, &format!("the key cannot be read: {error}")))?;
    let algorithm: Algorithm =
        name.value.parse().map_err(|_| wrong(name, "there is no such algorithm of tokens"))?;
    let key = match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
            JwtKey::from_secret(algorithm, bytes.trim_ascii())
        }
        _ => JwtKey::from_pem(algorithm, &bytes),
    };
    let key = key.map_err(|error| {
        wrong(file, &format!("it is not a key for {}: {}", name.value, error.message()))
    })?;
    let jwt = Jwt::new(&issuer.value, &audience.value).key(None, key);
    Ok(jwt.namespace_claim(&claim.value))
}
