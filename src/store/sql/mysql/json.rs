//! JSON arrays of MySQL's routines: many requests in one parameter, and many answers in one column.

use crate::model::bucket::BucketRequest;
use crate::model::{Adjustment, Quota};
use crate::store::sql::answers::AnswerColumns;
use crate::store::sql::call::SqlRequest;

/// The argument of `token_take_batch_v1`. Nothing in the array needs escaping.
pub(super) fn requests(requests: &[SqlRequest]) -> String {
    array(requests.iter().map(|request| {
        let BucketRequest { cost, max_wait, min_remaining } = request.amounts;
        let (quota, plan) = (quota_json(request.quota(0)), hex(request.plan(0)));
        let id = request.id().map_or_else(|| "null".to_owned(), |id| format!("\"{}\"", id.hyphenated()));
        let key = hex(Some(request.key().as_str()));
        format!(
            "[{key},{cost},{max_wait},{min_remaining},{quota},{plan},{id},{},{}]",
            request.remember_for_ns(),
            request.times
        )
    }))
}

/// The first argument of `token_take_uniform_v1`.
pub(super) fn ids(requests: &[SqlRequest]) -> String {
    array(requests.iter().map(|request| match (hex(Some(request.key().as_str())), request.times) {
        (key, 1) => key,
        (key, times) => format!("[{key},{times}]"),
    }))
}

/// The argument of `token_take_all_batch_v1`.
pub(super) fn requests_for_several(requests: &[SqlRequest]) -> String {
    array(requests.iter().map(|request| limits(request, 0..request.take.limits.len())))
}

/// The first argument of `token_take_all_v1`: the limits at these places.
pub(super) fn limits(request: &SqlRequest, places: impl IntoIterator<Item = usize>) -> String {
    array(places.into_iter().map(|place| {
        let (quota, plan) = (quota_json(request.quota(place)), hex(request.plan(place)));
        let BucketRequest { cost, min_remaining, .. } = request.request_at(place);
        format!("[{},{cost},{min_remaining},{quota},{plan}]", hex(Some(request.take.limits[place].key().as_str())))
    }))
}

/// The argument of `token_adjust_batch_v1`.
pub(super) fn adjustments(adjustments: &[Adjustment]) -> String {
    array(adjustments.iter().map(|adjustment| {
        let Adjustment { receipt, kind, max_debt } = adjustment;
        let ((kind, tokens), grant) = (kind.sql_arguments(), receipt.grant);
        let id = adjustment.remembered_id().map_or_else(|| "null".to_owned(), |id| format!("\"{id}\""));
        let key = hex(Some(receipt.key.as_str()));
        let (cost, granted, scheduled_at) = (grant.cost, grant.granted, grant.scheduled_at);
        format!(
            "[\"{kind}\",{id},{key},{cost},{granted},{scheduled_at},{tokens},{},{max_debt}]",
            u8::from(receipt.window)
        )
    }))
}

fn array(elements: impl Iterator<Item = String>) -> String {
    format!("[{}]", elements.collect::<Vec<_>>().join(","))
}

fn quota_json(quota: Option<&Quota>) -> String {
    match quota {
        None => "null,null,null".to_owned(),
        Some(quota) => format!("{},{},\"{}\"", quota.capacity_i64(), quota.refill_seconds(), quota.refill().column()),
    }
}

pub(super) fn hex(text: Option<&str>) -> String {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let Some(text) = text else {
        return "null".to_owned();
    };
    let mut hex = String::with_capacity(2 * text.len() + 2);
    hex.push('"');
    for byte in text.bytes() {
        hex.extend([byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)])));
    }
    hex.push('"');
    hex
}

/// The texts of a JSON array, in which nothing needs escaping.
pub(super) fn texts(array: &str) -> impl Iterator<Item = &str> {
    array.split('"').skip(1).step_by(2)
}

/// Parses the text of an answer about one bucket.
pub(super) fn parse_columns(text: &str) -> Result<AnswerColumns, sqlx::Error> {
    let words: Vec<Option<&str>> = text.split(' ').map(|word| Some(word).filter(|word| *word != "-")).collect();
    let &[entry, outcome, mode, now, scheduled_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks] =
        words.as_slice()
    else {
        return Err(sqlx::Error::Protocol(format!("the answer {text:?}")));
    };
    let number =
        |word: Option<&str>| word.map(str::parse::<i64>).transpose().map_err(|e| sqlx::Error::Decode(e.into()));
    let needed = |word| number(word)?.ok_or_else(|| sqlx::Error::Protocol(format!("the answer {text:?}")));
    Ok(AnswerColumns {
        position: needed(entry)?,
        times: 1,
        outcome: outcome.unwrap_or_default().to_owned(),
        mode: mode.map(str::to_owned),
        now: needed(now)?,
        scheduled_at: number(scheduled_at)?,
        state: [
            number(full_at)?,
            number(granted)?,
            number(burst)?,
            number(anchor)?,
            number(step_ns)?,
            number(step_ticks)?,
            number(token_ticks)?,
        ],
    })
}
