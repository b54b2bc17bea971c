//! Sliding windows, as any SQL client sees them.

use anyhow::ensure;

use super::MS;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        request_tokens_in_window_grants_its_maximum_in_any_interval,
        request_tokens_in_window_refuses_invalid_windows,
        peek_window_returns_limits_counts_and_next_wait,
    )
}

async fn request_tokens_in_window_grants_its_maximum_in_any_interval(db: TestDb) -> anyhow::Result<()> {
    let id = db.quoted(db.key().as_str());
    // Milliseconds; then tokens and longest wait; then the answer.
    let steps = [
        (0, "60, 0", [1, 40, 0, 65_000, 65_000]),
        (7000, "40, 0", [1, 0, 0, 58_000, 63_000]),
        (8000, "1, 0", [0, 0, 0, 57_000, 62_000]),
        (8000, "1, 56999", [0, 0, 0, 57_000, 62_000]),
        (8000, "1, 57000", [1, 0, 57_000, 57_000, 122_000]),
        (65_000, "60, 0", [0, 59, 0, 5000, 65_000]),
        (65_000, "59, 0", [1, 0, 0, 65_000, 65_000]),
    ];
    for (ms, arguments, expected) in steps {
        db.at(ON_THE_GRID + ms * MS).await?;
        let answer = db.call("request_tokens_in_window", &format!("{id}, 100, 60, 5, {arguments}")).await?;
        let answer = answer.numbers(["granted", "remaining", "wait_ms", "retry_after_ms", "reset_after_ms"])?;
        ensure!(answer == expected, "{arguments} after {ms} ms: {answer:?}, not {expected:?}");
    }
    Ok(())
}

async fn request_tokens_in_window_refuses_invalid_windows(db: TestDb) -> anyhow::Result<()> {
    let id = db.quoted(db.key().as_str());
    for arguments in [
        "0, 60, 5, 1, 0",
        "100, 0, 5, 1, 0",
        "100, 60, 0, 1, 0",
        "100, 5, 60, 1, 0",
        "100, 60, 0.01, 1, 0",
        "100, 60, 5, 0, 0",
        "100, 60, 5, 101, 0",
        "100, 60, 5, 1, -1",
        "100, 40000000, 100000, 1, 0",
        "100, null, 5, 1, 0",
        "9223372036854775807, 60, 5, 1, 0",
    ] {
        let refusal = db.refusal(db.calling("request_tokens_in_window", &format!("{id}, {arguments}"))).await?;
        ensure!(refusal.sqlstate == "22023", "{arguments}: {refusal:?}");
    }
    Ok(())
}

async fn peek_window_returns_limits_counts_and_next_wait(db: TestDb) -> anyhow::Result<()> {
    let id = db.quoted(db.key().as_str());
    let peek = if db.engine.kind == Kind::MySql { "token_peek_window" } else { "peek_window" };
    db.at(ON_THE_GRID).await?;
    db.call("request_tokens_in_window", &format!("{id}, 100, 60, 2.5, 60, 0")).await?;
    db.at(ON_THE_GRID + 3000 * MS).await?;
    db.call("request_tokens_in_window", &format!("{id}, 100, 60, 2.5, 40, 0")).await?;
    for (ms, counted, retry_after_ms) in [(3000, 100, 59_500), (62_499, 100, 1), (62_500, 40, 0), (65_000, 0, 0)] {
        db.at(ON_THE_GRID + ms * MS).await?;
        let level = db.call(peek, &id).await?;
        let counts = level.numbers(["max_requests", "counted", "granted", "retry_after_ms"])?;
        ensure!(counts == [100, counted, 100, retry_after_ms], "after {ms} ms: {counts:?}");
        let spans = (level.text("interval_seconds")?, level.text("resolution_seconds")?);
        assert_eq!(spans, (Some("60.000000000"), Some("2.500000000")));
    }
    Ok(())
}

/// A multiple of 5 seconds.
const ON_THE_GRID: i64 = 1_800_000_000_000_000_000;
