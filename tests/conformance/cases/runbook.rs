//! The statements of the runbook run on every engine, with the replacements of its table.

use anyhow::{Context, ensure};
use tollgate::{Admin, Key, Mode, Quota, Rule, Take, admin::Override, store::Maintenance};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(Setup::DEFAULT; runbook_commands_do_what_their_headings_say)
}

async fn runbook_commands_do_what_their_headings_say(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    let [free, good, bad] = ["free", "u42", "u13"].map(|key| Key::try_from(key).expect("short enough"));
    store.create_plan(&free, "10/h".parse()?).await?;
    let take = |key: &Key| Take::from(key.clone()).rule(Rule::Plan(free.clone()));
    ensure!(db.decide(take(&good).cost(10)).await?.is_granted() && !db.decide(take(&good)).await?.is_granted());
    store.count_denials(&[(good.clone(), 1)]).await?;

    run(db, "See").await?;
    run(db, "Explain").await?;
    store.set_override(&good, Override { quota: Some(Quota::once(100)?), ..Override::default() }).await?;
    run(db, "Raise").await?;
    assert_eq!(store.explain(&good, Some(&free)).await?.quota, Some("1000/min".parse()?));
    let _ = db.decide(take(&good)).await?;
    run(db, "Make full").await?;
    ensure!(db.decide(take(&good).cost(1000)).await?.is_granted());
    assert_eq!(store.plan(&free).await?.context("it is there")?.quota, "20/s".parse()?);
    run(db, "Switch off").await?;
    let passed = db.decide(take(&good).cost(1000)).await?;
    ensure!(passed.is_granted() && passed.mode() == Mode::Shadow, "{passed:?}");
    run(db, "Block").await?;
    ensure!(!db.decide(take(&bad)).await?.is_granted());
    run(db, "Undo").await?;
    ensure!(db.decide(take(&bad)).await?.is_granted());
    assert_eq!(db.decide(take(&bad)).await?.mode(), Mode::Enforce);
    ensure!(store.mode().await?.mode == Mode::Enforce && !store.clear_override(&good).await?);
    Ok(())
}

/// Runs the blocks under a heading in this engine's words.
async fn run(db: &TestDb, heading: &str) -> anyhow::Result<()> {
    let (_, rest) = RUNBOOK.split_once(&format!("\n## {heading}\n")).with_context(|| heading.to_owned())?;
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let blocks: Vec<&str> = section.split("```sql\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    ensure!(!blocks.is_empty(), "{heading} has no SQL");
    for block in blocks {
        let sql = replacements(db.engine.kind)?.iter().fold(block.to_owned(), |sql, (from, to)| sql.replace(from, to));
        ensure!(db.engine.kind == Kind::Postgres || !sql.contains("tollgate."), "{heading}: {sql}");
        db.pool.run(&sql).await.with_context(|| format!("{heading}: {sql}"))?;
    }
    Ok(())
}

/// PostgreSQL's words in the runbook's table, each with this engine's.
fn replacements(kind: Kind) -> anyhow::Result<Vec<(&'static str, &'static str)>> {
    let column = match kind {
        Kind::Postgres => 0,
        Kind::MySql => 1,
        Kind::Sqlite => 2,
    };
    let (_, rows) =
        RUNBOOK.split_once("| PostgreSQL | MySQL, MariaDB | SQLite |\n|---|---|---|\n").context("a table")?;
    let rows = rows.lines().take_while(|line| line.starts_with('|'));
    let rows = rows.map(|row| row.split('`').skip(1).step_by(2).collect::<Vec<_>>());
    rows.map(|row| Ok((*row.first().context("PostgreSQL")?, *row.get(column).context("this engine")?))).collect()
}

const RUNBOOK: &str = include_str!("../../../docs/runbook.md");
