//! A server that the tests kill and restart.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::database::{Database, Engine};
use crate::guard::Guard;
use crate::process;

pub struct Server {
    engine: Engine,
    url: String,
    command: Vec<String>,
    owner: (u32, u32),
    /// The directory in which `scripts/servers` keeps the pid.
    state: PathBuf,
    child: Option<Child>,
    // Dropped last, because it stops the child.
    guard: Guard,
}

impl Server {
    /// Installs and starts a server with an empty data directory.
    pub async fn start(engine: Engine) -> anyhow::Result<Self> {
        let guard = Guard::new()?;
        let started = guard.servers().args(["start", engine.name()]).output().await?;
        let stderr = String::from_utf8_lossy(&started.stderr);
        ensure!(started.status.success(), "{} does not start:\n{stderr}", engine.name());
        let state = guard.path().join("servers").join(engine.name());
        let recorded = |key| anyhow::Ok(fs::read_to_string(state.join(key)).context(key)?.trim_end().to_owned());
        let pid = recorded("pid")?.parse()?;
        let (command, owner) = (process::command_line(pid)?, process::owner(pid)?);
        let mut server =
            Self { engine, url: recorded("url")?, command, owner, state: state.clone(), child: None, guard };
        server.kill().await?;
        // The pid in the lock files is in use until the server's parent, which is not this process, reads the exit status.
        let data = PathBuf::from(recorded("data")?);
        for lock in ["postmaster.pid", "db/socket.lock"] {
            match fs::remove_file(data.join(lock)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => bail!(error),
                _ => {}
            }
        }
        server.restart()?;
        Ok(server)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Kills the server and all its processes.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        let pid = fs::read_to_string(self.state.join("pid"))?.trim_end().parse()?;
        ensure!(!process::has_ended(pid), "it has ended already:\n{}", self.log());
        let pids = process::kill(pid)?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        while !pids.iter().copied().all(process::has_ended) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Starts the server again, with the same arguments and data.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        let log = File::create(self.log_file())?;
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .args(self.engine.fast_start())
            .env("LC_ALL", "C")
            .current_dir("/")
            .uid(self.owner.0)
            .gid(self.owner.1)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        fs::write(self.state.join("pid"), format!("{}\n", child.id()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Connects once the server has recovered.
    pub async fn connect(&mut self) -> anyhow::Result<Database> {
        let recovered = tokio::time::timeout(RECOVERY_TIMEOUT, self.recovered()).await;
        recovered.unwrap_or_else(|_| bail!("it does not recover:\n{}", self.log()))
    }

    async fn recovered(&mut self) -> anyhow::Result<Database> {
        loop {
            let error = match Database::open(self.engine, &self.url).await {
                Ok(database) => return Ok(database),
                Err(error) => error,
            };
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            ensure!(ended.is_none(), "it has ended, after {error}:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn log_file(&self) -> PathBuf {
        self.guard.path().join("servers/log").join(format!("{}.log", self.engine.name()))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_else(|error| error.to_string())
    }
}

/// Long enough for the slowest machine.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);
