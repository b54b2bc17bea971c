//! I14: every input yields a decision or a typed error, equal on every engine. An error takes nothing.

use std::time::Duration;

use tollgate::model::bucket::MAX_TOKENS;
use tollgate::{
    Adjusted, Admin, Key, Mode, Quota, Receipt, Rule, Store, Take, TakeError,
    model::{KeyError, Outcome},
};
use uuid::Uuid;

use super::{START, World, left, under};

pub async fn impossible_request_is_the_same_error_in_a_batch<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    for quota in ["5/h", "5 per 1h", "5 per calendar 1h", "5 once"] {
        let key = world.key();
        world.create(&key, quota.parse()?).await?;
        let most = MAX_TOKENS.unsigned_abs();
        for cost in [0, 1, 5, 6, most, u64::MAX / 2, u64::MAX] {
            for min_remaining in [0, 1, 4, 5, most, u64::MAX / 2, u64::MAX] {
                if cost > 0 && cost.checked_add(min_remaining).is_some_and(|sum| sum <= 5) {
                    continue;
                }
                let refused = |outcome: &Outcome| match outcome {
                    Err(TakeError::ZeroCost) => cost == 0,
                    Err(error) => {
                        *error
                            == TakeError::ExceedsCapacity {
                                key: key.clone(),
                                cost,
                                min_remaining,
                                capacity: 5,
                                window: false,
                            }
                            && cost > 0
                    }
                    Ok(_) => false,
                };
                for max_wait in [Duration::ZERO, Duration::MAX] {
                    let take = Take::from(key.clone()).cost(cost).min_remaining(min_remaining).max_wait(max_wait);
                    let identified = take.clone().id(Uuid::new_v4(), Duration::MAX);
                    let several = take.clone().and(world.key(), Rule::try_from("3155760000000000000 once")?);
                    let outcomes = world.store().take(&[take.clone(), identified, several.clone()]).await?;
                    anyhow::ensure!(outcomes.iter().all(refused), "{quota}: {take:?}: {outcomes:?}");
                    anyhow::ensure!(refused(&world.store().take_one(&take).await?), "{quota}: {take:?}");
                    anyhow::ensure!(refused(&world.store().take_one(&several).await?), "{quota}: {several:?}");
                }
            }
        }
        assert_eq!(left(&world.decide(Take::from(key).cost(5)).await?), (true, 0), "{quota}: nothing was taken");
    }
    Ok(())
}

pub async fn request_for_a_missing_bucket_or_plan_is_an_error<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (key, plan, provisioned) = (world.key(), world.key(), world.key());
    world.create(&provisioned, "5 per 1h".parse()?).await?;
    let unplanned = |key: &Key| TakeError::UnknownPlan { key: key.clone(), plan: Some(plan.clone()) };
    for (cost, min_remaining, max_wait) in
        [(1, 0, 0), (u64::MAX, 0, 0), (1, u64::MAX, u64::MAX), (u64::MAX, u64::MAX, 1)]
    {
        let with_costs =
            |take: Take| take.cost(cost).min_remaining(min_remaining).max_wait(Duration::from_secs(max_wait));
        let cases = [
            (Take::from(key.clone()), TakeError::UnknownBucket(key.clone())),
            (Take::from(key.clone()).rule(Rule::Plan(plan.clone())), unplanned(&key)),
            (Take::from(provisioned.clone()).rule(Rule::Plan(plan.clone())), unplanned(&provisioned)),
            (under(&provisioned, "6 per 1h")?, TakeError::Conflict(provisioned.clone())),
        ];
        for (take, error) in cases {
            let identified = with_costs(take.clone()).id(Uuid::new_v4(), Duration::MAX);
            for take in [with_costs(take), identified] {
                let outcomes = world.store().take(&[take.clone(), take.clone()]).await?;
                assert!(
                    outcomes.iter().all(|outcome| outcome.as_ref().err() == Some(&error)),
                    "{take:?}: {outcomes:?}"
                );
            }
        }
    }
    assert_eq!(left(&world.decide(Take::from(provisioned).cost(5)).await?), (true, 0), "nothing was taken");
    Ok(())
}

/// I7, too: each text is the key of a separate bucket.
pub async fn any_text_is_a_separate_key_or_a_typed_error<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    for (text, error) in [
        (String::new(), KeyError::Empty),
        ("a\0b".into(), KeyError::Nul(1)),
        ("a\u{1}b".into(), KeyError::Reserved),
        ("x".repeat(256), KeyError::TooLong(256)),
        ("\u{1F980}".repeat(64), KeyError::TooLong(256)),
    ] {
        assert_eq!(Key::try_from(text.as_str()), Err(error));
    }
    let salt = world.key();
    let salt = &salt.as_str()[..16];
    let texts = [
        "",
        " ",
        "a",
        "A",
        "a ",
        " a",
        "å",
        "a\u{30a}",
        "Å",
        "'",
        "''",
        "'; drop table token_buckets; --",
        "\\",
        "\\'",
        "%",
        "_",
        "\"",
        "`",
        "$1",
        "?",
        ":a",
        "\n",
        "\r\n",
        "\t",
        "\u{2}",
        "\u{7f}",
        "\u{202e}",
        "\u{feff}",
        "\u{fffd}",
        "\u{1F980}",
        "{}",
        "[1]",
        "null",
        "0x00",
        "ß",
        "ss",
        "ſ",
    ];
    let mut keys: Vec<String> = texts.iter().map(|text| format!("{salt}{text}")).collect();
    keys.extend(["x", "y"].map(|end| format!("{salt}{}{end}", "x".repeat(255 - 17))));
    for tokens in [1, 0] {
        for text in &keys {
            let decision = world.decide(under(&Key::try_from(text)?, "2 per 1h")?).await?;
            assert_eq!(left(&decision), (true, tokens), "{text:?}");
        }
    }
    Ok(())
}

/// The key contains all 64 bits, in a text of fixed length.
pub async fn hash_is_a_separate_key_of_16_digits<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    for (hash, text) in [
        (0, "0000000000000000"),
        (0x2a, "000000000000002a"),
        (u64::MAX, "ffffffffffffffff"),
        (0x0123_4567_89ab_cdef, "0123456789abcdef"),
    ] {
        assert_eq!(Key::from_hash(hash).as_str(), text);
        assert_eq!(Key::from_hash(hash), Key::try_from(text)?);
    }
    // A random hash, and two that differ from it in the first or the last bit.
    let hash = Uuid::new_v4().as_u64_pair().1;
    let hashes = [hash, hash ^ 1, hash ^ 1 << 63];
    for hash in hashes {
        assert_eq!(left(&world.decide(under(&Key::from_hash(hash), "2 per 1h")?).await?), (true, 1), "{hash:x}");
    }
    for hash in hashes {
        let text = Key::try_from(format!("{hash:016x}"))?;
        assert_eq!(left(&world.decide(under(&text, "2 per 1h")?).await?), (true, 0), "{hash:x}");
        let level = world.store().peek(&Key::from_hash(hash)).await?.expect("it was asked for");
        assert_eq!((level.key(), level.available()), (&text, 0));
    }
    Ok(())
}

pub async fn adjustment_with_extreme_values_does_not_overflow<W: World>(world: &W) -> anyhow::Result<()> {
    let most = MAX_TOKENS.unsigned_abs();
    for quota in ["3155760000000000000/36525d", "3155760000000000000 per 36525d", "3155760000000000000 once", "5/h"] {
        world.at_ms(0).await?;
        let key = world.key();
        let quota: Quota = quota.parse()?;
        world.create(&key, quota).await?;
        // Repeated refunds never raise the bucket above its capacity.
        for cost in [most, u64::MAX, 1, 0] {
            for _ in 0..4 {
                let refund = Receipt::new(Uuid::new_v4(), key.clone(), cost).refund(u64::MAX);
                let done = i64::try_from(cost.clamp(1, most))?;
                assert_eq!(world.store().adjust(&[refund]).await?, [Ok(Adjusted::Done(done))], "{quota}");
            }
        }
        let all = world.decide(Take::from(key.clone()).cost(quota.capacity())).await?;
        assert_eq!(left(&all), (true, 0), "{quota}");
        assert!(!world.decide(Take::from(key.clone())).await?.is_granted(), "{quota}");
        // A request can be settled at more than the capacity. Later requests wait, but not forever.
        let settled = world.key();
        world.create(&settled, quota).await?;
        for _ in 0..3 {
            let id = Uuid::new_v4();
            let take = Take::from(settled.clone()).id(id, Duration::MAX).max_wait(Duration::MAX);
            let granted = world.decide(take).await?.is_granted();
            let settle = Receipt::new(id, settled.clone(), 1).settle(u64::MAX);
            let expected = if granted { Adjusted::Done(1 - MAX_TOKENS) } else { Adjusted::Late };
            assert_eq!(world.store().adjust(&[settle]).await?, [Ok(expected)], "{quota}");
        }
        assert!(!world.decide(Take::from(settled.clone())).await?.is_granted(), "{quota}");
    }
    Ok(())
}

/// After repeated refunds or resets of the maximum, the maximum is granted again.
pub async fn count_of_granted_tokens_does_not_overflow<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    for quota in ["3155760000000000000 once", "3155760000000000000/36525d"] {
        let key = world.key();
        let all = || anyhow::Ok(under(&key, quota)?.cost(MAX_TOKENS.unsigned_abs()));
        for time in 0..8 {
            let id = Uuid::new_v4();
            let decision = world.decide(all()?.id(id, Duration::MAX)).await?;
            assert_eq!(left(&decision), (true, 0), "{quota}: time {time}");
            if time % 2 == 0 {
                assert!(world.store().reset(&key).await?, "{quota}: time {time}");
            } else {
                let refund = Receipt::new(id, key.clone(), MAX_TOKENS.unsigned_abs()).refund(u64::MAX);
                assert_eq!(world.store().adjust(&[refund]).await?, [Ok(Adjusted::Done(MAX_TOKENS))], "{quota}");
            }
        }
        assert_eq!(left(&world.decide(all()?).await?), (true, 0), "{quota}");
    }
    Ok(())
}

/// Uses bursts of a century and waits of up to a year, until the latest time that the arithmetic supports.
pub async fn sums_do_not_overflow_before_2160<W: World>(world: &W) -> anyhow::Result<()> {
    for now in [START, 4_102_444_800_000_000_000, 5_964_364_800_000_000_000] {
        for text in ["1/36525d", "1 per 36525d", "3155760000000000000/36525d", "3155760000000000000 once"] {
            world.at(now).await?;
            let quota: Quota = text.parse()?;
            let all = |key: &Key| Take::from(key.clone()).rule(Rule::Quota(quota)).cost(quota.capacity());
            let (alone, other) = (world.key(), world.key());
            let both = all(&alone).and(other.clone(), Rule::Quota(quota));
            assert!(world.decide(all(&alone)).await?.is_granted(), "{text} at {now}");
            for take in [all(&alone), both] {
                for max_wait in [Duration::ZERO, Duration::MAX] {
                    let denied = world.decide(take.clone().max_wait(max_wait)).await?;
                    assert!(!denied.is_granted(), "{text} at {now}: {denied:?}");
                    let hundred_years = Duration::from_hours(24 * 36_525);
                    if quota.refill() == tollgate::model::Refill::Once {
                        assert_eq!(denied.retry_after(), None, "{text} at {now}");
                    } else {
                        let is_possible = |time| (Duration::from_nanos(1)..=hundred_years).contains(&time);
                        assert!(denied.retry_after().is_some_and(is_possible), "{text} at {now}: {denied:?}");
                    }
                }
            }
            assert!(world.decide(all(&other)).await?.is_granted(), "{text} at {now}: all or nothing");
        }
    }
    Ok(())
}

pub async fn plan_that_does_not_limit_accepts_any_cost<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    for text in ["1/36525d", "1 per 36525d", "1 once"] {
        let (key, plan, quota) = (world.key(), world.key(), text.parse::<Quota>()?);
        let take = |cost| Take::from(key.clone()).rule(Rule::Plan(plan.clone())).cost(cost).min_remaining(cost);
        world.plan(&plan, quota, None).await?;
        assert!(world.decide(take(1).min_remaining(0)).await?.is_granted(), "{text}");
        for cost in [2, MAX_TOKENS.unsigned_abs(), u64::MAX / 2, u64::MAX] {
            for (mode, granted) in [(Mode::Off, true), (Mode::Block, false)] {
                world.plan(&plan, quota, Some(mode)).await?;
                let decision = world.decide(take(cost)).await?;
                assert_eq!((decision.is_granted(), decision.mode()), (granted, mode), "{cost} of {text}");
            }
            // Shadow mode still reports requests that can never be granted.
            world.plan(&plan, quota, Some(Mode::Shadow)).await?;
            let outcome = world.store().take_one(&take(cost)).await?;
            assert!(
                matches!(outcome, Err(TakeError::ExceedsCapacity { capacity: 1, .. })),
                "{cost} of {text}: {outcome:?}"
            );
        }
    }
    Ok(())
}
