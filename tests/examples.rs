//! The examples print what `docs/examples.md` shows.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

#[test]
fn each_example_prints_what_the_documentation_shows() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(repository().join("docs/examples.md"))?;
    let shown: Vec<(&str, &str)> = blocks(&text).collect();
    ensure!(shown.len() >= 4, "docs/examples.md shows {} outputs", shown.len());
    for (example, output) in shown {
        assert_eq!(run(example)?, output, "of {example}");
    }
    Ok(())
}

#[test]
fn each_example_is_in_the_documentation() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(repository().join("docs/examples.md"))?;
    for entry in std::fs::read_dir(repository().join("examples"))? {
        let path = entry?.path();
        let main = if path.is_dir() { path.join("main.rs") } else { path };
        let link = format!("(../{})", main.strip_prefix(repository())?.display());
        ensure!(!main.exists() || text.contains(&link), "docs/examples.md has no link {link}");
    }
    Ok(())
}

/// The blocks that show the output of an example.
fn blocks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let begin = "```text\n$ cargo run --example ";
    text.split(begin).skip(1).filter_map(|rest| rest.split_once("```")?.0.split_once('\n'))
}

fn run(example: &str) -> anyhow::Result<String> {
    // This test is target/<profile>/deps/examples-<hash>.
    let test = std::env::current_exe()?;
    let directory = test.parent().and_then(Path::parent).context("a test lies in a directory")?.join("examples");
    let binary = directory.join(format!("{example}{}", std::env::consts::EXE_SUFFIX));
    ensure!(binary.exists(), "{} is missing: cargo build --all-features --examples", binary.display());
    let output = Command::new(&binary).output()?;
    ensure!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
