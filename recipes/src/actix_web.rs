use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::middleware::Next;
use actix_web::{Error, HttpResponse, web};
use tollgate::Limiter;
use tollgate_http::{ClientAddr, KeyExtractor, Refusal};

/// Takes a token of the client's address, or answers 429.
pub async fn rate_limit(
    limiter: web::Data<Limiter>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let Err(refusal) = take(&limiter, &request).await else {
        return Ok(next.call(request).await?.map_into_boxed_body());
    };
    let (head, body) = http::Response::from(refusal).into_parts();
    let status = StatusCode::from_u16(head.status.as_u16())
        .unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = HttpResponse::build(status);
    for (name, value) in &head.headers {
        response.append_header((name.as_str(), value.as_bytes()));
    }
    Ok(request.into_response(response.body(body)))
}

async fn take(
    limiter: &Limiter,
    request: &ServiceRequest,
) -> Result<(), Refusal> {
    let mut head = http::Request::builder();
    for (name, value) in request.headers() {
        head = head.header(name.as_str(), value.as_bytes());
    }
    if let Some(peer) = request.peer_addr() {
        head = head.extension(peer);
    }
    let (head, ()) = head.body(()).unwrap_or_default().into_parts();
    let key =
        ClientAddr::peer().extract(&head).map_err(Refusal::MissingKey)?;
    Refusal::unless_granted(&limiter.allow(key).await?, "default")
}
