//! Decisions: one routine for a request and its equals, one for requests that differ only in their keys and `times`, and
//! one for a batch. Two more are for requests for several buckets, and one is for sliding windows.

use sqlx::Row;
use sqlx::mysql::{MySql, MySqlConnection};

use super::adjust::adjust;
use super::{TransactionOwner, bytes, json, refill, text};
use crate::model::answer::BucketAnswer;
use crate::model::{Adjustment, Quota, Refill, WindowUsage};
use crate::store::sql::answers::{self, AllAnswers, AnswerColumns, Entry};
use crate::store::sql::call::{self, AdjustedColumns, Counting, SqlRequest};
use crate::store::sql::dialect::Decisions;

impl Decisions for MySql {
    async fn take(
        connection: &mut MySqlConnection,
        requests: &[SqlRequest],
        owner: &TransactionOwner,
    ) -> Result<Vec<BucketAnswer>, sqlx::Error> {
        // Each call fetches all rows: the next statement would read unread rows of a CALL as its own.
        let columns: Vec<AnswerColumns> = match requests {
            [request] => take_one(connection, request, *owner).await?,
            _ => take_many(connection, requests, *owner).await?,
        };
        answers::in_order(answers::entries(columns)?, |place| requests.get(place).map(|request| request.amounts))
    }

    async fn take_all(
        connection: &mut MySqlConnection,
        requests: &[SqlRequest],
        owner: &TransactionOwner,
    ) -> Result<Vec<BucketAnswer>, sqlx::Error> {
        take_all(connection, requests, *owner).await
    }

    async fn take_window(
        connection: &mut MySqlConnection,
        request: &SqlRequest,
        counting: Counting,
        owner: &TransactionOwner,
    ) -> Result<WindowUsage, sqlx::Error> {
        take_window(connection, request, counting, *owner).await
    }

    async fn adjust(
        connection: &mut MySqlConnection,
        adjustments: &[Adjustment],
        owner: &TransactionOwner,
    ) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
        adjust(connection, adjustments, *owner).await
    }
}

/// The columns of `token_take_window_v1`, with texts as bytes.
type WindowOutParameters = (Vec<u8>, Option<Vec<u8>>, i64, Option<i64>, Vec<u8>, i64);

/// Decides a request, and its equals in the same call.
///
/// Binds a placeholder to each OUT parameter. The server answers these as a row, so that no routine in between must
/// select them.
async fn take_one(
    connection: &mut MySqlConnection,
    request: &SqlRequest,
    owner: TransactionOwner,
) -> Result<Vec<AnswerColumns>, sqlx::Error> {
    const OUT_PARAMETERS: usize = 11;
    let mut call =
        sqlx::query("call token_take_v1(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, true, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .bind(bytes(request.key()))
            .bind(request.amounts.cost)
            .bind(request.amounts.max_wait)
            .bind(request.amounts.min_remaining)
            .bind(request.quota(0).map(Quota::capacity_i64))
            .bind(request.quota(0).map(Quota::refill_seconds))
            .bind(request.quota(0).map(refill))
            .bind(request.plan(0).map(str::as_bytes))
            .bind(request.id_text())
            .bind(request.remember_for_ns())
            .bind(owner.is_own())
            .bind(request.times);
    for _ in 0..OUT_PARAMETERS {
        call = call.bind(None::<i64>);
    }
    let rows = call.fetch_all(connection).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    // MySQL does not report texts as text.
    let columns = AnswerColumns {
        position: 1,
        times: request.times,
        outcome: text(row.try_get(1)?),
        mode: row.try_get::<Option<_>, _>(2)?.map(text),
        now: row.try_get(3)?,
        scheduled_at: row.try_get(4)?,
        state: answers::state_columns(row, 5)?,
    };
    Ok(parts(row.try_get(0)?, columns).collect())
}

async fn take_many(
    connection: &mut MySqlConnection,
    requests: &[SqlRequest],
    owner: TransactionOwner,
) -> Result<Vec<AnswerColumns>, sqlx::Error> {
    if let Some(columns) = take_uniform(connection, requests, owner).await? {
        return Ok(columns);
    }
    let rows: Vec<(Vec<u8>,)> = sqlx::query_as("call token_take_batch_v1(?, ?, ?)")
        .bind(json::requests(requests))
        .bind(owner.is_own())
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (answers,) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let mut columns = Vec::with_capacity(requests.len());
    for text in json::texts(&text(answers)) {
        let unread = || sqlx::Error::Protocol(format!("the answer {text:?}"));
        let mut words = text.splitn(3, ' ');
        let mut times = || words.next().and_then(|word| word.parse::<i64>().ok()).ok_or_else(unread);
        let (times, granted_times) = (times()?, times()?);
        if times > 0 {
            let mut answer = json::parse_columns(words.next().ok_or_else(unread)?)?;
            answer.times = times;
            columns.extend(parts(granted_times, answer));
        }
    }
    Ok(columns)
}

/// Splits the answer to equal requests into those that were granted and the others.
fn parts(granted_times: i64, mut others: AnswerColumns) -> impl Iterator<Item = AnswerColumns> {
    let granted = AnswerColumns { times: granted_times, outcome: "granted".to_owned(), mode: None, ..others.clone() };
    others.times -= granted_times;
    [granted, others].into_iter().filter(|columns| columns.times > 0)
}

/// Decides requests that differ only in their keys and `times`, as most batches of one limiter do.
///
/// Returns `None`, and decides nothing, if the requests differ otherwise, or if more than tokens can decide one of
/// them.
async fn take_uniform(
    connection: &mut MySqlConnection,
    requests: &[SqlRequest],
    owner: TransactionOwner,
) -> Result<Option<Vec<AnswerColumns>>, sqlx::Error> {
    let Some(first) = requests.first().filter(|_| SqlRequest::are_uniform(requests)) else {
        return Ok(None);
    };
    let (amounts, quota) = (first.amounts, first.quota(0));
    // The routine computes limits that are the same at each time.
    if quota.is_some_and(|quota| matches!(quota.refill(), Refill::Period(_))) {
        return Ok(None);
    }
    let rows: Vec<UniformRow> = sqlx::query_as("call token_take_uniform_v1(?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(json::ids(requests))
        .bind(amounts.cost)
        .bind(amounts.min_remaining)
        .bind(quota.map(Quota::capacity_i64))
        .bind(quota.map(Quota::refill_seconds))
        .bind(quota.map(refill))
        .bind(first.plan(0).map(str::as_bytes))
        .bind(owner.is_own())
        .fetch_all(connection)
        .await?;
    let row = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let (Some(now), Some(burst), Some(anchor), Some(step_ns), Some(step_ticks), Some(token_ticks), Some(answers)) = row
    else {
        return Ok(None);
    };
    let mut columns = Vec::with_capacity(requests.len());
    for text in answers.split_terminator(';') {
        let unread = || sqlx::Error::Protocol(format!("the answer {text:?}"));
        let mut words = text.split(' ').map(|word| word.parse::<i64>().map_err(|_| unread()));
        let mut word = || words.next().ok_or_else(unread)?;
        let (place, granted_times, full_at, granted) = (word()?, word()?, word()?, word()?);
        let request = usize::try_from(place - 1).ok().and_then(|place| requests.get(place)).ok_or_else(unread)?;
        let tokens = granted_times * amounts.cost;
        let denied = AnswerColumns {
            position: place,
            times: request.times,
            outcome: "denied".to_owned(),
            mode: None,
            now,
            scheduled_at: Some(now),
            state: [full_at + tokens * token_ticks, granted + tokens, burst, anchor, step_ns, step_ticks, token_ticks]
                .map(Some),
        };
        columns.extend(parts(granted_times, denied));
    }
    Ok(Some(columns))
}

/// The row of `token_take_uniform_v1`: `now`, `burst`, `anchor`, `step_ns`, `step_ticks`, `token_ticks` and `answers`.
/// All but the last are also null if the numbers are not a valid quota.
type UniformRow = (Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<String>);

/// Decides requests for several buckets each, and answers for each bucket of each request, in their order.
async fn take_all(
    connection: &mut MySqlConnection,
    requests: &[SqlRequest],
    owner: TransactionOwner,
) -> Result<Vec<BucketAnswer>, sqlx::Error> {
    match requests {
        [request] => take_all_one(connection, request, owner).await,
        _ => take_all_many(connection, requests, owner).await,
    }
}

async fn take_all_one(
    connection: &mut MySqlConnection,
    request: &SqlRequest,
    owner: TransactionOwner,
) -> Result<Vec<BucketAnswer>, sqlx::Error> {
    // In the order of ids, as everywhere: so requests that lock several rows cannot deadlock.
    let mut places: Vec<usize> = (0..request.take.limits.len()).collect();
    places.sort_unstable_by_key(|place| request.take.limits[*place].key().as_str());
    // The placeholder is for the OUT parameter, which the server answers as a row.
    let rows: Vec<(Vec<u8>,)> = sqlx::query_as("call token_take_all_v1(?, ?, ?, ?, ?, ?)")
        .bind(json::limits(request, places.iter().copied()))
        .bind(request.amounts.max_wait)
        .bind(request.id_text())
        .bind(request.remember_for_ns())
        .bind(owner.is_own())
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (answers,) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let columns = json::texts(&text(answers)).map(json::parse_columns).collect::<Result<_, _>>()?;
    let answers =
        answers::in_order(answers::entries(columns)?, |answered| Some(request.request_at(*places.get(answered)?)))?;
    let mut answers: Vec<(usize, BucketAnswer)> = places.into_iter().zip(answers).collect();
    answers.sort_unstable_by_key(|(place, _)| *place);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

async fn take_all_many(
    connection: &mut MySqlConnection,
    requests: &[SqlRequest],
    owner: TransactionOwner,
) -> Result<Vec<BucketAnswer>, sqlx::Error> {
    let rows: Vec<(Vec<u8>, Vec<u8>)> = sqlx::query_as("call token_take_all_batch_v1(?, ?, ?, ?)")
        .bind(json::requests_for_several(requests))
        .bind(owner.is_own())
        .bind(None::<String>)
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (standing, rest) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let mut collected = AllAnswers::new(requests);
    collect(&mut collected, true, &text(standing))?;
    collect(&mut collected, false, &text(rest))?;
    Ok(collected.in_request_order())
}

/// Adds the answers of a JSON array. Each text begins with the places of its request and of its bucket, from 1.
fn collect(collected: &mut AllAnswers<'_>, standing: bool, array: &str) -> Result<(), sqlx::Error> {
    for text in json::texts(array) {
        let unread = || sqlx::Error::Protocol(format!("the answer {text:?}"));
        let (request, text) = text.split_once(' ').ok_or_else(unread)?;
        let Entry { position, answer, .. } = json::parse_columns(text)?.try_into()?;
        let request: usize = request.parse().map_err(|_| unread())?;
        let (request, place) = (request.checked_sub(1), usize::try_from(position - 1).ok());
        collected.add(request.zip(place).ok_or_else(unread)?, standing, answer)?;
    }
    Ok(())
}

/// Decides a request under a sliding window, or counts it.
async fn take_window(
    connection: &mut MySqlConnection,
    request: &SqlRequest,
    counting: Counting,
    owner: TransactionOwner,
) -> Result<WindowUsage, sqlx::Error> {
    let window = request.window()?;
    // The placeholders are for the OUT parameters, which the server answers as a row.
    let rows: Vec<WindowOutParameters> =
        sqlx::query_as("call token_take_window_v1(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .bind(bytes(request.key()))
            .bind(request.amounts.cost)
            .bind(request.amounts.max_wait)
            .bind(request.amounts.min_remaining)
            .bind(window.signed_max_requests())
            .bind(window.interval_ns())
            .bind(window.resolution_ns())
            .bind(request.id_text())
            .bind(request.remember_for_ns())
            .bind(counting == Counting::Count)
            .bind(owner.is_own())
            .bind(None::<i64>)
            .bind(None::<i64>)
            .bind(None::<i64>)
            .bind(None::<i64>)
            .bind(None::<i64>)
            .bind(None::<i64>)
            .fetch_all(connection)
            .await?;
    let row = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let (outcome, mode, now, scheduled_at, counts, resolution) = row;
    let counts = call::parse_counts(&text(counts))?;
    answers::counted((text(outcome), mode.map(text), now, scheduled_at, counts, resolution))
}
