use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::arguments::Arguments;
use crate::books::Books;
use crate::checker::check;
use crate::drive::Plan;
use crate::engine::Written;
use crate::peers::redis;
use crate::popularity::Popularity;
use crate::processes::Driver;
use crate::scene::Scene;
use crate::server::Server;
use crate::statistics::{Measured, Row, Statistics};
use crate::system::{Kind, System};
use crate::venues::Venues;
use crate::workload::{Expect, Workload};

/// Lets the systems under test take turns in each workload.
pub(crate) struct Turns<'a> {
    arguments: &'a Arguments,
    venues: &'a Venues,
    run: &'a str,
    /// The number of existing buckets, by system under test and kind of bucket.
    loaded: BTreeMap<(System, &'static str), u32>,
}

impl<'a> Turns<'a> {
    pub(crate) fn new(arguments: &'a Arguments, venues: &'a Venues, run: &'a str) -> Self {
        Self { arguments, venues, run, loaded: BTreeMap::new() }
    }

    pub(crate) async fn measure(&mut self, workload: &'static Workload) -> anyhow::Result<Measured> {
        let scene = Scene::new(workload, self.run, self.arguments.keys());
        let mut measured = Measured {
            workload: workload.name,
            about: workload.about,
            keys: if workload.popularity == Popularity::One { 1 } else { scene.keys() },
            commits: if workload.durable { "on the disk" } else { "soon on the disk, or never" },
            denials_cached: workload.denials_cached,
            absent: Vec::new(),
            broken: Vec::new(),
            rows: Vec::new(),
        };
        let mut systems = Vec::new();
        for system in System::all(workload, &self.arguments.engines) {
            let wanted = |name: &String| system.to_string().contains(name.as_str());
            if system.kind != Kind::Redis && !self.arguments.only.is_empty() && !self.arguments.only.iter().any(wanted)
            {
                continue;
            }
            match system.missing() {
                Some(reason) => measured.absent.push(format!("{system}: {reason}")),
                None => systems.push(system),
            }
        }
        self.venues.set_durable(false).await?;
        let mut ready = Vec::new();
        for system in systems {
            match self.load(system, &scene).await {
                Ok(()) => ready.push(system),
                Err(error) => measured.broken.push(format!("{system}: its buckets cannot be made: {error:#}")),
            }
        }
        self.venues.set_durable(workload.durable).await?;
        for &tasks in workload.tasks.unwrap_or_else(|| self.arguments.tasks()) {
            measured.rows.extend(self.rounds(&ready, &scene, tasks).await);
        }
        self.venues.set_durable(false).await?;
        Ok(measured)
    }

    /// Creates the missing buckets of a scene.
    pub(crate) async fn load(&mut self, system: System, scene: &Scene) -> anyhow::Result<()> {
        let (system, buckets) = (system.owner(), scene.workload.bucket_limits.name);
        let made = self.loaded.get(&(system, buckets)).copied();
        if made.is_none_or(|made| made < scene.keys()) {
            eprintln!("{}: making the buckets of {system}", scene.workload.name);
            // Buckets of first uses must not exist, but their database must.
            let there = if scene.workload.bucket_limits.first_use() { scene.keys() } else { 0 };
            system.load(scene, made.unwrap_or(there)).await?;
            self.loaded.insert((system, buckets), scene.keys());
        }
        Ok(())
    }

    /// Measures only these systems under test, at one number of tasks.
    pub(crate) async fn measure_scene(
        &mut self,
        systems: &[System],
        scene: &Scene,
        tasks: usize,
    ) -> anyhow::Result<Vec<Row>> {
        for &system in systems {
            self.load(system, scene).await?;
        }
        Ok(self.rounds(systems, scene, tasks).await)
    }

    /// Measures the systems under test one after the other, and repeats. Each repeat starts with another one.
    async fn rounds(&self, systems: &[System], scene: &Scene, tasks: usize) -> Vec<Row> {
        let mut repeats: BTreeMap<System, Vec<Statistics>> = BTreeMap::new();
        for repeat in 0..self.arguments.repeats() {
            let first = repeat as usize % systems.len().max(1);
            for &system in systems[first..].iter().chain(&systems[..first]) {
                let statistics = self.turn(system, scene, tasks, repeat.into()).await;
                let statistics = statistics.unwrap_or_else(|error| Statistics::fault(format!("{error:#}")));
                eprintln!(
                    "{}, {tasks} tasks, {system}: {:.0}/s{}",
                    scene.workload.name,
                    statistics.per_second,
                    statistics.fault.as_ref().map(|fault| format!(", {fault}")).unwrap_or_default()
                );
                repeats.entry(system).or_default().push(statistics);
            }
        }
        let row = |&system: &System| Row {
            system: system.to_string(),
            tasks,
            repeats: repeats.remove(&system).unwrap_or_default(),
        };
        systems.iter().map(row).collect()
    }

    async fn turn(&self, system: System, scene: &Scene, tasks: usize, seed: u64) -> anyhow::Result<Statistics> {
        let workload = scene.workload;
        let scene = &if workload.bucket_limits.first_use() { scene.renewed(seed) } else { scene.clone() };
        let server = system.server;
        let plan = Plan {
            tasks,
            warm_up: self.arguments.warm_up(scene.processes),
            time: self.arguments.time(),
            sequence: workload.popularity.draw(scene.keys(), seed).into(),
            keys: scene.keys(),
            server: server.and_then(Server::pid),
            noted: workload.bucket_limits.expect == Expect::Both,
        };
        let debited = self.debited(system, scene).await?;
        let written = self.written(system).await;
        let before = self.calls(system).await;
        let start = Instant::now();
        let opened = match scene.processes {
            1 => system.open(scene).await?,
            _ => Box::new(Driver::workers(system, scene)),
        };
        let sample = opened.measure(plan).await;
        let elapsed = start.elapsed();
        opened.close().await;
        let sample = sample?;
        // Sessions end, and report, a moment after their connections.
        sleep(Duration::from_millis(30)).await;
        let calls = self.calls(system).await.zip(before).map(|(after, before)| after - before);
        let written = self.written(system).await.zip(written);
        check(system, workload, &sample, elapsed)?;
        if let Some((after, before)) = self.debited(system, scene).await?.zip(debited) {
            // A failed request ends the measurement, so no result is unknown.
            let granted = sample.granted * u64::try_from(workload.limits)?;
            Books { granted, unknown: 0, ahead: system.kind == Kind::Leased }.check(after - before)?;
        }
        Ok(Statistics::new(&sample, calls).with_written(written))
    }

    /// Returns the tokens that the store has debited, if it records them.
    async fn debited(&self, system: System, scene: &Scene) -> anyhow::Result<Option<i64>> {
        match system {
            System { kind: Kind::Tollgate | Kind::Leased | Kind::Unbatched, server: Some(server) }
                if scene.workload.bucket_limits.stays() =>
            {
                Ok(Some(self.venues.debited(server, &scene.prefix()).await?))
            }
            System { kind: Kind::Redis | Kind::RedisPipelined, server: Some(server) }
                if scene.workload.bucket_limits.stays() =>
            {
                Ok(Some(redis::debited(server, scene).await?))
            }
            _ => Ok(None),
        }
    }

    async fn calls(&self, system: System) -> Option<i64> {
        self.venues.calls(observed(system)?).await
    }

    async fn written(&self, system: System) -> Option<Written> {
        self.venues.written(observed(system)?).await
    }
}

/// Returns the server whose own statistics describe the measurement. Excludes node, whose warm-up makes further calls.
fn observed(system: System) -> Option<Server> {
    system.server.filter(|_| system.kind != Kind::Flexible)
}
