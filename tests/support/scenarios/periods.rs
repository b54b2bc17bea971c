//! Days, weeks, months and years, in UTC or at an offset.

use std::time::Duration;

use tollgate::{Admin as _, Key, Quota, Rule, Take, admin::Override};

use super::{World, left, under};

/// Milliseconds.
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// The first day after 16 January 2027, the scenarios' first day, at midnight.
const FEBRUARY: i64 = 16 * DAY;
const MARCH: i64 = FEBRUARY + 28 * DAY;

pub async fn month_ends_when_the_calendars_does<W: World>(world: &W) -> anyhow::Result<()> {
    let last_days = "3/month from day 31 in +01:00";
    for (quota, ends) in [("3/month", [FEBRUARY, MARCH]), (last_days, [15 * DAY - HOUR, MARCH - DAY - HOUR])] {
        let (first_used, provisioned) = (world.key(), world.key());
        world.at_ms(0).await?;
        world.create(&provisioned, quota.parse()?).await?;
        for take in [under(&first_used, quota)?, Take::from(provisioned)] {
            world.at_ms(0).await?;
            let granted = world.decide(take.clone().cost(3)).await?;
            assert_eq!(left(&granted), (true, 0), "{quota}");
            for [from, end] in [[0, ends[0]], ends] {
                world.at_ms(from).await?;
                let denied = world.decide(take.clone()).await?;
                let until = Duration::from_millis((end - from).unsigned_abs());
                assert_eq!((denied.is_granted(), denied.retry_after()), (false, Some(until)), "{quota}");
                world.at_ms(end - 1).await?;
                assert!(!world.decide(take.clone()).await?.is_granted(), "{quota}");
                world.at_ms(end).await?;
                assert_eq!(left(&world.decide(take.clone().cost(3)).await?), (true, 0), "{quota}");
            }
        }
    }
    Ok(())
}

pub async fn wait_reaches_the_next_period_and_no_further<W: World>(world: &W) -> anyhow::Result<()> {
    let quota = "2/day in +05:30";
    world.at_ms(0).await?;
    let limiter = world.limiter_builder().max_wait(Duration::from_hours(48)).build(quota)?;
    let key = world.key();
    let midnight = Duration::from_millis((DAY - 5 * HOUR - HOUR / 2).unsigned_abs());
    for expected in [None, None, Some(midnight), Some(midnight)] {
        let decision = limiter.reserve(&key).await?.decision().clone();
        assert_eq!((decision.is_granted(), decision.wait()), (true, expected.unwrap_or_default()));
    }
    assert!(!limiter.reserve(&key).await?.decision().is_granted());
    // Both waits take from the next day, and nothing from the day after.
    world.at_ms(DAY).await?;
    assert!(!limiter.allow(&key).await?.is_granted());
    world.at_ms(2 * DAY).await?;
    assert_eq!(left(&limiter.allow_n(&key, 2).await?), (true, 0));
    Ok(())
}

pub async fn debt_is_paid_by_the_next_period_even_if_unused<W: World>(world: &W) -> anyhow::Result<()> {
    let (key, idle) = (world.key(), world.key());
    world.at_ms(0).await?;
    let limiter = world.limiter_builder().build("5/month")?;
    for key in [&key, &idle] {
        assert!(limiter.allow(key).await?.is_granted());
        limiter.charge(key, 1_000).await?;
    }
    world.at_ms(FEBRUARY).await?;
    assert!(!limiter.allow(&key).await?.is_granted());
    world.at_ms(MARCH).await?;
    assert_eq!(left(&limiter.allow_n(&key, 5).await?), (true, 0));
    assert_eq!(left(&limiter.allow_n(&idle, 5).await?), (true, 0));
    // A charge counts in the month in which it is made.
    world.at_ms(MARCH + 100 * DAY).await?;
    limiter.charge(&idle, 4).await?;
    assert_eq!(left(&limiter.allow(&idle).await?), (true, 0));
    Ok(())
}

pub async fn override_has_a_period_of_its_own<W: World>(world: &W) -> anyhow::Result<()> {
    let (key, plan) = (world.key(), world.key());
    let by_plan = || Take::from(key.clone()).rule(Rule::Plan(plan.clone()));
    world.plan(&plan, "10/month".parse()?, None).await?;
    world.at_ms(0).await?;
    assert_eq!(left(&world.decide(by_plan().cost(4)).await?), (true, 6));
    let quota: Quota = "10/month from 2026-11-20T08:00Z".parse()?;
    let over = Override { quota: Some(quota), mode: None, reason: "billing period".to_owned(), expires_at: None };
    world.store().set_override(&key, over).await?;
    assert_eq!(left(&world.decide(by_plan().cost(4)).await?), (true, 2));
    let start = 4 * DAY + 8 * HOUR;
    world.at_ms(start - 1).await?;
    assert!(!world.decide(by_plan().cost(3)).await?.is_granted());
    world.at_ms(start).await?;
    assert_eq!(left(&world.decide(by_plan()).await?), (true, 9));
    // The tokens stay when the bucket follows its plan again.
    world.store().clear_override(&key).await?;
    assert_eq!(left(&world.decide(by_plan()).await?), (true, 8));
    world.at_ms(FEBRUARY).await?;
    assert_eq!(left(&world.decide(by_plan()).await?), (true, 9));
    Ok(())
}

pub async fn larger_plan_applies_to_the_next_period_in_full<W: World>(world: &W) -> anyhow::Result<()> {
    let (key, plan) = (world.key(), world.key());
    let take = || Take::from(key.clone()).rule(Rule::Plan(plan.clone()));
    world.at_ms(0).await?;
    world.plan(&plan, "10/month".parse()?, None).await?;
    assert_eq!(left(&world.decide(take().cost(4)).await?), (true, 6));
    // No request comes before the month ends.
    world.plan(&plan, "100/month".parse()?, None).await?;
    world.at_ms(FEBRUARY).await?;
    assert_eq!(left(&world.decide(take()).await?), (true, 99));
    world.plan(&plan, "10/month".parse()?, None).await?;
    assert_eq!(left(&world.decide(take()).await?), (true, 9));
    Ok(())
}

pub async fn bucket_created_under_an_override_counts_its_requests<W: World>(world: &W) -> anyhow::Result<()> {
    let (key, plan) = (world.key(), world.key());
    let take = || Take::from(key.clone()).rule(Rule::Plan(plan.clone()));
    world.at_ms(HOUR / 2).await?;
    world.plan(&plan, "10/month".parse()?, None).await?;
    for quota in ["5 per 1h", "5/h"] {
        world.store().delete(&key).await?;
        let over =
            Override { quota: Some(quota.parse()?), mode: None, reason: "fixed window".to_owned(), expires_at: None };
        world.store().set_override(&key, over).await?;
        assert_eq!(left(&world.decide(take().cost(5)).await?), (true, 0), "{quota}");
        assert!(!world.decide(take()).await?.is_granted(), "{quota}");
    }
    Ok(())
}

pub async fn clock_set_back_over_a_start_grants_no_second_period<W: World>(world: &W) -> anyhow::Result<()> {
    let key: Key = world.key();
    let take = || under(&key, "5/day in UTC");
    world.at_ms(-HOUR).await?;
    assert_eq!(left(&world.decide(take()?.cost(5)).await?), (true, 0));
    world.at_ms(0).await?;
    assert_eq!(left(&world.decide(take()?.cost(5)).await?), (true, 0));
    world.at_ms(-HOUR).await?;
    assert!(!world.decide(take()?).await?.is_granted());
    world.at_ms(HOUR).await?;
    assert!(!world.decide(take()?).await?.is_granted());
    world.at_ms(DAY).await?;
    assert_eq!(left(&world.decide(take()?.cost(5)).await?), (true, 0));
    Ok(())
}
