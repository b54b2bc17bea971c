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
use super::paid_limits::PaidLimits;
use super::{RateLimitHeaders, RateLimitLayer, Refusal, ResponseBody, ResponseFuture, ShadowRefusal};

/// A service behind a [`RateLimitLayer`].
///
/// If no token is available, it answers the request itself. It is ready when the inner service is ready, and never
/// sleeps in `poll_ready`.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    layer: Arc<RateLimitLayer>,
}

impl<S> RateLimit<S> {
    /// Creates a service that takes the tokens of a layer before each request.
    pub fn new(inner: S, layer: RateLimitLayer) -> Self {
        Self { inner, layer: Arc::new(layer) }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
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
        // The ready service handles this request. A clone gets ready for the next one.
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
        // A layer in shadow mode must not switch off an inner layer that enforces the same limit.
        if !layer.shadow {
            let buckets = layer.buckets(answer, &head);
            PaidLimits::add(&mut head, layer.gate.id(), buckets);
        }
    }
    let (mut head, body) = inner.call(Request::from_parts(head, body)).await?.into_parts();
    if let Some(mut answer) = answer {
        layer.settle(&mut answer, &head).await;
        if layer.headers == RateLimitHeaders::Always && !layer.shadow {
            // An inner layer or a handler can have denied the request.
            let denied = matches!(head.extensions.get(), Some(Refusal::Denied { .. }));
            answer.add_headers(&mut head.headers, denied, layer.x_headers);
        }
        // Keeps the decision of an inner layer, which is more specific. A layer in shadow mode adds none.
        if !layer.shadow {
            head.extensions.get_or_insert_with(|| answer.decision.clone());
        }
    }
    if let Some(refusal) = refusal {
        head.extensions.get_or_insert_with(|| ShadowRefusal(refusal));
    }
    Ok(Response::from_parts(head, ResponseBody::served(body)))
}

/// Removes the body of an answer to HEAD, and keeps its length. Some HTTP/2 servers would send the body, which is a
/// protocol error.
fn leave_out_body(response: &mut Response<Bytes>) {
    let length = response.body().len();
    response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    *response.body_mut() = Bytes::new();
}

impl RateLimitLayer {
    /// Whether a refused request passes: in shadow mode, and in the limiter's modes `off` and `shadow`. In these modes
    /// of the limiter, a request with a malformed key is still refused.
    fn lets_pass(&self, refusal: &Refusal) -> bool {
        let turned_away =
            matches!(refusal, Refusal::MissingKey(none) if !none.is_left_out() && none.status().is_client_error());
        self.shadow || self.gate.lets_pass() && !turned_away
    }

    fn refuse(&self, refusal: &Refusal, answer: Option<&LayerAnswer<'_>>, request: &Parts) -> Response<Bytes> {
        let mut response = self.answer_to(refusal, request);
        set_refused(response.headers_mut(), refusal.retry_after());
        if let Some(answer) = answer.filter(|_| self.headers != RateLimitHeaders::Never) {
            answer.add_headers(response.headers_mut(), true, self.x_headers);
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

    /// Gives the unused tokens back, and records how many.
    async fn settle(&self, answer: &mut LayerAnswer<'_>, response: &response::Parts) {
        let LayerAnswer { charge, take, limits, refunds, .. } = answer;
        let Some(charge) = charge.take() else {
            return;
        };
        let refund = charge.refund(&|receipt| {
            let limit = take.keys().zip(&*limits).find_map(|(key, limit)| (key == receipt.key()).then_some(limit));
            let unused = limit.and_then(|limit| limit.refund.as_ref()).or(self.refund.as_ref());
            unused.map_or(0, |unused| unused(response, receipt.cost()))
        });
        // If the client disconnects now, the refund continues. If the refund fails, the tokens stay taken.
        let Some(refund) = refund else { return };
        match refund.await {
            Ok(given_back) => *refunds = given_back,
            Err(error) => self.gate.record(MiddlewareEvent::RefundFailed(&error)),
        }
    }
}
