//! Stores that decide nothing, under a limiter: the cost of a decision without its store, or with the least work of a
//! server.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::Pool;
use tollgate::{
    Adjusted, Adjustment, Decision, Error, Key, SqlStore, Store, Take, TakeError, model::Outcome, store::Capabilities,
    store::TestStore,
};

use crate::engine::Engine;

/// Answers at once, so that only the client's cost remains.
pub(crate) struct Nothing;

impl TestStore for Nothing {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        Ok(takes.iter().map(|_| Ok(Decision::grant(1))).collect())
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Ok(adjustments.iter().map(|_| Ok(Adjusted::Done(0))).collect())
    }
}

/// Touches the rows of all requested buckets in one statement: the least work of a server for a batch of any client.
pub(crate) struct Rows<E: Engine> {
    pub(crate) pool: Pool<E>,
    pub(crate) touch: Touch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Touch {
    /// Rows that did not exist before.
    Make,
    Write,
    WriteAndAnswer,
    Read,
}

impl<E: Engine> TestStore for Rows<E> {
    fn capabilities(&self) -> Capabilities {
        SqlStore::from(self.pool.clone()).capabilities()
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let ids: BTreeSet<&str> = takes.iter().flat_map(Take::keys).map(Key::as_str).collect();
        let ids: Vec<&str> = ids.into_iter().collect();
        let found = match self.touch {
            Touch::Make => E::add_bare(&self.pool, &ids).await,
            Touch::Write => E::bare_many(&self.pool, &ids).await,
            Touch::WriteAndAnswer => E::answer_many(&self.pool, &ids).await,
            Touch::Read => E::read_many(&self.pool, &ids).await,
        };
        if found.map_err(Error::other)? < ids.len() as u64 {
            return Err(Error::other(sqlx::Error::RowNotFound));
        }
        match self.touch {
            Touch::Make | Touch::Write | Touch::WriteAndAnswer => TestStore::take(&Nothing, takes).await,
            Touch::Read => Ok(takes.iter().map(|_| Ok(Decision::denial(Duration::from_secs(1)))).collect()),
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        TestStore::adjust(&Nothing, adjustments).await
    }
}
