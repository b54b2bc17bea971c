//! Callers whose requests are batched, with ids and without.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{bail, ensure};
use tokio::task::JoinHandle;
use tollgate::TakeError;
use tollgate::{
    Adjusted, Adjustment, AnyStore, Error, Key, Quota, Rule, Store, Take, layers::Batcher, model::Outcome,
    store::Capabilities, store::TestStore,
};

use crate::accounting::{Books, Request};
use crate::database::Database;

pub struct BatchedCallers {
    batcher: Arc<Batcher<Underlying>>,
    books: Arc<Books>,
}

impl BatchedCallers {
    pub fn new(database: &Database, books: Arc<Books>) -> Self {
        let underlying = Underlying { store: database.store(), cut_off: AtomicUsize::new(0) };
        Self { batcher: Arc::new(Batcher::new(underlying)), books }
    }

    /// Starts callers that make requests until one has no answer.
    pub fn spawn_all(&self) -> Vec<JoinHandle<anyhow::Result<()>>> {
        let callers = (0..CALLERS).map(|number| {
            let (batcher, books) = (Arc::clone(&self.batcher), Arc::clone(&self.books));
            tokio::spawn(async move {
                // Few requests have ids, because each of them is repeated later.
                let has_ids = number % 8 == 0;
                while if has_ids { once(&batcher, &books).await? } else { without_id(&batcher, &books).await? } {}
                Ok(())
            })
        });
        callers.collect()
    }

    /// Returns how many batches were in flight when the database was killed. Their outcome is unknown.
    pub fn cut_off(&self) -> usize {
        self.batcher.store().cut_off.load(Ordering::SeqCst)
    }
}

/// Makes a request with an id. Returns whether there was an answer.
async fn once(batcher: &Batcher<Underlying>, books: &Books) -> anyhow::Result<bool> {
    let request = Request::new(&[fastrand::choice(WITH_IDS).expect("there are some")]);
    books.requested(request.clone());
    let is_answered = is_answered(batcher.take_one(&request.take()?).await)?;
    if is_answered {
        books.answered(request.id);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..3))).await;
    }
    Ok(is_answered)
}

/// Makes a request without an id, for one bucket or two. Returns whether there was an answer.
async fn without_id(batcher: &Batcher<Underlying>, books: &Books) -> anyhow::Result<bool> {
    let place = fastrand::usize(1..WITHOUT_IDS.len());
    let buckets = if fastrand::u8(..3) == 0 { &WITHOUT_IDS[place - 1..=place] } else { &WITHOUT_IDS[place..=place] };
    let cost = fastrand::u8(1..=3);
    let rule = Rule::Quota(Quota::once(1_000_000_000)?);
    let take = Take::from(Key::try_from(buckets[0])?).rule(rule.clone()).cost(cost.into());
    let take =
        buckets[1..].iter().try_fold(take, |take, key| Ok::<_, Error>(take.and(Key::try_from(*key)?, rule.clone())))?;
    let is_answered = is_answered(batcher.take_one(&take).await)?;
    books.taken(buckets, cost.into(), is_answered);
    Ok(is_answered)
}

fn is_answered(answer: Result<Outcome, Error>) -> anyhow::Result<bool> {
    match answer {
        Ok(outcome) => {
            ensure!(outcome?.is_granted(), "there are enough tokens for all");
            Ok(true)
        }
        Err(Error::Unavailable(_) | Error::CircuitOpen { .. } | Error::Contended { .. }) => Ok(false),
        Err(error) if error.is_outcome_unknown() => Ok(false),
        Err(error) => bail!(error),
    }
}

/// The underlying store. Counts the batches whose outcome is unknown.
struct Underlying {
    store: AnyStore,
    cut_off: AtomicUsize,
}

impl TestStore for Underlying {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let answer = self.store.take(takes).await;
        let is_cut_off = takes.len() > 1 && answer.as_ref().is_err_and(Error::is_outcome_unknown);
        self.cut_off.fetch_add(is_cut_off.into(), Ordering::SeqCst);
        answer
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust(adjustments).await
    }
}

const CALLERS: usize = 32;
const WITH_IDS: &[&str] = &["batched 1", "batched 2", "batched 3"];
const WITHOUT_IDS: &[&str] = &["nameless 1", "nameless 2", "nameless 3", "nameless 4", "nameless 5", "nameless 6"];
