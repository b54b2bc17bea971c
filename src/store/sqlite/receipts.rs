use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use crate::Key;
use crate::book::{Held, State};
use crate::bucket::Receipt;

/// The receipt of a request.
pub(super) async fn find(connection: &mut SqliteConnection, id: Uuid, key: &Key) -> Result<Option<Held>, sqlx::Error> {
    let found: Option<(i64, i64, i64, String, i64)> = sqlx::query_as(
        "select cost, granted, acts_at, state, expires_at from token_receipts where id = ?1 and bucket = ?2",
    )
    .bind(id.hyphenated().to_string())
    .bind(key.as_str())
    .fetch_optional(connection)
    .await?;
    let held = |(cost, granted, acts_at, state, expires_at): (i64, i64, i64, String, i64)| {
        let state = State::parse(&state).ok_or_else(|| sqlx::Error::Protocol(format!("the state {state:?}")))?;
        Ok(Held { receipt: Receipt { cost, granted, acts_at }, state, expires_at })
    };
    found.map(held).transpose()
}

/// Remembers a receipt.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    id: Uuid,
    key: &Key,
    held: &Held,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into token_receipts (id, bucket, cost, granted, acts_at, state, expires_at)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         on conflict (id, bucket) do update
            set cost = excluded.cost, granted = excluded.granted, acts_at = excluded.acts_at, state = excluded.state,
                expires_at = excluded.expires_at",
    )
    .bind(id.hyphenated().to_string())
    .bind(key.as_str())
    .bind(held.receipt.cost)
    .bind(held.receipt.granted)
    .bind(held.receipt.acts_at)
    .bind(held.state.as_str())
    .bind(held.expires_at)
    .execute(connection)
    .await
    .map(drop)
}
