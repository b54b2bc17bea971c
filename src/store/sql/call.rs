use std::sync::Arc;

use super::ask::Ask;
use super::dialect::Dialect;
use super::outcomes::AdjustedColumns;
use crate::model::answer::Answer;
use crate::model::{Adjustment, Counted, Error};

/// One call of one routine.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// Requests for one bucket each.
    Each(Arc<[Ask]>),
    /// Requests for several buckets each.
    All(Arc<[Ask]>),
    Adjust(Arc<[Adjustment]>),
    /// A request under a sliding window, or one that is only to be counted in it.
    Window(Arc<Ask>, Counting),
}

/// Whether a request is decided, or counted whatever the window says.
#[allow(unreachable_pub)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    Decide,
    Count,
}

/// What the routine answers.
#[derive(Debug)]
pub(super) enum Reply {
    Answers(Vec<Answer>),
    Adjusted(Vec<AdjustedColumns>),
    Counted(Counted),
}

impl Call {
    pub(super) async fn on<DB: Dialect>(
        &self,
        connection: &mut DB::Connection,
        clock: &DB::Clock,
    ) -> Result<Reply, sqlx::Error> {
        match self {
            Self::Each(asks) => DB::take(connection, asks, clock).await.map(Reply::Answers),
            Self::All(asks) => DB::take_all(connection, asks, clock).await.map(Reply::Answers),
            Self::Adjust(adjustments) => DB::adjust(connection, adjustments, clock).await.map(Reply::Adjusted),
            Self::Window(ask, counting) => DB::take_window(connection, ask, *counting, clock).await.map(Reply::Counted),
        }
    }
}

impl Call {
    /// In one word, for those who watch.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Each(_) => "take",
            Self::All(_) => "take_all",
            Self::Adjust(_) => "adjust",
            Self::Window(_, Counting::Decide) => "take_window",
            Self::Window(_, Counting::Count) => "count_window",
        }
    }

    /// How many requests it carries.
    pub(super) fn requests(&self) -> u64 {
        match self {
            Self::Each(asks) => asks.iter().map(|ask| ask.times.unsigned_abs()).sum(),
            Self::All(asks) => asks.len() as u64,
            Self::Adjust(adjustments) => adjustments.len() as u64,
            Self::Window(..) => 1,
        }
    }
}

impl Reply {
    pub(super) fn answers(self) -> Vec<Answer> {
        match self {
            Self::Answers(answers) => answers,
            Self::Adjusted(_) | Self::Counted(_) => Vec::new(),
        }
    }

    pub(super) fn adjusted(self) -> Vec<AdjustedColumns> {
        match self {
            Self::Adjusted(adjusted) => adjusted,
            Self::Answers(_) | Self::Counted(_) => Vec::new(),
        }
    }

    pub(super) fn counted(self) -> Result<Counted, Error> {
        match self {
            Self::Counted(counted) => Ok(counted),
            _ => Err(Error::other(sqlx::Error::RowNotFound)),
        }
    }
}
