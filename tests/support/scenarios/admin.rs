//! Operations for operators: reads and changes.

use anyhow::Context;
use chrono::{DateTime, TimeDelta, Utc};
use tollgate::{
    Admin, Error, Key, Limiter, Mode, Quota, Rule, Store, Take, TakeError,
    admin::{AdminError, ExpectedOutcome, Origin, Override},
};

use super::{START, World, left, ms, under};

/// Milliseconds after the start of the scenarios' time, later than the host's clock, with which expiry times are compared, too.
pub(super) const LATER: i64 = 30 * 365 * 86_400_000;

pub(super) fn instant(ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(START) + TimeDelta::milliseconds(ms)
}

pub(super) fn of_plan(key: &Key, plan: &Key) -> Take {
    Take::from(key.clone()).rule(Rule::Plan(plan.clone()))
}

pub(super) fn longer(key: &Key, end: &str) -> Key {
    Key::try_from(format!("{key}{end}")).expect("short enough")
}

pub async fn a_peek_takes_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, key) = (world.store(), world.key());
    assert_eq!(store.peek(&key).await?, None);
    assert_eq!(left(&world.decide(under(&key, "10/h")?.cost(3)).await?), (true, 7));
    let level = store.peek(&key).await?.expect("its first request made it");
    assert_eq!((level.key(), level.quota(), level.plan()), (&key, "10/h".parse::<Quota>()?, None));
    assert_eq!((level.is_provisioned(), level.is_overridden()), (false, false));
    assert_eq!((level.available(), level.granted()), (7, 3));
    assert_eq!((level.full_at(), level.next_refill_at()), (Some(instant(3 * 360_000)), Some(instant(360_000))));
    assert_eq!(store.peek(&key).await?, Some(level));
    assert_eq!(left(&world.decide(under(&key, "10/h")?.cost(7)).await?), (true, 0));
    world.at_ms(3_600_000).await?;
    let full = store.peek(&key).await?.expect("nobody deleted it");
    assert_eq!((full.available(), full.full_at(), full.next_refill_at()), (10, None, None));
    Ok(())
}

/// A limiter that has a rule shows an unused bucket as full, as the first request would find it.
pub async fn limiter_peek_shows_an_unused_bucket_as_full<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, plan) = (world.store(), world.key());
    store.create_plan(&plan, "7/h".parse()?).await?;
    for (rule, capacity) in [(Rule::try_from("10/h")?, 10), (Rule::Plan(plan.clone()), 7)] {
        let limiter = world.limiter_builder().build(rule.clone())?.bind(world.key())?;
        let unused = limiter.peek().await?;
        assert_eq!((unused.available(), unused.granted(), unused.full_at()), (capacity, 0, None));
        assert_eq!(store.peek(limiter.key()).await?, None, "it was made by looking");
        assert_eq!(left(&limiter.allow_n(3).await?), (true, capacity.unsigned_abs() - 3));
        assert_eq!(Some(limiter.peek().await?), store.peek(limiter.key()).await?);
        assert_eq!(limiter.peek().await?.available(), capacity - 3);

        // A key with an override.
        let other = world.limiter_builder().build(rule)?.bind(world.key())?;
        let over = Override { quota: Some("2/h".parse()?), reason: "an offence".into(), ..Override::default() };
        store.set_override(other.key(), over).await?;
        let unused = other.peek().await?;
        assert_eq!((unused.available(), unused.is_overridden()), (2, true));
    }
    let refused = async |rule: Rule, key: &Key| {
        let peeked = world.limiter_builder().build(rule)?.peek(key).await;
        anyhow::Ok(peeked.expect_err("there is nothing to look at"))
    };
    let key = world.key();
    let error = refused(Rule::Provisioned, &key).await?;
    assert!(matches!(&error, AdminError::Store(Error::Take(TakeError::UnknownBucket(of))) if *of == key), "{error:?}");
    let error = refused(Rule::Plan(world.key()), &key).await?;
    assert!(
        matches!(&error, AdminError::Store(Error::Take(TakeError::UnknownPlan { key: of, .. })) if *of == key),
        "{error:?}"
    );
    let error = refused(Rule::try_from("10 in 60s at 5s")?, &key).await?;
    assert!(matches!(&error, AdminError::Window(of) if *of == key), "{error:?}");
    Ok(())
}

/// The level follows the limits that the next request will use, not those of the last one.
pub async fn limiter_peek_shows_what_the_next_request_finds<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, plan) = (world.store(), world.key());
    store.create_plan(&plan, "7/s".parse()?).await?;
    let limiter = world.limiter_builder().build("10/s")?.bind(world.key())?;
    let finds = async |available: i64, quota: &str, overridden: bool| {
        let (before, level) = (store.peek(limiter.key()).await?, limiter.peek().await?);
        let quota: Quota = quota.parse()?;
        assert_eq!((level.available(), level.quota(), level.is_overridden()), (available, quota, overridden));
        assert_eq!(store.peek(limiter.key()).await?, before, "it was changed by looking");
        assert_eq!(left(&limiter.allow().await?), (true, available.unsigned_abs() - 1), "under {quota}");
        assert_eq!(Some(limiter.peek().await?), store.peek(limiter.key()).await?, "under {quota}");
        anyhow::Ok(())
    };
    assert_eq!(left(&limiter.allow_n(8).await?), (true, 2));
    let rule = limiter.limiter();
    rule.set_rule("100/s burst 50")?;
    world.at_ms(250).await?;
    finds(4, "100/s burst 50", false).await?;
    world.at_ms(350).await?;
    finds(13, "100/s burst 50", false).await?;
    rule.set_rule("20/h burst 6")?;
    let level = limiter.peek().await?;
    assert_eq!((level.available(), level.full_at(), level.next_refill_at()), (6, None, None));
    finds(6, "20/h burst 6", false).await?;

    rule.set_rule(Rule::Plan(plan.clone()))?;
    let level = limiter.peek().await?;
    assert_eq!(level.plan(), Some(&plan));
    finds(5, "7/s", false).await?;
    world.plan(&plan, "3/s".parse()?, None).await?;
    finds(3, "3/s", false).await?;
    world.at_ms(10_000).await?;
    let over = Override { quota: Some("9/s".parse()?), reason: "a guest".into(), ..Override::default() };
    store.set_override(limiter.key(), over).await?;
    finds(3, "9/s", true).await?;
    world.at_ms(20_000).await?;
    assert!(store.clear_override(limiter.key()).await?);
    finds(3, "3/s", false).await?;
    // A peek with mode 'off' touches no bucket.
    world.plan(&plan, "1/s".parse()?, Some(Mode::Off)).await?;
    assert_eq!(Some(limiter.peek().await?), store.peek(limiter.key()).await?);
    world.plan(&plan, "1/s".parse()?, None).await?;
    finds(1, "1/s", false).await?;

    // A peek that fails touches no bucket either.
    let provisioned = world.key();
    world.create(&provisioned, "4/s".parse()?).await?;
    for rule in [Rule::try_from("2/s")?, Rule::Plan(plan)] {
        let limiter = world.limiter_builder().build(rule)?;
        assert_eq!(Some(limiter.peek(&provisioned).await?), store.peek(&provisioned).await?);
        assert!(limiter.allow(&provisioned).await.is_err());
    }
    Ok(())
}

pub async fn reset_fills_the_bucket_and_voids_earlier_receipts<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, key) = (world.store(), world.key());
    assert!(!store.reset(&key).await?);
    assert!(world.decide(under(&key, "10/h")?.cost(10)).await?.is_granted());
    let ahead = under(&key, "10/h")?.cost(4).max_wait(ms(3_600_000));
    let reservation = Limiter::new(store.clone(), "10/h")?.reserve_request(&ahead).await?;
    assert_eq!(store.peek(&key).await?.expect("it is there").available(), -4);
    assert!(store.reset(&key).await?);
    assert_eq!(left(&world.decide(under(&key, "10/h")?.cost(6)).await?), (true, 4));
    assert_eq!(reservation.cancel().await?, 0);
    assert_eq!(left(&world.decide(under(&key, "10/h")?.cost(4)).await?), (true, 0));
    Ok(())
}

pub async fn deleted_bucket_is_full_at_its_next_first_use<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, key) = (world.store(), world.key());
    assert!(!store.delete(&key).await?);
    assert!(world.decide(under(&key, "10/h")?.cost(10)).await?.is_granted());
    assert!(store.delete(&key).await?);
    assert_eq!(store.peek(&key).await?, None);
    assert_eq!(left(&world.decide(under(&key, "10/h")?.cost(10)).await?), (true, 0));
    store.create_bucket(&key, "5/h".parse()?).await?;
    assert!(store.delete(&key).await?);
    assert_eq!(store.take_one(&Take::from(key.clone())).await?, Err(TakeError::UnknownBucket(key)));
    Ok(())
}

pub async fn denials_are_summed_for_a_day_and_sorted<W: World>(world: &W) -> anyhow::Result<()> {
    let (store, hour) = (world.store(), 3_600_000);
    let (one, other) = (world.key(), world.key());
    // More denials than other cases count, because the cases share a database.
    let most = 1_000_000_000;
    let denials = async || {
        let all = store.most_denied(1000).await?;
        let ours = all.into_iter().filter(|denials| denials.key == one || denials.key == other);
        anyhow::Ok(ours.map(|denials| (denials.key, denials.denied, denials.last_denied_at)).collect::<Vec<_>>())
    };
    world.at_ms(0).await?;
    let counts = store.maintenance().context("it keeps buckets")?;
    counts.count_denials(&[]).await?;
    counts.count_denials(&[(one.clone(), most), (other.clone(), 2)]).await?;
    world.at_ms(hour).await?;
    counts.count_denials(&[(one.clone(), 3)]).await?;
    counts.count_denials(&[(other.clone(), 2 * most), (one.clone(), 4)]).await?;
    let ours = [(other.clone(), 2 * most + 2, instant(hour)), (one.clone(), most + 7, instant(hour))];
    assert_eq!(denials().await?, ours);
    assert_eq!(store.most_denied(1).await?.len(), 1);

    world.at_ms(24 * hour).await?;
    assert_eq!(denials().await?, [(other.clone(), 2 * most, instant(hour)), (one.clone(), 7, instant(hour))]);
    world.at_ms(26 * hour).await?;
    assert_eq!(denials().await?, []);
    // Sums do not overflow, no batch is too large, and 0 denials count as none.
    let mut many: Vec<(Key, u64)> = (0..1001).map(|n| (longer(&one, &format!("{n}")), 1)).collect();
    many.extend([(one.clone(), u64::MAX), (one.clone(), u64::MAX), (other.clone(), 0)]);
    counts.count_denials(&many).await?;
    assert_eq!(denials().await?, [(one, 2_000_000_000_000_000, instant(26 * hour))]);
    Ok(())
}

pub async fn plans_are_made_changed_listed_and_deleted<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, key, prefix) = (world.store(), world.key(), world.key());
    let names = ["a", "b", "c"].map(|end| longer(&prefix, end));
    for name in &names {
        store.create_plan(name, "10/h".parse()?).await?;
    }
    let page = store.plans(Some(&prefix), 2).await?;
    assert_eq!(page.iter().map(|plan| &plan.name).collect::<Vec<_>>(), [&names[0], &names[1]]);
    assert_eq!(store.plans(Some(&names[1]), 1).await?, [store.plan(&names[2]).await?.expect("made")]);

    assert_eq!(left(&world.decide(of_plan(&key, &names[0]).cost(8)).await?), (true, 2));
    store.create_plan(&names[0], "2 per 1s".parse()?).await?;
    let plan = store.plan(&names[0]).await?.expect("changed");
    assert_eq!((plan.quota, plan.mode), ("2 per 1s".parse()?, None));
    assert_eq!(left(&world.decide(of_plan(&key, &names[0]).cost(2)).await?), (true, 0));

    assert!(store.delete_plan(&names[0]).await?);
    assert!(!store.delete_plan(&names[0]).await?);
    assert_eq!(store.plan(&names[0]).await?, None);
    let outcome = store.take_one(&of_plan(&key, &names[0])).await?;
    assert_eq!(outcome.map(drop), Err(TakeError::UnknownPlan { key, plan: Some(names[0].clone()) }));
    Ok(())
}

pub async fn a_plans_mode_has_a_reason_and_ends<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(LATER).await?;
    let (store, key, plan) = (world.store(), world.key(), world.key());
    let until = Some(instant(LATER + 1500));
    assert!(!store.set_plan_mode(&plan, Some(Mode::Block), None, None).await?);
    store.create_plan(&plan, "10/h".parse()?).await?;
    assert!(store.set_plan_mode(&plan, Some(Mode::Block), Some("ticket 7"), until).await?);
    let setting = store.plan(&plan).await?.expect("made").mode.expect("set");
    assert_eq!((setting.mode, setting.reason.as_deref(), setting.until), (Mode::Block, Some("ticket 7"), until));
    let denied = world.decide(of_plan(&key, &plan)).await?;
    assert_eq!((denied.is_granted(), denied.mode(), denied.retry_after()), (false, Mode::Block, Some(ms(1500))));
    // A new quota does not change the mode.
    store.create_plan(&plan, "20/h".parse()?).await?;
    world.at_ms(LATER + 1499).await?;
    assert!(!world.decide(of_plan(&key, &plan)).await?.is_granted());
    world.at_ms(LATER + 1500).await?;
    // The bucket keeps the quota with which its first request created it.
    assert_eq!(left(&world.decide(of_plan(&key, &plan)).await?), (true, 9));
    assert!(store.set_plan_mode(&plan, None, None, None).await?);
    assert_eq!(store.plan(&plan).await?.expect("made").mode, None);
    Ok(())
}

pub async fn override_applies_until_it_expires<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(LATER).await?;
    let (store, key) = (world.store(), world.key());
    let take = || under(&key, "10/h");
    assert_eq!(left(&world.decide(take()?.cost(10)).await?), (true, 0));
    let expires_at = Some(instant(LATER + 10_500));
    let quota = Some("5/s".parse()?);
    let over = Override { quota, reason: "load test".to_owned(), expires_at, ..Override::default() };
    store.set_override(&key, over.clone()).await?;
    assert_eq!(left(&world.decide(take()?).await?), (false, 0));
    world.at_ms(LATER + 1000).await?;
    assert_eq!(left(&world.decide(take()?).await?), (true, 4));
    let level = store.peek(&key).await?.expect("it is there");
    assert_eq!((level.is_overridden(), Some(level.quota()), level.available()), (true, quota, 4));
    world.at_ms(LATER + 10_499).await?;
    assert_eq!(left(&world.decide(take()?).await?), (true, 4));
    // The bucket keeps its tokens, but follows its own quota again.
    world.at_ms(LATER + 10_500).await?;
    assert_eq!(left(&world.decide(take()?).await?), (true, 3));
    let level = store.peek(&key).await?.expect("it is there");
    assert_eq!((level.is_overridden(), level.quota(), level.available()), (false, "10/h".parse()?, 3));

    let over = Override { quota: None, mode: Some(Mode::Block), expires_at: None, ..over };
    store.set_override(&key, over).await?;
    assert_eq!(world.decide(take()?).await?.mode(), Mode::Block);
    assert!(store.clear_override(&key).await?);
    assert!(!store.clear_override(&key).await?);
    assert_eq!(left(&world.decide(take()?).await?), (true, 2));
    Ok(())
}

pub async fn invalid_override_or_mode_is_refused<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(LATER).await?;
    let (store, key) = (world.store(), world.key());
    let past = instant(-365 * 86_400_000);
    let refused = |result: Result<(), AdminError>| result.expect_err("it is not valid").to_string();
    let over = Override { mode: Some(Mode::Off), expires_at: Some(past), ..Override::default() };
    assert_eq!(refused(store.set_override(&key, over).await), AdminError::EndInPast(past).to_string());
    assert_eq!(refused(store.set_override(&key, Override::default()).await), AdminError::ChangesNothing.to_string());
    let over = Override { quota: Some(Quota::unlimited()), ..Override::default() };
    assert_eq!(refused(store.set_override(&key, over).await), AdminError::UnlimitedQuota.to_string());
    for reason in ["x".repeat(65_536), "a\0b".to_owned()] {
        let long = AdminError::InvalidReason(reason.len()).to_string();
        let over = Override { mode: Some(Mode::Off), reason: reason.clone(), ..Override::default() };
        assert_eq!(refused(store.set_override(&key, over).await), long);
        assert_eq!(refused(store.set_mode(Mode::Off, Some(&reason), None).await), long);
        assert_eq!(refused(store.set_plan_mode(&key, Some(Mode::Off), Some(&reason), None).await.map(drop)), long);
    }
    assert!(!store.clear_override(&key).await?);
    let longest = "\u{1F980}".repeat(65_532 / 4) + "xyz";
    let over = Override { mode: Some(Mode::Shadow), reason: longest.clone(), ..Override::default() };
    store.set_override(&key, over).await?;
    assert_eq!(store.explain(&key, None).await?.override_reason, Some(longest));
    assert!(store.clear_override(&key).await?);
    assert_eq!(
        refused(store.create_plan(&key, Quota::unlimited().into()).await),
        AdminError::UnlimitedQuota.to_string()
    );
    assert_eq!(refused(store.create_bucket(&key, Quota::unlimited()).await), AdminError::UnlimitedQuota.to_string());
    assert_eq!(refused(store.set_mode(Mode::Off, None, Some(past)).await), AdminError::EndInPast(past).to_string());
    let ended = store.set_plan_mode(&key, Some(Mode::Off), None, Some(past)).await;
    assert_eq!(refused(ended.map(drop)), AdminError::EndInPast(past).to_string());
    Ok(())
}

pub async fn an_end_that_no_clock_reaches_is_none<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, key, plan) = (world.store(), world.key(), world.key());
    let never = Some(DateTime::<Utc>::MAX_UTC);
    store.set_override(&key, Override { mode: Some(Mode::Block), expires_at: never, ..Override::default() }).await?;
    assert!(!world.decide(under(&key, "10/h")?).await?.is_granted());
    assert_eq!(store.explain(&key, None).await?.mode_until, None);
    store.create_plan(&plan, "10/h".parse()?).await?;
    assert!(store.set_plan_mode(&plan, Some(Mode::Shadow), None, never).await?);
    assert!(world.decide(of_plan(&world.key(), &plan)).await?.is_granted());
    Ok(())
}

pub async fn explain_shows_the_effective_limit_and_mode<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(LATER).await?;
    let (store, key, plan) = (world.store(), world.key(), world.key());
    let (ten, five): (Quota, Quota) = ("10/h".parse()?, "5/h".parse()?);

    let nothing = store.explain(&key, None).await?;
    assert_eq!((nothing.known, nothing.quota, nothing.available), (false, None, None));
    assert_eq!((nothing.mode, nothing.mode_from), (Mode::Enforce, None));
    assert_eq!((nothing.expected_outcome, nothing.retry_after), (ExpectedOutcome::UnknownBucket, None));
    assert_eq!(store.explain(&key, Some(&plan)).await?.expected_outcome, ExpectedOutcome::UnknownPlan);

    store.create_plan(&plan, ten.into()).await?;
    let first = store.explain(&key, Some(&plan)).await?;
    assert_eq!((first.quota, first.quota_from, first.plan.as_ref()), (Some(ten), Some(Origin::Plan), Some(&plan)));
    assert_eq!(
        (first.known, first.expected_outcome, first.retry_after),
        (false, ExpectedOutcome::Granted, Some(ms(0)))
    );
    assert_eq!(store.peek(&key).await?, None, "it was made by looking");

    let _ = world.decide(of_plan(&key, &plan).cost(10)).await?;
    let empty = store.explain(&key, None).await?;
    assert_eq!((empty.known, empty.quota_from, empty.plan.as_ref()), (true, Some(Origin::Plan), Some(&plan)));
    assert_eq!((empty.available, empty.expected_outcome), (Some(0), ExpectedOutcome::Denied));
    assert_eq!(empty.retry_after, Some(ms(360_000)));

    let until = Some(instant(LATER + 60_000));
    assert!(store.set_plan_mode(&plan, Some(Mode::Shadow), Some("trial"), None).await?);
    let shadow = store.explain(&key, None).await?;
    assert_eq!((shadow.mode, shadow.mode_from), (Mode::Shadow, Some(Origin::Plan)));
    assert_eq!((shadow.mode_reason.as_deref(), shadow.mode_until), (Some("trial"), None));
    assert_eq!(shadow.expected_outcome, ExpectedOutcome::Granted);

    let over = Override { quota: Some(five), mode: Some(Mode::Block), reason: "abuse".to_owned(), expires_at: until };
    store.set_override(&key, over.clone()).await?;
    let blocked = store.explain(&key, None).await?;
    assert_eq!((blocked.quota, blocked.quota_from), (Some(five), Some(Origin::Override)));
    assert_eq!((blocked.mode, blocked.mode_from), (Mode::Block, Some(Origin::Override)));
    assert_eq!((blocked.mode_reason.as_deref(), blocked.mode_until), (Some("abuse"), until));
    assert_eq!((blocked.override_reason.as_deref(), blocked.override_until), (Some("abuse"), until));
    assert_eq!((blocked.expected_outcome, blocked.retry_after), (ExpectedOutcome::Denied, Some(ms(60_000))));

    store.set_override(&key, Override { mode: Some(Mode::Off), ..over }).await?;
    let off = store.explain(&key, None).await?;
    assert_eq!((off.expected_outcome, off.retry_after), (ExpectedOutcome::Granted, Some(ms(0))));
    world.at_ms(LATER + 60_000).await?;
    let over = store.explain(&key, None).await?;
    assert_eq!((over.mode, over.quota_from, over.override_reason), (Mode::Shadow, Some(Origin::Plan), None));

    let own = world.key();
    store.create_bucket(&own, five).await?;
    let explained = store.explain(&own, None).await?;
    assert_eq!((explained.quota, explained.quota_from), (Some(five), Some(Origin::Bucket)));
    assert_eq!((explained.available, explained.expected_outcome), (Some(5), ExpectedOutcome::Granted));
    assert_eq!(store.explain(&own, Some(&plan)).await?.expected_outcome, ExpectedOutcome::Conflict);
    Ok(())
}
