//! Sliding windows that a process decides from its local counts.

use std::time::Duration;

use tollgate::{Key, Limiter, Store, Window, layers::LocalReads, model::Source, store::SharedWindows};

use super::{START, World, left, ms};

pub async fn denial_from_local_reads_calls_no_store(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (key, window) = (world.key(), Window::new(10, ms(1000), ms(100))?);
    let limiter = limiter(world, window)?;
    assert_eq!(left(&limiter.allow_n(&key, 10).await?), (true, 0));
    // Counted for another process. This process has not called the store since.
    world.store().count(&key, &window, 1).await?;
    let denied = limiter.allow(&key).await?;
    assert_eq!((left(&denied), denied.source()), ((false, 0), Source::LocalReads));
    Ok(())
}

/// Local counts age by the process's clock. The store's clock was read a nanosecond before a boundary, which has passed since.
pub async fn local_reads_see_shared_counts_at_a_boundary(world: &impl World) -> anyhow::Result<()> {
    let (minute, key) = (Duration::from_mins(1), world.key());
    let window = Window::new(20, minute * 60, minute)?;
    world.at(START + i64::try_from(minute.as_nanos())? - 1).await?;
    let process = || limiter(world, window);
    let (one, other) = (process()?, process()?);
    assert_eq!(left(&one.allow_n(&key, 4).await?), (true, 16));
    // The first call of the second process returns the four counted requests.
    assert_eq!(left(&other.allow_n(&key, 6).await?), (true, 10));
    denied_until_left(&one, &key, 10).await?;

    world.store().count(&key, &window, 9).await?;
    for process in [&one, &other] {
        denied_until_left(process, &key, 1).await?;
    }
    assert_eq!(left(&one.allow(&key).await?), (true, 0));
    Ok(())
}

/// Builds a limiter without a sweep, which would delete the buckets of other cases: those have their own clocks.
fn limiter<W: World>(world: &W, window: Window) -> Result<Limiter<LocalReads<W::Store>>, tollgate::Error> {
    Limiter::builder(LocalReads::new(world.store())).without_sweep().build(window)
}

/// Requests all of the window until the local counts leave `tokens`. The denied requests count nothing.
async fn denied_until_left(process: &Limiter<impl Store>, key: &Key, tokens: u64) -> anyhow::Result<()> {
    while {
        let denied = process.allow_n(key, 20).await?;
        assert_eq!((denied.is_granted(), denied.source()), (false, Source::LocalReads));
        denied.remaining() != Some(tokens)
    } {
        tokio::task::yield_now().await;
    }
    Ok(())
}
