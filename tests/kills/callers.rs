//! Callers of a database that is about to be killed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use tokio::task::JoinHandle;
use tollgate::Error;

use crate::accounting::{Books, Request};
use crate::database::Database;
use crate::gate::BUCKETS;

/// Records requests and answers outside the process or server that is killed.
pub trait Recorder: Send + Sync + 'static {
    fn requested(&self, request: Request);
    fn answered(&self, id: u128);
}

impl Recorder for Books {
    fn requested(&self, request: Request) {
        self.requested(request);
    }

    fn answered(&self, id: u128) {
        self.answered(id);
    }
}

pub struct Callers<N> {
    database: Database,
    recorder: Arc<N>,
}

impl<N: Recorder> Callers<N> {
    pub fn new(database: Database, recorder: Arc<N>) -> Self {
        Self { database, recorder }
    }

    /// Takes once from the buckets of each request that can be held later.
    pub async fn take_once_each(&self) -> anyhow::Result<()> {
        for buckets in BUCKETS {
            let unanswered = self.clone().send(Request::new(buckets)).await?;
            ensure!(unanswered.is_none(), "{unanswered:?}");
        }
        Ok(())
    }

    /// Starts callers that make requests until one has no answer.
    pub fn spawn_all(&self) -> Vec<JoinHandle<anyhow::Result<()>>> {
        let each = |own| {
            let callers = self.clone();
            tokio::spawn(async move {
                loop {
                    let request = if fastrand::bool() { &["shared"][..] } else { &["shared", own] };
                    match callers.clone().send(Request::new(request)).await? {
                        None => tokio::time::sleep(Duration::from_millis(fastrand::u64(0..3))).await,
                        Some(error) if error.is_outcome_unknown() => return Ok(()),
                        Some(Error::Unavailable(_) | Error::CircuitOpen { .. } | Error::Contended { .. }) => {
                            return Ok(());
                        }
                        Some(error) => bail!(error),
                    }
                }
            })
        };
        ["first caller's", "second caller's", "third caller's"].map(each).into()
    }

    /// Makes a request. Returns the error if there is no answer.
    pub async fn send(self, request: Request) -> anyhow::Result<Option<Error>> {
        self.recorder.requested(request.clone());
        match self.database.send(&request).await {
            Err(error) => Ok(Some(error)),
            Ok(decision) => {
                ensure!(decision.is_granted(), "{request:?} is denied");
                self.recorder.answered(request.id);
                Ok(None)
            }
        }
    }
}

impl<N> Clone for Callers<N> {
    fn clone(&self) -> Self {
        Self { database: self.database.clone(), recorder: Arc::clone(&self.recorder) }
    }
}
