//! Stores that decide nothing, for a limiter to ask: what is left of a decision without one.

use sqlx::PgPool;
use tollgate::{Adjusted, Adjustment, Decision, Error, Outcome, Store, Take, TakeError};

/// Answers at once: what is left is the client's share.
pub(crate) struct Nothing;

impl Store for Nothing {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        Ok(takes.iter().map(|_| Ok(Decision::grant(1))).collect())
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Ok(adjustments.iter().map(|_| Ok(Adjusted::Done(0))).collect())
    }
}

/// Changes a row for each request, all in one statement, and answers nothing of it: the least that the server does for as many
/// rows at a time, whoever asks. Each key of a call must be another one.
pub(crate) struct Rows(pub(crate) PgPool);

impl Store for Rows {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let ids: Vec<&str> = takes.iter().map(|take| take.key().as_str()).collect();
        let changed = sqlx::query("update bare b set n = b.n + 1 from unnest($1) u (id) where b.id = u.id")
            .bind(ids)
            .execute(&self.0)
            .await;
        changed.map_err(Error::other)?;
        Nothing.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Nothing.adjust(adjustments).await
    }
}
