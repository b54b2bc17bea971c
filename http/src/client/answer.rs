use http::{Extensions, HeaderMap, StatusCode};

/// The head of what a third party answers: what is known before its body is read.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamResponse<'a> {
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    pub(super) extensions: &'a Extensions,
}

impl<'a> UpstreamResponse<'a> {
    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What a layer beneath has attached to it, for instance one that reads the body.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// Whether it says that somebody has more to do than they can: they may have begun with the request. Who limits it has not.
    pub(super) fn is_overload(&self) -> bool {
        is_overload(self.status)
    }
}

/// 503, and 529 of those who have one of their own for it.
pub(super) fn is_overload(status: StatusCode) -> bool {
    matches!(status.as_u16(), 503 | 529)
}
