//! Texts with line ends and other bytes that headers cannot contain, in every place that services and clients control.

use anyhow::{Context, ensure};
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::HeaderName;
use axum::http::request::Parts;
use axum::routing::get;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::{Admin, Key, Limiter, MemoryStore, Quota, admin::Filter};
use tollgate_http::{GlobalKey, Header, KeyExtractor, MissingKey, RateLimitHeaders, RateLimitLayer, UrlPath, respond};

use super::headers::parsed;
use super::server::Server;

#[tokio::test]
async fn a_limit_and_a_key_of_any_text_add_no_line_to_an_answer() -> anyhow::Result<()> {
    for text in TEXTS {
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(1))?;
        let key = move |_: &Parts| Some(*text);
        let layer = RateLimitLayer::new(limiter.clone()).name(*text).key(key).headers(RateLimitHeaders::Always);
        let server = serve(layer.and("all", (key, GlobalKey), Quota::per_hour(9))?).await?;
        for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let answer = ask(&server, "/", "").await?;
            assert_eq!(answer.status, status, "{text:?}");
            for name in ["ratelimit", "ratelimit-policy"] {
                let items = parsed(&answer.lines_of(name).join(", "))?;
                assert_eq!(items.len(), 2, "{text:?}: {items:?}");
                assert_eq!(items[1].0, "all");
            }
        }
        let denied = ask(&server, "/", "").await?;
        assert_eq!(denied.json()?["violated-policies"], json!([text]), "the problem says it as it is");
        assert_eq!(limiter.store().list(&Filter::default(), None, 9).await?.len(), 2, "{text:?}");
    }
    Ok(())
}

#[tokio::test]
async fn plan_from_any_text_exists_or_fails_plainly() -> anyhow::Result<()> {
    for text in TEXTS {
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(9))?;
        let layer = RateLimitLayer::new(limiter.clone()).plan(move |_: &Parts| *text).headers(RateLimitHeaders::Always);
        let server = serve(layer).await?;
        let unknown = ask(&server, "/", "").await?;
        assert_eq!(unknown.status, StatusCode::INTERNAL_SERVER_ERROR, "{text:?}");
        assert_eq!(
            unknown.json()?["detail"],
            "The rate limit is not configured correctly. Contact the operator of the service."
        );
        assert!(limiter.store().is_empty(), "{text:?} took something");

        let Ok(plan) = Key::try_from(*text) else { continue };
        limiter.store().create_plan(&plan, "1/h".parse()?).await?;
        for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let answer = ask(&server, "/", "").await?;
            assert_eq!(answer.status, status, "{text:?}");
            assert_eq!(parsed(&answer.lines_of("ratelimit").join(", "))?.len(), 1, "{text:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_reason_of_any_text_stays_within_the_answer() -> anyhow::Result<()> {
    for text in TEXTS {
        let layer = RateLimitLayer::new(limiter()?).key(Unused(text));
        let server = serve(layer.clone()).await?;
        let refused = ask(&server, "/", "").await?;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{text:?}");
        assert_eq!(refused.json()?["detail"], *text);
        // gRPC has the reason in a header.
        let refused = send(&server, "POST", b"/", b"content-type: application/grpc\r\n").await?;
        assert_eq!(refused.status, StatusCode::OK);
        assert_eq!(refused.lines_of("grpc-status"), ["16"], "{text:?}");
        assert_eq!(refused.lines_of("grpc-message").len(), 1, "{text:?}");

        let server = serve(layer.respond(respond::message)).await?;
        assert_eq!(ask(&server, "/", "").await?.json()?["message"], *text);
    }
    Ok(())
}

#[tokio::test]
async fn client_input_is_one_key_or_a_refusal() -> anyhow::Result<()> {
    // Text after a line end is another header, which no extractor reads.
    for (header, made) in [
        (&b"x-user: a\r\nx-injected: 1\r\n"[..], Some("a")),
        (b"x-user: a\nx-injected: 1\r\n", Some("a")),
        (b"x-user: a\rx-injected: 1\r\n", None),
        (b"x-user: a\0b\r\n", None),
        (b"x-user: \x1b[2J\r\n", None),
        (b"x-user: a%0d%0ab\r\n", Some("a%0d%0ab")),
        (b"x-user: \xff\r\n", Some("sha256=a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89")),
    ] {
        let by_header = Header::new(HeaderName::from_static("x-user"));
        makes(by_header, b"/", header, made)
            .await
            .with_context(|| format!("{:?}", header.escape_ascii().to_string()))?;
    }
    for (path, made) in
        [(&b"/a%0d%0ax-injected:%201"[..], Some("/a%0D%0Ax-injected:%201")), (b"/a\rb", None), (b"/a\0b", None)]
    {
        makes(UrlPath, path, b"", made).await.with_context(|| format!("{:?}", path.escape_ascii().to_string()))?;
    }
    Ok(())
}

/// Checks that a request creates this key, or is refused before it reaches the layer.
async fn makes(key: impl KeyExtractor, path: &[u8], header: &[u8], made: Option<&str>) -> anyhow::Result<()> {
    let limiter = limiter()?;
    let server = serve(RateLimitLayer::new(limiter.clone()).key(key).headers(RateLimitHeaders::Always)).await?;
    let answer = ask(&server, path, header).await?;
    ensure!(answer.status == if made.is_some() { 200 } else { 400 }, "{}", answer.status);
    let buckets = limiter.store().list(&Filter::default(), None, 9).await?;
    let keys: Vec<&str> = buckets.iter().map(|bucket| bucket.key().as_str()).collect();
    ensure!(keys == made.as_slice(), "{keys:?}");
    Ok(())
}

/// Written unescaped, each text would break out of a header, a structured field, JSON or a terminal.
const TEXTS: &[&str] = &[
    "free\r\nx-injected: 1",
    "free\nx-injected: 1",
    "free\rx-injected: 1",
    "\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "free\0x-injected: 1",
    "\";r=999, \"other",
    "\\",
    "{\"status\": 200}",
    "\u{1b}[2J\u{7f}",
    "\u{85}\u{2028}ÿ\u{feff}",
];

/// Fails for every request, with this reason.
struct Unused(&'static str);

impl KeyExtractor for Unused {
    fn extract(&self, _: &Parts) -> Result<String, MissingKey> {
        Err(MissingKey::new(StatusCode::UNAUTHORIZED, self.0))
    }
}

fn limiter() -> anyhow::Result<Limiter<MemoryStore>> {
    Ok(Limiter::new(MemoryStore::new(), Quota::per_hour(9))?)
}

async fn serve(layer: RateLimitLayer) -> anyhow::Result<Server> {
    Server::start(Router::new().fallback(get(|| async { "served" })).layer(layer)).await
}

/// The bytes of an answer as read from the socket. A client library could correct or reject them.
struct Raw {
    status: StatusCode,
    lines: Vec<(String, String)>,
    body: String,
}

async fn ask(server: &Server, path: impl AsRef<[u8]>, header: impl AsRef<[u8]>) -> anyhow::Result<Raw> {
    send(server, "GET", path.as_ref(), header.as_ref()).await
}

async fn send(server: &Server, method: &str, path: &[u8], header: &[u8]) -> anyhow::Result<Raw> {
    let mut stream = TcpStream::connect(server.address).await?;
    let request =
        [method.as_bytes(), b" ", path, b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n", header, b"\r\n"].concat();
    stream.write_all(&request).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("a head has an end")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)).context("it has a status")?;
    let lines = lines.map(|line| line.split_once(": ").unwrap_or((line, "")));
    let answer = Raw {
        status: status.parse()?,
        lines: lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        body: body.to_owned(),
    };
    for (name, value) in &answer.lines {
        ensure!(SENT.contains(&name.as_str()), "a header {name:?}: {value:?}");
        ensure!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{name}: {value:?}");
    }
    // Bytes beyond the announced length would form another answer.
    let length = answer.lines_of("content-length").first().map_or(Ok(0), |length| length.parse::<usize>())?;
    ensure!(answer.body.len() == length, "{:?}", answer.body);
    Ok(answer)
}

/// Headers that the servers of these tests send.
const SENT: [&str; 11] = [
    "cache-control",
    "connection",
    "content-length",
    "content-type",
    "date",
    "grpc-message",
    "grpc-status",
    "grpc-status-details-bin",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
];

impl Raw {
    fn lines_of(&self, name: &str) -> Vec<&str> {
        self.lines.iter().filter(|(line, _)| line == name).map(|(_, value)| value.as_str()).collect()
    }

    fn json(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::from_str(&self.body).with_context(|| format!("of {:?}", self.body))
    }
}
