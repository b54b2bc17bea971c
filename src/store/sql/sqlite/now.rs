//! Requests that nothing rules but the buckets' own terms: plain grants and denials, decided by one message to the thread
//! that has the database, where a transaction takes two.

use sqlx::sqlite::SqliteConnection;

use super::super::ask::Ask;
use super::HostClock;
use super::row::{self, Found};
use crate::model::Limit;
use crate::model::answer::{Answer, Word};
use crate::model::bucket::Request;
use crate::model::decide;

/// Decides a request for one bucket, if it is such a one, and the equal ones that it stands for: if not all of them are
/// granted, and not all are denied, none is decided.
pub(super) async fn take(
    connection: &mut SqliteConnection,
    ask: &Ask,
    clock: &HostClock,
) -> Result<Option<Vec<Answer>>, sqlx::Error> {
    let Some(cost) = ask.request.cost.checked_mul(ask.times) else { return Ok(None) };
    if ask.plan(0).is_some() || ask.id().is_some() {
        return Ok(None);
    }
    let whole = Request { cost, ..ask.request };
    let Some(found) = row::take(connection, ask, whole, clock.into()).await? else {
        return Ok(None);
    };
    let answer = match found.granted {
        Some(now) => Some(granted(&found, whole, now)),
        None => weighed(&found, ask, 0, clock.now()).filter(|answer| answer.word != Word::Granted),
    };
    Ok(answer.map(|answer| (0..ask.times).rev().map(|later| answer.before(later, ask.request)).collect()))
}

/// Decides a request for several buckets, if it is such a one for all of them.
pub(super) async fn take_all(
    connection: &mut SqliteConnection,
    ask: &Ask,
    clock: &HostClock,
) -> Result<Option<Vec<Answer>>, sqlx::Error> {
    let limits = &ask.take.limits;
    if (0..limits.len()).any(|place| ask.plan(place).is_some()) || ask.id().is_some() {
        return Ok(None);
    }
    let rows = row::take_all(connection, ask, clock.into()).await?;
    let later = clock.now();
    let mut answers = Vec::with_capacity(limits.len());
    let mut spared = Vec::new();
    for (place, Limit { key, .. }) in limits.iter().enumerate() {
        let Some((_, found)) = rows.iter().find(|(id, _)| id == key.as_str()) else { return Ok(None) };
        let answer = match found.granted {
            Some(now) => Some(granted(found, ask.request_at(place), now)),
            None => weighed(found, ask, place, later),
        };
        let Some(answer) = answer else { return Ok(None) };
        if found.granted.is_none() && answer.word == Word::Granted {
            spared.push((place, found.row.bucket));
        }
        answers.push(answer);
    }
    if spared.len() == limits.len() {
        return Ok(None);
    }
    for (place, before) in spared {
        answers[place].spare(Some(before));
    }
    Ok(Some(answers))
}

/// What a bucket after a grant says of it.
fn granted(Found { row, .. }: &Found, request: Request, now: i64) -> Answer {
    let terms = row.terms();
    let due = row.bucket.full_at + request.keep * terms.token_ticks - terms.burst();
    let there = due <= terms.clock(row.bucket.anchor, now);
    let acts_at = if there { now } else { terms.instant(row.bucket.anchor, due).max(now) };
    Answer::granted(now, acts_at, terms, row.bucket)
}

/// What a bucket as it is makes of the request, unless more than its own terms rules it.
fn weighed(found: &Found, ask: &Ask, place: usize, now: i64) -> Option<Answer> {
    let Found { row, ruled, .. } = found;
    let own = ask.quota(place).is_none_or(|quota| *quota == row.own);
    let plain = !ruled && row.plan.is_none() && row.over.is_none() && own;
    (plain && !row.bucket.stepped_back(&row.terms(), now))
        .then(|| decide::take_row(&mut row.clone(), ask.request_at(place), now))
}
