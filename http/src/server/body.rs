use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of an answer: the service's body, or that of a refusal.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        body: Either<B>,
    }
}

pin_project! {
    #[project = Projected]
    #[derive(Debug)]
    enum Either<B> {
        Served { #[pin] body: B },
        Refused { bytes: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn served(body: B) -> Self {
        Self { body: Either::Served { body } }
    }

    pub(super) fn refused(bytes: Bytes) -> Self {
        Self { body: Either::Refused { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }
}

/// Outer layers create empty answers with it.
impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::served(B::default())
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().body.project() {
            Projected::Served { body } => body.poll_frame(context),
            Projected::Refused { bytes } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Either::Served { body } => body.is_end_stream(),
            Either::Refused { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Either::Served { body } => body.size_hint(),
            Either::Refused { bytes } => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}
