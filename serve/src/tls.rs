//! TLS of the server, and certificates of its clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::ServeError;

/// The files of the server's certificate.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate and its chain, as PEM.
    pub certificate: PathBuf,
    /// The private key, as PEM.
    pub key: PathBuf,
    /// The authorities of client certificates, as PEM. `None`: clients need no certificate.
    pub client_authority: Option<PathBuf>,
}

impl Tls {
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, ServeError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| unreadable(&self.key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unreadable(&self.certificate, error))?;
        let builder = match &self.client_authority {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    roots.add(certificate).map_err(|error| unreadable(file, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| unreadable(file, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| unreadable(&self.certificate, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(file, error))?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(|error| unreadable(file, error))?;
    if certificates.is_empty() { Err(unreadable(file, "it has no certificate")) } else { Ok(certificates) }
}

fn unreadable(file: &Path, error: impl std::fmt::Display) -> ServeError {
    ServeError::Tls { file: file.to_owned(), reason: error.to_string() }
}
