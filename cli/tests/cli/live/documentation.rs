//! The simulations in `docs/cli.md` show what the CLI prints and draws.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use uuid::Uuid;

#[test]
fn documented_commands_print_and_draw_what_is_shown() -> anyhow::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = std::fs::read_to_string(docs.join("cli.md"))?;
    let blocks = text.split("```text\n$ ").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let shown: Vec<&str> = blocks.filter(|block| block.contains("tollgate simulate ")).collect();
    ensure!(shown.len() >= 3, "docs/cli.md shows {} simulations", shown.len());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(Uuid::new_v4().to_string());
    std::fs::create_dir_all(directory.join("docs/pictures"))?;
    for block in shown {
        let end = block.match_indices('\n').map(|(at, _)| at).find(|&at| !block[..at].ends_with('\\'));
        let (command, expected) = block.split_at(end.context("a command is a line")? + 1);
        assert_eq!(shell(&directory, command)?, expected, "of {command}");
    }
    let mut pictures = 0;
    for picture in std::fs::read_dir(directory.join("docs/pictures"))? {
        let name = picture?.file_name().into_string().ok().context("a name")?;
        ensure!(text.contains(&format!("](pictures/{name})")), "docs/cli.md does not show {name}");
        let (kept, drawn) = (docs.join("pictures").join(&name), directory.join("docs/pictures").join(&name));
        let same = std::fs::read_to_string(kept)? == std::fs::read_to_string(drawn)?;
        ensure!(same, "docs/pictures/{name} is another: run the command that docs/cli.md shows");
        pictures += 1;
    }
    ensure!(pictures > 0, "docs/cli.md draws no picture");
    Ok(())
}

/// Runs a command in a directory, and returns its output.
fn shell(directory: &Path, command: &str) -> anyhow::Result<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().context("a binary lies in a directory")?;
    let path = format!("{}:{}", program.display(), std::env::var("PATH")?);
    let output = Command::new("sh").args(["-c", command]).env("PATH", path).current_dir(directory).output()?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
