//! Those who wait on an engine while a sequence goes on, as memory says.
//!
//! There each of them is a reservation, which is cancelled when they leave, unless it has an id. Here they sleep by the host's time, which is moved
//! with the injected clock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::task::yield_now;
use tokio::time::{Instant, advance, pause, resume, timeout};
use tollgate::{Error, Limiter, MemoryStore, Quota, Receipt, Reservation, Take, clock::ManualClock};

use super::answers::{agree, outcome};
use crate::store::AnyStore;

type Promised = Reservation<Arc<MemoryStore<ManualClock>>>;
type Granted = Result<Reservation<AnyStore>, Error>;

/// What was taken, in memory and on the engine.
pub(super) type Receipts = (Vec<Receipt>, Vec<Receipt>);

/// In the order in which they came.
#[derive(Default)]
pub(super) struct Waiters(Vec<Waiter>);

struct Waiter {
    /// Which operation it came by.
    place: usize,
    limiter: Limiter<AnyStore>,
    waiting: Waiting,
    promised: Promised,
    /// Then its turn is whoever's who asks with it.
    has_id: bool,
    came: Instant,
    /// How long it has waited by the injected clock.
    waited: Duration,
    /// From then on, it may be forgotten that its tokens were given back.
    hold: Duration,
}

impl Waiters {
    /// Somebody comes, who has an answer at once or waits.
    pub(super) async fn come(
        &mut self,
        (model, engine): (Arc<MemoryStore<ManualClock>>, AnyStore),
        take: &Take,
        (place, hold): (usize, Duration),
    ) -> anyhow::Result<Receipts> {
        let promised = Limiter::new(model, Quota::unlimited())?.reserve_all(take).await;
        let limiter = Limiter::new(engine, Quota::unlimited())?;
        // Time in line counts, so there is none until the store is asked.
        pause();
        let mut waiting = Waiting::begin(limiter.clone(), take.clone());
        let came = Instant::now();
        let unasked = waiting.poll();
        yield_now().await;
        resume();
        if let Some(found) = unasked {
            // Nobody had to be asked.
            return same(promised, found);
        }
        // It ends when the store has answered.
        limiter.close().await?;
        let mut found = waiting.poll();
        if found.is_none() {
            // A wait for several buckets asks again, with its wait.
            limiter.close().await?;
            found = waiting.poll();
        }
        match promised {
            Ok(promised) if promised.is_granted() && !promised.decision().wait().is_zero() => {
                let has_id = take.request_id().is_some();
                let mut waiter =
                    Waiter { place, limiter, waiting, promised, has_id, came, waited: Duration::ZERO, hold };
                waiter.sleeps()?;
                self.0.push(waiter);
                Ok(Receipts::default())
            }
            promised => {
                let found = match found {
                    Some(found) => found,
                    // A request under a sliding window that does not wait is a call of its caller's.
                    None => timeout(HUNG, waiting.0).await.context("it waits though it has an answer")?,
                };
                same(promised, found)
            }
        }
    }

    /// Who came by an operation leaves, if they still wait.
    pub(super) async fn leave(&mut self, place: usize) -> anyhow::Result<()> {
        self.those_leave(|waiter| waiter.place == place).await
    }

    /// Those go on whose turns come within a time, and nobody else. Says by which operations they came.
    pub(super) async fn wait(&mut self, span: Duration) -> anyhow::Result<Vec<(usize, Receipts)>> {
        self.those_leave(|waiter| waiter.left() > span && waiter.hold <= waiter.waited.saturating_add(span)).await?;
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

    async fn those_leave(&mut self, leaves: impl Fn(&Waiter) -> bool) -> anyhow::Result<()> {
        for Waiter { waiting, limiter, promised, has_id, .. } in self.0.extract_if(.., |waiter| leaves(waiter)) {
            drop(waiting);
            // It ends when the tokens are given back; what cannot be given back is lost.
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

    /// Not to be asked when it may have gone on because the host's time went on by itself: what it comes to would not be the
    /// same each time.
    fn sleeps(&mut self) -> anyhow::Result<()> {
        pause();
        let is_due = self.came.elapsed() >= self.promised.decision().wait();
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

/// Somebody on an engine.
struct Waiting(Pin<Box<dyn Future<Output = Granted>>>);

impl Waiting {
    fn begin(limiter: Limiter<AnyStore>, take: Take) -> Self {
        Self(Box::pin(async move { limiter.wait_all(&take).await }))
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
const HUNG: Duration = Duration::from_secs(10);
