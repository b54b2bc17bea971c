use std::io;

use tollgate::{Adjusted, Adjustment, Error, Take, TakeError, model::Outcome, store::TestStore};

/// A store whose database is down.
#[derive(Debug)]
pub struct Broken;

impl TestStore for Broken {
    async fn take(&self, _takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        Err(Error::other(io::Error::other("postgres://app:secret@db")))
    }

    async fn adjust(&self, _adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Err(Error::other(io::Error::other("postgres://app:secret@db")))
    }
}
