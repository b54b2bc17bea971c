//! Queued requests when the upstream refuses a request that was sent before.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{join, join_all};
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tollgate::{
    Admin, Key, Limit, Limiter, MemoryStore, Mode, Rule, Store, admin::Override, clock::RuntimeClock, layers::Batcher,
};
use tollgate_http::{ClientLimit, ClientLimitError, GlobalKey, RateLimitLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

type Memory = MemoryStore<RuntimeClock>;

/// Records when requests arrive, in milliseconds.
#[derive(Clone)]
struct Upstream {
    since: Instant,
    sent: Arc<Mutex<Vec<u128>>>,
}

/// Time until an answer arrives.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

impl Upstream {
    fn new() -> Self {
        Self { since: Instant::now(), sent: Arc::default() }
    }

    fn now(&self) -> u128 {
        self.since.elapsed().as_millis()
    }

    fn sent(&self) -> Vec<u128> {
        self.sent.lock().clone()
    }

    /// Returns a client whose first request is refused for a number of seconds.
    fn client<S: Store>(
        &self,
        limit: &ClientLimit<S>,
        seconds: Option<u64>,
    ) -> impl Service<Request<()>, Response = Response<()>, Error = tower::BoxError, Future: Send> + Clone + use<S>
    {
        let upstream = self.clone();
        limit.clone().layer(service_fn(move |_: Request<()>| {
            let mut sent = upstream.sent.lock();
            sent.push(upstream.now());
            let mut response = Response::new(());
            if let Some(seconds) = seconds.filter(|_| sent.len() == 1) {
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                response.headers_mut().insert("retry-after", seconds.into());
            }
            async move {
                sleep(ON_ITS_WAY).await;
                Ok::<_, Infallible>(response)
            }
        }))
    }

    /// Sends requests concurrently. Returns the outcome and the time of each.
    async fn requested<S: Store>(
        &self,
        limit: &ClientLimit<S>,
        seconds: Option<u64>,
        requests: usize,
    ) -> Vec<(Result<StatusCode, ClientLimitError>, u128)> {
        let client = self.client(limit, seconds);
        let request = || Request::get("http://example.com/").body(()).expect("a request");
        let asks = (0..requests).map(|_| {
            let requested = client.clone().oneshot(request());
            async move {
                let outcome = requested.await.map(|response| response.status());
                (outcome.map_err(|error| *error.downcast().expect("of the limit")), self.now())
            }
        });
        join_all(asks).await
    }
}

fn limiter(rule: &str) -> anyhow::Result<Limiter<Memory>> {
    Ok(Limiter::new(Memory::with_clock(RuntimeClock::default()), rule)?)
}

/// Returns a limiter whose batcher combines the calls of queued requests and keeps their order.
fn limiter_in_calls(rule: &str) -> anyhow::Result<Limiter<Batcher<Memory>>> {
    Ok(Limiter::new(Batcher::new(Memory::with_clock(RuntimeClock::default())), rule)?)
}

#[tokio::test(start_paused = true)]
async fn refusal_reschedules_only_earlier_queued_requests() -> anyhow::Result<()> {
    for (seconds, expected) in [
        (None, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (Some(0), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        // No request gets the token due before 1.1 s.
        (Some(1), [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (Some(4), [0, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
    ] {
        let expected = expected.map(|second| second * 1000);
        assert_eq!(sent_of_ten(limiter("1/s burst 1")?, seconds).await, expected, "{seconds:?}");
        assert_eq!(sent_of_ten(limiter_in_calls("1/s burst 1")?, seconds).await, expected, "{seconds:?}, in calls");
    }
    Ok(())
}

async fn sent_of_ten<S: Store>(limiter: Limiter<S>, seconds: Option<u64>) -> Vec<u128> {
    let upstream = Upstream::new();
    let outcomes = upstream.requested(&ClientLimit::new(limiter), seconds, 10).await;
    assert!(outcomes.iter().all(|(outcome, _)| outcome.is_ok()), "{seconds:?}: {outcomes:?}");
    upstream.sent()
}

/// The upstream has the same windows, and other clients take one of its three tokens in each.
#[tokio::test(start_paused = true)]
async fn refusals_cost_no_window_if_the_upstream_has_equal_windows() -> anyhow::Result<()> {
    for rule in ["3 per 4s", "3 per calendar 4s"] {
        let clock = RuntimeClock::default();
        let upstream = Limiter::new(Memory::with_clock(clock), rule)?;
        let others = upstream.clone();
        let others = tokio::spawn(async move {
            loop {
                assert!(others.allow("everybody").await.expect("an answer").is_granted());
                sleep(Duration::from_secs(4)).await;
            }
        });
        tokio::task::yield_now().await;
        let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        let server = RateLimitLayer::new(upstream).key(GlobalKey).layer(handler);
        let travels = service_fn(move |request| {
            let server = server.clone();
            async move {
                sleep(ON_ITS_WAY / 2).await;
                let answer = server.oneshot(request).await?;
                sleep(ON_ITS_WAY / 2).await;
                Ok::<_, Infallible>(answer.map(|_| ()))
            }
        });
        let client = ClientLimit::new(Limiter::new(Memory::with_clock(clock), rule)?).layer(travels);
        let (begun, mut counts) = (Instant::now(), [0, 0]);
        for _ in 0..18 {
            let answer = client.clone().oneshot(Request::get("http://example.com/").body(())?).await;
            let status = answer.map_err(anyhow::Error::from_boxed)?.status();
            counts[usize::from(status == StatusCode::TOO_MANY_REQUESTS)] += 1;
        }
        others.abort();
        assert_eq!((counts, begun.elapsed().as_secs()), ([12, 6], 20), "{rule}: two of three in each of six windows");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn throttle_ends_with_a_window_that_begins_just_before() -> anyhow::Result<()> {
    for (rule, seconds, expected) in [
        // The wait ends 100 ms after a window's begin.
        ("3 per 4s", 4, [0, 0, 0, 4000, 4000, 4000]),
        ("3 per 4s", 8, [0, 0, 0, 8000, 8000, 8000]),
        // The wait ends in the first window, and more than two seconds after a window's begin.
        ("3 per 4s", 1, [0, 0, 0, 4000, 4000, 4000]),
        ("3 per 4s", 6, [0, 0, 0, 8000, 8000, 8000]),
        ("3 per calendar 4s", 4, [0, 0, 0, 4000, 4000, 4000]),
        ("3 per 1s", 2, [0, 0, 0, 2000, 2000, 2000]),
    ] {
        let (key, plan) = (Key::try_from("example.com")?, Key::try_from("windows")?);
        for of in [Rule::try_from(rule)?, Rule::Plan(plan.clone()), Rule::Provisioned] {
            let (limiter, upstream) = (limiter("1/s")?, Upstream::new());
            limiter.store().create_plan(&plan, rule.parse()?).await?;
            if of == Rule::Provisioned {
                limiter.store().create_bucket(&key, rule.parse()?).await?;
            }
            limiter.set_rule(of.clone())?;
            let outcomes = upstream.requested(&ClientLimit::new(limiter), Some(seconds), 6).await;
            assert!(outcomes.iter().all(|(outcome, _)| outcome.is_ok()), "{rule}, {seconds}: {outcomes:?}");
            assert_eq!(upstream.sent(), expected, "{rule}, {seconds} s, {of:?}");
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn refusal_without_throttle_keeps_the_queue() -> anyhow::Result<()> {
    let mut sent = Vec::new();
    for seconds in [None, Some(20)] {
        let upstream = Upstream::new();
        let limit = ClientLimit::new(limiter("1 in 1s at 100ms")?);
        let outcomes = upstream.requested(&limit, seconds, 3).await;
        assert!(outcomes.iter().all(|(outcome, _)| outcome.is_ok()), "{outcomes:?}");
        assert_eq!(limit.unreported(), u64::from(seconds.is_some()));
        sent.push(upstream.sent());
    }
    assert_eq!(sent[0], sent[1]);
    Ok(())
}

/// Other waiters are not revoked, and keep their scheduled times.
#[tokio::test(start_paused = true)]
async fn rescheduled_requests_queue_behind_unaffected_ones() -> anyhow::Result<()> {
    let upstream = Upstream::new();
    let limiter = limiter_in_calls("1/s burst 1")?;
    let limit = ClientLimit::new(limiter.clone());
    // One after the other.
    let waits = async {
        sleep(Duration::from_millis(1)).await;
        assert!(limiter.wait_n("example.com", 1, Duration::from_secs(60)).await?.is_granted());
        anyhow::Ok(upstream.now())
    };
    let behind = async {
        sleep(Duration::from_millis(2)).await;
        upstream.requested(&limit, None, 2).await
    };
    let (first, waited, behind) = tokio::join!(upstream.requested(&limit, Some(4), 1), waits, behind);
    assert!(first.iter().chain(&behind).all(|(outcome, _)| outcome.is_ok()), "{first:?} {behind:?}");
    assert_eq!((waited?, upstream.sent()), (1000, vec![0, 4100, 5100]));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn short_refusal_does_not_fail_queued_requests() -> anyhow::Result<()> {
    let upstream = Upstream::new();
    let limit = ClientLimit::new(limiter("5/s burst 5")?);
    let outcomes = upstream.requested(&limit, Some(1), 100).await;
    assert!(outcomes.iter().all(|(outcome, _)| outcome.is_ok()), "{outcomes:?}");
    let last = upstream.sent().pop();
    assert!(last.is_some_and(|last| last <= 21_000), "{last:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn long_refusal_delays_the_queue_until_its_end() -> anyhow::Result<()> {
    let upstream = Upstream::new();
    let limit = ClientLimit::new(limiter("1/s burst 1")?);
    let outcomes = upstream.requested(&limit, Some(20), 5).await;
    assert!(outcomes.iter().all(|(outcome, _)| outcome.is_ok()), "{outcomes:?}");
    assert_eq!(upstream.sent(), [0, 20_100, 21_100, 22_100, 23_100], "what they had paid is no debt of its own");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn wait_beyond_maximum_after_refusal_says_when_to_retry() -> anyhow::Result<()> {
    let upstream = Upstream::new();
    let limit = ClientLimit::new(limiter("1/s burst 1")?).max_wait(Duration::from_secs(9));
    let outcomes = upstream.requested(&limit, Some(60), 10).await;
    assert!(matches!(outcomes[0], (Ok(StatusCode::TOO_MANY_REQUESTS), 100)), "{outcomes:?}");
    for outcome in &outcomes[1..] {
        assert!(matches!(outcome, (Err(ClientLimitError::Limited { .. }), 100)), "{outcome:?}");
    }
    assert_eq!(upstream.sent(), [0]);
    Ok(())
}

/// A request that is rescheduled under one limit keeps its scheduled time under the other.
#[tokio::test(start_paused = true)]
async fn rescheduled_limit_does_not_overtake_the_other_limits() -> anyhow::Result<()> {
    let upstream = Upstream::new();
    let limiter = limiter("10/s")?;
    let tokens = Limit::new(Key::try_from("tokens")?, Rule::try_from("1/s burst 10")?).cost(10);
    let limit = ClientLimit::new(limiter.clone()).and(move |_| Some(tokens.clone()));
    // With the mode `off`, the new reservation under this limit needs no wait.
    let off = Override { mode: Some(Mode::Off), ..Override::default() };
    limiter.store().set_override(&Key::try_from("example.com")?, off).await?;
    let outcomes = upstream.requested(&limit, Some(20), 2).await;
    assert!(matches!(outcomes[1], (Ok(StatusCode::OK), _)), "{outcomes:?}");
    assert_eq!(upstream.sent(), [0, 10_000]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unsent_request_gives_back_its_other_limits() -> anyhow::Result<()> {
    let upstream = Upstream::new();
    let (limiter, key) = (limiter("1/s burst 1")?, Key::try_from("tokens")?);
    let tokens = Limit::new(key.clone(), Rule::try_from("1/s burst 10")?).cost(10);
    let limit = ClientLimit::new(limiter.clone()).and(move |_| Some(tokens.clone()));
    let outcomes = upstream.requested(&limit, Some(60), 2).await;
    assert!(matches!(outcomes[1], (Err(ClientLimitError::Limited { .. }), 100)), "{outcomes:?}");
    limiter.close().await?;
    let granted = limiter.store().peek(&key).await?.map(|level| level.granted());
    assert_eq!(granted, Some(10), "those of the one that was sent");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tokens_refused_after_reservation_are_not_given_back() -> anyhow::Result<()> {
    let [of_hosts, of_tokens, of_both] = [(); 3].map(|()| Upstream::new());
    let (limiter, tokens) = (limiter("1/s burst 1")?, Key::try_from("tokens")?);
    let hosts = ClientLimit::new(limiter.clone());
    let (key, rule) = (tokens.clone(), limiter.rule());
    let both = hosts.clone().and(move |_| Some(Limit::new(key.clone(), rule.clone())));
    let key = tokens.clone();
    let only_tokens = hosts.clone().key(move |_| Some(key.clone()));
    let after = |millis| sleep(Duration::from_millis(millis));
    // The queued request is refused under the host's limit at 100 ms. At 150 ms it is refused under the tokens' limit,
    // whose tokens it has from its first reservation.
    let (_, _, outcomes) = tokio::join!(
        of_hosts.requested(&hosts, Some(20), 1),
        after(50).then(|()| of_tokens.requested(&only_tokens, Some(60), 1)),
        after(60).then(|()| of_both.requested(&both, None, 1)),
    );
    assert!(matches!(outcomes[..], [(Err(ClientLimitError::Limited { .. }), 150)]), "{outcomes:?}");
    limiter.close().await?;
    let level = limiter.store().peek(&tokens).await?.expect("it was asked for");
    assert_eq!(level.granted(), 2, "its turn would end the throttle before its time");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn throttle_revokes_reservations_of_clones() -> anyhow::Result<()> {
    let upstream = Upstream::new();
    let one = ClientLimit::new(limiter("1/s burst 1")?);
    let other = one.clone().cost(|_| 1);
    let (first, behind) = tokio::join!(upstream.requested(&one, Some(20), 1), upstream.requested(&other, None, 3));
    assert!(matches!(first[..], [(Ok(StatusCode::TOO_MANY_REQUESTS), 100)]), "{first:?}");
    assert!(behind.iter().all(|(outcome, _)| outcome.is_ok()), "{behind:?}");
    assert_eq!(upstream.sent(), [0, 20_100, 21_100, 22_100]);
    Ok(())
}

/// Like requests of another process: those with a reservation are sent, and later ones wait.
#[tokio::test(start_paused = true)]
async fn throttle_revokes_no_reservation_of_another_client_limit() -> anyhow::Result<()> {
    let upstream = Upstream::new();
    let limiter = limiter("1/s burst 1")?;
    let [one, other] = [limiter.clone(), limiter].map(ClientLimit::new);
    let (first, behind, after) = tokio::join!(
        upstream.requested(&one, Some(20), 1),
        upstream.requested(&other, None, 2),
        sleep(Duration::from_millis(200)).then(|()| upstream.requested(&other, None, 1)),
    );
    assert!(
        first.iter().chain(&behind).chain(&after).all(|(outcome, _)| outcome.is_ok()),
        "{first:?} {behind:?} {after:?}"
    );
    assert_eq!(upstream.sent(), [0, 1000, 2000, 20_100]);
    Ok(())
}

/// A refusal under a limit in shadow mode revokes no reservation, so requests keep their places under other limits.
#[tokio::test(start_paused = true)]
async fn refusal_by_shadow_limit_keeps_places_in_other_queues() -> anyhow::Result<()> {
    let (limiter, host, tokens) =
        (limiter_in_calls("1/s burst 2")?, Key::try_from("example.com")?, Key::try_from("tokens")?);
    let shadow = Override { mode: Some(Mode::Shadow), ..Override::default() };
    limiter.store().store().set_override(&host, shadow).await?;
    // From now on the host's limit lets all requests pass, and one token is left under the other limit.
    assert!(limiter.allow_n(&host, 2).await?.is_granted() && limiter.allow(&tokens).await?.is_granted());
    let hosts = ClientLimit::new(limiter.clone());
    let (key, rule) = (tokens.clone(), limiter.rule());
    let both = hosts.clone().and(move |_| Some(Limit::new(key.clone(), rule.clone())));
    let only_tokens = hosts.clone().key(move |_| Some(tokens.clone()));
    let sent = Arc::new(Mutex::new(Vec::new()));
    let asks = async |limit: &ClientLimit<_>, name: &'static str, millis, refused: Option<u64>| {
        let (sent, mut response) = (Arc::clone(&sent), Response::new(()));
        if let Some(seconds) = refused {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            response.headers_mut().insert("retry-after", seconds.into());
        }
        let client = limit.clone().layer(service_fn(move |_: Request<()>| {
            sent.lock().push(name);
            let response = response.clone();
            sleep(ON_ITS_WAY).map(|()| Ok::<_, Infallible>(response))
        }));
        sleep(Duration::from_millis(millis)).await;
        client.oneshot(Request::get("http://example.com/").body(()).expect("a request")).await.expect("it is sent");
    };
    // Both requests are queued for tokens, in this order and a second apart, when an upstream refuses tokens at 100 ms.
    // At 300 ms the host, whose limit lets both pass, refuses.
    let mut line = vec![Box::pin(asks(&both, "first", 10, None)), Box::pin(asks(&both, "second", 20, None))];
    let in_line = timeout(Duration::from_secs(1), join_all(&mut line));
    let refused = join(asks(&only_tokens, "tokens", 0, Some(20)), asks(&hosts, "host", 200, Some(60)));
    assert!(join(in_line, refused).await.0.is_err());
    // Polls the second request before the first, regardless of which was woken.
    line.reverse();
    join_all(line).await;
    assert_eq!(*sent.lock(), ["tokens", "host", "first", "second"]);
    Ok(())
}
