//! What a crash of PostgreSQL forgets, of stores that commit synchronously and asynchronously.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::task::JoinSet;
use tollgate::{Key, Limiter, PgStore, Quota, Store, Take, store::Durability};

use crate::database::{Database, Engine};
use crate::server::Server;

/// When each token of a bucket was known to be granted.
type Granted = BTreeMap<Key, Vec<Instant>>;

/// Buckets are asked until the server dies, and afterwards until they are empty: once by synchronous commits alone, which
/// would take the others to the disk with them, and once by asynchronous ones.
pub async fn a_crash_forgets_nothing_that_was_answered_or_only_what_was_answered_last() -> anyhow::Result<()> {
    let mut server = Server::start(Engine::Postgres).await?;
    let mut database = server.connect().await?;
    database.migrate().await?;
    for durability in [Durability::Synchronous, Durability::Asynchronous] {
        let forgets = forgets(durability, &database).await?;
        database.close().await;
        let (granted, killed) = until_it_dies(&mut server, durability, forgets).await?;
        server.restart()?;
        database = server.connect().await?;
        let last = forgets.map(|forgets| killed.checked_sub(forgets).context("the machine runs for longer"));
        audit(&database, granted, last.transpose()?).await.with_context(|| format!("{durability:?} commits"))?;
    }
    database.close().await;
    Ok(())
}

/// For how long a commit may be in the server's memory alone, if it may.
async fn forgets(durability: Durability, database: &Database) -> anyhow::Result<Option<Duration>> {
    if durability == Durability::Synchronous {
        return Ok(None);
    }
    let Database::Postgres(pool) = database else { anyhow::bail!("other engines have no such delay") };
    let delay = "select setting::bigint from pg_settings where name = 'wal_writer_delay' and unit = 'ms'";
    let delay: i64 = sqlx::query_scalar(delay).fetch_one(pool).await?;
    Ok(Some(Duration::from_millis(3 * delay.unsigned_abs()) + LATE))
}

/// Kills the server when much has been answered so long ago that it must not be forgotten: what was granted, and when it was
/// killed.
async fn until_it_dies(
    server: &mut Server,
    durability: Durability,
    forgets: Option<Duration>,
) -> anyhow::Result<(Granted, Instant)> {
    let store = PgStore::connect(server.url(), durability)?;
    let answered = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let limiter = Limiter::new(store.clone(), quota()?)?;
        callers.spawn(take_on_and_on(limiter, durability, Arc::clone(&answered)));
    }
    while answered.load(Ordering::Relaxed) < ENOUGH {
        tokio::task::yield_now().await;
    }
    let much = Instant::now();
    while forgets.is_some_and(|forgets| much.elapsed() < forgets) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let killed = Instant::now();
    server.kill().await?;
    let mut granted = Granted::new();
    while let Some(caller) = callers.join_next().await {
        for (key, at) in caller? {
            granted.entry(key).or_default().push(at);
        }
    }
    store.pool().close().await;
    Ok((granted, killed))
}

/// Takes tokens of one bucket after the other, until there is no answer, and says of which it had one, and when.
async fn take_on_and_on(
    limiter: Limiter<PgStore>,
    durability: Durability,
    answered: Arc<AtomicUsize>,
) -> Vec<(Key, Instant)> {
    let mut granted = Vec::new();
    for n in 0_u64.. {
        let key = Key::try_from(format!("{durability:?}:{}", n / 2)).expect("a key");
        match limiter.allow(&key).await {
            Ok(decision) if decision.is_granted() => granted.push((key, Instant::now())),
            Ok(_) => {}
            Err(_) => break,
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    granted
}

/// What was answered before those last moments, if there are any, is there; only what was answered in them can be granted
/// again.
async fn audit(database: &Database, granted: Granted, last: Option<Instant>) -> anyhow::Result<()> {
    let there = database.found().await?.granted;
    let Database::Postgres(pool) = database else { anyhow::bail!("another engine") };
    let (store, keys) = (PgStore::from(pool.clone()), granted.keys().cloned().collect::<Vec<_>>());
    let mut again = Vec::new();
    for keys in keys.chunks(100) {
        let of = |key: &Key| Ok::<_, tollgate::Error>(Take::from(key.clone()).rule(quota()?.into()));
        // As many as a bucket holds, and one more.
        let each = keys.iter().flat_map(|key| std::iter::repeat_n(key, EACH)).map(of).collect::<Result<Vec<_>, _>>()?;
        let outcomes = store.take(&each).await?;
        for of_a_key in outcomes.chunks(EACH) {
            let granted =
                |outcome: &&tollgate::model::Outcome| outcome.as_ref().is_ok_and(tollgate::Decision::is_granted);
            again.push(of_a_key.iter().filter(granted).count());
        }
    }
    ensure!(again.len() == keys.len(), "each is asked again");
    for ((key, at), again) in granted.into_iter().zip(again) {
        let there = there.get(key.as_str()).map_or(0, |granted| granted.unsigned_abs());
        let of_last = at.iter().filter(|at| last.is_some_and(|last| **at >= last)).count();
        let before = at.len() - of_last;
        ensure!(there >= before as u64, "{key}: {there} tokens are there, and {before} had been answered in time");
        let (all, most) = (at.len() + again, CAPACITY + of_last);
        ensure!(all <= most, "{key}: {all} tokens were granted in both lives, of {CAPACITY} and {of_last} of the last");
    }
    Ok(())
}

fn quota() -> Result<Quota, tollgate::model::QuotaError> {
    Quota::once(CAPACITY as u64)
}

const CAPACITY: usize = 5;
const EACH: usize = CAPACITY + 1;
const CALLERS: usize = 4;
const ENOUGH: usize = 1000;
/// How late the server's task that writes may be, on a machine that is busy with other tests.
const LATE: Duration = Duration::from_secs(1);
