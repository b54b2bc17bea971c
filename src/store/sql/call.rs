//! The requests of one call of a routine, and the interpretation of its reply.

use std::sync::Arc;

use uuid::Uuid;

use crate::model::answer::BucketAnswer;
use crate::model::bucket::BucketRequest;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::model::window::Counts;
use crate::model::{
    Adjusted, Adjustment, Checked, Decision, Error, Key, Outcome, Quota, Rule, Take, TakeError, Window, WindowUsage,
};

/// A request as a call passes it to the database.
#[derive(Clone, Debug)]
pub struct SqlRequest {
    /// The amounts for the first bucket, in the arithmetic's units.
    pub(super) amounts: BucketRequest,
    pub(super) take: Take,
    /// How many equal requests this one stands for. The database decides them one after the other.
    pub(super) times: i64,
}

impl SqlRequest {
    pub(super) fn key(&self) -> &Key {
        self.take.key()
    }

    /// The request for the bucket at a place.
    pub(super) fn request_at(&self, place: usize) -> BucketRequest {
        self.take.request_at(place)
    }

    /// The quota that the request names for the bucket at a place.
    pub(super) fn quota(&self, place: usize) -> Option<&Quota> {
        self.take.limits[place].rule.quota()
    }

    /// The plan that the request names for the bucket at a place.
    pub(super) fn plan(&self, place: usize) -> Option<&str> {
        self.take.limits[place].rule.plan().map(Key::as_str)
    }

    /// The sliding window that limits the request.
    pub(super) fn window(&self) -> Result<&Window, sqlx::Error> {
        self.take.window().ok_or_else(|| sqlx::Error::InvalidArgument("a request without a window".into()))
    }

    /// A request that the database only counts. A cost of 0 reads the window.
    pub(super) fn counting(key: &Key, window: &Window, cost: i64) -> Self {
        let take = Take::from(key.clone()).rule(Rule::Window(*window));
        Self { amounts: BucketRequest { cost, max_wait: 0, min_remaining: 0 }, take, times: 1 }
    }

    /// Whether another request equals this one, and neither waits nor has an id.
    pub(super) fn is_repeated_by(&self, other: &Self) -> bool {
        self.take.is_momentary() && self.take == other.take
    }

    /// Whether requests, sorted by key, are for different buckets and otherwise differ only in `times`. None waits or has an
    /// id, and all name the same quota or plan.
    #[cfg(feature = "mysql")]
    pub(super) fn are_uniform(requests: &[Self]) -> bool {
        let is_plain = |request: &Self| {
            request.take.is_momentary() && matches!(request.take.limits[0].rule, Rule::Quota(_) | Rule::Plan(_))
        };
        let is_uniform = |[one, next]: &[Self; 2]| {
            one.amounts == next.amounts && one.take.limits[0].rule == next.take.limits[0].rule && one.key() < next.key()
        };
        requests.iter().all(is_plain) && requests.array_windows().all(is_uniform)
    }

    pub(super) fn id(&self) -> Option<Uuid> {
        self.take.id
    }

    /// The id as text: sqlx's `uuid` feature has the same cost as its [`chrono`](super::instant) feature.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn id_text(&self) -> Option<String> {
        self.id().map(|id| id.hyphenated().to_string())
    }

    /// How long the database remembers the id, in nanoseconds.
    pub(super) fn remember_for_ns(&self) -> i64 {
        self.take.remember_for_ns()
    }
}

impl From<Checked<&Take>> for SqlRequest {
    /// Clones the request, because a call can outlive its caller.
    fn from(take: Checked<&Take>) -> Self {
        Self { amounts: take.request_at(0), take: take.get().clone(), times: 1 }
    }
}

/// One call of one routine.
#[derive(Clone, Debug)]
pub(super) enum RoutineCall {
    /// Requests for one bucket each.
    Each(Arc<[SqlRequest]>),
    /// Requests for several buckets each.
    All(Arc<[SqlRequest]>),
    Adjust(Arc<[Adjustment]>),
    /// A request under a sliding window.
    Window(Arc<SqlRequest>, Counting),
}

/// Whether the database decides a request, or counts it even beyond the window's maximum.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    Decide,
    Count,
}

/// The answer of the routine to a [`RoutineCall`].
#[derive(Debug)]
pub(super) enum RoutineReply {
    Answers(Vec<BucketAnswer>),
    Adjusted(Vec<AdjustedColumns>),
    WindowUsage(WindowUsage),
}

impl RoutineCall {
    /// The name of the call in traces and metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Each(_) => "take",
            Self::All(_) => "take_all",
            Self::Adjust(_) => "adjust",
            Self::Window(_, Counting::Decide) => "take_window",
            Self::Window(_, Counting::Count) => "count_window",
        }
    }

    /// How many requests the call carries.
    pub(super) fn requests(&self) -> u64 {
        match self {
            Self::Each(requests) => requests.iter().map(|request| request.times.unsigned_abs()).sum(),
            Self::All(requests) => requests.len() as u64,
            Self::Adjust(adjustments) => adjustments.len() as u64,
            Self::Window(..) => 1,
        }
    }
}

impl RoutineReply {
    pub(super) fn answers(self) -> Result<Vec<BucketAnswer>, Error> {
        match self {
            Self::Answers(answers) => Ok(answers),
            Self::Adjusted(_) | Self::WindowUsage(_) => Err(reply_of_another_routine()),
        }
    }

    pub(super) fn adjusted(self) -> Result<Vec<AdjustedColumns>, Error> {
        match self {
            Self::Adjusted(adjusted) => Ok(adjusted),
            Self::Answers(_) | Self::WindowUsage(_) => Err(reply_of_another_routine()),
        }
    }

    pub(super) fn counted(self) -> Result<WindowUsage, Error> {
        match self {
            Self::WindowUsage(counted) => Ok(counted),
            Self::Answers(_) | Self::Adjusted(_) => Err(reply_of_another_routine()),
        }
    }
}

/// The error for a reply that does not belong to the call, which may have taken tokens.
fn reply_of_another_routine() -> Error {
    Error::OutcomeUnknown(Arc::new(sqlx::Error::Protocol("the reply of another routine".to_owned())))
}

/// The outcome of an adjustment, and how many tokens it gave back.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type AdjustedColumns = (String, i64);

/// The outcomes of requests for one bucket each, in their order. A [`SqlRequest`] has as many outcomes as the equal
/// requests that it stands for.
pub(super) fn each_outcomes(
    answers: Vec<BucketAnswer>,
    requests: &[SqlRequest],
    attempts: u32,
) -> Result<Vec<Outcome>, Error> {
    complete(answers.len(), requests.iter().map(|request| request.times).sum())?;
    let mut answers = answers.into_iter();
    let mut outcomes = Vec::with_capacity(answers.len());
    for request in requests {
        for answer in answers.by_ref().take(usize::try_from(request.times).unwrap_or(usize::MAX)) {
            let outcome = answer.outcome(&request.take, 0);
            outcomes.push(outcome.map(|decision| decision.with_attempts(attempts)));
        }
    }
    Ok(outcomes)
}

/// The outcomes of requests for several buckets each, in their order.
pub(super) fn all_outcomes(
    answers: Vec<BucketAnswer>,
    requests: &[SqlRequest],
    attempts: u32,
) -> Result<Vec<Outcome>, Error> {
    let limits: usize = requests.iter().map(|request| request.take.limits.len()).sum();
    complete(answers.len(), limits.try_into().unwrap_or(i64::MAX))?;
    let mut answers = answers.into_iter();
    let outcome = |request: &SqlRequest| {
        // Takes all answers of this request, even if the first is an error.
        let own: Vec<BucketAnswer> = answers.by_ref().take(request.take.limits.len()).collect();
        let decisions = own
            .into_iter()
            .enumerate()
            .map(|(place, answer)| answer.outcome(&request.take, place).map(|decision| (place, decision)));
        let decisions = decisions.collect::<Result<Vec<_>, TakeError>>()?;
        Ok(Decision::combine(decisions, &request.take).expect("a request names a bucket").with_attempts(attempts))
    };
    Ok(requests.iter().map(outcome).collect())
}

/// The outcome of a request under a sliding window.
pub(super) fn window_outcome(reply: RoutineReply, request: &SqlRequest, attempts: u32) -> Result<Outcome, Error> {
    let outcome = reply.counted()?.outcome(&request.take, request.window().map_err(Error::other)?, request.amounts);
    Ok(outcome.map(|decision| decision.with_attempts(attempts)))
}

/// The results of adjustments, in their order.
pub(super) fn adjusted(
    answers: Vec<AdjustedColumns>,
    adjustments: &[Adjustment],
) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
    complete(answers.len(), adjustments.len().try_into().unwrap_or(i64::MAX))?;
    let adjusted = answers.into_iter().zip(adjustments).map(|((outcome, given_back), Adjustment { receipt, .. })| {
        match outcome.as_str() {
            "done" => Ok(Ok(Adjusted::Done(given_back))),
            "late" => Ok(Ok(Adjusted::Late)),
            "repeated" => Ok(Ok(Adjusted::Repeated)),
            "unknown" => Ok(Err(TakeError::UnknownBucket(receipt.key.clone()))),
            "reused" => Ok(Err(TakeError::IdReused(receipt.id))),
            other => Err(Error::other(sqlx::Error::Protocol(format!("the outcome {other:?}")))),
        }
    });
    adjusted.collect()
}

fn complete(answered: usize, requested: i64) -> Result<(), Error> {
    if i64::try_from(answered) != Ok(requested) {
        let lost = format!("{answered} answers to {requested} requests");
        return Err(Error::OutcomeUnknown(Arc::new(sqlx::Error::Protocol(lost))));
    }
    Ok(())
}

/// Parses pairs of a sub-interval's end and its count from a text of numbers with any separators.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn parse_counts(text: &str) -> Result<Counts, sqlx::Error> {
    let numbers: Result<Vec<i64>, _> =
        text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()).map(str::parse).collect();
    let numbers = numbers.map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}
