//! Child processes of this executable that start at the same time. Each gets orders, and reports its results at the end.
//!
//! Parent and child exchange lines: the orders, `ready`, the start message, and the report.

use std::io::{Write, stdin, stdout};
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The child processes. They stop when this value is dropped.
pub struct Processes(Vec<Process>);

struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Processes {
    /// Starts the processes, and returns when all of them are ready.
    pub async fn start(orders: &[impl Serialize], command: impl Fn() -> Command) -> anyhow::Result<Self> {
        let mut processes = Vec::with_capacity(orders.len());
        for orders in orders {
            let mut process = Process::start(command())?;
            process.send(orders).await?;
            processes.push(process);
        }
        for process in &mut processes {
            ensure!(process.read_line().await? == "ready", "a process is not ready");
        }
        Ok(Self(processes))
    }

    /// Kills the processes, and returns when they have ended.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        for process in &mut self.0 {
            process.child.kill().await?;
        }
        Ok(())
    }

    /// Sends the start message, and returns the reports.
    pub async fn run<R: DeserializeOwned>(mut self, start_message: &impl Serialize) -> anyhow::Result<Vec<R>> {
        for process in &mut self.0 {
            process.send(start_message).await?;
        }
        let mut reports = Vec::with_capacity(self.0.len());
        for mut process in self.0 {
            reports.push(serde_json::from_str(&process.read_line().await?)?);
            ensure!(process.child.wait().await?.success(), "a process failed");
        }
        Ok(reports)
    }
}

impl Process {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let input = child.stdin.take().context("its input was asked for")?;
        let output = child.stdout.take().context("its output was asked for")?;
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    async fn send(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        let line = serde_json::to_string(message)? + "\n";
        Ok(self.input.write_all(line.as_bytes()).await?)
    }

    async fn read_line(&mut self) -> anyhow::Result<String> {
        self.output.next_line().await?.context("a process ended early")
    }
}

/// Reads the next message in a child process: first its orders, then the start message.
pub fn receive<T: DeserializeOwned>() -> anyhow::Result<T> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Reports that a child process is ready, and waits for the start message.
pub fn ready<T: DeserializeOwned>() -> anyhow::Result<T> {
    writeln!(stdout(), "ready")?;
    receive()
}

/// Sends the report of a child process.
pub fn report(report: &impl Serialize) -> anyhow::Result<()> {
    Ok(writeln!(stdout(), "{}", serde_json::to_string(report)?)?)
}
