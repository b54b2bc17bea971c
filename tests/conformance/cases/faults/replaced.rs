//! A database file that an operator replaces or deletes while a service has it open.

use anyhow::{Context, ensure};
use sqlx::AssertSqlSafe;
use tollgate::{Admin, Error, Mode, SqliteStore, Store, Take, store::Durability};

use crate::engines::{Kind, sqlite};
use crate::matrix::{Case, Setup, list};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.kind == Kind::Sqlite && cfg!(unix), ..Setup::LAYERED_EVERYWHERE };
        replaced_file_is_reported_once_and_then_decides,
        deleted_file_is_reported_until_it_is_back,
    )
}

async fn replaced_file_is_reported_once_and_then_decides(db: TestDb) -> anyhow::Result<()> {
    let directory = db.directory.as_ref().expect("a database of this engine has one").path();
    let (path, copy) = (directory.join("app.db"), directory.join("copy.db"));
    let hosts = sqlite::open(&path, 4).await?;
    let stores = [
        SqliteStore::connect(&format!("sqlite:{}", path.display()), Durability::Asynchronous)?,
        SqliteStore::from(hosts.clone()),
    ];
    let key = db.key();
    stores[0].create_bucket(&key, "2 once".parse()?).await?;
    for store in &stores {
        ensure!(take(store, &key).await?, "there are two tokens");
    }
    // A connection that the host has in use returns to its pool later.
    let open_connection = hosts.acquire().await?;
    sqlx::query(AssertSqlSafe(format!("vacuum into '{}'", copy.display()))).execute(&hosts).await?;
    for end in ["-wal", "-shm"] {
        std::fs::remove_file(directory.join(format!("app.db{end}")))?;
    }
    std::fs::rename(&copy, &path)?;
    let operator = SqliteStore::from(sqlite::create(&path, 1).await?);
    operator.reset(&key).await?;
    operator.set_mode(Mode::Block, None, None).await?;

    for store in &stores {
        let error = take(store, &key).await.expect_err("the file was replaced");
        ensure!(matches!(error, Error::Unavailable(_)) && error.to_string().contains("app.db was replaced"), "{error}");
    }
    drop(open_connection);
    for store in &stores {
        ensure!(!eventually(store, &key).await?, "the mode of the new file is block");
    }
    operator.set_mode(Mode::Enforce, None, None).await?;
    for store in &stores {
        ensure!(take(store, &key).await?, "there are two tokens again");
    }
    ensure!(operator.peek(&key).await?.context("it is there")?.available() == 0, "both were taken from the new file");
    Ok(())
}

async fn deleted_file_is_reported_until_it_is_back(db: TestDb) -> anyhow::Result<()> {
    let directory = db.directory.as_ref().expect("a database of this engine has one").path();
    let (path, elsewhere) = (directory.join("app.db"), directory.join("elsewhere.db"));
    let store = SqliteStore::from(sqlite::open(&path, 4).await?);
    let key = db.key();
    store.create_bucket(&key, "2 once".parse()?).await?;
    ensure!(take(&store, &key).await?, "there are two tokens");
    std::fs::rename(&path, &elsewhere)?;
    for _ in 0..2 {
        let error = take(&store, &key).await.expect_err("the file is away");
        ensure!(error.to_string().contains("app.db is missing"), "{error}");
    }
    ensure!(!path.exists(), "the store makes no other file");
    std::fs::rename(&elsewhere, &path)?;
    ensure!(take(&store, &key).await?, "its connections are still good");
    Ok(())
}

async fn take(store: &impl Store, key: &tollgate::Key) -> Result<bool, Error> {
    let outcome = store.take(&[Take::from(key.clone())]).await?.pop();
    Ok(outcome.expect("one answer to one request")?.is_granted())
}

/// The first answer after the store has closed its connections to the old file.
async fn eventually(store: &impl Store, key: &tollgate::Key) -> Result<bool, Error> {
    loop {
        match take(store, key).await {
            Err(Error::Unavailable(_)) => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}
