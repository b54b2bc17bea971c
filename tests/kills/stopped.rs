//! A server that is stopped while the command line waits for it: it keeps its connections, and answers nothing.

use std::process::{Output, Stdio};

use anyhow::{Context, ensure};
use sqlx::{Connection, PgConnection};
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::database::Engine;
use crate::process;
use crate::server::Server;

/// `tollgate run` in both ways: its command runs by the store's deadline, or it fails by it.
pub async fn who_waits_for_a_server_that_is_stopped_ends_by_the_deadline(program: &str) -> anyhow::Result<()> {
    let mut server = Server::start(Engine::Postgres).await?;
    server.connect().await?.migrate().await?;
    let mut holder = PgConnection::connect(server.url()).await?;
    sqlx::raw_sql("select tollgate.create_bucket('a', 9, 3600)").execute(&mut holder).await?;
    // Both are asking when the server is stopped.
    sqlx::raw_sql("begin; select from tollgate.token_buckets for update").execute(&mut holder).await?;
    let start = |if_unavailable| {
        let mut command = Command::new(program);
        command.args(["run", "a", "--if-unavailable", if_unavailable, "--", "echo", "ran"]).kill_on_drop(true);
        command.env("DATABASE_URL", server.url()).stdin(Stdio::null());
        tokio::spawn(command.output())
    };
    let (runs, fails) = (start("run"), start("fail"));
    let mut looker = PgConnection::connect(server.url()).await?;
    loop {
        let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
        let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut looker).await?;
        if waiting == 2 {
            break;
        }
        ensure!(!runs.is_finished() && !fails.is_finished(), "one of them did not wait");
        tokio::task::yield_now().await;
    }

    let stopped = server.stop()?;
    let ended = async { anyhow::Ok((said(runs).await?, said(fails).await?)) }.await;
    process::signal("CONT", &stopped)?;
    let ((ran, why), (failed, told)) = ended?;
    ensure!(ran == (Some(0), "ran\n".to_owned()), "{ran:?}: {why}");
    ensure!(why.contains("the command runs without a token") && why.contains("is unknown"), "{why}");
    ensure!(failed == (Some(69), String::new()), "{failed:?}: {told}");
    ensure!(told.contains("no answer within 5s"), "{told}");
    Ok(())
}

/// The code and what was printed; and what was said beside.
async fn said(ended: JoinHandle<std::io::Result<Output>>) -> anyhow::Result<((Option<i32>, String), String)> {
    let Output { status, stdout, stderr } = ended.await?.context("it starts")?;
    Ok(((status.code(), String::from_utf8(stdout)?), String::from_utf8(stderr)?))
}
