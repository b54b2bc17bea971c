//! The arithmetic without a database: the golden vectors, and properties of every bucket.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tollgate::model::bucket::{Bucket, BucketQuota, BucketRequest, MAX_WAIT_NS, ThrottleLevel, Verdict};
use tollgate::{Key, Mode};
use tollgate::{Quota, Rule, Window, model::QuotaError};
use tollgate_tests::model::{CENTURY_NS, Model, Step, Story, quota, story};
use tollgate_tests::vectors;

#[test]
fn every_golden_vector_holds() -> anyhow::Result<()> {
    for scenario in vectors::scenarios()? {
        let limits = BucketQuota::at(&scenario.quota, 0);
        let start = if scenario.first_used { 0 } else { MADE_AT };
        let mut bucket = Bucket::full(&limits, start);
        assert!(!scenario.steps.is_empty(), "{} has no requests", scenario.name);
        for step in &scenario.steps {
            let request = BucketRequest { cost: step.cost, max_wait: step.max_wait, min_remaining: step.min_remaining };
            match step.answer {
                None => assert!(step.cost + step.min_remaining > limits.capacity, "possible: {}", step.line),
                Some(expected) => {
                    let verdict = bucket.take(&limits, start + step.at, request);
                    assert_eq!(verdict, Verdict::from(expected), "{}", step.line);
                }
            }
            let row = (bucket.full_at, bucket.granted, bucket.max_granted_wait);
            assert_eq!(row, step.row(limits.clock(bucket.anchor, start)), "{}", step.line);
        }
    }
    Ok(())
}

/// A configuration file states keys, rules and modes as text.
#[test]
fn configuration_states_keys_rules_and_modes_as_text() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Route {
        key: Key,
        limit: Rule,
        mode: Option<Mode>,
    }
    let read = |json: &str| serde_json::from_str::<Route>(json).map_err(|error| error.to_string());
    let (quota, window) = ("10/s burst 20".parse::<Quota>(), "100 in 60s at 5s".parse::<Window>());
    let (quota, window) = (quota.expect("a quota"), window.expect("a window"));
    let key = || Key::try_from("/search").expect("a key");
    let bucket = read(r#"{"key": "/search", "limit": "10/s burst 20", "mode": "shadow"}"#);
    assert_eq!(bucket, Ok(Route { key: key(), limit: Rule::Quota(quota), mode: Some(Mode::Shadow) }));
    let sliding = read(r#"{"key": "/search", "limit": "100 in 60s at 5s"}"#);
    assert_eq!(sliding, Ok(Route { key: key(), limit: Rule::Window(window), mode: None }));
    for (json, wrong) in [
        (r#"{"key": "", "limit": "1/s"}"#, "empty"),
        (r#"{"key": "a", "limit": "1/x"}"#, "1/x"),
        (r#"{"key": "a", "limit": "1 in 1s at 1x"}"#, "1 in 1s at 1x"),
        (r#"{"key": "a", "limit": "1/s", "mode": "of"}"#, "\"of\" is not a mode"),
    ] {
        let error = read(json).expect_err(json);
        assert!(error.contains(wrong), "{error}");
    }
    let rules = (Rule::Quota(quota), Rule::Window(window));
    let written = serde_json::to_value((key(), rules, Mode::Block)).expect("texts");
    assert_eq!(written, serde_json::json!(["/search", ["10/s burst 20", "100 in 1m at 5s"], "block"]));
    for wordless in [Rule::Plan(key()), Rule::Provisioned] {
        assert!(serde_json::to_value(wordless).is_err_and(|error| error.to_string().contains("have words")));
    }
}

#[test]
fn invalid_quota_json_error_names_the_value() {
    for json in [
        "null",
        "10",
        "1.5",
        "true",
        "[]",
        "{}",
        "[10, \"s\"]",
        r#"{"capacity": 10}"#,
        "\"\"",
        r#""10""#,
        r#""10/x""#,
        r#""0/s""#,
        r#""-1/s""#,
        r#""nan/s""#,
        r#""10/s burst 0""#,
        r#""3155760000000000001 once""#,
        r#""10 per 0s""#,
    ] {
        let refused = serde_json::from_str::<Quota>(json);
        assert!(refused.is_err(), "{json} was read as {refused:?}");
    }
    let error = serde_json::from_str::<Quota>(r#""10/x""#).expect_err("there is no such unit").to_string();
    assert!(error.contains("10/x"), "{error}");
    let borrowed = serde_json::from_value::<Quota>(serde_json::json!("10/s burst 20"));
    assert_eq!(borrowed.expect("from an owned text, too").capacity(), 20);
}

#[test]
fn i14_invalid_quota_values_are_typed_errors() {
    for rate in [f64::NAN, -1.0, -0.5, f64::NEG_INFINITY, f64::MIN] {
        assert!(matches!(Quota::rate(rate).burst(5).build(), Err(QuotaError::InvalidRate(_))), "{rate}");
    }
    for rate in [1e-300, f64::MIN_POSITIVE, 1e-12] {
        assert_eq!(Quota::rate(rate).build(), Err(QuotaError::RefillTooLong), "{rate}");
    }
    for (rate, burst) in
        [(1e300, None), (f64::MAX, Some(u64::MAX)), (1e10, None), (1.0, Some(u64::MAX)), (1e18, Some(1))]
    {
        let builder = Quota::rate(rate);
        let built = burst.map_or(builder, |burst| builder.burst(burst)).build();
        assert!(built.is_err(), "{rate} {burst:?}: {built:?}");
    }
    assert_eq!(Quota::rate(-0.0).burst(3).build(), Quota::once(3));
    for text in [
        "",
        "nan/s",
        "-1/s",
        "1/-1s",
        "1e3/s",
        "inf",
        "0/s",
        "1/0s",
        "18446744073709551616/s",
        "1 per",
        "once",
        "1 0/s",
        "1/m 30s",
        "1 per m30s",
        "1 per 1m30",
        "1 per 1",
        "1/1 m",
        "1/1minute",
        "1 / / s",
        "1 per minutes",
        "burst 1",
        "1 per 200000d 200000d",
    ] {
        assert!(text.parse::<Quota>().is_err(), "{text:?}");
    }
    for text in ["99999999999999999999/s", "1/1000000d", "1/s burst 99999999999999999999"] {
        assert_eq!(text.parse::<Quota>(), Err(QuotaError::OutOfRange(text.to_owned())));
    }
    for text in
        ["", "100 in 60s", "in 60s at 5s", "100 in 60 at 5s", "0 in 60s at 5s", "1 in 1s at 5s", "1 in 0s at 0s"]
    {
        assert!(text.parse::<Window>().is_err(), "{text:?}");
    }
}

#[test]
fn window_round_trips_through_text() -> anyhow::Result<()> {
    for (text, most, interval_ms, resolution_ms) in
        [("100 in 1m at 5s", 100, 60_000, 5_000), ("1 in 1500ms at 250ms", 1, 1_500, 250)]
    {
        let window = Window::new(most, Duration::from_millis(interval_ms), Duration::from_millis(resolution_ms))?;
        assert_eq!((window.to_string().as_str(), text.parse()), (text, Ok(window)));
        assert_eq!(Rule::try_from(text), Ok(Rule::Window(window)));
    }
    assert_eq!("100 in 60s at 5s".parse::<Window>()?.to_string(), "100 in 1m at 5s");
    for (text, shortest) in [
        ("10/min", "10/m"),
        ("10/second", "10/s"),
        ("10 / minute", "10/m"),
        ("10/ hour burst 20", "10/h burst 20"),
        ("10 /1m 30s", "400/h burst 10"),
        ("10 per day", "10 per 1d"),
        ("10 per calendar day", "10 per calendar 1d"),
    ] {
        assert_eq!(text.parse::<Quota>()?.to_string(), shortest, "{text}");
    }
    for text in ["10 per 1m30s", "10 per 1m 30s", "10 per 90s"] {
        assert_eq!(text.parse::<Quota>()?, Quota::interval(10, Duration::from_secs(90))?, "{text}");
    }
    assert_eq!("10/1m 30s burst 20".parse::<Quota>()?, Quota::per(10, Duration::from_secs(90)).burst(20).build()?);
    assert_eq!("9 per calendar 1h 30m".parse::<Quota>()?.to_string(), "9 per calendar 90m");
    assert_eq!("9 in 1m 30s at 1s 500ms".parse::<Window>()?.to_string(), "9 in 90s at 1500ms");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        rng_seed: RngSeed::Fixed(0x7074_6f6c_6c67),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn quota_round_trips_through_text(quota in quota(CENTURY_NS), kind in 0..3_u8) {
        let (capacity, refill) = (quota.capacity(), quota.refill_time());
        let other = match kind {
            0 => Ok(quota),
            1 => Quota::calendar(capacity, refill),
            _ => Quota::once(capacity),
        };
        for quota in [quota, other.unwrap_or(quota)] {
            let text = quota.to_string();
            prop_assert_eq!(text.parse(), Ok(quota), "{}", text);
                        {
                let json = serde_json::to_string(&quota).expect("a text");
                prop_assert_eq!(&json, &format!("\"{text}\""));
                prop_assert_eq!(serde_json::from_str::<Quota>(&json).expect("the same"), quota);
            }
        }
    }

    /// Tests run with overflow checks, so a sum that overflows panics.
    #[test]
    fn no_sum_overflows_before_2160(story in story(0..YEAR_2159, CENTURY_NS, 30)) {
        replay(&story, |_, _, _, _| Ok(()))?;
    }

    #[test]
    fn denial_ends_exactly_at_retry_after(story in story(0..YEAR_2100, 1 << 31, 30)) {
        replay(&story, |before, now, request, verdict| {
            let request = BucketRequest { max_wait: 0, ..request };
            let mut model = before.clone();
            // Skips times before the anchor. They occur only if the clock is set back after a bucket is created.
            let Some(verdict) = verdict.filter(|verdict| !verdict.granted && now >= before.bucket.anchor) else {
                return Ok(());
            };
            model.take(now, request);
            let ready = now + verdict.retry_after;
            prop_assert!(verdict.retry_after > 0);
            if ready < YEAR_2159 {
                prop_assert!(!model.clone().take(ready - 1, request).expect("possible").granted);
                prop_assert!(model.take(ready, request).expect("possible").granted);
            }
            Ok(())
        })?;
    }

    #[test]
    fn denial_changes_nothing_and_grant_delays_full_at(
        story in story(0..YEAR_2100, 1 << 31, 30)
    ) {
        replay(&story, |before, now, request, verdict| {
            let mut after = before.clone();
            after.take(now, request);
            let (granted, stepped) = (verdict.is_some_and(|verdict| verdict.granted), verdict.is_some()
                && before.bucket.stepped_back(&before.limits(), now));
            let cost = if granted { request.cost } else { 0 };
            prop_assert_eq!(after.bucket.granted, before.bucket.granted + cost);
            prop_assert_eq!(after.bucket.anchor, before.bucket.anchor);
            prop_assert!(stepped || after.bucket.full_at >= before.bucket.full_at + cost * before.limits().token_ticks);
            prop_assert!(stepped || granted || after.bucket == before.bucket);
            Ok(())
        })?;
    }

    #[test]
    fn throttle_lowers_a_bucket_no_more_than_stated(
        story in story(0..YEAR_2100, 1 << 31, 30),
        percent in prop::option::of(0..120_i64),
        wait in prop_oneof![Just(0), 1..10_i64, 1..1_i64 << 45],
    ) {
        replay(&story, |before, now, _, _| {
            let limits = before.limits();
            if now < before.bucket.anchor {
                return Ok(());
            }
            let remaining = percent.map(|percent| i64::try_from(i128::from(limits.capacity) * i128::from(percent) / 100));
            let level = ThrottleLevel { remaining: remaining.transpose().expect("at most 2³²"), wait };
            let one = BucketRequest { cost: 1, max_wait: 0, min_remaining: 0 };
            let free = |bucket: &Bucket, at| bucket.verdict(&limits, at, BucketRequest { cost: 0, ..one }, false).remaining;
            let (mut unthrottled, mut throttled) = (before.bucket, before.bucket);
            if throttled.stepped_back(&limits, now) {
                unthrottled.convert_limits(&limits, &limits, now);
            }
            let lowered = throttled.throttle(&limits, now, level);
            prop_assert_eq!(lowered, throttled != unthrottled);
            prop_assert!(throttled.full_at >= unthrottled.full_at, "it was raised");
            prop_assert_eq!((throttled.granted, throttled.anchor), (unthrottled.granted, unthrottled.anchor));
            prop_assert!(!throttled.stepped_back(&limits, now));
            prop_assert!(level.remaining.is_none_or(|remaining| free(&throttled, now) <= remaining));
            let mut again = throttled;
            prop_assert!(!again.throttle(&limits, now, level) && again == throttled, "repeated, it changed something");
            if wait > 0 && now + wait < YEAR_2159 {
                prop_assert!(!throttled.clone().take(&limits, now + wait - 1, one).granted);
            }
            // One tick less would leave more tokens than stated, or grant a token before the stated time.
            if lowered {
                let earlier = Bucket { full_at: throttled.full_at - 1, ..throttled };
                let more = level.remaining.is_some_and(|remaining| {
                    (limits.burst() - earlier.full_at + limits.clock(earlier.anchor, now)) > remaining * limits.token_ticks
                });
                let early = wait > 0 && earlier.clone().take(&limits, now + wait - 1, one).granted;
                prop_assert!(more || early, "it was lowered too far");
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_window_passes_more_than_the_quota(story in story(0..YEAR_2100, 1 << 31, 60)) {
        let one_quota = story.without_changes();
        let mut acts: Vec<(i64, i64)> = Vec::new();
        replay(&one_quota, |_, now, request, verdict| {
            acts.extend(verdict.filter(|verdict| verdict.granted).map(|verdict| (now + verdict.wait, request.cost)));
            Ok(())
        })?;
        acts.sort_unstable();
        let limits = BucketQuota::at(&story.quotas[0], 0);
        for (first, &(since, _)) in acts.iter().enumerate() {
            let mut passed = 0;
            for &(until, cost) in &acts[first..] {
                // A fixed window is checked in its periods, and a continuous quota in every window.
                let (length, same) = match limits.step_ns {
                    1 => (until - since, true),
                    period => (0, (until - story.start) / period == (since - story.start) / period),
                };
                passed += if same { cost } else { 0 };
                let most = i128::from(limits.burst()) + i128::from(length);
                prop_assert!(i128::from(passed) * i128::from(limits.token_ticks) <= most, "{passed} in {length} ns");
            }
        }
    }

    #[test]
    fn changed_quota_keeps_tokens_up_to_the_new_capacity(
        story in story(0..YEAR_2100, 1 << 31, 30),
        new in quota(1 << 31),
    ) {
        replay(&story, |before, now, _, _| {
            let old = before.limits();
            let mut after = before.clone();
            after.change(new, now);
            let new = after.limits();
            let available = |model: &Model, limits: &BucketQuota| {
                let owed = (model.bucket.full_at - limits.clock(model.bucket.anchor, now)).max(0);
                i128::from(limits.burst() - owed)
            };
            let (had, has) = (available(before, &old), available(&after, &new));
            prop_assert!(has <= i128::from(new.burst()));
            prop_assert!(has >= -i128::from(new.clock(0, MAX_WAIT_NS) + new.step_ticks));
            if before.bucket.stepped_back(&old, now) {
                prop_assert_eq!(has, if before.quota == after.quota { had } else { 0 });
            } else {
                // Compares in the finest unit of both quotas. Fractions are rounded down to the new ticks, never up.
                let (had, has) = (had * i128::from(new.token_ticks), has * i128::from(old.token_ticks));
                let full = i128::from(new.burst()) * i128::from(old.token_ticks);
                prop_assert!(had < 0 || (has <= had.min(full) && had.min(full) - has < i128::from(old.token_ticks)));
                prop_assert!(had >= 0 || has < i128::from(old.token_ticks));
            }
            Ok(())
        })?;
    }
}

/// Runs a story, and calls `check` with each request, the bucket before it, and the answer.
fn replay(
    story: &Story,
    mut check: impl FnMut(&Model, i64, BucketRequest, Option<Verdict>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut now = story.start;
    let mut provisioned = Model::provisioned(story.quotas[0], now);
    let mut first_used = Model::first_used(story.quotas[1]);
    for step in &story.steps {
        let limits = provisioned.limits();
        let anchor = provisioned.bucket.anchor;
        match step {
            Step::Forward(span) => now = now.saturating_add(span.of(&limits, anchor, now)).min(YEAR_2159),
            Step::Back(span) => now = (now - span.of(&limits, anchor, now)).max(0),
            Step::Change(quota) => provisioned.change(story.quotas[*quota], now),
            Step::Take(requests) => {
                for relative in requests {
                    let model = if relative.provisioned { &mut provisioned } else { &mut first_used };
                    if !relative.provisioned {
                        model.change(story.quotas[relative.quota], now);
                    }
                    let request = relative.request(&model.limits(), model.bucket.anchor, now);
                    let before = model.clone();
                    let verdict = model.take(now, request);
                    check(&before, now, request, verdict)?;
                }
            }
        }
    }
    Ok(())
}

const MADE_AT: i64 = 1_800_000_000_123_456_789;
const YEAR_2100: i64 = 4_102_444_800_000_000_000;
const YEAR_2159: i64 = 5_964_364_800_000_000_000;
