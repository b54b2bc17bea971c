use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use super::json::Array;
use super::line::Line;
use crate::model::Key;
use crate::model::bucket::Receipt;
use crate::model::decide::{Held, State};

/// The receipt of a request.
pub(super) async fn find(connection: &mut SqliteConnection, id: Uuid, key: &Key) -> Result<Option<Held>, sqlx::Error> {
    let found: Option<(i64, i64, i64, String, i64)> = sqlx::query_as(
        "select cost, granted, acts_at, state, expires_at from token_receipts where id = ?1 and bucket = ?2",
    )
    .bind(id.hyphenated().to_string())
    .bind(key.as_str())
    .fetch_optional(connection)
    .await?;
    found
        .map(|(cost, granted, acts_at, state, expires_at)| held(cost, granted, acts_at, &state, expires_at))
        .transpose()
}

/// A receipt as adjust.sql answers it.
pub(super) fn of_line(line: &Line<'_>) -> Result<Held, sqlx::Error> {
    held(line.number(2)?, line.number(3)?, line.number(4)?, line.word(5), line.number(6)?)
}

fn held(cost: i64, granted: i64, acts_at: i64, state: &str, expires_at: i64) -> Result<Held, sqlx::Error> {
    let state = State::parse(state).ok_or_else(|| sqlx::Error::Protocol(format!("the state {state:?}")))?;
    Ok(Held { receipt: Receipt { cost, granted, acts_at }, state, expires_at })
}

/// Remembers a receipt.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    id: Uuid,
    key: &Key,
    held: &Held,
) -> Result<(), sqlx::Error> {
    let mut receipts = Array::default();
    push(&mut receipts, id, key, held);
    write_all(connection, receipts).await
}

/// Remembers receipts.
pub(super) async fn write_all(connection: &mut SqliteConnection, receipts: Array) -> Result<(), sqlx::Error> {
    sqlx::query(include_str!("receipts.sql")).bind(receipts.into_text()).execute(connection).await.map(drop)
}

/// Adds a receipt to those that receipts.sql writes.
pub(super) fn push(receipts: &mut Array, id: Uuid, key: &Key, Held { receipt, state, expires_at }: &Held) {
    receipts.push_row(&[
        id.hyphenated().to_string().as_str().into(),
        key.as_str().into(),
        receipt.cost.into(),
        receipt.granted.into(),
        receipt.acts_at.into(),
        state.as_str().into(),
        (*expires_at).into(),
    ]);
}
