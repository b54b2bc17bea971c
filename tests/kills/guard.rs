//! What goes with this process, however it ends.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;
use uuid::Uuid;

/// A directory, and the servers in it. A process beside this one clears up when this one has let go of it or has ended.
pub struct Guard {
    directory: PathBuf,
    beside: Child,
    held: Option<ChildStdin>,
}

impl Guard {
    pub fn new() -> anyhow::Result<Self> {
        let directory = std::env::temp_dir().join(format!("tollgate-kills-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&directory)?;
        let mut beside = Command::new("bash")
            .args(["-c", CLEAR_UP, "guard", SCRIPT])
            .arg(&directory)
            .env("TOLLGATE_SERVERS_DIR", directory.join("servers"))
            // Whoever ends this process with its group does not end that one.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("bash is needed")?;
        let held = beside.stdin.take();
        Ok(Self { directory, beside, held })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// `scripts/servers`, for servers in this directory.
    pub fn servers(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(SCRIPT);
        command.env("TOLLGATE_SERVERS_DIR", self.directory.join("servers"));
        // A server in a container has no process here, and one of the user's is nobody's to kill.
        command.env("TOLLGATE_SERVERS_NO_DOCKER", "1");
        for engine in ["POSTGRES", "MYSQL", "MARIADB"] {
            command.env_remove(format!("TOLLGATE_{engine}_URL"));
        }
        command
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.held.take());
        // If it fails, the directory is in the system's own for such things.
        let _ = self.beside.wait();
    }
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/servers");
const CLEAR_UP: &str = r#"read -r; "$1" stop; rm -rf "$2""#;
