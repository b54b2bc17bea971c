//! Detects that the database file of a pool was replaced, and closes the connections to the old file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::Pool;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::dialect::Dialect;
use super::retry::{ErrorClass, Failure};
use crate::model::error::FileError;

/// The database file of a pool, which an operator can replace while connections are open.
///
/// The connections would stay on the old file, and grant tokens there that no other process counts. So each call compares
/// the file with the one that the pool opened. If it was replaced, a task closes the connections, and the call fails.
#[derive(Clone, Debug)]
pub(super) struct DatabaseFile(Option<Arc<WatchedFile>>);

#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    opened: Mutex<OpenedFile>,
}

#[derive(Debug, Default)]
struct OpenedFile {
    /// `None` until the file exists.
    id: Option<FileId>,
    /// The task that closes the connections to the file before.
    closing: Option<JoinHandle<()>>,
}

impl DatabaseFile {
    pub(super) fn of<DB: Dialect>(pool: &Pool<DB>) -> Self {
        // Absolute, because the process can change its directory.
        let path = DB::file(&pool.connect_options()).and_then(|path| std::path::absolute(path).ok());
        let opened = |path: &PathBuf| OpenedFile { id: FileId::read(path).ok().flatten(), closing: None };
        Self(path.map(|path| Arc::new(WatchedFile { opened: Mutex::new(opened(&path)), path })))
    }

    /// Returns an error if the file is missing, or if the pool can have connections to the file before.
    pub(super) fn check<DB: Dialect>(&self, pool: &Pool<DB>) -> Result<(), Failure> {
        let Some(file) = &self.0 else { return Ok(()) };
        // SQLite reports a file that this user cannot reach.
        let Ok(found) = FileId::read(&file.path) else { return Ok(()) };
        let mut opened = file.opened.lock();
        if found.is_none() && opened.id.is_some() {
            return Err(Failure::new(ErrorClass::Unavailable, FileError::Missing(file.path.clone())));
        }
        let before = std::mem::replace(&mut opened.id, found);
        if before.is_some() && before != found && pool.size() > 0 {
            if !opened.is_closing() {
                opened.closing = Some(tokio::spawn(close_all(pool.clone())));
            }
            return Err(file.replaced());
        }
        if opened.is_closing() { Err(file.replaced()) } else { Ok(()) }
    }

    /// Returns an error if another call found the file replaced while this one waited for a connection.
    pub(super) fn check_again(&self) -> Result<(), Failure> {
        match &self.0 {
            Some(file) if file.opened.lock().is_closing() => Err(file.replaced()),
            _ => Ok(()),
        }
    }
}

impl WatchedFile {
    fn replaced(&self) -> Failure {
        Failure::new(ErrorClass::Unavailable, FileError::Replaced(self.path.clone()))
    }
}

impl OpenedFile {
    /// Whether the pool can have connections to the file before. A task also ends with its runtime.
    fn is_closing(&self) -> bool {
        self.closing.as_ref().is_some_and(|task| !task.is_finished())
    }
}

/// Closes connections as they become idle, until the pool has none.
async fn close_all<DB: Dialect>(pool: Pool<DB>) {
    let closing = async {
        while pool.size() > 0 {
            match pool.try_acquire() {
                // The file is gone, so an error of closing it does not matter.
                Some(idle) => drop(idle.close().await),
                None => sleep(POLL_INTERVAL).await,
            }
        }
    };
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
}

/// The identity of a file, which a file that replaces it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Reads the identity of a file, if the file exists.
    #[cfg(unix)]
    fn read(path: &std::path::Path) -> std::io::Result<Option<Self>> {
        use std::os::unix::fs::MetadataExt;

        match std::fs::metadata(path) {
            Ok(file) => Ok(Some(Self { device: file.dev(), inode: file.ino() })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An open file cannot be replaced here.
    #[cfg(not(unix))]
    fn read(_: &std::path::Path) -> std::io::Result<Option<Self>> {
        Ok(None)
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How long calls fail while the host keeps connections of its pool in use. Longer than a call of the store by default.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
