use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, GenericClient};

/// Whether you have the tokens. If not, nothing was taken.
#[derive(Debug)]
pub struct Decision {
    pub granted: bool,
    pub remaining: i64,
    /// When to retry; `None`: never.
    pub retry_after: Option<Duration>,
}

/// Takes tokens, or none. The first request of a key creates its bucket by the plan.
pub async fn take(database: &impl GenericClient, key: &str, tokens: u32, plan: &str) -> Result<Decision, Error> {
    let query = "select granted, remaining, retry_after_ms from tollgate.request_tokens_v1($1, $2, 0, 0, $3, null)";
    let tokens = f64::from(tokens);
    // With the types of its arguments, a query is one round trip.
    let arguments: [(&(dyn ToSql + Sync), Type); 3] =
        [(&key, Type::TEXT), (&tokens, Type::FLOAT8), (&plan, Type::TEXT)];
    let row = database.query_typed_one(query, &arguments).await?;
    let retry_after_ms: Option<i64> = row.try_get("retry_after_ms")?;
    Ok(Decision {
        granted: row.try_get("granted")?,
        remaining: row.try_get("remaining")?,
        retry_after: retry_after_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
    })
}
