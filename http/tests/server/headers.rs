//! `Retry-After`, `RateLimit` and `RateLimit-Policy`, parsed as structured fields.

use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::routing::get;
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::{
    Admin, Fallback, Key, Limiter, MemoryStore, Mode, Quota, Rule, Window,
    admin::{Filter, Override},
    clock::ManualClock,
};
use tollgate_http::{GlobalKey, RateLimitHeaders, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

use super::broken::Broken;
use super::client::{Answer, Client};
use super::server::Server;

#[tokio::test]
async fn headers_state_remaining_and_reset() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    for (rule, served, denied) in [
        // A token comes in 1.5 s. Rounded down, the retry would be denied again.
        ("2/3s", "\"a\";r=1;t=2 | \"a\";q=2;w=3", "\"a\";r=0;t=2 | \"a\";q=2;w=3 | 2"),
        // Half a second rounds up to 1, never down to 0.
        ("2/s burst 2", "\"a\";r=1;t=1 | \"a\";q=2;w=1", "\"a\";r=0;t=1 | \"a\";q=2;w=1 | 1"),
        // The draft has no windows below a second.
        ("2/ms", "\"a\";r=1;t=1 | \"a\";q=2", "\"a\";r=0;t=1 | \"a\";q=2 | 1"),
        ("2 per 1500ms", "\"a\";r=1;t=2 | \"a\";q=2;w=2", "\"a\";r=0;t=2 | \"a\";q=2;w=2 | 2"),
        // A bucket that never refills has no time.
        ("2 once", "\"a\";r=1 | \"a\";q=2", "\"a\";r=0 | \"a\";q=2 | none"),
        (
            "2 per 36500d",
            "\"a\";r=1;t=999999999 | \"a\";q=2;w=999999999",
            "\"a\";r=0;t=999999999 | \"a\";q=2;w=999999999 | 999999999",
        ),
    ] {
        let quota: Quota = rule.parse()?;
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()), quota)?;
        let server = limited(limiter, RateLimitHeaders::Always).await?;
        let client = Client::new(server.address);
        let first = client.get("/").await?;
        assert_eq!(rate_limit(&first)?, served, "{rule}");
        client.get("/").await?;
        let third = client.get("/").await?;
        assert_eq!(third.status, StatusCode::TOO_MANY_REQUESTS, "{rule}");
        let retry_after = third.header("retry-after")?.unwrap_or("none");
        assert_eq!(format!("{} | {retry_after}", rate_limit(&third)?), denied, "{rule}");
    }
    Ok(())
}

#[tokio::test]
async fn headers_state_the_effective_limit() -> anyhow::Result<()> {
    let window = Window::new(100, Duration::from_secs(60), Duration::from_secs(5))?;
    let server = limited(Limiter::new(MemoryStore::new(), window)?, RateLimitHeaders::Always).await?;
    let answer = Client::new(server.address).get("/").await?;
    assert_eq!(answer.header("ratelimit-policy")?, Some("\"a\";q=100;w=60"));

    let plan = Key::try_from("basic")?;
    let planned = Limiter::new(MemoryStore::new(), Rule::Plan(plan.clone()))?;
    planned.store().create_plan(&plan, "3/s".parse()?).await?;
    let server = limited(planned.clone(), RateLimitHeaders::Always).await?;
    let client = Client::new(server.address);
    assert_eq!(client.get("/").await?.header("ratelimit-policy")?, Some("\"a\";q=3;w=1"));
    planned.store().create_plan(&plan, "1000/h burst 10".parse()?).await?;
    assert_eq!(client.get("/").await?.header("ratelimit-policy")?, Some("\"a\";q=10;w=36"));
    let over = Override { quota: Some("900/min".parse()?), ..Override::default() };
    let owner = planned.store().list(&Filter::default(), None, 2).await?[0].key().clone();
    planned.store().set_override(&owner, over).await?;
    assert_eq!(client.get("/").await?.header("ratelimit-policy")?, Some("\"a\";q=900;w=60"));

    // A shorter window would state a higher rate, even for a large quota.
    let large = Limiter::new(MemoryStore::new(), "1000000000/s burst 1500000000")?;
    let server = limited(large, RateLimitHeaders::Always).await?;
    let answer = Client::new(server.address).get("/").await?;
    assert_eq!(answer.header("ratelimit-policy")?, Some("\"a\";q=1500000000;w=2"));

    let unlimited = Limiter::new(MemoryStore::new(), Rule::Quota(Quota::unlimited()))?;
    let server = limited(unlimited, RateLimitHeaders::Always).await?;
    let answer = Client::new(server.address).get("/").await?;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(rate_limit(&answer)?, "none | none", "where nothing limits, nothing is left");
    Ok(())
}

/// The minimum remaining counts neither as left nor as part of the client's quota.
#[tokio::test]
async fn headers_omit_the_minimum_remaining() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    for (rule, printed) in [
        ("5 once", ["2 q=3", "1 q=3", "0 q=3", "0 q=3"]),
        ("5/5s", ["2;t=1 q=3;w=5", "1;t=2 q=3;w=5", "0;t=1 q=3;w=5", "0;t=1 q=3;w=5"]),
        ("5 per 5s", ["2;t=5 q=3;w=5", "1;t=5 q=3;w=5", "0;t=5 q=3;w=5", "0;t=5 q=3;w=5"]),
        ("5 in 5s at 1s", ["2;t=6 q=3;w=5", "1;t=6 q=3;w=5", "0;t=6 q=3;w=5", "0;t=6 q=3;w=5"]),
    ] {
        let rule: Rule = rule.try_into()?;
        let limiter = Limiter::builder(MemoryStore::with_clock(clock.clone())).min_remaining(2).build(rule.clone())?;
        let server = limited(limiter, RateLimitHeaders::Always).await?;
        let client = Client::new(server.address);
        for (n, printed) in printed.into_iter().enumerate() {
            let answer = client.get("/").await?;
            assert_eq!(answer.status.as_u16(), if n < 3 { 200 } else { 429 }, "{rule:?}");
            let (left, quota) = printed.split_once(' ').expect("two of them");
            assert_eq!(rate_limit(&answer)?, format!("\"a\";r={left} | \"a\";{quota}"), "{rule:?}: request {n}");
        }
    }
    // A limit with its own cost has no minimum remaining by default.
    let limiter = Limiter::builder(MemoryStore::with_clock(clock)).min_remaining(2).build(Quota::once(5)?)?;
    let layer = RateLimitLayer::new(limiter).name("a").key(GlobalKey).headers(RateLimitHeaders::Always);
    let layer =
        layer.and("b", GlobalKey, Quota::once(9)?)?.and("c", GlobalKey, Quota::once(9)?)?.cost_of("c", |_| 3)?;
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let answer = Client::new(server.address).get("/").await?;
    let all = |name| answer.headers.get_all(name).iter().map(|line| line.to_str()).collect::<Result<Vec<_>, _>>();
    assert_eq!(all("ratelimit")?, ["\"a\";r=2", "\"b\";r=6", "\"c\";r=6"]);
    assert_eq!(all("ratelimit-policy")?, ["\"a\";q=3", "\"b\";q=7", "\"c\";q=9"]);
    Ok(())
}

#[tokio::test]
async fn headers_after_a_refund_state_the_tokens_left() -> anyhow::Result<()> {
    let now = || anyhow::Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs());
    for (rule, cost, unused, printed, reset) in [
        // A full bucket has no time: no token is to come.
        ("2 per 1h", 1, 1, "\"a\";r=2 | \"a\";q=2;w=3600", None),
        ("2/h", 1, 1, "\"a\";r=2 | \"a\";q=2;w=3600", None),
        ("10/h", 5, 3, "\"a\";r=8;t=720 | \"a\";q=10;w=3600", Some(720)),
        // Tokens of a fixed window expire when the next window begins.
        ("10 per 1h", 5, 3, "\"a\";r=8;t=3600 | \"a\";q=10;w=3600", Some(3600)),
        ("10/h", 10, 9, "\"a\";r=9;t=360 | \"a\";q=10;w=3600", Some(360)),
        ("10/h", 5, 0, "\"a\";r=5;t=1800 | \"a\";q=10;w=3600", Some(1800)),
        ("5 once", 2, 1, "\"a\";r=4 | \"a\";q=5", None),
        ("5 in 5s at 1s", 1, 1, "\"a\";r=5 | \"a\";q=5;w=5", None),
    ] {
        let rule: Rule = rule.try_into()?;
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), rule.clone())?;
        let layer = RateLimitLayer::new(limiter).name("a").key(GlobalKey).headers(RateLimitHeaders::Always);
        let layer = layer
            .x_headers()
            .cost(move |_| cost)
            .refund(move |answer, _| if answer.status.is_server_error() { unused } else { 0 });
        let failing = get(|| async { StatusCode::SERVICE_UNAVAILABLE });
        let server = Server::start(Router::new().route("/", failing).layer(layer)).await?;
        let before = now()?;
        let answer = Client::new(server.address).get("/").await?;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(rate_limit(&answer)?, printed, "{rule:?}");
        let left = printed.split([';', ' ']).nth(1).and_then(|left| left.strip_prefix("r="));
        assert_eq!(answer.header("x-ratelimit-remaining")?, left, "{rule:?}");
        let until: Option<u64> = answer.header("x-ratelimit-reset")?.map(str::parse).transpose()?;
        assert_eq!(until.is_some(), reset.is_some(), "{rule:?}: {until:?}");
        if let (Some(until), Some(reset)) = (until, reset) {
            assert!((before + reset..=now()? + reset).contains(&until), "{rule:?}: {until}");
        }
    }
    Ok(())
}

/// The refund of one limit leaves the other limit with the fewest requests.
#[tokio::test]
async fn headers_after_a_refund_state_each_limit() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::once(2)?)?;
    let layer = RateLimitLayer::new(limiter).name("a").key(GlobalKey).headers(RateLimitHeaders::Always).x_headers();
    let layer = layer.and("b", GlobalKey, Quota::once(9)?)?.cost_of("b", |_| 6)?.refund_of("b", |_, cost| cost)?;
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let answer = Client::new(server.address).get("/").await?;
    let all = answer.headers.get_all("ratelimit").iter().map(|line| line.to_str()).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(all, ["\"a\";r=1", "\"b\";r=9"]);
    assert_eq!(answer.header("x-ratelimit-limit")?, Some("2"));
    assert_eq!(answer.header("x-ratelimit-remaining")?, Some("1"));
    Ok(())
}

#[tokio::test]
async fn x_headers_state_the_limit_that_decided() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::once(9)?)?;
    let layer = RateLimitLayer::new(limiter).name("a").key(GlobalKey).headers(RateLimitHeaders::Always).x_headers();
    let layer = layer.and("b", GlobalKey, "1/h".parse::<Quota>()?)?;
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let client = Client::new(server.address);
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let answer = client.get("/").await?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("x-ratelimit-limit")?, Some("1"));
        assert_eq!(answer.header("x-ratelimit-remaining")?, Some("0"));
        let reset: u64 = answer.header("x-ratelimit-reset")?.expect("an hour").parse()?;
        assert!((before + 3600..=now + 3600).contains(&reset), "{reset}");
    }
    Ok(())
}

/// The reset of a limit that granted can be later than `Retry-After`, or the answer has no `Retry-After`.
#[tokio::test]
async fn denial_headers_state_only_limits_that_denied() -> anyhow::Result<()> {
    let layer = |name: &'static str, rule: &str| {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), rule)?;
        anyhow::Ok(RateLimitLayer::new(limiter).name(name).key(GlobalKey).headers(RateLimitHeaders::Always))
    };
    for (denies, until) in [("1 once", ""), ("1/h", ";t=3600")] {
        let both = layer("a", denies)?.and("b", GlobalKey, Quota::per_minute(10))?;
        let router = || Router::new().route("/", get(|| async {}));
        let nested = router().layer(layer("a", denies)?).layer(layer("b", "10/min")?);
        for (router, left) in [(router().layer(both), 9), (nested, 8)] {
            let server = Server::start(router).await?;
            let client = Client::new(server.address);
            client.get("/").await?;
            let denied = client.get("/").await?;
            assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
            let printed = denied.headers.get_all("ratelimit").iter().map(|line| line.to_str());
            let expected = [format!("\"a\";r=0{until}"), format!("\"b\";r={left}")];
            assert_eq!(printed.collect::<Result<Vec<_>, _>>()?, expected, "{denies}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_selected_headers_are_sent() -> anyhow::Result<()> {
    for (wanted, served, denied) in [
        (RateLimitHeaders::Always, true, true),
        (RateLimitHeaders::OnDenials, false, true),
        (RateLimitHeaders::Never, false, false),
    ] {
        let server = limited(Limiter::new(MemoryStore::new(), Quota::per_hour(1))?, wanted).await?;
        let client = Client::new(server.address);
        let (first, second) = (client.get("/").await?, client.get("/").await?);
        assert_eq!(first.headers.contains_key("ratelimit"), served, "{wanted:?}");
        assert_eq!(first.headers.contains_key("ratelimit-policy"), served, "{wanted:?}");
        assert_eq!(second.headers.contains_key("ratelimit"), denied, "{wanted:?}");
        assert_eq!(second.headers.contains_key("ratelimit-policy"), denied, "{wanted:?}");
        assert_eq!(first.header("retry-after")?, None);
        assert_eq!(second.header("retry-after")?, Some("3600"), "{wanted:?}");
    }
    Ok(())
}

#[tokio::test]
async fn layers_add_to_each_others_lists() -> anyhow::Result<()> {
    let layer = |name: &'static str, hourly| {
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(hourly))?;
        anyhow::Ok(RateLimitLayer::new(limiter).name(name).headers(RateLimitHeaders::Always))
    };
    let router = Router::new().route("/", get(|| async {})).layer(layer("inner", 1)?).layer(layer("outer", 5)?);
    let server = Server::start(router).await?;
    let client = Client::new(server.address);
    for left in [4, 3] {
        let answer = client.get("/").await?;
        let all: Vec<_> =
            answer.headers.get_all("ratelimit").iter().map(|line| line.to_str()).collect::<Result<_, _>>()?;
        assert_eq!(parsed(&all.join(", "))?, [("inner".to_owned(), Some(0)), ("outer".to_owned(), Some(left))]);
        let is_denied = answer.status == StatusCode::TOO_MANY_REQUESTS;
        assert_eq!(is_denied, left == 3);
        assert_eq!(all[1].contains(";t="), !is_denied, "Retry-After is the inner one's: {all:?}");
    }
    Ok(())
}

#[tokio::test]
async fn headers_state_each_of_several_limits() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::per_minute(4))?;
    let layer = RateLimitLayer::new(limiter).name("client").key(GlobalKey).headers(RateLimitHeaders::Always);
    let layer = layer.and("day", GlobalKey, Quota::per_day(24))?.and("none", GlobalKey, Quota::unlimited())?;
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer.cost(|_| 2))).await?;
    let client = Client::new(server.address);
    // Two tokens of the client return in 30 s, and two of the day in two hours.
    for (status, limits) in [
        (200, ["\"client\";r=2;t=30", "\"day\";r=22;t=7200"]),
        (200, ["\"client\";r=0;t=30", "\"day\";r=20;t=14400"]),
        // `Retry-After` is the end of the denying limit's window, so the answer states no longer window beside it.
        (429, ["\"client\";r=0;t=30", "\"day\";r=20"]),
    ] {
        let answer = client.get("/").await?;
        let printed =
            |name| answer.headers.get_all(name).iter().map(|line| line.to_str()).collect::<Result<Vec<_>, _>>();
        assert_eq!((answer.status.as_u16(), &printed("ratelimit")?[..]), (status, &limits[..]));
        assert_eq!(printed("ratelimit-policy")?, ["\"client\";q=4;w=60", "\"day\";q=24;w=86400"]);
        assert_eq!(answer.header("retry-after")?, (status == 429).then_some("30"));
    }
    Ok(())
}

#[tokio::test]
async fn unlimited_request_has_no_headers() -> anyhow::Result<()> {
    let ask = async |layer: RateLimitLayer| {
        let layer = layer.headers(RateLimitHeaders::Always).name("a");
        let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
        let client = Client::new(server.address);
        client.get("/").await?; // takes the token that there is
        client.get("/").await
    };
    for fallback in [Fallback::Open, Fallback::Local(Quota::per_hour(5).build()?)] {
        let limiter =
            Limiter::builder(Broken).deadline(Duration::from_secs(5)).fallback(fallback).build(Quota::per_hour(9))?;
        let open = ask(RateLimitLayer::new(limiter)).await?;
        assert_eq!((open.status, rate_limit(&open)?), (StatusCode::OK, "none | none".to_owned()));
    }
    for mode in [Mode::Shadow, Mode::Off] {
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(1))?;
        limiter.store().set_mode(mode, None, None).await?;
        let passed = ask(RateLimitLayer::new(limiter)).await?;
        assert_eq!((passed.status, rate_limit(&passed)?), (StatusCode::OK, "none | none".to_owned()), "{mode}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any limit name gives one well-formed header of each kind.
    #[test]
    fn limit_name_never_adds_a_header(name in any::<String>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let headers = runtime.block_on(async {
            let limiter = Limiter::new(MemoryStore::new(), Quota::once(1).unwrap()).unwrap();
            let layer = RateLimitLayer::new(limiter).name(name.clone()).key(GlobalKey).headers(RateLimitHeaders::Always);
            let inner = service_fn(async |_: Request<()>| anyhow::Ok(Response::new(Body::empty())));
            layer.layer(inner).oneshot(Request::new(())).await.unwrap().headers().clone()
        });
        prop_assert_eq!(headers.len(), 2);
        for header in ["ratelimit", "ratelimit-policy"] {
            let items = parsed(headers[header].to_str().unwrap()).unwrap();
            prop_assert_eq!(items.len(), 1);
            let plain = name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            prop_assert!(!plain || items[0].0 == name, "{} is not {}", items[0].0, name);
        }
    }
}

async fn limited<C: tollgate::clock::Clock>(
    limiter: Limiter<MemoryStore<C>>,
    headers: RateLimitHeaders,
) -> anyhow::Result<Server> {
    let layer = RateLimitLayer::new(limiter).name("a").headers(headers);
    Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await
}

/// Returns both headers, after they have been parsed.
fn rate_limit(answer: &Answer) -> anyhow::Result<String> {
    let (limit, policy) = (answer.header("ratelimit")?, answer.header("ratelimit-policy")?);
    for header in [limit, policy].into_iter().flatten() {
        parsed(header)?;
    }
    Ok(format!("{} | {}", limit.unwrap_or("none"), policy.unwrap_or("none")))
}

/// Returns the names in a list, and the tokens left under each.
pub fn parsed(list: &str) -> anyhow::Result<Vec<(String, Option<i64>)>> {
    let mut items = Vec::new();
    for entry in Parser::new(list).parse::<List>()? {
        let ListEntry::Item(item) = entry else { anyhow::bail!("{list} has a list within") };
        let BareItem::String(name) = &item.bare_item else { anyhow::bail!("{list} has something that is no string") };
        let left = item.params.get("r").and_then(BareItem::as_integer).map(i64::from);
        items.push((name.as_str().to_owned(), left));
    }
    Ok(items)
}
