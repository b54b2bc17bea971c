//! Transactions, savepoints, cursors, old snapshots and locks of a login: each token that the login keeps is charged once.

use std::time::Duration;

use anyhow::{Context, ensure};
use tollgate::{Admin, Key, Mode, Quota, Store, Take, store::Maintenance};
use uuid::Uuid;

use crate::cases::privileges::Login;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::session::Session;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    let mut cases = list!(
        Setup { needs: |engine| engine.has_roles && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        rolled_back_take_leaves_no_token_and_no_id,
        request_id_in_two_transactions_is_charged_once,
        old_snapshot_grants_no_token_taken_by_others,
        named_locks_of_a_login_block_no_decision,
    );
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::Postgres && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        cursor_over_a_routine_pays_for_each_token,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
        prepared_xa_transaction_holds_its_keys_only,
    ));
    cases
}

async fn rolled_back_take_leaves_no_token_and_no_id(db: TestDb) -> anyhow::Result<()> {
    let attack = Attack::new(&db).await?;
    let owner = &attack.scratch.db;
    // Steps, with `TAKE` for a request with a new id; then the number of tokens taken and ids remembered after the end.
    for (steps, kept) in [
        (&["begin", "TAKE", "rollback"][..], 0),
        (&["begin", "TAKE", "savepoint s", "TAKE", "TAKE", "rollback to savepoint s", "commit"], 1),
        (&["begin", "savepoint s", "TAKE", "rollback to savepoint s", "TAKE", "TAKE", "commit"], 2),
        (&["begin", "TAKE", "savepoint s", "TAKE", "release savepoint s", "rollback"], 0),
        (&["begin", "savepoint s", "TAKE", "savepoint s", "TAKE", "rollback to savepoint s", "rollback"], 0),
    ] {
        let key = owner.bucket(Quota::once(CAPACITY)?).await?;
        let mut session = Session::idle(&attack.login.db).await?;
        let mut ids = Vec::new();
        for step in steps {
            if *step == "TAKE" {
                ids.push(Uuid::new_v4());
                let take = Take::from(key.clone()).id(ids[ids.len() - 1], DAY);
                ensure!(session.decide(&take).await?.is_granted(), "{steps:?}");
            } else {
                session.run(*step).await?;
            }
        }
        assert_eq!(attack.level(&key).await?, (kept, CAPACITY - kept), "{steps:?}");
        assert_eq!(attack.remembered(&key).await?, i64::try_from(kept)?, "{steps:?}");
        // Each id that was rolled back counts as new.
        for id in ids {
            ensure!(owner.decide(Take::from(key.clone()).id(id, DAY)).await?.is_granted(), "{steps:?}");
        }
        let taken = steps.iter().filter(|step| **step == "TAKE").count();
        assert_eq!(owner.row(&key).await?.map(|row| row.granted), Some(i64::try_from(taken)?), "{steps:?}");
    }
    attack.login.remove().await
}

async fn request_id_in_two_transactions_is_charged_once(db: TestDb) -> anyhow::Result<()> {
    let attack = Attack::new(&db).await?;
    let owner = &attack.scratch.db;
    for end in ["rollback", "commit"] {
        let key = owner.bucket(Quota::once(CAPACITY)?).await?;
        let take = Take::from(key.clone()).id(Uuid::new_v4(), DAY);
        let mut first = Session::begin(&attack.login.db).await?;
        ensure!(first.decide(&take).await?.is_granted());
        let mut second = Session::begin(&attack.login.db).await?;
        let taking = tokio::spawn(async move {
            let decision = second.decide(&take).await?;
            second.commit().await?;
            anyhow::Ok(decision)
        });
        first.until_blocking(owner).await?;
        first.run(end).await?;
        ensure!(taking.await??.is_granted());
        assert_eq!(owner.row(&key).await?.map(|row| row.granted), Some(1), "after {end}");
        assert_eq!(attack.remembered(&key).await?, 1, "after {end}");
    }
    attack.login.remove().await
}

/// A transaction whose snapshot shows a full bucket cannot take from it once others have emptied it.
async fn old_snapshot_grants_no_token_taken_by_others(db: TestDb) -> anyhow::Result<()> {
    let attack = Attack::new(&db).await?;
    let owner = &attack.scratch.db;
    for level in ["read committed", "repeatable read", "serializable"] {
        let key = owner.bucket(Quota::continuous(CAPACITY, DAY * 5)?).await?;
        let mut session = Session::idle(&attack.login.db).await?;
        let begin = match db.engine.kind {
            Kind::Postgres => format!("begin isolation level {level}; select * from tollgate.peek('{key}')"),
            // At SERIALIZABLE, a read would lock the row and block the other session.
            _ => format!(
                "set transaction isolation level {level}; start transaction with consistent snapshot;
                 select count(*) from token_migrations"
            ),
        };
        session.run(begin).await?;
        ensure!(owner.decide(Take::from(key.clone()).cost(CAPACITY)).await?.is_granted());
        // Denied, or refused because the row changed since the snapshot.
        let taken = session.decide(&Take::from(key.clone())).await;
        ensure!(!taken.is_ok_and(|decision| decision.is_granted()), "granted in an old snapshot at {level}");
        drop(session.run("commit").await);
        assert_eq!(attack.level(&key).await?, (CAPACITY, 0), "{level}");
    }
    attack.login.remove().await
}

/// Any login can take the lock that migrations wait for. Decisions and operators' changes do not take it.
async fn named_locks_of_a_login_block_no_decision(db: TestDb) -> anyhow::Result<()> {
    let attack = Attack::new(&db).await?;
    let owner = &attack.scratch.db;
    let key = owner.bucket(Quota::once(CAPACITY)?).await?;
    let mut session = Session::begin(&attack.login.db).await?;
    session
        .run(match db.engine.kind {
            Kind::Postgres => "select pg_advisory_lock(8390043843661231205), pg_advisory_lock(0), pg_advisory_lock(1)",
            _ => "do get_lock(concat('tollgate.', left(sha2(database(), 256), 48)), 0), get_lock('tollgate', 0)",
        })
        .await?;
    ensure!(owner.take(&key).await?.is_granted() && attack.login.db.take(&key).await?.is_granted());
    owner.store().set_mode(Mode::Block, None, None).await?;
    ensure!(!owner.take(&key).await?.is_granted());
    owner.store().set_mode(Mode::Enforce, None, None).await?;
    ensure!(owner.store().sweep(10).await?.finished);
    assert_eq!(owner.row(&key).await?.map(|row| row.granted), Some(2));
    drop(session);
    attack.login.remove().await
}

async fn cursor_over_a_routine_pays_for_each_token(db: TestDb) -> anyhow::Result<()> {
    let attack = Attack::new(&db).await?;
    let owner = &attack.scratch.db;
    for (statements, granted) in [
        ("begin; declare c cursor with hold for select * from ROUTINE; commit; fetch all c", 1),
        (
            "begin; declare c scroll cursor with hold for select * from ROUTINE; commit;
          fetch all c; move backward all c; fetch all c; move absolute 1 c; fetch prior c",
            1,
        ),
        ("begin; declare c scroll cursor for select * from ROUTINE; fetch all c; fetch absolute 1 c; commit", 1),
        ("begin; declare c cursor for select * from ROUTINE; fetch all c; rollback", 0),
        ("begin; declare c cursor with hold for select * from ROUTINE; rollback", 0),
        ("prepare p as select * from ROUTINE; execute p; execute p; deallocate p", 2),
        ("explain analyze select * from ROUTINE", 1),
        ("explain select * from ROUTINE", 0),
        ("select * from ROUTINE union all select * from ROUTINE limit 1", 1),
        ("select ROUTINE from generate_series(1, 3)", 3),
        ("begin; select * from ROUTINE; select * from ROUTINE; select 1 / 0", 0),
    ] {
        let key = owner.bucket(Quota::once(CAPACITY)?).await?;
        let statements = statements.replace("ROUTINE", &format!("tollgate.request_token('{key}')"));
        let mut session = Session::begin(&attack.login.db).await?;
        session.run("commit").await?;
        let is_error = session.run(&*statements).await.is_err();
        assert_eq!(is_error, statements.contains("1 / 0"), "{statements}");
        drop(session.run("rollback").await);
        assert_eq!(attack.level(&key).await?, (granted, CAPACITY - granted), "{statements}");
    }
    attack.login.remove().await
}

/// A prepared XA transaction outlives its session. Only requests for its keys wait, until an administrator ends it.
async fn prepared_xa_transaction_holds_its_keys_only(db: TestDb) -> anyhow::Result<()> {
    let attack = Attack::new(&db).await?;
    let owner = &attack.scratch.db;
    let (key, other) = (owner.bucket(Quota::once(CAPACITY)?).await?, owner.bucket(Quota::once(CAPACITY)?).await?);
    let xid = format!("'{}'", Uuid::new_v4());
    let mut session = Session::idle(&attack.login.db).await?;
    session.run(format!("xa start {xid}; call request_token('{key}'); xa end {xid}")).await?;
    // The session takes nothing between `xa end` and the outcome.
    session.run(format!("call request_token('{other}')")).await.expect_err("the transaction has ended");
    session.run(format!("xa rollback {xid}")).await?;
    assert_eq!(owner.row(&key).await?.map(|row| row.granted), Some(0));

    session.run(format!("xa start {xid}; call request_token('{key}'); xa end {xid}; xa prepare {xid}")).await?;
    let store = owner.store().deadline(Duration::from_millis(300));
    let locked_out = store.take_one(&Take::from(key.clone())).await;
    ensure!(owner.take(&other).await?.is_granted(), "other keys go on");
    owner.store().set_mode(Mode::Enforce, None, None).await?;
    session.run(format!("xa rollback {xid}")).await?;
    ensure!(locked_out.is_err(), "{locked_out:?}");
    assert_eq!(owner.row(&other).await?.map(|row| row.granted), Some(1));
    let (granted, available) = attack.level(&key).await?;
    // The request without an answer can have taken a token since.
    ensure!(granted <= 1 && available == CAPACITY - granted, "{granted} granted, {available} available");
    drop(session);
    attack.login.remove().await
}

struct Attack {
    login: Login,
    scratch: Scratch,
}

impl Attack {
    async fn new(db: &TestDb) -> anyhow::Result<Self> {
        let scratch = Scratch::migrated(db).await?;
        let login = Login::with_sessions(&scratch.db, Some("tollgate_app"), 4).await?;
        Ok(Self { login, scratch })
    }

    /// How many tokens were granted, and how many are available.
    async fn level(&self, key: &Key) -> anyhow::Result<(u64, u64)> {
        let level = self.scratch.db.store().peek(key).await?.context("it is there")?;
        Ok((level.granted(), level.available().try_into()?))
    }

    /// How many ids of requests for this key are remembered.
    async fn remembered(&self, key: &Key) -> anyhow::Result<i64> {
        let owner = &self.scratch.db;
        let receipts = owner.table().replace("token_buckets", "token_receipts");
        let sql = format!("select count(*) as ids from {receipts} where bucket = {}", owner.literal(key));
        owner.sql(sql).await?[0].number("ids")
    }
}

const CAPACITY: u64 = 5;
const DAY: Duration = Duration::from_hours(24);
