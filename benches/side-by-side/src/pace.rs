//! An open loop: a fixed number of calls per second, regardless of the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};

use crate::books::Books;
use crate::peer::Peer;

/// How to call a peer until it is stopped. The keys are random and uniform.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    pub(crate) a_second: u32,
    pub(crate) keys: u32,
    pub(crate) stop: Arc<AtomicBool>,
}

/// The result of an open loop.
#[derive(Debug, Default)]
pub(crate) struct Paced {
    /// Grants per second.
    pub(crate) made: f64,
    pub(crate) books: Books,
}

pub(crate) async fn pace<P: Peer>(peer: Arc<P>, pace: Pace) -> anyhow::Result<Paced> {
    let (granted, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let under_way = Arc::new(Semaphore::new(MOST_UNDER_WAY));
    let (mut random, mut requested) = (fastrand::Rng::with_seed(1), 0);
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !pace.stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let due = start.elapsed().as_micros() * u128::from(pace.a_second) / 1_000_000;
        while requested < due {
            requested += 1;
            // Skips calls that cannot start in time.
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
