//! Upstream answers throttle all clients.

use std::time::Duration;

use http::{Request, Response};
use tollgate::{Admin, Key, Limit, Limiter, MemoryStore, Mode, SqliteStore, Throttle, Window, clock::ManualClock};
use tollgate_http::{ClientLimit, ClientLimitError, Estimate, HeaderPreset};
use tower::{Layer, ServiceExt, service_fn};

use super::clients::{AnyClient, KINDS};
use super::replicas::Replicas;
use super::upstream::{Answer, Upstream, answer};

/// Returns when a request that was not sent could be sent.
fn limited(outcome: Result<u16, ClientLimitError>) -> Duration {
    match outcome {
        Err(ClientLimitError::Limited { retry_after: Some(retry_after), .. }) => retry_after,
        other => panic!("{other:?}"),
    }
}

/// Returns for how long this answer throttles a client that does not wait.
async fn throttle_of(answer: Answer, presets: &[HeaderPreset]) -> anyhow::Result<Option<Duration>> {
    let status = answer.0;
    let upstream = Upstream::new([answer]).await?;
    let mut found = Vec::new();
    for kind in KINDS {
        let limiter = Limiter::new(MemoryStore::new(), "1000/h")?;
        let limit = ClientLimit::new(limiter).max_wait(Duration::ZERO);
        let limit = presets.iter().fold(limit, |limit, preset| limit.read(*preset));
        let client = AnyClient::new(kind, limit.clone());
        // Both clients get the same answer.
        upstream.again();
        assert_eq!(client.get(&upstream.url("/")).await??, status, "{kind:?}");
        assert_eq!(limit.unreported(), 0);
        found.push(match client.get(&upstream.url("/")).await? {
            Ok(_) => None,
            throttle => Some(limited(throttle)),
        });
    }
    assert_eq!(found[0].is_some(), found[1].is_some());
    Ok(found.into_iter().flatten().min())
}

#[tokio::test]
async fn refusal_seen_by_one_replica_throttles_all() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([answer(200, &[]), answer(429, &[("retry-after", "60")])]).await?;
        let replicas = Replicas::new()?;
        let mut clients = Vec::new();
        for _ in 0..3 {
            let limit = ClientLimit::new(replicas.limiter("1000/s").await?).max_wait(Duration::from_secs(1));
            clients.push(AnyClient::new(kind, limit));
        }
        let url = upstream.url("/");
        assert_eq!(clients[0].get(&url).await??, 200);
        assert_eq!(clients[1].get(&url).await??, 429, "it is the caller's to see");
        for client in clients.iter().cycle().take(30) {
            let retry_after = limited(client.get(&url).await?);
            assert!((30..=60).contains(&retry_after.as_secs()), "{retry_after:?}");
        }
        assert_eq!(upstream.reached(), 2);
    }
    Ok(())
}

#[tokio::test]
async fn upstream_clock_can_be_years_off() -> anyhow::Result<()> {
    let headers = [("date", "Sat, 01 Jan 2000 00:00:00 GMT"), ("retry-after", "Sat, 01 Jan 2000 00:10:00 GMT")];
    let throttle = throttle_of(answer(429, &headers), &[]).await?.expect("it throttles");
    assert!(throttle <= Duration::from_mins(10) && throttle > Duration::from_mins(5), "{throttle:?}");
    Ok(())
}

#[tokio::test]
async fn wait_of_ten_years_is_bounded_to_an_hour() -> anyhow::Result<()> {
    let throttle = throttle_of(answer(429, &[("retry-after", "315360000")]), &[]).await?.expect("it throttles");
    assert!(throttle <= Duration::from_hours(1) && throttle > Duration::from_mins(50), "{throttle:?}");
    Ok(())
}

#[tokio::test]
async fn plain_429_empties_the_bucket() -> anyhow::Result<()> {
    for nonsense in [None, Some("later"), Some("-5")] {
        let headers: Vec<_> = nonsense.map(|value| ("retry-after", value)).into_iter().collect();
        let throttle = throttle_of(answer(429, &headers), &[]).await?.expect("it throttles");
        assert!(throttle <= Duration::from_millis(3600), "{throttle:?}");
    }
    Ok(())
}

#[tokio::test]
async fn only_overload_with_retry_after_throttles() -> anyhow::Result<()> {
    for status in [503, 529] {
        assert!(throttle_of(answer(status, &[("retry-after", "60")]), &[]).await?.is_some(), "{status}");
    }
    for (status, headers) in [(503, vec![]), (500, vec![("retry-after", "60")]), (301, vec![("retry-after", "60")])] {
        assert_eq!(throttle_of(answer(status, &headers), &[]).await?, None, "{status}");
    }
    Ok(())
}

#[tokio::test]
async fn forbidden_throttles_if_the_client_reads_it() -> anyhow::Result<()> {
    let headers = [("x-ratelimit-remaining", "4000"), ("retry-after", "60")];
    assert_eq!(throttle_of(answer(403, &headers), &[]).await?, None);
    let throttle = throttle_of(answer(403, &headers), &[HeaderPreset::XRateLimit]).await?.expect("it throttles");
    assert!(throttle <= Duration::from_mins(1) && throttle > Duration::from_secs(30), "{throttle:?}");
    Ok(())
}

#[tokio::test]
async fn headers_are_read_only_with_a_preset() -> anyhow::Result<()> {
    let headers = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800")];
    assert_eq!(throttle_of(answer(200, &headers), &[]).await?, None);
    let throttle = throttle_of(answer(200, &headers), &[HeaderPreset::XRateLimit]).await?.expect("it throttles");
    assert!(throttle <= Duration::from_mins(30) && throttle > Duration::from_mins(20), "{throttle:?}");
    let malformed: Answer =
        (200, vec![("ratelimit", vec![0xff, b'"', 0xc3]), ("x-ratelimit-remaining", b"\xf0\x9f".to_vec())]);
    assert_eq!(throttle_of(malformed, HeaderPreset::ALL).await?, None);
    Ok(())
}

#[tokio::test]
async fn reported_remaining_applies_to_all_replicas() -> anyhow::Result<()> {
    for kind in KINDS {
        let left = answer(200, &[("ratelimit", r#""default";r=3;t=3600"#)]);
        let more = answer(200, &[("ratelimit", r#""default";r=900;t=3600"#)]);
        let upstream = Upstream::new([left, more]).await?;
        let replicas = Replicas::new()?;
        let mut clients = Vec::new();
        for _ in 0..3 {
            let limit = ClientLimit::new(replicas.limiter("1000/d").await?).max_wait(Duration::ZERO);
            clients.push(AnyClient::new(kind, limit.read(HeaderPreset::RateLimit)));
        }
        let mut sent = 0;
        for client in clients.iter().cycle().take(30) {
            sent += usize::from(client.get(&upstream.url("/")).await?.is_ok());
        }
        assert_eq!((sent, upstream.reached()), (4, 4), "what it said later raised nothing");
    }
    Ok(())
}

#[tokio::test]
async fn answer_reaches_its_caller_even_if_the_report_fails() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([answer(429, &[("retry-after", "60")])]).await?;
        let window = Window::new(10, Duration::from_secs(60), Duration::from_secs(1))?;
        let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), window)?);
        let client = AnyClient::new(kind, limit.clone());
        assert_eq!(client.get(&upstream.url("/")).await??, 429);
        assert_eq!(limit.unreported(), 1, "a window cannot be throttled");
    }
    Ok(())
}

#[tokio::test]
async fn refusal_throttles_only_its_own_host() -> anyhow::Result<()> {
    for kind in KINDS {
        let refusing = Upstream::new([answer(429, &[("retry-after", "60")])]).await?;
        let other = Upstream::new([]).await?;
        let limiter = Limiter::new(MemoryStore::new(), "1000/s")?;
        let client = AnyClient::new(kind, ClientLimit::new(limiter.clone()).max_wait(Duration::ZERO));
        assert_eq!(client.get(&refusing.url("/")).await??, 429);
        assert_eq!(client.get(&other.url("/")).await??, 200);
        limited(client.get(&refusing.url("/")).await?);
        // The key is the host in the URL.
        let key = Key::try_from(refusing.address.to_string())?;
        assert!(limiter.store().peek(&key).await?.expect("it is there").available() < 0);
    }
    Ok(())
}

#[tokio::test]
async fn disabled_limiter_reports_nothing() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([answer(429, &[("retry-after", "60")])]).await?;
        let limiter = Limiter::builder(MemoryStore::new()).mode(Mode::Off).build("1000/s")?;
        let limit = ClientLimit::new(limiter.clone()).read(HeaderPreset::XRateLimit);
        let client = AnyClient::new(kind, limit.clone());
        assert_eq!(client.get(&upstream.url("/")).await??, 429);
        let key = Key::try_from(upstream.address.to_string())?;
        assert_eq!((limiter.store().peek(&key).await?, limit.unreported()), (None, 0), "{kind:?}");
    }
    Ok(())
}

/// The requests and tokens of one account, shared by two replicas.
async fn account(
    answer: Answer,
) -> anyhow::Result<(Upstream, [AnyClient<SqliteStore>; 2], Limiter<SqliteStore>, Replicas)> {
    let upstream = Upstream::new([answer]).await?;
    let replicas = Replicas::new()?;
    let client = async |kind| {
        let limit = ClientLimit::new(replicas.limiter("600/h").await?)
            .max_wait(Duration::ZERO)
            .key(|_| Key::try_from("requests").ok())
            .read(HeaderPreset::OpenAiRequests)
            .and(|_| Some(Limit::new(Key::try_from("tokens").ok()?, "60000/h".try_into().ok()?).cost(100)))
            .read(HeaderPreset::OpenAiTokens);
        anyhow::Ok(AnyClient::new(kind, limit))
    };
    let clients = [client(KINDS[0]).await?, client(KINDS[1]).await?];
    let limiter = replicas.limiter("600/h").await?;
    Ok((upstream, clients, limiter, replicas))
}

#[tokio::test]
async fn limits_reported_too_low_are_throttled() -> anyhow::Result<()> {
    let left = |requests, tokens| {
        [("x-ratelimit-remaining-requests", requests), ("x-ratelimit-remaining-tokens", tokens), ("retry-after", "60")]
    };
    for (status, headers, requests, tokens) in [
        (200, left("400", "99999"), 400..=401, 59_900..=59_999),
        (429, left("400", "99"), 400..=401, -1000..=-900),
        (429, left("0", "50000"), -10..=-9, 50_000..=50_099),
        (429, left("400", "50000"), -10..=-9, -1000..=-900),
    ] {
        let (upstream, clients, limiter, _replicas) = account(answer(status, &headers)).await?;
        assert_eq!(clients[0].get(&upstream.url("/")).await??, status);
        let available = async |key: &str| {
            let level = limiter.store().peek(&Key::try_from(key)?).await?.expect("it was asked");
            anyhow::Ok(level.available())
        };
        let (found, of_tokens) = (available("requests").await?, available("tokens").await?);
        assert!(requests.contains(&found), "{status} {headers:?}: {found} requests");
        assert!(tokens.contains(&of_tokens), "{status} {headers:?}: {of_tokens} tokens");
        if status == 429 {
            let throttle = limited(clients[1].get(&upstream.url("/")).await?);
            assert!((50..=70).contains(&throttle.as_secs()), "{throttle:?}");
        } else {
            assert_eq!(clients[1].get(&upstream.url("/")).await??, 200);
        }
    }
    Ok(())
}

#[tokio::test]
async fn grpc_refusal_in_head_throttles() -> anyhow::Result<()> {
    let throttle = throttle_of(answer(200, &[("grpc-status", "8"), ("retry-after", "60")]), &[]).await?;
    assert!(throttle.is_some_and(|throttle| (30..=60).contains(&throttle.as_secs())), "{throttle:?}");
    assert_eq!(throttle_of(answer(200, &[("grpc-status", "8")]), &[]).await?, None, "it may be of another kind");
    Ok(())
}

#[tokio::test]
async fn limit_reads_its_own_policy() -> anyhow::Result<()> {
    let printed = r#""second";r=9;t=1, "bytes";r=0;t=40"#;
    for (status, throttle) in [(200, -30), (429, -30)] {
        for kind in KINDS {
            let upstream = Upstream::new([answer(status, &[("ratelimit", printed)])]).await?;
            let limiter = Limiter::new(MemoryStore::new(), "1/s burst 10")?;
            let limit = ClientLimit::new(limiter.clone())
                .key(|_| Key::try_from("requests").ok())
                .read(HeaderPreset::Policy("second"))
                .and(|_| Some(Limit::new(Key::try_from("bytes").ok()?, "1/s burst 100".try_into().ok()?).cost(10)))
                .read(HeaderPreset::Policy("bytes"));
            assert_eq!(AnyClient::new(kind, limit).get(&upstream.url("/")).await??, status);
            let left = async |key: &str| {
                anyhow::Ok(limiter.store().peek(&Key::try_from(key)?).await?.expect("it was asked").available())
            };
            assert!((9..=10).contains(&left("requests").await?), "{status}");
            assert!(left("bytes").await? < throttle, "{status}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn closure_reads_headers_without_a_preset() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([answer(200, &[("x-left", "7")]), answer(418, &[("x-left", "50")])]).await?;
        let limiter = Limiter::new(MemoryStore::new(), "100 once")?;
        let limit = ClientLimit::new(limiter.clone())
            .key(|_| Key::try_from("requests").ok())
            .and(|_| Some(Limit::new(Key::try_from("tokens").ok()?, "1000 once".try_into().ok()?).cost(10)))
            .read_with(|answer| Some(Throttle::remaining(answer.headers().get("x-left")?.to_str().ok()?.parse().ok()?)))
            .refused_if(|answer| answer.status() == 418);
        let client = AnyClient::new(kind, limit);
        let left = async |key: &str| {
            anyhow::Ok(limiter.store().peek(&Key::try_from(key)?).await?.expect("it was asked").available())
        };
        assert_eq!(client.get(&upstream.url("/")).await??, 200);
        assert_eq!((left("requests").await?, left("tokens").await?), (99, 7));
        limiter.store().reset(&Key::try_from("tokens")?).await?;
        assert_eq!(client.get(&upstream.url("/")).await??, 418);
        assert_eq!((left("requests").await?, left("tokens").await?), (0, 50), "it is of the limit that says nothing");
    }
    Ok(())
}

/// A settlement that applies the report again has the same bound.
#[tokio::test(start_paused = true)]
async fn shorter_of_two_maximum_waits_applies() -> anyhow::Result<()> {
    let upstream = service_fn(async |_: Request<()>| anyhow::Ok(Response::new(())));
    for (of_closure, client_error, expected) in [
        (Some(5), None, 5),
        (Some(5), Some(60), 5),
        (Some(60), Some(5), 5),
        (None, Some(5), 5),
        (Some(9000), None, 3600),
    ] {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "10/s")?;
        let mut limit = ClientLimit::new(limiter.clone())
            .read_with(move |_| {
                let throttle = Throttle::retry_after(Duration::from_secs(8000)).and(Throttle::remaining(0));
                Some(of_closure.map_or(throttle, |seconds| throttle.max_wait(Duration::from_secs(seconds))))
            })
            .settle_later();
        if let Some(seconds) = client_error {
            limit = limit.max_throttle(Duration::from_secs(seconds));
        }
        let request = Request::get("http://example.com/").body(())?;
        let answer = limit.layer(upstream).oneshot(request).await.map_err(anyhow::Error::from_boxed)?;
        let throttle = async || anyhow::Ok(limiter.allow("example.com").await?.retry_after());
        let expected = Some(Duration::from_secs(expected));
        assert_eq!(throttle().await?, expected, "{of_closure:?} {client_error:?}");
        answer.extensions().get::<Estimate>().expect("it was served").settle(0).await?;
        assert_eq!(throttle().await?, expected, "{of_closure:?} {client_error:?}, settled");
    }
    Ok(())
}
