//! The text of the files in `migrations/`: each object is created before its use, and each file enters itself in the ledger.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, ensure};

const ENGINES: [(&str, &str); 3] =
    [("postgres", "tollgate.migrations"), ("mysql", "token_migrations"), ("sqlite", "token_migrations")];

#[test]
fn objects_are_created_before_they_are_used() -> anyhow::Result<()> {
    for (engine, _) in ENGINES {
        let mut created: HashMap<&str, usize> = HashMap::new();
        let files = files(engine)?;
        let lines: Vec<String> = files.iter().flat_map(|(_, text)| text.lines().map(code)).collect();
        for (at, line) in lines.iter().enumerate() {
            created.extend(created_by(line).map(|name| (name, at)).filter(|(name, _)| !created.contains_key(name)));
        }
        ensure!(created.len() > 10, "{engine}: only {created:?}");
        for (at, line) in lines.iter().enumerate() {
            if line.starts_with("drop ") {
                continue;
            }
            for name in used_by(line, engine) {
                let forward = created.get(name).is_some_and(|created| *created > at);
                ensure!(!forward, "{engine}: {name} is used before it is created:\n{line}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_file_enters_itself_in_the_ledger_at_its_end() -> anyhow::Result<()> {
    for (engine, ledger) in ENGINES {
        for (at, (name, text)) in files(engine)?.into_iter().enumerate() {
            let version = at + 1;
            ensure!(name.starts_with(&format!("{version:04}_")), "{engine}: {name} is number {version}");
            let last = text.lines().last().context("a file has lines")?;
            let record = format!("insert into {ledger} (version, name) values ({version}, '{name}') on ");
            ensure!(last.starts_with(&record), "{engine}: {name} ends with {last}");
        }
    }
    Ok(())
}

#[test]
fn engines_name_the_files_of_a_topic_alike() -> anyhow::Result<()> {
    let names = |engine| files(engine).map(|files| files.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
    assert_eq!(names("postgres")?, names("mysql")?);
    Ok(())
}

/// A plan without an alternative costs 10^10 where scans are off, which starts PostgreSQL's compiler at each execution.
#[test]
fn routines_without_scans_are_not_compiled() -> anyhow::Result<()> {
    let mut checked = 0;
    for (name, text) in files("postgres")? {
        for routine in text.split("create or replace function ").skip(1) {
            let settings =
                routine.split(" as $$").next().unwrap_or_default().split("\nas $$").next().unwrap_or_default();
            if settings.contains("\nset enable_seqscan = off") {
                let routine = routine.lines().next().unwrap_or_default();
                ensure!(settings.contains("\nset jit = off"), "{name}: {routine} needs `set jit = off`, too");
                checked += 1;
            }
        }
    }
    ensure!(checked > 3, "only {checked} routines are without scans");
    Ok(())
}

/// The routines that Citus gets instead of PostgreSQL's have the same arguments and results, or `create or replace` would fail.
#[test]
fn citus_replaces_routines_under_their_own_signatures() -> anyhow::Result<()> {
    let heads = |text: &str| -> Vec<String> {
        let bodies = text.split("create or replace function ").skip(1);
        bodies.filter_map(|routine| Some(routine.split_once("\nlanguage ")?.0.to_owned())).collect()
    };
    let postgres: Vec<String> = files("postgres")?.iter().flat_map(|(_, text)| heads(text)).collect();
    let citus: Vec<String> = files("citus")?.iter().flat_map(|(_, text)| heads(text)).collect();
    ensure!(citus.len() > 3, "only {citus:?}");
    for head in citus {
        ensure!(postgres.contains(&head), "PostgreSQL has no routine\n{head}");
    }
    Ok(())
}

/// Returns the name of the object that a line creates.
fn created_by(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("create ")?.split([' ', '(']);
    words.find(|word| ["function", "procedure", "table", "type", "view"].contains(word))?;
    let name = words.find(|word| !["if", "not", "exists"].contains(word))?;
    Some(name.rsplit('.').next().unwrap_or(name))
}

/// Returns the words in a line that can name an object. On PostgreSQL, returns only the names in tollgate's schema.
fn used_by<'a>(line: &'a str, engine: &str) -> Vec<&'a str> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let name = |text: &'a str| text.split(|letter| !is_of_name(letter)).next().unwrap_or_default();
    if engine == "postgres" {
        return line.split("tollgate.").skip(1).map(name).collect();
    }
    line.split(|letter| !is_of_name(letter)).collect()
}

/// Removes comments and string literals, because they can name any object.
fn code(line: &str) -> String {
    line.split("--").next().unwrap_or_default().split('\'').step_by(2).collect()
}

/// Returns the names and the texts of an engine's files, in order.
fn files(engine: &str) -> anyhow::Result<Vec<(String, String)>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(engine);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).context("names are ASCII")?;
        files.push((name.to_owned(), std::fs::read_to_string(&path)?));
    }
    files.sort();
    ensure!(files.len() >= 3, "{engine}: {files:?}");
    Ok(files)
}
