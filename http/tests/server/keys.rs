//! Keys of requests, by extractor.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use proptest::prelude::*;
use tollgate::{
    Admin, Error, Fallback, Key, Limiter, MemoryStore, Quota, Rule, TakeError, admin::Filter, model::KeySecret,
};
use tollgate_http::{
    ClientAddr, GlobalKey, Header, KeyExtractor, MatchedRoute, MissingKey, RateLimitHeaders, RateLimitLayer, Refusal,
    UrlPath, extension, hashed, respond,
};

use super::broken::Broken;
use super::client::Client;
use super::server::Server;

#[tokio::test]
async fn bucket_key_is_readable_by_operators() -> anyhow::Result<()> {
    let by_user = |request: &Parts| Some(request.headers.get("x-user")?.to_str().ok()?.to_owned());
    let layers: [(Change, &[&str]); 7] = [
        (Box::new(|layer| layer), &["127.0.0.1"]),
        (Box::new(|layer| layer.name("login")), &["5=login 127.0.0.1"]),
        (Box::new(move |layer| layer.key(by_user)), &["7"]),
        (Box::new(|layer| layer.key((ClientAddr::peer(), MatchedRoute))), &["23=9=127.0.0.1 /users/{id}"]),
        (Box::new(|layer| layer.key(UrlPath)), &["/users/7"]),
        (Box::new(|layer| layer.key(Header::new(HeaderName::from_static("x-user")))), &["7"]),
        (
            Box::new(|layer| layer.and("all", GlobalKey, Quota::per_hour(9)).expect("it is a quota")),
            &["127.0.0.1", "3=all everybody"],
        ),
    ];
    for (layer, keys) in layers {
        assert_eq!(made(layer, "/users/7", &[("x-user", "7")]).await?, keys);
    }
    Ok(())
}

#[tokio::test]
async fn hashed_key_is_stable_and_anonymous() -> anyhow::Result<()> {
    let text = "0123456789abcdef0123456789abcdef";
    let secret = KeySecret::new(text)?;
    let user = || hashed(secret.clone(), Header::new(HeaderName::from_static("x-user")));
    let ada = [("x-user", "ada@example.com")];
    let expected = "hmac=40d46f1b9a879993ceef355803e51651";
    assert_eq!(made(move |layer| layer.key(user()), "/users/7", &ada).await?, [expected]);
    assert_eq!(Key::hashed(&KeySecret::new(text)?, "ada@example.com").as_str(), expected);
    let another = KeySecret::new(text.replace('0', "1"))?;
    assert_ne!(Key::hashed(&another, "ada@example.com").as_str(), expected);
    assert!(!format!("{secret:?}").contains("0123") && !format!("{secret:?}").contains("48"), "{secret:?}");
    assert!(KeySecret::new(&text[1..]).is_err(), "31 bytes");
    Ok(())
}

type Change = Box<dyn FnOnce(RateLimitLayer) -> RateLimitLayer>;

#[tokio::test]
async fn unnamed_and_named_layers_never_share_a_key() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(1))?;
    let header = Header::new(HeaderName::from_static("x-user"));
    let search =
        Router::new().route("/search", get(|| async {})).layer(RateLimitLayer::new(limiter.clone()).key(header));
    let login = Router::new().route("/login", get(|| async {})).layer(RateLimitLayer::new(limiter).name("login"));
    let server = Server::start(search.merge(login)).await?;
    let client = Client::new(server.address);
    assert_eq!(client.get_with("/search", &[("x-user", "5=login 127.0.0.1")]).await?.status, StatusCode::OK);
    assert_eq!(client.get("/login").await?.status, StatusCode::OK, "nobody has used its token");
    Ok(())
}

#[tokio::test]
async fn provisioned_rule_serves_only_known_secrets() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Rule::Provisioned)?;
    let known = Key::try_from("sha256=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")?;
    limiter.store().create_bucket(&known, Quota::once(1)?).await?;
    let name = HeaderName::from_static("x-api-key");
    let layer = RateLimitLayer::new(limiter.clone()).key(Header::secret(name)).respond(|refusal, request| {
        let mut response = respond::problem(refusal, request);
        if let Refusal::Failed(Error::Take(TakeError::UnknownBucket(_))) = refusal {
            *response.status_mut() = StatusCode::UNAUTHORIZED;
        }
        response
    });
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let client = Client::new(server.address);
    for (key, status) in [("test", 200), ("test", 429), ("Test", 401), ("invented", 401), (known.as_str(), 401)] {
        assert_eq!(client.get_with("/", &[("x-api-key", key)]).await?.status, status, "{key}");
    }
    assert_eq!(limiter.store().list(&Filter::default(), None, 9).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn unknown_routes_share_a_bucket() -> anyhow::Result<()> {
    let store_of = limiter()?;
    let router = users().layer(RateLimitLayer::new(store_of.clone()).key(MatchedRoute));
    let server = Server::start(router).await?;
    let client = Client::new(server.address);
    for path in ["/a", "/b", "/c", "/users/1", "/users/2"] {
        client.get(path).await?;
    }
    assert_eq!(keys(&store_of).await?, ["/users/{id}", "no route"]);
    Ok(())
}

#[tokio::test]
async fn a_nested_router_limits_by_the_whole_path() -> anyhow::Result<()> {
    let limiter = limiter()?;
    let inner = || Router::new().route("/x", get(|| async {})).layer(RateLimitLayer::new(limiter.clone()).key(UrlPath));
    let server = Server::start(Router::new().nest("/a", inner()).nest("/b", inner())).await?;
    let client = Client::new(server.address);
    for path in ["/a/x", "/b/x"] {
        assert_eq!(client.get(path).await?.status, StatusCode::OK);
    }
    assert_eq!(keys(&limiter).await?, ["/a/x", "/b/x"]);
    Ok(())
}

#[tokio::test]
async fn path_spellings_share_a_bucket() -> anyhow::Result<()> {
    let limiter = limiter()?;
    let router = Router::new().fallback(get(|| async {})).layer(RateLimitLayer::new(limiter.clone()).key(UrlPath));
    let server = Server::start(router).await?;
    let client = Client::new(server.address);
    for path in ["/search", "/%73earch", "/s%65arch?a", "/a%2fb", "/a%2Fb"] {
        assert_eq!(client.get(path).await?.status, StatusCode::OK);
    }
    assert_eq!(keys(&limiter).await?, ["/a%2Fb", "/search"]);
    Ok(())
}

#[tokio::test]
async fn a_secret_never_reaches_the_database() -> anyhow::Result<()> {
    let layer = |layer: RateLimitLayer| layer.key(Header::secret(AUTHORIZATION));
    let made = made(layer, "/users/7", &[("authorization", "Bearer s3cret")]).await?;
    assert_eq!(made, ["sha256=0c9ae6066b41d3711dea4667cfcc513f60cfe047fb1bf4056ca7d1a8d089cf5a"]);
    Ok(())
}

#[tokio::test]
async fn missing_header_is_refused_with_a_hint() -> anyhow::Result<()> {
    let limiter = limiter()?;
    let router =
        users().layer(RateLimitLayer::new(limiter.clone()).key(Header::new(HeaderName::from_static("x-user"))));
    let server = Server::start(router).await?;
    let client = Client::new(server.address);
    for (headers, detail) in [
        (&[][..], "The header x-user is missing or empty. Send it once."),
        (&[("x-user", "")], "The header x-user is missing or empty. Send it once."),
        (&[("x-user", "1"), ("x-user", "2")], "The header x-user occurs more than once. Send it once."),
    ] {
        let answer = client.get_with("/users/7", headers).await?;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{headers:?}");
        assert_eq!(answer.json()?["detail"], detail);
    }
    let router = users().layer(RateLimitLayer::new(limiter.clone()).key(|_: &Parts| None::<String>));
    let server = Server::start(router).await?;
    assert_eq!(Client::new(server.address).get("/users/7").await?.status, StatusCode::BAD_REQUEST);
    let own = |_: &Parts| -> Result<String, MissingKey> { Err(MissingKey::new(StatusCode::UNAUTHORIZED, "sign in")) };
    let router = users().layer(RateLimitLayer::new(limiter.clone()).key(Failing(own)));
    let server = Server::start(router).await?;
    assert_eq!(Client::new(server.address).get("/users/7").await?.status, StatusCode::UNAUTHORIZED);
    assert!(limiter.store().is_empty(), "nothing was taken");
    Ok(())
}

#[tokio::test]
async fn authenticated_request_is_limited_by_its_identity() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::once(2)?)?;
    let layer = RateLimitLayer::new(limiter.clone()).key(extension(|user: &User| format!("user:{}", user.0)));
    let server = Server::start(users().layer(layer.clone()).layer(from_fn(authenticate))).await?;
    let client = Client::new(server.address);
    let (alice, bob) = (("authorization", "Bearer of-alice"), ("authorization", "Bearer of-bob"));
    for (headers, status) in [
        (&[alice][..], 200),
        (&[alice, ("user", "2")], 200),
        (&[alice, ("x-forwarded-for", "1.1.1.1")], 429),
        (&[bob], 200),
        (&[("authorization", "Bearer of-nobody")], 401),
        (&[("user", "1")], 400),
    ] {
        assert_eq!(client.get_with("/users/7", headers).await?.status, status, "{headers:?}");
    }
    let server = Server::start(users().layer(layer.allow_missing_key()).layer(from_fn(authenticate))).await?;
    let client = Client::new(server.address);
    for (headers, status) in [(&[][..], 200), (&[], 200), (&[], 200), (&[alice], 429)] {
        assert_eq!(client.get_with("/users/7", headers).await?.status, status, "{headers:?}");
    }
    assert_eq!(keys(&limiter).await?, ["user:1", "user:2"]);
    Ok(())
}

/// An empty key is malformed, like a session with an empty name.
#[tokio::test]
async fn empty_key_is_not_a_missing_key() -> anyhow::Result<()> {
    let limiter = limiter()?;
    let empty = |_: &Parts| Some("");
    let layer = || RateLimitLayer::new(limiter.clone()).key(empty);
    for layer in [
        layer(),
        layer().name("a"),
        layer().key((GlobalKey, empty)),
        layer().key((empty, GlobalKey)),
        layer().key(GlobalKey).and("b", empty, Quota::per_hour(9))?,
        layer().key(GlobalKey).and("b", (GlobalKey, (empty, UrlPath)), Quota::per_hour(9))?,
    ] {
        let server = Server::start(users().layer(layer.allow_missing_key())).await?;
        let answer = Client::new(server.address).get("/users/7").await?;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let detail = "The key of this request is empty. Send a value that is not empty.";
        assert_eq!(answer.json()?["detail"], detail);
    }
    assert!(limiter.store().is_empty(), "nothing was taken");
    Ok(())
}

#[derive(Clone)]
struct User(u64);

/// Identifies users by their token. A request without a token has no user.
async fn authenticate(mut request: Request<Body>, next: Next) -> Response<Body> {
    match request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes) {
        Some(b"Bearer of-alice") => drop(request.extensions_mut().insert(User(1))),
        Some(b"Bearer of-bob") => drop(request.extensions_mut().insert(User(2))),
        Some(_) => return StatusCode::UNAUTHORIZED.into_response(),
        None => {}
    }
    next.run(request).await
}

#[tokio::test]
async fn missing_key_skips_only_limits_that_need_it() -> anyhow::Result<()> {
    let limiter = limiter()?;
    let own =
        RateLimitLayer::new(limiter.clone()).key(Header::new(HeaderName::from_static("x-user"))).allow_missing_key();
    let server = Server::start(users().layer(own.clone())).await?;
    let client = Client::new(server.address);
    assert_eq!(client.get("/users/7").await?.status, StatusCode::OK);
    assert!(limiter.store().is_empty(), "there was no limit to take from");
    // A malformed key is not a missing key.
    let twice = client.get_with("/users/7", &[("x-user", "1"), ("x-user", "2")]).await?;
    assert_eq!(twice.status, StatusCode::BAD_REQUEST);

    let both = own.and("all", GlobalKey, Quota::per_hour(2))?.headers(RateLimitHeaders::Always);
    let server = Server::start(users().layer(both)).await?;
    let client = Client::new(server.address);
    for (headers, status) in [(&[][..], 200), (&[("x-user", "1")], 200), (&[], 429), (&[("x-user", "2")], 429)] {
        let answer = client.get_with("/users/7", headers).await?;
        assert_eq!(answer.status, status, "{headers:?}");
        let limits = answer.headers.get_all("ratelimit").iter().count();
        assert_eq!(limits, 1 + headers.len(), "{answer:?}");
    }
    assert_eq!(keys(&limiter).await?, ["1", "2", "3=all everybody"]);
    Ok(())
}

#[tokio::test]
async fn local_fallback_of_skipped_limit_is_not_used() -> anyhow::Result<()> {
    let fallback = Fallback::Local(Quota::once(1)?);
    let limiter =
        Limiter::builder(Broken).deadline(Duration::from_secs(5)).fallback(fallback).build(Quota::per_hour(1000))?;
    let layer = RateLimitLayer::new(limiter).key(Header::new(HeaderName::from_static("x-user"))).allow_missing_key();
    let server = Server::start(users().layer(layer.and("all", GlobalKey, Quota::once(3)?)?)).await?;
    let client = Client::new(server.address);
    for status in [200, 200, 200, 429] {
        assert_eq!(client.get("/users/7").await?.status, status);
    }
    Ok(())
}

struct Failing<F>(F);

impl<F: Fn(&Parts) -> Result<String, MissingKey> + Send + Sync + 'static> KeyExtractor for Failing<F> {
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        self.0(request)
    }
}

#[tokio::test]
async fn key_can_have_any_length_and_bytes() -> anyhow::Result<()> {
    let long = "x".repeat(10_000);
    let longer = "x".repeat(10_001);
    for value in [long.as_str(), longer.as_str()] {
        let layer = |layer: RateLimitLayer| layer.key(Header::new(HeaderName::from_static("x-user")));
        let made = made(layer, "/users/7", &[("x-user", value)]).await?;
        assert!(made[0].starts_with("long:sha256=") && made[0].len() == 12 + 64, "{made:?}");
    }
    let empty = |layer: RateLimitLayer| layer.key(|_: &Parts| Some(""));
    assert_eq!(made(empty, "/users/7", &[]).await?, [""; 0], "an empty text is no key");
    let nul = |layer: RateLimitLayer| layer.key(|_: &Parts| Some("a\0b"));
    assert_eq!(made(nul, "/users/7", &[]).await?.len(), 1);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_values_of_a_header_are_two_keys(a in bytes(), b in bytes()) {
        let key = |value: &[u8]| {
            let mut request = Request::new(());
            request.headers_mut().insert("x-user", HeaderValue::from_bytes(value).unwrap());
            Header::new(HeaderName::from_static("x-user")).extract(&request.into_parts().0).unwrap()
        };
        prop_assert_eq!(key(&a) == key(&b), a == b);
        // Sending the hash of a value does not reach the bucket of the value.
        prop_assert_ne!(key(key(&a).as_bytes()) == key(&a), key(&a).starts_with("sha256="));
    }

    #[test]
    fn parts_of_composites_cannot_be_moved(a in "[a=0-9 ]{1,4}", b in "[a=0-9 ]{1,4}", c in "[a=0-9 ]{1,4}", d in "[a=0-9 ]{1,4}") {
        let key = |one: &str, two: &str| {
            let (one, two) = (one.to_owned(), two.to_owned());
            let parts = (move |_: &Parts| Some(one.clone()), move |_: &Parts| Some(two.clone()));
            parts.extract(&Request::new(()).into_parts().0).unwrap()
        };
        prop_assert_eq!(key(&a, &b) == key(&c, &d), (&a, &b) == (&c, &d));
    }
}

/// Generates values that a header can have.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("a header has no controls", |byte| *byte >= b' ' && *byte != 127);
    proptest::collection::vec(byte, 1..5).prop_filter("spaces at the ends are no part of it", |value| !value.is_empty())
}

/// Returns the keys that a request creates under a layer.
async fn made(
    layer: impl FnOnce(RateLimitLayer) -> RateLimitLayer,
    path: &str,
    headers: &[(&str, &str)],
) -> anyhow::Result<Vec<String>> {
    let limiter = limiter()?;
    let server = Server::start(users().layer(layer(RateLimitLayer::new(limiter.clone())))).await?;
    Client::new(server.address).get_with(path, headers).await?;
    keys(&limiter).await
}

async fn keys(limiter: &Limiter<MemoryStore>) -> anyhow::Result<Vec<String>> {
    let buckets = limiter.store().list(&Filter::default(), None, 100).await?;
    Ok(buckets.iter().map(|bucket| bucket.key().to_string()).collect())
}

fn limiter() -> anyhow::Result<Limiter<MemoryStore>> {
    Ok(Limiter::new(MemoryStore::new(), Quota::per_hour(1000))?)
}

fn users() -> Router {
    Router::new().route("/users/{id}", get(|| async {}))
}
