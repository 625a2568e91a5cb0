//! Options of a store: the database, TLS, and resource limits.

mod dsn;
mod hosts;
mod tls;

use std::time::Duration;

use tokio_postgres::{AsyncMessage, Client};
use tokio_postgres_rustls::MakeRustlsConnect;
use windlass_kernel::{Error, ErrorCode, ErrorKind, Limits};

use crate::error::{error_text, unavailable};

pub(crate) use dsn::Dsn;
pub use dsn::TlsMode;
use hosts::Hosts;

/// Options of a store. [`PostgresStore::open`](crate::PostgresStore::open) validates them once.
#[derive(Clone, Debug)]
pub struct Options {
    /// The schema of all tables: letters, digits and `_`, at most 40 characters. Default `windlass`.
    pub schema: String,
    /// The most connections for claims, loads and listings. Default 8.
    pub pool_size_max: usize,
    /// The most connections that are reserved for lease renewals and heartbeats, so that these do
    /// not wait behind listings. Commits have their own connections. Default 2.
    pub lease_pool_size_max: usize,
    /// Committers, each with its own connection. Default 2.
    pub committers: usize,
    /// The most commits in one batch. Default 1,000.
    pub batch_max: usize,
    /// The most commits that wait for a committer. A further one fails with `STORE_UNAVAILABLE` and is not
    /// written. Default 100,000.
    pub waiting_max: usize,
    /// Threads of the store's runtime. Default 2.
    pub threads: usize,
    /// How long a caller waits for a connection. Default 10 seconds.
    pub connect_timeout: Duration,
    /// How long a committer tries to reconnect after it has lost an answer, before it returns
    /// `Unknown`. A commit that was never sent is `Unavailable` after two seconds. Default 30
    /// seconds.
    pub reconnect_for: Duration,
    /// The longest run time of a statement. Default 60 seconds.
    pub statement_timeout: Duration,
    /// The longest wait of a statement for a row that another session has locked. Default 10
    /// seconds.
    pub lock_timeout: Duration,
    /// The longest run time of a statement of a step's SQL. Default 30 seconds.
    pub user_sql_timeout: Duration,
    /// Whether to send wake-ups to other processes (NOTIFY). Default `true`.
    pub notify: bool,
    /// The longest pause between two NOTIFY statements under load. Default 5 milliseconds.
    pub notify_every: Duration,
    /// How many months ahead partitions are created. Default 3.
    pub partition_months: u32,
    /// The limits that are checked before a write.
    pub limits: Limits,
    /// Opens the store for inspection: the schema must exist and be that of this build, and it is
    /// not changed. Default `false`.
    pub inspect: bool,
    /// Called before each batch of commits, for tests of a committer that panics.
    #[doc(hidden)]
    pub before_batch: Option<fn()>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schema: "windlass".to_owned(),
            pool_size_max: 8,
            lease_pool_size_max: 2,
            committers: 2,
            batch_max: 1_000,
            waiting_max: 100_000,
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
            before_batch: None,
        }
    }
}

impl Options {
    /// Refuses invalid options.
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
            ("waiting_max", self.waiting_max, 10_000_000),
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
        // PostgreSQL stores milliseconds in 32 bits, and 0 means "no timeout".
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

    /// The quoted schema name for SQL.
    pub(crate) fn schema_quoted(&self) -> String {
        format!("\"{}\"", self.schema)
    }
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message)
}

/// Asynchronous messages of a connection.
pub(crate) type Messages =
    futures::stream::BoxStream<'static, Result<AsyncMessage, tokio_postgres::Error>>;

/// Opens connections.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) hosts: Hosts,
    settings: String,
}

impl Connector {
    pub(crate) fn new(text: &str, options: &Options) -> Result<Self, Error> {
        let dsn = Dsn::parse(text)?;
        let tls = MakeRustlsConnect::new(tls::client_config(&dsn)?);
        let mut config = dsn.config;
        if config.get_application_name().is_none() {
            config.application_name("windlass");
        }
        // TCP keepalives detect a dead peer while a call waits for its answer.
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
        let hosts = Hosts::new(&config, tls, options.connect_timeout)?;
        Ok(Self { config, hosts, settings: settings(options) })
    }

    /// The settings of every session of the store.
    pub(crate) fn settings(&self) -> &str {
        &self.settings
    }

    /// Connects. The returned stream must be polled to drive the connection.
    pub(crate) async fn connect(&self) -> Result<(Client, Messages), Error> {
        let (client, mut connection) = self.hosts.connect().await?;
        let messages = futures::stream::poll_fn(move |context| connection.poll_message(context));
        Ok((client, Box::pin(messages)))
    }

    /// A client with the store's settings, whose connection is driven in the background.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        let (client, mut messages) = self.connect().await?;
        tokio::spawn(async move {
            while let Some(Ok(_)) = futures::StreamExt::next(&mut messages).await {}
        });
        let set = client.batch_execute(&self.settings);
        set.await.map_err(|error| unavailable(error_text(&error)).with_source(error))?;
        Ok(client)
    }
}

/// Planner settings for the statements of the store. A plan that was made while the tables were
/// empty would scan them forever, so these disable sequential scans and joins that read a whole
/// index. Every statement is meant to run as a nested loop over the given keys.
pub(crate) const PLANNER: [(&str, &str); 4] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

// `Ok` must mean durable, whatever the server's default is.
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
