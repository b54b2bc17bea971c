use super::ask::Ask;
use super::call::Reply;
use crate::answer::{Answer, Word};
use crate::bucket::{Bucket, Terms};
use crate::window::Counts;
use crate::{Adjusted, Decision, Error, Key, Mode, Outcome, TakeError};

/// What every routine answers: which request (from 1), what became of it, what decided instead of the tokens, when, when
/// the tokens may be used, and the bucket's `full_at`, `granted`, `burst`, `anchor`, `step_ns`, `step_ticks` and
/// `token_ticks` after it.
pub(super) type Columns = (
    i64,
    String,
    Option<String>,
    i64,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

/// What became of an adjustment, and how many tokens were given back.
#[allow(unreachable_pub)]
pub type AdjustedColumns = (String, i64);

/// The answers to each request for one bucket, in the order of the requests.
pub(super) fn of_each(mut answers: Vec<Answer>, asks: &[Ask], attempts: u32) -> Result<Vec<Outcome>, Error> {
    complete(&mut answers, asks.len())?;
    let outcome = |(ask, answer): (&Ask, Answer)| {
        answer.outcome(&ask.take, ask.request, 0).map(|decision| decision.after(attempts))
    };
    Ok(asks.iter().zip(answers).map(outcome).collect())
}

/// The answer to one request for several buckets.
pub(super) fn of_all(mut answers: Vec<Answer>, ask: &Ask, attempts: u32) -> Result<Outcome, Error> {
    complete(&mut answers, ask.take.limits.len())?;
    let decisions = answers
        .into_iter()
        .enumerate()
        .map(|(place, answer)| answer.outcome(&ask.take, ask.request, place).map(|decision| (place, decision)));
    Ok(decisions
        .collect::<Result<Vec<_>, TakeError>>()
        .map(|decisions| Decision::of_all(decisions).expect("a request names a bucket").after(attempts)))
}

/// What an adjustment came to.
pub(super) fn adjusted(reply: Reply, key: &Key) -> Result<Result<Adjusted, TakeError>, Error> {
    let (outcome, given_back) = match reply {
        Reply::Adjusted(columns) => columns,
        Reply::Answers(_) | Reply::Counted(_) => (String::new(), 0),
    };
    match outcome.as_str() {
        "done" => Ok(Ok(Adjusted::Done(given_back))),
        "late" => Ok(Ok(Adjusted::Late)),
        "repeated" => Ok(Ok(Adjusted::Repeated)),
        "unknown" => Ok(Err(TakeError::UnknownBucket(key.clone()))),
        other => Err(Error::other(sqlx::Error::Protocol(format!("the outcome {other:?}")))),
    }
}

fn complete(answers: &mut [Answer], asked: usize) -> Result<(), Error> {
    if answers.len() != asked {
        let lost = format!("{} answers to {asked} requests", answers.len());
        return Err(Error::OutcomeUnknown(std::sync::Arc::new(sqlx::Error::Protocol(lost))));
    }
    answers.sort_unstable_by_key(|answer| answer.entry);
    Ok(())
}

impl TryFrom<Columns> for Answer {
    type Error = sqlx::Error;

    fn try_from(columns: Columns) -> Result<Self, sqlx::Error> {
        let (entry, outcome, mode, now, acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks) =
            columns;
        let mode = parse_mode(mode.as_deref())?;
        let state = || {
            let token_ticks = token_ticks?;
            let capacity = burst? / token_ticks;
            let terms = Terms { capacity, step_ns: step_ns?, step_ticks: step_ticks?, token_ticks, calendar: false };
            Some((terms, Bucket { anchor: anchor?, full_at: full_at?, granted: granted?, longest_wait: 0 }))
        };
        let state = state();
        Ok(Self { entry, word: word(&outcome)?, mode, now, acts_at, capacity: burst, state })
    }
}

/// What routines that decide under a sliding window answer: what became of the request, what decided instead of the counts,
/// when, when the request acts, the sub-intervals' ends and counts, and their resolution.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) type WindowColumns = (String, Option<String>, i64, Option<i64>, Counts, i64);

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn counted(columns: WindowColumns) -> Result<crate::Counted, sqlx::Error> {
    let (outcome, mode, now, acts_at, mut counts, resolution_ns) = columns;
    counts.sort_unstable();
    Ok(crate::Counted {
        word: word(&outcome)?,
        mode: parse_mode(mode.as_deref())?,
        now,
        acts_at,
        counts,
        resolution_ns,
    })
}

/// A list of numbers in text, whatever is between them: pairs of a sub-interval's end and its count.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn parse_counts(text: &str) -> Result<Counts, sqlx::Error> {
    let numbers: Result<Vec<i64>, _> =
        text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()).map(str::parse).collect();
    let numbers = numbers.map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

fn parse_mode(mode: Option<&str>) -> Result<Mode, sqlx::Error> {
    match mode {
        None => Ok(Mode::Enforce),
        Some(word) => Mode::parse(word).ok_or_else(|| sqlx::Error::Protocol(format!("the mode {word:?}"))),
    }
}

fn word(word: &str) -> Result<Word, sqlx::Error> {
    Ok(match word {
        "granted" => Word::Granted,
        "denied" => Word::Denied,
        "spared" => Word::Spared,
        "never" => Word::Never,
        "unknown" => Word::Unknown,
        "unplanned" => Word::Unplanned,
        "conflict" => Word::Conflict,
        "reused" => Word::Reused,
        other => return Err(sqlx::Error::Protocol(format!("the outcome {other:?}"))),
    })
}
