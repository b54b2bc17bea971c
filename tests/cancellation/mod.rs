//! Callers of every verb of a limiter who give up at random, and what they know of the tokens afterwards.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tollgate::{Adjusted, Admin, Error, Key, Limiter, Quota, Reservation, Rule, Store, Take};
use uuid::Uuid;

/// Buckets that nobody else uses, and what is known of the tokens that were taken from them.
pub(crate) struct Buckets {
    /// Always with tokens, and never refilled: what is gone was taken.
    ample: [Key; 2],
    /// Mostly without: requests are denied, wait, and are cancelled before their turn.
    tight: [Key; 2],
    books: Books,
}

#[derive(Debug, Default)]
struct Books {
    ample: Account,
    tight: Account,
    answered: AtomicU64,
    given_up: AtomicU64,
}

/// At least so many tokens are gone, and at most so many.
#[derive(Debug, Default)]
struct Account {
    least: AtomicI64,
    most: AtomicI64,
}

impl Account {
    fn add(&self, least: i64, most: i64) {
        self.least.fetch_add(least, Ordering::SeqCst);
        self.most.fetch_add(most, Ordering::SeqCst);
    }

    fn holds(&self, gone: i64) -> bool {
        self.least.load(Ordering::SeqCst) <= gone && gone <= self.most.load(Ordering::SeqCst)
    }
}

/// So many calls in all. Every one ends: none waits for ever for an answer.
pub(crate) async fn give_up<S: Store>(
    limiter: &Limiter<S>,
    store: &impl Admin,
    [a, b, c, d]: [Key; 4],
    calls: u64,
) -> anyhow::Result<()> {
    let buckets = Arc::new(Buckets { ample: [a, b], tight: [c, d], books: Books::default() });
    // Provisioned ones are never swept away.
    for (ample, tight) in buckets.ample.iter().zip(&buckets.tight) {
        store.create_bucket(ample, Quota::once(AMPLE)?).await?;
        store.create_bucket(tight, Quota::per_second(5000).burst(20).build()?).await?;
    }
    let mut callers: JoinSet<anyhow::Result<()>> = (0..CALLERS)
        .map(|_| {
            let (limiter, buckets) = (limiter.clone(), Arc::clone(&buckets));
            async move {
                for _ in 0..calls / CALLERS {
                    call(&limiter, &buckets).await?;
                }
                Ok(())
            }
        })
        .collect();
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    // Nobody's place in a line is taken by somebody who has left it.
    for (take, account) in [(buckets.ample(0), &buckets.books.ample), (buckets.tight(0), &buckets.books.tight)] {
        assert!(limiter.wait_all(&take.cost(1).max_wait(LONGEST)).await?.is_granted());
        account.add(1, 1);
    }
    limiter.close().await?;
    buckets.balance(store).await
}

impl Buckets {
    fn ample(&self, place: usize) -> Take {
        Take::from(self.ample[place].clone()).cost(COST.unsigned_abs())
    }

    fn tight(&self, place: usize) -> Take {
        Take::from(self.tight[place].clone())
    }

    async fn balance(&self, store: &impl Admin) -> anyhow::Result<()> {
        let books = &self.books;
        let (mut used, mut granted) = (0, 0);
        for _ in 0..1000 {
            (used, granted) = (0, 0);
            for key in &self.ample {
                used += store.peek(key).await?.map_or(0, |level| AMPLE.cast_signed() - level.available);
            }
            for key in &self.tight {
                granted += store.peek(key).await?.map_or(0, |level| i64::try_from(level.granted).unwrap_or(-1));
            }
            if books.ample.holds(used) && books.tight.holds(granted) {
                let (answered, given_up) =
                    (books.answered.load(Ordering::SeqCst), books.given_up.load(Ordering::SeqCst));
                anyhow::ensure!(answered > 0 && given_up > 0, "{answered} answered, {given_up} given up");
                return Ok(());
            }
            // What was given up may still be on its way.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("{used} are used and {granted} were granted: {books:?}")
    }
}

/// One call of one verb, and what follows of a reservation.
async fn call<S: Store>(limiter: &Limiter<S>, buckets: &Arc<Buckets>) -> anyhow::Result<()> {
    let place = fastrand::usize(..2);
    let (ample, tight) = (buckets.ample(place), buckets.tight(place));
    let books = &buckets.books;
    match fastrand::u32(0..8) {
        0 => taken(books, &books.ample, COST, reserve(limiter, ample.clone())).await.map(drop),
        1 => taken(books, &books.tight, 1, reserve(limiter, tight.clone())).await.map(drop),
        2 => {
            let other = buckets.ample(1 - place);
            let both = ample.clone().and(other.key().clone(), Rule::Provisioned);
            taken(books, &books.ample, 2 * COST, reserve(limiter, both)).await.map(drop)
        }
        3 => {
            let wait = tight.clone().max_wait(LONGEST);
            taken(books, &books.tight, 1, wait_for(limiter, wait)).await.map(drop)
        }
        4 => {
            let wait = ample.clone().max_wait(LONGEST);
            taken(books, &books.ample, COST, wait_for(limiter, wait)).await.map(drop)
        }
        5 => {
            let later = tight.clone().max_wait(LONGEST);
            let reserved = taken(books, &books.tight, 1, reserve(limiter, later)).await?;
            if let Some(reservation) = reserved {
                // If it was the last one, it is as if it had never been.
                books.tight.add(-1, 0);
                let _ = given_up(reservation.cancel()).await.transpose()?;
            }
            Ok(())
        }
        6 => {
            let refundable = ample.clone().refundable();
            let reserved = taken(books, &books.ample, COST, reserve(limiter, refundable)).await?;
            if let Some(reservation) = reserved {
                match given_up(reservation.refund(1)).await {
                    Some(Ok(tokens)) => books.ample.add(-i64::try_from(tokens)?, -i64::try_from(tokens)?),
                    _ => books.ample.add(-1, 0),
                }
            }
            Ok(())
        }
        _ => {
            let once = ample.clone().id(Uuid::new_v4(), Duration::from_secs(600));
            let reserved = taken(books, &books.ample, COST, reserve(limiter, once)).await?;
            if let Some(reservation) = reserved {
                let used = fastrand::u64(0..6);
                let less = COST - i64::try_from(used)?;
                match given_up(reservation.settle(used)).await {
                    Some(Ok(Adjusted::Done(tokens))) => books.ample.add(-tokens, -tokens),
                    _ => books.ample.add(-less.max(0), (-less).max(0)),
                }
            }
            Ok(())
        }
    }
}

type Asked<S> = Pin<Box<dyn Future<Output = Result<Option<Reservation<S>>, Error>> + Send>>;

fn reserve<S: Store>(limiter: &Limiter<S>, take: Take) -> Asked<S> {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.reserve_all(&take).await.map(|one| one.is_granted().then_some(one)) })
}

fn wait_for<S: Store>(limiter: &Limiter<S>, take: Take) -> Asked<S> {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.wait_all(&take).await.map(|one| one.is_granted().then_some(one)) })
}

/// Enters what a call for so many tokens came to.
async fn taken<S: Store>(
    books: &Books,
    account: &Account,
    tokens: i64,
    asked: Asked<S>,
) -> anyhow::Result<Option<Reservation<S>>> {
    match given_up(asked).await {
        Some(Ok(reservation)) => {
            books.answered.fetch_add(1, Ordering::SeqCst);
            if reservation.is_some() {
                account.add(tokens, tokens);
            }
            Ok(reservation)
        }
        // Nothing was taken.
        Some(Err(Error::Contended { .. } | Error::CircuitOpen { .. } | Error::Unavailable(_))) => Ok(None),
        Some(Err(error)) if !error.is_outcome_unknown() => Err(error.into()),
        _ => {
            books.given_up.fetch_add(1, Ordering::SeqCst);
            account.add(0, tokens);
            Ok(None)
        }
    }
}

/// Drops a call at a random point, or awaits it.
async fn given_up<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let patience = fastrand::u64(0..300);
    match fastrand::u32(0..6) {
        0 => None,
        1 => tokio::time::timeout(Duration::from_micros(10 * patience), call).await.ok(),
        2 => {
            tokio::select! {
                biased;
                answer = call => Some(answer),
                () = async { for _ in 0..patience { yield_now().await } } => None,
            }
        }
        3 => {
            let call = tokio::spawn(call);
            for _ in 0..patience {
                yield_now().await;
            }
            call.abort();
            call.await.ok()
        }
        // On a busy machine nobody else may live to see an answer.
        _ => Some(call.await),
    }
}

/// Of a request for an ample bucket.
const COST: i64 = 3;

const CALLERS: u64 = 64;

const AMPLE: u64 = 1_000_000_000;

const LONGEST: Duration = Duration::from_secs(20);
