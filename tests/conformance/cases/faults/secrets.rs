//! Error messages are logged and shown, so none contains a password.

use std::str::FromStr;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tollgate::{Error, SqlTokenRequester, TokenRequester};

use super::has_server;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::with_pool;
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    list!(Setup { needs: has_server, ..Setup::LAYERED_EVERYWHERE }; no_message_tells_the_password)
}

async fn no_message_tells_the_password(db: TestDb) -> anyhow::Result<()> {
    let (scheme, address) = address(&db)?;
    let refused = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let urls = [
        format!("{scheme}://app:{SECRET}@{refused}/app"),
        format!("{scheme}://app:{SECRET}@no-such-host.invalid/app"),
        // A user that does not exist, a wrong password, and a database that does not exist.
        format!("{scheme}://nobody:{SECRET}@{address}/app"),
        format!("{scheme}://root:{SECRET}@{address}/app"),
        format!("{scheme}://postgres:{SECRET}@{address}/no_such_database"),
    ];
    for url in urls {
        let shown = url.replace(SECRET, "…");
        let pool = lazily(&db, &url)?;
        let (error, requester) = with_pool!(&pool, pool => {
            let requester = SqlTokenRequester::new(pool.clone(), "bucket")?.deadline(Duration::from_millis(300));
            let error = requester.request_token().await.expect_err("nobody is there, or knows the password");
            (error, format!("{requester:?}"))
        });
        assert!(matches!(error, Error::Unavailable(_) | Error::NotPermitted(_)), "{shown}: {error:?}");
        let migrating = with_pool!(&pool, pool => tollgate::migrate(pool).await.map(drop).expect_err("nor here"));
        for text in everything(&error).into_iter().chain(everything(&migrating)).chain([requester]) {
            assert!(!text.contains(SECRET), "{shown}: {}", text.replace(SECRET, "[the password]"));
        }
    }
    Ok(())
}

/// All texts that an application can print for an error.
fn everything(error: &Error) -> Vec<String> {
    let mut texts = vec![format!("{error:?}"), format!("{error:#?}")];
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        texts.extend([error.to_string(), format!("{error:?}")]);
        next = error.source();
    }
    texts
}

/// The engine's own address, without its user.
fn address(db: &TestDb) -> anyhow::Result<(&'static str, String)> {
    let scheme = if db.engine.kind == Kind::Postgres { "postgres" } else { "mysql" };
    let url = db.engine.url()?;
    let (_, rest) = url.split_once('@').ok_or_else(|| anyhow::anyhow!("a URL with a user"))?;
    Ok((scheme, rest.split('/').next().unwrap_or(rest).to_owned()))
}

fn lazily(db: &TestDb, url: &str) -> anyhow::Result<AnyPool> {
    let patience = Duration::from_millis(300);
    Ok(match db.engine.kind {
        Kind::MySql => AnyPool::MySql(
            MySqlPoolOptions::new()
                .idle_timeout(None)
                .max_lifetime(None)
                .acquire_timeout(patience)
                .connect_lazy_with(MySqlConnectOptions::from_str(url)?),
        ),
        Kind::Postgres => AnyPool::Postgres(
            PgPoolOptions::new()
                .idle_timeout(None)
                .max_lifetime(None)
                .acquire_timeout(patience)
                .connect_lazy_with(PgConnectOptions::from_str(url)?),
        ),
        Kind::Sqlite => anyhow::bail!("a file has no password"),
    })
}

const SECRET: &str = "hunter2-secret";
