//! One file for each migration, in the directory of another tool.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use chrono::{NaiveDateTime, TimeDelta, Utc};
use tollgate::Migration;

use super::script::{self, Dialect, Format};
use crate::exit::Refusal;
use crate::output::{counted, say};

/// Writes those that the directory does not have yet, under versions that come after all that are there.
pub(super) fn write(
    directory: &Path,
    format: Format,
    dialect: Dialect,
    migrations: &[Migration],
) -> anyhow::Result<()> {
    let cannot = |error| {
        let message = format!("cannot write into {}: {error}", directory.display());
        Refusal::unwritable(message, "name a directory that this user may write: --into migrations")
    };
    fs::create_dir_all(directory).map_err(cannot)?;
    let mut there = Vec::new();
    for entry in fs::read_dir(directory).map_err(cannot)? {
        there.push(entry.map_err(cannot)?.file_name().to_string_lossy().into_owned());
    }
    let newest = there.iter().filter_map(|file| version(file)).max();
    let missing: Vec<_> = migrations
        .iter()
        .map(|migration| (migration, format!("tollgate_{}.sql", migration.name())))
        .filter(|(_, name)| !there.iter().any(|file| file.ends_with(&format!("_{name}"))))
        .collect();
    let written = missing.len();
    // All are over, so that whoever makes a migration of their own meets none of them.
    let started = Utc::now().naive_utc() - TimeDelta::seconds(i64::try_from(written).unwrap_or(0));
    let mut next = number(started).max(newest.map_or(0, after));
    for (migration, name) in &missing {
        let file = match format {
            Format::Flyway => format!("V{next}__{name}"),
            _ => format!("{next}_{name}"),
        };
        let path = directory.join(file);
        put(&path, &script::file(format, dialect, migration)).map_err(cannot)?;
        say(path.display().to_string())?;
        next = after(next);
    }
    say(format!("{} written, {} were there", counted(written, "file"), migrations.len() - written))?;
    Ok(())
}

/// The version that a migration's file is named by, for any of the tools; of Flyway's 1.2, the 1.
fn version(file: &str) -> Option<i64> {
    let Some((name, "go" | "sql")) = file.rsplit_once('.') else { return None };
    let name = name.strip_prefix(['B', 'V']).unwrap_or(name);
    name.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// A second later, if the version is a time; else the next number.
fn after(version: i64) -> i64 {
    let time = NaiveDateTime::parse_from_str(&version.to_string(), TIME).ok();
    let later = time.and_then(|time| time.checked_add_signed(TimeDelta::seconds(1))).map_or(0, number);
    later.max(version.saturating_add(1))
}

fn number(time: NaiveDateTime) -> i64 {
    time.format(TIME).to_string().parse().unwrap_or(0)
}

/// Writes a file whole or not at all: a tool would run what a full disk has left of it.
fn put(path: &Path, text: &str) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&unfinished, path));
    if renamed.is_err() {
        // If it cannot be removed: no tool takes it for a migration.
        let _ = fs::remove_file(&unfinished);
    }
    renamed
}

const TIME: &str = "%Y%m%d%H%M%S";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_what_the_tools_order_files_by() {
        for (file, expected) in [
            ("20260131235959_users.sql", Some(20_260_131_235_959)),
            ("00012_users.go", Some(12)),
            ("7_users.up.sql", Some(7)),
            ("V7__users.sql", Some(7)),
            ("V7.1__users.sql", Some(7)),
            ("B8__users.sql", Some(8)),
            ("R__users.sql", None),
            ("users.sql", None),
            ("20260131235959_users.sql.tmp", None),
            ("20260131 notes.txt", None),
            ("99999999999999999999_users.sql", None),
        ] {
            assert_eq!(version(file), expected, "{file}");
        }
    }

    #[test]
    fn after_a_time_comes_the_next_second_and_after_a_number_the_next_one() {
        for (version, expected) in [
            (20_260_131_235_958, 20_260_131_235_959),
            (20_261_231_235_959, 20_270_101_000_000),
            (99_999_999_999_999, 100_000_000_000_000),
            (7, 8),
            (i64::MAX, i64::MAX),
        ] {
            assert_eq!(after(version), expected, "{version}");
        }
    }
}
