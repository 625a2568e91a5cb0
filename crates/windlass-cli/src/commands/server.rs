//! `windlass server`: serves a store over HTTP in production.

use std::sync::Arc;

use tokio::net::TcpListener;
use windlass::kernel::{Actor, BoxFuture};
use windlass::{Builder, Engine};
use windlass_server::auth::{Auth, Authorize, Caller, Denied};
use windlass_server::{Options, SettingView};

use super::contracts::serve as documents;
use super::store::open_failure;
use super::{relays, serve};
use crate::args::ServerArgs;
use crate::exit::{Failure, Outcome};
use crate::output::note;
use crate::redact::without_password;
use crate::samples::{self, Llm};
use crate::settings::{AuthSettings, Settings};

pub(super) async fn run(args: ServerArgs) -> Outcome {
    let settings = Settings::read(&args)?;
    let telemetry = windlass_server::telemetry::init(&settings.log, settings.log_json)?;
    let listener = TcpListener::bind(settings.bind).await.map_err(|error| {
        Failure::error(format!("failed to listen on {}: {error}", settings.bind))
    })?;
    let engine = Builder::from(settings.engine.options.clone())
        .connections(settings.engine.connections)
        .worker_name(worker_name())
        .version(env!("CARGO_PKG_VERSION"))
        .open(&settings.store)
        .await
        .map_err(|error| open_failure(&settings.store, error))?;
    let llm = settings.samples.then(|| Llm::choose(None)).transpose()?;
    if let Some(llm) = &llm {
        samples::register(&engine, llm)?;
    }
    relays::register(&engine, &settings.tables)?;
    let contracts = documents::open(&engine, &settings.tables).await?;
    if settings.samples {
        samples::documents::register(&contracts).await?;
    }
    let mut options = options(&settings, &engine);
    options.routes.push(windlass_server::contracts::routes(&contracts));
    let address = listener.local_addr()?;
    let shown = without_password(&settings.store);
    note(&format!("windlass {} serves the store {shown}", env!("CARGO_PKG_VERSION")));
    note(&format!("listening on http://{address}/api, {}", auth_text(&settings)));
    let serving = settings.http.serving(settings.drain);
    let outcome = serve::until_stopped(&engine, options, listener, serving).await;
    telemetry.stop();
    outcome
}

fn auth_text(settings: &Settings) -> &'static str {
    match &settings.auth {
        AuthSettings::Off => "without authentication, loopback only",
        AuthSettings::Keys { admin_key: Some(_) } => "with API keys and the admin key",
        AuthSettings::Keys { admin_key: None } => {
            "with API keys; set WINDLASS_ADMIN_KEY to create the first one"
        }
        AuthSettings::Jwt(_) => "with JSON web tokens",
    }
}

fn options(settings: &Settings, engine: &Engine) -> Options {
    let auth = match &settings.auth {
        AuthSettings::Off => Auth::Loopback,
        AuthSettings::Keys { .. } => Auth::Keys,
        AuthSettings::Jwt(jwt) => Auth::Credentials { keys: None, jwt: Some(jwt.clone()) },
    };
    let shown = settings.all.iter().map(|setting| SettingView {
        name: setting.name.to_owned(),
        value: setting.display(),
        from: setting.origin.to_string(),
    });
    let mut options = Options { auth, settings: shown.collect(), ..settings.http.options() };
    if let AuthSettings::Keys { admin_key: Some(key) } = &settings.auth {
        let namespace = engine.admin().options().namespace.clone();
        options.authorize = Some(Arc::new(AdminKey::new(key, Caller::everything(namespace))));
    }
    options
}

/// Authenticates the admin key, which can create the first API keys.
struct AdminKey {
    digest: windlass::kernel::Sha256Digest,
    caller: Caller,
}

impl AdminKey {
    fn new(key: &str, caller: Caller) -> Self {
        let digest = windlass::kernel::Sha256Digest::of(key.as_bytes());
        // Gives the key an identity, so that the ledger records which admin key was used.
        let actor = Some(Actor::new("admin_key", &digest.to_string()));
        Self { digest, caller: Caller { actor, ..caller } }
    }
}

impl Authorize for AdminKey {
    fn request<'a>(
        &'a self,
        request: &'a axum::http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        let token = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        let token = token
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        // Comparing digests does not leak through timing how much of a guess is correct.
        let matches = token.is_some_and(|(_, token)| {
            windlass::kernel::Sha256Digest::of(token.trim().as_bytes()) == self.digest
        });
        Box::pin(std::future::ready(Ok(matches.then(|| self.caller.clone()))))
    }
}

fn worker_name() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "windlass" } else { host };
    format!("{host}:{}", std::process::id())
}
