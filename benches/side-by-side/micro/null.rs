use tollgate::{Adjusted, Adjustment, Decision, Error, Take, TakeError, model::Outcome, store::TestStore};

/// A store that always gives the same answer at once.
pub(crate) struct Null(pub(crate) Decision);

impl TestStore for Null {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        Ok(takes.iter().map(|_| Ok(self.0.clone())).collect())
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Ok(adjustments.iter().map(|_| Ok(Adjusted::Done(0))).collect())
    }
}
