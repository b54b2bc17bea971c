use std::time::Duration;

use diesel::define_sql_function;
use diesel::result::QueryResult;
use diesel::sql_types::{Double, Nullable, Text, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

define_sql_function! {
    #[sql_name = "tollgate.request_tokens_v1"]
    fn request_tokens(
        key: Text, tokens: Double, max_wait_ms: Double, min_remaining: Double, plan: Nullable<Text>, request: Nullable<Uuid>,
    ) -> Record<(Bool, BigInt, BigInt, Nullable<BigInt>, Nullable<BigInt>)>;
}

/// Whether you have the tokens. If not, nothing was taken.
#[derive(Debug)]
pub struct Decision {
    pub granted: bool,
    pub remaining: i64,
    /// When to retry; `None`: never.
    pub retry_after: Option<Duration>,
}

/// Takes tokens, or none. The first request of a key creates its bucket by the plan.
pub async fn take(database: &mut AsyncPgConnection, key: &str, tokens: u32, plan: &str) -> QueryResult<Decision> {
    let call = request_tokens(key, f64::from(tokens), 0.0, 0.0, Some(plan), None::<uuid::Uuid>);
    let answer: (bool, i64, i64, Option<i64>, Option<i64>) = diesel::select(call).get_result(database).await?;
    let (granted, remaining, _wait_ms, retry_after_ms, _reset_after_ms) = answer;
    Ok(Decision { granted, remaining, retry_after: retry_after_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())) })
}
