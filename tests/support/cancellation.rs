//! Cancels calls of every method of a limiter at random, and checks the tokens afterwards.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tollgate::{Adjusted, Admin, Error, Key, Limiter, Quota, Reservation, Rule, Store, Take};
use uuid::Uuid;

/// Buckets that no other test uses, with an account of the tokens that were taken from them.
struct Buckets {
    /// These buckets never run out and never refill, so missing tokens were taken.
    ample: [Key; 2],
    /// These buckets are mostly empty: requests are denied, wait, or are cancelled before their scheduled time.
    tight: [Key; 2],
    books: Books,
}

#[derive(Debug, Default)]
struct Books {
    ample: Account,
    tight: Account,
    answered: AtomicU64,
    cancelled: AtomicU64,
}

/// A lower and an upper bound of the tokens that were taken.
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

/// Makes `calls` calls and cancels some. Checks that every call ends, and that the tokens match the accounts.
pub async fn check_cancelled_calls<S: Store>(
    limiter: &Limiter<S>,
    store: &impl Admin,
    [a, b, c, d]: [Key; 4],
    calls: u64,
) -> anyhow::Result<()> {
    let buckets = Arc::new(Buckets { ample: [a, b], tight: [c, d], books: Books::default() });
    // Sweeps never delete provisioned buckets.
    for (ample, tight) in buckets.ample.iter().zip(&buckets.tight) {
        store.create_bucket(ample, Quota::once(AMPLE)?).await?;
        store.create_bucket(tight, Quota::per_second(5000).burst(20).build()?).await?;
    }
    let mut callers: JoinSet<anyhow::Result<()>> = (0..CALLERS)
        .map(|_| {
            let (limiter, buckets) = (limiter.clone(), Arc::clone(&buckets));
            async move {
                for _ in 0..calls / CALLERS {
                    call_at_random(&limiter, &buckets).await?;
                }
                Ok(())
            }
        })
        .collect();
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    // Cancelled waits do not block the queue of a key.
    for (take, account) in [(buckets.ample(0), &buckets.books.ample), (buckets.tight(0), &buckets.books.tight)] {
        assert!(limiter.wait_request(&take.cost(1).max_wait(LONGEST)).await?.is_granted());
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
                used += store.peek(key).await?.map_or(0, |level| AMPLE.cast_signed() - level.available());
            }
            for key in &self.tight {
                granted += store.peek(key).await?.map_or(0, |level| i64::try_from(level.granted()).unwrap_or(-1));
            }
            if books.ample.holds(used) && books.tight.holds(granted) {
                let (answered, cancelled) =
                    (books.answered.load(Ordering::SeqCst), books.cancelled.load(Ordering::SeqCst));
                anyhow::ensure!(answered > 0 && cancelled > 0, "{answered} answered, {cancelled} cancelled");
                return Ok(());
            }
            // Cancelled calls can still be in flight.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("{used} are used and {granted} were granted: {books:?}")
    }
}

/// Calls a random method. Then cancels, refunds or settles some of the reservations.
async fn call_at_random<S: Store>(limiter: &Limiter<S>, buckets: &Arc<Buckets>) -> anyhow::Result<()> {
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
                // Cancelling the latest reservation takes it off the granted tokens, too.
                books.tight.add(-1, 0);
                let _ = cancelled_at_random(reservation.cancel()).await.transpose()?;
            }
            Ok(())
        }
        6 => {
            let refundable = ample.clone().refundable();
            let reserved = taken(books, &books.ample, COST, reserve(limiter, refundable)).await?;
            if let Some(reservation) = reserved {
                match cancelled_at_random(reservation.refund(1)).await {
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
                match cancelled_at_random(reservation.settle(used)).await {
                    Some(Ok(Adjusted::Done(tokens))) => books.ample.add(-tokens, -tokens),
                    _ => books.ample.add(-less.max(0), (-less).max(0)),
                }
            }
            Ok(())
        }
    }
}

type Reserving<S> = Pin<Box<dyn Future<Output = Result<Option<Reservation<S>>, Error>> + Send>>;

fn reserve<S: Store>(limiter: &Limiter<S>, take: Take) -> Reserving<S> {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.reserve_request(&take).await.map(|one| one.is_granted().then_some(one)) })
}

fn wait_for<S: Store>(limiter: &Limiter<S>, take: Take) -> Reserving<S> {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.wait_request(&take).await.map(|one| one.is_granted().then_some(one)) })
}

/// Enters the result of a call for `tokens` tokens in the account.
async fn taken<S: Store>(
    books: &Books,
    account: &Account,
    tokens: i64,
    call: Reserving<S>,
) -> anyhow::Result<Option<Reservation<S>>> {
    match cancelled_at_random(call).await {
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
            books.cancelled.fetch_add(1, Ordering::SeqCst);
            account.add(0, tokens);
            Ok(None)
        }
    }
}

/// Drops a call at a random point, or awaits it.
async fn cancelled_at_random<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> Option<T> {
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
        // Awaits a third of the calls, so that some are answered on a busy machine, too.
        _ => Some(call.await),
    }
}

/// The cost of a request for an ample bucket.
const COST: i64 = 3;

const CALLERS: u64 = 64;

const AMPLE: u64 = 1_000_000_000;

const LONGEST: Duration = Duration::from_secs(20);
