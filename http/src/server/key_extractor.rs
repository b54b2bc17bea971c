use std::borrow::Cow;

use http::StatusCode;
use http::request::Parts;

use super::key::join;

/// Selects the bucket of a request by a text that identifies the client.
///
/// A closure that returns an optional text is a key extractor. A tuple of two to four extractors is one too: it joins
/// their texts by length, so `("ab", "c")` and `("a", "bc")` are different keys.
///
/// The layer hashes texts that are too long for a [`Key`](tollgate::Key). It answers 400 if a text is empty.
///
/// Extractors see the head of the request, before its body is read. Use the network address or your authentication, not
/// a value that the client chooses. Otherwise a client can create any number of buckets, or use up the buckets of
/// others.
///
/// # Examples
///
/// ```
/// use http::request::Parts;
/// use tollgate_http::{ClientAddr, RateLimitLayer, extension};
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// #[derive(Clone)]
/// struct User(String); // inserted by the authentication layer
///
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// let kind = |request: &Parts| Some(if request.method.is_safe() { "reads" } else { "writes" });
/// let layer = RateLimitLayer::new(limiter.clone()).key((ClientAddr::peer(), kind));
/// let layer = RateLimitLayer::new(limiter).key(extension(|user: &User| user.0.clone()));
/// # let _ = layer;
/// # Ok::<(), tollgate::Error>(())
/// ```
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the text of the key.
    ///
    /// # Errors
    ///
    /// Returns [`MissingKey`] if the request has no key.
    fn extract(&self, request: &Parts) -> Result<String, MissingKey>;
}

impl<F, T> KeyExtractor for F
where
    F: Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    T: Into<String>,
{
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        let missing = "The request does not identify its client. Send the required credentials.";
        self(request).map(Into::into).ok_or_else(|| MissingKey::client_error(missing))
    }
}

/// Returns the text of an extractor. An empty text is malformed, so `allow_missing_key` does not apply to it.
pub(super) fn text(extractor: &(impl KeyExtractor + ?Sized), request: &Parts) -> Result<String, MissingKey> {
    let text = extractor.extract(request)?;
    let empty = "The key of this request is empty. Send a value that is not empty.";
    if text.is_empty() { Err(MissingKey::new(StatusCode::BAD_REQUEST, empty)) } else { Ok(text) }
}

macro_rules! tuple {
    ($($part:ident)+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            #[allow(non_snake_case, reason = "the parts are named as their types")]
            fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
                let ($($part,)+) = self;
                Ok(join(&[$(text($part, request)?.as_str()),+]))
            }
        }
    };
}

tuple!(A B);
tuple!(A B C);
tuple!(A B C D);

/// The error of a [`KeyExtractor`] for a request without a key. It sets the status and the message of the answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MissingKey {
    status: StatusCode,
    reason: Cow<'static, str>,
    is_absent: bool,
}

impl MissingKey {
    /// Creates an error with a status and a message for the client.
    ///
    /// The request is refused even if the layer [allows missing keys](super::RateLimitLayer::allow_missing_key).
    pub fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason: reason.into(), is_absent: false }
    }

    /// Creates an error for a client that did not send the key, with status 400.
    ///
    /// The request passes if the layer [allows missing keys](super::RateLimitLayer::allow_missing_key).
    pub fn client_error(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { is_absent: true, ..Self::new(StatusCode::BAD_REQUEST, reason) }
    }

    /// Creates an error for a service that cannot determine the key, with status 500.
    pub fn server_error(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
    }

    /// Whether the client did not send the key, as opposed to a malformed key.
    pub(super) fn is_absent(&self) -> bool {
        self.is_absent
    }

    /// Returns the status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }
}
