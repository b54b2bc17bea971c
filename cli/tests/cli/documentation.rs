//! `docs/cli.md` shows what the CLI prints. The `live` tests check its simulations.

use crate::databases::{Database, Engine};

#[test]
fn commands_print_the_documented_output() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md")).expect("it is there");
    let database = Database::empty(Engine::Sqlite);
    let file =
        text.split_once("```toml\n# limits.toml\n").and_then(|(_, rest)| rest.split_once("```")).expect("a file").0;
    std::fs::write(database.directory.join("limits.toml"), file).expect("it is written");
    let mut shown = 0;
    let blocks = text.split("```text\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    for block in blocks.filter(|block| !block.contains("tollgate simulate ")) {
        for command in format!("\n{block}").split("\n$ ").skip(1) {
            let (line, output) = command.split_once('\n').unwrap_or((command, ""));
            assert_eq!(steady(&database.shell(line)), steady(output), "of {line}");
            shown += 1;
        }
    }
    assert!(shown > 12, "{shown} commands");
}

#[test]
fn exit_codes_match_the_help() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md")).expect("it is there");
    let help = Database::empty(Engine::Sqlite).run(&["--help"]).ended(0).out;
    let codes = help.split("Exit codes:\n").nth(1).expect("they are in the help").lines().filter_map(|line| {
        let (code, meaning) = line.trim().split_once("  ")?;
        let is_codes = code.split(", ").all(|code| code.trim_end_matches(" + N").parse::<u8>().is_ok());
        is_codes.then(|| format!("| {code} | {meaning} |"))
    });
    let codes: Vec<_> = codes.collect();
    assert!(codes.len() > 9 && codes.iter().any(|row| row.contains("128 + N")), "{codes:?}");
    let missing: Vec<_> = codes.iter().filter(|row| !text.contains(*row)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Runs all commands except `watch`, one after the other.
#[test]
fn runbook_commands_do_what_their_rows_state() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runbook.md")).expect("it is there");
    let database = Database::migrated(Engine::Sqlite);
    let ends = |line: &str, code: u8| {
        let output = database.shell(&format!("{line}; echo exit $?"));
        assert!(output.trim_end().ends_with(&format!("exit {code}")), "{line}: {output}");
    };
    let (take, take_another) = ("tollgate take u42 --plan free", "tollgate take u13 --plan free");
    ends("tollgate plan set free --quota 1/h", 0);
    ends(take, 0);
    ends(take, 75);

    let rows =
        text.lines().skip_while(|line| *line != "| to | type |").skip(2).take_while(|line| line.starts_with('|'));
    let mut shown = 0;
    for row in rows {
        let commands = row.split('`').skip(1).step_by(2).filter(|command| command.starts_with("tollgate "));
        for command in commands.filter(|command| *command != "tollgate watch") {
            ends(command, 0);
            shown += 1;
        }
        match row.split('|').nth(1).expect("a cell").trim() {
            "raise" => ends(&format!("{take} --max-wait 5s"), 0),
            "make full" => ends(take, 0),
            "switch off" => ends(take_another, 0),
            "block" => ends(take_another, 75),
            "undo" => {
                ends("tollgate mode --clear --key u13", 0);
                ends(take_another, 0);
            }
            _ => {}
        }
    }
    assert_eq!(shown, 11, "commands");
}

/// Removes the parts that differ between runs: times and durations.
fn steady(text: &str) -> String {
    let word = |word: &str| {
        let is_instant = word.len() > 7 && word.chars().all(|c| c.is_ascii_digit() || "-:".contains(c));
        let is_length = ["ns", "µs", "ms"].iter().any(|unit| word.ends_with(unit)) && word.contains('.');
        let is_version = word.starts_with("3.") && word.ends_with(',');
        if is_instant || is_length || is_version { "…".to_owned() } else { word.to_owned() }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    text.trim().lines().map(line).collect::<Vec<_>>().join("\n")
}
