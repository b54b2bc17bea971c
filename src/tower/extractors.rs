use http::StatusCode;
use http::request::Parts;

use super::key::sha256;
use super::{KeyExtractor, NoKey};

/// The value of a header that has exactly one, byte for byte. One that is not UTF-8 is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: &'static str,
    secret: bool,
}

impl Header {
    /// A header that anybody may read, and that somebody trusted has written: a proxy, not the client.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, secret: false }
    }

    /// A header such as `authorization`: only its SHA-256 hash reaches the database, the metrics and the logs.
    #[must_use]
    pub const fn secret(name: &'static str) -> Self {
        Self { name, secret: true }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, request: &Parts) -> Result<String, NoKey> {
        let mut values = request.headers.get_all(self.name).into_iter();
        let value = match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => value.as_bytes(),
            (Some(_), Some(_)) => {
                return Err(NoKey::new(StatusCode::BAD_REQUEST, format!("send the header {} once", self.name)));
            }
            _ => return Err(NoKey::of_client(format!("send the header {}", self.name))),
        };
        match std::str::from_utf8(value) {
            // Nobody has the bucket of a hash by sending it.
            Ok(text) if !self.secret && !text.starts_with(HASH) => Ok(text.to_owned()),
            _ => Ok(format!("{HASH}{}", sha256(value))),
        }
    }
}

/// The path of the URL, without the query. Everybody shares the limit of a path, and whoever asks for others makes buckets:
/// the [`MatchedRoute`] has only those that the service has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrlPath;

impl KeyExtractor for UrlPath {
    fn extract(&self, request: &Parts) -> Result<String, NoKey> {
        #[cfg(feature = "axum")]
        if let Some(whole) = request.extensions.get::<axum::extract::OriginalUri>() {
            // A nested router sees only the rest of it.
            return Ok(whole.path().to_owned());
        }
        Ok(request.uri.path().to_owned())
    }
}

/// axum's route that the request matched, such as `/users/{id}`. Those that matched none share one.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchedRoute;

#[cfg(feature = "axum")]
impl KeyExtractor for MatchedRoute {
    fn extract(&self, request: &Parts) -> Result<String, NoKey> {
        let route = request.extensions.get::<axum::extract::MatchedPath>();
        Ok(route.map_or("no route", axum::extract::MatchedPath::as_str).to_owned())
    }
}

/// Everybody: one bucket for all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Everybody;

impl KeyExtractor for Everybody {
    fn extract(&self, _request: &Parts) -> Result<String, NoKey> {
        Ok("everybody".to_owned())
    }
}

const HASH: &str = "sha256=";
