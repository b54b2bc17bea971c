//! Requests for several buckets each: a call for one, or one for many.

use sqlx::mysql::MySqlConnection;

use super::{Whose, json, text};
use crate::model::answer::Answer;
use crate::store::sql::ask::Ask;
use crate::store::sql::columns;
use crate::store::sql::columns::Entry;
use crate::store::sql::standing::Told;

/// The answers for each bucket of each request, in their order.
pub(super) async fn take_all(
    connection: &mut MySqlConnection,
    asks: &[Ask],
    whose: Whose,
) -> Result<Vec<Answer>, sqlx::Error> {
    match asks {
        [ask] => take_one(connection, ask, whose).await,
        _ => take_many(connection, asks, whose).await,
    }
}

async fn take_one(connection: &mut MySqlConnection, ask: &Ask, whose: Whose) -> Result<Vec<Answer>, sqlx::Error> {
    // Who locks several rows does so in the order of their ids.
    let mut places: Vec<usize> = (0..ask.take.limits.len()).collect();
    places.sort_unstable_by_key(|place| ask.take.limits[*place].key().as_str());
    // With a placeholder for the OUT parameter, which the server answers as a row; below likewise.
    let rows: Vec<(Vec<u8>,)> = sqlx::query_as("call token_take_all_v1(?, ?, ?, ?, ?, ?)")
        .bind(json::limits(ask, places.iter().copied()))
        .bind(ask.request.max_wait)
        .bind(ask.id().map(|id| id.hyphenated().to_string()))
        .bind(ask.hold())
        .bind(whose.is_own())
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (answers,) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let columns = json::texts(&text(answers)).map(json::parse_columns).collect::<Result<_, _>>()?;
    let answers = columns::in_order(columns::entries(columns)?, |told| Some(ask.request_at(*places.get(told)?)))?;
    let mut answers: Vec<(usize, Answer)> = places.into_iter().zip(answers).collect();
    answers.sort_unstable_by_key(|(place, _)| *place);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

async fn take_many(connection: &mut MySqlConnection, asks: &[Ask], whose: Whose) -> Result<Vec<Answer>, sqlx::Error> {
    let rows: Vec<(Vec<u8>, Vec<u8>)> = sqlx::query_as("call token_take_all_batch_v1(?, ?, ?, ?)")
        .bind(json::requests_for_several(asks))
        .bind(whose.is_own())
        .bind(None::<String>)
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (standing, rest) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let mut told = Told::new(asks);
    tell(&mut told, true, &text(standing))?;
    tell(&mut told, false, &text(rest))?;
    Ok(told.in_turn())
}

/// Texts that begin with the place of their request and of its bucket, from 1.
fn tell(told: &mut Told<'_>, standing: bool, array: &str) -> Result<(), sqlx::Error> {
    for text in json::texts(array) {
        let unread = || sqlx::Error::Protocol(format!("the answer {text:?}"));
        let (request, text) = text.split_once(' ').ok_or_else(unread)?;
        let Entry { request: place, answer, .. } = json::parse_columns(text)?.try_into()?;
        let request: usize = request.parse().map_err(|_| unread())?;
        let (request, place) = (request.checked_sub(1), usize::try_from(place - 1).ok());
        told.tell(request.zip(place).ok_or_else(unread)?, standing, answer)?;
    }
    Ok(())
}
