//! A sliding window that is requested with several limits.

use std::time::Duration;

use tollgate::{Adjusted, Admin, Receipt, Store, Take, Window};
use uuid::Uuid;

use super::windows::ten_a_second;
use super::{START, World, left, ms};

pub async fn settlement_in_a_shorter_window_counts_for_the_longest(world: &impl World) -> anyhow::Result<()> {
    let long = Window::new(10, ms(100_000), ms(100_000))?;
    let short = Take::from(world.key()).rule(ten_a_second()?.into());
    let id = Uuid::new_v4();
    world.at_ms(0).await?;
    assert!(world.decide(short.clone().rule(long.into()).id(id, ms(3_600_000))).await?.is_granted());
    world.at_ms(1000).await?;
    assert!(world.decide(short.clone()).await?.is_granted());
    world.at_ms(250_000).await?;
    let receipt = Receipt::new(id, short.key().clone(), 1).in_window(Duration::from_nanos(START.unsigned_abs()));
    assert_eq!(world.store().adjust(&[receipt.settle(9)]).await?, [Ok(Adjusted::Done(-8))]);
    let level = world.store().peek_window(short.key()).await?.expect("ten were counted");
    assert_eq!((level.counted(), level.window().interval()), (8, long.interval()));
    world.at_ms(260_000).await?;
    assert_eq!(left(&world.decide(short.rule(long.into()).cost(2)).await?), (true, 0));
    Ok(())
}

pub async fn expired_count_gives_nothing_back_to_coarser_parts(world: &impl World) -> anyhow::Result<()> {
    let fine = Take::from(world.key()).rule(Window::new(10, ms(10_000), ms(1000))?.into());
    let coarse = fine.clone().rule(Window::new(10, ms(10_000), ms(10_000))?.into());
    let id = Uuid::new_v4();
    world.at_ms(500).await?;
    assert!(world.decide(fine.clone().id(id, ms(3_600_000))).await?.is_granted());
    world.at_ms(1500).await?;
    assert!(world.decide(fine.clone().cost(9)).await?.is_granted());
    world.at_ms(11_200).await?;
    assert!(world.decide(coarse.clone()).await?.is_granted());
    let receipt =
        Receipt::new(id, fine.key().clone(), 1).in_window(Duration::from_nanos(START.unsigned_abs()) + ms(500));
    world.store().adjust(&[receipt.refund(1)]).await?[0].clone()?;
    world.at_ms(11_400).await?;
    assert!(!world.decide(coarse).await?.is_granted(), "ten of the last ten seconds count");
    Ok(())
}

pub async fn count_in_a_coarser_part_is_given_back(world: &impl World) -> anyhow::Result<()> {
    let fine = Take::from(world.key()).rule(Window::new(10, ms(10_000), ms(1000))?.into());
    let coarse = fine.clone().rule(Window::new(10, ms(10_000), ms(10_000))?.into());
    let id = Uuid::new_v4();
    world.at_ms(0).await?;
    assert!(world.decide(coarse.cost(9).id(id, ms(3_600_000))).await?.is_granted());
    world.at_ms(10_500).await?;
    assert_eq!(left(&world.decide(fine.clone()).await?), (true, 0));
    let receipt = Receipt::new(id, fine.key().clone(), 9).in_window(Duration::from_nanos(START.unsigned_abs()));
    assert_eq!(world.store().adjust(&[receipt.settle(0)]).await?, [Ok(Adjusted::Done(9))]);
    assert_eq!(left(&world.decide(fine).await?), (true, 8));
    Ok(())
}
