//! One file for each migration, in the directory of another tool.

use std::fs;
use std::path::Path;

use chrono::{TimeDelta, Utc};
use tollgate::Migration;

use super::script::{self, Dialect, Format};
use crate::exit::Refusal;
use crate::output::say;

/// Writes those that the directory does not have yet, under versions that come after those of the host's.
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
    let now = Utc::now();
    let mut written = 0;
    for migration in migrations {
        let name = format!("tollgate_{}.sql", migration.name());
        if there.iter().any(|file| file.ends_with(&format!("_{name}"))) {
            continue;
        }
        let version = (now + TimeDelta::seconds(written)).format("%Y%m%d%H%M%S");
        let file = match format {
            Format::Flyway => format!("V{version}__{name}"),
            _ => format!("{version}_{name}"),
        };
        let path = directory.join(file);
        fs::write(&path, script::file(format, dialect, migration)).map_err(cannot)?;
        say(path.display().to_string())?;
        written += 1;
    }
    say(format!("{written} files written, {} were there", migrations.len() - usize::try_from(written)?))?;
    Ok(())
}
