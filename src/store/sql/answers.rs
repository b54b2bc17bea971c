//! Converts the rows that a server's routines return to answers in the order of the requests.

use std::collections::HashMap;

#[cfg(any(feature = "postgres", feature = "mysql"))]
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::call::SqlRequest;
use super::dialect::ThrottleOutcome;
use crate::model::answer::{BucketAnswer, OutcomeCode};
use crate::model::bucket::{Bucket, BucketQuota, BucketRequest, NEVER_NS};
use crate::model::window::Counts;
use crate::model::{Mode, WindowUsage};

/// A row of a routine that decides: the answer to `times` equal requests.
#[derive(Clone)]
pub(super) struct AnswerColumns {
    /// The request, from 1.
    pub(super) position: i64,
    pub(super) times: i64,
    pub(super) outcome: String,
    /// The mode that decided instead of the tokens.
    pub(super) mode: Option<String>,
    /// The instant of the decision.
    pub(super) now: i64,
    /// From when the tokens can be used.
    pub(super) scheduled_at: Option<i64>,
    /// The bucket after these requests.
    pub(super) state: StateColumns,
}

/// A bucket's `full_at`, `granted`, `burst`, `anchor`, `step_ns`, `step_ticks` and `token_ticks`. Null if there is no bucket.
pub(super) type StateColumns = [Option<i64>; 7];

/// Reads [`StateColumns`] that begin at a column of a row.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn state_columns<'r, R: Row>(row: &'r R, first: usize) -> Result<StateColumns, sqlx::Error>
where
    usize: ColumnIndex<R>,
    Option<i64>: Decode<'r, R::Database> + Type<R::Database>,
{
    let mut state = StateColumns::default();
    for (place, column) in (first..).zip(&mut state) {
        *column = row.try_get(place)?;
    }
    Ok(state)
}

/// An answer, the position of its request (from 1), and for how many equal requests the answer stands.
pub(super) struct Entry {
    pub(super) position: i64,
    pub(super) times: i64,
    pub(super) answer: BucketAnswer,
}

/// Reads rows as entries.
pub(super) fn entries(rows: Vec<AnswerColumns>) -> Result<Vec<Entry>, sqlx::Error> {
    rows.into_iter().map(Entry::try_from).collect()
}

/// Returns one answer for each request, in the order of the requests. Entries of one request are in their order
/// already.
pub(super) fn in_order(
    mut entries: Vec<Entry>,
    amounts_at: impl Fn(usize) -> Option<BucketRequest>,
) -> Result<Vec<BucketAnswer>, sqlx::Error> {
    entries.sort_by_key(|entry| entry.position);
    let mut answers = Vec::with_capacity(entries.len());
    for Entry { position, times, answer } in entries {
        let unknown = || sqlx::Error::Protocol(format!("an answer to the request {position}"));
        let amounts = usize::try_from(position - 1).ok().and_then(&amounts_at).ok_or_else(unknown)?;
        answers.extend((0..times).rev().map(|later| answer.earlier_answer(later, amounts)));
    }
    Ok(answers)
}

impl TryFrom<AnswerColumns> for Entry {
    type Error = sqlx::Error;

    fn try_from(columns: AnswerColumns) -> Result<Self, sqlx::Error> {
        let AnswerColumns { position, times, outcome, mode, now, scheduled_at, state } = columns;
        let [_, _, burst, ..] = state;
        let answer = BucketAnswer { now, scheduled_at, capacity: burst, ..answer(&outcome, mode.as_deref())? };
        Ok(Self { position, times, answer: BucketAnswer { state: parse_state(state), ..answer } })
    }
}

/// An answer with only the outcome and the mode.
pub(super) fn answer(outcome: &str, mode: Option<&str>) -> Result<BucketAnswer, sqlx::Error> {
    Ok(BucketAnswer { mode: parse_mode(mode)?, ..BucketAnswer::refused(outcome_code(outcome)?, 0) })
}

/// Returns the bucket, or `None` if there is no bucket.
pub(super) fn parse_state(columns: StateColumns) -> Option<(BucketQuota, Bucket)> {
    let [full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks] = columns;
    let token_ticks = token_ticks?;
    let capacity = burst? / token_ticks;
    let limits = BucketQuota {
        capacity,
        step_ns: step_ns?,
        step_ticks: step_ticks?,
        token_ticks,
        start: None,
        period_end: NEVER_NS,
    };
    Some((limits, Bucket { anchor: anchor?, full_at: full_at?, granted: granted?, max_granted_wait: 0 }))
}

/// The columns of the routines that decide under a sliding window. The first are the outcome, the mode that decided
/// instead of the counts, and the instant of the decision. Then follow the instant at which the request acts, the ends
/// and counts of the sub-intervals, and their resolution.
type WindowColumns = (String, Option<String>, i64, Option<i64>, Counts, i64);

pub(super) fn counted(columns: WindowColumns) -> Result<WindowUsage, sqlx::Error> {
    let (outcome, mode, now, scheduled_at, mut counts, resolution_ns) = columns;
    counts.sort_unstable();
    Ok(WindowUsage {
        code: outcome_code(&outcome)?,
        mode: parse_mode(mode.as_deref())?,
        now,
        scheduled_at,
        counts,
        resolution_ns,
    })
}

fn parse_mode(mode: Option<&str>) -> Result<Mode, sqlx::Error> {
    match mode {
        None => Ok(Mode::Enforce),
        Some(word) => Mode::parse(word).ok_or_else(|| sqlx::Error::Protocol(format!("the mode {word:?}"))),
    }
}

/// Parses the outcome of a routine that lowers a bucket.
pub(super) fn lowered(outcome: &str) -> Result<ThrottleOutcome, sqlx::Error> {
    Ok(match outcome {
        "lowered" => Ok(Some(true)),
        "unchanged" => Ok(Some(false)),
        "endless" => Ok(None),
        other => Err(outcome_code(other)?),
    })
}

fn outcome_code(text: &str) -> Result<OutcomeCode, sqlx::Error> {
    Ok(match text {
        "granted" => OutcomeCode::Granted,
        "denied" => OutcomeCode::Denied,
        "spared" => OutcomeCode::Spared,
        "never" => OutcomeCode::Never,
        "unknown" => OutcomeCode::Unknown,
        "unplanned" => OutcomeCode::Unplanned,
        "conflict" => OutcomeCode::Conflict,
        "reused" => OutcomeCode::Reused,
        other => return Err(sqlx::Error::Protocol(format!("the outcome {other:?}"))),
    })
}

/// The answers to a batch of requests for several buckets each: one for each bucket of each request.
///
/// For most requests, the routine only returns the buckets' states before the batch.
pub(super) struct AllAnswers<'a> {
    requests: &'a [SqlRequest],
    /// By the request, and by the bucket's place in it.
    answers: Vec<Vec<Option<BucketAnswer>>>,
    /// Whether the routine decided the request by itself, so that the answers are its outcome.
    decided: Vec<bool>,
}

impl<'a> AllAnswers<'a> {
    pub(super) fn new(requests: &'a [SqlRequest]) -> Self {
        let answers = requests.iter().map(|request| vec![None; request.take.limits.len()]).collect();
        Self { requests, answers, decided: vec![false; requests.len()] }
    }

    /// Adds an answer about a bucket: its state before the batch (`is_state`), or the outcome of a request that the
    /// routine decided by itself. The outcome replaces the state.
    pub(super) fn add(
        &mut self,
        (request, place): (usize, usize),
        is_state: bool,
        answer: BucketAnswer,
    ) -> Result<(), sqlx::Error> {
        let unknown = || sqlx::Error::Protocol(format!("an answer about the bucket {place} of the request {request}"));
        let known = self.answers.get_mut(request).and_then(|answers| answers.get_mut(place)).ok_or_else(unknown)?;
        if !is_state || !self.decided[request] {
            *known = Some(answer);
        }
        self.decided[request] |= !is_state;
        Ok(())
    }

    /// Returns the answers for each bucket of each request, as if the requests had been decided one after the other.
    /// Returns fewer if the routine left out some.
    ///
    /// The routine decides requests by themselves after all others. So their answers include what the others took, even
    /// those that come later in this order.
    pub(super) fn in_request_order(self) -> Vec<BucketAnswer> {
        let mut buckets: HashMap<&str, Balance> = HashMap::new();
        let mut completed = Vec::with_capacity(self.requests.len());
        for ((request, known), decided) in self.requests.iter().zip(self.answers).zip(self.decided) {
            let known: Vec<BucketAnswer> = known.into_iter().flatten().collect();
            let granted = known.iter().all(|answer| answer.code == OutcomeCode::Granted);
            for (place, key) in request.take.keys().enumerate().filter(|_| granted && !decided) {
                buckets.entry(key.as_str()).or_default().behind += request.request_at(place).cost;
            }
            completed.push((request, known, decided, granted));
        }
        let mut answers = Vec::new();
        for (request, mut known, decided, granted) in completed {
            for (place, (answer, key)) in known.iter_mut().zip(request.take.keys()).enumerate() {
                let bucket = buckets.entry(key.as_str()).or_default();
                let amounts = request.request_at(place);
                if decided {
                    // A bucket in mode `off` grants without taking tokens.
                    bucket.taken += if answer.took_tokens() { amounts.cost } else { 0 };
                    answer.debit(-bucket.behind);
                    continue;
                }
                let cost = if granted { amounts.cost } else { 0 };
                bucket.taken += cost;
                bucket.behind -= cost;
                if !granted && answer.code == OutcomeCode::Granted {
                    answer.spare(None);
                }
                answer.debit(bucket.taken);
                if answer.code == OutcomeCode::Spared && !answer.has(amounts) {
                    answer.code = OutcomeCode::Denied;
                }
            }
            answers.extend(known);
        }
        answers
    }
}

/// Tokens of a bucket that the requests of a batch took.
#[derive(Default)]
struct Balance {
    /// By the requests up to here.
    taken: i64,
    /// By later requests that were not decided by themselves.
    behind: i64,
}
