//! The cases of envoyproxy/ratelimit's configuration, and the decision that each must give.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tollgate::clock::ManualClock;
use tollgate::{AnyStore, Limiter, MemoryStore, Mode, Rule};
use tollgate_serve::{Config, Server};
use tower::ServiceExt;

/// A server in memory, whose clock the test sets.
struct World {
    routes: Router,
    clock: ManualClock,
    limiter: Limiter,
    server: Server,
}

impl World {
    fn of(yaml: &str) -> anyhow::Result<Self> {
        let clock = ManualClock::default();
        let store = Arc::new(MemoryStore::with_clock(clock.clone()));
        let limiter =
            Limiter::builder(AnyStore::new(Arc::clone(&store))).without_deny_cache().build(Rule::Provisioned)?;
        let server = Server::new(&limiter, Arc::clone(&store), Config::parse(yaml)?)?;
        Ok(Self { routes: server.routes(), clock, limiter, server })
    }

    async fn post(&self, body: Value) -> anyhow::Result<(StatusCode, Value)> {
        let request =
            Request::post("/json").header("content-type", "application/json").body(Body::from(body.to_string()))?;
        let answer = self.routes.clone().oneshot(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&body).with_context(|| format!("{status}: {body:?}"))?))
    }

    /// Asks for descriptors, each as `key=value` pairs between commas, and returns whether all pass.
    async fn passes(&self, descriptors: &[&str]) -> anyhow::Result<bool> {
        let (status, answer) = self.post(request(descriptors)).await?;
        ensure!(status == StatusCode::OK || status == StatusCode::TOO_MANY_REQUESTS, "{status}: {answer}");
        ensure!(answer["overallCode"] == if status == StatusCode::OK { "OK" } else { "OVER_LIMIT" }, "{answer}");
        Ok(status == StatusCode::OK)
    }

    /// How many of ten requests pass.
    async fn passing(&self, descriptors: &[&str]) -> anyhow::Result<usize> {
        let mut passing = 0;
        for _ in 0..10 {
            passing += usize::from(self.passes(descriptors).await?);
        }
        Ok(passing)
    }
}

fn descriptor(text: &str) -> Value {
    let entries = text.split(',').map(|entry| {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        json!({ "key": key, "value": value })
    });
    json!({ "entries": entries.collect::<Vec<_>>() })
}

fn request(descriptors: &[&str]) -> Value {
    json!({ "domain": "edge", "descriptors": descriptors.iter().map(|text| descriptor(text)).collect::<Vec<_>>() })
}

/// Each case: the descriptors of a configuration, a request, and how many of ten such requests pass.
const CASES: &[(&str, &str, &[&str], usize)] = &[
    ("a value has its own limit", "[{key: a, value: x, rate_limit: {unit: day, requests_per_unit: 3}}]", &["a=x"], 3),
    ("another value has none", "[{key: a, value: x, rate_limit: {unit: day, requests_per_unit: 3}}]", &["a=y"], 10),
    ("a key alone limits each value", "[{key: a, rate_limit: {unit: day, requests_per_unit: 3}}]", &["a=y"], 3),
    (
        "a value precedes the key alone",
        "[{key: a, rate_limit: {unit: day, requests_per_unit: 3}}, {key: a, value: x, rate_limit: {unit: day, requests_per_unit: 5}}]",
        &["a=x"],
        5,
    ),
    (
        "a nested descriptor",
        "[{key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 4}}]}]",
        &["a=x,b=y"],
        4,
    ),
    (
        "a request with fewer entries than the limit",
        "[{key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 4}}]}]",
        &["a=x"],
        10,
    ),
    (
        "a request with more entries than the limit",
        "[{key: a, rate_limit: {unit: day, requests_per_unit: 4}}]",
        &["a=x,b=y"],
        10,
    ),
    (
        "entries in another order",
        "[{key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 4}}]}]",
        &["b=y,a=x"],
        10,
    ),
    ("a value with a star", "[{key: a, value: 'x*', rate_limit: {unit: day, requests_per_unit: 2}}]", &["a=xyz"], 2),
    (
        "the first star that matches",
        "[{key: a, value: 'x*', rate_limit: {unit: day, requests_per_unit: 2}}, {key: a, value: 'xy*', rate_limit: {unit: day, requests_per_unit: 6}}]",
        &["a=xyz"],
        2,
    ),
    (
        "a value precedes a star",
        "[{key: a, value: 'x*', rate_limit: {unit: day, requests_per_unit: 2}}, {key: a, value: xyz, rate_limit: {unit: day, requests_per_unit: 6}}]",
        &["a=xyz"],
        6,
    ),
    (
        "a star precedes the key alone",
        "[{key: a, rate_limit: {unit: day, requests_per_unit: 6}}, {key: a, value: 'x*', rate_limit: {unit: day, requests_per_unit: 2}}]",
        &["a=xyz"],
        2,
    ),
    ("unlimited", "[{key: a, rate_limit: {unlimited: true}}]", &["a=x"], 10),
    ("unlimited, with a number", "[{key: a, rate_limit: {unlimited: true, requests_per_unit: 5}}]", &["a=x"], 10),
    (
        "empty lists",
        "[{key: a, descriptors: , rate_limit: {unit: day, requests_per_unit: 3, replaces: }}]",
        &["a=x"],
        3,
    ),
    ("no request passes a limit of 0", "[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}]", &["a=x"], 0),
    ("shadow_mode", "[{key: a, rate_limit: {unit: day, requests_per_unit: 3}, shadow_mode: true}]", &["a=x"], 10),
    (
        "a limit of 0 in shadow_mode",
        "[{key: a, rate_limit: {unit: day, requests_per_unit: 0}, shadow_mode: true}]",
        &["a=x"],
        10,
    ),
    (
        "several descriptors: the tightest",
        "[{key: a, rate_limit: {unit: day, requests_per_unit: 3}}, {key: b, rate_limit: {unit: day, requests_per_unit: 5}}]",
        &["a=x", "b=y"],
        3,
    ),
    (
        "a limit replaces another one",
        "[{key: a, rate_limit: {unit: day, requests_per_unit: 3, name: narrow}}, {key: b, rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: narrow}]}}]",
        &["a=x", "b=y"],
        5,
    ),
    (
        "quotas deny only together",
        "[{key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}, {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}]",
        &["a=x", "b=y"],
        5,
    ),
    (
        "a quota in shadow_mode",
        "[{key: a, quota_mode: true, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}]",
        &["a=x"],
        10,
    ),
    ("a quota of 0", "[{key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}]", &["a=x"], 0),
    (
        "a rate that no bucket can have",
        "[{key: a, rate_limit: {unit: second, requests_per_unit: 4294967295}}]",
        &["a=x"],
        10,
    ),
    ("a sliding window", "[{key: a, rate_limit: {tollgate: {limit: 4 in 1h at 1m}}}]", &["a=x"], 4),
    (
        "a window beside a bucket",
        "[{key: a, rate_limit: {tollgate: {limit: 4 in 1h at 1m}}}, {key: b, rate_limit: {unit: day, requests_per_unit: 2}}]",
        &["a=x", "b=y"],
        2,
    ),
    ("several limits in one", "[{key: a, rate_limit: {tollgate: {limit: '6/h; day: 4/day'}}}]", &["a=x"], 4),
    (
        "a continuous refill",
        "[{key: a, rate_limit: {unit: day, requests_per_unit: 3, tollgate: {refill: continuous}}}]",
        &["a=x"],
        3,
    ),
    (
        "equal descriptors take together",
        "[{key: a, rate_limit: {unit: day, requests_per_unit: 6}}]",
        &["a=x", "a=x"],
        3,
    ),
];

#[tokio::test]
async fn each_configuration_gives_its_decision() -> anyhow::Result<()> {
    for (case, descriptors, descriptors_of_request, expected) in CASES {
        let world = World::of(&format!("domain: edge\ndescriptors: {descriptors}"))?;
        let passing = world.passing(descriptors_of_request).await?;
        ensure!(passing == *expected, "{case}: {passing} passed, and not {expected}");
    }
    Ok(())
}

#[tokio::test]
async fn each_unit_ends_where_ratelimits_does() -> anyhow::Result<()> {
    const DAY: u64 = 86_400;
    for (unit, seconds) in [
        ("second", 1),
        ("MINUTE", 60),
        ("hour", 3600),
        ("day", DAY),
        ("week", 7 * DAY),
        ("month", 30 * DAY),
        ("year", 365 * DAY),
    ] {
        let world = World::of(&format!(
            "domain: edge\ndescriptors: [{{key: a, rate_limit: {{unit: {unit}, requests_per_unit: 1}}}}]"
        ))?;
        // A boundary of the unit, which is counted from 1970.
        let nanoseconds = |seconds: u64| i64::try_from(seconds * 1_000_000_000);
        world.clock.set(nanoseconds(4 * seconds)?);
        ensure!(world.passes(&["a=x"]).await? && !world.passes(&["a=x"]).await?, "{unit}");
        world.clock.set(nanoseconds(5 * seconds)? - 1);
        ensure!(!world.passes(&["a=x"]).await?, "{unit} has not ended");
        world.clock.set(nanoseconds(5 * seconds)?);
        ensure!(world.passes(&["a=x"]).await?, "{unit} has ended");
    }
    Ok(())
}

#[tokio::test]
async fn statuses_state_the_limit_what_remains_and_when_to_come_again() -> anyhow::Result<()> {
    let world = World::of(
        "{domain: edge, descriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 2, name: narrow}, metadata: {tier: gold}}]}",
    )?;
    world.clock.set(3_600_000_000_000 * 9 + 1_500_000_000);
    let (_, first) = world.post(request(&["a=x", "other=y"])).await?;
    let limit = json!({ "requestsPerUnit": 2, "unit": "HOUR", "name": "narrow" });
    ensure!(first["statuses"][0]["currentLimit"] == limit && first["statuses"][0]["limitRemaining"] == 1, "{first}");
    ensure!(
        first["statuses"][1] == json!({ "code": "OK" }) && first["dynamicMetadata"]["metadata"]["tier"] == "gold",
        "{first}"
    );
    world.post(request(&["a=x"])).await?;
    let (status, denied) = world.post(request(&["a=x", "other=y"])).await?;
    ensure!(status == StatusCode::TOO_MANY_REQUESTS && denied["statuses"][0]["code"] == "OVER_LIMIT", "{denied}");
    ensure!(denied["statuses"][1]["code"] == "OK" && denied.get("dynamicMetadata").is_none(), "{denied}");
    ensure!(denied["statuses"][0]["durationUntilReset"] == "3599s", "rounded up: {denied}");
    let headers = denied["responseHeadersToAdd"].as_array().context("no headers")?;
    let header = |name: &str| headers.iter().find(|header| header["key"] == name).map(|header| header["value"].clone());
    ensure!(header("retry-after") == Some("3599".into()), "{denied}");
    ensure!(header("ratelimit").is_some() && header("ratelimit-policy").is_some(), "{denied}");
    Ok(())
}

#[tokio::test]
async fn costs_looks_refunds_and_overrides() -> anyhow::Result<()> {
    let world = World::of(
        "{domain: edge, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 10, tollgate: {refunds: true}}}, {key: b, rate_limit: {unit: day, requests_per_unit: 3}}]}",
    )?;
    let ask = async |change: Value| {
        let mut body = request(&["a=x"]);
        for (name, value) in change.as_object().context("an object")? {
            if name == "hitsAddend" && value.is_number() {
                body["hitsAddend"] = value.clone();
            } else {
                body["descriptors"][0][name.trim_start_matches("own_")] = value.clone();
            }
        }
        let (status, answer) = world.post(body).await?;
        anyhow::Ok((status == StatusCode::OK, answer["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0)))
    };
    ensure!(ask(json!({ "hitsAddend": 4 })).await? == (true, 6));
    // A descriptor's own cost precedes that of the request.
    ensure!(ask(json!({ "hitsAddend": 9, "own_hitsAddend": "2" })).await? == (true, 4));
    ensure!(ask(json!({ "own_hitsAddend": "0" })).await? == (true, 4), "a look takes nothing");
    ensure!(!ask(json!({ "hitsAddend": 5 })).await?.0, "denied as a whole");
    ensure!(ask(json!({ "hitsAddend": 4 })).await? == (true, 0));
    ensure!(ask(json!({ "own_hitsAddend": "0" })).await? == (false, 0), "a look tells that nothing is left");
    ensure!(ask(json!({ "own_hitsAddend": "3", "isNegativeHits": true })).await?.0, "gives back");
    ensure!(ask(json!({ "own_hitsAddend": "0" })).await? == (true, 3));
    ensure!(ask(json!({ "own_hitsAddend": "99", "isNegativeHits": true })).await?.0, "no more than a full bucket");
    ensure!(ask(json!({ "own_hitsAddend": "0" })).await? == (true, 10));
    ensure!(!ask(json!({ "hitsAddend": 11 })).await?.0, "never");
    // The limit of the request replaces the configuration's, also after a denial, and a bucket keeps its tokens.
    let twenty = json!({ "requestsPerUnit": 20, "unit": "DAY" });
    ensure!(ask(json!({ "hitsAddend": 10 })).await? == (true, 0) && !ask(json!({})).await?.0);
    ensure!(
        ask(json!({ "limit": twenty, "own_hitsAddend": "0" })).await? == (false, 0),
        "a larger limit grants with its next period"
    );
    // Each client could mint tokens otherwise, so only some limits give back.
    let mut body = request(&["b=x"]);
    (body["descriptors"][0]["hitsAddend"], body["descriptors"][0]["isNegativeHits"]) = ("1".into(), true.into());
    let (status, problem) = world.post(body).await?;
    ensure!(status == StatusCode::BAD_REQUEST && problem["detail"].to_string().contains("refunds: true"), "{problem}");
    Ok(())
}

#[tokio::test]
async fn usage_is_charged_after_use_and_denies_while_it_is_owed() -> anyhow::Result<()> {
    let world =
        World::of("{domain: edge, descriptors: [{key: a, rate_limit: {tollgate: {limit: 10/h, after_use: true}}}]}")?;
    let look = || {
        let mut look = request(&["a=x"]);
        look["descriptors"][0]["hitsAddend"] = "0".into();
        world.post(look)
    };
    ensure!(look().await?.0 == StatusCode::OK);
    let mut used = request(&["a=x"]);
    used["hitsAddend"] = 25.into();
    ensure!(world.post(used).await?.0 == StatusCode::OK, "usage is never denied");
    ensure!(look().await?.0 == StatusCode::TOO_MANY_REQUESTS, "the key owes 15");
    Ok(())
}

#[tokio::test]
async fn keys_that_only_pay_after_use_get_their_changed_limits() -> anyhow::Result<()> {
    let yaml = |limit: &str| {
        format!(
            "{{domain: edge, descriptors: [{{key: a, rate_limit: {{tollgate: {{limit: '{limit}', after_use: true}}}}}}]}}"
        )
    };
    let world = World::of(&yaml("10/h; day: 1000/day"))?;
    let ask = async |value: &str, used: u64| {
        let mut body = request(&[value]);
        body["descriptors"][0]["hitsAddend"] = used.to_string().into();
        anyhow::Ok(world.post(body).await?.0 == StatusCode::OK)
    };
    ensure!(ask("a=raised", 0).await? && ask("a=raised", 15).await? && !ask("a=raised", 0).await?);
    world.server.set_config(Config::parse(&yaml("1000/s; day: 1000/day"))?)?;
    ask("a=raised", 0).await?;
    world.clock.advance(Duration::from_secs(1));
    ensure!(ask("a=raised", 0).await?, "the debt is paid at the new rate");

    world.server.set_config(Config::parse(&yaml("1000/h; day: 1000/day"))?)?;
    ensure!(ask("a=lowered", 0).await? && ask("a=lowered", 10).await?);
    world.server.set_config(Config::parse(&yaml("1000/h; day: 5/day"))?)?;
    ensure!(ask("a=lowered", 0).await? && ask("a=lowered", 5).await?);
    ensure!(!ask("a=lowered", 0).await?, "the second limit holds five");

    world.server.set_config(Config::parse(&yaml("10/h; day: unlimited"))?)?;
    ensure!(ask("a=partly unlimited", 0).await?);
    Ok(())
}

#[tokio::test]
async fn quota_that_is_over_says_so_while_another_one_passes() -> anyhow::Result<()> {
    let world = World::of(
        "{domain: edge, descriptors: [{key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {backend: large}}, {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}, metadata: {backend: small}}]}",
    )?;
    for (codes, backend) in [(["OK", "OK"], json!("large")), (["OVER_LIMIT", "OK"], json!("small"))] {
        let (status, answer) = world.post(request(&["a=x", "b=x"])).await?;
        ensure!(status == StatusCode::OK && answer["overallCode"] == "OK", "{answer}");
        ensure!(answer["statuses"][0]["code"] == codes[0] && answer["statuses"][1]["code"] == codes[1], "{answer}");
        ensure!(answer["dynamicMetadata"]["metadata"]["backend"] == backend, "{answer}");
    }
    let (status, answer) = world.post(request(&["a=x", "b=x"])).await?;
    ensure!(status == StatusCode::TOO_MANY_REQUESTS && answer.get("dynamicMetadata").is_none(), "{answer}");
    Ok(())
}

#[tokio::test]
async fn refund_goes_to_each_limit_of_a_descriptor() -> anyhow::Result<()> {
    let world = World::of(
        "{domain: edge, tollgate: {refunds: true}, descriptors: [{key: a, rate_limit: {tollgate: {limit: '10/h; day: 5/day'}}}]}",
    )?;
    let ask = async |hits: &str, is_negative: bool| {
        let mut body = request(&["a=x"]);
        (body["descriptors"][0]["hitsAddend"], body["descriptors"][0]["isNegativeHits"]) =
            (hits.into(), is_negative.into());
        anyhow::Ok(world.post(body).await?.0 == StatusCode::OK)
    };
    ensure!(ask("5", false).await? && !ask("1", false).await? && ask("4", true).await?);
    ensure!(ask("4", false).await? && !ask("1", false).await?);
    // The settings of the file apply to a limit that the request states.
    let mut stated = request(&["other=x"]);
    stated["descriptors"][0]["limit"] = json!({ "requestsPerUnit": 5, "unit": "DAY" });
    (stated["descriptors"][0]["hitsAddend"], stated["descriptors"][0]["isNegativeHits"]) = ("1".into(), true.into());
    ensure!(world.post(stated).await?.0 == StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn nothing_is_denied_while_the_server_is_in_shadow_mode() -> anyhow::Result<()> {
    let world = World::of(
        "{domain: edge, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 2}}, {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}, {key: zero, rate_limit: {unit: day, requests_per_unit: 0}}]}",
    )?;
    let (mut look, mut costly) = (request(&["a=x"]), request(&["a=x", "quota=x"]));
    look["descriptors"][0]["hitsAddend"] = "0".into();
    costly["hitsAddend"] = 9.into();
    let requests = [request(&["a=x"]), request(&["quota=x"]), request(&["zero=x"]), look, costly];
    ensure!(world.passing(&["a=x", "quota=x"]).await? == 2);
    for mode in [Mode::Shadow, Mode::Off, Mode::Enforce] {
        world.limiter.set_mode(mode);
        for request in &requests {
            let (status, answer) = world.post(request.clone()).await?;
            ensure!((status == StatusCode::OK) == (mode != Mode::Enforce), "{mode}: {request} {answer}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_descriptor_names_the_plan_and_keeps_its_bucket() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::with_clock(clock));
    for (plan, limits) in [("free", "2/h"), ("gold", "5/h")] {
        tollgate::Admin::create_plan(&*store, &plan.try_into()?, limits.parse()?).await?;
    }
    let limiter = Limiter::builder(AnyStore::new(Arc::clone(&store))).without_deny_cache().build(Rule::Provisioned)?;
    let yaml = "{domain: edge, descriptors: [{key: user, descriptors: [{key: plan, rate_limit: {tollgate: {plan_of: plan}}}]}]}";
    let server = Server::new(&limiter, store, Config::parse(yaml)?)?;
    let world = World { routes: server.routes(), clock: ManualClock::default(), limiter, server };
    ensure!(world.passing(&["user=42,plan=free"]).await? == 2);
    ensure!(!world.passes(&["user=42,plan=gold"]).await?, "the bucket keeps its tokens when the plan changes");
    ensure!(world.passing(&["user=43,plan=gold"]).await? == 5);
    let (status, problem) = world.post(request(&["user=42,plan=nope"])).await?;
    ensure!(status == StatusCode::NOT_FOUND, "{problem}");
    Ok(())
}

#[tokio::test]
async fn a_new_configuration_keeps_the_tokens() -> anyhow::Result<()> {
    let yaml = |requests: u32| {
        format!("{{domain: edge, descriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]}}")
    };
    let world = World::of(&yaml(5))?;
    for _ in 0..3 {
        ensure!(world.passes(&["a=x"]).await?);
    }
    world.server.set_config(Config::parse(&yaml(1))?)?;
    ensure!(world.passing(&["a=x"]).await? == 1, "two were left, and the new limit holds one");
    world.server.set_config(Config::parse("{domain: other, descriptors: []}")?)?;
    ensure!(world.passing(&["a=x"]).await? == 10, "the domain is unknown");
    Ok(())
}

#[tokio::test]
async fn requests_that_are_not_valid_take_nothing() -> anyhow::Result<()> {
    let world = World::of("{domain: edge, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]}")?;
    let many = vec!["a=x"; 65];
    let deep = (0..17).map(|n| format!("k{n}=x")).collect::<Vec<_>>().join(",");
    let wrong = [
        (json!({ "domain": "", "descriptors": [descriptor("a=x")] }), "the domain is empty"),
        (json!({ "domain": "edge" }), "no descriptor"),
        (json!({ "domain": "edge", "descriptors": [{}] }), "0 entries"),
        (request(&many), "65 descriptors"),
        (request(&[&deep]), "17 entries"),
        (json!({ "domain": "edge", "descriptors": [descriptor("a=x")], "hits": 3 }), "unknown field"),
        (json!({ "domain": "edge", "descriptors": [descriptor("a=x")], "hitsAddend": -1 }), "not valid"),
        (json!([]), "not valid"),
    ];
    for (body, message) in wrong {
        let (status, problem) = world.post(body).await?;
        ensure!(
            status == StatusCode::BAD_REQUEST && problem["detail"].to_string().contains(message),
            "{message}: {problem}"
        );
    }
    ensure!(world.passing(&["a=x"]).await? == 5);
    // Values of any length have keys of their own.
    let long: Vec<String> = ["x", "y"].iter().map(|end| format!("a={}{end}", "v".repeat(9000))).collect();
    for value in &long {
        ensure!(world.passing(&[value]).await? == 5);
    }
    Ok(())
}
