//! Clients with a plan, and plans that change while in use.

use std::time::Duration;

use tollgate::{Admin, Decision, Key, Limit, Mode, Quota, Rule, Store, Take, TakeError, admin::Override};

use super::admin::{LATER, instant};
use super::{World, left, ms, under};

/// The bucket's clock starts later than the current time, because the clock was set back.
pub async fn bucket_created_in_the_future_grants_without_a_wait<W: World>(world: &W) -> anyhow::Result<()> {
    // A wait or another limit does not change the decision.
    for (wait, with_another) in [(0, false), (3_600_000, false), (0, true), (3_600_000, true)] {
        world.at_ms(0).await?;
        let (key, other) = (world.key(), world.key());
        world.create(&key, "10 once".parse()?).await?;
        assert_eq!(left(&world.decide(Take::from(key.clone()).cost(9)).await?), (true, 1));
        world.at_ms(-86_400_000).await?;
        world.create(&key, "5 per 1h".parse()?).await?;
        world.at_ms(-86_400_000 + 120_000).await?;
        let take = Take::from(key).cost(5).max_wait(ms(wait));
        let take = if with_another { take.and(other, Rule::try_from("5 per 1h")?) } else { take };
        let granted = world.decide(take).await?;
        assert_eq!((left(&granted), granted.wait()), ((true, 0), Duration::ZERO), "{wait} ms, {with_another}");
    }
    Ok(())
}

/// After the end of an override, the next request applies the bucket's own limits, even if they changed in the meantime.
pub async fn limits_set_after_an_override_apply_from_the_next_request<W: World>(world: &W) -> anyhow::Result<()> {
    for (number, expires) in (0..).zip([true, false]) {
        let from = LATER + number * 3_600_000;
        world.at_ms(from).await?;
        let key = world.key();
        world.create(&key, "10 once".parse()?).await?;
        let expires_at = expires.then(|| instant(from + 1000));
        let over = Override { quota: Some("5 once".parse()?), expires_at, ..Override::default() };
        world.store().set_override(&key, over).await?;
        assert_eq!(left(&world.decide(Take::from(key.clone())).await?), (true, 4));
        world.at_ms(from + 2000).await?;
        if !expires {
            assert!(world.store().clear_override(&key).await?);
        }
        world.create(&key, "10/s".parse()?).await?;
        world.at_ms(from + 60_000).await?;
        assert_eq!(left(&world.decide(Take::from(key.clone())).await?), (true, 3), "expired: {expires}");
        world.at_ms(from + 61_000).await?;
        assert_eq!(left(&world.decide(Take::from(key)).await?), (true, 9), "expired: {expires}");
    }
    Ok(())
}

/// The override's limits equal the bucket's own from the start, or after the bucket's own limits change.
pub async fn override_equal_to_the_own_limits_still_applies<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    for (own, meanwhile) in [("10/s", None), ("5/s", Some("10/s"))] {
        for beside in 0..3 {
            let (key, store) = (world.key(), world.store());
            let request = async || {
                let take = Take::from(key.clone());
                let takes = match beside {
                    0 => vec![take],
                    1 => vec![take.and(world.key(), Rule::try_from("99/s")?)],
                    _ => vec![take, under(&world.key(), "99/s")?],
                };
                let first = store.take(&takes).await?.swap_remove(0)?;
                let level = store.peek(&key).await?.expect("it was made");
                anyhow::Ok((first.each()[0].remaining(), level.quota().capacity(), level.is_overridden()))
            };
            world.create(&key, own.parse()?).await?;
            let over = Override { quota: Some("10/s".parse()?), ..Override::default() };
            store.set_override(&key, over).await?;
            let whole = own.parse::<Quota>()?.capacity();
            assert_eq!(request().await?, (Some(whole - 1), 10, true), "{own}, {beside}");
            if let Some(meanwhile) = meanwhile {
                world.create(&key, meanwhile.parse()?).await?;
            }
            world.create(&key, "2/s".parse()?).await?;
            assert_eq!(request().await?, (Some(whole - 2), 10, true), "{own}, {beside}");
            world.create(&key, "10/s".parse()?).await?;
            assert!(store.clear_override(&key).await?);
            assert_eq!(request().await?, (Some(whole - 3), 10, false), "{own}, {beside}");
            world.create(&key, "1/s".parse()?).await?;
            let level = store.peek(&key).await?.expect("it was made");
            assert_eq!(
                (level.available(), level.is_overridden()),
                (1, false),
                "{own}, {beside}: nothing else rules it"
            );
        }
    }
    Ok(())
}

/// A client with a plan.
struct Client<'a, W> {
    world: &'a W,
    plan: Key,
    key: Key,
}

impl<'a, W: World> Client<'a, W> {
    async fn of(world: &'a W, quota: &str) -> anyhow::Result<Self> {
        world.at_ms(0).await?;
        let client = Self { world, plan: world.key(), key: world.key() };
        client.plan(quota, None).await?;
        Ok(client)
    }

    async fn plan(&self, quota: &str, mode: Option<Mode>) -> anyhow::Result<()> {
        self.world.plan(&self.plan, quota.parse()?, mode).await
    }

    fn take(&self, cost: u64) -> Take {
        Take::from(self.key.clone()).rule(Rule::Plan(self.plan.clone())).cost(cost)
    }

    async fn request(&self, cost: u64) -> anyhow::Result<Decision> {
        self.world.decide(self.take(cost)).await
    }
}

pub async fn the_transcript_of_a_client_by_plan<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "10/s").await?;
    world.at_ms(300).await?;
    assert_eq!(left(&client.request(6).await?), (true, 4));
    world.at_ms(500).await?;
    assert_eq!(left(&client.request(5).await?), (true, 1));
    world.at_ms(1500).await?;
    assert_eq!(left(&client.request(10).await?), (true, 0));
    // A burst around a refill is limited to the capacity plus the refill.
    world.at_ms(1599).await?;
    assert_eq!(left(&client.request(1).await?), (false, 0));
    Ok(())
}

pub async fn larger_plan_applies_from_the_next_request<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "10/h").await?;
    assert_eq!(left(&client.request(10).await?), (true, 0));
    client.plan("1000/h", None).await?;
    assert_eq!(left(&client.request(1).await?), (false, 0));
    world.at_ms(3_600).await?;
    assert_eq!(left(&client.request(1).await?), (true, 0));
    world.at_ms(3_603_600).await?;
    assert_eq!(left(&client.request(1).await?), (true, 999));
    Ok(())
}

pub async fn smaller_plan_limits_tokens_to_its_capacity<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "100/h").await?;
    assert_eq!(left(&client.request(50).await?), (true, 50));
    client.plan("40/h", None).await?;
    assert_eq!(left(&client.request(1).await?), (true, 39));
    let beyond = world.store().take_one(&client.take(41)).await?;
    assert!(matches!(beyond, Err(TakeError::ExceedsCapacity { capacity: 40, .. })), "{beyond:?}");
    Ok(())
}

pub async fn faster_plan_ends_the_wait_at_the_old_rate<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "1/h").await?;
    assert_eq!(left(&client.request(1).await?), (true, 0));
    client.plan("100/s", None).await?;
    let denied = client.request(1).await?;
    assert_eq!((denied.is_granted(), denied.retry_after()), (false, Some(ms(10))));
    world.at_ms(10).await?;
    assert_eq!(left(&client.request(1).await?), (true, 0));
    Ok(())
}

pub async fn two_changes_without_a_request_count_as_one<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "100/h").await?;
    assert_eq!(left(&client.request(40).await?), (true, 60));
    client.plan("1/h", None).await?;
    client.plan("200/h", None).await?;
    assert_eq!(left(&client.request(10).await?), (true, 50));
    Ok(())
}

pub async fn client_moving_to_another_plan_keeps_its_tokens<W: World>(world: &W) -> anyhow::Result<()> {
    let free = Client::of(world, "10/h").await?;
    let paid = Client { world, plan: world.key(), key: free.key.clone() };
    paid.plan("1000/h", None).await?;
    assert_eq!(left(&free.request(3).await?), (true, 7));
    assert_eq!(left(&paid.request(2).await?), (true, 5));
    world.at_ms(3_600_000).await?;
    assert_eq!(left(&paid.request(1).await?), (true, 999));
    // A request without a plan uses the plan that the bucket follows.
    assert_eq!(left(&world.decide(Take::from(paid.key.clone())).await?), (true, 998));
    assert_eq!(left(&world.decide(under(&paid.key, "10/h")?).await?), (true, 9));
    Ok(())
}

pub async fn override_with_calendar_refill_follows_the_calendar<W: World>(world: &W) -> anyhow::Result<()> {
    let (key, hour) = (world.key(), Duration::from_hours(1));
    world.at_ms(17 * 60_000).await?;
    world.create(&key, Quota::interval(9, hour)?).await?;
    let over = |quota| Override { quota: Some(quota), ..Override::default() };
    world.store().set_override(&key, over(Quota::interval(9, hour)?)).await?;
    assert_eq!(left(&world.decide(Take::from(key.clone()).cost(9)).await?), (true, 0));
    world.store().set_override(&key, over(Quota::calendar(9, hour)?)).await?;
    assert_eq!(left(&world.decide(Take::from(key.clone())).await?), (false, 0));
    world.at_ms(60 * 60_000).await?;
    assert_eq!(left(&world.decide(Take::from(key)).await?), (true, 8));
    Ok(())
}

/// The override's limits apply until the override ends, and then the other plan's.
pub async fn client_moves_to_another_plan_during_an_override<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "10/h").await?;
    assert_eq!(left(&client.request(1).await?), (true, 9));
    let over = Override { quota: Some("20/h".parse()?), ..Override::default() };
    world.store().set_override(&client.key, over).await?;
    let other = Client { plan: world.key(), key: client.key.clone(), ..client };
    other.plan("5/h", None).await?;
    assert_eq!(left(&other.request(1).await?), (true, 8));
    let level = world.store().peek(&client.key).await?;
    assert_eq!(level.as_ref().map(|level| (level.plan(), level.is_overridden())), Some((Some(&other.plan), true)));
    assert!(world.store().clear_override(&client.key).await?);
    let unnamed = world.decide(Take::from(client.key.clone())).await?;
    assert_eq!(left(&unnamed), (true, 4));
    Ok(())
}

pub async fn services_alternating_quotas_stay_within_the_larger<W: World>(world: &W) -> anyhow::Result<()> {
    let key = world.key();
    let mut granted = Vec::new();
    for step in 0..200 {
        world.at_ms(step * 10).await?;
        let quota = if step % 2 == 0 { "10/s burst 20" } else { "50/s burst 5" };
        for _ in 0..3 {
            granted.extend(world.decide(under(&key, quota)?).await?.is_granted().then_some(step * 10));
        }
    }
    assert!(granted.len() >= 20, "{granted:?}");
    // In each window of time, the larger burst plus the larger rate is the maximum.
    for (first, from) in granted.iter().enumerate() {
        for (last, to) in granted.iter().enumerate().skip(first) {
            let tokens = i64::try_from(last - first)? + 1;
            assert!(tokens * 20 <= 20 * 20 + (to - from), "{tokens} from {from} to {to} ms");
        }
    }
    Ok(())
}

pub async fn unknown_plan_is_a_separate_error<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (key, unknown_plan) = (world.key(), world.key());
    let limiter = world.limiter_builder().build(Rule::Plan(unknown_plan.clone()))?;
    let error = limiter.allow(&key).await.expect_err("the plan does not exist");
    assert!(error.to_string().starts_with(&format!("there is no plan '{unknown_plan}'")), "{error}");
    assert!(matches!(&error, tollgate::Error::Take(TakeError::UnknownPlan { key: of, .. }) if *of == key), "{error:?}");
    assert!(matches!(world.store().take_one(&Take::from(key)).await?, Err(TakeError::UnknownBucket(_))));
    Ok(())
}

pub async fn plan_named_for_a_provisioned_bucket_is_an_error<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "10/h").await?;
    world.create(&client.key, Quota::interval(5, Duration::from_hours(1))?).await?;
    let outcome = world.store().take_one(&client.take(1)).await?;
    assert_eq!(outcome.map(drop), Err(TakeError::Conflict(client.key.clone())));
    assert_eq!(left(&world.decide(Take::from(client.key.clone())).await?), (true, 4));
    Ok(())
}

pub async fn client_with_its_own_quota_leaves_its_plan(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (key, plan) = (world.key(), world.key());
    world.plan(&plan, "10/s".parse()?, None).await?;
    let by_plan = Take::from(key.clone()).rule(Rule::Plan(plan.clone()));
    assert_eq!(left(&world.decide(by_plan.clone().cost(4)).await?), (true, 6));
    world.create(&key, "5 per 1h".parse()?).await?;
    assert_eq!(left(&world.decide(Take::from(key.clone())).await?), (true, 4));
    let error = world.store().take_one(&by_plan).await?.expect_err("it has another limit");
    assert_eq!(error, TakeError::Conflict(key));
    Ok(())
}

pub async fn plan_in_shadow_grants_requests_it_would_deny<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "2/h").await?;
    client.plan("2/h", Some(Mode::Shadow)).await?;
    let granted = client.request(2).await?;
    assert_eq!((left(&granted), granted.mode()), ((true, 0), Mode::Enforce));
    let passed = client.request(1).await?;
    assert_eq!((left(&passed), passed.mode(), passed.wait()), ((true, 0), Mode::Shadow, ms(0)));
    assert_eq!(passed.retry_after(), Some(ms(1_800_000)));
    client.plan("2/h", None).await?;
    let denied = client.request(1).await?;
    assert_eq!((left(&denied), denied.retry_after()), ((false, 0), Some(ms(1_800_000))));
    Ok(())
}

/// Shadow mode is a trial: it shows which keys would have been denied, and how often.
pub async fn shadow_grants_are_counted_by_key<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, trial, other) = (world.store(), world.key(), world.key());
    world.plan(&trial, "2/h".parse()?, Some(Mode::Shadow)).await?;
    let of_plan = Rule::Plan(trial.clone());
    let limiter = world.limiter_builder().count_denials(10).build(of_plan.clone())?;
    let ours = [world.key(), world.key(), world.key()];
    let [alone, among_others, window] = &ours;
    for n in 0..5 {
        let decision = limiter.allow(alone).await?;
        assert_eq!(decision.mode(), if n < 2 { Mode::Enforce } else { Mode::Shadow });
        // The other limit decides these requests, because it has tokens for fewer. It denies from the fourth one on.
        let take = limiter.request(other.clone())?.rule("6/h".try_into()?).cost(2);
        let take = take.and_limit(Limit::new(among_others.clone(), of_plan.clone()).cost(1));
        let _ = limiter.decide(&take).await?;
    }
    store.set_override(window, Override { mode: Some(Mode::Shadow), ..Override::default() }).await?;
    for _ in 0..5 {
        let take = Take::from(window.clone()).rule("2 in 60s at 5s".try_into()?);
        assert!(limiter.decide(&take).await?.is_granted());
    }
    limiter.close().await?;
    let denials = store.most_denied(100_000).await?;
    let ours =
        ours.iter().chain([&other]).map(|key| denials.iter().find(|count| count.key == *key).map(|count| count.denied));
    assert_eq!(ours.collect::<Vec<_>>(), [Some(3), Some(1), Some(3), Some(2)]);
    Ok(())
}

pub async fn plan_with_mode_off_touches_no_bucket<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "2/h").await?;
    client.plan("2/h", Some(Mode::Off)).await?;
    for _ in 0..3 {
        let passed = client.request(2).await?;
        assert_eq!((left(&passed), passed.mode()), ((true, 2), Mode::Off));
    }
    assert!(matches!(world.store().take_one(&Take::from(client.key.clone())).await?, Err(TakeError::UnknownBucket(_))));
    client.plan("2/h", Some(Mode::Enforce)).await?;
    assert_eq!(left(&client.request(2).await?), (true, 0));
    Ok(())
}

pub async fn limits_changed_while_off_apply_at_once<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (key, store) = (world.key(), world.store());
    world.create(&key, "10/s".parse()?).await?;
    assert_eq!(left(&world.decide(Take::from(key.clone()).cost(10)).await?), (true, 0));
    store.set_override(&key, Override { mode: Some(Mode::Off), ..Override::default() }).await?;
    world.at_ms(500).await?;
    world.create(&key, "1/s burst 4".parse()?).await?;
    let level = store.peek(&key).await?.expect("it was made");
    assert_eq!((level.quota().capacity(), level.available()), (4, 4), "of the five that had come");
    world.create(&key, "1/s burst 20".parse()?).await?;
    world.at_ms(2500).await?;
    assert!(store.clear_override(&key).await?);
    assert_eq!(left(&world.decide(Take::from(key)).await?), (true, 5), "and two more at the new rate");
    Ok(())
}

pub async fn plan_with_mode_block_denies_everything<W: World>(world: &W) -> anyhow::Result<()> {
    let client = Client::of(world, "2/h").await?;
    client.plan("2/h", Some(Mode::Block)).await?;
    let denied = client.request(1).await?;
    assert_eq!((left(&denied), denied.mode(), denied.retry_after()), ((false, 2), Mode::Block, None));
    client.plan("2/h", None).await?;
    assert_eq!(left(&client.request(1).await?), (true, 1));
    Ok(())
}

pub async fn new_bucket_is_full_under_the_effective_limits<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, key, plan) = (world.store(), world.key(), world.key());
    store.create_plan(&plan, "2 per 1h".parse()?).await?;
    let of_plan = |cost| Take::from(key.clone()).rule(Rule::Plan(plan.clone())).cost(cost);
    let uses_all_of = async |capacity: u64| {
        assert!(store.reset(&key).await?);
        let level = store.peek(&key).await?.expect("it is there");
        assert_eq!((level.available().unsigned_abs(), level.quota().capacity()), (capacity, capacity));
        assert_eq!(left(&world.decide(of_plan(capacity)).await?), (true, 0));
        anyhow::Ok(())
    };
    assert_eq!(left(&world.decide(of_plan(2)).await?), (true, 0));
    uses_all_of(2).await?;
    store.create_plan(&plan, "50 per 1h".parse()?).await?;
    uses_all_of(50).await?;
    store.set_override(&key, Override { quota: Some("1000/s".parse()?), ..Override::default() }).await?;
    uses_all_of(1000).await?;
    // The override is removed after the plan has changed, too.
    store.create_plan(&plan, "7 per 1h".parse()?).await?;
    assert!(store.clear_override(&key).await?);
    uses_all_of(7).await?;
    // A bucket whose plan was deleted keeps its limits.
    assert!(store.delete_plan(&plan).await?);
    assert!(store.reset(&key).await?);
    assert_eq!(store.peek(&key).await?.expect("it is there").available(), 7);
    Ok(())
}
