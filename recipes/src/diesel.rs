use diesel::define_sql_function;
use diesel::result::QueryResult;
use diesel::sql_types::{Double, Nullable, Text, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

define_sql_function! {
    #[sql_name = "tollgate.request_tokens_v1"]
    fn request_tokens(
        key: Text, tokens: Double, max_wait_ms: Double,
        min_remaining: Double, plan: Text, request: Nullable<Uuid>,
    ) -> Record<(Bool, BigInt, BigInt, Nullable<BigInt>, Nullable<BigInt>)>;
}

/// `granted`, `remaining`, `wait_ms`, `retry_after_ms`, `reset_after_ms`.
pub type Answer = (bool, i64, i64, Option<i64>, Option<i64>);

/// Takes a token, or none.
pub async fn take(
    database: &mut AsyncPgConnection,
    key: &str,
    plan: &str,
) -> QueryResult<Answer> {
    let id = None::<uuid::Uuid>;
    let call = request_tokens(key, 1.0, 0.0, 0.0, plan, id);
    diesel::select(call).get_result(database).await
}
