//! One file for each migration, in the directory of another tool.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tollgate::store::Migration;

use super::script::{self, Format, ScriptDialect};
use super::versions::{self, Version};
use crate::exit::CliError;
use crate::output::say;
use crate::text::counted;

/// Writes the migrations that the directory lacks, with versions after all existing files. Refuses a directory with other files of
/// tollgate, because the tool would run those too.
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
    let named = |migration: &Migration| format!("tollgate_{}.sql", migration.name());
    let mut missing: Vec<_> = migrations.iter().collect();
    for (file, path) in &there {
        let Some(own) = own_name(file) else { continue };
        let migration = migrations.iter().find(|migration| named(migration) == own);
        let migration = migration.filter(|_| versions::is_named_for(format, file));
        let text = migration.map(|migration| script::file(format, dialect, migration));
        let found = fs::read(path).map_err(|error| {
            CliError::unreadable(format!("cannot read {}: {error}", path.display()), "let this user read it")
        })?;
        // Git can change the ends of the lines.
        if text.is_none_or(|text| text != String::from_utf8_lossy(&found).replace("\r\n", "\n")) {
            let message = format!("not a file that this command writes: {}", path.display());
            return Err(CliError::unwritable(message, OTHER_FILE).into());
        }
        missing.retain(|migration| named(migration) != own);
    }
    let is_missing = |migration: &&Migration| missing.iter().any(|other| other.name() == migration.name());
    if let Some(migration) = migrations.iter().rev().skip_while(is_missing).find(is_missing) {
        // Its file would get a version after the others, and run after them.
        let message = format!("a file between the others is missing: {}", named(migration));
        return Err(CliError::unwritable(message, MISSING_FILE).into());
    }
    let files: Vec<_> = there.into_iter().map(|(file, _)| file).collect();
    let mut version = Version::first(format, &files, missing.len());
    for migration in &missing {
        let name = named(migration);
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

const OTHER_FILE: &str = "the file is another engine's, another tool's or another version's, or was changed: name another directory, \
                          or delete all files of tollgate if no database has run them";

const MISSING_FILE: &str = "restore it from version control, or write all files into a new directory: --into DIRECTORY";

/// The part of a file name that names a migration of tollgate, whatever its version.
fn own_name(file: &str) -> Option<&str> {
    let name = &file[file.find("_tollgate_")? + 1..];
    let number = name.strip_prefix("tollgate_")?.strip_suffix(".sql")?.split('_').next()?;
    let is_own = number.len() == 4 && number.bytes().all(|digit| digit.is_ascii_digit());
    is_own.then_some(name)
}

/// The names and paths of the files that the tool finds, in order. Flyway also searches subdirectories that are not hidden.
fn there(directory: &Path, format: Format) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if format == Format::Flyway && !name.starts_with('.') && entry.path().is_dir() {
            found.extend(there(&entry.path(), format)?);
        } else {
            found.push((name, entry.path()));
        }
    }
    found.sort();
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
