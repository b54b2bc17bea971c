//! The examples print what the head of their source shows, and `examples/README.md` links them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use sqlx::Connection;

#[test]
fn examples_print_the_documented_output() -> anyhow::Result<()> {
    let shown = shown()?;
    ensure!(shown.len() >= 8, "the examples show {} outputs", shown.len());
    for (example, output) in shown {
        assert_eq!(run(&example, None)?, output, "of {example}");
    }
    Ok(())
}

#[test]
fn each_example_is_in_the_documentation() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(repository().join("examples/README.md"))?;
    for main in sources()? {
        let link = match main.strip_prefix("examples") {
            Ok(main) => format!("({})", main.display()),
            Err(_) => format!("(../{})", main.display()),
        };
        ensure!(text.contains(&link), "examples/README.md has no link {link}");
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
        for (example, output) in shown()? {
            let printed = run(&example, Some(&url))?;
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
        let text = std::fs::read_to_string(repository().join(format!("examples/{example}.rs")))?;
        let lines = text.lines().skip_while(|line| line.starts_with("//!")).count();
        ensure!(lines < 60, "{example} has {lines} lines");
    }
    Ok(())
}

/// Examples that show one feature each, on any database.
const SMALL: [&str; 6] = ["three_methods", "plans", "sliding_window", "many_limits", "settle", "own_transaction"];

/// The examples that show their output, and the output.
fn shown() -> anyhow::Result<Vec<(String, String)>> {
    let mut shown = Vec::new();
    for main in sources()? {
        let text = std::fs::read_to_string(repository().join(main))?;
        let head = text.lines().map_while(|line| line.strip_prefix("//!"));
        let head: Vec<&str> = head.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let head = head.join("\n");
        if let Some((_, rest)) = head.split_once("```text\n$ cargo run ") {
            let block = rest.split("```").next().unwrap_or_default();
            let (command, output) = block.split_once('\n').context("a command is a line")?;
            let (_, example) = command.rsplit_once("--example ").context("a command names an example")?;
            shown.push((example.to_owned(), output.to_owned()));
        }
    }
    Ok(shown)
}

/// The main files of the examples, relative to the repository.
fn sources() -> anyhow::Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for directory in ["examples", "http/examples"] {
        for entry in std::fs::read_dir(repository().join(directory))? {
            let path = entry?.path();
            let main = if path.is_dir() { path.join("main.rs") } else { path };
            if main.exists() && main.extension().is_some_and(|extension| extension == "rs") {
                sources.push(main.strip_prefix(repository())?.to_owned());
            }
        }
    }
    Ok(sources)
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
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository").to_owned()
}
