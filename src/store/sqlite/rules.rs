use sqlx::sqlite::SqliteConnection;

use super::row::quota;
use crate::book::{Override, Plan, Rules, Setting};
use crate::{Key, Mode};

/// A mode and its end, in seconds since 1970.
type Choice = (Option<String>, Option<i64>);

/// Capacity, nanoseconds from empty to full and refill, then a mode and its end.
type Terms<N> = (N, N, String, Option<String>, Option<i64>);

/// What rules a key, and a plan if one is named.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    key: &Key,
    plan: Option<&Key>,
) -> Result<Rules, sqlx::Error> {
    let all: Option<Choice> = sqlx::query_as("select nullif(mode, 'enforce'), unixepoch(until) from token_mode")
        .fetch_optional(&mut *connection)
        .await?;
    let over: Option<Terms<Option<i64>>> = sqlx::query_as(
        "select capacity, refill_ns, refill, mode, unixepoch(expires_at) from token_overrides where id = ?1",
    )
    .bind(key.as_str())
    .fetch_optional(&mut *connection)
    .await?;
    let plan: Option<Terms<i64>> = match plan {
        None => None,
        Some(plan) => {
            sqlx::query_as(
                "select capacity, refill_ns, refill, mode, unixepoch(mode_until) from token_plans where name = ?1",
            )
            .bind(plan.as_str())
            .fetch_optional(connection)
            .await?
        }
    };
    let plan = plan.map(|(capacity, refill_ns, refill, mode, until)| {
        Ok::<_, sqlx::Error>(Plan { quota: quota(capacity, refill_ns, &refill)?, setting: setting((mode, until))? })
    });
    let over = over.map(|(capacity, refill_ns, refill, mode, until)| {
        let terms = match (capacity, refill_ns) {
            (Some(capacity), Some(refill_ns)) => Some(quota(capacity, refill_ns, &refill)?),
            _ => None,
        };
        Ok::<_, sqlx::Error>(Override { quota: terms, setting: setting((mode, until))? })
    });
    Ok(Rules { all: all.map_or(Ok(Setting::default()), setting)?, plan: plan.transpose()?, over: over.transpose()? })
}

fn setting((mode, until): Choice) -> Result<Setting, sqlx::Error> {
    let parse = |word: String| Mode::parse(&word).ok_or_else(|| sqlx::Error::Protocol(format!("the mode {word:?}")));
    Ok(Setting {
        mode: mode.map(parse).transpose()?,
        until: until.map(|seconds| seconds.saturating_mul(1_000_000_000)),
    })
}
