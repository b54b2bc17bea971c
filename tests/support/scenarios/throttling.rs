//! Buckets that are throttled to the limit that an upstream reports.

use std::time::Duration;

use tollgate::{
    Admin, Error, Limiter, Mode, Rule, Store, Take, TakeError, Throttle, Window, admin::Override, model::ThrottleError,
};

use super::{World, left, ms, under};

async fn lowered<W: World>(world: &W, take: &Take, quota: &str, throttle: Throttle) -> anyhow::Result<bool> {
    Ok(world.store().throttle(take.key(), &Rule::try_from(quota)?, throttle).await?)
}

pub async fn throttle_lowers_a_bucket_and_never_raises_it<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "10/s")?;
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 9));
    assert!(!lowered(world, &take, "10/s", Throttle::remaining(9)).await?);
    assert!(!lowered(world, &take, "10/s", Throttle::remaining(u64::MAX)).await?);
    assert!(lowered(world, &take, "10/s", Throttle::remaining(4)).await?);
    assert!(!lowered(world, &take, "10/s", Throttle::remaining(4)).await?, "repeated, it was lowered again");
    assert!(!lowered(world, &take, "10/s", Throttle::remaining(5)).await?);
    let decision = world.decide(take.clone()).await?;
    assert_eq!((left(&decision), decision.reset_after()), ((true, 3), Some(ms(700))));
    // Only the tokens were lowered: they come back at the bucket's rate.
    world.at_ms(100).await?;
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 3));
    assert!(lowered(world, &take, "10/s", Throttle::remaining(0)).await?);
    let denied = world.decide(take).await?;
    assert_eq!((left(&denied), denied.retry_after()), ((false, 0), Some(ms(100))));
    Ok(())
}

pub async fn throttled_bucket_grants_nothing_before_retry_after<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "10/s")?;
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 9));
    // Thirty replicas report the same upstream answer.
    let throttle = Throttle::retry_after(ms(60_000));
    for replica in 0..30 {
        assert_eq!(lowered(world, &take, "10/s", throttle).await?, replica == 0);
    }
    let denied = world.decide(take.clone()).await?;
    assert_eq!((left(&denied), denied.retry_after()), ((false, 0), Some(ms(60_000))));
    // A shorter wait does not shorten the current one.
    world.at_ms(10_000).await?;
    assert!(!lowered(world, &take, "10/s", Throttle::retry_after(ms(20_000))).await?);
    world.at_ms(59_999).await?;
    assert_eq!(world.decide(take.clone()).await?.retry_after(), Some(ms(1)));
    world.at_ms(60_000).await?;
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 0));
    assert_eq!(world.decide(take.clone()).await?.retry_after(), Some(ms(100)));
    world.at_ms(60_500).await?;
    assert_eq!(left(&world.decide(take).await?), (true, 4));
    Ok(())
}

pub async fn throttle_with_both_values_applies_the_stricter<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "10/s")?;
    let throttle = Throttle::remaining(3).and(Throttle::retry_after(ms(5000)).and(Throttle::remaining(7)));
    assert!(lowered(world, &take, "10/s", throttle).await?);
    assert_eq!(world.decide(take.clone()).await?.retry_after(), Some(ms(5000)));
    let short = under(&world.key(), "10/s")?;
    assert!(lowered(world, &short, "10/s", Throttle::remaining(0).and(Throttle::retry_after(ms(1)))).await?);
    assert_eq!(world.decide(short).await?.retry_after(), Some(ms(100)));
    Ok(())
}

pub async fn interval_tokens_come_with_the_first_period_after_the_wait<W: World>(world: &W) -> anyhow::Result<()> {
    for quota in ["5 per 1s", "5 per calendar 1s"] {
        world.at_ms(0).await?;
        let take = under(&world.key(), quota)?;
        world.at_ms(300).await?;
        assert_eq!(left(&world.decide(take.clone().cost(2)).await?), (true, 3));
        assert!(lowered(world, &take, quota, Throttle::retry_after(ms(1))).await?);
        assert_eq!(world.decide(take.clone()).await?.retry_after(), Some(ms(700)), "{quota}");
        assert!(!lowered(world, &take, quota, Throttle::retry_after(ms(700))).await?);
        assert!(lowered(world, &take, quota, Throttle::retry_after(ms(1701))).await?);
        assert_eq!(world.decide(take.clone()).await?.retry_after(), Some(ms(2700)), "{quota}");
        world.at_ms(2999).await?;
        assert_eq!(left(&world.decide(take.clone()).await?), (false, 0));
        world.at_ms(3000).await?;
        assert_eq!(left(&world.decide(take.clone()).await?), (true, 4));
    }
    Ok(())
}

pub async fn unused_bucket_can_be_throttled<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, plan) = (world.store(), world.key());
    store.create_plan(&plan, "10/s".parse()?).await?;
    let own = world.key();
    store.create_bucket(&own, "10/s".parse()?).await?;
    let rules = [(world.key(), "10/s".try_into()?), (world.key(), Rule::Plan(plan.clone())), (own, Rule::Provisioned)];
    for (key, rule) in &rules {
        assert!(store.throttle(key, rule, Throttle::retry_after(ms(3000))).await?);
        let decision = world.decide(Take::from(key.clone()).rule(rule.clone())).await?;
        assert_eq!(decision.retry_after(), Some(ms(3000)), "{rule:?}");
    }
    Ok(())
}

pub async fn earlier_reservation_keeps_its_time_when_throttled<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    let limiter = world.limiter_builder().build("10/s")?;
    let first = limiter.reserve_n(&key, 10).await?;
    let waiting = limiter.reserve_n(&key, 5).await?;
    assert_eq!(waiting.decision().wait(), ms(500));
    assert!(limiter.throttle(&key, Throttle::retry_after(ms(2000))).await?);
    assert!(!limiter.throttle(&key, Throttle::retry_after(ms(1000))).await?);
    let later = limiter.reserve(&key).await?;
    assert_eq!(later.decision().wait(), ms(2000));
    // The level shows the grants before the next one.
    let level = world.store().peek(&key).await?.expect("it is there");
    assert_eq!(level.granted(), 16);
    assert_eq!(later.cancel().await?, 1);
    // Cancelling gives back exactly the reserved tokens.
    assert_eq!(waiting.cancel().await?, 5);
    assert_eq!(world.decide(under(&key, "10/s")?).await?.retry_after(), Some(ms(1500)));
    drop(first);
    Ok(())
}

pub async fn throttle_of_ten_years_is_an_hour_by_default<W: World>(world: &W) -> anyhow::Result<()> {
    const TEN_YEARS: Duration = Duration::from_hours(10 * 366 * 24);

    world.at_ms(0).await?;
    for (throttle, wait) in [
        (Throttle::retry_after(TEN_YEARS), Throttle::DEFAULT_MAX_WAIT),
        (Throttle::retry_after(Duration::MAX), Throttle::DEFAULT_MAX_WAIT),
        (Throttle::retry_after(TEN_YEARS).max_wait(ms(5000)), ms(5000)),
        (Throttle::retry_after(TEN_YEARS).max_wait(Duration::MAX), Duration::from_hours(366 * 24)),
    ] {
        let take = under(&world.key(), "10/s")?;
        assert!(lowered(world, &take, "10/s", throttle).await?);
        assert_eq!(world.decide(take).await?.retry_after(), Some(wait));
    }
    Ok(())
}

pub async fn throttle_that_cannot_apply_is_an_error_with_reason<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, key) = (world.store(), world.key());
    let throttle = Throttle::retry_after(ms(1000));
    let refused = |result: Result<bool, Error>| match result {
        Err(Error::Throttle(error)) => error,
        other => panic!("{other:?}"),
    };
    let window = Window::new(10, ms(1000), ms(100))?;
    assert_eq!(
        refused(Limiter::new(store.clone(), window)?.throttle(&key, throttle).await),
        ThrottleError::Window(key.clone())
    );
    let unlimited = Limiter::new(store.clone(), "unlimited")?;
    assert_eq!(refused(unlimited.throttle(&key, throttle).await), ThrottleError::Unlimited(key.clone()));
    let once = Rule::try_from("5 once")?;
    assert_eq!(refused(store.throttle(&key, &once, throttle).await), ThrottleError::NeverRefills(key.clone()));
    assert_eq!(left(&world.decide(under(&key, "5 once")?).await?), (true, 4));
    assert!(store.throttle(&key, &once, Throttle::remaining(2)).await?);
    assert_eq!(left(&world.decide(under(&key, "5 once")?).await?), (true, 1));

    let taken = |result: Result<bool, Error>| match result {
        Err(Error::Take(error)) => error,
        other => panic!("{other:?}"),
    };
    let unknown_key = world.key();
    let unknown = store.throttle(&unknown_key, &Rule::Provisioned, throttle).await;
    assert_eq!(taken(unknown), TakeError::UnknownBucket(unknown_key.clone()));
    let unplanned = store.throttle(&unknown_key, &Rule::Plan(key.clone()), throttle).await;
    assert_eq!(taken(unplanned), TakeError::UnknownPlan { key: unknown_key.clone(), plan: Some(key.clone()) });
    assert_eq!(store.peek(&unknown_key).await?, None);
    store.create_bucket(&unknown_key, "5/s".parse()?).await?;
    assert_eq!(taken(store.throttle(&unknown_key, &once, throttle).await), TakeError::Conflict(unknown_key.clone()));
    Ok(())
}

pub async fn mode_off_ignores_throttles<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "10/s")?;
    let mode = |mode| Override { mode: Some(mode), ..Override::default() };
    world.store().set_override(take.key(), mode(Mode::Off)).await?;
    assert!(!lowered(world, &take, "10/s", Throttle::remaining(0)).await?);
    assert_eq!(world.store().peek(take.key()).await?, None, "it was made");
    world.store().set_override(take.key(), mode(Mode::Shadow)).await?;
    assert!(lowered(world, &take, "10/s", Throttle::remaining(0)).await?);
    assert_eq!(world.decide(take).await?.mode(), Mode::Shadow);
    Ok(())
}

pub async fn changed_limits_apply_before_a_throttle<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    assert_eq!(left(&world.decide(under(&key, "10/s")?.cost(4)).await?), (true, 6));
    let take = under(&key, "100/s burst 20")?;
    assert!(!lowered(world, &take, "100/s burst 20", Throttle::remaining(6)).await?);
    assert!(lowered(world, &take, "100/s burst 20", Throttle::retry_after(ms(30))).await?);
    let denied = world.decide(take).await?;
    assert_eq!((left(&denied), denied.retry_after(), denied.reset_after()), ((false, 0), Some(ms(30)), Some(ms(220))));
    Ok(())
}

pub async fn clock_set_back_does_not_extend_a_throttle<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(100_000).await?;
    let take = under(&world.key(), "10/s")?;
    assert!(lowered(world, &take, "10/s", Throttle::retry_after(ms(5000))).await?);
    world.at_ms(0).await?;
    assert_eq!(world.decide(take.clone()).await?.retry_after(), Some(ms(100)));
    world.at_ms(100_000).await?;
    assert!(lowered(world, &take, "10/s", Throttle::retry_after(ms(5000))).await?);
    // Here, the throttle itself detects that the clock was set back.
    world.at_ms(0).await?;
    assert!(!lowered(world, &take, "10/s", Throttle::remaining(0)).await?);
    assert_eq!(world.decide(take).await?.retry_after(), Some(ms(100)));
    Ok(())
}
