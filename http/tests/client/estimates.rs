//! Requests whose cost is an estimate, settled by the tokens used.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, poll_fn};
use http::{Request, Response};
use reqwest_middleware::ClientBuilder;
use tokio::sync::{Notify, Semaphore};
use tollgate::{
    Adjusted, Admin, Error, Fallback, Key, Limit, Limiter, MemoryStore, Mode, Quota, Store, TakeError,
    clock::{ManualClock, RuntimeClock},
};
use tollgate_http::{ClientLimit, Estimate, HeaderPreset, OutgoingRequest, UpstreamResponse};
use tower::{Layer, ServiceExt, service_fn};

use super::clients::{AnyClient, KINDS};
use super::replicas::Replicas;
use super::slow::Slow;
use super::upstream::{Upstream, answer};

/// Returns the tokens used, as the answer reports.
fn used(answer: &UpstreamResponse<'_>) -> Option<u64> {
    answer.headers().get("x-used")?.to_str().ok()?.parse().ok()
}

/// A limit of tokens with one bucket, from which each request takes `cost`.
pub(super) fn of_tokens<S: Store>(limiter: Limiter<S>, cost: u64) -> ClientLimit<S> {
    ClientLimit::new(limiter).max_wait(Duration::ZERO).key(|_| Key::try_from("tokens").ok()).cost(move |_| cost)
}

pub(super) async fn left<S: Admin>(store: &S, key: &str) -> anyhow::Result<i64> {
    Ok(store.peek(&Key::try_from(key)?).await?.expect("it was asked").available())
}

/// Sends a request to an upstream that answers with these headers. Returns its estimate.
pub(super) async fn asks<S: Store>(
    limit: ClientLimit<S>,
    headers: &[(&str, &str)],
) -> anyhow::Result<(u16, Option<Estimate>)> {
    let headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let upstream = service_fn(move |_: Request<()>| {
        let lines = headers.iter().filter(|(name, _)| name != "status");
        let status = headers.iter().find(|(name, _)| name == "status").map_or("200", |(_, status)| status);
        let response =
            lines.fold(Response::builder().status(status), |response, (name, value)| response.header(name, value));
        std::future::ready(response.body(()))
    });
    let request = Request::get("http://example.com/").body(())?;
    let response = limit.layer(upstream).oneshot(request).await.map_err(anyhow::Error::from_boxed)?;
    Ok((response.status().as_u16(), response.extensions().get().cloned()))
}

#[tokio::test]
async fn unused_estimate_is_available_to_other_replicas() -> anyhow::Result<()> {
    for kind in KINDS {
        for by_head in [true, false] {
            let upstream = Upstream::new([answer(200, &[("x-used", "100")]), answer(200, &[])]).await?;
            let replicas = Replicas::new()?;
            let limiter = replicas.limiter("1000 once").await?;
            let limit = of_tokens(limiter.clone(), 900);
            let limit = if by_head { limit.settle(used) } else { limit.settle_later() };
            let client = AnyClient::new(kind, limit);
            let (_, estimate) = client.get_and_settle(&upstream.url("/")).await??;
            match estimate {
                Some(estimate) => assert_eq!(estimate.settle(100).await?, Adjusted::Done(800)),
                None => assert!(by_head, "{kind:?}"),
            }
            limiter.close().await?;
            let another = AnyClient::new(kind, of_tokens(replicas.limiter("1000 once").await?, 900));
            assert_eq!(another.get(&upstream.url("/")).await??, 200, "{kind:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn usage_beyond_the_estimate_delays_the_next_requests() -> anyhow::Result<()> {
    for (by_head, headers) in [(true, &[("x-used", "1500")][..]), (false, &[])] {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "1000/h")?;
        let limit = of_tokens(limiter.clone(), 400);
        let limit = if by_head { limit.settle(used) } else { limit.settle_later() };
        if let Some(estimate) = asks(limit.clone(), headers).await?.1 {
            assert_eq!(estimate.settle(1500).await?, Adjusted::Done(-1100));
        }
        limiter.close().await?;
        assert_eq!(left(limiter.store(), "tokens").await?, -500, "by the head: {by_head}");
        let refused = asks(limit, &[]).await.expect_err("it waits");
        assert!(refused.to_string().contains("no tokens available"), "{refused}");
    }
    Ok(())
}

#[tokio::test]
async fn refund_does_not_exceed_the_reported_remaining() -> anyhow::Result<()> {
    for (left_over, expected) in [("5000", 5000), ("8900", 8900), ("9500", 9500), ("9501", 9500), ("0", 0)] {
        for by_head in [true, false] {
            let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "10000/h")?;
            let limit = of_tokens(limiter.clone(), 1200).read(HeaderPreset::OpenAiTokens);
            let limit = if by_head { limit.settle(used) } else { limit.settle_later() };
            let headers = [("x-ratelimit-remaining-tokens", left_over), ("x-used", "500")];
            if let Some(estimate) = asks(limit.clone(), &headers).await?.1 {
                assert_eq!(estimate.settle(500).await?, Adjusted::Done(700));
            }
            limiter.close().await?;
            assert_eq!(left(limiter.store(), "tokens").await?, expected, "by the head: {by_head}");
            assert_eq!(limit.unreported(), 0);
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn old_reported_remaining_lowers_nothing() -> anyhow::Result<()> {
    let headers =
        [("x-ratelimit-limit-tokens", "1"), ("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "60s")];
    for (headers, level) in [(&headers[1..2], 30 + 90), (&headers[..], -29)] {
        let limiter = Limiter::new(MemoryStore::with_clock(RuntimeClock::default()), "1/s burst 1000")?;
        let limit = of_tokens(limiter.clone(), 100).read(HeaderPreset::OpenAiTokens).settle_later();
        let estimate = asks(limit, headers).await?.1.expect("it was served");
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(estimate.settle(10).await?, Adjusted::Done(90));
        assert_eq!(left(limiter.store(), "tokens").await?, level, "{headers:?}");
    }
    Ok(())
}

#[tokio::test]
async fn estimate_of_an_unread_answer_stands() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "10000/h")?;
    let limit = of_tokens(limiter.clone(), 1200).read(HeaderPreset::OpenAiTokens).settle_later();
    assert!(asks(limit.clone(), &[]).await?.1.is_some());
    assert_eq!(left(limiter.store(), "tokens").await?, 8800);
    drop(asks(limit.clone(), &[("x-ratelimit-remaining-tokens", "700")]).await?);
    assert_eq!(left(limiter.store(), "tokens").await?, 700);
    Ok(())
}

#[tokio::test]
async fn only_the_first_settlement_of_a_request_counts() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "1000/h")?;
    let estimate = asks(of_tokens(limiter.clone(), 400).settle_later(), &[]).await?.1.expect("it was served");
    let settled = join_all((0..5).map(|_| estimate.settle(100))).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(settled.iter().filter(|settled| **settled == Adjusted::Done(300)).count(), 1, "{settled:?}");
    assert_eq!(settled.iter().filter(|settled| **settled == Adjusted::Repeated).count(), 4, "{settled:?}");
    assert_eq!(left(limiter.store(), "tokens").await?, 900);
    Ok(())
}

#[tokio::test]
async fn estimate_can_be_settled_within_its_time() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()), "1000 once")?;
    let limit = of_tokens(limiter.clone(), 100).settle_later().settle_within(Duration::from_secs(60));
    let [in_time, late] = [asks(limit.clone(), &[]).await?.1, asks(limit, &[]).await?.1].map(Option::unwrap);
    clock.advance(Duration::from_secs(59));
    assert_eq!(in_time.settle(10).await?, Adjusted::Done(90));
    clock.advance(Duration::from_secs(2));
    assert_eq!(late.settle(10).await?, Adjusted::Late);
    assert_eq!(left(limiter.store(), "tokens").await?, 890);
    Ok(())
}

#[tokio::test]
async fn late_settlement_counts_as_unreported() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()), "1000 once")?;
    let limit = of_tokens(limiter.clone(), 100).settle(|_| Some(10)).settle_within(Duration::from_secs(60));
    for (seconds, left_over, unreported) in [(59, 990, 0), (61, 890, 1)] {
        let clock = clock.clone();
        let slow = service_fn(move |_: Request<()>| {
            clock.advance(Duration::from_secs(seconds));
            std::future::ready(Response::builder().body(()))
        });
        let request = Request::get("http://example.com/").body(())?;
        limit.clone().layer(slow).oneshot(request).await.map_err(anyhow::Error::from_boxed)?;
        limiter.close().await?;
        assert_eq!(
            (left(limiter.store(), "tokens").await?, limit.unreported()),
            (left_over, unreported),
            "{seconds} s"
        );
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn wait_does_not_shorten_the_time_to_settle() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(RuntimeClock::default()), "1/s burst 100")?;
    let limit = of_tokens(limiter.clone(), 100).settle_later().settle_within(Duration::from_secs(20));
    drop(asks(limit.clone(), &[]).await?);
    let estimate = asks(limit.max_wait(Duration::from_secs(200)), &[]).await?.1.expect("it was served");
    tokio::time::advance(Duration::from_secs(19)).await;
    assert_eq!(estimate.settle(10).await?, Adjusted::Done(90));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn old_remaining_is_ignored_without_a_refund() -> anyhow::Result<()> {
    let headers = [("x-ratelimit-remaining-tokens", "5000")];
    for (used, settled) in [(1200, Adjusted::Done(0)), (1300, Adjusted::Done(-100)), (500, Adjusted::Late)] {
        let clock = ManualClock::default();
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()), "10000 once")?;
        let limit = of_tokens(limiter.clone(), 1200).read(HeaderPreset::OpenAiTokens).settle_later();
        let estimate = asks(limit.settle_within(Duration::from_secs(60)), &headers).await?.1.expect("it was served");
        limiter.close().await?;
        // Another caller gives its tokens back.
        let key = Key::try_from("tokens")?;
        limiter.store().reset(&key).await?;
        clock.advance(Duration::from_secs(if settled == Adjusted::Late { 61 } else { 0 }));
        for expected in [settled, if settled == Adjusted::Late { settled } else { Adjusted::Repeated }] {
            assert_eq!(estimate.settle(used).await?, expected);
        }
        let owed = if used == 1300 { 100 } else { 0 };
        assert_eq!(left(limiter.store(), "tokens").await?, 10_000 - owed, "{settled:?}");
    }
    // A repeated settlement must not report the returned tokens again.
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "10000 once")?;
    let limit = of_tokens(limiter.clone(), 1200).read(HeaderPreset::OpenAiTokens).settle_later();
    let estimate = asks(limit, &headers).await?.1.expect("it was served");
    assert_eq!(estimate.settle(500).await?, Adjusted::Done(700));
    limiter.store().reset(&Key::try_from("tokens")?).await?;
    assert_eq!(estimate.settle(500).await?, Adjusted::Repeated);
    assert_eq!(left(limiter.store(), "tokens").await?, 10_000);
    Ok(())
}

#[tokio::test]
async fn settled_requests_free_their_room() -> anyhow::Result<()> {
    // With the default capacity, and with a small one.
    for (store, requests) in [(MemoryStore::new(), 20_000), (MemoryStore::new().max_keys(64), 500)] {
        let limiter = Limiter::new(store, "1000000/s")?;
        let by_body = of_tokens(limiter.clone(), 20).settle_later();
        let by_head = of_tokens(limiter.clone(), 20).settle(|_| Some(10));
        for _ in 0..requests / 2 {
            let estimate = asks(by_body.clone(), &[]).await?.1.expect("it was served");
            assert_eq!(estimate.settle(10).await?, Adjusted::Done(10));
            assert_eq!(estimate.settle(10).await?, Adjusted::Repeated, "there was room for it still");
            asks(by_head.clone(), &[]).await?;
            limiter.close().await?;
        }
        assert_eq!(by_head.unreported(), 0);
    }
    Ok(())
}

#[tokio::test]
async fn local_fallback_grants_any_number_of_estimates() -> anyhow::Result<()> {
    let store =
        Arc::new(Slow { store: MemoryStore::new(), requested: Notify::new(), leave: Semaphore::new(0), up: false });
    let local = Quota::per_second(1_000_000).burst(100_000_000);
    let fallback = Fallback::Local(local.try_into()?);
    let limiter = Limiter::builder(store).deadline(Duration::from_millis(50)).fallback(fallback).build("1000/s")?;
    let limit = of_tokens(limiter, 1).settle_later();
    for _ in 0..60_000 {
        asks(limit.clone(), &[]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn cancelled_wait_with_estimate_gives_tokens_back() -> anyhow::Result<()> {
    for kind in KINDS {
        let upstream = Upstream::new([]).await?;
        let limiter = Limiter::builder(MemoryStore::new()).max_wait(Duration::MAX).build("100/h")?;
        let limit = of_tokens(limiter.clone(), 100).settle_later().max_wait(Duration::from_hours(5));
        let client = AnyClient::new(kind, limit);
        let url = upstream.url("/");
        assert_eq!(client.get(&url).await??, 200);
        let mut waiting = Box::pin(client.get(&url));
        while left(limiter.store(), "tokens").await? >= 0 {
            poll_fn(|context| {
                assert!(waiting.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        drop(waiting);
        while left(limiter.store(), "tokens").await? < 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(upstream.reached(), 1);
    }
    Ok(())
}

/// The requests and tokens of one account.
fn account<S: Store>(limiter: Limiter<S>, tokens: &'static str) -> ClientLimit<S> {
    ClientLimit::new(limiter)
        .key(|_| Key::try_from("requests").ok())
        .read(HeaderPreset::OpenAiRequests)
        .and(move |_| Some(Limit::new(Key::try_from("tokens").ok()?, tokens.try_into().ok()?).cost(300)))
        .read(HeaderPreset::OpenAiTokens)
}

#[tokio::test]
async fn refused_request_used_nothing_and_overload_is_unknown() -> anyhow::Result<()> {
    for (status, left_over, expected) in
        [("429", "5000", 1000), ("429", "10", 0), ("503", "5000", 700), ("529", "5000", 700)]
    {
        for by_head in [true, false] {
            let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "600/h")?;
            let limit = account(limiter.clone(), "1000 once").max_wait(Duration::ZERO);
            let limit = if by_head { limit.settle(used) } else { limit.settle_later() };
            let requests = if left_over == "10" { "7" } else { "0" };
            let headers = [
                ("status", status),
                ("x-ratelimit-remaining-requests", requests),
                ("x-ratelimit-remaining-tokens", left_over),
                ("retry-after", "60"),
            ];
            let (_, estimate) = asks(limit.clone(), &headers).await?;
            assert!(estimate.is_none(), "nobody has a body to settle it by");
            assert_eq!(left(limiter.store(), "tokens").await?, expected, "{status}, {left_over} left");
            assert_eq!(limit.unreported(), 0);
        }
    }
    Ok(())
}

#[tokio::test]
async fn estimate_stands_after_overload_without_usage() -> anyhow::Result<()> {
    let headers = [
        ("status", "503"),
        ("retry-after", "60"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-remaining-tokens", "5000"),
        ("x-used", "100"),
    ];
    for (headers, expected) in [(&headers[..4], 700), (&headers[..], 900)] {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "600/h")?;
        let limit = account(limiter.clone(), "1000 once").max_wait(Duration::ZERO).settle(used);
        asks(limit.refused_if(|answer| answer.status() == 503), headers).await?;
        assert_eq!(left(limiter.store(), "tokens").await?, expected, "{headers:?}");
    }
    Ok(())
}

#[tokio::test]
async fn resent_request_is_paid_once() -> anyhow::Result<()> {
    for by_head in [true, false] {
        let refusal = || answer(429, &[("retry-after", "0.02"), ("x-ratelimit-remaining-requests", "0")]);
        let upstream = Upstream::new([refusal(), refusal(), answer(200, &[("x-used", "100")])]).await?;
        let limiter = Limiter::new(MemoryStore::new(), "1000/s")?;
        let limit = account(limiter.clone(), "1000 once");
        let limit = if by_head { limit.settle(used) } else { limit.settle_later() };
        let client = ClientBuilder::new(reqwest::Client::new()).with(limit.middleware().retries(2)).build();
        let response = client.get(upstream.url("/")).send().await?;
        assert_eq!((response.status().as_u16(), upstream.reached()), (200, 3));
        if let Some(estimate) = response.extensions().get::<Estimate>() {
            assert_eq!(estimate.settle(100).await?, Adjusted::Done(200));
        }
        limiter.close().await?;
        assert_eq!(left(limiter.store(), "tokens").await?, 900, "by the head: {by_head}");
    }
    Ok(())
}

#[tokio::test]
async fn rescheduled_request_can_settle_its_earlier_grant() -> anyhow::Result<()> {
    for kind in KINDS {
        let refusal = [("x-ratelimit-remaining-requests", "0"), ("retry-after", "0.02")];
        let served = || answer(200, &[("x-used", "100")]);
        let upstream = Upstream::new([answer(429, &refusal), served(), served()]).await?;
        let limiter = Limiter::new(MemoryStore::new(), "20/s burst 1")?;
        let client = AnyClient::new(kind, account(limiter.clone(), "1000 once").settle(used));
        let url = upstream.url("/");
        let outcomes = join_all((0..3).map(|_| client.get(&url))).await;
        let statuses: Vec<_> = outcomes.into_iter().collect::<anyhow::Result<Result<_, _>>>()??;
        assert_eq!(statuses, [429, 200, 200]);
        limiter.close().await?;
        assert_eq!(left(limiter.store(), "tokens").await?, 800);
    }
    Ok(())
}

#[tokio::test]
async fn several_estimates_of_a_request_are_settled_each() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "1000/h")?;
    let output =
        |_: &OutgoingRequest<'_>| Some(Limit::new(Key::try_from("output").ok()?, "1000/h".try_into().ok()?).cost(500));
    let limit = of_tokens(limiter.clone(), 300).settle_later().and(output).settle_later();
    let estimate = asks(limit, &[]).await?.1.expect("it was served");
    let differ = estimate.settle(1).await;
    assert!(matches!(differ, Err(Error::Take(TakeError::CostsDiffer))), "{differ:?}");
    let settled = estimate.settle_each(|receipt| (receipt.key().as_str() == "output").then_some(20)).await?;
    assert_eq!(settled, Adjusted::Done(480));
    assert_eq!((left(limiter.store(), "tokens").await?, left(limiter.store(), "output").await?), (700, 980));
    Ok(())
}

#[tokio::test]
async fn request_without_tokens_has_nothing_to_settle() -> anyhow::Result<()> {
    let off = Limiter::builder(MemoryStore::new()).mode(Mode::Off).build("1000/h")?;
    let estimate = asks(of_tokens(off, 300).settle_later(), &[]).await?.1.expect("it was served");
    assert_eq!((estimate.settle(7).await?, estimate.receipts()), (Adjusted::Done(0), &[][..]));
    let store =
        Arc::new(Slow { store: MemoryStore::new(), requested: Notify::new(), leave: Semaphore::new(0), up: false });
    let down = Limiter::builder(store).deadline(Duration::from_millis(50)).fallback(Fallback::Open).build("1000/h")?;
    let estimate = asks(of_tokens(down, 300).settle_later(), &[]).await?.1.expect("it was served");
    assert_eq!((estimate.settle(7).await?, estimate.receipts()), (Adjusted::Done(0), &[][..]));
    Ok(())
}
