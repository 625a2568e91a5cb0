//! How a store is opened: where the database is, how it is trusted, and how much of it is used.

mod dsn;
mod tls;

use std::time::Duration;

use tokio_postgres::{AsyncMessage, Client};
use tokio_postgres_rustls::MakeRustlsConnect;
use windlass_kernel::{Error, ErrorKind, Limits};

use crate::error::{said, unavailable, unconnected};

pub(crate) use dsn::Dsn;
pub use dsn::TlsMode;

/// How a store is opened. Validated once, by [`PostgresStore::open`](crate::PostgresStore::open).
#[derive(Clone, Debug)]
pub struct Options {
    /// The schema of all tables: letters, digits and `_`, at most 40 characters. Default `windlass`.
    pub schema: String,
    /// Connections for claims, loads and listings, at most. Default 8.
    pub pool_size_max: usize,
    /// Connections for renewals of leases and heartbeats alone, at most: they do not wait behind
    /// listings, and commits have connections of their own. Default 2.
    pub lease_pool_size_max: usize,
    /// Committers, each with a connection of its own. Default 2.
    pub committers: usize,
    /// Commits of one batch, at most. Default 1,000.
    pub batch_max: usize,
    /// Threads of the store's own runtime. Default 2.
    pub threads: usize,
    /// How long a caller waits for a connection. Default 10 seconds.
    pub connect_timeout: Duration,
    /// How long a committer tries to reach the database again before it answers `Unknown`, after it
    /// has lost an answer. What was never sent is `Unavailable` after two seconds. Default 30 seconds.
    pub reconnect_for: Duration,
    /// How long a statement may run. Default 60 seconds.
    pub statement_timeout: Duration,
    /// How long a statement waits for a row that somebody else has locked. Default 10 seconds.
    pub lock_timeout: Duration,
    /// How long a step's own SQL may take. Default 30 seconds.
    pub user_sql_timeout: Duration,
    /// Whether other processes are told of wake-ups (NOTIFY). Default yes.
    pub notify: bool,
    /// The least time between two NOTIFYs when there is much to tell. Default 5 milliseconds.
    pub notify_every: Duration,
    /// How many months ahead partitions are attached. Default 3.
    pub partition_months: u32,
    /// What is checked before something is written.
    pub limits: Limits,
    /// Only to look: the schema must be there and be that of this build, and it is not changed.
    /// Default no.
    pub inspect: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schema: "windlass".to_owned(),
            pool_size_max: 8,
            lease_pool_size_max: 2,
            committers: 2,
            batch_max: 1_000,
            threads: 2,
            connect_timeout: Duration::from_secs(10),
            reconnect_for: Duration::from_secs(30),
            statement_timeout: Duration::from_secs(60),
            lock_timeout: Duration::from_secs(10),
            user_sql_timeout: Duration::from_secs(30),
            notify: true,
            notify_every: Duration::from_millis(5),
            partition_months: 3,
            limits: Limits::DEFAULT,
            inspect: false,
        }
    }
}

impl Options {
    /// Refuses what cannot work.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let schema = &self.schema;
        let letter = schema.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !letter || !schema.chars().all(word) || schema.len() > 40 || schema.starts_with("pg_") {
            let message = format!(
                "the schema name {schema:?} is not allowed: use letters, digits and '_', not a digit first, not 'pg_', at most 40"
            );
            return Err(invalid(message));
        }
        let counts = [
            ("pool_size_max", self.pool_size_max, 1_000),
            ("lease_pool_size_max", self.lease_pool_size_max, 100),
            ("committers", self.committers, 64),
            ("batch_max", self.batch_max, 10_000),
            ("threads", self.threads, 64),
        ];
        for (name, value, max) in counts {
            if value == 0 || value > max {
                return Err(invalid(format!("{name} is {value}; use 1 to {max}")));
            }
        }
        self.validate_times()
    }

    fn validate_times(&self) -> Result<(), Error> {
        let times = [
            ("connect_timeout", self.connect_timeout),
            ("reconnect_for", self.reconnect_for),
            ("statement_timeout", self.statement_timeout),
            ("lock_timeout", self.lock_timeout),
            ("user_sql_timeout", self.user_sql_timeout),
            ("notify_every", self.notify_every),
        ];
        // PostgreSQL counts milliseconds in 32 bits, and takes 0 for "never".
        let max = Duration::from_millis(i32::MAX as u64);
        for (name, value) in times {
            if value < Duration::from_millis(1) || value > max {
                return Err(invalid(format!("{name} is {value:?}; use 1ms to {max:?}")));
            }
        }
        let months = self.partition_months;
        if !(1..=120).contains(&months) {
            return Err(invalid(format!("partition_months is {months}; use 1 to 120")));
        }
        Ok(())
    }

    /// The schema as it stands in SQL.
    pub(crate) fn schema_quoted(&self) -> String {
        format!("\"{}\"", self.schema)
    }
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "INVALID_OPTION", message)
}

/// What comes over a connection without being asked for.
pub(crate) type Messages =
    futures::stream::BoxStream<'static, Result<AsyncMessage, tokio_postgres::Error>>;

/// Makes connections.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) tls: MakeRustlsConnect,
    settings: String,
    /// How long it may take to connect.
    pub(crate) timeout: Duration,
}

impl Connector {
    pub(crate) fn new(text: &str, options: &Options) -> Result<Self, Error> {
        let dsn = Dsn::parse(text)?;
        let tls = MakeRustlsConnect::new(tls::client_config(&dsn)?);
        let mut config = dsn.config;
        if config.get_application_name().is_none() {
            config.application_name("windlass");
        }
        let timeout = config.get_connect_timeout().copied().unwrap_or(options.connect_timeout);
        config.connect_timeout(timeout);
        // A peer that vanished without a word is noticed while an answer is waited for.
        if !text.contains("keepalives_idle") {
            config.keepalives_idle(Duration::from_secs(15));
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_interval(Duration::from_secs(5));
        }
        if config.get_keepalives_retries().is_none() {
            config.keepalives_retries(3);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(30));
        }
        Ok(Self { config, tls, settings: settings(options), timeout })
    }

    /// What every session of the store is set to.
    pub(crate) fn settings(&self) -> &str {
        &self.settings
    }

    /// A client and what else comes over its connection; the stream must be polled.
    pub(crate) async fn connect(&self) -> Result<(Client, Messages), Error> {
        let connecting = self.config.connect(self.tls.clone());
        let (client, mut connection) = tokio::time::timeout(self.timeout, connecting)
            .await
            .map_err(|_| unavailable("PostgreSQL does not answer"))?
            .map_err(|error| unconnected(&error))?;
        let messages = futures::stream::poll_fn(move |context| connection.poll_message(context));
        Ok((client, Box::pin(messages)))
    }

    /// A client whose connection is driven in the background, with the store's settings.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        let (client, mut messages) = self.connect().await?;
        tokio::spawn(async move {
            while let Some(Ok(_)) = futures::StreamExt::next(&mut messages).await {}
        });
        let set = client.batch_execute(&self.settings);
        set.await.map_err(|error| unavailable(said(&error)).with_source(error))?;
        Ok(client)
    }
}

/// Planner settings for the engine's own statements. A plan that was made while the tables were
/// empty would scan them for ever: so no sequential scans, and no joins that read a whole index. A
/// nested loop along the given keys is what every statement means.
pub(crate) const PLANNER: [(&str, &str); 4] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

// An answer of `Ok` must be durable whatever the server's default is.
fn settings(options: &Options) -> String {
    let planner: String =
        PLANNER.iter().map(|(name, value)| format!("SET {name} = {value}; ")).collect();
    format!(
        "{planner} SET jit = off; SET synchronous_commit = on; \
         SET default_transaction_isolation = 'read committed'; \
         SET statement_timeout = {}; SET lock_timeout = {}; \
         SET idle_in_transaction_session_timeout = 60000",
        options.statement_timeout.as_millis(),
        options.lock_timeout.as_millis(),
    )
}
