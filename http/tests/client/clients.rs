//! The two kinds of clients, under a limit.

use http::Request;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tollgate::Store;
use tollgate_http::{ClientLimit, ClientLimitError, Estimate, LimitedClient};
use tower::{Layer, Service, ServiceExt};

pub enum AnyClient<S: Store> {
    Tower(Box<LimitedClient<S, Client<HttpConnector, Empty<Bytes>>>>),
    Reqwest(ClientWithMiddleware),
}

impl<S: Store> Clone for AnyClient<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Tower(client) => Self::Tower(client.clone()),
            Self::Reqwest(client) => Self::Reqwest(client.clone()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Tower,
    Reqwest,
}

pub const KINDS: [Kind; 2] = [Kind::Tower, Kind::Reqwest];

impl<S: Store> AnyClient<S> {
    pub fn new(kind: Kind, limit: ClientLimit<S>) -> Self {
        match kind {
            Kind::Tower => Self::Tower(Box::new(limit.layer(Client::builder(TokioExecutor::new()).build_http()))),
            Kind::Reqwest => Self::Reqwest(ClientBuilder::new(reqwest::Client::new()).with(limit.middleware()).build()),
        }
    }

    /// Returns the status of an answer, or why the request was not sent.
    pub async fn get(&self, url: &str) -> anyhow::Result<Result<u16, ClientLimitError>> {
        Ok(self.get_and_settle(url).await?.map(|(status, _)| status))
    }

    /// Also returns the estimate, which the reader of the body settles.
    pub async fn get_and_settle(&self, url: &str) -> anyhow::Result<Result<(u16, Option<Estimate>), ClientLimitError>> {
        match self {
            Self::Tower(client) => {
                let request = Request::get(url).body(Empty::new())?;
                let mut client = client.clone();
                match client.ready().await.map_err(anyhow::Error::from_boxed)?.call(request).await {
                    Ok(response) => Ok(Ok((response.status().as_u16(), response.extensions().get().cloned()))),
                    Err(error) => match error.downcast::<ClientLimitError>() {
                        Ok(limited) => Ok(Err(*limited)),
                        Err(error) => Err(anyhow::Error::from_boxed(error)),
                    },
                }
            }
            Self::Reqwest(client) => match client.get(url).send().await {
                Ok(response) => Ok(Ok((response.status().as_u16(), response.extensions().get().cloned()))),
                Err(reqwest_middleware::Error::Middleware(error)) => Ok(Err(error.downcast()?)),
                Err(error) => Err(error.into()),
            },
        }
    }
}
