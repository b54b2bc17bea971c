//! Client addresses, from the peer and from proxies.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use axum::Router;
use axum::body::Body;
use axum::http::header::{HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate::{Admin, Limiter, MemoryStore, Quota, admin::Filter};
use tollgate_http::{ClientAddr, KeyExtractor, RateLimitLayer, TrustedProxies};

use super::client::Client;
use super::server::Server;

#[test]
fn unchosen_forwarding_headers_are_ignored() {
    let request = head("198.51.100.1", &[("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=1.1.1.1")]);
    assert_eq!(ClientAddr::peer().extract(&request).unwrap(), "198.51.100.1");
    let hops = TrustedProxies::hops(1);
    assert_eq!(ClientAddr::forwarded(hops.clone()).extract(&request).unwrap(), "1.1.1.1");
    let other = ClientAddr::header(HeaderName::from_static("cf-connecting-ip"), hops);
    assert_eq!(other.extract(&request).unwrap(), "198.51.100.1");
}

#[test]
fn x_forwarded_for_is_counted_from_the_right() {
    for (hops, lines, client) in [
        (0, &["1.1.1.1, 2.2.2.2"][..], PEER),
        (1, &["1.1.1.1, 2.2.2.2"], "2.2.2.2"),
        (2, &["1.1.1.1, 2.2.2.2"], "1.1.1.1"),
        // Several lines form one list.
        (2, &["9.9.9.9, 1.1.1.1", "2.2.2.2"], "1.1.1.1"),
        (3, &["9.9.9.9", "1.1.1.1", "2.2.2.2"], "9.9.9.9"),
        // With fewer entries than hops, the farthest entry counts.
        (3, &["2.2.2.2"], "2.2.2.2"),
        (1, &[], PEER),
        (1, &[""], PEER),
        (1, &[" , ,, "], PEER),
        (1, &["1.1.1.1,, 2.2.2.2,"], "2.2.2.2"),
        // An entry that is not an address ends the search.
        (1, &["1.1.1.1, unknown"], PEER),
        (1, &["1.1.1.1, 999.1.1.1"], PEER),
        (2, &["1.1.1.1, garbage, 2.2.2.2"], "2.2.2.2"),
        (2, &["1.1.1.1, '; drop table token_buckets; --, 2.2.2.2"], "2.2.2.2"),
        (1, &["2.2.2.2:4711"], "2.2.2.2"),
        (1, &["[2001:db8::1]:4711"], "2001:db8::/64"),
        (1, &["2001:db8::ffff"], "2001:db8::/64"),
        (1, &["::ffff:2.2.2.2"], "2.2.2.2"),
        (1, &["64:ff9b::2.2.2.2"], "2.2.2.2"),
        (1, &["fe80::1%eth0"], "fe80::/64"),
    ] {
        let headers: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
        let extractor = ClientAddr::x_forwarded_for(TrustedProxies::hops(hops));
        assert_eq!(extractor.extract(&head(PEER, &headers)).unwrap(), client, "{hops} hops, {lines:?}");
    }
}

#[test]
fn forwarded_is_read_by_the_standard() {
    for (hops, lines, client) in [
        (1, &["for=1.1.1.1, for=2.2.2.2"][..], "2.2.2.2"),
        (2, &["for=1.1.1.1;proto=http;by=203.0.113.43, For=\"2.2.2.2:80\""], "1.1.1.1"),
        (1, &["for=1.1.1.1", "by=_a; for=\"[2001:db8:cafe::17]:4711\"; proto=https"], "2001:db8:cafe::/64"),
        (1, &["for=[2001:db8:cafe::17]"], "2001:db8:cafe::/64"),
        (1, &["for=\"2.2.2.\\2\""], "2.2.2.2"),
        (1, &["for=\"[fe80::1%25eth0]:443\";proto=https"], "fe80::/64"),
        (1, &["for=\"2.2.2.2:_obfuscated\""], "2.2.2.2"),
        (1, &["for=\"[2001:db8::1]:_obfuscated\""], "2001:db8::/64"),
        (1, &["for=1.1.1.1, for=\"_hidden:4711\""], PEER),
        (1, &["for=1.1.1.1, for=\"unknown:_port\""], PEER),
        // Obfuscated names could be new for each request.
        (1, &["for=1.1.1.1, for=_hidden"], PEER),
        (1, &["for=1.1.1.1, for=unknown"], PEER),
        (2, &["for=1.1.1.1, for=\"_SEVKISEK\", for=2.2.2.2"], "2.2.2.2"),
        (1, &["for=1.1.1.1, proto=https"], PEER),
        (1, &["for=1.1.1.1, 2.2.2.2"], PEER),
        // Quotes that a client leaves open do not hide later entries.
        (1, &["for=\"1.1.1.1, for=2.2.2.2"], "2.2.2.2"),
        (1, &["for=1.1.1.1;by=\", for=\"2.2.2.2\";by=\"x\""], "2.2.2.2"),
        (1, &["for=\"1.1.1.1", "for=2.2.2.2"], "2.2.2.2"),
        (1, &["for=1.1.1.1;x=\"\\", "for=\"2.2.2.2\""], "2.2.2.2"),
        (1, &["by=\"a,for=1.1.1.1,b\";for=2.2.2.2"], "2.2.2.2"),
        (1, &["\"", "=", ";", ",", "for", "for=", "for=\"", "for=;"], PEER),
    ] {
        let headers: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).collect();
        let extractor = ClientAddr::forwarded(TrustedProxies::hops(hops));
        assert_eq!(extractor.extract(&head(PEER, &headers)).unwrap(), client, "{hops} hops, {lines:?}");
    }
}

#[test]
fn trusted_networks_are_skipped_from_the_right() -> anyhow::Result<()> {
    let proxies = TrustedProxies::networks(["10.0.0.0/8", "192.0.2.1", "fd00::/8"])?;
    for (peer, line, client) in [
        ("10.0.0.1", "1.1.1.1, 2.2.2.2", "2.2.2.2"),
        ("10.0.0.1", "1.1.1.1, 2.2.2.2, 10.9.9.9, 192.0.2.1", "2.2.2.2"),
        ("fd00::1", "2.2.2.2, fd12::1", "2.2.2.2"),
        ("::ffff:10.0.0.1", "2.2.2.2", "2.2.2.2"),
        // If all entries are trusted proxies, the farthest is the client.
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        // The request bypassed the proxies.
        ("198.51.100.1", "1.1.1.1", "198.51.100.1"),
        ("192.0.2.2", "1.1.1.1", "192.0.2.2"),
        // A NAT64 address belongs to a client, not to one of our proxies.
        ("64:ff9b::10.0.0.1", "1.1.1.1", "10.0.0.1"),
        ("10.0.0.1", "1.1.1.1, junk, 10.0.0.2", "10.0.0.2"),
    ] {
        let request = head(peer, &[("x-forwarded-for", line)]);
        assert_eq!(ClientAddr::x_forwarded_for(proxies.clone()).extract(&request)?, client, "{peer}: {line}");
    }
    // An IPv4-mapped network, as dual-stack sockets report it.
    let proxies = TrustedProxies::networks(["::ffff:10.0.0.0/104", "::ffff:192.0.2.1"])?;
    for (peer, client) in
        [("10.0.0.1", "2.2.2.2"), ("::ffff:10.9.9.9", "2.2.2.2"), ("192.0.2.1", "2.2.2.2"), (PEER, PEER)]
    {
        let request = head(peer, &[("x-forwarded-for", "2.2.2.2")]);
        assert_eq!(ClientAddr::x_forwarded_for(proxies.clone()).extract(&request)?, client, "{peer}");
    }
    for text in ["", "10.0.0.0/33", "10.0.0", "localhost", "2001:db8::/129"] {
        let error = TrustedProxies::networks([text]).unwrap_err().to_string();
        assert!(error.contains(&format!("'{text}'")) && error.contains("10.0.0.0/8"), "{error}");
    }
    Ok(())
}

#[test]
fn a_proxy_on_a_unix_socket_is_one_hop_and_in_no_network() -> anyhow::Result<()> {
    let mut request = head(PEER, &[("x-forwarded-for", "1.1.1.1, 2.2.2.2")]);
    request.extensions.clear();
    assert_eq!(ClientAddr::x_forwarded_for(TrustedProxies::hops(1)).extract(&request)?, "2.2.2.2");
    let everybody = TrustedProxies::networks(["0.0.0.0/0", "::/0"])?;
    assert!(ClientAddr::x_forwarded_for(everybody).extract(&request).is_err());
    request.headers.clear();
    assert!(ClientAddr::x_forwarded_for(TrustedProxies::hops(1)).extract(&request).is_err());
    Ok(())
}

#[test]
fn one_client_has_a_network_of_ipv6() {
    let a = head("2001:db8:0:1::1", &[]);
    let b = head("2001:db8:0:1:ffff::", &[]);
    let c = head("2001:db8:0:2::1", &[]);
    let key = |extractor: ClientAddr, request: &Parts| extractor.extract(request).unwrap();
    assert_eq!(key(ClientAddr::peer(), &a), key(ClientAddr::peer(), &b));
    assert_ne!(key(ClientAddr::peer(), &a), key(ClientAddr::peer(), &c));
    let wide = ClientAddr::peer().ipv6_prefix(56);
    assert_eq!(key(wide.clone(), &a), key(wide, &c));
    let each = ClientAddr::peer().ipv6_prefix(128);
    assert_ne!(key(each.clone(), &a), key(each, &b));
    for odd in [0, 129, 255] {
        key(ClientAddr::peer().ipv6_prefix(odd), &a);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The address that the proxy saw is the client's, regardless of the headers that the client sends.
    #[test]
    fn forged_entries_before_a_proxy_are_ignored(
        sent in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..4),
        same_line in any::<bool>(),
        quoted in any::<bool>(),
    ) {
        for (name, appended) in [
            ("x-forwarded-for", "203.0.113.7"),
            ("forwarded", if quoted { "proto=https;for=\"203.0.113.7:1\"" } else { "for=203.0.113.7;by=_p" }),
        ] {
            let mut lines: Vec<Vec<u8>> = sent.clone();
            match lines.last_mut().filter(|_| same_line) {
                Some(last) => last.extend([b", ", appended.as_bytes()].concat()),
                None => lines.push(appended.into()),
            }
            // A client can send only valid header values.
            let lines: Vec<HeaderValue> = lines.iter().filter_map(|line| HeaderValue::from_bytes(line).ok()).collect();
            prop_assume!(lines.last().is_some_and(|last| last.as_bytes().ends_with(appended.as_bytes())));
            let mut request = head(PEER, &[]);
            for line in lines {
                request.headers.append(name, line);
            }
            let header = HeaderName::from_static(name);
            let key = ClientAddr::header(header, TrustedProxies::hops(1)).extract(&request).unwrap();
            prop_assert_eq!(key, "203.0.113.7");
        }
    }
}

#[test]
fn a_header_of_ten_megabytes_costs_one_walk_at_most() {
    let mut headers = HeaderMap::new();
    for unit in ["1.1.1.1,", ",", "\"", "\\\"", "for=", "for=\"1.1.1.1\","] {
        headers.clear();
        headers.append("forwarded", HeaderValue::from_str(&unit.repeat(10_000_000 / unit.len())).unwrap());
        let mut request = head(PEER, &[]);
        request.headers = headers.clone();
        // With all addresses trusted, the search reads the whole header.
        let everybody = TrustedProxies::networks(["0.0.0.0/0"]).unwrap();
        assert!(ClientAddr::forwarded(everybody).extract(&request).is_ok());
    }
}

#[tokio::test]
async fn server_survives_malformed_and_huge_headers() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(1000))?;
    let key = ClientAddr::forwarded(TrustedProxies::hops(2));
    let router = Router::new().route("/", get(|| async {})).layer(RateLimitLayer::new(limiter.clone()).key(key));
    let server = Server::start(router).await?;
    let mut passed = 0;
    for value in [&b"for=\xff\xfe"[..], b"\"\\", b"for=\"[::\"", &[b'a'; 10_000]] {
        assert!(http1(&server, value).await?.starts_with(b"HTTP/1.1 200 "), "{:?}", value.len());
        assert_eq!(http2(&server, value).await?, Some(StatusCode::OK), "{:?}", value.len());
        passed += 2;
    }
    // The server's own limits come before the layer: it answers 431, or resets the connection during the upload.
    let huge = vec![b'"'; 10_000_000];
    let answer = http1(&server, &huge).await?;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "), "{answer:?}");
    let too_large = Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(http2(&server, &huge[..20_000]).await?, too_large);
    assert!([None, too_large].contains(&http2(&server, &huge).await?));
    for client in [Client::new(server.address), Client::http2(server.address)] {
        assert_eq!(client.get("/").await?.status, StatusCode::OK);
        passed += 1;
    }
    let buckets = limiter.store().list(&Filter::default(), None, 100).await?;
    assert_eq!(buckets.len(), 1, "all of them were the peer's: {buckets:?}");
    assert_eq!(buckets[0].granted(), passed, "who was not served has taken nothing");
    Ok(())
}

/// Returns the HTTP/1.1 answer to a request with this `Forwarded` value. Empty if the server resets the connection.
async fn http1(server: &Server, forwarded: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server.address).await?;
    let request = [b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nforwarded: ", forwarded, b"\r\n\r\n"].concat();
    let mut answer = Vec::new();
    let sent = stream.write_all(&request).await;
    match sent.and(stream.read_to_end(&mut answer).await) {
        Ok(_) => ensure!(!answer.is_empty(), "it hung up without a word"),
        Err(error) => ensure!(is_reset(&error), error),
    }
    Ok(answer)
}

/// Returns the status of the HTTP/2 answer, or `None` if the server resets the stream or the connection.
async fn http2(server: &Server, forwarded: &[u8]) -> anyhow::Result<Option<StatusCode>> {
    let stream = TokioIo::new(TcpStream::connect(server.address).await?);
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
    let connection = tokio::spawn(connection);
    let request = Request::builder().uri("http://a/").header("forwarded", forwarded).body(Body::empty())?;
    let status = match client.send_request(request).await {
        Ok(answer) => Some(answer.status()),
        Err(error) => {
            let cause = error.source().context("it has one")?;
            let reset = cause.downcast_ref().is_some_and(is_reset) || cause.to_string().contains("error received: ");
            ensure!(reset, "the client gave up by itself: {error:?}");
            None
        }
    };
    connection.abort();
    Ok(status)
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

#[tokio::test]
async fn missing_peer_address_error_says_how_to_add_it() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(1))?;
    // `allow_missing_key` is for clients that send no key. It does not apply to a server that provides no address.
    for layer in [RateLimitLayer::new(limiter.clone()), RateLimitLayer::new(limiter.clone()).allow_missing_key()] {
        let router = Router::new().route("/", get(|| async {})).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address: SocketAddr = listener.local_addr()?;
        // Without `ConnectInfo`.
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        let answer = Client::new(address).get("/").await?;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        let detail = answer.json()?["detail"].to_string();
        assert!(detail.contains("into_make_service_with_connect_info::<SocketAddr>()"), "{detail}");
        task.abort();
    }
    assert!(limiter.store().is_empty());
    Ok(())
}

/// Builds the head of a request from a peer.
fn head(peer: &str, headers: &[(&'static str, &str)]) -> Parts {
    let mut request = Request::new(());
    for (name, value) in headers {
        request.headers_mut().append(*name, HeaderValue::from_str(value).expect("it is one"));
    }
    request.extensions_mut().insert(SocketAddr::new(peer.parse().expect("it is an address"), 4711));
    request.into_parts().0
}

const PEER: &str = "198.51.100.1";
