//! The routines as any SQL client calls them, without this crate.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{Key, Quota};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

mod adjustments;
mod batches;
mod extremes;
mod limits;
mod refusals;
mod windows;

pub(crate) fn cases() -> Vec<Case> {
    // Without layers: the cases use SQL only.
    let mut cases = list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        request_token_grants_two_a_second,
        request_tokens_returns_the_wait_for_an_equal_request,
        rate_limiting_request_counts_every_refilled_token,
        a_batch_answers_each_request_for_itself,
        create_bucket_again_changes_nothing,
    );
    cases.extend(list!(
        Setup { time: Time::Injected, needs: |engine| engine.kind == Kind::Postgres, ..Setup::WITHOUT_LAYERS };
        omitted_arguments_mean_one_token_now,
    ));
    cases.extend(adjustments::cases());
    cases.extend(batches::cases());
    cases.extend(extremes::cases());
    cases.extend(limits::cases());
    cases.extend(refusals::cases());
    cases.extend(windows::cases());
    cases
}

async fn request_token_grants_two_a_second(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let id = provision(&db, "2, 1, 'interval'").await?;
    for second in 0..3 {
        let mut answers = Vec::new();
        for task in 0..5 {
            db.at(START + second * SECOND + task * 100 * MS + 1).await?;
            let answer = db.call("request_token", &id).await?;
            answers.push(answer.numbers(["granted", "remaining", "retry_after_ms", "reset_after_ms"])?);
        }
        // Each started millisecond counts.
        let expected = [[1, 1, 0, 1000], [1, 0, 900, 900], [0, 0, 800, 800], [0, 0, 700, 700], [0, 0, 600, 600]];
        ensure!(answers == expected, "second {second}: {answers:?}");
    }
    Ok(())
}

async fn request_tokens_returns_the_wait_for_an_equal_request(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let id = provision(&db, "10, 10, 'continuous'").await?;
    // Milliseconds; then tokens, longest wait and minimum remaining; then the answer.
    let steps = [
        (0, "4, 0, 0", [1, 6, 0, 0, 4000]),
        (0, "4, 0, 3", [0, 6, 0, 1000, 4000]),
        (1000, "4, 0, 3", [1, 3, 0, 4000, 7000]),
        (1500, "4, 499, 0", [0, 3, 0, 500, 6500]),
        (1500, "4, 500, 0", [1, 0, 500, 4500, 10_500]),
        (1500, "1, 31622400000, 9", [1, 0, 10_500, 11_500, 11_500]),
        (1500, "1, 9223372036854775807, 9", [1, 0, 11_500, 12_500, 12_500]),
        (13_999, "10, 0, 0", [0, 9, 0, 1, 1]),
        (14_000, "10, 0, 0", [1, 0, 0, 10_000, 10_000]),
    ];
    for (ms, arguments, expected) in steps {
        db.at(START + ms * MS).await?;
        let answer = db.call("request_tokens", &format!("{id}, {arguments}")).await?;
        let answer = answer.numbers(["granted", "remaining", "wait_ms", "retry_after_ms", "reset_after_ms"])?;
        ensure!(answer == expected, "request_tokens({arguments}) after {ms} ms: {answer:?}, not {expected:?}");
    }
    Ok(())
}

async fn rate_limiting_request_counts_every_refilled_token(db: TestDb) -> anyhow::Result<()> {
    let id = db.quoted(db.key().as_str());
    let column = if db.engine.kind == Kind::Postgres { "rate_limiting_request" } else { "tokens_left" };
    let times = (0..13).map(|call| call * 100).chain((0..6).map(|call| 5200 + call * 100));
    let mut left = Vec::new();
    for ms in times {
        db.at(START + ms * MS).await?;
        left.push(db.call("rate_limiting_request", &format!("{id}, 1, 10")).await?.number(column)?);
    }
    assert_eq!(left, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, -1, -1, 3, 2, 1, 0, -1, -1]);

    let id = db.quoted(db.key().as_str());
    let arguments = if db.engine.kind == Kind::Postgres { id } else { format!("{id}, null, null") };
    let left = db.call("rate_limiting_request", &arguments).await?.number(column)?;
    assert_eq!(left, 119, "2 tokens a second and 60 seconds' worth are the defaults");
    Ok(())
}

async fn a_batch_answers_each_request_for_itself(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let two = Key::try_from(format!("z{}", db.key()))?;
    db.create(&two, Quota::interval(2, Duration::from_secs(1))?).await?;
    let five = Key::try_from(format!("a{}", db.key()))?;
    db.create(&five, Quota::interval(5, Duration::from_secs(1))?).await?;
    let unknown = db.key();
    let requests = [(&two, 1), (&five, 6), (&unknown, 1), (&two, 1), (&five, 5), (&two, 1)];

    let arguments = if db.engine.kind == Kind::Postgres {
        let ids: Vec<_> = requests.iter().map(|(key, _)| db.quoted(key.as_str())).collect();
        let tokens: Vec<_> = requests.iter().map(|(_, tokens)| tokens.to_string()).collect();
        format!("array[{}], array[{}]", ids.join(", "), tokens.join(", "))
    } else {
        db.quoted(&serde_json::to_string(&requests.map(|(key, tokens)| (key.as_str(), tokens)))?)
    };
    let rows = db.sql(db.calling("request_tokens_many", &arguments)).await?;
    let ids: Vec<_> = rows.iter().map(|row| row.text("id")).collect::<anyhow::Result<_>>()?;
    assert_eq!(ids, requests.map(|(key, _)| Some(key.as_str())));
    let outcomes: Vec<_> = rows.iter().map(|row| row.text("outcome")).collect::<anyhow::Result<_>>()?;
    let expected = ["granted", "never", "unknown", "granted", "granted", "denied"];
    ensure!(outcomes == expected.map(Some), "{outcomes:?}");
    // The remaining tokens after each request, and the wait for an equal one: null if undecided.
    let left: Vec<_> = rows.iter().map(|row| row.text("remaining")).collect::<anyhow::Result<_>>()?;
    assert_eq!(left, [Some("1"), None, None, Some("0"), Some("0"), Some("0")]);
    let retry: Vec<_> = rows.iter().map(|row| row.text("retry_after_ms")).collect::<anyhow::Result<_>>()?;
    assert_eq!(retry, [Some("0"), None, None, Some("1000"), Some("1000"), Some("1000")]);
    assert_eq!(db.row(&two).await?.expect("made").granted, 2);
    assert_eq!(db.row(&five).await?.expect("made").granted, 5);
    Ok(())
}

async fn create_bucket_again_changes_nothing(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let key = db.key();
    let id = db.quoted(key.as_str());
    for refill in ["'interval'", "'continuous'"] {
        create(&db, &format!("{id}, 5, 60.5, {refill}")).await?;
        db.call("request_tokens", &format!("{id}, 1, 0, 0")).await?;
        let before = db.row(&key).await?;
        db.at(START + 10 * SECOND).await?;
        create(&db, &format!("{id}, 5, 60.5, {refill}")).await?;
        assert_eq!(db.row(&key).await?, before);
        let sql = format!("select capacity, refill from {} where id = {}", db.table(), db.literal(&key));
        let limits = db.sql(sql).await?;
        assert_eq!((limits[0].number("capacity")?, limits[0].text("refill")?), (5, Some(refill.trim_matches('\''))));
    }
    Ok(())
}

async fn omitted_arguments_mean_one_token_now(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let key = db.key();
    let id = db.quoted(key.as_str());
    create(&db, &format!("{id}, 5, 60")).await?;
    let answer = db.call("request_tokens", &id).await?;
    assert_eq!(answer.numbers(["granted", "remaining", "wait_ms"])?, [1, 4, 0]);
    // Full again at the end of the period, not before.
    db.at(START + 59 * SECOND).await?;
    let answer = db.call("request_tokens", &format!("{id}, 5")).await?;
    assert_eq!(answer.numbers(["granted", "remaining", "retry_after_ms"])?, [0, 4, 1000]);
    Ok(())
}

/// Provisions a bucket by the routine, and returns its quoted id.
async fn provision(db: &TestDb, limits: &str) -> anyhow::Result<String> {
    let id = db.quoted(db.key().as_str());
    create(db, &format!("{id}, {limits}")).await?;
    Ok(id)
}

async fn create(db: &TestDb, arguments: &str) -> anyhow::Result<()> {
    let routine = if db.engine.kind == Kind::Postgres { "create_bucket" } else { "token_create_bucket" };
    db.sql(db.calling(routine, arguments)).await?;
    Ok(())
}

const START: i64 = 1_800_000_000_123_456_789;
const SECOND: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
