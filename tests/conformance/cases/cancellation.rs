//! State after cancelled calls.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::{ConnectOptions, Row};
use tollgate::{Error, Key, Limiter, Quota, Store, Take, layers::LeaseOptions, model::Outcome};
use tollgate_tests::cancellation;
use tollgate_tests::rounds::rounds;

use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::all_given_back;
use crate::store::{AnyOf, AnyStore, on};
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup { levels: IsolationLevels::Every, ..Setup::LAYERED_EVERYWHERE };
            calls_dropped_at_random_points_keep_accounting_correct,
        ),
        // Without layers: the case builds limiters with these layers and with a lease.
        list!(Setup::WITHOUT_LAYERS; cancelled_calls_of_every_method_keep_accounting_correct),
    ]
    .concat()
}

async fn calls_dropped_at_random_points_keep_accounting_correct(db: TestDb) -> anyhow::Result<()> {
    let quota = Quota::interval(1_000_000, Duration::from_secs(86_400))?;
    let keys = [db.bucket(quota).await?, db.bucket(quota).await?];
    let calls = rounds(if db.level.is_none() { 2_000 } else { 500 })?;
    let store = db.store();
    let books = Arc::new(Books::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|seed| {
            let (store, keys, books) = (store.clone(), keys.clone(), Arc::clone(&books));
            tokio::spawn(async move {
                Caller { store, keys, rng: Rng(seed + 1), books }.give_up(u64::from(calls) / CALLERS).await
            })
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    all_given_back(&db.pool).await;

    let (known, unknown) = (books.known.load(Ordering::SeqCst), books.unknown.load(Ordering::SeqCst));
    let mut debited = 0;
    for key in &keys {
        debited += db.row(key).await?.map_or(0, |row| row.granted);
    }
    assert!(known <= debited && debited <= known + unknown, "{known} known, {unknown} unknown, {debited} debited");
    assert!(known > 0 && unknown > 0, "{known} known, {unknown} unknown: too few to show anything");
    no_transaction_is_open(&db).await
}

/// Uses a limiter's default layers, and a lease, too.
async fn cancelled_calls_of_every_method_keep_accounting_correct(db: TestDb) -> anyhow::Result<()> {
    // A file answers many more calls than a server in the same time.
    let calls = rounds(if db.directory.is_some() { 8_000 } else { 1_000 })?;
    on!(db.store().database, store => {
        for builder in [Limiter::builder(store.clone()), Limiter::builder(store).lease(LeaseOptions::default())] {
            let keys = std::array::from_fn(|_| db.key());
            let limiter = builder.build("1/s")?;
            cancellation::check_cancelled_calls(&limiter, limiter.store(), keys, calls.into()).await?;
        }
    });
    all_given_back(&db.pool).await;
    no_transaction_is_open(&db).await
}

/// The tokens that the callers know of.
#[derive(Default)]
struct Books {
    known: AtomicI64,
    unknown: AtomicI64,
}

struct Caller {
    store: AnyStore,
    keys: [Key; 2],
    rng: Rng,
    books: Arc<Books>,
}

impl Caller {
    async fn give_up(mut self, calls: u64) -> anyhow::Result<()> {
        for _ in 0..calls {
            // For one bucket, or for both at once, which takes more than one statement on a file.
            let buckets = if self.rng.below(2) == 0 { &self.keys[..1] } else { &self.keys };
            let takes: Vec<Take> = buckets.iter().cloned().map(Take::from).collect();
            let (store, tokens) = (self.store.clone(), i64::try_from(takes.len())?);
            let call = async move { store.take(&takes).await };
            let patience = self.rng.below(300);
            let answer = match self.rng.below(5) {
                0 => {
                    drop(call);
                    continue;
                }
                // On a busy machine, other calls can all be cancelled before an answer.
                4 => Some(call.await),
                1 => tokio::time::timeout(Duration::from_micros(patience), call).await.ok(),
                2 => within_yields(patience, call).await,
                _ => aborted(patience, call).await,
            };
            self.enter(answer, tokens)?;
        }
        Ok(())
    }

    fn enter(&self, answer: Option<Result<Vec<Outcome>, Error>>, tokens: i64) -> anyhow::Result<()> {
        match answer {
            Some(Ok(outcomes)) => {
                for outcome in outcomes {
                    assert!(outcome?.is_granted());
                    self.books.known.fetch_add(1, Ordering::SeqCst);
                }
            }
            // The error means that nothing was taken.
            Some(Err(Error::Contended { .. })) => {}
            Some(Err(error)) if !error.is_outcome_unknown() => return Err(error.into()),
            _ => {
                self.books.unknown.fetch_add(tokens, Ordering::SeqCst);
            }
        }
        Ok(())
    }
}

/// Yields `patience` times, and drops the call if it has not ended by then.
async fn within_yields<T>(patience: u64, call: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        answer = call => Some(answer),
        () = async { for _ in 0..patience { tokio::task::yield_now().await } } => None,
    }
}

async fn aborted<T: Send + 'static>(patience: u64, call: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let call = tokio::spawn(call);
    for _ in 0..patience {
        tokio::task::yield_now().await;
    }
    call.abort();
    call.await.ok()
}

/// Takes every connection out of the pool and checks its session.
async fn no_transaction_is_open(db: &TestDb) -> anyhow::Result<()> {
    match &db.pool {
        AnyPool::MySql(pool) => {
            let mut connections = Vec::new();
            for _ in 0..pool.size() {
                let mut connection = pool.acquire().await?;
                // An error within a transaction.
                sqlx::raw_sql("set transaction isolation level read committed").execute(&mut *connection).await?;
                connections.push(connection);
            }
        }
        AnyPool::Postgres(pool) => {
            let mut connections = Vec::new();
            for _ in 0..pool.size() {
                let mut connection = pool.acquire().await?;
                // A single message, which starts a transaction unless one is open.
                let began = sqlx::raw_sql("select now() = statement_timestamp()").fetch_one(&mut *connection).await?;
                assert!(began.try_get::<bool, _>(0)?, "a transaction is open");
                connections.push(connection);
            }
        }
        AnyPool::Sqlite(pool) => {
            assert!(pool.size() > 1, "nobody was in anybody's way");
            // Fails at once if another connection is reading or writing.
            let mut impatient = pool.connect_options().as_ref().clone().busy_timeout(Duration::ZERO).connect().await?;
            let emptied = sqlx::raw_sql("pragma wal_checkpoint(truncate)").fetch_one(&mut impatient).await?;
            assert_eq!(emptied.try_get::<i64, _>(0)?, 0, "a transaction is open");
        }
    }
    Ok(())
}

/// Marsaglia's xorshift: equal cancellation points in every run, as far as the scheduler allows.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        for shift in [13_i8, -7, 17] {
            self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
        }
        self.0 % bound
    }
}

const CALLERS: u64 = 8;
