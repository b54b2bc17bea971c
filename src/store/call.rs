use std::sync::Arc;

use super::answer::AdjustedColumns;
use super::ask::Ask;
use super::dialect::Dialect;
use crate::Adjustment;
use crate::answer::Answer;

/// One call of one routine.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// Requests for one bucket each.
    Each(Arc<[Ask]>),
    /// A request for several buckets.
    All(Arc<Ask>),
    Adjust(Arc<Adjustment>),
}

/// What the routine answers.
#[derive(Debug)]
pub(super) enum Reply {
    Answers(Vec<Answer>),
    Adjusted(AdjustedColumns),
}

impl Call {
    pub(super) async fn on<DB: Dialect>(
        &self,
        connection: &mut DB::Connection,
        clock: &DB::Clock,
    ) -> Result<Reply, sqlx::Error> {
        match self {
            Self::Each(asks) => DB::take(connection, asks, clock).await.map(Reply::Answers),
            Self::All(ask) => DB::take_all(connection, ask, clock).await.map(Reply::Answers),
            Self::Adjust(adjustment) => DB::adjust(connection, adjustment, clock).await.map(Reply::Adjusted),
        }
    }
}

impl Reply {
    pub(super) fn answers(self) -> Vec<Answer> {
        match self {
            Self::Answers(answers) => answers,
            Self::Adjusted(_) => Vec::new(),
        }
    }
}
