use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Method, Request, Response, response};
use tollgate::middleware::MiddlewareEvent;
use tower_layer::Layer;
use tower_service::Service;

use super::admission::Admission;
use super::headers::set_refused;
use super::layer_decision::LayerDecision;
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

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, self.clone())
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
    let Admission { decided, refusal } = layer.admit(&head).await;
    if let Some(refusal) = refusal.as_ref().filter(|refusal| !layer.admits_denied(refusal)) {
        return Ok(layer.refuse(refusal, decided.as_ref(), &head).map(ResponseBody::refused));
    }
    if let Some(decided) = &decided {
        head.extensions.insert(decided.decision.clone());
        // A layer in shadow mode must not switch off an inner layer that enforces the same limit.
        if !layer.shadow {
            let buckets = layer.buckets(decided, &head);
            PaidLimits::add(&mut head, layer.limiter.id(), buckets);
        }
    }
    let (mut head, body) = inner.call(Request::from_parts(head, body)).await?.into_parts();
    if let Some(mut decided) = decided {
        layer.settle(&mut decided, &head).await;
        if layer.headers == RateLimitHeaders::Always && !layer.shadow {
            // An inner layer or a handler can have denied the request.
            let denied = matches!(head.extensions.get(), Some(Refusal::Denied { .. }));
            decided.add_headers(&mut head.headers, denied, layer.x_headers);
        }
        // Keeps the decision of an inner layer, which is more specific. A layer in shadow mode adds none.
        if !layer.shadow {
            head.extensions.get_or_insert_with(|| decided.decision.clone());
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
    fn admits_denied(&self, refusal: &Refusal) -> bool {
        let is_invalid = matches!(refusal, Refusal::MissingKey(missing) if !missing.is_absent() && missing.status().is_client_error());
        self.shadow || self.limiter.admits_denied() && !is_invalid
    }

    fn refuse(&self, refusal: &Refusal, decided: Option<&LayerDecision<'_>>, request: &Parts) -> Response<Bytes> {
        let mut response = self.response_to(refusal, request);
        set_refused(response.headers_mut(), refusal.retry_after());
        if let Some(decided) = decided.filter(|_| self.headers != RateLimitHeaders::Never) {
            decided.add_headers(response.headers_mut(), true, self.x_headers);
        }
        if request.method == Method::HEAD {
            leave_out_body(&mut response);
        }
        if let Some(decided) = decided {
            response.extensions_mut().insert(decided.decision.clone());
        }
        response.extensions_mut().insert(refusal.clone());
        response
    }

    fn response_to(&self, refusal: &Refusal, request: &Parts) -> Response<Bytes> {
        #[cfg(feature = "tonic")]
        if super::grpc::is_grpc(request) {
            return super::grpc::respond(refusal);
        }
        (self.respond)(refusal, request)
    }

    /// Gives the unused tokens back, and records how many.
    async fn settle(&self, decided: &mut LayerDecision<'_>, response: &response::Parts) {
        let Some(charge) = decided.charge.take() else {
            return;
        };
        let refund = charge.refund(&|receipt| {
            let limit = decided.limit_of(receipt);
            let unused = limit.and_then(|limit| limit.refund.as_ref()).or(self.refund.as_ref());
            unused.map_or(0, |unused| unused(response, receipt.cost()))
        });
        // If the client disconnects now, the refund continues. If the refund fails, the tokens stay taken.
        let Some(refund) = refund else { return };
        match refund.await {
            Ok(given_back) => decided.refunds = given_back,
            Err(error) => self.limiter.record(MiddlewareEvent::RefundFailed(&error)),
        }
    }
}
