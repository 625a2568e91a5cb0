//! Names to addresses, through a trait that tests can own.

use std::net::IpAddr;

use windlass_kernel::{BoxFuture, Error, ErrorCode, ErrorKind};

/// Looks up the addresses of a host.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses that the name has now.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, Error>>;
}

/// The resolver of the system, as all programs on it ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, Error>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await.map_err(|source| {
                let message = format!("the name {host:?} does not resolve");
                Error::new(ErrorKind::Unavailable, ErrorCode::HostUnresolved, message)
                    .with_source(source)
            })?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}
