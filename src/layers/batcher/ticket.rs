//! The requests in the batcher's queue, each with the channel of its answer.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::queue::Queued;
use crate::model::{Adjusted, Adjustment, Checked, Error, Key, Outcome, Take, TakeError};
use crate::store::Capabilities;

/// A request that waits for a call.
#[derive(Debug)]
pub(super) enum Ticket {
    Take(Checked<Take>, Reply<TakeAnswer>),
    Adjust(Adjustment, Reply<AdjustAnswer>),
}

/// The part of a request that the store does not need.
#[derive(Debug)]
pub(super) struct Reply<A> {
    pub(super) answer: oneshot::Sender<A>,
    kind: Kind,
    max_batch: usize,
    /// The end of the caller's `max_wait`, if the caller waits.
    overdue_at: Option<Instant>,
}

pub(super) type TakeAnswer = Result<Outcome, Error>;
pub(super) type AdjustAnswer = Result<Result<Adjusted, TakeError>, Error>;

/// Which requests can share a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Takes from one bucket that do not wait and have no id. Equal takes of a key are one entry of a call.
    Take,
    /// Takes from one bucket that wait or have an id. The store decides them one after the other.
    Scheduled,
    /// Takes from several buckets that do not wait and have no id.
    TakeAll,
    /// Takes that share no call.
    Alone,
    Adjust,
}

/// The most requests of a kind in one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxBatches {
    /// Takes from several buckets.
    pub(super) take_all: usize,
    scheduled: usize,
    adjustments: usize,
}

impl From<Capabilities> for MaxBatches {
    fn from(Capabilities { max_take_all: take_all, max_keys, .. }: Capabilities) -> Self {
        if max_keys == 1 {
            // The node that has the key decides equal requests in one call, but no others.
            Self { take_all, scheduled: 1, adjustments: 1 }
        } else {
            Self { take_all, scheduled: MAX_SCHEDULED, adjustments: MAX_ADJUSTMENTS }
        }
    }
}

impl Ticket {
    pub(super) fn take(
        take: Checked<Take>,
        overdue_at: Option<Instant>,
        most: MaxBatches,
        answer: oneshot::Sender<TakeAnswer>,
    ) -> Self {
        let (kind, max_batch) = match (take.limits.len(), take.is_momentary()) {
            _ if take.window().is_some() => (Kind::Alone, 1),
            (1, true) => (Kind::Take, MAX_TAKES),
            (1, false) => (Kind::Scheduled, most.scheduled),
            (_, true) if most.take_all > 1 => (Kind::TakeAll, most.take_all),
            _ => (Kind::Alone, 1),
        };
        Self::Take(take, Reply { answer, kind, max_batch, overdue_at })
    }

    pub(super) fn adjust(adjustment: Adjustment, most: MaxBatches, answer: oneshot::Sender<AdjustAnswer>) -> Self {
        Self::Adjust(adjustment, Reply { answer, kind: Kind::Adjust, max_batch: most.adjustments, overdue_at: None })
    }

    /// Subtracts the time in the queue from `max_wait`, if it was longer than [`MIN_QUEUE_TIME`].
    pub(super) fn shorten_wait(&mut self, now: Instant) {
        if let Self::Take(take, Reply { overdue_at: Some(overdue_at), .. }) = self {
            let rest = overdue_at.saturating_duration_since(now);
            if take.max_wait.saturating_sub(rest) > MIN_QUEUE_TIME {
                take.set_max_wait(rest);
            }
        }
    }

    pub(super) fn into_take(self) -> Option<(Checked<Take>, Reply<TakeAnswer>)> {
        if let Self::Take(take, reply) = self { Some((take, reply)) } else { None }
    }

    pub(super) fn into_adjustment(self) -> Option<(Adjustment, Reply<AdjustAnswer>)> {
        if let Self::Adjust(adjustment, reply) = self { Some((adjustment, reply)) } else { None }
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        matches!(self, Self::Take(_, Reply { overdue_at: Some(overdue_at), .. }) if *overdue_at <= now)
    }

    /// Answers with an error. A dropped caller needs no answer.
    pub(super) fn fail(self, error: Error) {
        match self {
            Self::Take(_, reply) => drop(reply.answer.send(Err(error))),
            Self::Adjust(_, reply) => drop(reply.answer.send(Err(error))),
        }
    }
}

impl From<(Checked<Take>, Reply<TakeAnswer>)> for Ticket {
    fn from((take, reply): (Checked<Take>, Reply<TakeAnswer>)) -> Self {
        Self::Take(take, reply)
    }
}

impl From<(Adjustment, Reply<AdjustAnswer>)> for Ticket {
    fn from((adjustment, reply): (Adjustment, Reply<AdjustAnswer>)) -> Self {
        Self::Adjust(adjustment, reply)
    }
}

impl Queued for Ticket {
    type Key = Key;
    type Kind = Kind;

    fn key(&self) -> &Key {
        match self {
            Self::Take(take, _) => take.key(),
            Self::Adjust(adjustment, _) => &adjustment.receipt.key,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Take(_, reply) => reply.kind,
            Self::Adjust(_, reply) => reply.kind,
        }
    }

    fn max_batch(&self) -> usize {
        match self {
            Self::Take(_, reply) => reply.max_batch,
            Self::Adjust(_, reply) => reply.max_batch,
        }
    }

    /// Takes from several buckets can meet different locks, even if they share their first bucket.
    fn max_isolated(&self) -> usize {
        if self.kind() == Kind::TakeAll { 1 } else { self.max_batch() }
    }

    fn is_joined_by(&self, later: &Self) -> bool {
        match (self, later) {
            (Self::Take(take, reply), Self::Take(later, _)) if reply.kind == Kind::Take => **take == **later,
            (one, _) => one.kind() != Kind::Alone,
        }
    }

    /// Adjustments are made even if the caller was dropped.
    fn is_cancelled(&self) -> bool {
        matches!(self, Self::Take(_, reply) if reply.answer.is_closed())
    }
}

/// Maximum number of takes from one bucket each in one call.
const MAX_TAKES: usize = 1024;

/// Maximum number of scheduled takes in one call. The first takes of a larger call would be due before its answer.
const MAX_SCHEDULED: usize = 256;

/// A shorter time in the queue does not count as waiting.
const MIN_QUEUE_TIME: Duration = Duration::from_millis(100);

/// Maximum number of adjustments in one call, and so in one transaction of the database.
const MAX_ADJUSTMENTS: usize = 256;
