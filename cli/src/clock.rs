//! The clock for expiry: the server's, or this host's with SQLite.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::Pool;

use crate::answer::within_patience;
use crate::doctor::Examine;
use crate::exit::{CliError, chain};
use crate::times;

pub(crate) async fn now<DB: Examine>(pool: &Pool<DB>) -> anyhow::Result<DateTime<Utc>> {
    let asked = within_patience(DB::now(pool)).await;
    let now = asked.map(DateTime::from_timestamp_micros).map_err(|error| match error.downcast::<CliError>() {
        Ok(refusal) => refusal,
        Err(error) => CliError::database(chain(&error), "run `tollgate doctor` to find the cause"),
    })?;
    Ok(now.ok_or_else(|| CliError::database("the server's clock is set to no time", "set it"))?)
}

/// The end of a span from now, if a span is given.
pub(crate) fn end(lasting: Option<Duration>, now: DateTime<Utc>) -> anyhow::Result<Option<DateTime<Utc>>> {
    lasting.map(|span| end_by(span, now, Utc::now())).transpose()
}

/// Fails if the end is past by this host's clock, because the library would refuse it.
fn end_by(span: Duration, now: DateTime<Utc>, host: DateTime<Utc>) -> anyhow::Result<DateTime<Utc>> {
    let (end, ahead) = (times::after(span, now)?, host - now);
    if end <= host && ahead > MAX_CLOCK_SKEW {
        let ahead = times::span(ahead.to_std().unwrap_or_default());
        let message = format!("this host's clock is {ahead} ahead of the server's: an end that soon is past for it");
        return Err(CliError::arguments(message, "set this host's clock right, or give --for more than that").into());
    }
    Ok(end)
}

const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::seconds(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_relative_to_server_time_unless_past_for_host() {
        let (minute, server) = (Duration::from_secs(60), DateTime::UNIX_EPOCH);
        let end = |ahead| end_by(5 * minute, server, server + TimeDelta::minutes(ahead));
        for ahead in [-6, 0, 4] {
            assert_eq!(end(ahead).expect("an end"), server + 5 * minute, "{ahead} min ahead");
        }
        let error = end(6).expect_err("it is past").to_string();
        assert_eq!(error, "this host's clock is 6m ahead of the server's: an end that soon is past for it");
    }
}
