//! Requests that differ in nothing but their keys, as those of one limiter mostly do.

use sqlx::mysql::MySqlConnection;

use super::{Whose, json, parts, refill};
use crate::model::Quota;
use crate::store::sql::ask::Ask;
use crate::store::sql::columns::Columns;

/// What becomes of them; `None`, and nothing is decided, if they are not alike, or something else than tokens
/// may rule one of them.
pub(super) async fn take(
    connection: &mut MySqlConnection,
    asks: &[Ask],
    whose: Whose,
) -> Result<Option<Vec<Columns>>, sqlx::Error> {
    let Some(first) = alike(asks) else {
        return Ok(None);
    };
    let (request, quota) = (first.request, first.quota(0));
    let rows: Vec<Row> = sqlx::query_as("call token_take_uniform_v1(?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(json::ids(asks))
        .bind(request.cost)
        .bind(request.keep)
        .bind(quota.map(Quota::capacity_i64))
        .bind(quota.map(Quota::refill_seconds))
        .bind(quota.map(refill))
        .bind(first.plan(0).map(str::as_bytes))
        .bind(whose.is_own())
        .fetch_all(connection)
        .await?;
    let row = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let (Some(now), Some(burst), Some(anchor), Some(step_ns), Some(step_ticks), Some(token_ticks), Some(answers)) = row
    else {
        return Ok(None);
    };
    let mut columns = Vec::with_capacity(asks.len());
    for text in answers.split_terminator(';') {
        let unread = || sqlx::Error::Protocol(format!("the answer {text:?}"));
        let mut words = text.split(' ').map(|word| word.parse::<i64>().map_err(|_| unread()));
        let mut word = || words.next().ok_or_else(unread)?;
        let (place, granted_times, full_at, granted) = (word()?, word()?, word()?, word()?);
        let ask = usize::try_from(place - 1).ok().and_then(|place| asks.get(place)).ok_or_else(unread)?;
        let tokens = granted_times * request.cost;
        columns.extend(parts(
            granted_times,
            (
                place,
                ask.times,
                "denied".to_owned(),
                None,
                now,
                Some(now),
                Some(full_at + tokens * token_ticks),
                Some(granted + tokens),
                Some(burst),
                Some(anchor),
                Some(step_ns),
                Some(step_ticks),
                Some(token_ticks),
            ),
        ));
    }
    Ok(Some(columns))
}

/// The first of them, if they differ in nothing but their keys.
fn alike(asks: &[Ask]) -> Option<&Ask> {
    asks.first().filter(|first| asks[1..].iter().all(|ask| first.is_like(ask)))
}

/// What the routine answers: `now`, `burst`, `anchor`, `step_ns`, `step_ticks`, `token_ticks` and `answers`. All but the last
/// are null, too, where figures make no quota.
type Row = (Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<String>);
