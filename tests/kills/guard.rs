//! Removes directories and servers when this process ends, in any way.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;
use uuid::Uuid;

/// A directory and the servers in it. A second process removes both when the guard is dropped or this process has ended.
pub struct Guard {
    directory: PathBuf,
    cleaner: Child,
    open_input: Option<ChildStdin>,
}

impl Guard {
    pub fn new() -> anyhow::Result<Self> {
        let directory = std::env::temp_dir().join(format!("tollgate-kills-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&directory)?;
        let mut cleaner = Command::new("bash")
            .args(["-c", CLEAN_UP, "guard", SCRIPT])
            .arg(&directory)
            .env("TOLLGATE_SERVERS_DIR", directory.join("servers"))
            // A signal to the group of this process does not reach the cleaner.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("bash is needed")?;
        let open_input = cleaner.stdin.take();
        Ok(Self { directory, cleaner, open_input })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Returns the command `scripts/servers`, for servers in this directory.
    pub fn servers(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(SCRIPT);
        command.env("TOLLGATE_SERVERS_DIR", self.directory.join("servers"));
        // A server in a container has no process on this host. A server of the user must not be killed.
        command.env("TOLLGATE_SERVERS_NO_DOCKER", "1");
        for engine in ["POSTGRES", "MYSQL", "MARIADB"] {
            command.env_remove(format!("TOLLGATE_{engine}_URL"));
        }
        command
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.open_input.take());
        // On failure, the directory is left among the system's temporary files.
        let _ = self.cleaner.wait();
    }
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/servers");
const CLEAN_UP: &str = r#"read -r; "$1" stop; rm -rf "$2""#;
