//! Reads wait for no lock.

use std::time::Duration;

use tollgate::{
    Admin, Limiter, Quota, Take, Window,
    admin::{BucketLevel, Filter},
};

use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::session::Session;
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup {
            levels: IsolationLevels::Every,
            needs: |engine| engine.kind != Kind::Sqlite,
            ..Setup::LAYERED_EVERYWHERE
        };
        read_of_a_locked_row_returns_the_state_before,
    )
}

async fn read_of_a_locked_row_returns_the_state_before(db: TestDb) -> anyhow::Result<()> {
    let day = Duration::from_hours(24);
    let key = db.bucket(Quota::interval(5, day)?).await?;
    let window = Take::from(key.clone()).rule(Window::new(5, day, day)?.into());
    assert!(db.take(&key).await?.is_granted() && db.decide(window.clone()).await?.is_granted());

    let mut lock_holder = Session::begin(&db).await?;
    assert!(
        lock_holder.decide(&Take::from(key.clone())).await?.is_granted()
            && lock_holder.decide(&window).await?.is_granted()
    );
    let store = db.store().deadline(DEADLINE);
    let left = |level: &BucketLevel| (level.available(), level.granted());
    let limiter = Limiter::new(store.clone(), Quota::interval(5, day)?)?;
    assert_eq!(left(&limiter.peek(&key).await?), (4, 1));
    assert_eq!(store.peek(&key).await?.as_ref().map(left), Some((4, 1)));
    assert_eq!(store.peek_window(&key).await?.map(|level| level.counted()), Some(1));
    assert_eq!(store.explain(&key, None).await?.available, Some(4));
    let filter = Filter::default().prefix(key.clone());
    assert_eq!(store.list(&filter, None, 10).await?.iter().map(left).collect::<Vec<_>>(), [(4, 1)]);

    lock_holder.commit().await?;
    assert_eq!(left(&limiter.peek(&key).await?), (3, 2));
    assert_eq!(store.peek_window(&key).await?.map(|level| level.counted()), Some(2));
    Ok(())
}

/// A read that waits for the row gets no answer: the row is locked until the reads are done.
const DEADLINE: Duration = Duration::from_secs(2);
