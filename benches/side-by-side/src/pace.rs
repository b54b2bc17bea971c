//! An open loop: so many questions a second, whatever the answers take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};

use crate::books::Books;
use crate::peer::Peer;

/// How a peer is asked until it is told to stop: for keys at random, all alike.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    pub(crate) a_second: u32,
    pub(crate) keys: u32,
    pub(crate) stop: Arc<AtomicBool>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Paced {
    /// How often a second it was granted.
    pub(crate) made: f64,
    pub(crate) books: Books,
}

pub(crate) async fn pace<P: Peer>(peer: Arc<P>, pace: Pace) -> anyhow::Result<Paced> {
    let (granted, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let under_way = Arc::new(Semaphore::new(MOST_UNDER_WAY));
    let (mut random, mut asked) = (fastrand::Rng::with_seed(1), 0);
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !pace.stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let due = start.elapsed().as_micros() * u128::from(pace.a_second) / 1_000_000;
        while asked < due {
            asked += 1;
            // What cannot be asked in time is not made up for.
            let Ok(permit) = Arc::clone(&under_way).try_acquire_owned() else { continue };
            let (peer, granted, failed) = (Arc::clone(&peer), Arc::clone(&granted), Arc::clone(&failed));
            let key = random.u32(..pace.keys);
            tokio::spawn(async move {
                match peer.ask(key).await {
                    Ok(yes) => granted.fetch_add(yes.into(), Ordering::Relaxed),
                    Err(_) => failed.fetch_add(1, Ordering::Relaxed),
                };
                drop(permit);
            });
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
    let made = granted.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    let _ = under_way.acquire_many(u32::try_from(MOST_UNDER_WAY)?).await?;
    let (granted, unknown) = (granted.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
    Ok(Paced { made, books: Books { granted, unknown, ahead: false } })
}

const MOST_UNDER_WAY: usize = 4096;
