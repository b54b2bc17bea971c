use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, GenericClient};

/// Takes a token: whether you have it, and otherwise after how many
/// milliseconds to retry. `None`: never.
pub async fn take(
    database: &impl GenericClient,
    key: &str,
    plan: &str,
) -> Result<(bool, Option<i64>), Error> {
    let query = "select granted, retry_after_ms
        from tollgate.request_tokens_v1($1, 1, 0, 0, $2, null)";
    // With the types of its arguments, a query is one round trip.
    let arguments: [(&(dyn ToSql + Sync), Type); 2] =
        [(&key, Type::TEXT), (&plan, Type::TEXT)];
    let row = database.query_typed_one(query, &arguments).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}
