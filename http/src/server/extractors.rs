use http::StatusCode;
use http::header::HeaderName;
use http::request::Parts;
use tollgate::{Key, model::KeySecret};

use super::extract::text;
use super::key::sha256;
use super::{KeyExtractor, MissingKey};

/// The value of a header that has exactly one, byte for byte. One that is not UTF-8 is hashed.
///
/// For headers that a proxy writes. What a client writes is a bucket for each spelling of it: of `authorization`, `Bearer t` and
/// `bearer t` are two, and whatever is no credential at all is one more; limit by the [`extension`](super::extension) that your
/// authentication leaves instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: HeaderName,
    secret: bool,
}

impl Header {
    /// A header that anybody may read, and that somebody trusted has written: a proxy, not the client.
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self { name, secret: false }
    }

    /// A header that is secret: only its SHA-256 hash reaches the database, the metrics and the logs. What can be guessed can be
    /// guessed by its hash, too.
    #[must_use]
    pub const fn secret(name: HeaderName) -> Self {
        Self { name, secret: true }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        let mut values = request.headers.get_all(&self.name).into_iter();
        let value = match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => value.as_bytes(),
            (Some(_), Some(_)) => {
                return Err(MissingKey::new(StatusCode::BAD_REQUEST, format!("send the header {} once", self.name)));
            }
            _ => return Err(MissingKey::client_error(format!("send the header {}", self.name))),
        };
        match std::str::from_utf8(value) {
            // Nobody has the bucket of a hash by sending it.
            Ok(text) if !self.secret && !text.starts_with(HASH_PREFIX) => Ok(text.to_owned()),
            _ => Ok(format!("{HASH_PREFIX}{}", sha256(value))),
        }
    }
}

/// The path of the URL, without the query; however its plain characters are written, `/%73earch` and `/search` are one (RFC
/// 3986, section 6.2.2). Everybody shares the limit of a path, and whoever asks for others makes buckets: behind a wildcard route
/// `/files//a` and `/files/./a` may be one file, and are two paths. The [`MatchedRoute`] has only those that the service has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrlPath;

impl KeyExtractor for UrlPath {
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        #[cfg(feature = "axum")]
        if let Some(whole) = request.extensions.get::<axum::extract::OriginalUri>() {
            // A nested router sees only the rest of it.
            return Ok(normal(whole.path()));
        }
        Ok(normal(request.uri.path()))
    }
}

/// A path in which whatever needs no percent sign has none, and those that are left have capital digits.
fn normal(path: &str) -> String {
    let (mut normal, mut rest) = (String::with_capacity(path.len()), path);
    while let Some((before, after)) = rest.split_once('%') {
        normal.push_str(before);
        let digits = after.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(plain) if plain.is_ascii_alphanumeric() || b"-._~".contains(&plain) => normal.push(plain.into()),
            _ => normal.extend(['%'].into_iter().chain(digits.unwrap_or_default().to_ascii_uppercase().chars())),
        }
        rest = &after[digits.map_or(0, str::len)..];
    }
    normal + rest
}

/// axum's route that the request matched, such as `/users/{id}`. Those that matched none share one.
///
/// Only within the router is a route known: add the layer by [`Router::layer`](axum::Router::layer) or
/// [`route_layer`](axum::Router::route_layer). Around the router, all requests share the key of those without a route.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchedRoute;

#[cfg(feature = "axum")]
impl KeyExtractor for MatchedRoute {
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        let route = request.extensions.get::<axum::extract::MatchedPath>();
        Ok(route.map_or("no route", axum::extract::MatchedPath::as_str).to_owned())
    }
}

/// A text of what a layer outside has put among the request's extensions, such as the user whom it has authenticated. A
/// request without it does not say whose it is: 400, unless those [pass](super::RateLimitLayer::allow_missing_key).
///
/// ```
/// use tollgate_http::{RateLimitLayer, extension};
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// #[derive(Clone)]
/// struct User(u64); // put there by a layer outside, which has checked it
///
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// let layer = RateLimitLayer::new(limiter).key(extension(|user: &User| format!("user:{}", user.0)));
/// # let _ = layer;
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn extension<E, T>(text: impl Fn(&E) -> T + Send + Sync + 'static) -> impl KeyExtractor
where
    E: Send + Sync + 'static,
    T: Into<String>,
{
    move |request: &Parts| request.extensions.get::<E>().map(&text)
}

/// The text of another extractor as a [keyed hash](Key::hashed): an address or a user's name does not reach the database, the
/// metrics and the logs.
///
/// ```
/// use tollgate_http::{ClientAddr, RateLimitLayer, hashed};
/// use tollgate::{model::KeySecret, Limiter, MemoryStore, Quota};
///
/// let secret = KeySecret::new(std::env::var("KEY_SECRET").unwrap_or_else(|_| "of this example, at least 32 bytes".to_owned()))?;
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// let layer = RateLimitLayer::new(limiter).key(hashed(secret, ClientAddr::peer()));
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn hashed(secret: KeySecret, extractor: impl KeyExtractor) -> impl KeyExtractor {
    Hashed { secret, extractor }
}

struct Hashed<E> {
    secret: KeySecret,
    extractor: E,
}

impl<E: KeyExtractor> KeyExtractor for Hashed<E> {
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        Ok(Key::hashed(&self.secret, text(&self.extractor, request)?).into())
    }
}

/// Everybody: one bucket for all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalKey;

impl KeyExtractor for GlobalKey {
    fn extract(&self, _request: &Parts) -> Result<String, MissingKey> {
        Ok("everybody".to_owned())
    }
}

const HASH_PREFIX: &str = "sha256=";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_however_its_plain_characters_are_written() {
        for (path, one) in [
            ("/search", "/search"),
            ("/%73earch", "/search"),
            ("/%73%65%61%72%63%68", "/search"),
            ("/%7euser/%2E%2d%5F%39", "/~user/.-_9"),
            // These mean something else when they are plain.
            ("/a%2fb%3f%20%c3%a4", "/a%2Fb%3F%20%C3%A4"),
            ("/%2573earch", "/%2573earch"),
            // And these mean nothing.
            ("/%", "/%"),
            ("/%7", "/%7"),
            ("/%zz%+1%4", "/%zz%+1%4"),
            ("/%ä1", "/%ä1"),
        ] {
            assert_eq!(normal(path), one, "{path}");
        }
    }
}
