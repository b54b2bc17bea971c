//! The program under a pseudo terminal, which `script` of util-linux makes.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::command::SECRET;
use crate::databases::Database;

pub(crate) struct Pty {
    script: Child,
    screen: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
    pid: std::path::PathBuf,
}

impl Pty {
    /// Starts the program in a terminal of 120 columns, with arguments as a shell reads them.
    pub(crate) fn start(database: &Database, arguments: &str) -> anyhow::Result<Self> {
        Self::start_by(database, "", arguments)
    }

    /// Has another program start it.
    pub(crate) fn start_by(database: &Database, starter: &str, arguments: &str) -> anyhow::Result<Self> {
        let (program, pid) = (env!("CARGO_BIN_EXE_tollgate"), database.directory.join("pid"));
        let shell = format!("stty rows 24 cols 120; echo $$ > {}; exec {starter} {program} {arguments}", pid.display());
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &shell, "/dev/null"])
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .env("DATABASE_URL", &database.url)
            .current_dir(&database.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("script is absent: install util-linux (Debian: bsdutils)")?;
        let mut output = script.stdout.take().expect("piped");
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&screen);
        let reading = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut part) {
                shared.lock().expect("no panic").extend_from_slice(&part[..read]);
            }
        });
        Ok(Self { script, screen, reading, pid })
    }

    /// Waits until the terminal was sent a text.
    pub(crate) fn shows(&self, text: &str) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while !self.sent().contains(text) {
            if Instant::now() > until {
                self.kill("KILL")?;
                bail!("no {text:?} in {:?}", self.sent());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub(crate) fn press(&mut self, keys: &str) -> anyhow::Result<()> {
        let stdin = self.script.stdin.as_mut().context("it is open")?;
        stdin.write_all(keys.as_bytes())?;
        Ok(stdin.flush()?)
    }

    /// Sends the program a signal.
    pub(crate) fn kill(&self, signal: &str) -> anyhow::Result<()> {
        let pid = std::fs::read_to_string(&self.pid)?;
        let killed = Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status()?;
        anyhow::ensure!(killed.success(), "kill: {killed}");
        Ok(())
    }

    /// Waits until the program has ended; what the terminal was sent, and how it ended.
    pub(crate) fn end(mut self) -> anyhow::Result<(String, ExitStatus)> {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.script.try_wait()? {
                break status;
            }
            if Instant::now() > until {
                self.script.kill()?;
                bail!("it did not end: {:?}", self.sent());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        let sent = String::from_utf8_lossy(&self.screen.lock().expect("no panic")).into_owned();
        assert!(!sent.contains(SECRET), "a password is shown");
        Ok((sent, status))
    }

    fn sent(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("no panic")).into_owned()
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
