//! The tables of the config file: relays and webhooks.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use windlass::kernel::{Namespace, WorkflowName};
use windlass::mail::{SmtpOptions, SmtpTls};
use windlass::outbound::{Cidr, Policy};
use windlass::relays::{HttpRunner, HttpRunnerOptions};
use windlass::webhooks::{DEFAULT_SECRETS, Secret, WebhookOptions};

use crate::exit::Failure;

/// A relay whose steps are executed over HTTP.
#[derive(Clone, Debug)]
pub(crate) struct RelaySettings {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) timeout: Duration,
    pub(crate) max_attempts: Option<u32>,
    /// The delay before the second attempt, and the maximum delay.
    pub(crate) backoff: (Duration, Duration),
    pub(crate) concurrency: Option<usize>,
    pub(crate) policy: Policy,
}

impl RelaySettings {
    /// Creates the runner that sends each step to the URL.
    pub(crate) fn runner(&self) -> Result<HttpRunner, windlass::Error> {
        HttpRunner::new(HttpRunnerOptions {
            timeout: self.timeout,
            policy: self.policy.clone(),
            ..HttpRunnerOptions::new(&self.url, self.secrets.clone())
        })
    }
}

/// The parsed tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) relays: Vec<RelaySettings>,
    pub(crate) webhooks: WebhookOptions,
    pub(crate) smtp: Option<SmtpOptions>,
}

impl Tables {
    /// Whether there are secrets that sign webhooks.
    pub(crate) fn has_webhooks(&self) -> bool {
        !self.webhooks.secrets.is_empty() || !self.webhooks.namespaces.is_empty()
    }
}

/// The names of the tables.
pub(super) const TABLES: [&str; 3] = ["relays", "smtp", "webhooks"];

const RELAY_TIMEOUT: Duration = Duration::from_secs(60);
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RelayTable {
    name: String,
    url: String,
    secret: Texts,
    timeout: Option<String>,
    max_attempts: Option<u32>,
    backoff: Option<String>,
    backoff_max: Option<String>,
    concurrency: Option<usize>,
    #[serde(default)]
    allow: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WebhooksTable {
    secret: Option<Texts>,
    secrets: BTreeMap<String, Texts>,
    namespaces: BTreeMap<String, BTreeMap<String, Texts>>,
    timeout: Option<String>,
    plain_http: bool,
    ports: Option<Vec<u16>>,
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SmtpTable {
    host: String,
    port: Option<u16>,
    tls: Option<String>,
    user: Option<String>,
    password: Option<String>,
    from: String,
    timeout: Option<String>,
}

/// One or several secrets; the first is the newest.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Tables {
    /// Parses one table. `env` looks up variables that secrets refer to.
    pub(super) fn read(
        &mut self,
        name: &str,
        value: toml::Value,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), Failure> {
        let invalid = |error: toml::de::Error| Failure::usage(format!("[{name}]: {error}"));
        if name == "relays" {
            let tables: Vec<RelayTable> = value.try_into().map_err(invalid)?;
            for table in tables {
                self.add(relay(table, env)?)?;
            }
        } else if name == "smtp" {
            self.smtp = Some(smtp(value.try_into().map_err(invalid)?, env)?);
        } else {
            self.webhooks = webhooks(value.try_into().map_err(invalid)?, env)?;
        }
        Ok(())
    }

    /// Adds a relay. Its name must be unique.
    pub(crate) fn add(&mut self, relay: RelaySettings) -> Result<(), Failure> {
        if self.relays.iter().any(|known| known.name == relay.name) {
            return Err(Failure::usage(format!("duplicate relay {:?}", relay.name)));
        }
        let named = WorkflowName::new(&*relay.name).map(drop);
        named.and_then(|()| relay.runner().map(drop)).map_err(|error| {
            Failure::usage(format!("failed to configure relay {:?}: {error}", relay.name))
        })?;
        self.relays.push(relay);
        Ok(())
    }
}

fn relay(
    table: RelayTable,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<RelaySettings, Failure> {
    let name = table.name;
    let invalid = |why: &str| Failure::usage(format!("relay {name:?}: {why}"));
    if table.max_attempts == Some(0) || table.concurrency == Some(0) {
        return Err(invalid("max_attempts and concurrency must be at least 1"));
    }
    // A URL in the config file is trusted: it may use plain HTTP.
    let plain_http = table.url.starts_with("http://");
    let policy = Policy { plain_http, allow: ranges(&table.allow, &invalid)?, ..Policy::default() };
    Ok(RelaySettings {
        secrets: secrets(table.secret, env, &invalid)?,
        timeout: duration("timeout", table.timeout, RELAY_TIMEOUT, &invalid)?,
        max_attempts: table.max_attempts,
        backoff: backoff(table.backoff, table.backoff_max, &invalid)?,
        concurrency: table.concurrency,
        policy,
        url: table.url,
        name,
    })
}

// The default maximum is raised to the delay if only the delay is configured.
fn backoff(
    delay: Option<String>,
    max: Option<String>,
    invalid: InvalidFn<'_>,
) -> Result<(Duration, Duration), Failure> {
    let (given, (first, most)) = (max.is_some(), BACKOFF);
    let delay = duration("backoff", delay, first, invalid)?;
    let max = duration("backoff_max", max, most.max(delay), invalid)?;
    match given && max < delay {
        true => Err(invalid("backoff_max is less than backoff")),
        false => Ok((delay, max)),
    }
}

/// Parses `--relay NAME=URL`. The URL must be on this machine.
pub(crate) fn local_relay(text: &str, secret: Option<&str>) -> Result<RelaySettings, Failure> {
    let (name, url) = text
        .split_once('=')
        .ok_or_else(|| Failure::usage(format!("--relay {text:?} is not NAME=URL")))?;
    let secret = secret.ok_or_else(|| {
        Failure::usage("--relay needs a secret to sign its requests")
            .with_hint("export WINDLASS_RELAY_SECRET=whsec_$(openssl rand -base64 32)")
    })?;
    let loopback = ["127.0.0.0/8", "::1"].iter().map(|range| range.parse());
    let allow = loopback.collect::<Result<_, windlass::Error>>()?;
    Ok(RelaySettings {
        name: name.to_owned(),
        url: url.to_owned(),
        secrets: vec![secret.parse()?],
        timeout: RELAY_TIMEOUT,
        max_attempts: None,
        backoff: BACKOFF,
        concurrency: None,
        policy: Policy { plain_http: true, allow, ..Policy::default() },
    })
}

fn webhooks(
    table: WebhooksTable,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<WebhookOptions, Failure> {
    let invalid = |why: &str| Failure::usage(format!("[webhooks]: {why}"));
    let mut sets = table.secrets;
    if let Some(secret) = table.secret
        && sets.insert(DEFAULT_SECRETS.to_owned(), secret).is_some()
    {
        return Err(invalid("secret and secrets.default are the same setting; remove one"));
    }
    let mut known = BTreeMap::new();
    for (name, texts) in sets {
        known.insert(name, secrets(texts, env, &invalid)?);
    }
    let mut namespaces = BTreeMap::new();
    for (namespace, sets) in table.namespaces {
        Namespace::new(&namespace).map_err(|error| invalid(&format!("namespaces: {error}")))?;
        let mut known = BTreeMap::new();
        for (name, texts) in sets {
            known.insert(name, secrets(texts, env, &invalid)?);
        }
        namespaces.insert(namespace, known);
    }
    let defaults = WebhookOptions::default();
    Ok(WebhookOptions {
        policy: Policy {
            plain_http: table.plain_http,
            ports: table.ports,
            allow: ranges(&table.allow, &invalid)?,
            ..defaults.policy
        },
        secrets: known,
        namespaces,
        timeout: duration("timeout", table.timeout, defaults.timeout, &invalid)?,
    })
}

fn smtp(table: SmtpTable, env: &dyn Fn(&str) -> Option<String>) -> Result<SmtpOptions, Failure> {
    let invalid = |why: &str| Failure::usage(format!("[smtp]: {why}"));
    let defaults = SmtpOptions::new(table.host, table.from);
    let login = match (table.user, table.password) {
        (None, None) => None,
        (Some(user), Some(password)) => {
            let password = match password.strip_prefix("env:") {
                None => password,
                Some(name) => env(name)
                    .ok_or_else(|| invalid(&format!("the environment has no variable {name}")))?,
            };
            Some((user, password))
        }
        _ => return Err(invalid("set both user and password, or neither")),
    };
    Ok(SmtpOptions {
        port: table.port,
        tls: match table.tls.as_deref() {
            None | Some("starttls") => SmtpTls::StartTls,
            Some("implicit") => SmtpTls::Implicit,
            Some("off") => SmtpTls::Off,
            Some(other) => {
                return Err(invalid(&format!("tls is {other:?}; use starttls, implicit or off")));
            }
        },
        login,
        timeout: duration("timeout", table.timeout, defaults.timeout, &invalid)?,
        ..defaults
    })
}

type InvalidFn<'a> = &'a dyn Fn(&str) -> Failure;

// A secret is given literally, or as `env:NAME`.
fn secrets(
    texts: Texts,
    env: &dyn Fn(&str) -> Option<String>,
    invalid: InvalidFn<'_>,
) -> Result<Vec<Secret>, Failure> {
    let texts = match texts {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    };
    if texts.is_empty() {
        return Err(invalid("secret is an empty list"));
    }
    let read = |text: String| {
        let text = match text.strip_prefix("env:") {
            None => text,
            Some(name) => env(name).ok_or_else(|| invalid(&format!("{name} is not set")))?,
        };
        text.parse().map_err(|error: windlass::Error| invalid(&error.to_string()))
    };
    texts.into_iter().map(read).collect()
}

fn ranges(texts: &[String], invalid: InvalidFn<'_>) -> Result<Vec<Cidr>, Failure> {
    let read = |text: &String| {
        text.parse().map_err(|error: windlass::Error| invalid(&format!("allow: {error}")))
    };
    texts.iter().map(read).collect()
}

fn duration(
    what: &str,
    text: Option<String>,
    default: Duration,
    invalid: InvalidFn<'_>,
) -> Result<Duration, Failure> {
    let Some(text) = text else { return Ok(default) };
    crate::args::duration(&text).map_err(|why| invalid(&format!("{what}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn read(text: &str) -> Result<Tables, Failure> {
        let env = |name: &str| (name == "RELAY").then(|| SECRET.to_owned());
        let mut tables = Tables::default();
        for (name, value) in text.parse::<toml::Table>().unwrap() {
            tables.read(&name, value, &env)?;
        }
        Ok(tables)
    }

    #[test]
    fn relays_and_webhooks_are_read() {
        let tables = read(&format!(
            r#"
            [[relays]]
            name = "greet"
            url = "http://127.0.0.1:9000/"
            secret = ["env:RELAY", "{SECRET}"]
            timeout = "5 seconds"
            max_attempts = 7
            backoff = "2 minutes"
            concurrency = 4
            allow = ["127.0.0.1"]
            [[relays]]
            name = "plain"
            url = "https://runner.example/"
            secret = "env:RELAY"
            [webhooks]
            secret = "env:RELAY"
            timeout = "20 s"
            allow = ["10.0.0.0/8"]
            ports = [443]
            [webhooks.secrets]
            billing = "{SECRET}"
            [webhooks.namespaces.acme]
            default = ["env:RELAY", "{SECRET}"]
            "#
        ))
        .unwrap();
        let [greet, plain] = &tables.relays[..] else { panic!("{tables:?}") };
        assert_eq!((greet.secrets.len(), greet.timeout), (2, Duration::from_secs(5)));
        assert_eq!((greet.max_attempts, greet.concurrency), (Some(7), Some(4)));
        assert!(greet.policy.plain_http && !plain.policy.plain_http);
        assert_eq!((plain.timeout, plain.backoff), (RELAY_TIMEOUT, BACKOFF));
        assert_eq!(greet.backoff, (Duration::from_secs(120), Duration::from_secs(120)));
        let webhooks = &tables.webhooks;
        assert_eq!(webhooks.secrets.keys().collect::<Vec<_>>(), ["billing", "default"]);
        let acme = &webhooks.namespaces["acme"];
        assert_eq!((webhooks.namespaces.len(), acme["default"].len()), (1, 2));
        assert_eq!(webhooks.timeout, Duration::from_secs(20));
        assert_eq!((webhooks.policy.allow.len(), &webhooks.policy.ports), (1, &Some(vec![443])));
        assert!(!format!("{tables:?}").contains(&SECRET[6..]));
    }

    #[test]
    fn errors_name_the_invalid_setting() {
        let relay =
            |rest: &str| format!("[[relays]]\nname = \"r\"\nurl = \"https://e.example/\"\n{rest}");
        for (text, expect) in [
            (relay(""), "secret"),
            (relay("secret = \"env:MISSING\""), "MISSING is not set"),
            (relay("secret = \"s3cret\""), "does not begin with whsec_"),
            (relay("secret = []"), "empty list"),
            (relay("secret = \"env:RELAY\"\nallow = [\"10.1.1.1/8\"]"), "10.1.1.1/8"),
            (relay("secret = \"env:RELAY\"\nretries = 3"), "retries"),
            (relay("secret = \"env:RELAY\"\nmax_attempts = 0"), "must be at least 1"),
            (relay("secret = \"env:RELAY\"\ntimeout = \"soon\""), "timeout"),
            (relay("secret = \"env:RELAY\"\nbackoff = \"soon\""), "backoff: "),
            (relay("secret = \"env:RELAY\"\nbackoff = \"5\""), "write 5s or 5ms"),
            (relay("secret = \"env:RELAY\"\nbackoff_max = \"1 ms\""), "less than backoff"),
            (format!("{0}\n{0}", relay("secret = \"env:RELAY\"")), "duplicate relay"),
            ("[webhooks]\nport = [1]".to_owned(), "port"),
            ("[webhooks.namespaces.\"a b\"]".to_owned(), "namespaces: "),
        ] {
            let failure = read(&text).unwrap_err();
            assert!(failure.message.contains(expect), "{text}: {failure}");
            assert!(!failure.message.contains("s3cret"), "{failure}");
        }
        assert!(local_relay("greet", Some(SECRET)).unwrap_err().message.contains("NAME=URL"));
        let failure = local_relay("greet=http://127.0.0.1:1/", None).unwrap_err();
        assert!(failure.hint.unwrap().contains("WINDLASS_RELAY_SECRET"));
    }
}
