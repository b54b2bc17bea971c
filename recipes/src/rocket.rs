use std::io::Cursor;

use rocket::fairing::AdHoc;
use rocket::http::Status;
use rocket::request::{FromRequest, Outcome, Request};
use tollgate::Limiter;
use tollgate_http::{ClientAddr, KeyExtractor, Refusal};

/// Takes a token of the client's address, or answers 429.
pub struct RateLimit;

type Taken = Result<(), Refusal>;

#[rocket::async_trait]
impl<'r> FromRequest<'r> for RateLimit {
    type Error = ();

    async fn from_request(request: &'r Request<'_>) -> Outcome<Self, ()> {
        let taken: &Taken = request.local_cache_async(take(request)).await;
        let Err(refusal) = taken else { return Outcome::Success(Self) };
        Outcome::Error((Status::new(refusal.status().as_u16()), ()))
    }
}

/// Writes the headers and the body of a refusal.
pub fn rate_limit_answers() -> AdHoc {
    AdHoc::on_response("rate limit", |request, response| {
        Box::pin(async move {
            let taken: &Taken = request.local_cache(|| Ok(()));
            if let Err(refusal) = taken {
                let answer = http::Response::from(refusal.clone());
                let (head, body) = answer.into_parts();
                for (name, value) in &head.headers {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    response.set_raw_header(
                        name.to_string(),
                        value.into_owned(),
                    );
                }
                response.set_sized_body(body.len(), Cursor::new(body));
            }
        })
    })
}

async fn take(request: &Request<'_>) -> Taken {
    let mut head = http::Request::builder();
    for header in request.headers().iter() {
        head = head.header(header.name.as_str(), header.value.as_bytes());
    }
    if let Some(peer) = request.remote() {
        head = head.extension(peer);
    }
    let (head, ()) = head.body(()).unwrap_or_default().into_parts();
    let key =
        ClientAddr::peer().extract(&head).map_err(Refusal::MissingKey)?;
    let limiter =
        request.rocket().state::<Limiter>().expect("a managed Limiter");
    Refusal::unless_granted(&limiter.allow(key).await?, "default")
}
