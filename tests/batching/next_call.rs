//! The requests that a new call carries, and the callers that its answers wake.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::advance;
use tollgate::{Key, Receipt, Store, Take, layers::Batcher};
use uuid::Uuid;

use super::stores::Gated;
use super::{Woken, rule, settle, spawn_take, take};

#[tokio::test(start_paused = true)]
async fn woken_callers_share_the_next_call_with_waiting_ones() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let first = spawn_take(&batcher, take("a"));
    settle().await;
    let twice = (0..50).map(|_| {
        let batcher = Arc::clone(&batcher);
        tokio::spawn(async move {
            let decided = batcher.take_one(&take("a")).await??.is_granted();
            anyhow::Ok((decided, batcher.take_one(&take("a")).await??.is_granted()))
        })
    });
    let twice: Vec<_> = twice.collect();
    settle().await;
    gated.gate.add_permits(1);
    assert!(first.await??.is_ok());
    settle().await;
    let waiting = spawn_take(&batcher, take("a"));
    settle().await;
    gated.gate.add_permits(100);
    for answered in twice {
        answered.await??;
    }
    assert!(waiting.await??.is_ok());
    assert_eq!(gated.calls().iter().map(Vec::len).collect::<Vec<_>>(), [1, 50, 51]);
    Ok(())
}

/// On several servers, only the one that has the key decides, and it decides equal requests at once.
#[tokio::test(start_paused = true)]
async fn store_of_one_key_per_call_gets_each_wait_and_refund_alone() -> anyhow::Result<()> {
    let mut gated = Gated::new(0);
    gated.max_keys = 1;
    let gated = Arc::new(gated);
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let first = spawn_take(&batcher, take("a"));
    settle().await;
    let waits: Vec<_> = (0..3).map(|_| spawn_take(&batcher, take("a").max_wait(Duration::from_secs(1)))).collect();
    let refunds = {
        let (batcher, key) = (Arc::clone(&batcher), Key::try_from("a")?);
        let refunds = [1, 1].map(|tokens| Receipt::new(Uuid::new_v4(), key.clone(), 1).refund(tokens));
        tokio::spawn(async move { batcher.adjust(&refunds).await })
    };
    settle().await;
    let equal: Vec<_> = (0..3).map(|_| spawn_take(&batcher, take("a"))).collect();
    settle().await;
    gated.gate.add_permits(100);
    for answered in [first].into_iter().chain(waits).chain(equal) {
        assert!(answered.await??.is_ok());
    }
    assert_eq!(refunds.await??.len(), 2);
    assert_eq!(gated.calls().iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1, 1, 3]);
    assert_eq!(gated.adjusted(), [["a"], ["a"]]);
    Ok(())
}

fn several() -> Take {
    take("a").and(Key::try_from("b").expect("a key"), rule("50/h"))
}

#[tokio::test(start_paused = true)]
async fn single_request_is_called_at_once() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let alone = spawn_take(&batcher, several());
    for _ in 0..3 {
        yield_now().await;
    }
    let late = spawn_take(&batcher, several());
    settle().await;
    assert_eq!(gated.calls(), [["a"]]);
    gated.gate.add_permits(2);
    assert!(alone.await??.is_ok() && late.await??.is_ok());
    assert_eq!(gated.calls(), [["a"], ["a"]]);
    Ok(())
}

type Asking<'a> = Pin<Box<dyn Future<Output = anyhow::Result<bool>> + 'a>>;

/// Polls each caller once, and opens the gate later. Asserts that only its answer wakes a caller, and once.
async fn each_is_woken_once(gated: &Gated, callers: Vec<Asking<'_>>) -> anyhow::Result<()> {
    let mut queued = Vec::new();
    for mut caller in callers {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(caller.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        queued.push((caller, woken));
    }
    for _ in 0..10 {
        settle().await;
        advance(Duration::from_millis(100)).await;
    }
    for (place, (_, woken)) in queued.iter().enumerate() {
        assert_eq!(woken.0.load(Ordering::Relaxed), 0, "the caller at place {place} has no answer yet");
    }
    gated.gate.add_permits(100);
    settle().await;
    for (place, (mut caller, woken)) in queued.into_iter().enumerate() {
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "the caller at place {place} has one answer");
        let Poll::Ready(answer) = caller.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            anyhow::bail!("the caller at place {place} was woken for nothing");
        };
        assert!(answer?, "the caller at place {place} has its token");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn queued_caller_is_woken_once() -> anyhow::Result<()> {
    let kinds: [[Take; 3]; 2] = [
        // Equal requests are one entry of a call. A request with another cost or wait is an entry of its own.
        [take("a"), take("a").cost(2), take("a").max_wait(Duration::from_secs(1))],
        [several(), several().cost(2), several()],
    ];
    for requests in kinds {
        let gated = Arc::new(Gated::new(0));
        let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
        let first = spawn_take(&batcher, requests[0].clone());
        settle().await;
        let all = requests.iter().flat_map(|request| [request, request, request]);
        let callers =
            all.map(|request| -> Asking<'_> { Box::pin(async { Ok(batcher.take_one(request).await??.is_granted()) }) });
        each_is_woken_once(&gated, callers.collect()).await?;
        assert!(first.await??.is_ok());
        assert!(gated.calls().iter().any(|call| call.len() > 2), "no call is shared: {:?}", gated.calls());
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn refunding_caller_is_woken_once() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    assert!(gated.store.take_one(&take("a").cost(50)).await??.is_granted());
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let receipt = Receipt::new(Uuid::new_v4(), Key::try_from("a")?, 1);
    let first = {
        let (batcher, refund) = (Arc::clone(&batcher), receipt.clone().refund(1));
        tokio::spawn(async move { batcher.adjust(&[refund]).await })
    };
    settle().await;
    let callers = (0..3).map(|_| -> Asking<'_> {
        // One call answers both refunds of a caller.
        let refunds = [(); 2].map(|()| receipt.clone().refund(1));
        let batcher = &batcher;
        Box::pin(async move { Ok(batcher.adjust(&refunds).await?.iter().all(Result::is_ok)) })
    });
    each_is_woken_once(&gated, callers.collect()).await?;
    first.await??;
    assert_eq!(gated.adjusted().iter().map(Vec::len).collect::<Vec<_>>(), [1, 6]);
    Ok(())
}
