//! Requests for several buckets each: a call for one, or one for many.

use std::collections::HashMap;

use sqlx::mysql::MySqlConnection;

use super::{json, text};
use crate::answer::{Answer, Word};
use crate::store::ask::Ask;
use crate::store::columns;

/// The answers for each bucket of each request, in their order.
pub(super) async fn take_all(connection: &mut MySqlConnection, asks: &[Ask]) -> Result<Vec<Answer>, sqlx::Error> {
    match asks {
        [ask] => take_one(connection, ask).await,
        _ => take_many(connection, asks).await,
    }
}

async fn take_one(connection: &mut MySqlConnection, ask: &Ask) -> Result<Vec<Answer>, sqlx::Error> {
    // With a placeholder for the OUT parameter, which the server answers as a row; below likewise.
    let rows: Vec<(Vec<u8>,)> = sqlx::query_as("call token_decide_all_v1(?, ?, ?, ?, ?, ?, ?)")
        .bind(json::limits(ask))
        .bind(ask.request.cost)
        .bind(ask.request.max_wait)
        .bind(ask.request.keep)
        .bind(ask.id().map(|id| id.hyphenated().to_string()))
        .bind(ask.hold())
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (answers,) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let columns = json::texts(&text(answers)).map(json::parse_columns).collect::<Result<_, _>>()?;
    columns::in_order(columns, |_| Some(&ask.request))
}

async fn take_many(connection: &mut MySqlConnection, asks: &[Ask]) -> Result<Vec<Answer>, sqlx::Error> {
    let rows: Vec<(Vec<u8>, Vec<u8>)> = sqlx::query_as("call token_decide_all_many_v1(?, ?, ?)")
        .bind(json::requests_for_several(asks))
        .bind(None::<String>)
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (standing, rest) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let (mut standing, mut rest) = (by_request(&text(standing), asks)?, by_request(&text(rest), asks)?);
    let (mut answers, mut taken) = (Vec::new(), HashMap::new());
    for (request, ask) in (1..).zip(asks) {
        let decided = match rest.remove(&request) {
            Some(decided) => decided,
            None => in_turn(ask, standing.remove(&request).unwrap_or_default(), &mut taken),
        };
        answers.extend(decided);
    }
    Ok(answers)
}

/// What a request comes to whose buckets have enough for all, or one of them none, after those before it.
fn in_turn<'a>(ask: &'a Ask, mut standing: Vec<Answer>, taken: &mut HashMap<&'a str, i64>) -> Vec<Answer> {
    let granted = standing.iter().all(|answer| answer.word == Word::Granted);
    for (answer, key) in standing.iter_mut().zip(ask.take.keys()) {
        let taken = taken.entry(key.as_str()).or_default();
        if granted {
            *taken += ask.request.cost;
        } else if answer.word == Word::Granted {
            answer.spare(None);
        }
        answer.debit(*taken);
    }
    standing
}

/// Texts that begin with the place of their request, from 1: what they say of each of its buckets, in their order.
fn by_request(array: &str, asks: &[Ask]) -> Result<HashMap<usize, Vec<Answer>>, sqlx::Error> {
    let mut columns: HashMap<usize, Vec<_>> = HashMap::new();
    for text in json::texts(array) {
        let unread = || sqlx::Error::Protocol(format!("the answer {text:?}"));
        let (request, text) = text.split_once(' ').ok_or_else(unread)?;
        let request = request.parse().map_err(|_| unread())?;
        columns.entry(request).or_default().push(json::parse_columns(text)?);
    }
    let answers = columns.into_iter().map(|(request, columns)| {
        let ask = usize::checked_sub(request, 1).and_then(|place| asks.get(place));
        Ok((request, columns::in_order(columns, |_| ask.map(|ask| &ask.request))?))
    });
    answers.collect()
}
