//! Adjustments: one routine for one, and one for a batch.

use sqlx::mysql::MySqlConnection;

use super::{TransactionOwner, bytes, json, text};
use crate::model::Adjustment;
use crate::model::bucket::MAX_WAIT_NS;
use crate::store::sql::call::AdjustedColumns;

/// Makes adjustments, and returns their outcomes in order.
pub(super) async fn adjust(
    connection: &mut MySqlConnection,
    adjustments: &[Adjustment],
    owner: TransactionOwner,
) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
    match adjustments {
        // Each call fetches all rows: the next statement would read unread rows of a CALL as its own.
        [adjustment] if adjustment.max_debt == MAX_WAIT_NS => adjust_one(connection, adjustment, owner).await,
        _ => adjust_many(connection, adjustments, owner).await,
    }
}

async fn adjust_one(
    connection: &mut MySqlConnection,
    adjustment: &Adjustment,
    owner: TransactionOwner,
) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
    let Adjustment { receipt, kind, .. } = adjustment;
    let (kind, tokens) = kind.sql_arguments();
    if receipt.window {
        return sqlx::query_as("call token_adjust_window_v1(?, ?, ?, ?, ?, ?, ?)")
            .bind(kind)
            .bind(adjustment.remembered_id())
            .bind(bytes(&receipt.key))
            .bind(receipt.grant.cost)
            .bind(receipt.grant.scheduled_at)
            .bind(tokens)
            .bind(owner.is_own())
            .fetch_all(connection)
            .await;
    }
    sqlx::query_as("call token_adjust_v1(?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(kind)
        .bind(adjustment.remembered_id())
        .bind(bytes(&receipt.key))
        .bind(receipt.grant.cost)
        .bind(receipt.grant.granted)
        .bind(receipt.grant.scheduled_at)
        .bind(tokens)
        .bind(owner.is_own())
        .fetch_all(connection)
        .await
}

async fn adjust_many(
    connection: &mut MySqlConnection,
    adjustments: &[Adjustment],
    owner: TransactionOwner,
) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
    // The placeholder is for the OUT parameter, which the server answers as a row.
    let rows: Vec<(Vec<u8>,)> = sqlx::query_as("call token_adjust_batch_v1(?, ?, ?)")
        .bind(json::adjustments(adjustments))
        .bind(owner.is_own())
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (answers,) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let mut adjusted = json::texts(&text(answers)).map(parse).collect::<Result<Vec<_>, _>>()?;
    adjusted.sort_unstable_by_key(|(place, _)| *place);
    Ok(adjusted.into_iter().map(|(_, columns)| columns).collect())
}

/// Parses the place of an adjustment, and its outcome.
fn parse(text: &str) -> Result<(usize, AdjustedColumns), sqlx::Error> {
    let unread = || sqlx::Error::Protocol(format!("the answer {text:?}"));
    let &[place, outcome, given_back] = text.split(' ').collect::<Vec<_>>().as_slice() else {
        return Err(unread());
    };
    let (place, given_back) = (place.parse().map_err(|_| unread())?, given_back.parse().map_err(|_| unread())?);
    Ok((place, (outcome.to_owned(), given_back)))
}
