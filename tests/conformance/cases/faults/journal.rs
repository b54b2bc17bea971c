//! A file with SQLite's rollback journal that another connection locks whenever the file is free.

use std::time::Duration;

use anyhow::{Context, ensure};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tokio_util::sync::CancellationToken;
use tollgate::{Admin, Decision, Error, Quota, Rule, SqliteStore, Store, Take, migrate};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.kind == Kind::Sqlite, ..Setup::LAYERED_EVERYWHERE };
        takes_from_a_file_locked_in_between_match_the_answers,
    )
}

async fn takes_from_a_file_locked_in_between_match_the_answers(db: TestDb) -> anyhow::Result<()> {
    let directory = db.directory.as_ref().expect("a database of this engine has one");
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("journal.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Delete)
        .busy_timeout(Duration::ZERO);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    migrate(&pool).await?;
    let store = SqliteStore::from(pool);
    let keys = [db.key(), db.key()];
    for key in &keys {
        store.create_bucket(key, Quota::once(1_000_000)?).await?;
    }
    let done = CancellationToken::new();
    let other = tokio::spawn({
        let other = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        let done = done.clone();
        async move {
            while !done.is_cancelled() {
                // Ignores whether the file was free.
                drop(sqlx::raw_sql("begin exclusive; commit").execute(&other).await);
            }
        }
    });
    let requests = [Take::from(keys[0].clone()), Take::from(keys[0].clone()).and(keys[1].clone(), Rule::Provisioned)];
    let (mut granted, mut unknown) = (0, 0);
    for request in requests.iter().cycle().take(1000) {
        match store.take(std::slice::from_ref(request)).await {
            Ok(answers) => granted += u64::from(answers[0].as_ref().is_ok_and(Decision::is_granted)),
            Err(error) if error.is_outcome_unknown() => unknown += 1,
            Err(Error::Contended { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    done.cancel();
    other.await?;
    let taken = store.peek(&keys[0]).await?.context("it is there")?.granted();
    ensure!((granted..=granted + unknown).contains(&taken), "{taken} for {granted} and {unknown} unknown");
    Ok(())
}
