//! TLS of the server: certificates of clients, and certificates that change while it runs.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use metrics_exporter_prometheus::PrometheusBuilder;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tollgate::{AnyStore, Limiter, MemoryStore, Rule};
use tollgate_serve::{Address, Config, Options, ServeError, Server, Tls, run};

/// An authority, whose certificates a server or a client has.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> anyhow::Result<Self> {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::new([])?);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// A new certificate and its key, as PEM.
    fn certificate(&self) -> anyhow::Result<(String, String)> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(["localhost".to_owned()])?.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// A client that trusts the authority, with a certificate of its own or without one.
    fn client(&self, own: Option<(String, String)>) -> anyhow::Result<TlsConnector> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder.with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes())?],
                PrivateKeyDer::from_pem_slice(key.as_bytes())?,
            )?,
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// A server with the files of a directory.
struct Running {
    address: SocketAddr,
    admin: SocketAddr,
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    fn start(tls: Tls) -> anyhow::Result<Self> {
        let free = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let [address, admin] = [free[0].local_addr()?, free[1].local_addr()?];
        drop(free);
        let store = Arc::new(MemoryStore::new());
        let limiter = Limiter::new(AnyStore::new(Arc::clone(&store)), Rule::Provisioned)?;
        let server = Server::new(&limiter, store, Config::parse("checks: {}")?)?;
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let listen = vec![Address::Tcp(address)];
        let options = Options { listen, admin: Some((admin, metrics)), tls: Some(tls), ..Options::default() };
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(run(server, options, async { drop(ended.await) }));
        Ok(Self { address, admin, end, task })
    }

    /// The certificate that the server shows a client whose request it answers.
    async fn shown_to(&self, client: &TlsConnector) -> anyhow::Result<Vec<u8>> {
        let stream = TcpStream::connect(self.address).await?;
        let mut stream = client.connect(ServerName::try_from("localhost")?, stream).await?;
        get(&mut stream, "/livez").await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|shown| shown.to_vec());
        Ok(shown.unwrap_or_default())
    }

    /// Waits until operators read this of the configuration.
    async fn tells_operators(&self, what: &str) -> anyhow::Result<()> {
        let telling = async {
            while !get(&mut TcpStream::connect(self.admin).await?, "/config").await?.contains(what) {
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        timeout(HUNG, telling).await?
    }

    /// Waits until the server shows this certificate.
    async fn shows(&self, client: &TlsConnector, pem: &str) -> anyhow::Result<()> {
        let expected = CertificateDer::from_pem_slice(pem.as_bytes())?;
        let showing = async {
            while !self.shown_to(client).await.is_ok_and(|shown| shown == *expected) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        Ok(timeout(HUNG, showing).await?)
    }

    async fn end(self) -> anyhow::Result<()> {
        drop(self.end);
        Ok(self.task.await??)
    }
}

/// The answer to a request.
async fn get(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> anyhow::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    Ok(answer)
}

fn write(directory: &Path, (certificate, key): &(String, String)) -> anyhow::Result<()> {
    fs::write(directory.join("tls.crt"), certificate)?;
    Ok(fs::write(directory.join("tls.key"), key)?)
}

fn files(directory: &Path) -> Tls {
    Tls { certificate: directory.join("tls.crt"), key: directory.join("tls.key"), client_authority: None }
}

#[tokio::test]
async fn changed_certificate_is_shown_to_new_connections() -> anyhow::Result<()> {
    let (authority, directory) = (Authority::new()?, tempfile::tempdir()?);
    let client = authority.client(None)?;
    let (first, second) = (authority.certificate()?, authority.certificate()?);
    write(directory.path(), &first)?;
    let server = Running::start(files(directory.path()))?;
    server.shows(&client, &first.0).await?;
    // The key of the first certificate does not fit the second one, so the first stays in use meanwhile.
    fs::write(directory.path().join("tls.crt"), &second.0)?;
    server.tells_operators("tls.crt: keys may not be consistent: KeyMismatch").await?;
    assert_eq!(server.shown_to(&client).await?, *CertificateDer::from_pem_slice(first.0.as_bytes())?);
    write(directory.path(), &second)?;
    server.shows(&client, &second.0).await?;
    server.end().await
}

#[tokio::test]
async fn client_authority_admits_only_its_certificates() -> anyhow::Result<()> {
    let (authority, other, directory) = (Authority::new()?, Authority::new()?, tempfile::tempdir()?);
    let own = authority.certificate()?;
    write(directory.path(), &own)?;
    let trusted = directory.path().join("clients.crt");
    fs::write(&trusted, &authority.pem)?;
    let server = Running::start(Tls { client_authority: Some(trusted), ..files(directory.path()) })?;
    server.shows(&authority.client(Some(authority.certificate()?))?, &own.0).await?;
    for refused in [None, Some(other.certificate()?)] {
        assert!(server.shown_to(&authority.client(refused)?).await.is_err());
    }
    server.end().await
}

#[tokio::test]
async fn unusable_certificate_is_named_at_the_start() -> anyhow::Result<()> {
    let (authority, directory) = (Authority::new()?, tempfile::tempdir()?);
    let (certificate, key) = authority.certificate()?;
    let other = authority.certificate()?.1;
    // A template can lose the ends of lines.
    let on_one_line = key.replace('\n', " ");
    let malformed = "it has no private key, or a malformed one: give a PEM file";
    let cases = [
        ("", &key, "tls.crt: it has no certificate, or a malformed one: give a PEM file".to_owned()),
        (&certificate, &String::new(), format!("tls.key: {malformed}")),
        (&certificate, &on_one_line, format!("tls.key: {malformed}")),
        (&certificate, &other, "tls.crt: keys may not be consistent: KeyMismatch: give a PEM file".to_owned()),
    ];
    for (certificate, key, message) in cases {
        write(directory.path(), &(certificate.to_owned(), key.clone()))?;
        let error = Running::start(files(directory.path()))?.task.await?.expect_err("the certificate is unusable");
        assert!(error.to_string().ends_with(&message), "{error}");
    }
    Ok(())
}

/// Much longer than the two seconds between two looks at the files.
const HUNG: Duration = Duration::from_secs(60);
