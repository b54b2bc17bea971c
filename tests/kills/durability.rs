//! Grants that a crash of PostgreSQL forgets, with synchronous and asynchronous commits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::task::JoinSet;
use tollgate::{Key, Limiter, PgStore, Quota, Store, Take, store::Durability};

use crate::database::{Database, Engine};
use crate::server::Server;

/// The times at which grants of each bucket were answered.
type Granted = BTreeMap<Key, Vec<Instant>>;

/// Takes from buckets until the server is killed, and afterwards until the buckets are empty. Uses one kind of commit at a
/// time, because a synchronous commit also writes earlier asynchronous commits to the disk.
pub async fn crash_forgets_only_the_latest_asynchronous_grants() -> anyhow::Result<()> {
    let mut server = Server::start(Engine::Postgres).await?;
    let mut database = server.connect().await?;
    database.migrate().await?;
    for durability in [Durability::Synchronous, Durability::Asynchronous] {
        let forgets = forgets(durability, &database).await?;
        database.close().await;
        let (granted, killed) = take_until_killed(&mut server, durability, forgets).await?;
        server.restart()?;
        database = server.connect().await?;
        let last = forgets.map(|forgets| killed.checked_sub(forgets).context("the machine runs for longer"));
        audit(&database, granted, last.transpose()?).await.with_context(|| format!("{durability:?} commits"))?;
    }
    database.close().await;
    Ok(())
}

/// Returns how long an asynchronous commit can be in the server's memory alone.
async fn forgets(durability: Durability, database: &Database) -> anyhow::Result<Option<Duration>> {
    if durability == Durability::Synchronous {
        return Ok(None);
    }
    let Database::Postgres(pool) = database else { anyhow::bail!("other engines have no such delay") };
    let delay = "select setting::bigint from pg_settings where name = 'wal_writer_delay' and unit = 'ms'";
    let delay: i64 = sqlx::query_scalar(delay).fetch_one(pool).await?;
    Ok(Some(Duration::from_millis(3 * delay.unsigned_abs()) + MAX_WRITER_DELAY))
}

/// Kills the server once many grants are so old that they must be durable. Returns all grants, and when the server was killed.
async fn take_until_killed(
    server: &mut Server,
    durability: Durability,
    forgets: Option<Duration>,
) -> anyhow::Result<(Granted, Instant)> {
    let store = PgStore::connect(server.url(), durability)?;
    let answered = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let limiter = Limiter::new(store.clone(), quota()?)?;
        callers.spawn(take_until_failure(limiter, durability, Arc::clone(&answered)));
    }
    while answered.load(Ordering::Relaxed) < MIN_ANSWERS {
        tokio::task::yield_now().await;
    }
    let answered_at = Instant::now();
    while forgets.is_some_and(|forgets| answered_at.elapsed() < forgets) {
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

/// Takes from one bucket after the other until there is no answer. Returns each grant with its time.
async fn take_until_failure(
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

/// Checks that grants from before `last` are there, and that only later ones can be granted again. Without `last`, all are
/// there.
async fn audit(database: &Database, granted: Granted, last: Option<Instant>) -> anyhow::Result<()> {
    let stored = database.found().await?.granted;
    let Database::Postgres(pool) = database else { anyhow::bail!("another engine") };
    let (store, keys) = (PgStore::from(pool.clone()), granted.keys().cloned().collect::<Vec<_>>());
    let mut repeated = Vec::new();
    for keys in keys.chunks(100) {
        let of = |key: &Key| Ok::<_, tollgate::Error>(Take::from(key.clone()).rule(quota()?.into()));
        // One request more than the bucket holds tokens.
        let each = keys
            .iter()
            .flat_map(|key| std::iter::repeat_n(key, REQUESTS_PER_KEY))
            .map(of)
            .collect::<Result<Vec<_>, _>>()?;
        let outcomes = store.take(&each).await?;
        for of_a_key in outcomes.chunks(REQUESTS_PER_KEY) {
            let granted =
                |outcome: &&tollgate::model::Outcome| outcome.as_ref().is_ok_and(tollgate::Decision::is_granted);
            repeated.push(of_a_key.iter().filter(granted).count());
        }
    }
    ensure!(repeated.len() == keys.len(), "each bucket is requested again");
    for ((key, at), repeated) in granted.into_iter().zip(repeated) {
        let stored = stored.get(key.as_str()).map_or(0, |granted| granted.unsigned_abs());
        let of_last = at.iter().filter(|at| last.is_some_and(|last| **at >= last)).count();
        let before = at.len() - of_last;
        ensure!(stored >= before as u64, "{key}: {stored} tokens are there, but {before} were answered in time");
        let (all, most) = (at.len() + repeated, CAPACITY + of_last);
        ensure!(
            all <= most,
            "{key}: {all} tokens were granted, more than {CAPACITY} and {of_last} that a crash can forget"
        );
    }
    Ok(())
}

fn quota() -> Result<Quota, tollgate::model::QuotaError> {
    Quota::once(CAPACITY as u64)
}

const CAPACITY: usize = 5;
const REQUESTS_PER_KEY: usize = CAPACITY + 1;
const CALLERS: usize = 4;
const MIN_ANSWERS: usize = 1000;
/// The longest delay of the server's WAL writer on a host that is busy with other tests.
const MAX_WRITER_DELAY: Duration = Duration::from_secs(1);
