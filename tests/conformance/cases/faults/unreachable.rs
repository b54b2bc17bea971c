//! Databases that do not exist or are down.

use std::time::Duration;

use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use tollgate::{Error, Fallback, Limiter, PgStore, model::Source, store::Durability};

use super::{a_hundred_a_day, has_server, take};
use crate::engines::{Engine, Kind};
use crate::matrix::{Case, Setup, list};
use crate::pools::through_proxy;
use crate::proxy::{Proxy, refusing};
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup { needs: has_server, ..Setup::LAYERED_EVERYWHERE };
            a_refused_connection_is_unavailable,
            server_that_closes_connections_is_unavailable_until_back,
            fallback_ends_soon_after_the_outage,
            a_url_of_no_host_is_unavailable,
            a_url_of_no_database_is_unavailable,
        ),
        list!(
            Setup { needs: Engine::is_pooled, ..Setup::LAYERED_EVERYWHERE };
            setting_refused_by_a_pooler_is_reported,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::Sqlite, ..Setup::LAYERED_EVERYWHERE };
            missing_file_is_unavailable,
            read_only_file_is_not_permitted,
        ),
    ]
    .concat()
}

async fn a_refused_connection_is_unavailable(db: TestDb) -> anyhow::Result<()> {
    // The listener is closed, so the port refuses connections.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    is_unavailable(&db.on(elsewhere(&db, Elsewhere::Port(port)))).await
}

async fn server_that_closes_connections_is_unavailable_until_back(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let (_, proxy) = through_proxy(&db, 1).await?;
    let proxied = db.on(elsewhere(&db, Elsewhere::Port(proxy.port())));
    proxy.refuse(true);
    is_unavailable(&proxied).await?;
    proxy.refuse(false);
    assert!(proxied.take(&key).await?.is_granted());
    Ok(())
}

/// Calls that start during the outage wait in the pool, which sleeps for seconds by the end of the outage.
async fn fallback_ends_soon_after_the_outage(db: TestDb) -> anyhow::Result<()> {
    let socket = refusing()?;
    let away = db.on(elsewhere(&db, Elsewhere::Port(socket.local_addr()?.port())));
    // An open circuit breaker would answer the requests at once.
    let limiter = Limiter::builder(away.store()).without_circuit_breaker();
    let limiter = limiter.deadline(Duration::from_millis(200)).fallback(Fallback::Open).build("1000/h")?;
    let key = db.key();
    for _ in 0..14 {
        assert_eq!(limiter.allow(&key).await?.source(), Source::Fallback);
    }
    let (host, port) = match &db.pool {
        AnyPool::MySql(pool) => (pool.connect_options().get_host().to_owned(), pool.connect_options().get_port()),
        AnyPool::Postgres(pool) => (pool.connect_options().get_host().to_owned(), pool.connect_options().get_port()),
        AnyPool::Sqlite(_) => unreachable!("a file has no port"),
    };
    let _proxy = Proxy::on(socket, &host, port).await?;
    for _ in 0..5 {
        if limiter.allow(&key).await?.source() == Source::Store {
            return Ok(());
        }
    }
    anyhow::bail!("the fallback goes on, though the server accepts connections")
}

async fn a_url_of_no_host_is_unavailable(db: TestDb) -> anyhow::Result<()> {
    is_unavailable(&db.on(elsewhere(&db, Elsewhere::Host("no-such-host.invalid")))).await
}

async fn a_url_of_no_database_is_unavailable(db: TestDb) -> anyhow::Result<()> {
    let elsewhere = db.on(elsewhere(&db, Elsewhere::Database("no_such_database")));
    is_unavailable(&elsewhere).await?;
    // A pooler can wait for its server instead of refusing.
    if !db.engine.is_pooled() {
        let message = take(&elsewhere.store(), &db.key()).await.expect_err("it is not there").to_string();
        assert!(message.contains("no_such_database") && !message.contains("is it up"), "{message}");
    }
    Ok(())
}

async fn setting_refused_by_a_pooler_is_reported(db: TestDb) -> anyhow::Result<()> {
    let store = PgStore::connect(&db.engine.url()?, Durability::Asynchronous)?.max_connections(2);
    assert_eq!(store.pool().options().get_max_connections(), 2);
    let error = take(&store, &db.key()).await.expect_err("it refuses the setting");
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("startup parameter") && message.contains("ignore_startup_parameters"), "{message}");
    assert!(!message.contains("is it up"), "{message}");
    Ok(())
}

async fn missing_file_is_unavailable(db: TestDb) -> anyhow::Result<()> {
    let directory = db.directory.as_ref().expect("a database of this engine has one");
    let options = SqliteConnectOptions::new().filename(directory.path().join("no-such-directory/buckets.db"));
    is_unavailable(
        &db.on(AnyPool::Sqlite(
            SqlitePoolOptions::new().idle_timeout(None).max_lifetime(None).connect_lazy_with(options),
        )),
    )
    .await
}

async fn read_only_file_is_not_permitted(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let AnyPool::Sqlite(pool) = &db.pool else { anyhow::bail!("a file is needed") };
    let options = pool.connect_options().as_ref().clone().read_only(true);
    let reader = db.on(AnyPool::Sqlite(
        SqlitePoolOptions::new().idle_timeout(None).max_lifetime(None).connect_with(options).await?,
    ));
    let error = take(&reader.store(), &key).await.expect_err("a token is taken by a write");
    assert!(matches!(error, Error::NotPermitted(_)), "{error:?}");
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(0));
    Ok(())
}

async fn is_unavailable(db: &TestDb) -> anyhow::Result<()> {
    let error = take(&db.store().deadline(Duration::from_millis(300)), &db.key()).await.expect_err("it is not there");
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(!error.is_outcome_unknown());
    Ok(())
}

/// Wrong targets of a URL.
#[derive(Clone, Copy)]
enum Elsewhere {
    Port(u16),
    Host(&'static str),
    Database(&'static str),
}

fn elsewhere(db: &TestDb, place: Elsewhere) -> AnyPool {
    match &db.pool {
        AnyPool::MySql(pool) => {
            let options = pool.connect_options().as_ref().clone();
            let options = match place {
                Elsewhere::Port(port) => options.host("127.0.0.1").port(port),
                Elsewhere::Host(host) => options.host(host),
                Elsewhere::Database(name) => options.database(name),
            };
            AnyPool::MySql(MySqlPoolOptions::new().idle_timeout(None).max_lifetime(None).connect_lazy_with(options))
        }
        AnyPool::Postgres(pool) => {
            let options = pool.connect_options().as_ref().clone();
            let options = match place {
                Elsewhere::Port(port) => options.host("127.0.0.1").port(port),
                Elsewhere::Host(host) => options.host(host),
                Elsewhere::Database(name) => options.database(name),
            };
            AnyPool::Postgres(PgPoolOptions::new().idle_timeout(None).max_lifetime(None).connect_lazy_with(options))
        }
        AnyPool::Sqlite(_) => unreachable!("a file is nowhere else"),
    }
}
