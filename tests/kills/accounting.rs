//! Compares the answers that callers got with the rows of the database.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tollgate::{Error, Key, Quota, Rule, Take};
use uuid::Uuid;

/// A request with an id, for one or more buckets.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Request {
    /// A UUID's number.
    pub id: u128,
    keys: Vec<String>,
    cost: i64,
}

impl Request {
    pub fn new(keys: &[&str]) -> Self {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        Self { id: Uuid::new_v4().as_u128(), keys, cost: fastrand::i64(1..=3) }
    }

    pub fn take(&self) -> Result<Take, Error> {
        let rule = Rule::Quota(Quota::interval(1_000_000_000, DAY)?);
        let (first, others) = self.keys.split_first().expect("a request has a bucket");
        let take = Take::from(Key::try_from(first)?).rule(rule.clone()).cost(self.cost.unsigned_abs());
        let take = take.id(Uuid::from_u128(self.id), DAY);
        others.iter().try_fold(take, |take, key| Ok(take.and(Key::try_from(key)?, rule.clone())))
    }
}

/// The rows of a database.
pub struct Found {
    /// The tokens that were taken from each bucket.
    pub granted: BTreeMap<String, i64>,
    /// The tokens that each request took from each of its buckets.
    pub receipts: BTreeMap<(u128, String), i64>,
}

/// All requests of a test with ids, in their order, and an account for each bucket of requests without ids.
#[derive(Default)]
pub struct Books(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    requested: Vec<Entry>,
    rounds_began_at: usize,
    accounts: BTreeMap<&'static str, Account>,
}

/// A lower and an upper bound of the tokens that requests without ids took from a bucket.
#[derive(Default)]
struct Account {
    least: i64,
    most: i64,
}

struct Entry {
    request: Request,
    is_answered: bool,
}

impl Books {
    pub fn requested(&self, request: Request) {
        self.lock().requested.push(Entry { request, is_answered: false });
    }

    pub fn answered(&self, id: u128) {
        let mut books = self.lock();
        let entry = books.requested.iter_mut().rev().find(|entry| entry.request.id == id);
        entry.expect("only known requests are answered").is_answered = true;
    }

    /// Enters a request without an id. `is_known`: whether it certainly took its tokens.
    pub fn taken(&self, buckets: &[&'static str], cost: i64, is_known: bool) {
        let mut books = self.lock();
        for bucket in buckets {
            let account = books.accounts.entry(bucket).or_default();
            account.most += cost;
            account.least += if is_known { cost } else { 0 };
        }
    }

    pub fn of_this_round(&self) -> Vec<Request> {
        let books = self.lock();
        books.requested[books.rounds_began_at..].iter().map(|entry| entry.request.clone()).collect()
    }

    /// Ends a round, and sets the accounts of requests without ids to the tokens that the database has.
    pub fn end_round(&self, found: &Found) {
        let mut books = self.lock();
        for (bucket, account) in &mut books.accounts {
            let granted = found.granted.get(*bucket).copied().unwrap_or_default();
            *account = Account { least: granted, most: granted };
        }
        books.rounds_began_at = books.requested.len();
    }

    /// Checks that each answered request is there, any other in all of its buckets or in none, and nothing else.
    pub fn agree_with(&self, found: &Found) -> anyhow::Result<()> {
        let books = self.lock();
        let mut receipts = 0;
        for Entry { request, is_answered } in &books.requested {
            let mut paid = 0;
            for key in &request.keys {
                if let Some(&cost) = found.receipts.get(&(request.id, key.clone())) {
                    ensure!(cost == request.cost, "{request:?} paid {cost}");
                    paid += 1;
                }
            }
            ensure!(paid == 0 || paid == request.keys.len(), "{request:?} paid in {paid} buckets");
            ensure!(paid > 0 || !is_answered, "{request:?} was answered, and is gone");
            receipts += paid;
        }
        ensure!(
            receipts == found.receipts.len(),
            "{receipts} of {} receipts belong to a request",
            found.receipts.len()
        );

        let mut debits: BTreeMap<&str, i64> = BTreeMap::new();
        for ((_, key), cost) in &found.receipts {
            *debits.entry(key).or_default() += cost;
        }
        for (bucket, Account { least, most }) in &books.accounts {
            let granted = found.granted.get(*bucket).copied().unwrap_or_default();
            ensure!(
                (*least..=*most).contains(&granted),
                "{granted} of {bucket} were taken instead of {least} to {most}"
            );
        }
        for (key, granted) in &found.granted {
            if books.accounts.contains_key(key.as_str()) {
                continue;
            }
            let receipts = debits.remove(key.as_str()).unwrap_or_default();
            ensure!(
                *granted == receipts,
                "{granted} tokens of {key} were taken, and there are receipts for {receipts}"
            );
        }
        ensure!(debits.is_empty(), "{debits:?} were taken from buckets that are gone");
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().expect("no thread panics with the lock")
    }
}

const DAY: Duration = Duration::from_secs(86_400);
