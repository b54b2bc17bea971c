use super::operations::Lowered;
use crate::answer::{Answer, Word};
use crate::bucket::{Bucket, Request, Terms};
use crate::window::Counts;
use crate::{Counted, Mode};

/// What every routine answers: which request (from 1), for how many equal ones that it stands for, what became of each,
/// what decided instead of the tokens, when, when the tokens may be used, and the bucket's `full_at`, `granted`, `burst`,
/// `anchor`, `step_ns`, `step_ticks` and `token_ticks` after all of them.
pub(super) type Columns = (
    i64,
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

/// What rows say, one answer a request, in the order of what was asked. Those to one entry are in their order already.
pub(super) fn in_order<'a>(
    mut rows: Vec<Columns>,
    request: impl Fn(usize) -> Option<&'a Request>,
) -> Result<Vec<Answer>, sqlx::Error> {
    rows.sort_by_key(|columns| columns.0);
    let mut answers = Vec::with_capacity(rows.len());
    for columns in rows {
        let unasked = || sqlx::Error::Protocol(format!("an answer to the request {}", columns.0));
        let place = usize::try_from(columns.0 - 1).map_err(|_| unasked())?;
        let (request, times) = (*request(place).ok_or_else(unasked)?, columns.1);
        let answer = Answer::try_from(columns)?;
        answers.extend((0..times).rev().map(|later| answer.before(later, request)));
    }
    Ok(answers)
}

impl TryFrom<Columns> for Answer {
    type Error = sqlx::Error;

    fn try_from(columns: Columns) -> Result<Self, sqlx::Error> {
        let (_, _, outcome, mode, now, acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks) =
            columns;
        let mode = parse_mode(mode.as_deref())?;
        let state = || {
            let token_ticks = token_ticks?;
            let capacity = burst? / token_ticks;
            let terms = Terms { capacity, step_ns: step_ns?, step_ticks: step_ticks?, token_ticks, calendar: false };
            Some((terms, Bucket { anchor: anchor?, full_at: full_at?, granted: granted?, longest_wait: 0 }))
        };
        let state = state();
        Ok(Self { word: word(&outcome)?, mode, now, acts_at, capacity: burst, state })
    }
}

/// What routines that decide under a sliding window answer: what became of the request, what decided instead of the counts,
/// when, when the request acts, the sub-intervals' ends and counts, and their resolution.
pub(super) type WindowColumns = (String, Option<String>, i64, Option<i64>, Counts, i64);

pub(super) fn counted(columns: WindowColumns) -> Result<Counted, sqlx::Error> {
    let (outcome, mode, now, acts_at, mut counts, resolution_ns) = columns;
    counts.sort_unstable();
    Ok(Counted { word: word(&outcome)?, mode: parse_mode(mode.as_deref())?, now, acts_at, counts, resolution_ns })
}

fn parse_mode(mode: Option<&str>) -> Result<Mode, sqlx::Error> {
    match mode {
        None => Ok(Mode::Enforce),
        Some(word) => Mode::parse(word).ok_or_else(|| sqlx::Error::Protocol(format!("the mode {word:?}"))),
    }
}

/// What routines answer that hold a bucket back.
pub(super) fn lowered(outcome: &str) -> Result<Lowered, sqlx::Error> {
    Ok(match outcome {
        "lowered" => Ok(Some(true)),
        "unchanged" => Ok(Some(false)),
        "endless" => Ok(None),
        other => Err(word(other)?),
    })
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
