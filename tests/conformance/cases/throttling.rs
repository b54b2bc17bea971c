//! Throttling: in SQL, behind a lock, and during requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use tollgate::{Admin, Quota, Rule, Store, Take, Throttle};

use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, Time, list};
use crate::pools::Scratch;
use crate::session::Session;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::LAYERED_EVERYWHERE };
            throttle_routine_lowers_a_bucket_and_validates_its_input,
        ),
        list!(
            Setup {
                needs: |engine| engine.kind != Kind::Sqlite && engine.has_sessions,
                ..Setup::LAYERED_EVERYWHERE
            };
            a_wait_counts_from_when_the_bucket_was_locked,
        ),
        list!(Setup { levels: IsolationLevels::Every, ..Setup::LAYERED_EVERYWHERE }; throttled_bucket_grants_nothing),
    ]
    .concat()
}

async fn throttle_routine_lowers_a_bucket_and_validates_its_input(db: TestDb) -> anyhow::Result<()> {
    let (routine, rest) =
        if db.engine.kind == Kind::Postgres { ("throttle", "") } else { ("token_throttle", ", null") };
    db.at(1_800_000_000_000_000_000).await?;
    let key = db.bucket(Quota::continuous(10, Duration::from_secs(1))?).await?;
    let id = db.quoted(key.as_str());
    let lower = async |arguments: &str| {
        let row = db.call(routine, &format!("{id}, {arguments}")).await?;
        row.number(if db.engine.kind == Kind::Postgres { "throttle" } else { "lowered" })
    };
    assert_eq!(lower(&format!("4, null{rest}")).await?, 1);
    assert_eq!(lower(&format!("4, null{rest}")).await?, 0);
    assert_eq!(db.take(&key).await?.remaining(), Some(3));
    assert_eq!(lower(&format!("null, 60000{rest}")).await?, 1);
    assert_eq!(db.take(&key).await?.retry_after(), Some(Duration::from_secs(60)));
    assert_eq!(lower(&format!("null, 9223372036854775807{rest}")).await?, 1);
    assert_eq!(db.take(&key).await?.retry_after(), Some(Throttle::DEFAULT_MAX_WAIT));
    assert_eq!(lower("null, 9223372036854775807, 7200000").await?, 1);
    assert_eq!(db.take(&key).await?.retry_after(), Some(Duration::from_hours(2)));

    let before = db.row(&key).await?;
    for arguments in ["null, null", "-1, null", "null, -1"] {
        let refusal = db.refusal(db.calling(routine, &format!("{id}, {arguments}{rest}"))).await?;
        ensure!(refusal.sqlstate == "22023" && refusal.message.contains("throttle"), "{refusal:?}");
    }
    let refusal = db.refusal(db.calling(routine, &format!("{id}, 1, 1, -1"))).await?;
    ensure!(refusal.sqlstate == "22023", "{refusal:?}");
    assert_eq!(db.row(&key).await?, before);

    let unknown_id = db.quoted(db.key().as_str());
    let refusal = db.refusal(db.calling(routine, &format!("{unknown_id}, 1, null{rest}"))).await?;
    let sqlstate = if db.engine.kind == Kind::Postgres { "P0002" } else { "45000" };
    ensure!(refusal.sqlstate == sqlstate && refusal.message.contains("bucket"), "{refusal:?}");
    let once = db.bucket("5 once".parse()?).await?;
    let refusal = db.refusal(db.calling(routine, &format!("{}, null, 1{rest}", db.quoted(once.as_str())))).await?;
    ensure!(refusal.sqlstate == "22023" && refusal.message.contains("never refills"), "{refusal:?}");
    let (routine, own) =
        if db.engine.kind == Kind::Postgres { ("throttle_v1", "") } else { ("token_throttle_v1", ", false, @outcome") };
    for arguments in ["-1, 0", "0, -1", "0, null", "0, 31622400000000001"] {
        let call = db.calling(routine, &format!("{id}, {arguments}, null, null, null, null{own}"));
        ensure!(db.refusal(call).await?.sqlstate == "22023", "{arguments}");
    }
    Ok(())
}

async fn a_wait_counts_from_when_the_bucket_was_locked(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let key = db.bucket(Quota::continuous(1_000_000, Duration::from_secs(1))?).await?;
    let lock_holder = Session::lock_bucket(db, &key).await?;
    let store = db.store().deadline(Duration::from_secs(60));
    let holding = tokio::spawn({
        let key = key.clone();
        async move { store.throttle(&key, &Rule::Provisioned, Throttle::retry_after(Duration::from_secs(30))).await }
    });
    lock_holder.until_blocking(db).await?;
    // Lets some time pass, so that a clock read before the wait would show.
    db.until(db.now().await? + 1_000_000_000).await?;
    let released = db.now().await?;
    lock_holder.commit().await?;
    assert!(holding.await??);
    let row = db.row(&key).await?.expect("it is there");
    let quota = Quota::continuous(1_000_000, Duration::from_secs(1))?;
    let limits = tollgate::model::bucket::BucketQuota::at(&quota, 0);
    let first = limits.instant(row.anchor, row.full_at - limits.burst() + limits.token_ticks);
    ensure!(
        first >= released + 30_000_000_000,
        "the first token comes {} ns too early",
        released + 30_000_000_000 - first
    );
    Ok(())
}

async fn throttled_bucket_grants_nothing(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::continuous(1000, Duration::from_secs(1))?).await?;
    let store = db.store().deadline(Duration::from_secs(60)).max_attempts(1000);
    let heard = Arc::new(AtomicBool::new(false));
    let replicas: Vec<_> = (0..6)
        .map(|number| {
            let (store, key, heard) = (store.clone(), key.clone(), Arc::clone(&heard));
            tokio::spawn(async move {
                let mut granted = 0;
                for round in 0..20 {
                    let known = heard.load(Ordering::SeqCst);
                    let decision = store.take_one(&Take::from(key.clone())).await??;
                    ensure!(!known || !decision.is_granted(), "{number} passed a bucket that was throttled");
                    granted += i64::from(decision.is_granted());
                    // Each of them gets the upstream's answer at some time, and reports it.
                    if round >= 5 + number {
                        let hold = Throttle::retry_after(Duration::from_secs(60));
                        store.throttle(&key, &Rule::Provisioned, hold).await?;
                        heard.store(true, Ordering::SeqCst);
                    }
                }
                anyhow::Ok(granted)
            })
        })
        .collect();
    let mut granted = 0;
    for replica in replicas {
        granted += replica.await??;
    }
    let level = store.peek(&key).await?.expect("it is there");
    assert_eq!(i64::try_from(level.granted())?, granted, "no grant was lost, and none was made up");
    ensure!(granted > 0 && level.available() < 0, "{level:?}");
    Ok(())
}
