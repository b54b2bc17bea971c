use sqlx::mysql::MySqlConnection;

use super::{columns, take_many};
use crate::Take;
use crate::answer::Answer;
use crate::store::ask::Ask;
use crate::store::batch::Batch;

/// Decides requests for several buckets each, if all can be granted: then it makes no difference which bucket is whose, and
/// they are requests for one bucket each. Else nothing is taken.
pub(super) async fn take_all(
    connection: &mut MySqlConnection,
    asks: &[Ask],
) -> Result<Option<Vec<Answer>>, sqlx::Error> {
    let each = asks.iter().flat_map(|ask| {
        ask.take.limits.iter().map(move |(key, rule)| {
            let take = Take::from(key.clone()).rule(rule.clone()).cost(ask.take.cost).keep(ask.take.keep);
            Ask { request: ask.request, take, times: 1 }
        })
    });
    let batch = Batch::of(each.enumerate().collect());
    let columns = take_many(connection, &batch.asks, true).await?;
    if columns.is_empty() {
        return Ok(None);
    }
    let answers = columns::in_order(columns, |place| batch.asks.get(place).map(|ask| &ask.request))?;
    Ok(Some(batch.in_callers_order(answers)))
}
