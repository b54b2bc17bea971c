//! Decisions: two routines for a request, one for equal requests, one for plain requests, and one for all others.
//! Two more are for requests for several buckets, and one is for sliding windows.

use sqlx::postgres::{PgConnection, PgRow, Postgres};
use sqlx::{FromRow, Row};

use super::adjust::adjust;
use super::key_filter::KeyFilter;
use super::{LockTimeout, refill};
use crate::model::answer::BucketAnswer;
use crate::model::{Adjustment, Quota, WindowUsage};
use crate::store::sql::answers::{self, AllAnswers, AnswerColumns, Entry};
use crate::store::sql::call::{AdjustedColumns, Counting, SqlRequest};
use crate::store::sql::dialect::Decisions;

impl Decisions for Postgres {
    async fn take(
        connection: &mut PgConnection,
        requests: &[SqlRequest],
        timeout: &LockTimeout,
    ) -> Result<Vec<BucketAnswer>, sqlx::Error> {
        let entries = match requests {
            [request @ SqlRequest { times: 1, .. }] => vec![take_one(connection, request, timeout).await?],
            [request] => take_equal(connection, request, timeout).await?,
            _ => take_many(connection, requests, timeout).await?,
        };
        answers::in_order(entries, |place| requests.get(place).map(|request| request.amounts))
    }

    async fn take_all(
        connection: &mut PgConnection,
        requests: &[SqlRequest],
        timeout: &LockTimeout,
    ) -> Result<Vec<BucketAnswer>, sqlx::Error> {
        take_all(connection, requests, timeout).await
    }

    async fn take_window(
        connection: &mut PgConnection,
        request: &SqlRequest,
        counting: Counting,
        timeout: &LockTimeout,
    ) -> Result<WindowUsage, sqlx::Error> {
        take_window(connection, request, counting, timeout).await
    }

    async fn adjust(
        connection: &mut PgConnection,
        adjustments: &[Adjustment],
        timeout: &LockTimeout,
    ) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
        adjust(connection, adjustments, timeout).await
    }
}

/// Decides one request. Expects a grant if the key is among [`LIKELY_GRANTS`]: then one statement grants, and a denial takes
/// half as long again.
async fn take_one(
    connection: &mut PgConnection,
    request: &SqlRequest,
    timeout: &LockTimeout,
) -> Result<Entry, sqlx::Error> {
    let columns = if request.take.is_momentary() && LIKELY_GRANTS.contains(request.key()) {
        grant(connection, request, timeout).await?
    } else {
        take(connection, request, timeout).await?
    };
    let entry = Entry::try_from(columns)?;
    LIKELY_GRANTS.set(request.key(), entry.answer.took_tokens() && entry.answer.has(request.amounts));
    Ok(entry)
}

async fn take(
    connection: &mut PgConnection,
    request: &SqlRequest,
    timeout: &LockTimeout,
) -> Result<AnswerColumns, sqlx::Error> {
    let text = locking!(
        timeout,
        "select 1::bigint, 1::bigint, t.*
           from tollgate.take_v1(",
        "$1",
        "$11",
        ", $2, $3, $4, $5, $6::pg_catalog.text::numeric, $7, $8, $9::pg_catalog.text::pg_catalog.uuid, $10) t"
    );
    let query = sqlx::query_as(text)
        .bind(request.key().as_str())
        .bind(request.amounts.cost)
        .bind(request.amounts.max_wait)
        .bind(request.amounts.min_remaining)
        .bind(request.quota(0).map(Quota::capacity_i64))
        .bind(request.quota(0).map(Quota::refill_seconds))
        .bind(request.quota(0).map(refill))
        .bind(request.plan(0))
        .bind(request.id_text())
        .bind(request.remember_for_ns());
    bind_timeout!(query, timeout).fetch_one(connection).await
}

/// Decides a request that has no id and does not wait.
async fn grant(
    connection: &mut PgConnection,
    request: &SqlRequest,
    timeout: &LockTimeout,
) -> Result<AnswerColumns, sqlx::Error> {
    let text = locking!(
        timeout,
        "select 1::bigint, 1::bigint, t.*
           from tollgate.grant_v1(",
        "$1",
        "$8",
        ", $2, $3, $4, $5::pg_catalog.text::numeric, $6, $7) t"
    );
    let query = sqlx::query_as(text)
        .bind(request.key().as_str())
        .bind(request.amounts.cost)
        .bind(request.amounts.min_remaining)
        .bind(request.quota(0).map(Quota::capacity_i64))
        .bind(request.quota(0).map(Quota::refill_seconds))
        .bind(request.quota(0).map(refill))
        .bind(request.plan(0));
    bind_timeout!(query, timeout).fetch_one(connection).await
}

/// The keys whose last answer to a single request in this process was a grant that left tokens for an equal request.
static LIKELY_GRANTS: KeyFilter = KeyFilter::new();

/// Decides equal requests, which have no id and do not wait.
async fn take_equal(
    connection: &mut PgConnection,
    request: &SqlRequest,
    timeout: &LockTimeout,
) -> Result<Vec<Entry>, sqlx::Error> {
    let text = locking!(
        timeout,
        "select t.* from tollgate.take_equal_v1(",
        "$1",
        "$9",
        ", $2, $3, $4, $5::pg_catalog.text::numeric, $6, $7, $8) t"
    );
    let query = sqlx::query_as(text)
        .bind(request.key().as_str())
        .bind(request.amounts.cost)
        .bind(request.amounts.min_remaining)
        .bind(request.quota(0).map(Quota::capacity_i64))
        .bind(request.quota(0).map(Quota::refill_seconds))
        .bind(request.quota(0).map(refill))
        .bind(request.plan(0))
        .bind(request.times);
    let rows = bind_timeout!(query, timeout).fetch_all(connection).await?;
    array_entries(rows)
}

/// Decides plain requests for different buckets by a few statements for all, and others one by one.
async fn take_many(
    connection: &mut PgConnection,
    requests: &[SqlRequest],
    timeout: &LockTimeout,
) -> Result<Vec<Entry>, sqlx::Error> {
    // The order in which the database locks the buckets.
    let mut places: Vec<usize> = (0..requests.len()).collect();
    places.sort_by_key(|place| requests[*place].key());
    let is_shared = |[one, next]: &[usize; 2]| requests[*one].key() == requests[*next].key();
    if places.array_windows().any(is_shared) || !requests.iter().all(|request| request.take.is_momentary()) {
        return take_each(connection, requests, timeout).await;
    }
    take_batch(connection, requests, &places, timeout).await
}

/// Decides the requests in the order of `places`.
async fn take_batch(
    connection: &mut PgConnection,
    requests: &[SqlRequest],
    places: &[usize],
    timeout: &LockTimeout,
) -> Result<Vec<Entry>, sqlx::Error> {
    let sorted = || places.iter().map(|place| &requests[*place]);
    // The number of the rule of each request.
    let mut one_per_rule: Vec<&SqlRequest> = Vec::new();
    let rules = column(sorted(), |request| {
        let known = one_per_rule.iter().position(|other| other.take.limits[0].rule == request.take.limits[0].rule);
        known.unwrap_or_else(|| {
            one_per_rule.push(request);
            one_per_rule.len() - 1
        })
    });
    let text = locking!(
        timeout,
        "select t.* from tollgate.take_batch_v1(",
        "$1::pg_catalog.text[]",
        "$10",
        ", $2, $3, $4, $5, $6, $7::pg_catalog.text[]::numeric[], $8, $9) t"
    );
    let query = sqlx::query_as(text)
        .bind(column(sorted(), |request| request.key().as_str()))
        .bind(column(sorted(), |request| request.times))
        .bind(column(sorted(), |request| request.amounts.cost))
        .bind(column(sorted(), |request| request.amounts.min_remaining))
        .bind(rules.iter().map(|rule| number(*rule)).collect::<Vec<_>>())
        .bind(column(one_per_rule.iter().copied(), |request| request.quota(0).map(Quota::capacity_i64)))
        .bind(column(one_per_rule.iter().copied(), |request| request.quota(0).map(Quota::refill_seconds)))
        .bind(column(one_per_rule.iter().copied(), |request| request.quota(0).map(refill)))
        .bind(column(one_per_rule.iter().copied(), |request| request.plan(0)));
    let rows = bind_timeout!(query, timeout).fetch_all(connection).await?;
    let mut entries = array_entries(rows)?;
    for Entry { position, .. } in &mut entries {
        let place = usize::try_from(*position - 1).ok().and_then(|nth| places.get(nth));
        let unknown = || sqlx::Error::Protocol(format!("an answer to the request {position}"));
        *position = number(*place.ok_or_else(unknown)?);
    }
    Ok(entries)
}

/// The number of a place, which the database counts from 1.
fn number(place: usize) -> i64 {
    i64::try_from(place).map_or(i64::MAX, |place| place.saturating_add(1))
}

/// Decides the requests one by one.
async fn take_each(
    connection: &mut PgConnection,
    requests: &[SqlRequest],
    timeout: &LockTimeout,
) -> Result<Vec<Entry>, sqlx::Error> {
    let text = locking!(
        timeout,
        "select t.*
           from tollgate.take_each_v1(",
        "array(select pg_catalog.generate_series(1, pg_catalog.cardinality($1)))",
        "$12",
        ", $1, $2, $3, $4, $5, $6, $7::pg_catalog.text[]::numeric[], $8, $9, $10::pg_catalog.text[]::pg_catalog.uuid[], $11) t"
    );
    let query = sqlx::query_as(text)
        .bind(column(requests, |request| request.key().as_str()))
        .bind(column(requests, |request| request.times))
        .bind(column(requests, |request| request.amounts.cost))
        .bind(column(requests, |request| request.amounts.min_remaining))
        .bind(column(requests, |request| request.amounts.max_wait))
        .bind(column(requests, |request| request.quota(0).map(Quota::capacity_i64)))
        .bind(column(requests, |request| request.quota(0).map(Quota::refill_seconds)))
        .bind(column(requests, |request| request.quota(0).map(refill)))
        .bind(column(requests, |request| request.plan(0)))
        .bind(column(requests, SqlRequest::id_text))
        .bind(column(requests, SqlRequest::remember_for_ns));
    let rows = bind_timeout!(query, timeout).fetch_all(connection).await?;
    array_entries(rows)
}

fn column<'a, T>(requests: impl IntoIterator<Item = &'a SqlRequest>, value: impl FnMut(&'a SqlRequest) -> T) -> Vec<T> {
    requests.into_iter().map(value).collect()
}

/// Decides requests for several buckets each, and answers for each bucket of each request, in their order.
async fn take_all(
    connection: &mut PgConnection,
    requests: &[SqlRequest],
    timeout: &LockTimeout,
) -> Result<Vec<BucketAnswer>, sqlx::Error> {
    match requests {
        [request] => take_all_one(connection, request, timeout).await,
        _ => take_all_many(connection, requests, timeout).await,
    }
}

async fn take_all_one(
    connection: &mut PgConnection,
    request: &SqlRequest,
    timeout: &LockTimeout,
) -> Result<Vec<BucketAnswer>, sqlx::Error> {
    let places = 0..request.take.limits.len();
    let text = locking!(
        timeout,
        "select t.entry, 1::bigint, (t.taken).*
           from tollgate.take_all_v1(",
        "$1::pg_catalog.text[]",
        "$11",
        ", $2, $3, $4, $5::pg_catalog.text[]::numeric[], $6, $7, $8, $9::pg_catalog.text::pg_catalog.uuid, $10) t"
    );
    let query = sqlx::query_as(text)
        .bind(request.take.keys().map(|key| key.as_str().to_owned()).collect::<Vec<_>>())
        .bind(places.clone().map(|place| request.request_at(place).cost).collect::<Vec<_>>())
        .bind(places.clone().map(|place| request.request_at(place).min_remaining).collect::<Vec<_>>())
        .bind(places.clone().map(|place| request.quota(place).map(Quota::capacity_i64)).collect::<Vec<_>>())
        .bind(places.clone().map(|place| request.quota(place).map(Quota::refill_seconds)).collect::<Vec<_>>())
        .bind(places.clone().map(|place| request.quota(place).map(refill)).collect::<Vec<_>>())
        .bind(places.map(|place| request.plan(place).map(str::to_owned)).collect::<Vec<_>>())
        .bind(request.amounts.max_wait)
        .bind(request.id_text())
        .bind(request.remember_for_ns());
    let rows: Vec<AnswerColumns> = bind_timeout!(query, timeout).fetch_all(connection).await?;
    answers::in_order(answers::entries(rows)?, |place| {
        (place < request.take.limits.len()).then(|| request.request_at(place))
    })
}

async fn take_all_many(
    connection: &mut PgConnection,
    requests: &[SqlRequest],
    timeout: &LockTimeout,
) -> Result<Vec<BucketAnswer>, sqlx::Error> {
    // The place of each request, from 0, with the place of each of its buckets.
    let places: Vec<(usize, usize)> = requests
        .iter()
        .enumerate()
        .flat_map(|(nth, request)| (0..request.take.limits.len()).map(move |place| (nth, place)))
        .collect();
    let text = locking!(
        timeout,
        "select t.standing, (t.answers).*
           from tollgate.take_all_batch_v1(",
        "$1::bigint[]",
        "$9",
        ", $2, $3, $4, $5, $6::pg_catalog.text[]::numeric[], $7, $8) t"
    );
    let query = sqlx::query(text)
        .bind(places.iter().map(|(nth, _)| number(*nth)).collect::<Vec<_>>())
        .bind(bucket_column(requests, &places, |request, place| request.take.limits[place].key.as_str().to_owned()))
        .bind(bucket_column(requests, &places, |request, place| request.request_at(place).cost))
        .bind(bucket_column(requests, &places, |request, place| request.request_at(place).min_remaining))
        .bind(bucket_column(requests, &places, |request, place| request.quota(place).map(Quota::capacity_i64)))
        .bind(bucket_column(requests, &places, |request, place| request.quota(place).map(Quota::refill_seconds)))
        .bind(bucket_column(requests, &places, |request, place| request.quota(place).map(refill)))
        .bind(bucket_column(requests, &places, |request, place| request.plan(place).map(str::to_owned)));
    let rows = bind_timeout!(query, timeout).fetch_all(connection).await?;
    let mut collected = AllAnswers::new(requests);
    for row in &rows {
        let standing = row.try_get("standing")?;
        for Entry { position, answer, .. } in AnswerArrays::from_row(row)?.entries()? {
            let unknown = || sqlx::Error::Protocol(format!("an answer to the place {position}"));
            let place = usize::try_from(position - 1).ok().and_then(|nth| places.get(nth)).ok_or_else(unknown)?;
            collected.add(*place, standing, answer)?;
        }
    }
    Ok(collected.in_request_order())
}

fn bucket_column<T>(
    requests: &[SqlRequest],
    places: &[(usize, usize)],
    value: impl Fn(&SqlRequest, usize) -> T,
) -> Vec<T> {
    places.iter().map(|(nth, place)| value(&requests[*nth], *place)).collect()
}

/// Decides a request under a sliding window, or counts it.
async fn take_window(
    connection: &mut PgConnection,
    request: &SqlRequest,
    counting: Counting,
    timeout: &LockTimeout,
) -> Result<WindowUsage, sqlx::Error> {
    let window = request.window()?;
    let text = locking!(
        timeout,
        "select t.* from tollgate.take_window_v1(",
        "$1",
        "$11",
        ", $2, $3, $4, $5, $6, $7, $8::pg_catalog.text::pg_catalog.uuid, $9, $10) t"
    );
    let query = sqlx::query_as(text)
        .bind(request.key().as_str())
        .bind(request.amounts.cost)
        .bind(request.amounts.max_wait)
        .bind(request.amounts.min_remaining)
        .bind(window.signed_max_requests())
        .bind(window.interval_ns())
        .bind(window.resolution_ns())
        .bind(request.id_text())
        .bind(request.remember_for_ns())
        .bind(counting == Counting::Count);
    let (outcome, mode, now, scheduled_at, ends, counts, resolution) =
        bind_timeout!(query, timeout).fetch_one(connection).await?;
    let (ends, counts): (Vec<i64>, Vec<i64>) = (ends, counts);
    answers::counted((outcome, mode, now, scheduled_at, ends.into_iter().zip(counts).collect(), resolution))
}

impl FromRow<'_, PgRow> for AnswerColumns {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            position: row.try_get(0)?,
            times: row.try_get(1)?,
            outcome: row.try_get(2)?,
            mode: row.try_get(3)?,
            now: row.try_get(4)?,
            scheduled_at: row.try_get(5)?,
            state: answers::state_columns(row, 6)?,
        })
    }
}

/// A row of `answers_v1`: arrays, for all requests with the same outcome. An array with one value has it for all requests.
struct AnswerArrays {
    entries: Vec<i64>,
    times: Vec<i64>,
    outcome: String,
    mode: Option<String>,
    now: Vec<i64>,
    scheduled_at: Option<Vec<Option<i64>>>,
    state: [Vec<Option<i64>>; 7],
}

impl<'r> FromRow<'r, PgRow> for AnswerArrays {
    fn from_row(row: &'r PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            entries: row.try_get("entries")?,
            times: row.try_get("times")?,
            outcome: row.try_get("outcome")?,
            mode: row.try_get("mode")?,
            now: row.try_get("now")?,
            scheduled_at: row.try_get("scheduled_at")?,
            state: [
                row.try_get("full_at")?,
                row.try_get("granted")?,
                row.try_get("burst")?,
                row.try_get("anchor")?,
                row.try_get("step_ns")?,
                row.try_get("step_ticks")?,
                row.try_get("token_ticks")?,
            ],
        })
    }
}

impl AnswerArrays {
    /// Returns the answers to the requests of the row, in their order.
    fn entries(self) -> Result<impl Iterator<Item = Entry>, sqlx::Error> {
        let length = self.entries.len();
        let lengths = [self.times.len(), self.now.len(), self.scheduled_at.as_ref().map_or(length, Vec::len)];
        if lengths.into_iter().chain(self.state.iter().map(Vec::len)).any(|other| other != length && other != 1) {
            return Err(sqlx::Error::Protocol(format!("answers to {length} requests, of different lengths")));
        }
        let all = answers::answer(&self.outcome, self.mode.as_deref())?;
        Ok((0..length).map(move |place| {
            let state = self.state.each_ref().map(|column| value_at(column, place));
            let now = value_at(&self.now, place);
            let scheduled_at = self.scheduled_at.as_ref().map_or(Some(now), |column| value_at(column, place));
            let answer =
                BucketAnswer { now, scheduled_at, capacity: state[2], state: answers::parse_state(state), ..all };
            Entry { position: self.entries[place], times: value_at(&self.times, place), answer }
        }))
    }
}

/// The value of the request at `place`: the only one, or its own.
fn value_at<T: Copy>(values: &[T], place: usize) -> T {
    if let [value] = values { *value } else { values[place] }
}

/// Returns the answers of all rows.
fn array_entries(rows: Vec<AnswerArrays>) -> Result<Vec<Entry>, sqlx::Error> {
    let mut entries = Vec::with_capacity(rows.iter().map(|row| row.entries.len()).sum());
    for row in rows {
        entries.extend(row.entries()?);
    }
    Ok(entries)
}
