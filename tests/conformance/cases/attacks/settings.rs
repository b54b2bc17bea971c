//! The settings of a caller's session change no decision.

use std::time::Duration;

use sqlx::{AssertSqlSafe, MySqlPool, PgPool};
use tollgate::{
    Adjusted, Admin, Key, Mode, Quota, Receipt, Rule, Store, Take, Window, admin::Filter, store::Maintenance,
};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::{Scratch, with_session};
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup { needs: |engine| engine.has_routines && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            a_sessions_settings_change_no_decision,
        ),
        list!(
            Setup {
                levels: IsolationLevels::Every,
                needs: |engine| engine.kind == Kind::MySql,
                ..Setup::WITHOUT_LAYERS
            };
            store_commits_its_writes_without_autocommit,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
            id_is_not_truncated_without_strict_mode,
            max_join_size_refuses_no_call,
        ),
    ]
    .concat()
}

/// A session with everything forged takes all tokens. An honest session sends requests before and after.
async fn a_sessions_settings_change_no_decision(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    for &forged in forgeries(db.engine.kind) {
        db.pool.run(world(db.engine.kind)).await?;
        let (session, _) = with_session(db, forged).await?;
        for quota in [Quota::interval(3, A_DAY)?, Quota::continuous(3, A_DAY)?] {
            let key = db.bucket(quota).await?;
            assert!(db.take(&key).await?.is_granted());
            for left in [1, 0] {
                let decision = request_tokens(&session.pool, key.as_str()).await?;
                assert_eq!((decision.granted, decision.remaining), (true, left), "after {forged}");
            }
            for _ in 0..2 {
                let decision = request_tokens(&session.pool, key.as_str()).await?;
                assert_eq!((decision.granted, decision.remaining), (false, 0), "after {forged}");
                assert!(0 < decision.retry_after_ms && decision.retry_after_ms <= 86_400_000, "after {forged}");
                assert!(0 < decision.reset_after_ms && decision.reset_after_ms <= 86_400_000, "after {forged}");
            }
            // The forged session wrote nothing that gives an honest session more or fewer tokens.
            let denied = db.take(&key).await?;
            assert!(!denied.is_granted() && denied.retry_after().is_some_and(|time| time <= A_DAY), "after {forged}");
            assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(3), "after {forged}");

            // When the forged session changes the limits, the bucket keeps its available tokens: none.
            let more = Quota::interval(5, A_DAY)?;
            session.create(&key, more).await?;
            assert!(!db.take(&key).await?.is_granted(), "after {forged}");
            // A bucket that the forged session provisions starts full, now.
            let new = session.bucket(Quota::interval(2, A_DAY)?).await?;
            let first = db.take(&new).await?;
            assert!(first.is_granted() && first.reset_after().is_some_and(|time| time <= A_DAY), "after {forged}");
            assert!(db.take(&new).await?.is_granted(), "after {forged}");
            assert!(!db.take(&new).await?.is_granted(), "after {forged}");
        }
        // Created by its first request, on the calendar's grid, by the library's own call.
        let made = db.key();
        let rule = Rule::Quota(Quota::continuous(2, A_DAY)?);
        let request = || Take::from(made.clone()).rule(rule.clone());
        assert_eq!(session.decide(request()).await?.remaining(), Some(1), "after {forged}");
        assert_eq!(db.decide(request()).await?.remaining(), Some(0), "after {forged}");
        assert!(!session.decide(request()).await?.is_granted(), "after {forged}");

        // The mode that blocks every request.
        session.store().set_mode(Mode::Block, None, None).await?;
        assert!(!db.decide(request()).await?.is_granted(), "after {forged}");
        session.store().set_mode(Mode::Enforce, None, None).await?;

        // A batch with an unknown bucket in the middle.
        let (first, last) =
            (db.bucket(Quota::interval(1, A_DAY)?).await?, db.bucket(Quota::interval(1, A_DAY)?).await?);
        let batch = [first, db.key(), last].map(Take::from);
        for expected in [[Some(true), None, Some(true)], [Some(false), None, Some(false)]] {
            let outcomes = session.store().take(&batch).await?;
            let granted: Vec<_> = outcomes.into_iter().map(|it| it.ok().map(|it| it.is_granted())).collect();
            assert_eq!(granted, expected, "after {forged}");
        }
    }
    Ok(())
}

/// Covers transactions that others left open on the connection.
async fn store_commits_its_writes_without_autocommit(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    db.pool.run("create table host_rows (n int); insert into host_rows values (0)").await?;
    for left_open in ["select n from host_rows", "update host_rows set n = 1", "start transaction"] {
        let (session, _) = with_session(db, "set autocommit = 0").await?;
        let leave_open = || session.pool.run(left_open);
        let quota = Quota::interval(9, A_DAY)?;
        let [one, other, made] = [db.bucket(quota).await?, db.bucket(quota).await?, db.key()];
        let window = Take::from(db.key()).rule(Window::new(1, A_DAY, A_DAY / 2)?.into());
        let id = Uuid::new_v4();

        leave_open().await?;
        let identified = Take::from(one.clone()).id(id, A_DAY);
        assert_eq!(session.decide(identified).await?.remaining(), Some(8), "after {left_open}");
        leave_open().await?;
        let batch = [&one, &made].map(|key| Take::from(key.clone()).rule(Rule::Quota(quota)));
        for outcome in session.store().take(&batch).await? {
            assert!(outcome?.is_granted(), "after {left_open}");
        }
        leave_open().await?;
        let uneven = [Take::from(one.clone()).cost(2), Take::from(other.clone())];
        for outcome in session.store().take(&uneven).await? {
            assert!(outcome?.is_granted(), "after {left_open}");
        }
        let both = Take::from(one.clone()).and(other.clone(), Rule::Provisioned);
        for requests in [1, 2] {
            leave_open().await?;
            for outcome in session.store().take(&vec![both.clone(); requests]).await? {
                assert!(outcome?.is_granted(), "after {left_open}");
            }
        }
        leave_open().await?;
        assert!(session.decide(window.clone()).await?.is_granted(), "after {left_open}");
        let granted = async |key| anyhow::Ok(db.row(key).await?.map(|row| row.granted));
        assert_eq!(granted(&one).await?, Some(7), "after {left_open}");
        assert_eq!(granted(&other).await?, Some(4), "after {left_open}");
        assert_eq!(granted(&made).await?, Some(1), "after {left_open}");
        assert!(!db.decide(window.clone()).await?.is_granted(), "after {left_open}");

        let receipts = [Receipt::new(id, one.clone(), 1), Receipt::new(Uuid::new_v4(), other.clone(), 1)];
        leave_open().await?;
        let adjusted = session.store().adjust(&[receipts[0].clone().settle(2)]).await?;
        assert_eq!(adjusted, [Ok(Adjusted::Done(-1))], "after {left_open}");
        leave_open().await?;
        session.store().adjust(&[receipts[1].clone().refund(1), receipts[0].clone().settle(1)]).await?;
        let available = async |key| anyhow::Ok(db.store().peek(key).await?.map(|level| level.available()));
        assert_eq!((available(&one).await?, available(&other).await?), (Some(1), Some(6)), "after {left_open}");

        leave_open().await?;
        session.store().set_mode(Mode::Block, None, None).await?;
        assert_eq!(db.store().mode().await?.mode, Mode::Block, "after {left_open}");
        leave_open().await?;
        session.store().set_mode(Mode::Enforce, None, None).await?;
        leave_open().await?;
        assert!(session.store().delete(&one).await?, "after {left_open}");
        assert_eq!(db.row(&one).await?, None, "after {left_open}");
    }
    let AnyPool::MySql(pool) = &db.pool else { anyhow::bail!("MySQL is needed") };
    let written: i64 = sqlx::query_scalar("select cast(max(n) as signed) from host_rows").fetch_one(pool).await?;
    assert_eq!(written, 0, "what nobody committed is not");
    Ok(())
}

async fn id_is_not_truncated_without_strict_mode(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let (session, _) = with_session(db, "set sql_mode = ''").await?;
    for (letter, bytes) in [("x", 1), ("€", 3), ("🦀", 4)] {
        let longest = letter.repeat(255 / bytes);
        let key = Key::try_from(longest.clone())?;
        db.create(&key, Quota::interval(2, A_DAY)?).await?;
        for longer in [256 / bytes + 1, 256, 257, 300, 1000, 1024, 1025, 5000].map(|length| letter.repeat(length)) {
            for call in [
                format!("call request_token('{longer}')"),
                format!("call request_tokens('{longer}', 1, 0, 0)"),
                format!("call rate_limiting_request('{longer}', 2, 60)"),
                format!("call token_create_bucket('{longer}', 5, 1, 'interval')"),
            ] {
                session.pool.run(call.clone()).await.expect_err(&call);
            }
            // Refused or unknown, but never the bucket whose id is a prefix.
            let json = format!("concat('[[\"', hex('{longer}'), '\", 1, 0, 0, null, null, null]]')");
            drop(session.pool.run(format!("call token_take_batch_v1({json}, false, @answers)")).await);
        }
        let left = db.take(&key).await?;
        assert_eq!((left.is_granted(), left.remaining()), (true, Some(1)), "of '{letter}'");
    }
    let AnyPool::MySql(pool) = &db.pool else { anyhow::bail!("MySQL is needed") };
    let buckets: i64 = sqlx::query_scalar("select count(*) from token_buckets").fetch_one(pool).await?;
    assert_eq!(buckets, 3);
    Ok(())
}

/// With more rows of each table than a session can join by default.
async fn max_join_size_refuses_no_call(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let made = Rule::Quota(Quota::continuous(9, A_DAY)?);
    let keys: Vec<Key> = (0..100).map(|_| db.key()).collect();
    let takes: Vec<Take> = keys.iter().map(|key| Take::from(key.clone()).rule(made.clone())).collect();
    for outcome in db.store().take(&takes).await? {
        assert!(outcome?.is_granted());
    }
    let denials: Vec<_> = keys.iter().map(|key| (key.clone(), 1)).collect();
    db.store().count_denials(&denials).await?;
    db.pool.run("analyze table token_buckets, token_stats").await?;

    let (session, _) = with_session(db, "set max_join_size = 50").await?;
    let store = session.store();
    let uneven = takes.iter().cloned().zip([1, 2].into_iter().cycle()).map(|(take, cost)| take.cost(cost)).collect();
    let pair = |(take, other): (&Take, &Key)| take.clone().and(other.clone(), made.clone());
    let pairs: Vec<Take> = takes.iter().zip(&keys[1..]).map(pair).take(20).collect();
    let window = Take::from(db.key()).rule(Window::new(9, A_DAY, A_DAY / 2)?.into()).id(Uuid::new_v4(), A_DAY);
    for requests in [takes, uneven, pairs[..1].to_vec(), pairs, vec![window.clone()]] {
        for outcome in store.take(&requests).await? {
            assert!(outcome?.is_granted());
        }
    }
    assert_eq!(store.list(&Filter::default(), None, 99).await?.len(), 99);
    assert_eq!(store.most_denied(99).await?.len(), 99);
    assert_eq!(store.windows(None, None, 99).await?.len(), 1);
    assert!(store.peek_window(window.key()).await?.is_some());
    store.count_denials(&denials).await?;
    assert!(store.sweep(1000).await?.finished);
    session.pool.run("call token_sweep()").await?;
    let many: Vec<String> = keys.iter().map(|key| format!(r#"["{key}", 1]"#)).collect();
    session.pool.run(format!("call request_tokens_many('[{}]')", many.join(","))).await?;
    session.pool.run("call request_tokens_in_window('w', 9, 60, 1, 1, 0)").await?;
    let setting = session.sql("select @@sql_big_selects as big").await?;
    assert_eq!(setting[0].number("big")?, 0, "as it was");
    Ok(())
}

/// The answer as any client sees it.
struct Answer {
    granted: bool,
    remaining: i64,
    retry_after_ms: i64,
    reset_after_ms: i64,
}

async fn request_tokens(pool: &AnyPool, id: &str) -> anyhow::Result<Answer> {
    match pool {
        AnyPool::MySql(pool) => request_from_mysql(pool, id).await,
        AnyPool::Postgres(pool) => request_from_postgres(pool, id).await,
        AnyPool::Sqlite(_) => anyhow::bail!("a file has no routines"),
    }
}

async fn request_from_mysql(pool: &MySqlPool, id: &str) -> anyhow::Result<Answer> {
    // With autocommit off, the caller must commit.
    let mut session = pool.acquire().await?;
    let (granted, remaining, _, retry_after_ms, reset_after_ms): (i64, i64, i64, i64, i64) =
        sqlx::query_as(AssertSqlSafe(format!("call request_token('{id}')"))).fetch_one(&mut *session).await?;
    sqlx::raw_sql("commit").execute(&mut *session).await?;
    Ok(Answer { granted: granted == 1, remaining, retry_after_ms, reset_after_ms })
}

async fn request_from_postgres(pool: &PgPool, id: &str) -> anyhow::Result<Answer> {
    let (granted, remaining, retry_after_ms, reset_after_ms) =
        sqlx::query_as("select granted, remaining, retry_after_ms, reset_after_ms from tollgate.request_token($1)")
            .bind(id)
            .fetch_one(pool)
            .await?;
    Ok(Answer { granted, remaining, retry_after_ms, reset_after_ms })
}

fn forgeries(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::MySql => &[
            "set timestamp = 1",
            "set timestamp = 2147483647",
            "set time_zone = '+13:00'",
            "set time_zone = '-12:00', timestamp = 1",
            "set sql_mode = ''",
            "set sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION,IGNORE_SPACE'",
            "set sql_mode = 'ANSI,TRADITIONAL', div_precision_increment = 0",
            "set names latin1",
            "set sql_safe_updates = 1, sql_select_limit = 1",
            "set sql_select_limit = 0",
            "set group_concat_max_len = 4, max_sp_recursion_depth = 0",
            "set optimizer_switch = 'derived_merge=off,index_merge=off,materialization=off,semijoin=off'",
            "set collation_connection = utf8mb4_bin, character_set_connection = utf16",
            "set lc_time_names = 'ja_JP', character_set_results = null",
            "set session transaction isolation level read uncommitted",
            "set autocommit = 0",
            "set max_join_size = 50",
            "set completion_type = 'CHAIN'",
        ],
        Kind::Postgres => &[
            "set time zone 'Asia/Tokyo'; set datestyle = 'German'; set intervalstyle = 'postgres_verbose'",
            "set search_path = host, public, pg_catalog",
            "set search_path = pg_temp, host, public, pg_catalog;
             create temp table token_buckets (id text, capacity bigint, full_at bigint);
             insert into token_buckets values ('x', 1000000, 0);
             create function pg_temp.clock() returns bigint language sql as 'select 1::bigint'",
            "set search_path = ''",
            "set row_security = off",
            "set default_transaction_isolation = 'repeatable read'; set check_function_bodies = off",
            "set plan_cache_mode = force_generic_plan; set enable_indexscan = off;
             set jit = on; set jit_above_cost = 0",
            "set extra_float_digits = -15; set standard_conforming_strings = off; set transform_null_equals = on",
        ],
        Kind::Sqlite => &[],
    }
}

/// Objects of a host that mislead lookups by name, created again for each forgery.
fn world(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres => {
            "drop schema if exists host cascade;
             create schema host;
             create function host.clock_timestamp() returns timestamptz language sql
               as $$ select timestamptz '2000-01-01' $$;
             create function host.now() returns timestamptz language sql as $$ select timestamptz '2000-01-01' $$;
             create function host.ceil(numeric) returns numeric language sql as $$ select 0::numeric $$;
             create function host.div(numeric, numeric) returns numeric language sql as $$ select 0::numeric $$;
             create function host.one(bigint, bigint) returns bigint language sql as $$ select 1::bigint $$;
             create function host.one(numeric, numeric) returns numeric language sql as $$ select 1::numeric $$;
             create function host.one(numeric, integer) returns numeric language sql as $$ select 1::numeric $$;
             create function host.yes(bigint, bigint) returns boolean language sql as $$ select true $$;
             create function host.no(text, text) returns boolean language sql as $$ select false $$;
             create operator host.+ (function = host.one, leftarg = bigint, rightarg = bigint);
             create operator host.- (function = host.one, leftarg = bigint, rightarg = bigint);
             create operator host.* (function = host.one, leftarg = bigint, rightarg = bigint);
             create operator host./ (function = host.one, leftarg = bigint, rightarg = bigint);
             create operator host.* (function = host.one, leftarg = numeric, rightarg = numeric);
             create operator host.* (function = host.one, leftarg = numeric, rightarg = integer);
             create operator host.<= (function = host.yes, leftarg = bigint, rightarg = bigint);
             create operator host.= (function = host.no, leftarg = text, rightarg = text);
             create table host.token_buckets (id text, capacity bigint, full_at bigint)"
        }
        Kind::MySql | Kind::Sqlite => "select 1",
    }
}

const A_DAY: Duration = Duration::from_secs(86_400);
