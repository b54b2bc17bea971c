//! Several limits of one key: of a plan, of the code, and of a request.

use tollgate::model::{LimitName, Limits};
use tollgate::{
    Adjusted, Adjustment, Admin, Decision, Error, Key, Limit, Limiter, Mode, Rule, Store, Take, TakeError,
    admin::AdminError, admin::Override,
};
use uuid::Uuid;

use super::{World, left, ms};

pub async fn two_limits_of_one_key_count_separately<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    let take = |cost| {
        let take = Take::from(key.clone()).rule(Rule::try_from("10 once")?).cost(cost);
        Ok::<_, anyhow::Error>(take.and(key.clone(), Rule::try_from("4 once")?))
    };
    let granted = world.decide(take(3)?).await?;
    assert_eq!((left(&granted), granted.limit_index()), ((true, 1), 1));
    assert_eq!(granted.each().iter().map(left).collect::<Vec<_>>(), [(true, 7), (true, 1)]);
    let denied = world.decide(take(2)?).await?;
    assert_eq!((left(&denied), denied.limit_index(), denied.limit_name()), ((false, 1), 1, None));
    assert_eq!(available(world, &key).await?, Some(7), "the denied request took nothing");
    Ok(())
}

pub async fn a_plan_of_several_limits_takes_from_all_or_none<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (plan, user) = (world.key(), world.key());
    world.store().create_plan(&plan, "10/s burst 20; day: 24/d; month: 100 once".parse()?).await?;
    let limiter = world.limiter_builder().build(Rule::Plan(plan.clone()))?;
    let granted = limiter.allow_n(&user, 18).await?;
    assert_eq!((left(&granted), granted.limit_index(), granted.limit_name()), ((true, 2), 0, None));
    let each: Vec<_> =
        granted.each().iter().map(|one| (one.limit_name(), one.remaining(), one.limit_index())).collect();
    assert_eq!(each, [(None, Some(2), 0), (Some("day"), Some(6), 0), (Some("month"), Some(82), 0)]);

    world.at_ms(1000).await?;
    let denied = limiter.allow_n(&user, 7).await?;
    assert_eq!((left(&denied), denied.limit_name()), ((false, 6), Some("day")));
    let daily = user.limit(&LimitName::try_from("day")?);
    assert_eq!(denied.bucket(), Some(&daily));
    assert_eq!(available(world, &user).await?, Some(12), "the denied request took nothing");

    // The same request to the store itself, in a batch, and under an id.
    let take = Take::from(user.clone()).rule(Rule::Plan(plan.clone()));
    let id = Uuid::new_v4();
    let takes = [take.clone().cost(7), take.clone(), take.clone().id(id, ms(1000)), take.clone().id(id, ms(1000))];
    let granted: Vec<bool> = world
        .store()
        .take(&takes)
        .await?
        .into_iter()
        .map(|one| Ok(one?.is_granted()))
        .collect::<Result<_, TakeError>>()?;
    assert_eq!((granted, available(world, &daily).await?), (vec![false, true, true, true], Some(4)));

    // Each limit is refunded.
    let reservation = limiter.reserve_request(&take.cost(2).refundable()).await?;
    assert_eq!((reservation.receipts().len(), reservation.refund(2).await?), (3, 2));
    assert_eq!(available(world, &daily).await?, Some(4));
    let levels = limiter.peek_each(&Limit::new(user.clone(), Rule::Plan(plan))).await?;
    assert_eq!(levels.iter().map(tollgate::admin::BucketLevel::available).collect::<Vec<_>>(), [10, 4, 80]);
    assert_eq!(limiter.peek(&user).await?.available(), 4);
    Ok(())
}

pub async fn one_limit_of_a_plan_has_its_own_override_and_mode<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (plan, user, store) = (world.key(), world.key(), world.store());
    let day = LimitName::try_from("day")?;
    store.create_plan(&plan, "10 once; day: 3 once".parse()?).await?;
    let limiter = world.limiter_builder().build(Rule::Plan(plan.clone()))?;
    assert!(limiter.allow_n(&user, 3).await?.is_granted());
    assert!(!limiter.allow(&user).await?.is_granted());

    store.set_override(&user.limit(&day), Override { quota: Some("5 once".parse()?), ..Override::default() }).await?;
    assert_eq!(left(&limiter.allow(&world.key()).await?), (true, 2), "another key");
    assert!(store.clear_override(&user.limit(&day)).await?);
    assert!(store.set_plan_mode(&plan.limit(&day), Some(Mode::Shadow), None, None).await?);
    let passed = limiter.allow(&user).await?;
    assert_eq!(passed.each().iter().map(Decision::mode).collect::<Vec<_>>(), [Mode::Enforce, Mode::Shadow]);
    assert_eq!((passed.is_granted(), available(world, &user).await?), (true, Some(6)));

    // The mode of the plan is that of all of its limits.
    assert!(store.set_plan_mode(&plan, Some(Mode::Block), None, None).await?);
    let modes: Vec<_> = limiter.allow(&user).await?.each().iter().map(Decision::mode).collect();
    assert_eq!(modes, [Mode::Block; 2]);
    // A new limit has the mode of the first one.
    store.create_plan(&plan, "10 once; day: 3 once; hour: 1 once".parse()?).await?;
    let hour = store.plan(&plan.limit(&LimitName::try_from("hour")?)).await?.expect("it was created");
    assert_eq!(hour.mode.map(|setting| setting.mode), Some(Mode::Block));
    Ok(())
}

pub async fn a_plan_gains_and_loses_limits<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (plan, user, store) = (world.key(), world.key(), world.store());
    // Another store would know of a change within a second.
    let limiter = Limiter::builder(store.clone()).without_deny_cache().without_sweep();
    let limiter = limiter.build(Rule::Plan(plan.clone()))?;
    for (limits, granted) in [
        ("9 once", vec![Some(8)]),
        ("9 once; b: 5 once; a: 3 once", vec![Some(7), Some(4), Some(2)]),
        ("first: 9 once; a: 3 once", vec![Some(6), Some(1)]),
    ] {
        store.create_plan(&plan, limits.parse()?).await?;
        assert_eq!(limiter.allow(&user).await?.each().iter().map(Decision::remaining).collect::<Vec<_>>(), granted);
    }
    // Other cases have plans, too. None of their names lies between `before` and the plan.
    let before = Key::try_from(&plan.as_str()[..plan.as_str().len() - 1])?;
    let rows = store.plans(Some(&before), 3).await?;
    let rows: Vec<_> = rows
        .iter()
        .filter(|row| row.name.without_limit() == plan)
        .map(|row| row.limit.as_ref().map(LimitName::as_str))
        .collect();
    assert_eq!(rows, [Some("first"), Some("a")]);
    // Another process removes a limit, which the limiter still knows.
    world.store().create_plan(&plan, "first: 9 once".parse()?).await?;
    assert_eq!(left(&limiter.allow(&user).await?), (true, 5));
    assert!(store.delete_plan(&plan).await?);
    assert!(!store.delete_plan(&plan).await?);
    assert!(limiter.allow(&user).await.is_err());
    assert_eq!(store.plan(&plan.limit(&LimitName::try_from("a")?)).await?, None);
    Ok(())
}

pub async fn a_limit_counts_a_cost_of_its_own<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (plan, account, tokens) = (world.key(), world.key(), LimitName::try_from("tokens")?);
    let limits: Limits = "requests: 60 once; tokens: 40000 once cost tokens".parse()?;
    world.store().create_plan(&plan, limits.clone()).await?;
    for (number, rule) in [Rule::Plan(plan), Rule::Limits(limits)].into_iter().enumerate() {
        let limiter = world.limiter_builder().build(rule)?;
        let account = Key::try_from(format!("{account}{number}"))?;
        let call = limiter.request(&account)?.cost_of(tokens.clone(), 39_000);
        let granted = limiter.decide(&call).await?;
        assert_eq!(granted.each().iter().map(Decision::remaining).collect::<Vec<_>>(), [Some(59), Some(1000)]);
        let denied = limiter.decide(&call).await?;
        assert_eq!((denied.is_granted(), denied.limit_name()), (false, Some("tokens")));
        let missing = limiter.allow(&account).await.map(drop);
        assert!(matches!(missing, Err(Error::Take(TakeError::MissingCost { .. }))), "{missing:?}");
        let unknown = limiter.decide(&call.clone().cost_of(LimitName::try_from("bytes")?, 1)).await.map(drop);
        assert!(matches!(unknown, Err(Error::Take(TakeError::UnknownCost(_)))), "{unknown:?}");
        assert_eq!(available(world, &account).await?, Some(59), "nothing was taken");
    }
    // As the only limit, too, and beside a cost of the request's own.
    let only = world.limiter_builder().build(Rule::try_from("40000 once cost tokens")?)?;
    let account = world.key();
    let own = only.request_for(Limit::new(account.clone(), only.rule()).cost(5));
    for refused in
        [only.allow(&account).await.map(drop), only.charge(&account, 5).await, only.decide(&own).await.map(drop)]
    {
        assert!(matches!(refused, Err(Error::Take(TakeError::MissingCost { .. }))), "{refused:?}");
    }
    assert_eq!(left(&only.decide(&only.request(&account)?.cost_of(tokens, 7)).await?), (true, 39_993));
    Ok(())
}

pub async fn invalid_limits_of_a_plan_are_errors<W: World>(world: &W) -> anyhow::Result<()> {
    let (plan, store) = (world.key(), world.store());
    let unnamed = store.create_plan(&plan, "9 once; 5 once".parse()?).await;
    assert!(matches!(unnamed, Err(AdminError::UnnamedLimit)), "{unnamed:?}");
    assert_eq!(store.plan(&plan).await?, None);
    let long = Key::try_from("k".repeat(253))?;
    let too_long = store.create_plan(&long, "9 once; day: 5 once".parse()?).await;
    assert!(too_long.is_err());
    store.create_plan(&plan, "9 once; day: 5 once".parse()?).await?;
    let take = Take::from(long.clone()).rule(Rule::Plan(plan));
    assert_eq!(store.take_one(&take).await?.map(drop), Err(TakeError::LimitKeyTooLong(long)));
    for text in ["day: 5 once; day: 6 once", "9: 5 once", ": 5 once", "a b: 5 once", "5 once cost", "5 once; "] {
        assert!(text.parse::<Limits>().is_err(), "{text}");
    }
    assert!(vec!["1/s"; 17].join(";").parse::<Limits>().is_err());
    Ok(())
}

/// Also by a batch, of a bucket that does not exist yet, and of each limit that counts the cost.
pub async fn a_charge_takes_more_than_the_bucket_holds<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (plan, user, tokens) = (world.key(), world.key(), LimitName::try_from("tokens")?);
    let limiter = world.limiter_builder().build(Rule::try_from("10/s")?)?;
    limiter.charge(&user, 25).await?;
    assert_eq!(available(world, &user).await?, Some(-15));
    world.at_ms(1500).await?;
    assert!(!limiter.allow(&user).await?.is_granted());
    world.at_ms(1600).await?;
    assert_eq!(left(&limiter.allow(&user).await?), (true, 0));
    assert_eq!(world.store().peek(&user).await?.map(|level| level.granted()), Some(26));

    // Once for an id.
    let once = limiter.request(&user)?.cost(3).id(Uuid::new_v4(), ms(1000));
    assert_eq!((limiter.charge_request(&once).await?, limiter.charge_request(&once).await?), (true, false));
    let id = Uuid::new_v4();
    let charges = [(&user, 2), (&user, 2), (&world.key(), 1)]
        .map(|(key, tokens)| Adjustment::charge_once(id, key.clone(), tokens));
    let results = world.store().adjust(&charges).await?;
    assert_eq!(results[..2], [Ok(Adjusted::Done(-2)), Ok(Adjusted::Repeated)]);
    assert!(matches!(results[2], Err(TakeError::UnknownBucket(_))));
    assert_eq!(available(world, &user).await?, Some(-5));
    // The id of a granted request belongs to the request.
    world.at_ms(3000).await?;
    let request = limiter.request(&user)?.id(Uuid::new_v4(), ms(9000));
    assert!(limiter.decide(&request).await?.is_granted());
    let reused = limiter.charge_request(&request).await;
    assert!(matches!(reused, Err(Error::Take(TakeError::IdReused(_)))), "{reused:?}");

    // A quota that never refills is empty, and counts all tokens.
    let spent = world.key();
    world.create(&spent, "10 once".parse()?).await?;
    let provisioned = world.limiter_builder().build(Rule::Provisioned)?;
    provisioned.charge(&spent, 15).await?;
    assert_eq!(world.store().peek(&spent).await?.map(|level| (level.available(), level.granted())), Some((0, 15)));
    assert!(provisioned.charge(world.key(), 1).await.is_err(), "there is no such bucket");

    world.store().create_plan(&plan, "9 once; day: 90/d; tokens: 900/d cost tokens".parse()?).await?;
    let (planned, user) = (world.limiter_builder().build(Rule::Plan(plan))?, world.key());
    planned.charge(&user, 4).await?;
    planned.charge_request(&planned.request(&user)?.cost_of(tokens.clone(), 1000)).await?;
    let buckets = [user.clone(), user.limit(&LimitName::try_from("day")?), user.limit(&tokens)];
    let mut levels = Vec::new();
    for bucket in &buckets {
        levels.extend(available(world, bucket).await?);
    }
    assert_eq!(levels, [5, 86, -100]);
    for rule in [Rule::try_from("10 in 60s at 5s")?, Rule::try_from("unlimited")?] {
        let answer = world.limiter_builder().build(rule)?.charge(&user, 1).await;
        assert!(matches!(answer, Err(Error::Take(TakeError::NothingToCharge(_)))), "{answer:?}");
    }
    assert!(matches!(limiter.charge(&user, 0).await, Err(Error::Take(TakeError::ZeroCost))));
    Ok(())
}

async fn available<W: World>(world: &W, key: &Key) -> anyhow::Result<Option<i64>> {
    Ok(world.store().peek(key).await?.map(|level| level.available()))
}
