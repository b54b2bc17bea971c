use std::sync::Arc;

use crate::{Adjusted, Adjustment, Coalesce, Error, Key, Outcome, Store, Swept, Take, TakeError};

/// A limiter's store, with what it asks it through.
#[derive(Debug)]
pub(super) struct Stack<S: Store> {
    /// The store itself.
    pub(super) store: Arc<S>,
    asked: Coalesced<S>,
}

type Coalesced<S> = Optional<Coalesce<S>, Arc<S>>;

impl<S: Store> Stack<S> {
    pub(super) fn new(store: S, coalesces: bool) -> Self {
        let store = Arc::new(store);
        // Nobody waits for a store in this process.
        let asked = if coalesces && !S::IN_PROCESS {
            Optional::With(Coalesce::from(Arc::clone(&store)))
        } else {
            Optional::Without(Arc::clone(&store))
        };
        Self { store, asked }
    }
}

impl<S: Store> Store for Stack<S> {
    const IN_PROCESS: bool = S::IN_PROCESS;

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.asked.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.asked.adjust(adjustments).await
    }

    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        // Known when it is compiled: the fast one has no layers to pass through.
        if S::IN_PROCESS { self.store.take_one(take).await } else { self.asked.take_one(take).await }
    }

    async fn sweep(&self, after: Option<&Key>, limit: u32) -> Result<Swept, Error> {
        self.store.sweep(after, limit).await
    }
}

/// A store with a layer above it, or without.
#[derive(Debug)]
enum Optional<L, S> {
    With(L),
    Without(S),
}

impl<L: Store, S: Store> Store for Optional<L, S> {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        match self {
            Self::With(layer) => layer.take(takes).await,
            Self::Without(store) => store.take(takes).await,
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        match self {
            Self::With(layer) => layer.adjust(adjustments).await,
            Self::Without(store) => store.adjust(adjustments).await,
        }
    }

    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        match self {
            Self::With(layer) => layer.take_one(take).await,
            Self::Without(store) => store.take_one(take).await,
        }
    }
}
