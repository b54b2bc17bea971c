use std::net::SocketAddr;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// A client that keeps its connections.
#[derive(Clone)]
pub struct Client {
    http: hyper_util::client::legacy::Client<HttpConnector, Empty<Bytes>>,
    address: SocketAddr,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Client {
    /// Connects with HTTP/1.1.
    pub fn new(address: SocketAddr) -> Self {
        Self { http: hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http(), address }
    }

    /// Connects with HTTP/2, on one connection.
    pub fn http2(address: SocketAddr) -> Self {
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        Self { http, address }
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.get_with(path, &[]).await
    }

    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Answer> {
        self.ask(Method::GET, path, headers).await
    }

    pub async fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Answer> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(self.http.request(request.body(Empty::new())?).await?).await
    }
}

/// A single HTTP/1.1 connection. Requests fail after the server has closed it.
pub struct Connection {
    requests: SendRequest<Empty<Bytes>>,
    address: SocketAddr,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let (requests, connection) = http1::handshake(TokioIo::new(TcpStream::connect(address).await?)).await?;
        tokio::spawn(connection);
        Ok(Self { requests, address })
    }

    pub async fn get(&mut self, path: &str) -> anyhow::Result<Answer> {
        let request = Request::get(path).header(HOST, self.address.to_string());
        self.requests.ready().await?;
        Answer::read(self.requests.send_request(request.body(Empty::new())?).await?).await
    }
}

impl Answer {
    async fn read(response: Response<Incoming>) -> anyhow::Result<Self> {
        let (head, body) = response.into_parts();
        Ok(Self { status: head.status, headers: head.headers, body: body.collect().await?.to_bytes() })
    }

    /// Returns `Retry-After` in seconds, or 0 if it is absent.
    pub fn retry_after(&self) -> anyhow::Result<u64> {
        Ok(self.header("retry-after")?.map_or(Ok(0), str::parse)?)
    }

    /// Returns the values of a header.
    pub fn values(&self, name: &str) -> anyhow::Result<Vec<&str>> {
        Ok(self.headers.get_all(name).iter().map(|value| value.to_str()).collect::<Result<_, _>>()?)
    }

    /// Returns the only value of a header.
    pub fn header(&self, name: &str) -> anyhow::Result<Option<&str>> {
        let values = self.values(name)?;
        anyhow::ensure!(values.len() <= 1, "{name} is there {} times", values.len());
        Ok(values.first().copied())
    }

    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("of {:?}", self.body))
    }
}
