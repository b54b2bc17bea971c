use std::net::SocketAddr;

use anyhow::bail;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;

/// A client with one connection per concurrent request.
pub(super) struct Client {
    address: SocketAddr,
    idle: Mutex<Vec<SendRequest<Empty<Bytes>>>>,
}

impl Client {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, idle: Mutex::default() }
    }

    /// Returns whether a request with this key is served.
    pub(super) async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.ready().await?;
        let request = Request::get("/").header("host", "localhost").header(super::KEY, key).body(Empty::new())?;
        let response = connection.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        self.idle.lock().push(connection);
        match status {
            StatusCode::OK => Ok(true),
            StatusCode::TOO_MANY_REQUESTS => Ok(false),
            other => bail!("the server answers {other}"),
        }
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (connection, driver) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(driver);
        Ok(connection)
    }
}
