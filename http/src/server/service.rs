use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Method, Request, Response, response};
use tollgate::telemetry::MiddlewareEvent;
use tower_service::Service;

use super::answer::LayerAnswer;
use super::check::Checked;
use super::headers::set_refused;
use super::{RateLimitHeaders, RateLimitLayer, Refusal, ResponseBody, ResponseFuture, ShadowRefusal};

/// A service behind a limit, made by [`RateLimitLayer`].
///
/// A request without tokens is answered here. It is ready when the service within is, and never sleeps in `poll_ready`.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    layer: Arc<RateLimitLayer>,
}

impl<S> RateLimit<S> {
    /// A service behind the limit of a layer.
    pub fn new(inner: S, layer: RateLimitLayer) -> Self {
        Self { inner, layer: Arc::new(layer) }
    }

    /// The service within.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service within.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service within.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, A, B> Service<Request<A>> for RateLimit<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<B, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The one that is ready serves this request, and a fresh one gets ready for the next.
        let next = self.inner.clone();
        let ready = mem::replace(&mut self.inner, next);
        ResponseFuture::new(serve(Arc::clone(&self.layer), ready, request))
    }
}

async fn serve<S, A, B>(
    layer: Arc<RateLimitLayer>,
    mut inner: S,
    request: Request<A>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    let (mut head, body) = request.into_parts();
    let Checked { answer, refusal } = layer.check(&head).await;
    if let Some(refusal) = refusal.as_ref().filter(|refusal| !layer.lets_pass(refusal)) {
        return Ok(layer.refuse(refusal, answer.as_ref(), &head).map(ResponseBody::refused));
    }
    if let Some(answer) = &answer {
        head.extensions.insert(answer.decision.clone());
    }
    let (mut head, body) = inner.call(Request::from_parts(head, body)).await?.into_parts();
    if let Some(answer) = answer {
        if layer.headers == RateLimitHeaders::Always && !layer.shadow {
            // Of a layer further inside, or of a handler.
            let denied = matches!(head.extensions.get(), Some(Refusal::Denied { .. }));
            answer.add_headers(&mut head.headers, denied);
        }
        // Whoever is further inside has said more of this request, if only why it was refused. A trial says nothing.
        if !layer.shadow {
            head.extensions.get_or_insert_with(|| answer.decision.clone());
        }
        layer.settle(answer, &head).await;
    }
    if let Some(refusal) = refusal {
        head.extensions.get_or_insert_with(|| ShadowRefusal(refusal));
    }
    Ok(Response::from_parts(head, ResponseBody::served(body)))
}

/// Says only how long it would be: by HTTP/2 not every server leaves it out by itself, and it is an error of the protocol.
fn leave_out_body(response: &mut Response<Bytes>) {
    let length = response.body().len();
    response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    *response.body_mut() = Bytes::new();
}

impl RateLimitLayer {
    /// Whether a request passes all the same: in a trial, and while the limiter is switched off or to shadow, unless its key
    /// extractor turns it away for what it says.
    fn lets_pass(&self, refusal: &Refusal) -> bool {
        let turned_away =
            matches!(refusal, Refusal::MissingKey(none) if !none.is_left_out() && none.status().is_client_error());
        self.shadow || self.gate.lets_pass() && !turned_away
    }

    fn refuse(&self, refusal: &Refusal, answer: Option<&LayerAnswer<'_>>, request: &Parts) -> Response<Bytes> {
        let mut response = self.answer_to(refusal, request);
        set_refused(response.headers_mut(), refusal.retry_after());
        if let Some(answer) = answer.filter(|_| self.headers != RateLimitHeaders::Never) {
            answer.add_headers(response.headers_mut(), true);
        }
        if request.method == Method::HEAD {
            leave_out_body(&mut response);
        }
        if let Some(answer) = answer {
            response.extensions_mut().insert(answer.decision.clone());
        }
        response.extensions_mut().insert(refusal.clone());
        response
    }

    fn answer_to(&self, refusal: &Refusal, request: &Parts) -> Response<Bytes> {
        #[cfg(feature = "tonic")]
        if super::grpc::is_grpc(request) {
            return super::grpc::respond(refusal);
        }
        (self.respond)(refusal, request)
    }

    /// Gives back what the answer says was not used.
    async fn settle(&self, answer: LayerAnswer<'_>, response: &response::Parts) {
        let LayerAnswer { charge: Some(charge), take, limits, .. } = answer else {
            return;
        };
        let refund = charge.refund(&|receipt| {
            let limit = take.keys().zip(&limits).find_map(|(key, limit)| (key == receipt.key()).then_some(limit));
            let unused = limit.and_then(|limit| limit.refund.as_ref()).or(self.refund.as_ref());
            unused.map_or(0, |unused| unused(response, receipt.cost()))
        });
        // A client that goes away now does not keep the tokens. What cannot be given back is used.
        if let Some(refund) = refund
            && let Err(error) = refund.await
        {
            self.gate.record(MiddlewareEvent::RefundFailed(&error));
        }
    }
}
