//! Denials write nothing.

use std::time::Duration;

use tollgate::{Key, Quota, Rule, Store, Take};

use crate::matrix::{Case, Setup, list};
use crate::pools::with_session;
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    // Without layers: a cached denial never writes.
    list!(Setup { needs: |engine| engine.has_sessions, ..Setup::WITHOUT_LAYERS }; a_denied_batch_writes_nothing)
}

async fn a_denied_batch_writes_nothing(db: TestDb) -> anyhow::Result<()> {
    let quota = Quota::interval(3, Duration::from_secs(86_400))?;
    let (db, _) = with_session(&db, "select 1").await?;
    let store = db.store();
    let keys = [db.bucket(quota).await?, db.bucket(quota).await?, db.key()];
    let take = |key: &Key| {
        let take = Take::from(key.clone());
        // The first request creates the last bucket.
        if *key == keys[2] { take.rule(Rule::from(quota)) } else { take }
    };
    for key in &keys {
        assert!(db.decide(take(key).cost(2)).await?.is_granted());
    }
    let two = keys.iter().map(|key| take(key).cost(2));
    let several = take(&keys[0]).cost(2).and(keys[1].clone(), Rule::Provisioned);
    let denied: Vec<Take> = two.clone().chain(two).chain([take(&keys[1]).cost(3), several.clone(), several]).collect();

    let before = written(&db, &keys).await?;
    let waiting = [take(&keys[0]).cost(2).max_wait(Duration::from_secs(1))];
    for takes in [&denied[..7], &denied[..3], &denied[..1], &waiting] {
        are_denied(&store, takes).await?;
        assert_eq!(written(&db, &keys).await?, before, "{takes:?}");
    }
    // Several buckets are evaluated in a batch under row locks, which PostgreSQL stores in the rows.
    for takes in [&denied[7..8], &denied[7..], &denied[..]] {
        are_denied(&store, takes).await?;
        assert_eq!(but_for_locks(written(&db, &keys).await?), but_for_locks(before.clone()), "{takes:?}");
    }
    assert!(db.decide(take(&keys[2])).await?.is_granted());
    assert_ne!(but_for_locks(written(&db, &keys).await?), but_for_locks(before), "a grant is not seen");
    Ok(())
}

async fn are_denied(store: &impl Store, takes: &[Take]) -> anyhow::Result<()> {
    for outcome in store.take(takes).await? {
        assert!(!outcome?.is_granted());
    }
    Ok(())
}

/// Values that change if the only session writes, or if a row of the keys is written. On PostgreSQL, the last word also
/// changes if the row is locked.
async fn written(db: &TestDb, keys: &[Key]) -> anyhow::Result<Vec<String>> {
    Ok(match &db.pool {
        AnyPool::Postgres(pool) => {
            let ids: Vec<&str> = keys.iter().map(Key::as_str).collect();
            let versions = "select concat_ws(' ', xmin, ctid, 'locked', xmax) from tollgate.token_buckets where id = any($1) order by id";
            sqlx::query_scalar(versions).bind(ids).fetch_all(pool).await?
        }
        AnyPool::MySql(pool) => {
            let rows = "show session status where variable_name in ('Handler_update', 'Handler_delete')";
            let counted: Vec<(String, String)> = sqlx::query_as(rows).fetch_all(pool).await?;
            counted.into_iter().map(|(name, rows)| name + &rows).collect()
        }
        AnyPool::Sqlite(pool) => {
            vec![sqlx::query_scalar::<_, i64>("select total_changes()").fetch_one(pool).await?.to_string()]
        }
    })
}

fn but_for_locks(written: Vec<String>) -> Vec<String> {
    written.into_iter().map(|what| what.split(" locked ").next().unwrap_or_default().to_owned()).collect()
}
