//! What one call of a routine asks, and what its reply means.

use std::sync::Arc;

use uuid::Uuid;

use super::dialect::Dialect;
use crate::model::answer::Answer;
use crate::model::bucket::Request;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::model::window::Counts;
use crate::model::{
    Adjusted, Adjustment, Counted, Decision, Error, Key, Outcome, Quota, Rule, Take, TakeError, Window,
};

/// A request as the database sees it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// For its bucket; of several, for the first.
    pub(super) request: Request,
    pub(super) take: Take,
    /// It stands for so many equal requests, decided one after the other.
    pub(super) times: i64,
}

impl Ask {
    pub(super) fn key(&self) -> &Key {
        self.take.key()
    }

    /// What is asked of the bucket at a place.
    pub(super) fn request_at(&self, place: usize) -> Request {
        self.take.request_at(place)
    }

    /// The terms that come with the request, for the bucket at a place.
    pub(super) fn quota(&self, place: usize) -> Option<&Quota> {
        self.take.limits[place].rule.quota()
    }

    /// The plan that the request names, for the bucket at a place.
    pub(super) fn plan(&self, place: usize) -> Option<&str> {
        self.take.limits[place].rule.plan().map(Key::as_str)
    }

    /// The sliding window that the request is under.
    pub(super) fn window(&self) -> Result<&Window, sqlx::Error> {
        self.take.window().ok_or_else(|| sqlx::Error::InvalidArgument("a request without a window".into()))
    }

    /// A request that is only counted: perhaps for nothing, to read what was.
    pub(super) fn counting(key: &Key, window: &Window, cost: i64) -> Self {
        let take = Take::from(key.clone()).rule(Rule::Window(*window));
        Self { request: Request { cost, max_wait: 0, keep: 0 }, take, times: 1 }
    }

    /// Whether another request is this one over again: each is decided now, and nothing is remembered of it.
    pub(super) fn is_repeated_by(&self, other: &Self) -> bool {
        self.take.is_momentary() && self.take == other.take
    }

    /// Whether another request differs from this one in its bucket and how often it is asked only, and each is decided now,
    /// under terms that come with it or are a plan's.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let (limit, others) = (&self.take.limits[0], &other.take.limits[0]);
        self.take.is_momentary()
            && other.take.is_momentary()
            && self.request == other.request
            && limit.rule == others.rule
            && matches!(limit.rule, Rule::Quota(_) | Rule::Plan(_))
    }

    pub(super) fn id(&self) -> Option<Uuid> {
        self.take.id
    }

    /// For how many nanoseconds the id is remembered.
    pub(super) fn hold(&self) -> i64 {
        self.take.hold_ns()
    }
}

impl TryFrom<&Take> for Ask {
    type Error = TakeError;

    fn try_from(take: &Take) -> Result<Self, TakeError> {
        Ok(Self { request: take.request()?, take: take.clone(), times: 1 })
    }
}

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

/// What became of an adjustment, and how many tokens were given back.
#[allow(unreachable_pub)]
pub type AdjustedColumns = (String, i64);

/// The answers to each request for one bucket, in the order of the requests, as often as each stands for one.
pub(super) fn of_each(answers: Vec<Answer>, asks: &[Ask], attempts: u32) -> Result<Vec<Outcome>, Error> {
    complete(answers.len(), asks.iter().map(|ask| ask.times).sum())?;
    let mut answers = answers.into_iter();
    let mut outcomes = Vec::with_capacity(answers.len());
    for ask in asks {
        for answer in answers.by_ref().take(usize::try_from(ask.times).unwrap_or(usize::MAX)) {
            let outcome = answer.outcome(&ask.take, 0);
            outcomes.push(outcome.map(|decision| decision.after(attempts)));
        }
    }
    Ok(outcomes)
}

/// The answers to requests for several buckets each, in the order of the requests.
pub(super) fn of_all(answers: Vec<Answer>, asks: &[Ask], attempts: u32) -> Result<Vec<Outcome>, Error> {
    let limits: usize = asks.iter().map(|ask| ask.take.limits.len()).sum();
    complete(answers.len(), limits.try_into().unwrap_or(i64::MAX))?;
    let mut answers = answers.into_iter();
    let outcome = |ask: &Ask| {
        // All of them are its own, whatever comes of the first.
        let own: Vec<Answer> = answers.by_ref().take(ask.take.limits.len()).collect();
        let decisions = own
            .into_iter()
            .enumerate()
            .map(|(place, answer)| answer.outcome(&ask.take, place).map(|decision| (place, decision)));
        let decisions = decisions.collect::<Result<Vec<_>, TakeError>>()?;
        Ok(Decision::of_all(decisions, &ask.take).expect("a request names a bucket").after(attempts))
    };
    Ok(asks.iter().map(outcome).collect())
}

/// What adjustments came to, in their order.
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
            other => Err(Error::other(sqlx::Error::Protocol(format!("the outcome {other:?}")))),
        }
    });
    adjusted.collect()
}

fn complete(answered: usize, asked: i64) -> Result<(), Error> {
    if i64::try_from(answered) != Ok(asked) {
        let lost = format!("{answered} answers to {asked} requests");
        return Err(Error::OutcomeUnknown(Arc::new(sqlx::Error::Protocol(lost))));
    }
    Ok(())
}

/// A list of numbers in text, whatever is between them: pairs of a sub-interval's end and its count.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn parse_counts(text: &str) -> Result<Counts, sqlx::Error> {
    let numbers: Result<Vec<i64>, _> =
        text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()).map(str::parse).collect();
    let numbers = numbers.map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}
