//! Upstreams that answer with any bytes, of any size and number.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use proptest::prelude::*;
use tokio::sync::Barrier;
use tollgate::{Admin, Key, Limiter, MemoryStore, Rule, Store, Take, Throttle, clock::ManualClock};
use tollgate_http::{ClientLimit, Estimate, HeaderPreset};
use tower::{Layer, ServiceExt, service_fn};

/// A tower client has no server's header limits, so all headers reach the crate.
#[tokio::test]
async fn answer_never_raises_a_bucket_or_throttles_over_an_hour() -> anyhow::Result<()> {
    let mut tried = 0;
    for value in values() {
        for name in NAMES {
            for status in [200, 403, 429, 503] {
                for lines in [1, 3] {
                    let known = NOTHING_LEFT
                        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
                    let mut headers = HeaderMap::from_iter(known);
                    headers.remove(name);
                    for _ in 0..lines {
                        headers.append(name, value.clone());
                    }
                    answered(StatusCode::from_u16(status)?, headers).await?;
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 1000, "{tried}");
    Ok(())
}

#[tokio::test]
async fn answer_with_thousands_of_lines_is_read() -> anyhow::Result<()> {
    for name in NAMES {
        let mut headers = HeaderMap::new();
        for number in 0..20_000 {
            headers.append(name, HeaderValue::from(number));
        }
        answered(StatusCode::TOO_MANY_REQUESTS, headers).await?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn answer_never_throttles_beyond_the_maximum(
        requests in 1..4_usize,
        status in prop::sample::select(vec![200_u16, 403, 429, 503, 529]),
        lines in prop::collection::vec((prop::sample::select(ALL_NAMES.concat()), extreme()), 0..8),
        max_throttle in prop_oneof![Just(Duration::ZERO), (1..7200_u64).prop_map(Duration::from_secs)],
        by_body in any::<bool>(),
        read_with in any::<bool>(),
        used in extreme(),
    ) {
        let headers: HeaderMap =
            lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let retry_after = runtime.block_on(async {
            let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "1000/h")?;
            let mut limit = ClientLimit::new(limiter.clone()).max_throttle(max_throttle).max_wait(Duration::ZERO).cost(|_| 10);
            limit = HeaderPreset::ALL.iter().fold(limit, |limit, preset| limit.read(*preset)).read(HeaderPreset::Policy("a"));
            if read_with {
                limit = limit.read_with(|_| Some(Throttle::retry_after(Duration::MAX).max_wait(Duration::MAX)));
            }
            limit = if by_body { limit.settle_later() } else { limit.settle(|answer| figure(answer.headers().get("x-used")?.to_str().ok()?)) };
            // All requests are sent before the first answer.
            let all_sent = Arc::new(Barrier::new(requests));
            let upstream = service_fn(move |_: Request<()>| {
                let (all_sent, headers) = (Arc::clone(&all_sent), headers.clone());
                async move {
                    all_sent.wait().await;
                    let mut response = Response::new(());
                    (*response.status_mut(), *response.headers_mut()) = (StatusCode::from_u16(status).unwrap(), headers);
                    Ok::<_, Infallible>(response)
                }
            });
            let client = limit.layer(upstream);
            let requested = (0..requests).map(|_| client.clone().oneshot(Request::get("http://example.com/").body(()).unwrap()));
            for response in join_all(requested).await {
                let response = response.map_err(anyhow::Error::from_boxed)?;
                if let (Some(estimate), Some(used)) = (response.extensions().get::<Estimate>(), figure(&used)) {
                    estimate.settle(used).await?;
                }
            }
            limiter.close().await?;
            anyhow::Ok(limiter.store().take_one(&Take::from(Key::try_from("example.com")?).rule(Rule::try_from("1000/h")?)).await??.retry_after())
        });
        // An empty bucket has a token after 3.6 s.
        prop_assert!(retry_after.unwrap().is_some_and(|time| time <= max_throttle.max(Duration::from_millis(3600))));
    }
}

fn figure(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// Generates extreme values, within the senders' formats and beyond.
fn extreme() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "0",
            "1",
            "1001",
            "18446744073709551615",
            "9223372036854775807",
            "9223372036854775808",
            "999999999999999",
            "99999999999999999999999",
            "31622401",
            "-1",
            "1e400",
            "99999999999h",
            "9999999999999999999d",
            "\"a\";r=0;t=999999999999999",
            "\"b\";r=0;t=999999999999999, \"a\";r=5",
            "remaining=0, reset=999999999999999",
            "Fri, 31 Dec 9999 23:59:59 GMT",
            "9999-12-31T23:59:59Z",
        ])
        .prop_map(str::to_owned),
        any::<u64>().prop_map(|figure| figure.to_string()),
    ]
}

/// Compares the bucket before and after an answer.
async fn answered(status: StatusCode, headers: HeaderMap) -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "1000/h")?;
    let limit = HeaderPreset::ALL.iter().fold(ClientLimit::new(limiter.clone()), |limit, preset| limit.read(*preset));
    let sent = headers.clone();
    let upstream = service_fn(move |_: Request<()>| {
        let mut response = Response::new(());
        (*response.status_mut(), *response.headers_mut()) = (status, sent.clone());
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let request = Request::get("http://example.com/").body(())?;
    let response = limit.clone().layer(upstream).oneshot(request).await.map_err(anyhow::Error::from_boxed)?;
    assert_eq!((response.status(), response.headers()), (status, &headers), "it is the caller's to see");
    assert_eq!(limit.unreported(), 0);
    let level = limiter.store().peek(&Key::try_from("example.com")?).await?.expect("it was asked for");
    assert!(level.available() <= 999, "{status} {headers:.100?}: {level:?}");
    let denied = limiter.allow_n("example.com", 1000).await?;
    let is_in_time = denied.retry_after().is_some_and(|time| time <= Duration::from_hours(2));
    assert!(!denied.is_granted() && is_in_time, "{status} {headers:.100?}: {denied:?}");
    Ok(())
}

fn values() -> Vec<HeaderValue> {
    let megabytes = ["9", "\"a\";r=0;t=1,", "(", "a;b;", "1d", " ", "\"", "\\", "0."];
    let megabytes = megabytes.iter().map(|unit| unit.repeat((4 << 20) / unit.len()));
    let short = [
        // Numbers that are too large, too small, or malformed.
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "1e400",
        "-1",
        "-9223372036854775809",
        "NaN",
        "inf",
        "0x10",
        "1,000",
        "+5",
        "0.000000000000000000001",
        "99999999999999999.9",
        // Structured fields of another type, and out of range.
        "(\"a\" \"b\");r=0;t=9",
        "((\"a\"));r=0",
        "\"a\";r=(0 1);t=9",
        "\"a\";r=0;t=999999999999999",
        "\"a\";r=0;t=-1",
        "\"a\";r=9223372036854775808",
        "\"a\";r=0;t=0.5",
        "\"a\";r=?0;t=:AAAA:",
        "\"a\";r=0;r=999;t=9",
        "a=1, a=2",
        "remaining=0, reset=999999999999999",
        "remaining=(0 1), reset=5",
        "remaining=-1",
        "limit=0, remaining=0, reset=0",
        // Durations.
        "99999999999999999999d99999999999999999999h",
        "0d",
        "1h-1m",
        "1m1m1m1m",
        // Distant times.
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Fri, 31 Dec 99999 23:59:59 GMT",
        "Wed, 31 Feb 2027 25:61:61 GMT",
        "1970-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "0000-01-01T00:00:00+23:59",
        "9999-12-31T23:59:60-23:59",
        "2027-01-15T08:00:00",
        "253402300799",
        "253402300799000",
    ];
    let texts = megabytes.chain(short.map(str::to_owned));
    let bytes = [&b"\xff\xfe"[..], b"\xf0\x9f\x9a\xa6", b"\t", b""];
    let all = texts.map(String::into_bytes).chain(bytes.map(<[u8]>::to_vec));
    all.map(|value| HeaderValue::from_bytes(&value).expect("no controls")).collect()
}

/// Each preset's headers report nothing left, so that its other headers count.
const NOTHING_LEFT: [(&str, &str); 8] = [
    ("ratelimit-remaining", "0"),
    ("x-ratelimit-remaining", "0"),
    ("x-ratelimit-limit-requests", "1"),
    ("x-ratelimit-remaining-requests", "0"),
    ("anthropic-ratelimit-requests-limit", "1"),
    ("anthropic-ratelimit-requests-remaining", "0"),
    ("anthropic-ratelimit-output-tokens-limit", "1"),
    ("anthropic-ratelimit-output-tokens-remaining", "0"),
];

/// All header names that are read.
const ALL_NAMES: [&[&str]; 2] = [
    &NAMES,
    &[
        "age",
        "grpc-status",
        "x-used",
        "x-rate-limit-remaining",
        "x-rate-limit-reset",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
        "anthropic-ratelimit-output-tokens-remaining",
    ],
];

/// One header name of each kind.
const NAMES: [&str; 14] = [
    "date",
    "retry-after",
    "retry-after-ms",
    "ratelimit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-output-tokens-reset",
];
