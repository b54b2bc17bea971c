//! TLS of the server, and certificates of its clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

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

/// The server's certificate as its files last were without a mistake.
pub(crate) struct Certificate {
    tls: Tls,
    /// The files when they were last read, or why one could not be read.
    read: Mutex<Result<PemFiles, String>>,
    config: ArcSwap<ServerConfig>,
}

impl Certificate {
    pub(crate) fn new(tls: Tls) -> Result<Self, ServeError> {
        let read = PemFiles::read(&tls)?;
        let config = ArcSwap::from_pointee(read.config(&tls)?);
        Ok(Self { tls, read: Mutex::new(Ok(read)), config })
    }

    /// The settings for a new connection.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Reads the files, and uses them from the next connection on. `None`: they have not changed, and no load is requested.
    pub(crate) fn refresh(&self, is_requested: bool) -> Option<Result<(), ServeError>> {
        let found = PemFiles::read(&self.tls);
        let comparable = found.as_ref().map(PemFiles::clone).map_err(ToString::to_string);
        let mut read = self.read.lock();
        if *read == comparable && !is_requested {
            return None;
        }
        *read = comparable;
        Some(found.and_then(|files| files.config(&self.tls)).map(|config| self.config.store(Arc::new(config))))
    }
}

/// The contents of the files.
#[derive(Clone, PartialEq)]
struct PemFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_authority: Option<Vec<u8>>,
}

impl PemFiles {
    fn read(tls: &Tls) -> Result<Self, ServeError> {
        let read = |file: &PathBuf| fs::read(file).map_err(|error: io::Error| unusable(file, error));
        Ok(Self {
            certificate: read(&tls.certificate)?,
            key: read(&tls.key)?,
            client_authority: tls.client_authority.as_ref().map(read).transpose()?,
        })
    }

    fn config(&self, tls: &Tls) -> Result<ServerConfig, ServeError> {
        let chain = certificates(&tls.certificate, &self.certificate)?;
        // The error can have the text of the key.
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| unusable(&tls.key, "it has no private key, or a malformed one"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&tls.certificate, error))?;
        let builder = match tls.client_authority.as_ref().zip(self.client_authority.as_ref()) {
            None => builder.with_no_client_auth(),
            Some((file, pem)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file, pem)? {
                    roots.add(certificate).map_err(|error| unusable(file, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| unusable(file, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| unusable(&tls.certificate, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    // The error can have the text of a key in the same file.
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(unusable(file, "it has no certificate, or a malformed one")),
    }
}

fn unusable(file: &Path, reason: impl std::fmt::Display) -> ServeError {
    ServeError::Tls { file: file.to_owned(), reason: reason.to_string() }
}
