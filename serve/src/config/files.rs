//! Reads the configuration files of a directory.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::ConfigError;

/// The texts of the files of a configuration, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sources(pub(super) Vec<(PathBuf, String)>);

impl Sources {
    /// Reads a file, or all files of a directory.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut files = Vec::new();
        find(path, 0, &mut files).map_err(|error| unreadable(path, &error))?;
        if files.is_empty() {
            return Err(ConfigError::new("no file ends with .yaml or .yml: name another directory").in_file(path));
        }
        files.sort();
        files.into_iter().map(|file| Ok((file.clone(), text(&file)?))).collect::<Result<_, _>>().map(Self)
    }
}

fn find(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !fs::metadata(path)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        // Kubernetes mounts a file as a link into a directory whose name begins with two dots.
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if !is_hidden && (is_yaml || depth < MAX_DEPTH && fs::metadata(&path)?.is_dir()) {
            find(&path, depth + 1, files)?;
        }
    }
    Ok(())
}

fn text(file: &Path) -> Result<String, ConfigError> {
    let size = fs::metadata(file).map_err(|error| unreadable(file, &error))?.len();
    if size > MAX_SIZE {
        return Err(
            ConfigError::new(format!("{size} bytes are too many: split files of more than 4 MiB")).in_file(file)
        );
    }
    fs::read_to_string(file).map_err(|error| unreadable(file, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
    ConfigError::new(format!("cannot be read: {error}")).in_file(path)
}

const MAX_DEPTH: usize = 8;
const MAX_SIZE: u64 = 4 << 20;
