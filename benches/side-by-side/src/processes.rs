//! Runs other processes that make calls: workers of this program, or node.

use std::env;
use std::io::{Write as _, stdin, stdout};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::sleep;

use crate::cpu;
use crate::drive::Plan;
use crate::pace::{Pace, Paced};
use crate::peer::{Later, Opened};
use crate::sample::Sample;
use crate::scene::Scene;
use crate::server::Server;
use crate::system::System;
use crate::workload::Workload;

/// Processes that print `ready`, start when they read `go`, and then print a [`Sample`].
pub(crate) struct Driver {
    processes: u32,
    command: Box<ToCommand>,
}

type ToCommand = dyn Fn(&Plan) -> anyhow::Result<Command> + Send + Sync;

impl Driver {
    /// Starts the scene's number of processes of this program.
    pub(crate) fn workers(system: System, scene: &Scene) -> Self {
        let (scene, processes) = (scene.clone(), scene.processes);
        let command = move |plan: &Plan| {
            let job = Job {
                system: system.to_string(),
                workload: scene.workload.name.to_owned(),
                run: scene.run.clone(),
                keys: scene.keys(),
                tasks: plan.tasks,
                warm_up: plan.warm_up,
                time: plan.time,
            };
            let mut command = Command::new(env::current_exe()?);
            command.arg("--worker").arg(serde_json::to_string(&job)?);
            Ok(command)
        };
        Self { processes, command: Box::new(command) }
    }

    /// Runs rate-limiter-flexible from the directory in `TOLLGATE_FLEXIBLE`.
    pub(crate) fn node(scene: &Scene) -> anyhow::Result<Self> {
        let modules = env::var("TOLLGATE_FLEXIBLE").context("TOLLGATE_FLEXIBLE names no directory")?;
        let (scene, url) = (scene.clone(), Server::Postgres.database(&scene.run)?);
        let command = move |plan: &Plan| {
            let job = serde_json::json!({
                "url": url,
                "prefix": format!("{}:{}:", scene.run, scene.workload.bucket_limits.name),
                "keys": scene.keys(),
                "sequence": &plan.sequence[..plan.sequence.len().min(20_000)],
                "tasks": plan.tasks,
                "warmUp": plan.warm_up.as_millis(),
                "time": plan.time.as_millis(),
                "capacity": scene.workload.bucket_limits.capacity,
            });
            let mut command = Command::new("node");
            command.arg("-e").arg(FLEXIBLE).env("NODE_PATH", &modules).env("TOLLGATE_JOB", job.to_string());
            Ok(command)
        };
        Ok(Self { processes: 1, command: Box::new(command) })
    }
}

impl Opened for Driver {
    fn measure(&self, plan: Plan) -> Later<'_, anyhow::Result<Sample>> {
        Box::pin(async move {
            let mut workers = Vec::new();
            for _ in 0..self.processes {
                workers.push(Worker::start((self.command)(&plan)?)?);
            }
            for worker in &mut workers {
                worker.ready().await?;
            }
            for worker in &mut workers {
                worker.go().await?;
            }
            sleep(plan.warm_up).await;
            let before = plan.server.and_then(cpu::of_server);
            sleep(plan.time).await;
            let after = plan.server.and_then(cpu::of_server);

            let mut sum = Sample::default();
            for worker in workers {
                sum = sum.and(worker.sample().await?);
            }
            sum.server = after.zip(before).map(|(after, before)| after - before);
            Ok(sum)
        })
    }

    fn pace(&self, _: Pace) -> Later<'_, anyhow::Result<Paced>> {
        Box::pin(async { bail!("processes ask as fast as they can") })
    }

    fn close(self: Box<Self>) -> Later<'static, ()> {
        Box::pin(async {})
    }
}

/// The job of a worker of this program.
#[derive(Debug, Deserialize, Serialize)]
struct Job {
    system: String,
    workload: String,
    run: String,
    keys: u32,
    tasks: usize,
    warm_up: Duration,
    time: Duration,
}

/// Runs the job of a worker.
pub(crate) async fn work(job: &str) -> anyhow::Result<()> {
    let job: Job = serde_json::from_str(job)?;
    let workload = Workload::named(&job.workload)?;
    let scene = Scene::new(workload, &job.run, job.keys);
    let opened = job.system.parse::<System>()?.open(&scene).await?;
    let plan = Plan {
        tasks: job.tasks,
        warm_up: job.warm_up,
        time: job.time,
        sequence: workload.popularity.draw(scene.keys(), std::process::id().into()).into(),
        keys: scene.keys(),
        server: None,
        noted: false,
    };
    println!("ready");
    stdout().flush()?;
    stdin().read_line(&mut String::new())?;
    println!("{}", serde_json::to_string(&opened.measure(plan).await?)?);
    opened.close().await;
    Ok(())
}

/// A started process. It ends when dropped.
struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("a worker process cannot be started")?;
        let stdout = child.stdout.take().context("it has an output")?;
        Ok(Self { child, lines: BufReader::new(stdout).lines() })
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let line = self.lines.next_line().await?;
        ensure!(line.as_deref() == Some("ready"), "a worker process ended at its start; its reason is further up");
        Ok(())
    }

    async fn go(&mut self) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("it has an input")?;
        stdin.write_all(b"go\n").await?;
        Ok(stdin.flush().await?)
    }

    async fn sample(mut self) -> anyhow::Result<Sample> {
        let line = self.lines.next_line().await?.context("a worker process ended; its reason is further up")?;
        let sample = serde_json::from_str(&line)?;
        self.child.wait().await?;
        Ok(sample)
    }
}

const FLEXIBLE: &str = include_str!("../flexible/driver.js");
