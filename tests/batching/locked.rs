//! Requests for buckets that another transaction holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tollgate::{Error, Key, Store, layers::Batcher, model::Outcome};

use super::stores::{Gated, Locking};
use super::{ask, settle, take};

/// Keeps so many calls in flight that further requests share calls.
async fn busy_with_a_locked_key()
-> anyhow::Result<(Arc<Gated>, Arc<Batcher<Arc<Gated>>>, Vec<JoinHandle<Result<Outcome, Error>>>)> {
    let mut gated = Gated::new(0);
    gated.locked = Some(Key::try_from("locked")?);
    let gated = Arc::new(gated);
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let first = (0..40).map(|n| ask(&batcher, take(&format!("first:{n}")))).collect();
    settle().await;
    Ok((gated, batcher, first))
}

#[tokio::test(start_paused = true)]
async fn rolled_back_call_is_repeated_key_by_key() -> anyhow::Result<()> {
    let (gated, batcher, first) = busy_with_a_locked_key().await?;
    let locked = ask(&batcher, take("locked"));
    let others: Vec<_> = (0..40).map(|n| ask(&batcher, take(&format!("other:{}", n % 20)))).collect();
    settle().await;
    gated.gate.add_permits(1000);
    for answered in first.into_iter().chain(others) {
        assert!(answered.await??.is_ok_and(|decision| decision.is_granted()));
    }
    assert!(!locked.is_finished());
    let calls = gated.calls();
    assert!(calls.iter().any(|keys| keys.len() > 1 && keys.contains(&"locked".into())), "{calls:?}");
    assert!(calls.iter().any(|keys| *keys == ["locked"]), "{calls:?}");
    assert_eq!(gated.most_under_way.load(Ordering::Relaxed), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn caller_cancelled_before_the_repeated_call_takes_nothing() -> anyhow::Result<()> {
    let (gated, batcher, first) = busy_with_a_locked_key().await?;
    let _locked = ask(&batcher, take("locked"));
    let others: Vec<_> = (0..40).map(|n| (n, ask(&batcher, take(&format!("other:{n}"))))).collect();
    settle().await;
    while !gated.calls().iter().any(|keys| *keys == ["locked"]) {
        gated.gate.add_permits(1);
        settle().await;
    }
    // A call for many was undone, and the gate is closed for those that are made instead.
    let is_asked = |n: &i32| gated.calls().iter().any(|keys| keys.len() <= 2 && keys.contains(&format!("other:{n}")));
    let (asked, given_up): (Vec<_>, Vec<_>) = others.into_iter().partition(|(n, _)| is_asked(n));
    assert!(!given_up.is_empty());
    let given_up: Vec<_> = given_up.into_iter().map(|(n, asking)| (n, asking.abort())).collect();
    gated.gate.add_permits(1000);
    for answered in first.into_iter().chain(asked.into_iter().map(|(_, asking)| asking)) {
        assert!(answered.await??.is_ok_and(|decision| decision.is_granted()));
    }
    settle().await;
    assert!(given_up.iter().all(|(n, ())| !is_asked(n)), "{:?}", gated.calls());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn seven_locked_keys_delay_no_other_key() -> anyhow::Result<()> {
    for alone in [0, 6] {
        let batcher = Arc::new(Batcher::new(Locking::default()));
        let mut asking: JoinSet<(bool, Result<Outcome, Error>)> = JoinSet::new();
        let mut start = |n: usize, is_locked| {
            let batcher = Arc::clone(&batcher);
            let request = take(&format!("{n:03}{}", if is_locked { ":locked" } else { "" }));
            asking.spawn(async move { (is_locked, batcher.take_one(&request).await) });
        };
        for n in 0..alone {
            start(n, true);
            sleep(Duration::from_millis(30)).await;
        }
        let free = 500;
        for n in 0..free {
            start(100 + n, false);
        }
        (alone..7).for_each(|n| start(n, true));
        let mut before = 0;
        while let Some((is_locked, outcome)) = asking.join_next().await.transpose()? {
            if is_locked {
                break;
            }
            assert!(outcome??.is_granted());
            before += 1;
        }
        assert_eq!(before, free, "answers before the first of the locked keys, {alone} of which were called alone");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn locked_key_is_called_alone_until_it_is_free() -> anyhow::Result<()> {
    let batcher = Arc::new(Batcher::new(Locking::default()));
    // Others come all the time.
    let others = (0..40).map(|n| {
        let (batcher, request) = (Arc::clone(&batcher), take(&format!("other:{n}")));
        async move {
            while !batcher.store().is_free.load(Ordering::Relaxed) {
                assert!(batcher.take_one(&request).await??.is_granted());
            }
            anyhow::Ok(())
        }
    });
    let mut others: JoinSet<_> = others.collect();
    let mut locked = ask(&batcher, take("locked"));
    for _ in 0..4 {
        // Somebody always waits for it, behind the one who is asked for.
        sleep(Duration::from_secs(1)).await;
        let next = ask(&batcher, take("locked"));
        assert!(matches!(locked.await?, Err(Error::Contended { .. })));
        locked = next;
    }
    let undone: Vec<_> = batcher.store().contended().into_iter().filter(|keys| keys.len() > 1).collect();
    assert!((1..=3).contains(&undone.len()), "{undone:?}");
    batcher.store().is_free.store(true, Ordering::Relaxed);
    assert!(matches!(locked.await?, Err(Error::Contended { .. })), "asked for before");
    assert!(ask(&batcher, take("locked")).await???.is_granted());
    while let Some(other) = others.join_next().await {
        other??;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn requests_for_locked_keys_are_bounded() -> anyhow::Result<()> {
    const MOST: usize = 32_768;
    let batcher = Arc::new(Batcher::new(Locking::default()));
    let mut asking = JoinSet::new();
    let mut refused = 0;
    for n in 0..80 {
        for m in 0..1000 {
            let (batcher, request) = (Arc::clone(&batcher), take(&format!("locked:{n}:{m}")));
            asking.spawn(async move { batcher.take_one(&request).await });
        }
        // Calls are undone meanwhile.
        sleep(Duration::from_millis(50)).await;
        while let Some(answered) = asking.try_join_next() {
            assert!(matches!(answered?, Err(Error::Overloaded(_))));
            refused += 1;
        }
    }
    // In two halves, with so many calls for each under way.
    assert!(refused >= 80_000 - 2 * (MOST + 6 * 1024), "{refused}");
    Ok(())
}
