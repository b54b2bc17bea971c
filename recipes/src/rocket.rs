use std::io::Cursor;

use rocket::fairing::AdHoc;
use rocket::http::Status;
use rocket::request::{FromRequest, Outcome, Request};
use tollgate::{Decision, Limiter};
use tollgate_http::{ClientAddr, KeyExtractor, Refusal, respond};

/// A request guard: takes a token of the client's address, once for each request.
pub struct RateLimit;

type Taken = Option<Result<Decision, Refusal>>;

#[rocket::async_trait]
impl<'r> FromRequest<'r> for RateLimit {
    type Error = ();

    async fn from_request(request: &'r Request<'_>) -> Outcome<Self, ()> {
        let taken: &Taken = request.local_cache_async(async { Some(take(request).await) }).await;
        match taken {
            Some(Err(refusal)) => Outcome::Error((Status::new(refusal.status().as_u16()), ())),
            _ => Outcome::Success(Self),
        }
    }
}

/// Attach this fairing: it writes the headers, and the body of a refusal.
pub fn rate_limit_answers() -> AdHoc {
    AdHoc::on_response("rate limit", |request, response| {
        Box::pin(async move {
            let mut headers = http::HeaderMap::new();
            match request.local_cache::<Taken, _>(|| None) {
                Some(Ok(decision)) => respond::add_headers(&mut headers, "default", decision),
                Some(Err(refusal)) => {
                    let (head, body) = http::Response::from(refusal.clone()).into_parts();
                    response.set_sized_body(body.len(), Cursor::new(body));
                    headers = head.headers;
                }
                None => {}
            }
            for (name, value) in &headers {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                response.set_raw_header(name.as_str().to_owned(), value);
            }
        })
    })
}

async fn take(request: &Request<'_>) -> Result<Decision, Refusal> {
    let mut head = http::Request::builder();
    for header in request.headers().iter() {
        head = head.header(header.name.as_str(), header.value.as_bytes());
    }
    if let Some(peer) = request.remote() {
        head = head.extension(peer);
    }
    let (head, ()) = head.body(()).unwrap_or_default().into_parts();
    let key = ClientAddr::peer().extract(&head).map_err(Refusal::MissingKey)?;
    let limiter = request.rocket().state::<Limiter>().expect("the server manages a Limiter");
    let decision = limiter.allow(key).await?;
    Refusal::unless_granted(&decision, "default")?;
    Ok(decision)
}
