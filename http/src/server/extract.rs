use std::borrow::Cow;

use http::StatusCode;
use http::request::Parts;
use tollgate::model::KeyError;

use super::key::join;

/// Whose request it is: what tells the requests of one bucket from those of others.
///
/// A closure that gives a text or none is one, and so are up to four together, in a tuple: their texts are joined by
/// length, so that `("ab", "c")` and `("a", "bc")` are two keys. What is too long for a [`Key`](tollgate::Key) is hashed. An empty
/// text is no key, nor a part of one: such requests are refused with 400.
///
/// It sees the head of the request, before anything has read its body. Limit by what the network or your authentication
/// says: who chooses their own key has as many buckets as they like, or uses up somebody else's.
///
/// ```
/// use http::request::Parts;
/// use tollgate_http::{ClientAddr, RateLimitLayer, extension};
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// #[derive(Clone)]
/// struct User(String); // put there by the layer that authenticates
///
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// let kind = |request: &Parts| Some(if request.method.is_safe() { "reads" } else { "writes" });
/// let layer = RateLimitLayer::new(limiter.clone()).key((ClientAddr::peer(), kind));
/// let layer = RateLimitLayer::new(limiter).key(extension(|user: &User| user.0.clone()));
/// # let _ = layer;
/// # Ok::<(), tollgate::Error>(())
/// ```
pub trait KeyExtractor: Send + Sync + 'static {
    /// The text of the key.
    ///
    /// # Errors
    ///
    /// If the request does not say whose it is.
    fn extract(&self, request: &Parts) -> Result<String, MissingKey>;
}

impl<F, T> KeyExtractor for F
where
    F: Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    T: Into<String>,
{
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        self(request).map(Into::into).ok_or_else(|| MissingKey::client_error("the request does not say whose it is"))
    }
}

/// What a request says. It said it wrongly if that is empty: nobody passes by that.
pub(super) fn text(extractor: &(impl KeyExtractor + ?Sized), request: &Parts) -> Result<String, MissingKey> {
    let text = extractor.extract(request)?;
    if text.is_empty() { Err(MissingKey::new(StatusCode::BAD_REQUEST, KeyError::Empty.to_string())) } else { Ok(text) }
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

/// A request does not say whose it is, and whose fault that is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MissingKey {
    status: StatusCode,
    reason: Cow<'static, str>,
    left_out: bool,
}

impl MissingKey {
    /// With the status and the words that the client is told. Nobody passes with it.
    pub fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason: reason.into(), left_out: false }
    }

    /// The client left out what it has to send: 400, or nothing at all if the layer lets such requests
    /// [pass](super::RateLimitLayer::allow_missing_key).
    pub fn client_error(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { left_out: true, ..Self::new(StatusCode::BAD_REQUEST, reason) }
    }

    /// The service is not set up to know: 500, as no client can mend that.
    pub fn server_error(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
    }

    /// Whether a client says nothing, and not something wrong.
    pub(super) fn is_left_out(&self) -> bool {
        self.left_out
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }
}
