//! Values at their limits and beyond: refused by the library before the database, and by the database itself.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{Key, Quota, Rule, Store, Take, model::QuotaError};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::with_session;
use crate::test_db::TestDb;

mod requests;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = list!(
        Setup { time: Time::Injected, ..Setup::DEFAULT };
        every_quota_at_the_limits_makes_a_bucket,
        library_refuses_invalid_quota_values,
        database_refuses_invalid_bucket_values,
        database_refuses_invalid_plan_and_override_values,
        capacity_that_never_refills_accepts_any_refill_seconds,
        database_refuses_to_change_a_bucket_to_invalid_limits,
    );
    cases.extend(list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::DEFAULT };
        create_bucket_refuses_invalid_values,
    ));
    cases.extend(list!(
        Setup { time: Time::Injected, needs: |engine| engine.kind != Kind::MySql, ..Setup::DEFAULT };
        fractional_capacity_is_refused_by_every_table,
    ));
    cases.extend(list!(
        Setup { time: Time::Injected, needs: |engine| engine.kind == Kind::Postgres, ..Setup::DEFAULT };
        routines_take_double_precision_and_refuse_fractions,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::DEFAULT };
        precision_of_divisions_admits_no_other_limits,
    ));
    cases.extend(requests::cases());
    cases
}

async fn every_quota_at_the_limits_makes_a_bucket(db: TestDb) -> anyhow::Result<()> {
    let (ns, century) = (Duration::from_nanos, Duration::from_nanos(CENTURY_NS));
    let quotas = [
        Quota::interval(1, ns(1))?,
        Quota::continuous(1, ns(1))?,
        Quota::interval(1, century)?,
        Quota::continuous(1, century)?,
        Quota::interval(1_000_000_000, ns(1_000_000_000))?,
        Quota::continuous(1_000_000_000, ns(1_000_000_000))?,
        Quota::interval(1 << 31, Duration::from_hours(1))?,
        Quota::continuous(1 << 31, ns(1 << 31))?,
        Quota::interval(CENTURY_NS, century)?,
        Quota::continuous(CENTURY_NS, century)?,
        // Rounding loses 0.1 % at most.
        Quota::continuous(1_000, ns(998_002))?,
        // The longest period with nanosecond precision, and one that is rounded up to whole seconds.
        Quota::interval(3, ns(26 * 86_400 * 1_000_000_000 - 1))?,
        Quota::continuous(3, ns(27 * 86_400 * 1_000_000_000 + 1))?,
    ];
    db.at(START).await?;
    for quota in quotas {
        let all = Take::from(db.bucket(quota).await?).cost(quota.capacity());
        let decision = db.decide(all.clone()).await?;
        ensure!(decision.is_granted() && decision.remaining() == Some(0), "{quota}: {decision:?}");
        let row = db.row(all.key()).await?.expect("made");
        ensure!(row.granted.unsigned_abs() == quota.capacity(), "{quota}: {row:?}");
        let refill_time = quota.refill_time()..=quota.refill_time() + quota.refill_time() / 999;
        ensure!(decision.reset_after().is_some_and(|time| refill_time.contains(&time)), "{quota}: {decision:?}");
        let denied = db.decide(all.clone().cost(1)).await?;
        ensure!(!denied.is_granted(), "{quota}: {denied:?}");

        let first = Take::from(db.key()).rule(Rule::Quota(quota)).cost(quota.capacity());
        ensure!(db.decide(first).await?.is_granted(), "{quota} on first use");
        let batch = Take::from(db.key()).rule(Rule::Quota(quota)).cost(quota.capacity());
        let outcomes = db.store().take(&[batch.clone(), batch.clone()]).await?;
        let granted: Vec<bool> = outcomes.iter().flatten().map(tollgate::Decision::is_granted).collect();
        ensure!(granted == [true, false], "{quota} in a batch: {outcomes:?}");
        ensure!(!db.decide(batch).await?.is_granted(), "{quota} made by a batch is the same quota");
    }
    Ok(())
}

async fn library_refuses_invalid_quota_values(_: TestDb) -> anyhow::Result<()> {
    let ns = Duration::from_nanos;
    let (second, century) = (Duration::from_secs(1), ns(CENTURY_NS));
    let most = i64::MAX.unsigned_abs();
    for make in [Quota::interval, Quota::continuous] {
        assert_eq!(make(0, second), Err(QuotaError::ZeroCapacity));
        assert_eq!(make(1, Duration::ZERO), Err(QuotaError::ZeroRefillTime));
        assert_eq!(make(1, century + ns(1)), Err(QuotaError::RefillTooLong));
        assert_eq!(make(1, Duration::MAX), Err(QuotaError::RefillTooLong));
        assert_eq!(make(most + 1, century), Err(QuotaError::CapacityTooLarge(most + 1)));
        assert_eq!(make(u64::MAX, century), Err(QuotaError::CapacityTooLarge(u64::MAX)));
        assert!(matches!(make(most, century), Err(QuotaError::TooFast { .. })));
        assert!(matches!(make(1_000_000_001, second), Err(QuotaError::TooFast { .. })));
        assert!(matches!(make(2, ns(1)), Err(QuotaError::TooFast { .. })));
    }
    assert!(matches!(Quota::continuous(1_000, ns(998_001)), Err(QuotaError::TooFine { .. })));
    assert!(matches!(Quota::continuous(999_999_999, second), Err(QuotaError::TooFine { .. })));
    // With any burst: a burst of one token is refilled before the rounding shows.
    for (tokens, burst) in [(30_000_000, 1), (700_000_000, 1), (999_999_999, 10)] {
        assert!(matches!(Quota::per_second(tokens).burst(burst).build(), Err(QuotaError::TooFine { .. })), "{tokens}");
        let rate = f64::from(u32::try_from(tokens)?);
        assert!(matches!(Quota::rate(rate).burst(burst).build(), Err(QuotaError::TooFine { .. })), "{rate}");
    }
    for (tokens, burst) in [(1_000_000_000, 1), (1_000_000, 1), (7, 3)] {
        let (quota, rate) = (Quota::per_second(tokens).burst(burst).build()?, f64::from(u32::try_from(tokens)?));
        assert_eq!(Quota::rate(rate).burst(burst).build()?, quota);
        let takes = quota.refill_time().as_nanos() * u128::from(tokens);
        assert!(takes >= u128::from(burst) * second.as_nanos(), "{quota} is no faster");
    }
    // Rounding makes a burst of just under a century longer.
    assert_eq!(
        Quota::continuous(CENTURY_NS / 1001 + 1, ns(CENTURY_NS - 1_000_000_000_000)),
        Err(QuotaError::RefillTooLong)
    );
    assert!(Quota::interval(999_999_999, second).is_ok(), "periods are never rounded");
    Ok(())
}

async fn database_refuses_invalid_bucket_values(db: TestDb) -> anyhow::Result<()> {
    for limits in NO_BUCKETS {
        let key = db.key();
        db.refusal(insert(&db, "token_buckets", &key, limits)).await?;
        assert_eq!(db.row(&key).await?, None);
    }
    let key = db.key();
    let (table, id) = (db.table(), db.literal(&key));
    for (columns, limits) in [("id", ""), ("id, capacity", ", 5"), ("id, refill_seconds", ", 5")] {
        db.refusal(format!("insert into {table} ({columns}) values ({id}{limits})")).await?;
    }
    Ok(())
}

async fn database_refuses_invalid_plan_and_override_values(db: TestDb) -> anyhow::Result<()> {
    for limits in NO_BUCKETS {
        for table in ["token_plans", "token_overrides"] {
            db.refusal(insert(&db, table, &db.key(), limits)).await?;
        }
    }
    Ok(())
}

/// These take just over a nanosecond per token.
async fn precision_of_divisions_admits_no_other_limits(db: TestDb) -> anyhow::Result<()> {
    for precision in ["select 1", "set div_precision_increment = 0"] {
        let (session, _) = with_session(&db, precision).await?;
        for limits in ["3000000000, 3.000000001", "3000000000000000000, 3000000000.000000001"] {
            for table in ["token_buckets", "token_plans", "token_overrides"] {
                let key = db.key();
                session.refusal(insert(&db, table, &key, &format!("{limits}, 'continuous'"))).await?;
            }
        }
        let longest = insert(&db, "token_plans", &db.key(), "3155760000000000000, 3155760000, 'continuous'");
        session.sql(longest).await?;
    }
    Ok(())
}

async fn capacity_that_never_refills_accepts_any_refill_seconds(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    for seconds in ["-5", "0", "3155760000.5", "5000000000"] {
        let limits = format!("2, {seconds}, 'once'");
        let (key, plan) = (db.key(), db.key());
        db.sql(insert(&db, "token_buckets", &key, &limits)).await?;
        db.sql(insert(&db, "token_plans", &plan, &limits)).await?;
        let overridden = db.bucket(Quota::interval(5, Duration::from_hours(1))?).await?;
        db.sql(insert(&db, "token_overrides", &overridden, &limits)).await?;
        let planned = Take::from(db.key()).rule(Rule::Plan(plan));
        for take in [Take::from(key), planned, Take::from(overridden.clone())] {
            let decision = db.decide(take.clone().cost(2)).await?;
            ensure!(decision.is_granted() && decision.remaining() == Some(0), "{limits}: {decision:?}");
            let denied = db.decide(take).await?;
            ensure!(!denied.is_granted() && denied.retry_after().is_none(), "{limits}: {denied:?}");
        }
        let overrides = db.table().replace("token_buckets", "token_overrides");
        db.sql(format!("delete from {overrides} where id = {}", db.literal(&overridden))).await?;
    }
    Ok(())
}

async fn database_refuses_to_change_a_bucket_to_invalid_limits(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let key = db.bucket(Quota::interval(5, Duration::from_mins(1))?).await?;
    assert!(db.take(&key).await?.is_granted());
    let before = limit_rows(&db, &key).await?;
    for limits in NO_BUCKETS {
        let [capacity, refill_seconds, refill] = limits.split(", ").collect::<Vec<_>>()[..] else {
            anyhow::bail!("{limits} are not three");
        };
        let set = format!("capacity = {capacity}, refill_seconds = {refill_seconds}, refill = {refill}");
        db.refusal(format!("update {} set {set} where id = {}", db.table(), db.literal(&key))).await?;
    }
    assert_eq!(limit_rows(&db, &key).await?, before);
    assert_eq!(db.take(&key).await?.remaining(), Some(3));
    Ok(())
}

async fn create_bucket_refuses_invalid_values(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let routine = if db.engine.kind == Kind::Postgres { "create_bucket" } else { "token_create_bucket" };
    let key = db.bucket(Quota::interval(5, Duration::from_mins(1))?).await?;
    assert!(db.take(&key).await?.is_granted());
    let before = limit_rows(&db, &key).await?;
    let new = db.key();
    for limits in NO_BUCKETS {
        for key in [&key, &new] {
            let id = db.quoted(key.as_str());
            let refusal = db.refusal(db.calling(routine, &format!("{id}, {limits}"))).await?;
            // Bad data, MySQL's own code for a constraint, or PostgreSQL's code for an invalid bigint.
            let codes = ["22", "23", "HY000", "42883"];
            ensure!(codes.iter().any(|code| refusal.sqlstate.starts_with(code)), "{limits}: {refusal:?}");
        }
    }
    assert_eq!(limit_rows(&db, &key).await?, before);
    assert_eq!(db.row(&new).await?, None);
    assert_eq!(db.take(&key).await?.remaining(), Some(3), "the connection is fit for use");
    Ok(())
}

async fn fractional_capacity_is_refused_by_every_table(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    for table in ["token_buckets", "token_plans", "token_overrides"] {
        let key = db.key();
        let refusal = db.refusal(insert(&db, table, &key, "2.5, 60, 'interval'")).await?;
        let words = if db.engine.kind == Kind::Postgres { "2.5 is not a whole number" } else { "INTEGER column" };
        ensure!(refusal.message.contains(words), "{table}: {refusal:?}");
        db.sql(insert(&db, table, &key, "2, 60, 'interval'")).await?;
        let table = db.table().replace("token_buckets", table);
        db.refusal(format!("update {table} set capacity = 2.5")).await?;
    }
    Ok(())
}

/// The drivers of Python and Node.js send numbers as doubles.
async fn routines_take_double_precision_and_refuse_fractions(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let key = db.key();
    let id = db.quoted(key.as_str());
    for capacity in ["5", "5::bigint", "5::numeric", "5::float8", "'5'"] {
        for seconds in ["60", "60::bigint", "60.0", "60::float8", "'60'"] {
            for routine in ["create_bucket", "create_plan"] {
                db.call(routine, &format!("{id}, {capacity}, {seconds}, 'interval'")).await?;
            }
        }
    }
    let before = limit_rows(&db, &key).await?;
    assert_eq!(before[0].number("capacity")?, 5);
    for (routine, arguments) in [
        ("create_bucket", "2.5, 60"),
        ("create_bucket", "2.5::float8, 60::float8"),
        ("create_bucket", "9007199254740993::float8, 3155760000"),
        ("create_plan", "2.5, 60"),
        ("request_tokens", "1.5"),
        ("request_tokens", "1, 0.5"),
        ("request_tokens", "1, 0, 0.5::float8"),
        ("request_tokens", "'NaN'"),
        ("request_tokens_v1", "1.5, 0, 0, null, null"),
        ("request_tokens_in_window", "5.5, 60, 5"),
        ("request_tokens_in_window", "5, 60, 5, 1.5"),
        ("request_tokens_in_window", "5, 60, 5, 1, 0.5"),
        ("rate_limiting_request", "1.5, 10"),
        ("rate_limiting_request", "1, 10.5"),
        ("throttle", "1.5"),
        ("throttle", "null, 0.5"),
    ] {
        let refusal = db.refusal(db.calling(routine, &format!("{id}, {arguments}"))).await?;
        let codes = if routine.starts_with("create") { "23514" } else { "22023" };
        ensure!(
            refusal.sqlstate == codes && refusal.message.contains("tollgate: "),
            "{routine}({arguments}): {refusal:?}"
        );
    }
    let many = format!("array[{id}, {id}], array[1, 1.5]");
    assert_eq!(db.refusal(db.calling("request_tokens_many", &many)).await?.sqlstate, "22023");
    assert_eq!(limit_rows(&db, &key).await?, before);

    let taken = db.call("request_tokens", &format!("{id}, 2::float8, 0::float8, 0::float8")).await?;
    assert_eq!(taken.numbers(["granted", "remaining"])?, [1, 3]);
    Ok(())
}

async fn limit_rows(db: &TestDb, key: &Key) -> anyhow::Result<Vec<crate::client::Row>> {
    Ok(db.sql(format!("select * from {} where id = {}", db.table(), db.literal(key))).await?)
}

/// The statement that creates a bucket, a plan or an override with these values.
fn insert(db: &TestDb, table: &str, key: &Key, limits: &str) -> String {
    let (table_name, id) = (db.table().replace("token_buckets", table), db.literal(key));
    let (columns, values) = match table {
        "token_plans" => ("name", id),
        "token_overrides" => ("reason, id", format!("'a test', {id}")),
        _ => ("id", id),
    };
    format!("insert into {table_name} ({columns}, capacity, refill_seconds, refill) values ({values}, {limits})")
}

/// Capacity, `refill_seconds` and refill.
const NO_BUCKETS: [&str; 25] = [
    "0, 1, 'interval'",
    "-1, 1, 'interval'",
    "-9223372036854775808, 1, 'interval'",
    "9223372036854775807, 1, 'interval'",
    "9223372036854775808, 1, 'interval'",
    "null, 1, 'interval'",
    "1, 0, 'interval'",
    "1, 0, 'continuous'",
    "1, -1, 'interval'",
    "1, 0.0000000001, 'interval'",
    "1, null, 'interval'",
    "1, 3155760000.5, 'interval'",
    "1, 3155760001, 'continuous'",
    "1, 99999999999, 'interval'",
    "1, 1e300, 'interval'",
    "1000000001, 1, 'interval'",
    "1000000001, 1, 'continuous'",
    "9223372036854775807, 3155760000, 'interval'",
    // Rounded to whole nanoseconds per token, these would be over 0.1 % slower or longer than a century.
    "999999999, 1, 'continuous'",
    "1000, 0.000998001, 'continuous'",
    "3152607392607393, 3155759000, 'continuous'",
    "7, 3155760000, 'continuous'",
    "1, 1, 'Interval'",
    "1, 1, ''",
    "1, 1, null",
];

const CENTURY_NS: u64 = 3_155_760_000_000_000_000;
const START: i64 = 1_800_000_000_123_456_789;
