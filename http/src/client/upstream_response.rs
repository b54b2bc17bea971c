use http::{Extensions, HeaderMap, StatusCode};

/// Head of an upstream's answer: the part that is known before the body is read.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamResponse<'a> {
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    pub(super) extensions: &'a Extensions,
}

impl<'a> UpstreamResponse<'a> {
    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the headers.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns the extensions, such as those of an underlying layer that reads the body.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// Whether the upstream is overloaded. It can then have begun with the request, unlike an upstream that limits
    /// requests.
    pub(super) fn is_overload(&self) -> bool {
        is_overload(self.status)
    }
}

/// Whether the status is 503, or 529, which some upstreams define for overload.
pub(super) fn is_overload(status: StatusCode) -> bool {
    matches!(status.as_u16(), 503 | 529)
}
