//! What becomes of tokens that were taken, told to the store.

use std::pin::pin;
use std::sync::Arc;

use super::policy::by_deadline;
use super::stack::Stack;
use crate::model::{Adjusted, Adjustment, AdjustmentKind, Error, TakeError};
use crate::store::Store;

/// What became of all of it; of several, what is least.
pub(super) async fn adjust<S: Store>(store: &Arc<Stack<S>>, adjustments: Vec<Adjustment>) -> Result<Adjusted, Error> {
    Ok(least(adjust_each(store, adjustments).await?)?)
}

/// What became of each of them.
pub(super) async fn adjust_each<S: Store>(
    store: &Arc<Stack<S>>,
    adjustments: Vec<Adjustment>,
) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
    // A store that does not answer need not be asked about nothing.
    if adjustments.is_empty() {
        return Ok(Vec::new());
    }
    let kinds: Vec<AdjustmentKind> = adjustments.iter().map(Adjustment::kind).collect();
    // The batcher makes the call even if the caller is dropped, at the deadline or before.
    let adjusted = by_deadline(store.deadline, pin!(store.adjust(&adjustments))).await?;
    let adjusted = adjusted.into_iter().zip(kinds).map(|(adjusted, kind)| match (adjusted, kind) {
        // It was full when it was swept: there is nothing to give back to.
        (Err(TakeError::UnknownBucket(_)), AdjustmentKind::Refund(_)) => Ok(Adjusted::Done(0)),
        (adjusted, _) => adjusted,
    });
    Ok(adjusted.collect())
}

/// Of what became of several, what is least.
fn least(adjusted: Vec<Result<Adjusted, TakeError>>) -> Result<Adjusted, TakeError> {
    let adjusted = adjusted.into_iter().collect::<Result<Vec<Adjusted>, TakeError>>()?;
    // Nothing was done to those of which it is said that it is late, or that it is done already: rather that than nothing
    // to be done.
    let least = |adjusted: &Adjusted| match adjusted {
        Adjusted::Done(tokens) => (*tokens, true),
        Adjusted::Late | Adjusted::Repeated => (0, false),
    };
    Ok(adjusted.into_iter().min_by_key(least).unwrap_or(Adjusted::Done(0)))
}
