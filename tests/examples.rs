//! The examples print what `docs/examples.md` shows.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use sqlx::Connection;

#[test]
fn examples_print_the_documented_output() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(repository().join("docs/examples.md"))?;
    let shown: Vec<(&str, &str)> = blocks(&text).collect();
    ensure!(shown.len() >= 4, "docs/examples.md shows {} outputs", shown.len());
    for (example, output) in shown {
        assert_eq!(run(example, None)?, output, "of {example}");
    }
    Ok(())
}

#[test]
fn each_example_is_in_the_documentation() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(repository().join("docs/examples.md"))?;
    for directory in ["examples", "http/examples"] {
        for entry in std::fs::read_dir(repository().join(directory))? {
            let path = entry?.path();
            let main = if path.is_dir() { path.join("main.rs") } else { path };
            let link = format!("(../{})", main.strip_prefix(repository())?.display());
            ensure!(!main.exists() || text.contains(&link), "docs/examples.md has no link {link}");
        }
    }
    Ok(())
}

/// Each engine runs the examples in a database of its own, which the test drops at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn each_example_prints_the_same_on_every_database() -> anyhow::Result<()> {
    let mut engines = tokio::task::JoinSet::new();
    for variable in ["TOLLGATE_POSTGRES_URL", "TOLLGATE_MYSQL_URL", "TOLLGATE_MARIADB_URL"] {
        let server = std::env::var(variable)
            .with_context(|| format!("{variable} is not set: run scripts/test, or scripts/servers start"))?;
        engines.spawn(async move { on_a_database_of_its_own(&server).await.context(variable) });
    }
    while let Some(engine) = engines.join_next().await {
        engine??;
    }
    Ok(())
}

async fn on_a_database_of_its_own(server: &str) -> anyhow::Result<()> {
    let name = format!("tollgate_examples_{}", uuid::Uuid::new_v4().simple());
    execute(server, format!("create database {name}")).await?;
    let (host, _) = server.rsplit_once('/').context("a URL ends with a database")?;
    let url = format!("{host}/{name}");
    let printed = tokio::task::spawn_blocking(move || {
        let text = std::fs::read_to_string(repository().join("docs/examples.md"))?;
        for (example, output) in blocks(&text) {
            let printed = run(example, Some(&url))?;
            ensure!(printed == output, "{example} prints something else: {printed}");
        }
        anyhow::Ok(())
    });
    let printed = printed.await?;
    execute(server, format!("drop database {name}")).await?;
    printed
}

async fn execute(server: &str, sql: String) -> anyhow::Result<()> {
    let sql = sqlx::AssertSqlSafe(sql);
    if server.starts_with("postgres") {
        sqlx::raw_sql(sql).execute(&mut sqlx::PgConnection::connect(server).await?).await?;
    } else {
        sqlx::raw_sql(sql).execute(&mut sqlx::MySqlConnection::connect(server).await?).await?;
    }
    Ok(())
}

#[test]
fn each_small_example_has_fewer_than_sixty_lines() -> anyhow::Result<()> {
    for example in SMALL {
        let lines = std::fs::read_to_string(repository().join(format!("examples/{example}.rs")))?.lines().count();
        ensure!(lines < 60, "{example} has {lines} lines");
    }
    Ok(())
}

/// Examples that show one feature each, on any database.
const SMALL: [&str; 6] = ["three_methods", "plans", "sliding_window", "many_limits", "settle", "own_transaction"];

/// Returns the blocks that show the output of an example.
fn blocks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("```text\n$ cargo run ").skip(1).filter_map(|rest| {
        let (command, output) = rest.split_once("```")?.0.split_once('\n')?;
        Some((command.rsplit_once("--example ")?.1, output))
    })
}

fn run(example: &str, argument: Option<&str>) -> anyhow::Result<String> {
    // This test is target/<profile>/deps/examples-<hash>.
    let test = std::env::current_exe()?;
    let directory = test.parent().and_then(Path::parent).context("a test lies in a directory")?.join("examples");
    let binary = directory.join(format!("{example}{}", std::env::consts::EXE_SUFFIX));
    ensure!(binary.exists(), "{} is missing: cargo build --all-features --examples", binary.display());
    let output = Command::new(&binary).args(argument).output()?;
    ensure!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
