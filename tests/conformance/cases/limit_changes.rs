//! Changed limits: buckets keep their available tokens, up to the new capacity, without a debt or a second refill.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{Decision, Key, Quota, Rule, Take};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, ..Setup::DEFAULT };
        larger_capacity_of_an_empty_bucket_adds_no_tokens,
        smaller_capacity_discards_the_excess_tokens,
        faster_refill_keeps_the_fraction_of_a_token,
        changes_of_an_idle_bucket_settle_when_they_are_made,
        another_kind_of_refill_keeps_the_tokens,
        tokens_promised_ahead_stay_promised,
        a_change_is_settled_even_by_a_denial,
    )
}

async fn larger_capacity_of_an_empty_bucket_adds_no_tokens(db: TestDb) -> anyhow::Result<()> {
    for by in Means::of(&db) {
        let mut bucket = Bucket::new(&db, by, Quota::continuous(10, secs(10))?).await?;
        bucket.drain(10).await?;
        bucket.change(Quota::continuous(1000, secs(10))?).await?;
        bucket.has(0).await?;
        bucket.pass(9_999_999).await?;
        bucket.has(0).await?;
        bucket.pass(1).await?;
        bucket.has(1).await?;
        bucket.pass(SECOND / 10).await?;
        bucket.has(11).await?;
        bucket.pass(20 * SECOND).await?;
        bucket.has(1000).await?;
    }
    Ok(())
}

async fn smaller_capacity_discards_the_excess_tokens(db: TestDb) -> anyhow::Result<()> {
    for by in Means::of(&db) {
        for kind in [Quota::continuous, Quota::interval] {
            let mut bucket = Bucket::new(&db, by, kind(100, secs(1000))?).await?;
            bucket.drain(50).await?;
            bucket.change(kind(40, secs(1000))?).await?;
            bucket.drain(15).await?;
            bucket.has(25).await?;
            // Tokens above the new capacity are gone for good, and nothing is owed for them.
            bucket.change(kind(100, secs(1000))?).await?;
            bucket.has(25).await?;
            bucket.drain(25).await?;
            bucket.change(kind(1, secs(1000))?).await?;
            bucket.has(0).await?;
            bucket.pass(1000 * SECOND).await?;
            bucket.has(1).await?;
        }
    }
    Ok(())
}

async fn faster_refill_keeps_the_fraction_of_a_token(db: TestDb) -> anyhow::Result<()> {
    for by in Means::of(&db) {
        let mut bucket = Bucket::new(&db, by, Quota::continuous(1, secs(3600))?).await?;
        bucket.drain(1).await?;
        bucket.pass(1800 * SECOND).await?;
        // Half a token is there: at 100 per second, the other half takes 5 ms.
        bucket.change(Quota::continuous(100, secs(1))?).await?;
        bucket.has(0).await?;
        bucket.pass(4_999_999).await?;
        bucket.has(0).await?;
        bucket.pass(1).await?;
        bucket.has(1).await?;
        bucket.pass(SECOND).await?;
        bucket.has(100).await?;
    }
    Ok(())
}

async fn changes_of_an_idle_bucket_settle_when_they_are_made(db: TestDb) -> anyhow::Result<()> {
    // A quota in a request takes effect with the request, and so does an UPDATE, except on PostgreSQL. So only these two change
    // an idle bucket.
    let at_once = |by: &Means| *by == Means::Create || *by == Means::Update && db.engine.kind == Kind::Postgres;
    for by in Means::of(&db).into_iter().filter(at_once) {
        let mut bucket = Bucket::new(&db, by, Quota::continuous(10, secs(10))?).await?;
        bucket.drain(10).await?;
        bucket.pass(2 * SECOND).await?;
        bucket.change(Quota::continuous(100, secs(1000))?).await?; // 2 tokens, and one every 10 s
        bucket.pass(30 * SECOND).await?;
        bucket.change(Quota::continuous(20, secs(2))?).await?; // 5 tokens, and one every 100 ms
        bucket.pass(SECOND / 5).await?;
        bucket.has(7).await?;
    }
    Ok(())
}

async fn another_kind_of_refill_keeps_the_tokens(db: TestDb) -> anyhow::Result<()> {
    for by in Means::of(&db) {
        let mut bucket = Bucket::new(&db, by, Quota::continuous(10, secs(10))?).await?;
        bucket.drain(7).await?;
        bucket.pass(SECOND / 2).await?;
        // 3.5 tokens: half a token is not a tick of an interval's clock.
        bucket.change(Quota::interval(10, secs(10))?).await?;
        bucket.has(3).await?;
        bucket.drain(3).await?;
        bucket.has(0).await?;
        bucket.change(Quota::continuous(10, secs(10))?).await?;
        bucket.has(0).await?;
        bucket.pass(SECOND).await?;
        bucket.has(1).await?;
        bucket.change(Quota::interval(5, secs(7))?).await?;
        bucket.has(1).await?;
        bucket.pass(7 * SECOND).await?;
        bucket.has(5).await?;
    }
    Ok(())
}

async fn tokens_promised_ahead_stay_promised(db: TestDb) -> anyhow::Result<()> {
    for by in Means::of(&db) {
        let mut bucket = Bucket::new(&db, by, Quota::continuous(10, secs(10))?).await?;
        bucket.drain(10).await?;
        let reserved = bucket.decide(|take| take.cost(5).max_wait(secs(60))).await?;
        ensure!(reserved.is_granted() && reserved.wait() == secs(5), "{reserved:?}");
        // 5 tokens in debt: at one every 100 ms, the next token comes after 6.
        bucket.change(Quota::continuous(10, secs(1))?).await?;
        let denied = bucket.decide(|take| take).await?;
        ensure!(!denied.is_granted() && denied.retry_after() == Some(Duration::from_millis(600)), "{denied:?}");
        // A debt lasts a year at most, with any refill.
        bucket.change(Quota::continuous(1, secs(80 * 31_557_600))?).await?;
        let denied = bucket.decide(|take| take).await?;
        let longest = secs(366 * 86_400 + 80 * 31_557_600);
        ensure!(!denied.is_granted() && denied.retry_after() == Some(longest), "{denied:?}");
    }
    Ok(())
}

async fn a_change_is_settled_even_by_a_denial(db: TestDb) -> anyhow::Result<()> {
    let (slow, fast) = (Quota::continuous(10, secs(10_000))?, Quota::continuous(10, secs(10))?);
    let mut bucket = Bucket::new(&db, Means::Request, slow).await?;
    bucket.drain(10).await?;
    bucket.pass(500 * SECOND).await?;
    bucket.change(fast).await?;
    // Half a token was there when the denied request changed the quota. The bucket is full after 9.5 more.
    let denied = bucket.decide(|take| take).await?;
    ensure!(!denied.is_granted() && denied.retry_after() == Some(Duration::from_millis(500)), "{denied:?}");
    bucket.pass(SECOND / 2).await?;
    bucket.has(1).await?;
    bucket.pass(9 * SECOND).await?;
    bucket.has(10).await?;
    Ok(())
}

/// The ways to change a bucket's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// Provisions the bucket again.
    Create,
    /// Sends a request with another quota to a bucket created by its first request.
    Request,
    /// Updates the columns.
    Update,
}

impl Means {
    fn of(db: &TestDb) -> Vec<Self> {
        let mut means = vec![Self::Create, Self::Request];
        // On SQLite, an UPDATE computes the level anew, as the comment on its table says.
        means.extend((db.engine.kind != Kind::Sqlite).then_some(Self::Update));
        means
    }
}

struct Bucket<'a> {
    db: &'a TestDb,
    by: Means,
    key: Key,
    quota: Quota,
    now: i64,
}

impl<'a> Bucket<'a> {
    async fn new(db: &'a TestDb, by: Means, quota: Quota) -> anyhow::Result<Self> {
        // At the end of each second, minute and so on, for buckets whose periods are the calendar's.
        let now = 1_800_000_000 * SECOND;
        db.at(now).await?;
        let key = if by == Means::Request { db.key() } else { db.bucket(quota).await? };
        Ok(Self { db, by, key, quota, now })
    }

    async fn change(&mut self, quota: Quota) -> anyhow::Result<()> {
        self.quota = quota;
        match self.by {
            Means::Create => self.db.create(&self.key, quota).await?,
            Means::Request => {}
            Means::Update => {
                let (capacity, seconds) = (quota.capacity(), quota.refill_time().as_secs());
                let refill = format!("{:?}", quota.refill()).to_lowercase();
                let id = self.db.literal(&self.key);
                let set = format!("capacity = {capacity}, refill_seconds = {seconds}, refill = '{refill}'");
                self.db.sql(format!("update {} set {set} where id = {id}", self.db.table())).await?;
            }
        }
        Ok(())
    }

    async fn pass(&mut self, ns: i64) -> anyhow::Result<()> {
        self.now += ns;
        self.db.at(self.now).await
    }

    /// Takes so many tokens.
    async fn drain(&self, tokens: u64) -> anyhow::Result<()> {
        let decision = self.decide(|take| take.cost(tokens)).await?;
        ensure!(decision.is_granted(), "{:?} {}: {decision:?}", self.by, self.quota);
        Ok(())
    }

    /// Checks the number of whole tokens without taking any, unless the bucket is full: then it takes all tokens.
    async fn has(&self, tokens: u64) -> anyhow::Result<()> {
        let quota = self.quota;
        if tokens == quota.capacity() {
            let all = self.decide(|take| take.cost(tokens)).await?;
            ensure!(all.is_granted() && all.remaining() == Some(0), "{:?} {quota}: {all:?}", self.by);
            return Ok(());
        }
        let denied = self.decide(|take| take.cost(tokens + 1)).await?;
        let found = (denied.is_granted(), denied.remaining());
        ensure!(found == (false, Some(tokens)), "{:?} {quota}: {found:?} instead of {tokens}", self.by);
        Ok(())
    }

    async fn decide(&self, how: impl Fn(Take) -> Take) -> anyhow::Result<Decision> {
        let take = how(Take::from(self.key.clone()));
        self.db.decide(if self.by == Means::Request { take.rule(Rule::Quota(self.quota)) } else { take }).await
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const SECOND: i64 = 1_000_000_000;
