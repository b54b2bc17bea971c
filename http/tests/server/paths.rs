//! The example with a sliding window for each path, called by one client and by many.

use anyhow::Context;
use axum::http::StatusCode;
use uuid::Uuid;

use super::client::Client;
use super::exact::{ask_all, count};
use super::process::{OwnDatabase, Process, SERVERS};

#[tokio::test(flavor = "multi_thread")]
async fn http_path_window_limits_each_path_by_itself() -> anyhow::Result<()> {
    limits_each_path_by_itself("sqlite::memory:").await
}

#[tokio::test(flavor = "multi_thread")]
async fn http_path_window_limits_each_path_by_itself_on_every_server() -> anyhow::Result<()> {
    for variable in SERVERS {
        let database = OwnDatabase::create_on(variable).await?;
        limits_each_path_by_itself(&database.url).await.context(variable)?;
        database.drop().await?;
    }
    Ok(())
}

async fn limits_each_path_by_itself(url: &str) -> anyhow::Result<()> {
    let server = Process::start("http_path_window", &[url, "127.0.0.1:0"]).await?;
    let client = Client::new(server.address);
    for path in ["/search", "/upload?file=1"] {
        for n in 0..100 {
            assert_eq!(client.get(path).await?.status, StatusCode::OK, "{path} {n}");
        }
        let denied = client.get(path).await?;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(denied.header("ratelimit-policy")?, Some("\"path\";q=100;w=60"));
        let again = denied.retry_after()?;
        assert!((1..=65).contains(&again), "{again}");
    }
    Ok(())
}

/// Concurrent requests get as many grants as sequential ones.
#[tokio::test(flavor = "multi_thread")]
async fn http_path_window_serves_a_hundred_over_sixteen_connections() -> anyhow::Result<()> {
    let server = Process::start("http_path_window", &["sqlite::memory:", "127.0.0.1:0"]).await?;
    let mut statuses = ask_all(&[server.address], 16, 20).await?;
    // No request is in progress any more. If a request was denied because the answer was pending, these pass instead.
    statuses.extend(ask_all(&[server.address], 1, 20).await?);
    assert_eq!(count(&statuses), (100, 240));
    Ok(())
}

/// A process learns of the other's requests at its own next grant, so it exceeds the maximum by at most one.
#[tokio::test(flavor = "multi_thread")]
async fn http_path_window_processes_exceed_by_at_most_one() -> anyhow::Result<()> {
    let file = std::env::temp_dir().join(format!("tollgate-paths-{}.db", Uuid::new_v4()));
    let url = format!("sqlite://{}?mode=rwc", file.display());
    let one = Process::start("http_path_window", &[&url, "127.0.0.1:0"]).await?;
    let two = Process::start("http_path_window", &[&url, "127.0.0.1:0"]).await?;
    let statuses = ask_all(&[one.address, two.address], 1, 120).await?;
    let (served, denied) = count(&statuses);
    assert!((100..=101).contains(&served), "{served} were served");
    assert_eq!(served + denied, 240);
    drop((one, two));
    Ok(std::fs::remove_file(file)?)
}
