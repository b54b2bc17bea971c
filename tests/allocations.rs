//! A decision in this process allocates nothing. A batched request allocates its reply slot.

#![allow(unsafe_code, reason = "a global allocator needs it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate::{
    Adjusted, Adjustment, Admin, AnyStore, Decision, Error, Key, Limiter, MemoryStore, Quota, Rule, Store, Take,
    TakeError,
    admin::Override,
    layers::{Batcher, DenyCache, Lease},
    model::{Checked, Outcome, Source},
    store::TestStore,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: each method passes its arguments unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts nothing once the thread has dropped its counter.
fn count() {
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

/// Returns the output of a future that never waits, and how often this thread allocated for it.
fn allocations<T>(future: impl Future<Output = T>) -> (T, u64) {
    let before = ALLOCATIONS.get();
    let Poll::Ready(output) = pin!(future).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("a store in this process answers at once");
    };
    (output, ALLOCATIONS.get() - before)
}

#[test]
fn every_allocation_is_counted() {
    let (boxed, counted) = allocations(async { (Box::new(1), vec![0_u8; 100], String::with_capacity(9)) });
    assert_eq!((*boxed.0, counted), (1, 3));
}

/// Takes as a limiter does: first from the state of this process, then by a call.
async fn take_locally_first(store: &impl Store, take: &Take) -> Result<Outcome, Error> {
    match store.try_take(Checked::try_from(take)?) {
        Some(outcome) => Ok(outcome),
        None => store.take_one(take).await,
    }
}

#[test]
fn request_for_known_key_allocates_nothing() -> anyhow::Result<()> {
    let store = MemoryStore::new();
    for key in ["user:42", "a key that is too long to be stored inline, so it has an allocation of its own"] {
        let key = Key::try_from(key)?;
        let rule = Rule::Quota(Quota::per_hour(100).build()?);
        let take = Take::from(key).rule(rule).cost(10);
        assert!(
            allocations(take_locally_first(&store, &take)).0??.is_granted(),
            "the first request creates the bucket"
        );
        for number in 1..20 {
            let (outcome, counted) = allocations(take_locally_first(&store, &take));
            assert_eq!((outcome??.is_granted(), counted), (number < 10, 0), "request {number}");
        }
    }
    Ok(())
}

#[test]
fn limiter_request_for_known_key_allocates_nothing() -> anyhow::Result<()> {
    allocates_nothing(&Limiter::new(MemoryStore::new(), Quota::per_hour(10))?)
}

#[test]
fn any_store_request_for_known_key_allocates_nothing() -> anyhow::Result<()> {
    allocates_nothing(&Limiter::new(AnyStore::new(MemoryStore::new()), Quota::per_hour(10))?)
}

fn allocates_nothing<S: Store>(limiter: &Limiter<S>) -> anyhow::Result<()> {
    for key in ["user:42", "a key that is too long to be stored inline, so it has an allocation of its own"] {
        let key = Key::try_from(key)?;
        assert!(allocations(limiter.allow(&key)).0?.is_granted(), "the first request creates the bucket");
        for number in 1..20 {
            let (decision, counted) = allocations(limiter.allow(&key));
            assert_eq!((decision?.is_granted(), counted), (number < 10, 0), "request {number}");
        }
    }
    let bound = limiter.bind("user:43")?;
    let (first, more) = (allocations(bound.allow()).0?, allocations(bound.allow()));
    assert_eq!((first.is_granted(), more.0?.is_granted(), more.1), (true, true, 0));
    // A short text becomes a key without an allocation.
    let (decision, counted) = allocations(limiter.allow("user:43"));
    assert_eq!((decision?.is_granted(), counted), (true, 0));
    Ok(())
}

#[tokio::test]
async fn plans_and_overrides_allocate_nothing_for_a_known_key() -> anyhow::Result<()> {
    let (store, plan, own) = (MemoryStore::new(), Key::try_from("free")?, Rule::try_from("10/h")?);
    store.create_plan(&plan, "10/h".parse()?).await?;
    let over = Override { quota: Some("10/d".parse()?), reason: "a large customer".to_owned(), ..Override::default() };
    for key in ["large", "large:planned"] {
        store.set_override(&Key::try_from(key)?, over.clone()).await?;
    }
    let following = Rule::Plan(plan);
    for (key, rule) in [("small", &own), ("small:planned", &following), ("large", &own), ("large:planned", &following)]
    {
        let take = Take::from(Key::try_from(key)?).rule(rule.clone());
        assert!(take_locally_first(&store, &take).await??.is_granted(), "the first request creates the bucket");
        for number in 1..20 {
            let (outcome, counted) = allocations(take_locally_first(&store, &take));
            assert_eq!((outcome??.is_granted(), counted), (number < 10, 0), "{key}, request {number}");
        }
    }
    Ok(())
}

#[test]
fn cached_denial_allocates_nothing() -> anyhow::Result<()> {
    let cache = DenyCache::new(MemoryStore::new());
    for key in ["user:42", "a key that is too long to be stored inline, so it has an allocation of its own"] {
        let take = Take::from(Key::try_from(key)?).rule(Rule::try_from("1/h")?);
        for number in 0..20 {
            let (outcome, counted) = allocations(take_locally_first(&cache, &take));
            let from_memory = outcome??.source() == Source::DenyCache;
            assert_eq!((from_memory, from_memory && counted > 0), (number > 1, false), "request {number}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn leased_grant_allocates_nothing() -> anyhow::Result<()> {
    let lease = Lease::new(MemoryStore::new());
    for key in ["user:42", "a key that is too long to be stored inline, so it has an allocation of its own"] {
        let take = Take::from(Key::try_from(key)?).rule(Rule::try_from("1000000 once")?);
        for _ in 0..1000 {
            assert!(lease.take_one(&take).await??.is_granted());
            tokio::task::yield_now().await;
        }
        let mut served = 0;
        for _ in 0..1000 {
            // Most requests prefetch no more tokens.
            let (outcome, counted) = allocations(take_locally_first(&lease, &take));
            served += u64::from(outcome??.source() == Source::Lease && counted == 0);
            tokio::task::yield_now().await;
        }
        assert!(served > 900, "{served} were served without an allocation");
    }
    Ok(())
}

/// A store that yields once and grants. It allocates only the list of its answers.
struct Granting;

impl TestStore for Granting {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        tokio::task::yield_now().await;
        Ok(takes.iter().map(|_| Ok(Decision::grant(1))).collect())
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Ok(Vec::new())
    }
}

/// Counts the allocations for a hundred requests, while `callers` of them run at once.
fn allocations_of_a_hundred<F>(callers: usize, call: impl Fn(usize) -> F) -> anyhow::Result<u64>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    const ROUNDS: usize = 200;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let mut counted = 0;
        for _ in 0..ROUNDS {
            let mut pending: Vec<_> = (0..callers).map(|caller| Box::pin(call(caller))).collect();
            let before = ALLOCATIONS.get();
            poll_fn(|context| {
                pending.retain_mut(|request| match request.as_mut().poll(context) {
                    Poll::Pending => true,
                    Poll::Ready(granted) => {
                        assert!(granted.is_ok_and(|granted| granted));
                        false
                    }
                });
                if pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            counted += ALLOCATIONS.get() - before;
        }
        Ok(100 * counted / (ROUNDS * callers) as u64)
    })
}

/// Creates [`BATCH_SIZE`] keys, one for each caller.
fn keys() -> Result<Vec<Key>, Error> {
    (0..BATCH_SIZE).map(|number| Ok(Key::try_from(format!("user:{number}"))?)).collect()
}

#[test]
fn batched_request_allocates_only_its_reply_slot() -> anyhow::Result<()> {
    let batcher = Batcher::new(Granting);
    let rule = Rule::try_from("10/s")?;
    let takes: Vec<Take> = keys()?.into_iter().map(|key| Take::from(key).rule(rule.clone())).collect();
    let call = |place: usize| {
        let request = batcher.take_one(&takes[place]);
        async move { Ok(request.await??.is_granted()) }
    };
    let alone = allocations_of_a_hundred(1, call)?;
    let of_one_key = allocations_of_a_hundred(BATCH_SIZE, |_| call(0))?;
    let of_many_keys = allocations_of_a_hundred(BATCH_SIZE, call)?;
    assert!(
        alone <= 910 && of_one_key <= 215 && of_many_keys <= 225,
        "{alone} for a hundred calls of one request, {of_one_key} of 256 for one bucket, {of_many_keys} of 256 for one each"
    );
    Ok(())
}

/// The limiter has its default layers over a store outside this process.
#[test]
fn limiter_allocates_once_more_than_its_batcher() -> anyhow::Result<()> {
    let limiter = Limiter::new(Granting, Quota::per_second(10))?;
    let keys = keys()?;
    let call = |place: usize| {
        let request = limiter.allow(&keys[place]);
        async move { Ok(request.await?.is_granted()) }
    };
    let alone = allocations_of_a_hundred(1, call)?;
    let of_one_key = allocations_of_a_hundred(BATCH_SIZE, |_| call(0))?;
    let of_many_keys = allocations_of_a_hundred(BATCH_SIZE, call)?;
    assert!(
        alone <= 1010 && of_one_key <= 315 && of_many_keys <= 325,
        "{alone} for a hundred calls of one request, {of_one_key} of 256 for one bucket, {of_many_keys} of 256 for one each"
    );
    Ok(())
}

const BATCH_SIZE: usize = 256;
