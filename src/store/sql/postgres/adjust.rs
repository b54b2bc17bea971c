//! Adjustments: one routine for one, and one for a batch.

use sqlx::postgres::PgConnection;

use super::LockTimeout;
use crate::model::Adjustment;
use crate::store::sql::call::AdjustedColumns;

/// Makes adjustments, and returns their outcomes in order.
pub(super) async fn adjust(
    connection: &mut PgConnection,
    adjustments: &[Adjustment],
    timeout: &LockTimeout,
) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
    match adjustments {
        [adjustment] => Ok(vec![adjust_one(connection, adjustment, timeout).await?]),
        _ => adjust_many(connection, adjustments, timeout).await,
    }
}

async fn adjust_one(
    connection: &mut PgConnection,
    adjustment: &Adjustment,
    timeout: &LockTimeout,
) -> Result<AdjustedColumns, sqlx::Error> {
    let Adjustment { receipt, kind, max_debt, .. } = adjustment;
    let (kind, tokens) = kind.sql_arguments();
    if receipt.window {
        let text = locking!(
            timeout,
            "select t.* from tollgate.adjust_window_v1(",
            "$1",
            "$7",
            ", $2::pg_catalog.text::pg_catalog.uuid, $3, $4, $5, $6) t"
        );
        let query = sqlx::query_as(text)
            .bind(kind)
            .bind(adjustment.remembered_id())
            .bind(receipt.key.as_str())
            .bind(receipt.grant.cost)
            .bind(receipt.grant.scheduled_at)
            .bind(tokens);
        return bind_timeout!(query, timeout).fetch_one(connection).await;
    }
    let text = locking!(
        timeout,
        "select t.* from tollgate.adjust_v1(",
        "$1",
        "$9",
        ", $2::pg_catalog.text::pg_catalog.uuid, $3, $4, $5, $6, $7, $8) t"
    );
    let query = sqlx::query_as(text)
        .bind(kind)
        .bind(adjustment.remembered_id())
        .bind(receipt.key.as_str())
        .bind(receipt.grant.cost)
        .bind(receipt.grant.granted)
        .bind(receipt.grant.scheduled_at)
        .bind(tokens)
        .bind(max_debt);
    bind_timeout!(query, timeout).fetch_one(connection).await
}

async fn adjust_many(
    connection: &mut PgConnection,
    adjustments: &[Adjustment],
    timeout: &LockTimeout,
) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
    let receipts = || adjustments.iter().map(Adjustment::receipt);
    let arguments = || adjustments.iter().map(|adjustment| adjustment.kind.sql_arguments());
    let text = locking!(
        timeout,
        "select t.* from tollgate.adjust_batch_v1(",
        "$1::pg_catalog.text[]",
        "$10",
        ", $2::pg_catalog.text[]::pg_catalog.uuid[], $3, $4, $5, $6, $7, $8, $9) t"
    );
    let query = sqlx::query_as(text)
        .bind(arguments().map(|(kind, _)| kind).collect::<Vec<_>>())
        .bind(adjustments.iter().map(Adjustment::remembered_id).collect::<Vec<_>>())
        .bind(receipts().map(|receipt| receipt.key.as_str()).collect::<Vec<_>>())
        .bind(receipts().map(|receipt| receipt.grant.cost).collect::<Vec<_>>())
        .bind(receipts().map(|receipt| receipt.grant.granted).collect::<Vec<_>>())
        .bind(receipts().map(|receipt| receipt.grant.scheduled_at).collect::<Vec<_>>())
        .bind(arguments().map(|(_, tokens)| tokens).collect::<Vec<_>>())
        .bind(receipts().map(|receipt| receipt.window).collect::<Vec<_>>())
        .bind(adjustments.iter().map(|adjustment| adjustment.max_debt).collect::<Vec<_>>());
    let (outcomes, given_back): (Vec<String>, Vec<i64>) = bind_timeout!(query, timeout).fetch_one(connection).await?;
    Ok(outcomes.into_iter().zip(given_back).collect())
}
