//! Deadlines for queries that the CLI sends itself. The library's calls have their own deadlines.

use std::time::Duration;

use tokio::time::timeout;

use crate::exit::CliError;

/// Returns the answer, or fails after a deadline, because another session may hold a table lock forever.
pub(crate) async fn within_patience<T, E: Into<anyhow::Error>>(
    answer: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<T> {
    match timeout(LOCK_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => {
            Err(CliError::database(format!("no answer within {LOCK_TIMEOUT:?}: is a table locked?"), LOCKED).into())
        }
    }
}

/// The hint after a timeout.
const LOCKED: &str = "look on the server for a transaction left open or a schema change, and end it";

const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn timeout_message_says_where_to_look() {
        let error = within_patience(std::future::pending::<Result<(), sqlx::Error>>()).await.expect_err("no answer");
        assert_eq!(error.to_string(), "no answer within 10s: is a table locked?");
        assert!(error.downcast_ref::<CliError>().is_some_and(|refusal| refusal.hint.contains("left open")));
        assert_eq!(within_patience(async { Ok::<_, sqlx::Error>(7) }).await.expect("an answer"), 7);
    }
}
