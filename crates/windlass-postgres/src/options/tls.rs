//! TLS with rustls, following libpq's `sslmode`.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use windlass_kernel::Error;

use super::dsn::{Dsn, TlsMode};
use super::invalid;

/// The TLS configuration of a connection string. It reads files only if the certificate is
/// verified.
pub(crate) fn client_config(dsn: &Dsn) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let failed = |error: rustls::Error| invalid("cannot set up TLS").with_source(error);
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let verifier: Arc<dyn ServerCertVerifier> = match dsn.mode {
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => Arc::new(Unverified(provider)),
        TlsMode::VerifyCa | TlsMode::VerifyFull => {
            let roots = Arc::new(roots(dsn.root_cert.as_deref())?);
            let full = WebPkiServerVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(|error| invalid("found no usable root certificate").with_source(error))?;
            if dsn.mode == TlsMode::VerifyFull { full } else { Arc::new(AnyName(full)) }
        }
    };
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn roots(path: Option<&str>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match path {
        Some(path) if path != "system" => {
            let unreadable =
                |error| invalid(format!("cannot read sslrootcert {path:?}")).with_source(error);
            for cert in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
                let cert = cert.map_err(unreadable)?;
                roots.add(cert).map_err(|error| {
                    invalid(format!("sslrootcert {path:?} has an invalid root certificate"))
                        .with_source(error)
                })?;
            }
        }
        _ => {
            for cert in rustls_native_certs::load_native_certs().certs {
                // Ignore invalid certificates of the system; the others are still usable.
                let _ = roots.add(cert);
            }
        }
    }
    if roots.is_empty() {
        return Err(invalid("found no root certificate to verify the server with"));
    }
    Ok(roots)
}

// `prefer` and `require` encrypt, but do not verify the server's identity.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

// `verify-ca`: verifies the certificate chain but not the host name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(cert, chain, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
