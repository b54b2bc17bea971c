//! A lease whose answers get lost: its tokens are lost or given back, and never granted twice.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tollgate::{
    Adjusted, Adjustment, Admin, Error, Key, Quota, Store, Take, TakeError,
    layers::{Lease, LeaseOptions},
    model::{Outcome, Source},
    store::TestStore,
};

use super::has_server;
use crate::matrix::{Case, Setup, list};
use crate::pools::through_proxy;
use crate::proxy::{Proxy, Then};
use crate::store::AnyStore;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use their own lease.
    list!(
        Setup { needs: has_server, ..Setup::WITHOUT_LAYERS };
        lease_tokens_that_never_arrive_are_lost,
        lease_refund_with_lost_answer_counts_once,
    )
}

async fn lease_tokens_that_never_arrive_are_lost(db: TestDb) -> anyhow::Result<()> {
    let mut leased = Leased::new(&db, Unheard::FirstDebit).await?;
    // No call waits for the prefetched tokens or for the lost answer.
    let (lost, error) = loop {
        leased.take_leased().await?;
        if let Ok(unanswered) = leased.unanswered.try_recv() {
            break unanswered;
        }
    };
    assert!(lost > 1 && matches!(error, Error::DeadlineExceeded(_)), "{lost} tokens, {error:?}");
    assert_eq!(leased.lease.leased_tokens(), 0);
    assert_eq!(leased.taken(&db).await?, leased.granted + lost, "they were debited");

    // Later leases are granted, used and given back. The lost tokens stay lost.
    while leased.take_leased().await? != Source::Lease {}
    leased.lease.close().await?;
    assert_eq!(leased.taken(&db).await?, leased.granted + lost);
    Ok(())
}

async fn lease_refund_with_lost_answer_counts_once(db: TestDb) -> anyhow::Result<()> {
    let mut leased = Leased::new(&db, Unheard::Adjustments).await?;
    while leased.lease.leased_tokens() == 0 {
        leased.take_leased().await?;
    }
    let error = leased.lease.close().await.expect_err("nobody hears of it");
    assert!(matches!(error, Error::DeadlineExceeded(_)), "{error:?}");
    assert_eq!(leased.taken(&db).await?, leased.granted, "all others were given back");
    assert_eq!(leased.lease.close().await?, 0, "it is not sent again");
    assert_eq!(leased.taken(&db).await?, leased.granted);
    Ok(())
}

/// Requests for a busy bucket, so that the lease prefetches tokens.
struct Leased {
    lease: Lease<Faulty>,
    key: Key,
    /// The number of granted tokens.
    granted: u64,
    /// The number of prefetched tokens of each lost answer, and the error.
    unanswered: UnboundedReceiver<(u64, Error)>,
}

impl Leased {
    async fn new(db: &TestDb, unheard: Unheard) -> anyhow::Result<Self> {
        let key = db.bucket(Quota::interval(CAPACITY, Duration::from_hours(24))?).await?;
        let (proxied, proxy) = through_proxy(db, 2).await?;
        let (report_lost, unanswered) = unbounded_channel();
        let unheard = unheard.into();
        let faulty =
            Faulty { store: db.store(), proxied: proxied.store().deadline(SHORT), proxy, unheard, report_lost };
        let lease = Lease::with_options(faulty, LeaseOptions::default().target(SHORT));
        Ok(Self { lease, key, granted: 0, unanswered })
    }

    /// Takes a token, and returns its source.
    async fn take_leased(&mut self) -> anyhow::Result<Source> {
        let decision = self.lease.take_one(&Take::from(self.key.clone())).await??;
        anyhow::ensure!(decision.is_granted(), "{decision:?}");
        self.granted += 1;
        Ok(decision.source())
    }

    /// The number of tokens that the bucket has lost since the start.
    async fn taken(&self, db: &TestDb) -> anyhow::Result<u64> {
        let level = db.store().peek(&self.key).await?.expect("it was provisioned");
        Ok(CAPACITY - level.available().unsigned_abs())
    }
}

/// The store under a lease, whose answers are swallowed by a proxy.
struct Faulty {
    store: AnyStore,
    /// The store for the swallowed answers.
    proxied: AnyStore,
    proxy: Proxy,
    unheard: parking_lot::Mutex<Unheard>,
    report_lost: UnboundedSender<(u64, Error)>,
}

/// The answers to swallow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unheard {
    FirstDebit,
    Adjustments,
    Nothing,
}

impl Faulty {
    /// Whether to swallow this answer.
    fn is(&self, what: Unheard) -> bool {
        let mut unheard = self.unheard.lock();
        let is = *unheard == what;
        if is && what == Unheard::FirstDebit {
            *unheard = Unheard::Nothing;
        }
        is
    }
}

impl TestStore for Faulty {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let [take] = takes else { return Store::take(&self.store, takes).await };
        // A request for one token comes from a caller and not from the lease.
        if take.get_cost() == 1 || !self.is(Unheard::FirstDebit) {
            return Store::take(&self.store, takes).await;
        }
        self.proxy.fail(take.key().as_str(), Then::Swallow);
        let answer = Store::take(&self.proxied, takes).await;
        if let Err(error) = &answer {
            // Ignores a receiver that has ended.
            drop(self.report_lost.send((take.get_cost(), error.clone())));
        }
        answer
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        if !self.is(Unheard::Adjustments) {
            return Store::adjust(&self.store, adjustments).await;
        }
        self.proxy.fail(adjustments[0].receipt().key().as_str(), Then::Swallow);
        Store::adjust(&self.proxied, adjustments).await
    }
}

const CAPACITY: u64 = 1_000_000;
const SHORT: Duration = Duration::from_millis(300);
