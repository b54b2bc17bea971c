use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpResponse, web};
use tollgate::{Decision, Limiter};
use tollgate_http::{ClientAddr, KeyExtractor, Refusal, respond};

/// Takes a token of the client's address, or answers 429.
pub async fn rate_limit(
    limiter: web::Data<Limiter>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    match take(&limiter, &request).await {
        Ok(decision) => {
            let mut response = next.call(request).await?.map_into_boxed_body();
            let mut headers = http::HeaderMap::new();
            respond::add_headers(&mut headers, "default", &decision);
            append(response.headers_mut(), &headers);
            Ok(response)
        }
        Err(refusal) => {
            let (head, body) = http::Response::from(refusal).into_parts();
            let status = StatusCode::from_u16(head.status.as_u16()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
            let mut response = HttpResponse::with_body(status, BoxBody::new(body));
            append(response.headers_mut(), &head.headers);
            Ok(request.into_response(response))
        }
    }
}

async fn take(limiter: &Limiter, request: &ServiceRequest) -> Result<Decision, Refusal> {
    let mut head = http::Request::builder();
    for (name, value) in request.headers() {
        head = head.header(name.as_str(), value.as_bytes()); // actix-web has the types of http 0.2
    }
    if let Some(peer) = request.peer_addr() {
        head = head.extension(peer);
    }
    let (head, ()) = head.body(()).unwrap_or_default().into_parts();
    let key = ClientAddr::peer().extract(&head).map_err(Refusal::MissingKey)?;
    let decision = limiter.allow(key).await?;
    Refusal::unless_granted(&decision, "default")?;
    Ok(decision)
}

fn append(headers: &mut HeaderMap, added: &http::HeaderMap) {
    for (name, value) in added {
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            headers.append(name, value);
        }
    }
}
