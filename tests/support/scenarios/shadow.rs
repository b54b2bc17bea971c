//! In shadow mode no request is denied, and none waits.

use tollgate::{Admin, Decision, Key, Limit, Mode, Rule, Store, Take, admin::Override};
use uuid::Uuid;

use super::windows::ten_a_second;
use super::{World, left, ms, under};

pub async fn shadow_request_short_of_tokens_passes_and_takes_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (trial, of_plan) = (world.key(), world.key());
    world.plan(&trial, "10/s".parse()?, Some(Mode::Shadow)).await?;
    let of_plan = Take::from(of_plan).rule(Rule::Plan(trial.clone())).max_wait(ms(5000));
    let of_key = in_shadow(world, "10/s").await?.max_wait(ms(5000));
    let limiter = world.limiter_builder().build("10/s")?;
    for take in [of_plan.clone(), of_key.clone()] {
        let fits = limiter.reserve_request(&take.clone().cost(9)).await?;
        assert_eq!((visible(fits.decision()), fits.receipts().len()), ((true, 1, Mode::Enforce, ms(0)), 1));
        let id = Uuid::new_v4();
        let short = [take.clone().cost(2), take.clone().min_remaining(1), take.clone().cost(3).id(id, ms(60_000))];
        for short in &short {
            let passes = limiter.reserve_request(short).await?;
            assert_eq!((visible(passes.decision()), passes.receipts().len()), (SHADOWED, 0));
            assert_eq!((passes.delay(), passes.cancel().await?), (Some(ms(0)), 0));
            assert_eq!(visible(limiter.wait_request(short).await?.decision()), SHADOWED);
        }
        for outcome in world.store().take(&short[..2]).await? {
            assert_eq!(visible(&outcome?), SHADOWED);
        }
        // The request with the id left no receipt.
        assert_eq!(visible(&world.decide(take.clone().id(id, ms(60_000))).await?), (true, 0, Mode::Enforce, ms(0)));
    }
    // When the limit is enforced again, a waiter queues behind no shadow request.
    assert!(world.store().set_plan_mode(&trial, None, None, None).await?);
    assert!(world.store().clear_override(of_key.key()).await?);
    for take in [of_plan, of_key] {
        assert_eq!(visible(&world.decide(take).await?), (true, 0, Mode::Enforce, ms(100)));
    }
    Ok(())
}

pub async fn limits_in_shadow_among_several_cause_no_wait<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (trial, other) = (in_shadow(world, "1/s").await?, in_shadow(world, "1/s").await?);
    let (enforced, rule) = (world.key(), Rule::try_from("2/s")?);
    let limiter = world.limiter_builder().build("1/s")?;
    let both = trial.clone().and(enforced.clone(), rule.clone()).max_wait(ms(5000));
    let each = async || -> anyhow::Result<_> {
        let reservation = limiter.reserve_request(&both).await?;
        let decision = reservation.decision();
        let modes: Vec<Mode> = decision.each().iter().map(Decision::mode).collect();
        assert!(decision.is_granted());
        let keys: Vec<_> = reservation.receipts().iter().map(|receipt| receipt.key().clone()).collect();
        Ok((modes, decision.wait(), keys))
    };
    let keys = vec![trial.key().clone(), enforced.clone()];
    assert_eq!(each().await?, (vec![Mode::Enforce; 2], ms(0), keys));
    // Only the enforced limit causes a wait, and only its tokens are taken.
    for wait in [ms(0), ms(500), ms(1000)] {
        assert_eq!(each().await?, (vec![Mode::Shadow, Mode::Enforce], wait, vec![enforced.clone()]));
    }
    let trials = trial.clone().and_limit(other.limits().next().expect("it has one").clone()).max_wait(ms(5000));
    for _ in 0..2 {
        assert_eq!(limiter.reserve_request(&trials).await?.decision().wait(), ms(0));
    }
    // The request that lacked tokens took nothing from the first bucket. The second bucket was charged once.
    for take in [trial, other] {
        assert!(world.store().clear_override(take.key()).await?);
        assert_eq!(world.decide(take.max_wait(ms(5000))).await?.wait(), ms(1000));
    }
    Ok(())
}

pub async fn window_in_shadow_causes_no_wait<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = Take::from(world.key()).rule(ten_a_second()?.into()).max_wait(ms(5000));
    shadow(world, &take).await?;
    assert_eq!(visible(&world.decide(take.clone().cost(9)).await?), (true, 1, Mode::Enforce, ms(0)));
    let id = Uuid::new_v4();
    for short in [take.clone().cost(2), take.clone().min_remaining(1), take.clone().cost(3).id(id, ms(60_000))] {
        assert_eq!(visible(&world.decide(short).await?), SHADOWED);
    }
    assert_eq!(visible(&world.decide(take.clone().id(id, ms(60_000))).await?), (true, 0, Mode::Enforce, ms(0)));
    assert!(world.store().clear_override(take.key()).await?);
    assert_eq!(visible(&world.decide(take).await?), (true, 0, Mode::Enforce, ms(1100)));
    Ok(())
}

/// A reservation keeps its scheduled time, just as mode `block` does not revoke earlier grants.
pub async fn reservation_keeps_its_time_in_shadow<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "1/s")?.max_wait(ms(5000));
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 0));
    let job = take.clone().id(Uuid::new_v4(), ms(60_000));
    assert_eq!(world.decide(job.clone()).await?.wait(), ms(1000));
    shadow(world, &take).await?;
    assert_eq!(world.decide(job).await?.wait(), ms(1000));
    assert_eq!(visible(&world.decide(take).await?), (true, 0, Mode::Shadow, ms(0)));
    Ok(())
}

/// A limit that the request only tries takes tokens after the others have granted, and never denies.
pub async fn limit_with_a_mode_of_its_own<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (decides, tries, never, off) = (world.key(), world.key(), world.key(), world.key());
    let limit = |key: &Key, quota: &str| anyhow::Ok(Limit::new(key.clone(), Rule::try_from(quota)?));
    let others = [
        limit(&tries, "1/h")?.mode(Mode::Shadow),
        limit(&never, "5/h")?.min_remaining(5).mode(Mode::Shadow),
        limit(&off, "1/h")?.mode(Mode::Off),
    ];
    let all = others.iter().cloned().fold(Take::from(limit(&decides, "3/h")?), Take::and_limit);
    let limiter = world.limiter_builder().build("1/s")?;
    let modes =
        |decision: &Decision| decision.each().iter().map(|one| (one.limit_index(), one.mode())).collect::<Vec<_>>();
    let reservation = limiter.reserve_request(&all.clone().refundable()).await?;
    assert_eq!(modes(reservation.decision()), [(0, Mode::Enforce), (1, Mode::Enforce), (2, Mode::Shadow)]);
    assert_eq!(reservation.refund(1).await?, 1, "to each");
    for tried in [Mode::Enforce, Mode::Shadow] {
        let decision = world.decide(all.clone()).await?;
        assert_eq!(modes(&decision), [(0, Mode::Enforce), (1, tried), (2, Mode::Shadow)]);
        assert!(decision.is_granted());
    }
    assert!(limiter.decide(&all).await?.is_granted());
    // A denied request takes nothing from the limit that it tries.
    let fresh = Take::from(limit(&decides, "3/h")?).and_limit(limit(&world.key(), "1/h")?.mode(Mode::Shadow));
    let denied = limiter.decide(&fresh).await?;
    assert_eq!((denied.is_granted(), modes(&denied)), (false, vec![(0, Mode::Enforce)]));
    let fresh = fresh.limits().nth(1).expect("it has two").clone();
    for remaining in [0, 0] {
        let decision = limiter.decide(&Take::from(fresh.clone())).await?;
        assert_eq!((decision.is_granted(), decision.remaining()), (true, Some(remaining)));
    }
    let nothing = limiter.decide(&Take::from(fresh.clone().mode(Mode::Off))).await?;
    assert_eq!((nothing.is_granted(), nothing.mode(), nothing.remaining()), (true, Mode::Off, None));
    let blocked = limiter.decide(&Take::from(limit(&decides, "3/h")?).and_limit(fresh.mode(Mode::Block))).await?;
    assert_eq!((blocked.is_granted(), blocked.mode(), blocked.limit_index()), (false, Mode::Block, 1));
    Ok(())
}

async fn in_shadow<W: World>(world: &W, quota: &str) -> anyhow::Result<Take> {
    let take = under(&world.key(), quota)?;
    shadow(world, &take).await?;
    Ok(take)
}

async fn shadow<W: World>(world: &W, take: &Take) -> anyhow::Result<()> {
    let over = Override { mode: Some(Mode::Shadow), ..Override::default() };
    Ok(world.store().set_override(take.key(), over).await?)
}

fn visible(decision: &Decision) -> (bool, u64, Mode, std::time::Duration) {
    let (granted, remaining) = left(decision);
    (granted, remaining, decision.mode(), decision.wait())
}

/// Granted in shadow mode, with one token left.
const SHADOWED: (bool, u64, Mode, std::time::Duration) = (true, 1, Mode::Shadow, ms(0));
