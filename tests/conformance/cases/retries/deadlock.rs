//! A deadlock of a request for several buckets with another session.

use tollgate::{Rule, Store, Take};

use super::{LONG, in_order};
use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::Scratch;
use crate::session::Session;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    [
        list!(Setup { needs: |engine| engine.kind == Kind::Postgres, ..Setup::WITHOUT_LAYERS }; a_deadlock_is_retried),
        list!(
            Setup {
                levels: IsolationLevels::Every,
                needs: |engine| engine.kind == Kind::MySql,
                ..Setup::WITHOUT_LAYERS
            };
            a_deadlock_is_retried,
        ),
    ]
    .concat()
}

async fn a_deadlock_is_retried(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let (first, second) = in_order(db).await?;

    let mut lock_holder = Session::lock_bucket(db, &second).await?;
    make_it_the_survivor(db, &mut lock_holder).await?;
    let store = db.store().deadline(LONG);
    let both = Take::from(first.clone()).and(second.clone(), Rule::Provisioned);
    let taking = tokio::spawn(async move { store.take_one(&both).await });
    lock_holder.until_blocking(db).await?;
    // The request holds the first bucket and waits for the second. Now the other session waits for the first.
    lock_holder.take(db, &first).await?;
    lock_holder.commit().await?;

    let decision = taking.await???;
    assert!(decision.is_granted());
    assert!(decision.attempts() > 1, "no deadlock was met");
    for key in [&first, &second] {
        assert_eq!(db.row(key).await?.map(|row| row.granted), Some(2), "one of the other's, one of ours");
    }
    Ok(())
}

/// PostgreSQL ends the session that detects the deadlock first, InnoDB the one with fewer changes.
async fn make_it_the_survivor(db: &TestDb, lock_holder: &mut Session) -> Result<(), sqlx::Error> {
    if db.engine.kind == Kind::Postgres {
        return lock_holder.run("set local deadlock_timeout = '60s'").await;
    }
    db.pool.run("create table host_rows (n int)").await?;
    let rows: Vec<String> = (0..200).map(|n| format!("({n})")).collect();
    lock_holder.run(format!("insert into host_rows values {}", rows.join(","))).await
}
