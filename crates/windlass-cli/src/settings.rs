//! The settings of `windlass server`. A flag overrides the environment, the environment overrides
//! the config file, and the file overrides the default. Each setting records its origin.

mod auth;
mod engine;
mod http;
mod tables;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;
use windlass::Address;

pub(crate) use auth::AuthSettings;
pub(crate) use engine::EngineSettings;
pub(crate) use http::HttpSettings;
pub(crate) use tables::{RelaySettings, Tables, local_relay};

use crate::args::{ServerArgs, StoreArg, duration};
use crate::exit::Failure;
use crate::output::note;
use crate::redact::{scrub, without_password};
use tables::TABLES;

/// The default config file. It is optional.
const FILE: &str = "windlass.toml";

/// The source of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(String),
    Env(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One setting as text, with its origin.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

impl Setting {
    /// The value without secrets.
    pub(crate) fn display(&self) -> String {
        match self.name {
            "admin_key" if !self.value.is_empty() => "(set)".to_owned(),
            "store" => without_password(&self.value),
            _ => self.value.clone(),
        }
    }
}

/// All settings, as text and parsed.
pub(crate) struct Settings {
    pub(crate) all: Vec<Setting>,
    pub(crate) store: String,
    pub(crate) bind: SocketAddr,
    pub(crate) auth: AuthSettings,
    pub(crate) http: HttpSettings,
    pub(crate) engine: EngineSettings,
    pub(crate) samples: bool,
    pub(crate) drain: Duration,
    pub(crate) log: String,
    pub(crate) log_json: bool,
    pub(crate) tables: Tables,
}

/// The store setting and its default, shared with the commands that open a store directly.
const STORE: (&str, &str) = ("store", "sqlite:.windlass/windlass.db");

/// Every setting with its default. The flag is `--name` with dashes, the variable `WINDLASS_NAME`.
const KNOWN: [(&str, &str); 15] = [
    STORE,
    ("bind", "127.0.0.1:7878"),
    ("auth", ""),
    ("admin_key", ""),
    ("jwt_issuer", ""),
    ("jwt_audience", ""),
    ("jwt_key", ""),
    ("jwt_algorithm", "RS256"),
    ("jwt_namespace_claim", "namespace"),
    ("jwt_subject_claim", "sub"),
    ("jwt_roles_claim", "roles"),
    ("samples", "false"),
    ("drain", "30 seconds"),
    ("log", "info"),
    ("log_format", "text"),
];

fn known() -> impl Iterator<Item = (&'static str, &'static str)> {
    KNOWN.into_iter().chain(http::KNOWN).chain(engine::KNOWN)
}

impl Settings {
    /// Reads the flags, the environment and the config file.
    pub(crate) fn read(args: &ServerArgs) -> Result<Self, Failure> {
        let (path, file) = read_file(args.config.as_deref())?;
        for name in unknown_variables(std::env::vars_os().map(|(name, _)| name), &file.referenced) {
            note(&format!("warning: ignoring the unknown environment variable {name}"));
        }
        let mut settings = Self::resolve(args, environment, path.clone(), &file.values)?;
        for relay in &file.tables.relays {
            settings.all.push(Setting {
                name: "relays",
                value: format!("{}={}", relay.name, without_query(&relay.url)),
                origin: Origin::File(path.clone()),
            });
        }
        settings.tables = file.tables;
        Ok(settings)
    }

    fn resolve(
        args: &ServerArgs,
        env: impl Fn(&str) -> Option<String>,
        path: PathBuf,
        file: &BTreeMap<String, String>,
    ) -> Result<Self, Failure> {
        let flags = flags(args);
        let mut all = Vec::new();
        for (name, default) in known() {
            let variable = variable(name);
            let flag = flags.iter().find(|(flag, _)| *flag == name);
            let flag = flag.and_then(|(_, value)| value.clone());
            let (value, origin) = if let Some(value) = flag {
                (value, Origin::Flag(format!("--{}", name.replace('_', "-"))))
            } else if let Some(value) = env(&variable) {
                (value, Origin::Env(variable))
            } else if let Some(value) = file.get(name) {
                (value.clone(), Origin::File(path.clone()))
            } else {
                (default.to_owned(), Origin::Default)
            };
            all.push(Setting { name, value, origin });
        }
        Self::parse(all)
    }

    fn parse(mut all: Vec<Setting>) -> Result<Self, Failure> {
        let settings = all.clone();
        let get = |name: &str| {
            settings
                .iter()
                .find(|setting| setting.name == name)
                .expect("callers pass only names from KNOWN")
        };
        let (store, log) = (get("store"), get("log"));
        store.value.parse::<Address>().map_err(|error| invalid(store, error.message()))?;
        let bind = address(get("bind"))?;
        let auth = AuthSettings::read(get, bind)?;
        if let Some(setting) = all.iter_mut().find(|setting| setting.name == "auth") {
            setting.value = auth.as_str().to_owned();
        }
        windlass_server::telemetry::check_filter(&log.value)
            .map_err(|error| invalid(log, error.message()))?;
        let drain = duration(&get("drain").value).map_err(|why| invalid(get("drain"), &why))?;
        let log_json = parse_choice(get("log_format"), &[("text", false), ("json", true)])?;
        let samples = parse_choice(get("samples"), &[("false", false), ("true", true)])?;
        Ok(Self {
            store: store.value.clone(),
            bind,
            auth,
            http: HttpSettings::read(get)?,
            engine: EngineSettings::read(get)?,
            samples,
            drain,
            log: log.value.clone(),
            log_json,
            tables: Tables::default(),
            all,
        })
    }
}

fn flags(args: &ServerArgs) -> Vec<(&'static str, Option<String>)> {
    let mut flags = vec![
        ("store", args.store.clone()),
        ("bind", args.bind.clone()),
        ("auth", args.auth.clone()),
        ("admin_key", args.admin_key.clone()),
        ("jwt_issuer", args.jwt_issuer.clone()),
        ("jwt_audience", args.jwt_audience.clone()),
        ("jwt_key", args.jwt_key.clone()),
        ("jwt_algorithm", args.jwt_algorithm.clone()),
        ("jwt_namespace_claim", args.jwt_namespace_claim.clone()),
        ("jwt_subject_claim", args.jwt_subject_claim.clone()),
        ("jwt_roles_claim", args.jwt_roles_claim.clone()),
        ("samples", args.samples.then(|| "true".to_owned())),
        ("drain", args.drain.clone()),
        ("log", args.log.clone()),
        ("log_format", args.log_format.clone()),
    ];
    flags.extend(args.http.flags());
    flags.extend(args.engine.flags());
    flags
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

// The query may contain a token.
fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}

/// Variables that other parts of the program read.
const OTHER_VARIABLES: [&str; 5] =
    ["WINDLASS_AS", "WINDLASS_CONFIG", "WINDLASS_KEY", "WINDLASS_RELAY_SECRET", "WINDLASS_URL"];

/// Returns unused variables with the prefix `WINDLASS_`: usually misspelled settings.
fn unknown_variables(names: impl Iterator<Item = OsString>, referenced: &[String]) -> Vec<String> {
    let settings: Vec<String> = known().map(|(name, _)| variable(name)).collect();
    let is_unknown = |name: &String| {
        name.starts_with("WINDLASS_")
            && !name.starts_with("WINDLASS_TEST_")
            && !OTHER_VARIABLES.contains(&name.as_str())
            && !settings.contains(name)
            && !referenced.contains(name)
    };
    names.filter_map(|name| name.into_string().ok()).filter(is_unknown).collect()
}

fn variable(name: &str) -> String {
    format!("WINDLASS_{}", name.to_ascii_uppercase())
}

/// The contents of a config file.
#[derive(Debug, Default)]
struct File {
    values: BTreeMap<String, String>,
    tables: Tables,
    /// The environment variables that its secrets refer to.
    referenced: Vec<String>,
}

/// Reads the tables of a config file for `windlass dev`, which accepts nothing else in it.
pub(crate) fn read_tables(path: &Path) -> Result<Tables, Failure> {
    let (_, file) = read_file(Some(path))?;
    if let Some(name) = file.values.keys().next() {
        let message = format!("{name} in {} is a setting of `windlass server`", path.display());
        return Err(Failure::usage(message)
            .with_hint("`windlass dev` reads only [[relays]] and [webhooks] from a config file"));
    }
    Ok(file.tables)
}

/// Finds the store for a command that opens it directly, in the same places as the server. Ignores
/// the rest of the config file, so that the command works without the secrets of the server.
pub(crate) fn read_store(arg: &StoreArg) -> Result<Setting, Failure> {
    let (name, default) = STORE;
    let setting = |value: String, origin| Ok(Setting { name, value, origin });
    if let Some(store) = &arg.store {
        return setting(store.clone(), Origin::Flag("--store".to_owned()));
    }
    if let Some(store) = environment("WINDLASS_STORE") {
        return setting(store, Origin::Env("WINDLASS_STORE".to_owned()));
    }
    let (path, table) = read_table(arg.config.as_deref())?;
    match table.get(name) {
        None => setting(default.to_owned(), Origin::Default),
        Some(Value::String(store)) => setting(store.clone(), Origin::File(path)),
        Some(other) => {
            let (shown, kind) = (path.display(), other.type_str());
            Err(Failure::usage(format!("{name} in {shown} is a {kind}; expected a string")))
        }
    }
}

fn read_file(named: Option<&Path>) -> Result<(PathBuf, File), Failure> {
    let (path, table) = read_table(named)?;
    let file = parse_file(&path, table)?;
    Ok((path, file))
}

// A file that the user names must exist; the default one is optional.
fn read_table(named: Option<&Path>) -> Result<(PathBuf, toml::Table), Failure> {
    let from_env = environment("WINDLASS_CONFIG").map(PathBuf::from);
    let named = named.map(Path::to_owned).or(from_env);
    let path = named.clone().unwrap_or_else(|| PathBuf::from(FILE));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((path, toml::Table::new()));
        }
        Err(error) => {
            let message = format!("failed to read the config file {}: {error}", path.display());
            return Err(Failure::error(message));
        }
    };
    let table = text.parse().map_err(|error| {
        Failure::usage(format!("the config file {} is not valid TOML: {error}", path.display()))
    })?;
    Ok((path, table))
}

fn parse_file(path: &Path, table: toml::Table) -> Result<File, Failure> {
    let shown = path.display();
    let known: Vec<&str> = known().map(|(name, _)| name).collect();
    let mut file = File::default();
    for (key, value) in table {
        if TABLES.contains(&key.as_str()) {
            let referenced = RefCell::new(Vec::new());
            let env = |name: &str| {
                referenced.borrow_mut().push(name.to_owned());
                environment(name)
            };
            file.tables.read(&key, value, &env)?;
            file.referenced.extend(referenced.into_inner());
            continue;
        }
        if !known.contains(&key.as_str()) {
            let message = format!("unknown setting {key:?} in the config file {shown}");
            let hint = format!("known settings: {}, {}", known.join(", "), TABLES.join(", "));
            return Err(Failure::usage(message).with_hint(hint));
        }
        let value = match value {
            Value::String(text) => text,
            Value::Boolean(is) => is.to_string(),
            Value::Integer(number) => number.to_string(),
            other => {
                let message =
                    format!("{key} in {shown} is a {}; expected a string", other.type_str());
                return Err(Failure::usage(message));
            }
        };
        file.values.insert(key, value);
    }
    Ok(file)
}

fn invalid(setting: &Setting, why: &str) -> Failure {
    let Setting { name, origin, .. } = setting;
    let why = if *name == "store" { scrub(why, &setting.value) } else { why.to_owned() };
    Failure::usage(format!("{name} is {:?} ({origin}): {why}", setting.display()))
}

fn address(setting: &Setting) -> Result<SocketAddr, Failure> {
    let mut found = setting
        .value
        .to_socket_addrs()
        .map_err(|error| invalid(setting, &format!("{error}; write HOST:PORT")))?;
    found.next().ok_or_else(|| invalid(setting, "the name has no address"))
}

fn parse_choice<T: Copy>(setting: &Setting, choices: &[(&str, T)]) -> Result<T, Failure> {
    let found = choices.iter().find(|(choice, _)| *choice == setting.value);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let choices: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
        invalid(setting, &format!("expected {}", choices.join(" or ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        args: &ServerArgs,
        env: &[(&str, &str)],
        file: &[(&str, &str)],
    ) -> Result<Settings, Failure> {
        let env = |name: &str| {
            env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let file = file.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Settings::resolve(args, env, PathBuf::from("windlass.toml"), &file)
    }

    fn origin(settings: &Settings, name: &str) -> Origin {
        settings.all.iter().find(|setting| setting.name == name).unwrap().origin.clone()
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_file() {
        let args = ServerArgs { store: Some("sqlite:flag.db".into()), ..ServerArgs::default() };
        let env = [("WINDLASS_STORE", "sqlite:env.db"), ("WINDLASS_DRAIN", "5 seconds")];
        let file = [("store", "sqlite:file.db"), ("drain", "1 hour"), ("samples", "true")];
        let settings = resolve(&args, &env, &file).unwrap();
        assert_eq!(settings.store, "sqlite:flag.db");
        assert_eq!(origin(&settings, "store"), Origin::Flag("--store".into()));
        assert_eq!(settings.drain, Duration::from_secs(5));
        assert_eq!(origin(&settings, "drain"), Origin::Env("WINDLASS_DRAIN".into()));
        assert!(settings.samples);
        assert_eq!(origin(&settings, "samples"), Origin::File("windlass.toml".into()));
        assert_eq!(origin(&settings, "bind"), Origin::Default);
    }

    #[test]
    fn auth_off_requires_loopback() {
        let on = |bind: &str, auth: &str| {
            let env = [("WINDLASS_BIND", bind), ("WINDLASS_AUTH", auth)];
            let env: Vec<_> = env.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            resolve(&ServerArgs::default(), &env, &[]).map(|settings| settings.auth.as_str())
        };
        assert_eq!(
            on("127.0.0.1:1", "").unwrap(),
            "keys",
            "no authentication is asked for by name"
        );
        assert_eq!(on("127.0.0.1:1", "off").unwrap(), "off");
        assert_eq!(on("127.0.0.1:1", "keys").unwrap(), "keys");
        assert_eq!(on("0.0.0.0:1", "").unwrap(), "keys");
        let refused = on("0.0.0.0:1", "off").err().unwrap();
        assert!(refused.message.contains("without authentication"), "{refused}");
        assert!(on("127.0.0.1:1", "jwt").unwrap_err().message.contains("jwt_issuer"));
        assert!(on("127.0.0.1:1", "basic").unwrap_err().message.contains("off, keys or jwt"));
    }

    #[test]
    fn an_invalid_setting_reports_its_origin() {
        let secret = "postgresx://me:secret@db/app";
        for (name, value, why) in [
            ("WINDLASS_DRAIN", "soon", "soon"),
            ("WINDLASS_DRAIN", "30", "write 30s or 30ms"),
            ("WINDLASS_STORE", secret, "is not understood"),
            ("WINDLASS_LOG", "windlass=loud", "log filter"),
            ("WINDLASS_ADMIN_KEY", "0123456789", "shorter than 32"),
            ("WINDLASS_STORE", "hots=h password=secret user=u", "is not understood"),
            ("WINDLASS_STORE", "hots=h password='secret' user=u", "is not understood"),
        ] {
            let failure = resolve(&ServerArgs::default(), &[(name, value)], &[]).err().unwrap();
            let origin = format!("(environment {name})");
            assert!(
                failure.message.contains(&origin) && failure.message.contains(why),
                "{failure}"
            );
            let shown = failure.message.contains("secret") || failure.message.contains("012345");
            assert!(!shown, "{failure}");
        }
        let failure =
            parse_file(Path::new("w.toml"), "stroe = \"x\"".parse().unwrap()).unwrap_err();
        assert!(failure.message.contains("\"stroe\""), "{failure}");
    }

    #[test]
    fn unknown_variables_are_found() {
        let names =
            ["WINDLASS_STORE", "WINDLASS_STROE", "WINDLASS_URL", "WINDLASS_MY_SECRET", "HOME"];
        let found = unknown_variables(
            names.into_iter().map(OsString::from),
            &["WINDLASS_MY_SECRET".into()],
        );
        assert_eq!(found, ["WINDLASS_STROE"]);
    }
}
