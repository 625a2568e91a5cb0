//! Connects to one of several hosts: the first that accepts writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::Connect;
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use windlass_kernel::Error;

use crate::error::{error_text, unavailable};

use super::invalid;

type RawConnection =
    Connection<Socket, <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream>;

/// The hosts of a connection string. A connection attempt begins with the host that answered last,
/// so that after a failover only the first attempt pays for the host that is gone.
#[derive(Clone)]
pub(crate) struct Hosts {
    // One configuration for each host.
    configs: Arc<[Config]>,
    last: Arc<AtomicUsize>,
    tls: MakeRustlsConnect,
    // The longest time for one host.
    timeout: Duration,
}

impl Hosts {
    /// `timeout` is for all hosts together, unless the connection string sets `connect_timeout`,
    /// which is for each of them.
    pub(crate) fn new(
        config: &Config,
        tls: MakeRustlsConnect,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let count = config.get_hosts().len().max(config.get_hostaddrs().len()).max(1);
        let ports = config.get_ports().len();
        if ports > 1 && ports != count {
            return Err(invalid(format!(
                "the connection string has {count} hosts and {ports} ports; give one port for all, \
                 or one for each"
            )));
        }
        let addresses = config.get_hostaddrs().len();
        if addresses > 0 && !config.get_hosts().is_empty() && addresses != config.get_hosts().len()
        {
            return Err(invalid("the connection string needs one hostaddr for each host"));
        }
        let given = config.get_connect_timeout().copied();
        let timeout = given.unwrap_or(timeout / u32::try_from(count).unwrap_or(u32::MAX));
        let configs = (0..count).map(|index| of_host(config, index, timeout)).collect();
        Ok(Self { configs, last: Arc::default(), tls, timeout })
    }

    /// The longest time for all hosts.
    pub(crate) fn timeout_total(&self) -> Duration {
        self.timeout * u32::try_from(self.configs.len()).unwrap_or(u32::MAX)
    }

    /// Connects to the first host that accepts writes.
    pub(crate) async fn connect(&self) -> Result<(Client, RawConnection), Error> {
        self.try_all().await.map_err(|failed| {
            let each: Vec<String> = failed
                .iter()
                .map(|(index, error)| format!("{}: {}", self.name(*index), reason(error)))
                .collect();
            unavailable(format!("cannot connect to PostgreSQL: {}", each.join("; ")))
        })
    }

    async fn try_all(
        &self,
    ) -> Result<(Client, RawConnection), Vec<(usize, tokio_postgres::Error)>> {
        let first = self.last.load(Ordering::Relaxed);
        let mut failed = Vec::new();
        for n in 0..self.configs.len() {
            let index = (first + n) % self.configs.len();
            let connecting = self.configs[index].connect(self.tls.clone());
            let connected = tokio::time::timeout(self.timeout, connecting).await;
            match connected.unwrap_or_else(|_| Err(tokio_postgres::Error::__private_api_timeout()))
            {
                Ok(connected) => {
                    self.last.store(index, Ordering::Relaxed);
                    return Ok(connected);
                }
                Err(error) => failed.push((index, error)),
            }
        }
        Err(failed)
    }

    fn name(&self, index: usize) -> String {
        let config = &self.configs[index];
        let port = config.get_ports().first().copied().unwrap_or(5432);
        match (config.get_hosts().first(), config.get_hostaddrs().first()) {
            (Some(Host::Tcp(host)), _) => format!("{host}:{port}"),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => format!("{}:{port}", path.display()),
            (None, Some(address)) => format!("{address}:{port}"),
            (None, None) => "no host".to_owned(),
        }
    }
}

// The driver reports a standby as a refused connection.
fn reason(error: &tokio_postgres::Error) -> String {
    let text = error_text(error);
    match text.contains("database does not allow writes") {
        true => {
            "is a standby or read-only, and the store needs a server that accepts writes".into()
        }
        false => text,
    }
}

// The configuration with one of its hosts. The driver can add hosts but not remove them.
fn of_host(all: &Config, index: usize, timeout: Duration) -> Config {
    let mut one = Config::new();
    if let Some(host) = all.get_hosts().get(index) {
        match host {
            Host::Tcp(name) => one.host(name),
            #[cfg(unix)]
            Host::Unix(path) => one.host_path(path),
        };
    }
    if let Some(address) = all.get_hostaddrs().get(index) {
        one.hostaddr(*address);
    }
    let ports = all.get_ports();
    if let Some(port) = ports.get(index).or(ports.first()) {
        one.port(*port);
    }
    all.get_user().map(|user| one.user(user));
    all.get_password().map(|password| one.password(password));
    all.get_dbname().map(|name| one.dbname(name));
    all.get_options().map(|options| one.options(options));
    all.get_application_name().map(|name| one.application_name(name));
    all.get_tcp_user_timeout().map(|timeout| one.tcp_user_timeout(*timeout));
    all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one.keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .connect_timeout(timeout)
        .ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .channel_binding(all.get_channel_binding())
        .target_session_attrs(all.get_target_session_attrs());
    one
}

// The pool connects through this, so that its connections follow the same rules.
impl Connect for Hosts {
    fn connect(
        &self,
        _: &Config,
    ) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async move {
            let last = |mut failed: Vec<(usize, tokio_postgres::Error)>| match failed.pop() {
                Some((_, error)) => error,
                None => tokio_postgres::Error::__private_api_timeout(),
            };
            let (client, connection) = self.try_all().await.map_err(last)?;
            let driven = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(error = %error_text(&error), "a connection ended");
                }
            });
            Ok((client, driven))
        })
    }
}
