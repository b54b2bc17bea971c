//! Actions of the host limited by a bucket: `limit` and `SqlTokenRequester`, over the host's own pool.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::{
    Error, Key, LimitError, Quota, SqlTokenRequester, TakeError, TokenRequester, admin::AdminError, limit,
    model::KeyError,
};
use uuid::Uuid;

use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::with_pool;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup { levels: IsolationLevels::Every, ..Setup::DEFAULT };
            an_action_runs_for_each_token_and_never_without_one,
        ),
        list!(
            Setup::DEFAULT;
            an_action_behind_an_unknown_bucket_does_not_run,
            a_text_and_a_uuid_name_the_same_bucket,
            invalid_id_is_refused_before_the_database,
        ),
    ]
    .concat()
}

async fn an_action_runs_for_each_token_and_never_without_one(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(two_a_day()?).await?;
    let runs = AtomicUsize::new(0);
    with_pool!(&db.pool, pool => {
        let requester = SqlTokenRequester::new(pool.clone(), key.as_str())?;
        let requester = match db.level {
            None => requester,
            Some(level) => requester.isolation(level),
        };
        let limited = limit(requester, || async { runs.fetch_add(1, Ordering::SeqCst) });
        for run in 0..2 {
            assert_eq!(limited.call().await?, run, "the action's own result");
        }
        for _ in 0..3 {
            match limited.call().await {
                Err(LimitError::Denied { retry_after: Some(time) }) => assert!(!time.is_zero() && time <= A_DAY),
                other => anyhow::bail!("{other:?}"),
            }
        }
    });
    assert_eq!(runs.into_inner(), 2);
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(2));
    Ok(())
}

async fn an_action_behind_an_unknown_bucket_does_not_run(db: TestDb) -> anyhow::Result<()> {
    let key = db.key();
    let error = with_pool!(&db.pool, pool => {
        let limited = limit(SqlTokenRequester::new(pool.clone(), key.as_str())?, || async { panic!("it runs") });
        limited.call().await.expect_err("nobody made the bucket")
    });
    let unknown = TakeError::UnknownBucket(key);
    assert!(matches!(&error, LimitError::Request(Error::Take(error)) if *error == unknown), "{error:?}");
    Ok(())
}

async fn a_text_and_a_uuid_name_the_same_bucket(db: TestDb) -> anyhow::Result<()> {
    let id = Uuid::new_v4();
    let quota = two_a_day()?;
    with_pool!(&db.pool, pool => {
        tollgate::create_bucket(pool, id, quota).await?;
        assert_eq!(SqlTokenRequester::new(pool.clone(), id)?.request_token().await?.remaining(), Some(1));
        let text = SqlTokenRequester::new(pool.clone(), id.to_string())?;
        assert_eq!(text.request_token().await?.remaining(), Some(0));
        assert!(!text.request_token().await?.is_granted());
    });
    Ok(())
}

async fn invalid_id_is_refused_before_the_database(db: TestDb) -> anyhow::Result<()> {
    let quota = two_a_day()?;
    // Any database call would fail.
    with_pool!(&db.pool, pool => pool.close().await);
    for (text, expected) in [
        (String::new(), KeyError::Empty),
        ("x".repeat(256), KeyError::TooLong(256)),
        ("é".repeat(128), KeyError::TooLong(256)),
        ("a\0b".to_owned(), KeyError::Nul(1)),
        ("\u{1}a".to_owned(), KeyError::Reserved),
    ] {
        let (built, made) = with_pool!(&db.pool, pool => (
            SqlTokenRequester::new(pool.clone(), text.as_str()).map(drop),
            tollgate::create_bucket(pool, text.as_str(), quota).await,
        ));
        assert!(matches!(built, Err(Error::Key(error)) if error == expected), "{text:?}: {built:?}");
        assert!(matches!(made, Err(AdminError::Store(Error::Key(error))) if error == expected), "{text:?}: {made:?}");
    }
    for longest in ["x".repeat(255), format!("{}x", "é".repeat(127))] {
        assert_eq!(Key::try_from(longest.as_str())?.as_str(), longest);
    }
    Ok(())
}

fn two_a_day() -> Result<Quota, tollgate::model::QuotaError> {
    Quota::interval(2, A_DAY)
}

const A_DAY: Duration = Duration::from_secs(86_400);
