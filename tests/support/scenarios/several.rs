//! Requests with several limits.

use tollgate::{
    Adjusted, Admin, Decision, Error, Key, Limit, Mode, Quota, Receipt, Rule, Store, Take, TakeError, admin::Override,
};
use uuid::Uuid;

use super::{World, left, ms, under};

pub async fn several_limits_are_taken_all_or_none<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (user, tenant, everybody) = (world.key(), world.key(), world.key());
    world.create(&everybody, "100/s".parse()?).await?;
    let take = |cost| {
        Ok::<_, anyhow::Error>(
            under(&user, "10/s")?
                .and(tenant.clone(), Rule::try_from("12 per calendar 1d")?)
                .and(everybody.clone(), Rule::Provisioned)
                .cost(cost),
        )
    };
    let granted = world.decide(take(8)?).await?;
    assert_eq!((left(&granted), granted.limit_index()), ((true, 2), 0));
    let denied = world.decide(take(5)?).await?;
    assert!(!denied.is_granted());
    world.at_ms(1000).await?;
    // The denied request took nothing from the user's ten or the shared hundred.
    let granted = world.decide(take(4)?).await?;
    assert_eq!((left(&granted), granted.limit_index()), ((true, 0), 1));
    assert_eq!(left(&world.decide(under(&user, "10/s")?).await?), (true, 5));
    assert_eq!(left(&world.decide(Take::from(everybody.clone())).await?), (true, 95));
    Ok(())
}

/// A call decides some requests in a batch and others one by one. Each answer shows exactly what the earlier requests took.
pub async fn batch_answers_show_tokens_left_by_earlier_requests<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let [overridden, off, shared, scarce, empty, other] = std::array::from_fn(|_| world.key());
    for (key, tokens) in [(&overridden, 9), (&off, 9), (&shared, 10), (&scarce, 1), (&empty, 1), (&other, 9)] {
        world.create(key, Quota::once(tokens)?).await?;
    }
    world.store().set_override(&overridden, Override { quota: Some("8 once".parse()?), ..Override::default() }).await?;
    world.store().set_override(&off, Override { mode: Some(Mode::Off), ..Override::default() }).await?;
    assert!(world.decide(Take::from(empty.clone())).await?.is_granted());
    let both = |one: &Key, two: &Key, cost| Take::from(one.clone()).and(two.clone(), Rule::Provisioned).cost(cost);
    let takes = [
        both(&shared, &overridden, 2),
        both(&shared, &off, 1),
        both(&shared, &other, 1),
        both(&shared, &empty, 1),
        both(&scarce, &other, 1),
        both(&scarce, &other, 1),
        both(&scarce, &empty, 1),
        both(&shared, &other, 4),
    ];
    let mut shown = Vec::new();
    for outcome in world.store().take(&takes).await? {
        shown.push(outcome?.each().iter().map(left).collect::<Vec<_>>());
    }
    let expected = [
        [(true, 8), (true, 6)],
        [(true, 7), (true, 9)],
        [(true, 6), (true, 8)],
        [(true, 6), (false, 0)],
        [(true, 0), (true, 7)],
        [(false, 0), (true, 7)],
        [(false, 0), (false, 0)],
        [(true, 2), (true, 3)],
    ];
    assert_eq!(shown, expected);
    Ok(())
}

/// The largest number of requests in one database call.
pub async fn full_call_is_decided_to_its_last_request<W: World>(world: &W) -> anyhow::Result<()> {
    let cases = [
        (100, Some("1 once"), Some(false)),
        (63, Some("9 once"), Some(false)),
        (100, None, None),
        (64, Some("9 once"), Some(true)),
    ];
    for (room, quota_of_last, is_granted) in cases {
        world.at_ms(0).await?;
        let (shared, other) = (world.key(), world.key());
        world.create(&shared, Quota::once(room)?).await?;
        if let Some(quota) = quota_of_last {
            world.create(&other, quota.parse()?).await?;
            assert!(world.decide(Take::from(other.clone())).await?.is_granted());
        }
        let mut takes = Vec::new();
        for _ in 0..63 {
            takes.push(Take::from(shared.clone()).and(world.key(), Rule::try_from("1/h")?));
        }
        takes.push(Take::from(shared.clone()).and(other, Rule::Provisioned));
        let mut outcomes = world.store().take(&takes).await?;
        let last = outcomes.pop().expect("an answer to each").ok().map(|decision| decision.is_granted());
        assert_eq!(last, is_granted, "{room} tokens, and {quota_of_last:?}");
        for outcome in outcomes {
            assert!(outcome?.is_granted(), "{room} tokens, and {quota_of_last:?}");
        }
        let left = world.store().peek(&shared).await?.map(|level| level.available());
        assert_eq!(left, Some(i64::try_from(room)? - 63 - i64::from(last == Some(true))), "{quota_of_last:?}");
    }
    Ok(())
}

pub async fn decision_names_the_limit_with_the_longest_wait<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let keys = [world.key(), world.key(), world.key()];
    let take = || {
        Ok::<_, anyhow::Error>(
            under(&keys[0], "1/s")?
                .and(keys[1].clone(), Rule::try_from("1/min")?)
                .and(keys[2].clone(), Rule::try_from("5/h")?),
        )
    };
    assert!(world.decide(take()?).await?.is_granted());
    let denied = world.decide(take()?).await?;
    assert_eq!((denied.is_granted(), denied.limit_index(), denied.retry_after()), (false, 1, Some(ms(60_000))));
    world.at_ms(60_000).await?;
    assert!(world.decide(take()?).await?.is_granted());
    Ok(())
}

pub async fn any_number_of_limits_is_decided_together<W: World>(world: &W) -> anyhow::Result<()> {
    for count in [2, 20, 60] {
        world.at_ms(0).await?;
        let scarce = count - 2;
        let mut limits = Vec::new();
        for place in 0..count {
            let (key, quota) = (world.key(), if place == scarce { "6/h" } else { "100 once" });
            let is_made = place % 2 == 0;
            if is_made {
                world.create(&key, quota.parse()?).await?;
            }
            limits.push((key, if is_made { Rule::Provisioned } else { Rule::try_from(quota)? }));
        }
        let first = Take::from(limits[0].0.clone()).rule(limits[0].1.clone());
        let all = limits[1..].iter().cloned().fold(first, |take, (key, rule)| take.and(key, rule)).cost(2);

        let granted = world.decide(all.clone()).await?;
        assert_eq!((left(&granted), granted.limit_index()), ((true, 4), scarce), "of {count}");
        // A retry with the id is charged once.
        let once = all.clone().id(Uuid::new_v4(), ms(3_600_000));
        for _ in 0..2 {
            let granted = world.decide(once.clone()).await?;
            assert_eq!((left(&granted), granted.limit_index()), ((true, 2), scarce), "of {count}");
        }
        let denied = world.decide(all.clone().cost(3)).await?;
        assert_eq!((left(&denied), denied.limit_index()), ((false, 2), scarce), "of {count}");
        assert_eq!(denied.retry_after(), Some(ms(600_000)), "of {count}");
        let waits = world.decide(all.clone().cost(3).max_wait(ms(600_000))).await?;
        assert_eq!((waits.is_granted(), waits.wait()), (true, ms(600_000)), "of {count}");
        // The denied request took nothing from any bucket.
        for (place, (key, rule)) in limits.iter().enumerate().filter(|(place, _)| *place != scarce) {
            let decision = world.decide(Take::from(key.clone()).rule(rule.clone())).await?;
            assert_eq!(left(&decision), (true, 92), "of {count}, at {place}");
        }
    }
    Ok(())
}

pub async fn missing_bucket_fails_the_request_and_takes_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (known, unknown) = (world.key(), world.key());
    let take = under(&known, "5/h")?.and(unknown.clone(), Rule::Provisioned);
    let outcome = world.store().take_one(&take).await?;
    assert_eq!(outcome.map(drop), Err(TakeError::UnknownBucket(unknown)));
    let beyond = under(&known, "5/h")?.and(world.key(), Rule::try_from("2/h")?).cost(3);
    let outcome = world.store().take_one(&beyond).await?;
    assert!(matches!(outcome, Err(TakeError::ExceedsCapacity { cost: 3, capacity: 2, .. })), "{outcome:?}");
    assert_eq!(left(&world.decide(under(&known, "5/h")?).await?), (true, 4));
    Ok(())
}

pub async fn a_reservation_of_several_is_cancelled_in_all_of_them<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let keys = [world.key(), world.key()];
    let both = under(&keys[0], "10/s")?.and(keys[1].clone(), Rule::try_from("5/s")?);
    assert!(world.decide(both.clone().cost(5)).await?.is_granted());
    let limiter = world.limiter_builder().build("10/s")?;
    let reservation = limiter.reserve_request(&both.clone().cost(5).max_wait(ms(2000))).await?;
    assert_eq!((reservation.is_granted(), reservation.decision().wait()), (true, ms(1000)));
    assert_eq!(reservation.receipts().len(), 2);
    // The tokens of the first bucket were available at once.
    world.at_ms(1).await?;
    assert_eq!(reservation.cancel().await?, 0);
    let again = limiter.reserve_request(&both.cost(5).max_wait(ms(2000))).await?;
    assert_eq!(again.decision().wait(), ms(999));
    Ok(())
}

pub async fn batch_for_one_or_several_buckets_is_decided_in_order<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let keys = [world.key(), world.key()];
    let one = under(&keys[0], "10/h")?;
    let both = one.clone().and(keys[1].clone(), Rule::try_from("10/h")?);
    let takes = [one.clone().cost(5), both.clone().cost(4), one.clone().cost(2), both, one];
    let outcomes = world.store().take(&takes).await?;
    let found: Vec<_> = outcomes.iter().flatten().map(left).collect();
    assert_eq!(found, [(true, 5), (true, 1), (false, 1), (true, 0), (false, 0)]);
    Ok(())
}

pub async fn unlimited_limit_among_several_limits_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (free, limited) = (world.key(), world.key());
    let both = || anyhow::Ok(under(&free, "unlimited")?.and(limited.clone(), Rule::try_from("3/h")?).cost(2));
    let reservation = world.limiter_builder().build("1/h")?.reserve_request(&both()?).await?;
    assert_eq!((left(reservation.decision()), reservation.decision().limit_index()), ((true, 1), 1));
    let receipts: Vec<_> = reservation.receipts().iter().map(|receipt| receipt.key().clone()).collect();
    assert_eq!(receipts, std::slice::from_ref(&limited), "there is nothing to give back of the other");
    let denied = world.decide(both()?).await?;
    assert_eq!((left(&denied), denied.limit_index()), ((false, 1), 1));
    let outcome = world.store().take_one(&Take::from(free.clone())).await?;
    assert!(matches!(outcome, Err(TakeError::UnknownBucket(_))), "nobody made it: {outcome:?}");
    Ok(())
}

pub async fn each_limit_takes_and_keeps_its_own_number_of_tokens<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (tokens, requests) = (world.key(), world.key());
    let call = |cost| {
        let one = Limit::new(requests.clone(), Rule::try_from("10/h")?).cost(1).min_remaining(6);
        anyhow::Ok(under(&tokens, "1000/h")?.and_limit(one).cost(cost).min_remaining(100))
    };
    let each = |decision: &Decision| decision.each().iter().map(left).collect::<Vec<_>>();
    // The first request creates the buckets, and the second one finds them.
    assert_eq!(each(&world.decide(call(300)?).await?), [(true, 700), (true, 9)]);
    assert_eq!(each(&world.decide(call(250)?).await?), [(true, 450), (true, 8)]);
    let denied = world.decide(call(351)?).await?;
    assert_eq!((each(&denied), denied.limit_index()), (vec![(false, 450), (true, 8)], 0));
    assert_eq!(denied.retry_after(), Some(ms(3600)), "for one token of a thousand an hour");
    let waits = world.decide(call(351)?.max_wait(ms(3600))).await?;
    assert_eq!((waits.wait(), each(&waits)), (ms(3600), vec![(true, 99), (true, 7)]));
    let small = world.decide(call(1)?.max_wait(ms(7200))).await?;
    assert_eq!((small.is_granted(), each(&small)[1]), (true, (true, 6)));
    // Six tokens must remain, and the seventh comes in six minutes.
    let denied = world.decide(call(1)?.max_wait(ms(3_600_000 / 10 - 1))).await?;
    assert_eq!((denied.is_granted(), denied.limit_index(), denied.retry_after()), (false, 1, Some(ms(360_000))));
    let never = Limit::new(requests.clone(), Rule::try_from("10/h")?).cost(8).min_remaining(3);
    let outcome = world.store().take_one(&under(&tokens, "1000/h")?.and_limit(never)).await?;
    assert!(
        matches!(&outcome, Err(TakeError::ExceedsCapacity { key, cost: 8, min_remaining: 3, .. }) if *key == requests)
    );
    let nothing = Limit::new(requests.clone(), Rule::try_from("10/h")?).cost(0);
    let outcome = world.store().take_one(&under(&tokens, "1000/h")?.and_limit(nothing)).await?;
    assert_eq!(outcome.map(drop), Err(TakeError::ZeroCost));
    assert_eq!(world.store().peek(&requests).await?.map(|level| level.available()), Some(6));
    Ok(())
}

pub async fn a_batch_takes_of_each_limit_its_own_number_of_tokens<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (tokens, requests) = (world.key(), world.key());
    let call = |cost| {
        let one = Limit::new(requests.clone(), Rule::try_from("3/h")?).cost(1);
        anyhow::Ok(under(&tokens, "1000/h")?.and_limit(one).cost(cost))
    };
    let outcomes = world.store().take(&[call(400)?, call(700)?, call(500)?, call(90)?, call(1)?]).await?;
    let found: Vec<_> =
        outcomes.iter().flatten().map(|decision| (decision.is_granted(), decision.limit_index())).collect();
    // `limit` names the limit with tokens for the fewest equal requests.
    assert_eq!(found, [(true, 0), (false, 0), (true, 0), (true, 1), (false, 1)]);
    for (key, left) in [(&tokens, 10), (&requests, 0)] {
        assert_eq!(world.store().peek(key).await?.map(|level| level.available()), Some(left));
    }
    Ok(())
}

pub async fn requests_that_differ_for_the_caller_share_a_call<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    let call = || under(&key, "2/h");
    let outcomes = world.store().take(&[call()?, call()?.refundable(), call()?]).await?;
    let granted: Vec<bool> = outcomes.iter().flatten().map(Decision::is_granted).collect();
    assert_eq!(granted, [true, true, false]);
    Ok(())
}

pub async fn cost_of_each_limit_is_settled_and_refunded<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let keys = [world.key(), world.key(), world.key()];
    let limiter = world.limiter_builder().build("1/h")?;
    let reserve = async |cost| {
        let call = Take::from(Limit::new(keys[0].clone(), Rule::try_from("10/h")?).cost(1))
            .and_limit(Limit::new(keys[1].clone(), Rule::try_from("1000/h")?).cost(cost))
            .and_limit(Limit::new(keys[2].clone(), Rule::try_from("500/h")?).cost(60));
        anyhow::Ok(limiter.reserve_request(&call.id(Uuid::new_v4(), ms(3_600_000))).await?)
    };
    let available = async || {
        let mut all = Vec::new();
        for key in &keys {
            all.push(world.store().peek(key).await?.map_or(0, |level| level.available()));
        }
        anyhow::Ok(all)
    };
    let costs: Vec<u64> = reserve(400).await?.receipts().iter().map(Receipt::cost).collect();
    assert_eq!((costs, available().await?), (vec![1, 400, 60], vec![9, 600, 440]));
    // The costs differ, so one number for all of them is an error and changes nothing.
    for outcome in [reserve(1).await?.settle(100).await.map(drop), reserve(1).await?.refund(100).await.map(drop)] {
        assert!(matches!(outcome, Err(Error::Take(TakeError::CostsDiffer))), "{outcome:?}");
    }
    assert_eq!(available().await?, [7, 598, 320]);
    let used = |receipt: &Receipt| if *receipt.key() == keys[1] { Some(120) } else { None };
    assert_eq!(reserve(300).await?.settle_each(used).await?, Adjusted::Done(180), "what was taken of others stands");
    assert_eq!(available().await?, [6, 478, 260]);
    let unused = |receipt: &Receipt| receipt.cost() / 4;
    assert_eq!(reserve(100).await?.refund_each(unused).await?, 15, "the least of those that have something unused");
    assert_eq!(available().await?, [5, 403, 215]);
    // With a single limit, its cost is the cost of the request.
    let one = Take::from(Limit::new(keys[1].clone(), Rule::try_from("1000/h")?).cost(3)).id(Uuid::new_v4(), ms(1000));
    assert_eq!(limiter.reserve_request(&one).await?.settle(1).await?, Adjusted::Done(2));
    assert_eq!(one.clone().cost(5).limits().map(Limit::get_cost).collect::<Vec<_>>(), [3], "its own stays its own");
    // The limits after the first one cost the same.
    let both = one.and(keys[2].clone(), Rule::try_from("500/h")?).id(Uuid::new_v4(), ms(1000));
    assert_eq!(limiter.reserve_request(&both.clone()).await?.settle(1).await?, Adjusted::Done(2));
    let outcome = limiter.reserve_request(&both.cost(5).id(Uuid::new_v4(), ms(1000))).await?.settle(1).await;
    assert!(matches!(outcome, Err(Error::Take(TakeError::CostsDiffer))), "{outcome:?}");
    assert_eq!(available().await?, [5, 398, 209]);
    Ok(())
}
