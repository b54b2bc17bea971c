//! The files beside a SQLite database in WAL mode, `-wal` and `-shm`, which every account that uses it must be able to write.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};

use crate::exit::CliError;

/// Refuses to open a database that has files which this user cannot write, or would get files which the owner cannot write.
/// A read creates them, too.
pub(crate) fn require_shared(file: &Path) -> Result<(), CliError> {
    let Ok(database) = file.metadata() else { return Ok(()) };
    // SQLite gives what root creates to the owner of the database.
    if geteuid().is_root() || !is_wal(file) {
        return Ok(());
    }
    let owner = format!("{}:{}", database.uid(), database.gid());
    let sidecars = ["-wal", "-shm"].map(|end| PathBuf::from(format!("{}{end}", file.display())));
    let existing = sidecars.iter().filter_map(|sidecar| Some((sidecar, sidecar.metadata().ok()?)));
    let existing: Vec<(&PathBuf, Metadata)> = existing.collect();
    if let Some((sidecar, found)) = existing.iter().find(|(sidecar, _)| is_writable(file) && !is_writable(sidecar)) {
        let [wal, shm] = sidecars.each_ref().map(|sidecar| sidecar.display());
        let name = sidecar.display();
        let message = format!("user {} created {name}, and this user may not write it", found.uid());
        let hint = format!("as root, `chown {owner} {wal} {shm}`; {}", layout(file));
        return Err(CliError::database(message, hint));
    }
    if existing.len() < sidecars.len() && !owner_could_write(&database, &directory(file)) {
        let name = file.display();
        let message =
            format!("this user would create {name}-wal and {name}-shm, which the owner of {name} could not write");
        let hint = format!(
            "run this as user {}, or add ?immutable=1 to the URL to read while no program has the file open; {}",
            database.uid(),
            layout(file)
        );
        return Err(CliError::database(message, hint));
    }
    Ok(())
}

/// Whether the owner of a database could write a file that this user creates beside it. SQLite gives the file the
/// permissions of the database.
fn owner_could_write(database: &Metadata, directory: &Path) -> bool {
    let passes_on = |directory: &Metadata| !cfg!(target_os = "linux") || directory.mode() & SET_GROUP != 0;
    let inherited = directory.metadata().ok().filter(passes_on).map(|directory| directory.gid());
    let group = inherited.unwrap_or_else(|| getegid().as_raw());
    geteuid().as_raw() == database.uid()
        || database.mode() & WRITABLE_BY_OTHERS != 0
        || (database.mode() & WRITABLE_BY_GROUP != 0 && group == database.gid())
}

/// How several accounts share a database.
fn layout(file: &Path) -> String {
    let (name, directory) = (file.display(), directory(file));
    // A directory such as /tmp stays as it is.
    if directory.metadata().is_ok_and(|directory| directory.mode() & WRITABLE_BY_OTHERS != 0) {
        return "to share it with a group, move it into a directory of its own".to_owned();
    }
    let directory = directory.display();
    format!("to share it with a group, `chgrp GROUP {directory} {name}; chmod g+w {name}; chmod g+ws {directory}`")
}

fn directory(file: &Path) -> PathBuf {
    match file.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Whether the header of a database says that it is in WAL mode.
fn is_wal(file: &Path) -> bool {
    let mut head = [0; 20];
    File::open(file).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head[18..] == [2, 2]
}

fn is_writable(file: &Path) -> bool {
    OpenOptions::new().write(true).open(file).is_ok()
}

const SET_GROUP: u32 = 0o2000;
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o002;
