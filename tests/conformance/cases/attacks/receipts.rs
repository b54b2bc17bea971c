//! Receipts that a login makes up, repeats or changes. `adjust_v1` accepts a receipt that it does not remember, so a forged
//! receipt can fill a bucket. These tests bound the gain.

use std::time::Duration;

use tollgate::{Admin, Key, Quota, Take};
use uuid::Uuid;

use super::minting::play;
use crate::cases::privileges::Login;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.has_roles, ..Setup::WITHOUT_LAYERS };
        forged_receipt_fills_its_own_bucket_at_most,
        remembered_receipt_works_once_with_any_arguments,
        hostile_adjustments_pass_no_capacity,
    )
}

async fn forged_receipt_fills_its_own_bucket_at_most(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let owner = &scratch.db;
    let login = Login::with_sessions(owner, Some("tollgate_app"), 1).await?;
    let other = used_bucket(owner, None).await?;
    let before = owner.row(&other).await?;
    for forged in [
        // Kind, cost, granted, acts at, tokens.
        "'refund', 1, 0, 0, 1",
        "'refund', 3155760000000000000, 0, 0, 3155760000000000000",
        "'refund', 1000000, 9223372036854775807, 9223372036854775807, 1000000",
        "'cancel', 1000000, 0, 9223372036854775807, 0",
        "'cancel', 1000000, 3, 9223372036854775807, 0",
        "'settle', 1000000, 3, 9223372036854775807, 0",
    ] {
        let key = used_bucket(owner, None).await?;
        for _ in 0..3 {
            let (kind, numbers) = forged.split_once(", ").expect("a kind");
            adjust(&login.db, kind, Uuid::new_v4(), &key, numbers).await?;
        }
        let mut left = 0;
        while owner.take(&key).await?.is_granted() {
            left += 1;
        }
        assert!((2..=CAPACITY).contains(&left), "{left} tokens after {forged}");
        assert_eq!(owner.row(&other).await?, before, "after {forged}");
    }
    login.remove().await
}

async fn remembered_receipt_works_once_with_any_arguments(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let owner = &scratch.db;
    let login = Login::with_sessions(owner, Some("tollgate_app"), 1).await?;
    let repeated = ("repeated", 0);
    let sequences: [&[Step]; 5] = [
        &[
            ("refund", "3, 3, 0, 1", ("done", 1), 3),
            ("refund", "3, 3, 0, 2", repeated, 3),
            ("cancel", "3, 3, 9223372036854775807, 0", ("late", 0), 3),
            ("settle", "3, 3, 0, 0", repeated, 3),
        ],
        &[
            // A changed cost belongs to another request. A later time and a lower count are ignored.
            ("refund", "1000000, 3, 0, 1000000", repeated, 2),
            ("cancel", "3, 0, 9223372036854775807, 0", ("late", 0), 2),
            ("settle", "3, 0, 9223372036854775807, 0", ("done", 3), 5),
            ("settle", "3, 3, 0, 0", repeated, 5),
        ],
        &[("settle", "3, 3, 0, 2", ("done", 1), 3), ("refund", "3, 3, 0, 3", repeated, 3)],
        &[("refund", "3, 3, 0, 1000000", ("done", 3), 5), ("refund", "3, 3, 0, 1000000", repeated, 5)],
        &[("refund", "3, 3, 0, 0", ("done", 0), 2), ("refund", "3, 3, 0, 3", repeated, 2)],
    ];
    for steps in sequences {
        let id = Uuid::new_v4();
        let (key, other) = (used_bucket(owner, Some(id)).await?, used_bucket(owner, None).await?);
        for &(kind, numbers, expected, available) in steps {
            let answer = adjust(&login.db, &format!("'{kind}'"), id, &key, numbers).await?;
            assert_eq!((&*answer.0, answer.1), expected, "{kind}, {numbers}");
            let level = owner.store().peek(&key).await?.expect("it is there");
            assert_eq!(level.available(), available, "after {kind}, {numbers}");
        }
        // The id of a request for one bucket settles nothing in another.
        let answer = adjust(&login.db, "'settle'", id, &other, "3, 3, 0, 0").await?;
        assert_eq!((&*answer.0, answer.1), ("late", 0));
        assert_eq!(owner.store().peek(&other).await?.expect("it is there").available(), 2);
    }
    login.remove().await
}

/// Calls all routines in random order, including the adjustments. Receipts stay for 366 days at most.
async fn hostile_adjustments_pass_no_capacity(db: TestDb) -> anyhow::Result<()> {
    play(&db, |_| true, |_, _| true).await
}

/// A bucket of five tokens that never refills, of which three are taken.
async fn used_bucket(owner: &TestDb, id: Option<Uuid>) -> anyhow::Result<Key> {
    let key = owner.bucket(Quota::once(5)?).await?;
    let take = Take::from(key.clone()).cost(3);
    let take = if let Some(id) = id { take.id(id, Duration::from_hours(24)) } else { take };
    assert!(owner.decide(take).await?.is_granted());
    Ok(key)
}

async fn adjust(app: &TestDb, kind: &str, id: Uuid, key: &Key, numbers: &str) -> anyhow::Result<(String, i64)> {
    let (routine, own) =
        if app.engine.kind == Kind::MySql { ("token_adjust_v1", ", false") } else { ("adjust_v1", "") };
    let row = app.call(routine, &format!("{kind}, '{id}', '{key}', {numbers}{own}")).await?;
    Ok((row.text("outcome")?.unwrap_or_default().to_owned(), row.number("given_back")?))
}

const CAPACITY: i64 = 5;

/// Kind; cost, granted, `scheduled_at`, tokens; the answer; the available tokens afterwards.
type Step = (&'static str, &'static str, (&'static str, i64), i64);
