//! `windlass server`: a store served to others, in production.

use std::sync::Arc;

use tokio::net::TcpListener;
use windlass::Engine;
use windlass::kernel::{Actor, BoxFuture};
use windlass_server::Options;
use windlass_server::auth::{Algorithm, Auth, Authorize, Caller, Denied, Jwt, JwtKey};

use super::{relays, serve};
use crate::args::ServerArgs;
use crate::exit::{Failure, Outcome};
use crate::output::note;
use crate::samples;
use crate::settings::{AuthMode, JwtSettings, Settings};
use crate::shown::without_password;

/// An admin key that could be guessed is refused.
const ADMIN_KEY_CHARS_MIN: usize = 32;

pub(super) async fn run(args: ServerArgs) -> Outcome {
    let settings = Settings::read(&args)?;
    let telemetry = windlass_server::telemetry::init(&settings.log, settings.log_json)?;
    let listener = TcpListener::bind(settings.bind).await.map_err(|error| {
        Failure::error(format!("{} cannot be listened on: {error}", settings.bind))
    })?;
    let engine = Engine::builder()
        .worker_name(worker_name())
        .version(env!("CARGO_PKG_VERSION"))
        .open(&settings.store)
        .await?;
    if settings.samples {
        samples::register(&engine)?;
    }
    relays::register(&engine, &settings.tables)?;
    let options = options(&settings, &engine)?;
    let address = listener.local_addr()?;
    let shown = without_password(&settings.store);
    note(&format!("windlass {} serves {shown}", env!("CARGO_PKG_VERSION")));
    note(&format!("listening on http://{address}/api, {}", auth_text(&settings)));
    let serving = settings.http.serving(settings.drain);
    let outcome = serve::until_stopped(&engine, options, listener, serving).await;
    telemetry.stop();
    outcome
}

fn auth_text(settings: &Settings) -> &'static str {
    match (settings.auth, &settings.admin_key) {
        (AuthMode::Off, _) => "open to this machine",
        (AuthMode::Keys, Some(_)) => "with API keys and the admin key",
        (AuthMode::Keys, None) => {
            "with API keys; the first one is made with WINDLASS_ADMIN_KEY set"
        }
        (AuthMode::Jwt, _) => "with JSON web tokens",
    }
}

fn options(settings: &Settings, engine: &Engine) -> Result<Options, Failure> {
    let auth = match settings.auth {
        AuthMode::Off => Auth::Loopback,
        AuthMode::Keys => Auth::Keys,
        AuthMode::Jwt => Auth::Credentials { keys: None, jwt: Some(jwt(&settings.jwt)?) },
    };
    let mut options = Options { auth, ..settings.http.options() };
    if let Some(key) = &settings.admin_key {
        if settings.auth != AuthMode::Keys {
            let message = "admin_key is set and auth is not keys: it would be ignored";
            return Err(Failure::usage(message));
        }
        let namespace = engine.options().namespace.clone();
        options.authorize = Some(Arc::new(AdminKey::new(key, Caller::everything(namespace))?));
    }
    Ok(options)
}

fn jwt(settings: &JwtSettings) -> Result<Jwt, Failure> {
    let missing = |name: &str| {
        Failure::usage(format!("auth is jwt and {name} is not set: any token would do"))
    };
    let issuer = settings.issuer.clone().ok_or_else(|| missing("jwt_issuer"))?;
    let audience = settings.audience.clone().ok_or_else(|| missing("jwt_audience"))?;
    let path = settings.key_file.as_ref().ok_or_else(|| missing("jwt_key"))?;
    let shown = path.display();
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::error(format!("the key {shown} cannot be read: {error}")))?;
    let name = &settings.algorithm;
    let algorithm: Algorithm =
        name.parse().map_err(|_| Failure::usage(format!("{name:?} is no algorithm of tokens")))?;
    let key = match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
            JwtKey::from_secret(algorithm, bytes.trim_ascii())
        }
        _ => JwtKey::from_pem(algorithm, &bytes),
    };
    let key = key.map_err(|error| {
        Failure::usage(format!("{shown} is not a key for {name}: {}", error.message()))
    })?;
    let jwt = Jwt::new(issuer, audience).key(None, key);
    Ok(jwt.namespace_claim(&settings.namespace_claim))
}

/// The key with which the first keys are made.
struct AdminKey {
    digest: windlass::kernel::Sha256Digest,
    caller: Caller,
}

impl AdminKey {
    fn new(key: &str, caller: Caller) -> Result<Self, Failure> {
        if key.chars().count() < ADMIN_KEY_CHARS_MIN {
            let message = format!("admin_key has less than {ADMIN_KEY_CHARS_MIN} characters");
            return Err(Failure::usage(message).with_hint("make one with: openssl rand -hex 32"));
        }
        let digest = windlass::kernel::Sha256Digest::of(key.as_bytes());
        // Not nobody in particular: the ledger tells what was done with it, and with which.
        let actor = Some(Actor::new("admin_key", &digest.to_string()));
        Ok(Self { digest, caller: Caller { actor, ..caller } })
    }
}

impl Authorize for AdminKey {
    fn request<'a>(
        &'a self,
        request: &'a axum::http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        let token = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        let token = token.and_then(|text| text.split_once(' ')).filter(|(scheme, _)| {
            // As other keys are taken.
            scheme.eq_ignore_ascii_case("bearer")
        });
        // Digests are compared, so that how far a guess agrees cannot be timed.
        let is = token.is_some_and(|(_, token)| {
            windlass::kernel::Sha256Digest::of(token.trim().as_bytes()) == self.digest
        });
        Box::pin(std::future::ready(Ok(is.then(|| self.caller.clone()))))
    }
}

fn worker_name() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "windlass" } else { host };
    format!("{host}:{}", std::process::id())
}
