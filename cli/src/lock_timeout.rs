//! Deadlines for queries that the CLI sends itself. The library's calls have their own deadlines.

use std::time::Duration;

use tokio::time::timeout;

use crate::exit::CliError;

/// Returns the answer, or fails after a deadline, because another session may hold a table lock forever.
pub(crate) async fn with_lock_timeout<T, E: Into<anyhow::Error>>(
    query: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<T> {
    match timeout(LOCK_TIMEOUT, query).await {
        Ok(query) => query.map_err(Into::into),
        Err(_) => {
            Err(CliError::database(format!("no answer within {LOCK_TIMEOUT:?}: is a table locked?"), LOCK_HINT).into())
        }
    }
}

/// The hint after a timeout.
const LOCK_HINT: &str = "look on the server for a transaction left open or a schema change, and end it";

const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn timeout_message_says_where_to_look() {
        let error = with_lock_timeout(std::future::pending::<Result<(), sqlx::Error>>()).await.expect_err("no answer");
        assert_eq!(error.to_string(), "no answer within 10s: is a table locked?");
        assert!(error.downcast_ref::<CliError>().is_some_and(|refusal| refusal.hint.contains("left open")));
        assert_eq!(with_lock_timeout(async { Ok::<_, sqlx::Error>(7) }).await.expect("an answer"), 7);
    }
}
