//! The TLS configuration of outgoing calls.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt as _;
use windlass_kernel::{Error, ErrorCode, ErrorKind};

// A configuration of its own: a library does not choose the TLS provider of the whole process.
pub(crate) fn config() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?;
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

pub(crate) fn unusable(source: impl std::error::Error + Send + Sync + 'static) -> Error {
    let message = "the client for calls to others cannot be made";
    Error::new(ErrorKind::Unavailable, ErrorCode::CallFailed, message).with_source(source)
}
