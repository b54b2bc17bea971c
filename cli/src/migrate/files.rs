//! One file for each migration, in the directory of another tool.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use tollgate::store::Migration;

use super::script::{self, Format, ScriptDialect};
use super::versions::Version;
use crate::exit::CliError;
use crate::output::{counted, say};

/// Writes the migrations that the directory lacks, with versions after all existing files.
pub(super) fn write(
    directory: &Path,
    format: Format,
    dialect: ScriptDialect,
    migrations: &[Migration],
) -> anyhow::Result<()> {
    let cannot = |error| {
        let message = format!("cannot write into {}: {error}", directory.display());
        CliError::unwritable(message, "name a directory that this user may write: --into migrations")
    };
    fs::create_dir_all(directory).map_err(cannot)?;
    let there = there(directory, format).map_err(cannot)?;
    let missing: Vec<_> = migrations
        .iter()
        .map(|migration| (migration, format!("tollgate_{}.sql", migration.name())))
        .filter(|(_, name)| !there.iter().any(|file| file.ends_with(&format!("_{name}"))))
        .collect();
    let mut version = Version::first(format, &there, missing.len());
    for (migration, name) in &missing {
        let file = match format {
            Format::Flyway => format!("V{version}__{name}"),
            _ => format!("{version}_{name}"),
        };
        let path = directory.join(file);
        put(&path, &script::file(format, dialect, migration)).map_err(cannot)?;
        say(path.display().to_string())?;
        version = version.next();
    }
    let written = missing.len();
    say(format!("{} written, {} were there", counted(written, "file"), migrations.len() - written))?;
    Ok(())
}

/// The names of the files that the tool finds. Flyway also searches subdirectories that are not hidden.
fn there(directory: &Path, format: Format) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if format == Format::Flyway && !name.starts_with('.') && entry.path().is_dir() {
            found.extend(there(&entry.path(), format)?);
        } else {
            found.push(name);
        }
    }
    Ok(found)
}

/// Writes a file atomically, because a tool would run a file that a full disk truncated.
fn put(path: &Path, text: &str) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&unfinished, path));
    if renamed.is_err() {
        // Ignores a failure: no tool treats a `.tmp` file as a migration.
        let _ = fs::remove_file(&unfinished);
    }
    renamed
}
