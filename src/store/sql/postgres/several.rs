//! Requests for several buckets each: a call for one, or one for many.

use sqlx::postgres::PgConnection;
use sqlx::{FromRow, Row};

use super::answers::Answers;
use super::refill;
use crate::model::Quota;
use crate::model::answer::Answer;
use crate::store::sql::ask::Ask;
use crate::store::sql::columns;
use crate::store::sql::columns::{Columns, Entry};
use crate::store::sql::standing::Told;

/// The answers for each bucket of each request, in their order.
pub(super) async fn take_all(connection: &mut PgConnection, asks: &[Ask]) -> Result<Vec<Answer>, sqlx::Error> {
    match asks {
        [ask] => take_one(connection, ask).await,
        _ => take_many(connection, asks).await,
    }
}

async fn take_one(connection: &mut PgConnection, ask: &Ask) -> Result<Vec<Answer>, sqlx::Error> {
    let places = 0..ask.take.limits.len();
    let rows: Vec<Columns> = sqlx::query_as(
        "select t.entry, 1::bigint, (t.taken).*
           from tollgate.take_all_v1($1, $2, $3, $4, $5::text[]::numeric[], $6, $7, $8, $9, $10) t",
    )
    .bind(ask.take.keys().map(|key| key.as_str().to_owned()).collect::<Vec<_>>())
    .bind(places.clone().map(|place| ask.request_at(place).cost).collect::<Vec<_>>())
    .bind(places.clone().map(|place| ask.request_at(place).keep).collect::<Vec<_>>())
    .bind(places.clone().map(|place| ask.quota(place).map(Quota::capacity_i64)).collect::<Vec<_>>())
    .bind(places.clone().map(|place| ask.quota(place).map(Quota::refill_seconds)).collect::<Vec<_>>())
    .bind(places.clone().map(|place| ask.quota(place).map(refill)).collect::<Vec<_>>())
    .bind(places.map(|place| ask.plan(place).map(str::to_owned)).collect::<Vec<_>>())
    .bind(ask.request.max_wait)
    .bind(ask.id())
    .bind(ask.hold())
    .fetch_all(connection)
    .await?;
    columns::in_order(columns::entries(rows)?, |place| (place < ask.take.limits.len()).then(|| ask.request_at(place)))
}

async fn take_many(connection: &mut PgConnection, asks: &[Ask]) -> Result<Vec<Answer>, sqlx::Error> {
    // A request's place, from 0, and that of each of its buckets.
    let places: Vec<(usize, usize)> = asks
        .iter()
        .enumerate()
        .flat_map(|(request, ask)| (0..ask.take.limits.len()).map(move |place| (request, place)))
        .collect();
    let rows = sqlx::query(
        "select t.standing, (t.answers).*
           from tollgate.take_all_batch_v1($1, $2, $3, $4, $5, $6::text[]::numeric[], $7, $8) t",
    )
    .bind(places.iter().map(|(request, _)| i64::try_from(*request).unwrap_or(i64::MAX)).collect::<Vec<_>>())
    .bind(column(asks, &places, |ask, place| ask.take.limits[place].key.as_str().to_owned()))
    .bind(column(asks, &places, |ask, place| ask.request_at(place).cost))
    .bind(column(asks, &places, |ask, place| ask.request_at(place).keep))
    .bind(column(asks, &places, |ask, place| ask.quota(place).map(Quota::capacity_i64)))
    .bind(column(asks, &places, |ask, place| ask.quota(place).map(Quota::refill_seconds)))
    .bind(column(asks, &places, |ask, place| ask.quota(place).map(refill)))
    .bind(column(asks, &places, |ask, place| ask.plan(place).map(str::to_owned)))
    .fetch_all(connection)
    .await?;
    let mut told = Told::new(asks);
    for row in &rows {
        let standing = row.try_get("standing")?;
        for Entry { request: entry, answer, .. } in Answers::from_row(row)?.entries()? {
            let unasked = || sqlx::Error::Protocol(format!("an answer to the place {entry}"));
            let place = usize::try_from(entry - 1).ok().and_then(|entry| places.get(entry)).ok_or_else(unasked)?;
            told.tell(*place, standing, answer)?;
        }
    }
    Ok(told.in_turn())
}

fn column<T>(asks: &[Ask], places: &[(usize, usize)], value: impl Fn(&Ask, usize) -> T) -> Vec<T> {
    places.iter().map(|(request, place)| value(&asks[*request], *place)).collect()
}
