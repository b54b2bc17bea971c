//! Waiters on an engine during a sequence, compared with memory.
//!
//! In memory, each waiter is a reservation, which is cancelled when the waiter leaves, unless it has an id. On the engine,
//! waiters sleep by the host's time, which is moved with the injected clock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::task::yield_now;
use tokio::time::{Instant, advance, pause, resume, timeout};
use tollgate::{Error, Limiter, MemoryStore, Quota, Receipt, Reservation, Rule, Store, Take, clock::ManualClock};

use super::answers::{agree, outcome};
use crate::store::AnyStore;

type Promised = Reservation<Arc<MemoryStore<ManualClock>>>;
type Granted = Result<Reservation<AnyStore>, Error>;

/// The receipts in memory and on the engine.
pub(super) type Receipts = (Vec<Receipt>, Vec<Receipt>);

/// In order of arrival.
#[derive(Default)]
pub(super) struct Waiters(Vec<Waiter>);

struct Waiter {
    /// The operation that started the wait.
    place: usize,
    limiter: Limiter<AnyStore>,
    waiting: Waiting,
    promised: Promised,
    /// If true, the reservation stays for the next request with the id.
    has_id: bool,
    started: Instant,
    /// How long it has waited by the injected clock.
    waited: Duration,
    /// The time after which the store can forget that the tokens were given back.
    hold: Duration,
}

impl Waiters {
    /// Starts a waiter, which has an answer at once or waits.
    pub(super) async fn start(
        &mut self,
        (model, engine): (Arc<MemoryStore<ManualClock>>, AnyStore),
        take: &Take,
        (place, hold): (usize, Duration),
    ) -> anyhow::Result<Receipts> {
        let promised = Limiter::new(model, Quota::unlimited())?.reserve_request(take).await;
        for limit in take.limits() {
            if let (Rule::Plan(plan), Some(maintenance)) = (limit.rule(), engine.maintenance()) {
                // Read by the wait itself, they would be a call that close() does not know.
                maintenance.read_plan(plan).await?;
            }
        }
        let limiter = Limiter::new(engine, Quota::unlimited())?;
        // Time in the queue counts, so the clock is paused until the store call.
        pause();
        let mut waiting = Waiting::begin(limiter.clone(), take.clone());
        let started = Instant::now();
        let unasked = waiting.poll();
        yield_now().await;
        resume();
        if let Some(found) = unasked {
            // Decided without a store call.
            return same(promised, found);
        }
        if take.get_max_wait().is_zero() && take.limits().any(|limit| matches!(limit.rule(), Rule::Window(_))) {
            // The request calls the store itself. Unpolled, it would keep the session's connection from close().
            if promised.as_ref().is_ok_and(|promised| !promised.decision().wait().is_zero()) {
                // A repeated id, whose time lies ahead since the clock was set back. The request changes nothing.
                return Ok(Receipts::default());
            }
            let found = timeout(HUNG, waiting.0).await.context("it waits though it has an answer")?;
            return same(promised, found);
        }
        // close() returns when the store has answered.
        limiter.close().await?;
        let mut found = waiting.poll();
        if found.is_none() {
            // A wait for several buckets makes a second call, with its wait.
            limiter.close().await?;
            found = waiting.poll();
        }
        match promised {
            Ok(promised) if promised.is_granted() && !promised.decision().wait().is_zero() => {
                let has_id = take.get_id().is_some();
                let mut waiter =
                    Waiter { place, limiter, waiting, promised, has_id, started, waited: Duration::ZERO, hold };
                waiter.sleeps()?;
                self.0.push(waiter);
                Ok(Receipts::default())
            }
            promised => same(promised, found.context("it waits though it has an answer")?),
        }
    }

    /// Cancels the waiter of an operation, if it is still waiting.
    pub(super) async fn leave(&mut self, place: usize) -> anyhow::Result<()> {
        self.cancel_where(|waiter| waiter.place == place).await
    }

    /// Lets the waiters finish that are scheduled within `span`, and no others. Returns the operations that started them.
    pub(super) async fn wait(&mut self, span: Duration) -> anyhow::Result<Vec<(usize, Receipts)>> {
        self.cancel_where(|waiter| waiter.left() > span && waiter.hold <= waiter.waited.saturating_add(span)).await?;
        let Some(longest) = self.0.iter().map(Waiter::left).max() else { return Ok(Vec::new()) };
        pause();
        advance(longest.min(span)).await;
        resume();
        let mut gone = Vec::new();
        for waiter in self.0.extract_if(.., |waiter| waiter.left() <= span) {
            let found = timeout(HUNG, waiter.waiting.0).await.with_context(|| format!("{} waits on", waiter.place))?;
            gone.push((waiter.place, same(Ok(waiter.promised), found)?));
        }
        for waiter in &mut self.0 {
            waiter.waited += span;
            waiter.sleeps()?;
        }
        Ok(gone)
    }

    async fn cancel_where(&mut self, leaves: impl Fn(&Waiter) -> bool) -> anyhow::Result<()> {
        for Waiter { waiting, limiter, promised, has_id, .. } in self.0.extract_if(.., |waiter| leaves(waiter)) {
            drop(waiting);
            // close() returns when the tokens are given back. Tokens that cannot be given back are lost.
            limiter.close().await?;
            if !has_id {
                drop(promised.cancel().await);
            }
        }
        Ok(())
    }
}

impl Waiter {
    fn left(&self) -> Duration {
        self.promised.decision().wait().saturating_sub(self.waited)
    }

    /// Checks that the waiter still sleeps. Skips waiters that the host's own time can have woken, whose result would differ
    /// between runs.
    fn sleeps(&mut self) -> anyhow::Result<()> {
        pause();
        let is_due = self.started.elapsed() >= self.promised.decision().wait();
        let found = if is_due { None } else { self.waiting.poll() };
        resume();
        if let Some(found) = found {
            let found = outcome(found.as_ref().map(Reservation::decision))?;
            agree(&Ok(self.promised.decision().clone()), &found)?;
            bail!("who came by {} goes on too early", self.place);
        }
        Ok(())
    }
}

/// A waiter on an engine.
struct Waiting(Pin<Box<dyn Future<Output = Granted>>>);

impl Waiting {
    fn begin(limiter: Limiter<AnyStore>, take: Take) -> Self {
        Self(Box::pin(async move { limiter.wait_request(&take).await }))
    }

    fn poll(&mut self) -> Option<Granted> {
        match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(granted) => Some(granted),
            Poll::Pending => None,
        }
    }
}

fn same(expected: Result<Promised, Error>, found: Granted) -> anyhow::Result<Receipts> {
    let decided = outcome(expected.as_ref().map(Reservation::decision))?;
    agree(&decided, &outcome(found.as_ref().map(Reservation::decision))?)?;
    Ok(match (expected, found) {
        (Ok(expected), Ok(found)) => (expected.receipts().to_vec(), found.receipts().to_vec()),
        _ => Receipts::default(),
    })
}

/// Longer than a call takes on a slow machine.
pub(super) const HUNG: Duration = Duration::from_secs(10);
