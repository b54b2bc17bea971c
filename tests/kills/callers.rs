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
pub trait Notes: Send + Sync + 'static {
    fn asked(&self, request: Request);
    fn answered(&self, id: u128);
}

impl Notes for Books {
    fn asked(&self, request: Request) {
        self.asked(request);
    }

    fn answered(&self, id: u128) {
        self.answered(id);
    }
}

pub struct Callers<N> {
    database: Database,
    notes: Arc<N>,
}

impl<N: Notes> Callers<N> {
    pub fn new(database: Database, notes: Arc<N>) -> Self {
        Self { database, notes }
    }

    /// Takes once from the buckets of each request that can be held later.
    pub async fn take_once_each(&self) -> anyhow::Result<()> {
        for buckets in BUCKETS {
            let unanswered = self.clone().ask(Request::new(buckets)).await?;
            ensure!(unanswered.is_none(), "{unanswered:?}");
        }
        Ok(())
    }

    /// Starts callers that make requests until one has no answer.
    pub fn crowd(&self) -> Vec<JoinHandle<anyhow::Result<()>>> {
        let each = |own| {
            let callers = self.clone();
            tokio::spawn(async move {
                loop {
                    let request = if fastrand::bool() { &["crowd"][..] } else { &["crowd", own] };
                    match callers.clone().ask(Request::new(request)).await? {
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
        ["crowd's first", "crowd's second", "crowd's third"].map(each).into()
    }

    /// Makes a request. Returns the error if there is no answer.
    pub async fn ask(self, request: Request) -> anyhow::Result<Option<Error>> {
        self.notes.asked(request.clone());
        match self.database.ask(&request).await {
            Err(error) => Ok(Some(error)),
            Ok(decision) => {
                ensure!(decision.is_granted(), "{request:?} is denied");
                self.notes.answered(request.id);
                Ok(None)
            }
        }
    }
}

impl<N> Clone for Callers<N> {
    fn clone(&self) -> Self {
        Self { database: self.database.clone(), notes: Arc::clone(&self.notes) }
    }
}
