//! Requests wait for their scheduled time, or are not sent.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, poll_fn};
use reqwest::Method;
use reqwest_middleware::ClientBuilder;
use tollgate::{Admin, Key, Limit, Limiter, MemoryStore, Mode, Rule, clock::ManualClock};
use tollgate_http::{ClientLimit, ClientLimitError, HeaderPreset};
use tower::{Layer, ServiceExt, service_fn};

use super::clients::{AnyClient, KINDS, Kind};
use super::replicas::Replicas;
use super::upstream::{Upstream, answer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_gets_no_more_requests_than_its_limit() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Arc::new(Upstream::new([]).await?);
        let replicas = Replicas::new()?;
        let mut requests = Vec::new();
        for _ in 0..4 {
            let limit = ClientLimit::new(replicas.limiter("20 once").await?).max_wait(Duration::from_millis(1));
            let client = AnyClient::new(kind, limit);
            for _ in 0..12 {
                let (client, upstream) = (client.clone(), Arc::clone(&upstream));
                requests.push(tokio::spawn(async move { client.get(&upstream.url("/")).await }));
            }
        }
        let mut sent = 0;
        for request in requests {
            match request.await?? {
                Ok(status) => {
                    assert_eq!(status, 200);
                    sent += 1;
                }
                Err(ClientLimitError::Limited { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        assert_eq!((sent, upstream.reached()), (20, 20), "{kind:?}");
    }
    Ok(())
}

#[tokio::test]
async fn requests_are_sent_in_arrival_order() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([]).await?;
        let limiter = Limiter::new(MemoryStore::new(), "20/s burst 1")?;
        let client = AnyClient::new(kind, ClientLimit::new(limiter));
        let urls: Vec<String> = (0..5).map(|number| upstream.url(&format!("/{number}"))).collect();
        for outcome in join_all(urls.iter().map(|url| client.get(url))).await {
            assert_eq!(outcome??, 200);
        }
        assert_eq!(upstream.paths(), ["/0", "/1", "/2", "/3", "/4"]);
    }
    Ok(())
}

#[tokio::test]
async fn request_scheduled_before_a_refusal_is_rescheduled() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([answer(429, &[("retry-after", "60")])]).await?;
        let replicas = Replicas::new()?;
        let limit = ClientLimit::new(replicas.limiter("1/s").await?);
        let client = AnyClient::new(kind, limit.max_wait(Duration::from_secs(5)));
        let url = upstream.url("/");
        let outcomes = join_all((0..3).map(|_| client.get(&url))).await;
        let statuses: Vec<_> = outcomes.into_iter().collect::<anyhow::Result<_>>()?;
        assert!(matches!(statuses[0], Ok(429)), "{statuses:?}");
        for outcome in &statuses[1..] {
            assert!(matches!(outcome, Err(ClientLimitError::Limited { .. })), "{outcome:?}");
        }
        assert_eq!(upstream.reached(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn cancelled_wait_gives_its_token_back() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([]).await?;
        let limiter = Limiter::builder(MemoryStore::new()).max_wait(Duration::MAX).build("1/h")?;
        let client = AnyClient::new(kind, ClientLimit::new(limiter.clone()).max_wait(Duration::from_hours(5)));
        let url = upstream.url("/");
        assert_eq!(client.get(&url).await??, 200);
        let key = Key::try_from(upstream.address.to_string())?;
        let left = async || anyhow::Ok(limiter.store().peek(&key).await?.expect("it is there").available());
        let mut waiting = Box::pin(client.get(&url));
        while left().await? == 0 {
            poll_fn(|context| {
                assert!(waiting.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        assert_eq!(left().await?, -1);
        drop(waiting);
        while left().await? < 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(upstream.reached(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn request_uses_the_given_key_and_cost() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([]).await?;
        let limiter = Limiter::new(MemoryStore::new(), "10/h")?;
        let limit = ClientLimit::new(limiter.clone())
            .max_wait(Duration::ZERO)
            .key(|request| Key::try_from(request.path().split('/').nth(1)?).ok())
            .cost(|request| request.path().len() as u64 - 4);
        let client = AnyClient::new(kind, limit);
        assert_eq!(client.get(&upstream.url("/abc/1234")).await??, 200);
        let key = Key::try_from("abc")?;
        assert_eq!(limiter.store().peek(&key).await?.expect("it is there").available(), 5);
        assert!(matches!(client.get(&upstream.url("/abc/12345")).await?, Err(ClientLimitError::Limited { .. })));
        assert_eq!(client.get(&upstream.url("/def")).await??, 200, "it costs nothing");
        assert_eq!(limiter.store().peek(&Key::try_from("def")?).await?, None);
        assert!(matches!(client.get(&upstream.url("//nameless")).await?, Err(ClientLimitError::MissingKey)));
        let impossible = client.get(&upstream.url("/abc/12345678901")).await?;
        assert!(matches!(impossible, Err(ClientLimitError::Limiter(_))), "{impossible:?}");
        assert_eq!(upstream.reached(), 2);
    }
    Ok(())
}

#[tokio::test]
async fn refused_request_is_resent_only_on_request() -> anyhow::Result<()> {
    let refusals = || (0..3).map(|_| answer(429, &[("retry-after", "0.02")]));
    for (retries, status, reached) in [(0, 429, 1), (2, 429, 3), (3, 200, 4), (9, 200, 4)] {
        let upstream = Upstream::new(refusals()).await?;
        let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), "1000/s")?);
        let client = ClientBuilder::new(reqwest::Client::new()).with(limit.middleware().retries(retries)).build();
        let response = client.post(upstream.url("/")).body("a body").send().await?;
        assert_eq!((response.status().as_u16(), upstream.reached()), (status, reached), "{retries} retries");
    }
    // The request is not sent again if its scheduled time would be too late.
    let upstream = Upstream::new([answer(429, &[("retry-after", "60")])]).await?;
    let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), "1000/s")?).max_wait(Duration::from_secs(1));
    let client = ClientBuilder::new(reqwest::Client::new()).with(limit.middleware().retries(3)).build();
    let response = client.get(upstream.url("/")).send().await?;
    assert_eq!((response.status().as_u16(), upstream.reached()), (429, 1));
    Ok(())
}

#[tokio::test]
async fn answer_without_throttle_is_not_resent() -> anyhow::Result<()> {
    for (rule, mode, unreported) in [
        ("100 in 60s at 1s", Mode::Enforce, 1),
        ("1000/s", Mode::Off, 0),
        ("1000/s", Mode::Shadow, 0),
        ("9 once", Mode::Enforce, 0),
    ] {
        let upstream = Upstream::new((0..3).map(|_| answer(429, &[("retry-after", "60")]))).await?;
        let limiter = Limiter::builder(MemoryStore::new()).mode(mode).build(rule)?;
        let limit = ClientLimit::new(limiter);
        let client = ClientBuilder::new(reqwest::Client::new()).with(limit.clone().middleware().retries(2)).build();
        let response = client.get(upstream.url("/")).send().await?;
        assert_eq!((response.status().as_u16(), upstream.reached()), (429, 1), "{rule}, {mode:?}");
        assert_eq!(limit.unreported(), unreported, "{rule}, {mode:?}");
    }
    Ok(())
}

/// The store's time is paused. The runtime's time would advance if a request waited.
#[tokio::test(start_paused = true)]
async fn shadow_mode_sends_requests_at_once() -> anyhow::Result<()> {
    for of_store in [false, true] {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "1/s")?;
        if of_store {
            limiter.store().set_mode(Mode::Shadow, None, None).await?;
        } else {
            limiter.set_mode(Mode::Shadow);
        }
        let sent = async |_: http::Request<()>| Ok::<_, std::convert::Infallible>(http::Response::new(()));
        let client = ClientLimit::new(limiter).max_wait(Duration::from_secs(5)).layer(service_fn(sent));
        let begun = tokio::time::Instant::now();
        let requests = (0..10).map(|_| http::Request::get("http://example.com/").body(()));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        for answer in join_all(requests.into_iter().map(|request| client.clone().oneshot(request))).await {
            answer.map_err(anyhow::Error::from_boxed)?;
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "a request waited, in shadow by the store: {of_store}");
    }
    Ok(())
}

#[tokio::test]
async fn overload_resends_only_idempotent_requests() -> anyhow::Result<()> {
    for (method, reached) in [(Method::GET, 2), (Method::PUT, 2), (Method::POST, 1), (Method::PATCH, 1)] {
        let upstream = Upstream::new([answer(503, &[("retry-after", "0.02")])]).await?;
        let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), "1000/s")?);
        let client = ClientBuilder::new(reqwest::Client::new()).with(limit.middleware().retries(2)).build();
        client.request(method.clone(), upstream.url("/")).send().await?;
        assert_eq!(upstream.reached(), reached, "{method}");
        // `refused_if` does not make a request idempotent.
        let upstream = Upstream::new([answer(503, &[])]).await?;
        let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), "1000/s")?);
        let limit = limit.refused_if(|answer| answer.status() == 503);
        let client = ClientBuilder::new(reqwest::Client::new()).with(limit.middleware().retries(2)).build();
        client.request(method.clone(), upstream.url("/")).send().await?;
        assert_eq!(upstream.reached(), reached, "{method}");
    }
    Ok(())
}

#[tokio::test]
async fn refusal_empties_a_bucket_that_never_refills() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([answer(429, &[("retry-after", "60")])]).await?;
        let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), "20 once")?);
        let client = AnyClient::new(kind, limit);
        assert_eq!(client.get(&upstream.url("/")).await??, 429);
        let next = client.get(&upstream.url("/")).await?;
        assert!(matches!(next, Err(ClientLimitError::Limited { .. })), "{next:?}");
    }
    Ok(())
}

#[tokio::test]
async fn request_without_a_host_is_refused() -> anyhow::Result<()> {
    let client = AnyClient::new(Kind::Tower, ClientLimit::new(Limiter::new(MemoryStore::new(), "1000/s")?));
    let long = format!("http://{}/", "a".repeat(256));
    for (url, reason) in [("/a/path/alone", "no host"), (&long, "more than 255 bytes")] {
        let refused = client.get(url).await?.expect_err("nobody knows where to");
        assert!(
            matches!(refused, ClientLimitError::MissingKey) && refused.to_string().contains(reason),
            "{url}: {refused}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn request_takes_from_all_limits_or_is_not_sent() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([]).await?;
        let limiter = Limiter::new(MemoryStore::new(), "3/h")?;
        let tokens: Rule = "100/h".try_into()?;
        let limit = ClientLimit::new(limiter.clone())
            .max_wait(Duration::ZERO)
            .key(|_| Key::try_from("requests").ok())
            .cost(|request| u64::from(request.path() != "/free"))
            .and(move |request| {
                let cost = request.path().trim_start_matches('/').parse().ok()?;
                Some(Limit::new(Key::try_from("tokens").ok()?, tokens.clone()).cost(cost))
            })
            .and(|request| {
                let slow = request.path() == "/slow" || request.path() == "/free";
                Some(Limit::new(Key::try_from("slow").ok()?, "1/h".try_into().ok()?)).filter(|_| slow)
            });
        let client = AnyClient::new(kind, limit);
        let left = async |key: &str| {
            let level = limiter.store().peek(&Key::try_from(key)?).await?;
            anyhow::Ok(level.map(|level| level.available()))
        };
        assert_eq!(client.get(&upstream.url("/60")).await??, 200);
        assert_eq!((left("requests").await?, left("tokens").await?, left("slow").await?), (Some(2), Some(40), None));
        let refused = client.get(&upstream.url("/60")).await?;
        assert!(
            matches!(&refused, Err(ClientLimitError::Limited { key, .. }) if key.as_str() == "tokens"),
            "{refused:?}"
        );
        assert_eq!(left("requests").await?, Some(2), "all or none");
        assert_eq!(client.get(&upstream.url("/slow")).await??, 200);
        assert_eq!(client.get(&upstream.url("/40")).await??, 200);
        assert_eq!((left("requests").await?, left("tokens").await?, left("slow").await?), (Some(0), Some(0), Some(0)));
        let refused = client.get(&upstream.url("/none")).await?;
        assert!(
            matches!(&refused, Err(ClientLimitError::Limited { key, .. }) if key.as_str() == "requests"),
            "{refused:?}"
        );
        assert_eq!(client.get(&upstream.url("/free")).await??, 200, "what costs nothing is under no limit");
        assert_eq!(upstream.reached(), 4);
    }
    Ok(())
}

#[tokio::test]
async fn limit_can_have_a_cost_if_the_limiter_has_none() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([answer(429, &[("retry-after", "60")])]).await?;
        let limiter = Limiter::builder(MemoryStore::new()).min_remaining(5).build("10/h")?;
        let limit = ClientLimit::new(limiter.clone())
            .max_wait(Duration::ZERO)
            .cost(|_| 0)
            .and(|_| Some(Limit::new(Key::try_from("bytes").ok()?, "1000/h".try_into().ok()?).cost(300)));
        let client = AnyClient::new(kind, limit);
        assert_eq!(client.get(&upstream.url("/")).await??, 429);
        let refused = client.get(&upstream.url("/")).await?;
        assert!(
            matches!(&refused, Err(ClientLimitError::Limited { key, .. }) if key.as_str() == "bytes"),
            "{refused:?}"
        );
        let host = Key::try_from(upstream.address.to_string())?;
        assert_eq!(limiter.store().peek(&host).await?, None);
        let twice = ClientLimit::new(limiter.clone()).and(|request| {
            Some(Limit::new(request.host_key()?, "1000/h".try_into().ok()?).cost(u64::from(request.path() == "/twice")))
        });
        let client = AnyClient::new(kind, twice);
        let refused = client.get(&upstream.url("/twice")).await?;
        assert!(matches!(&refused, Err(ClientLimitError::SameBucket(key)) if *key == host), "{refused:?}");
        assert_eq!(client.get(&upstream.url("/")).await??, 200, "what costs nothing is no limit");
    }
    Ok(())
}

#[tokio::test]
async fn rescheduled_request_pays_only_for_the_refused_limit() -> anyhow::Result<()> {
    for kind in KINDS {
        let headers = [("x-ratelimit-remaining-requests", "0"), ("retry-after", "0.02")];
        let upstream = Upstream::new([answer(429, &headers)]).await?;
        let limiter = Limiter::new(MemoryStore::new(), "20/s burst 1")?;
        let limit = ClientLimit::new(limiter.clone())
            .key(|_| Key::try_from("requests").ok())
            .read(HeaderPreset::OpenAiRequests)
            .and(|_| Some(Limit::new(Key::try_from("tokens").ok()?, "1000 once".try_into().ok()?).cost(300)));
        let client = AnyClient::new(kind, limit);
        let url = upstream.url("/");
        let outcomes = join_all((0..3).map(|_| client.get(&url))).await;
        let statuses: Vec<_> = outcomes.into_iter().collect::<anyhow::Result<Result<_, _>>>()??;
        assert_eq!(statuses, [429, 200, 200]);
        let level = limiter.store().peek(&Key::try_from("tokens")?).await?.expect("it was asked");
        assert_eq!(level.available(), 100, "each took its tokens once");
    }
    Ok(())
}
