use http::StatusCode;
use http::header::HeaderName;
use http::request::Parts;
use tollgate::{Key, model::KeySecret};

use super::key::sha256;
use super::key_extractor::text;
use super::{KeyExtractor, MissingKey};

/// Key extractor for the value of a header.
///
/// A header that is missing, empty or sent more than once gets 400. A value that is not UTF-8 is hashed.
///
/// Use a header that a proxy writes. A client gets another bucket for each spelling of a header that it writes: `Bearer
/// t` and `bearer t` are different keys. For credentials, limit by the [`extension`](super::extension) that your
/// authentication inserts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: HeaderName,
    secret: bool,
}

impl Header {
    /// Uses a header that is not secret. A trusted proxy must write it, not the client.
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self { name, secret: false }
    }

    /// Uses a header that is secret. Only its SHA-256 hash reaches the database, the metrics and the logs.
    ///
    /// The hash does not protect values that can be guessed. A client gets a bucket for each value that it invents. For
    /// API keys, use the rule [`Provisioned`](tollgate::Rule::Provisioned): only values whose bucket exists are then
    /// served.
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
                let repeated = format!("The header {} occurs more than once. Send it once.", self.name);
                return Err(MissingKey::new(StatusCode::BAD_REQUEST, repeated));
            }
            _ => {
                let missing = format!("The header {} is missing or empty. Send it once.", self.name);
                return Err(MissingKey::client_error(missing));
            }
        };
        match std::str::from_utf8(value) {
            // Hashes a value that looks like a hash, so that sending a hash does not reach its bucket.
            Ok(text) if !self.secret && !text.starts_with(HASH_PREFIX) => Ok(text.to_owned()),
            _ => Ok(format!("{HASH_PREFIX}{}", sha256(value))),
        }
    }
}

/// Key extractor for the path of the URL, without the query.
///
/// Percent-encoded plain characters are decoded, so `/%73earch` and `/search` share a bucket (RFC 3986, section 6.2.2).
///
/// All clients share the bucket of a path. A client can create buckets by requesting other paths: behind a wildcard
/// route, `/files//a` and `/files/./a` can be the same file but have two buckets. [`MatchedRoute`] has only the routes
/// of the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrlPath;

impl KeyExtractor for UrlPath {
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        #[cfg(feature = "axum")]
        if let Some(original) = request.extensions.get::<axum::extract::OriginalUri>() {
            // A nested router sees only the rest of the path.
            return Ok(normal(original.path()));
        }
        Ok(normal(request.uri.path()))
    }
}

/// Normalizes a path: decodes percent-encoded plain characters, and writes the digits of others in capitals.
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

/// Key extractor for axum's matched route, such as `/users/{id}`. Requests that match no route share one bucket.
///
/// Add the layer with [`Router::layer`](axum::Router::layer) or [`route_layer`](axum::Router::route_layer). A layer
/// that wraps the whole router does not know the route, so all requests share one bucket.
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

/// Creates a key extractor from an extension of the request, such as the authenticated user.
///
/// An outer layer inserts the extension. A request without the extension gets 400, unless the layer [allows missing
/// keys](super::RateLimitLayer::allow_missing_key).
///
/// # Examples
///
/// ```
/// use tollgate_http::{RateLimitLayer, extension};
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// #[derive(Clone)]
/// struct User(u64); // inserted by the authentication layer
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

/// Creates a key extractor that applies a [keyed hash](Key::hashed) to the text of another extractor.
///
/// Addresses and user names then do not reach the database, the metrics and the logs.
///
/// # Examples
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

/// Key extractor with one bucket for all requests.
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
    fn encoded_plain_characters_share_one_path() {
        for (path, one) in [
            ("/search", "/search"),
            ("/%73earch", "/search"),
            ("/%73%65%61%72%63%68", "/search"),
            ("/%7euser/%2E%2d%5F%39", "/~user/.-_9"),
            // These characters have another meaning when decoded.
            ("/a%2fb%3f%20%c3%a4", "/a%2Fb%3F%20%C3%A4"),
            ("/%2573earch", "/%2573earch"),
            // These are not percent-encoded characters.
            ("/%", "/%"),
            ("/%7", "/%7"),
            ("/%zz%+1%4", "/%zz%+1%4"),
            ("/%ä1", "/%ä1"),
        ] {
            assert_eq!(normal(path), one, "{path}");
        }
    }
}
