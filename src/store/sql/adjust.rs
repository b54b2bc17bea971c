use super::call::Call;
use super::dialect::Dialect;
use super::outcomes;
use super::store::SqlStore;
use crate::model::{Adjusted, Adjustment, Error, TakeError};

impl<DB: Dialect> SqlStore<DB> {
    /// Makes adjustments in as few calls as there can be, one after the other: of each call all are made, or none.
    pub(super) async fn adjust_all(
        &self,
        adjustments: &[Adjustment],
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let mut adjusted = Vec::with_capacity(adjustments.len());
        for together in adjustments.chunks(MOST_AT_ONCE) {
            let some = !adjusted.is_empty();
            let answered = self.converse(Call::Adjust(together.into())).await;
            let answered = answered.and_then(|(reply, _)| outcomes::adjusted(reply.adjusted(), together));
            adjusted.extend(answered.map_err(|error| error.after(some))?);
        }
        Ok(adjusted)
    }
}

/// How many adjustments one call makes: it holds the rows that it has come to until its end, on MySQL and MariaDB a quarter of a
/// millisecond for each of them.
const MOST_AT_ONCE: usize = 256;
