//! Measures decisions per second by concurrent tasks, keys and processes.

use std::borrow::Cow;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use crate::arguments::Arguments;
use crate::scene::Scene;
use crate::server::Server;
use crate::statistics::{Row, Statistics};
use crate::system::{Kind, System};
use crate::turns::Turns;
use crate::venues::Venues;
use crate::workload::{TASKS_OF_A_PROCESS, Workload};

/// Decisions per second by one of these, with the others fixed.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Curve {
    pub(crate) by: Cow<'static, str>,
    /// The fixed values.
    pub(crate) beside: String,
    pub(crate) points: Vec<Point>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Point {
    pub(crate) at: u32,
    pub(crate) rows: Vec<Row>,
}

impl Curve {
    pub(crate) fn faults(&self) -> impl Iterator<Item = String> {
        let of_row = |point: &Point, row: &Row| {
            let fault = |statistics: &Statistics| statistics.fault.clone();
            let named = format!("growth, {} {}, {}", point.at, self.by, row.system);
            row.repeats.iter().filter_map(fault).map(|fault| format!("{named}: {fault}")).collect::<Vec<_>>()
        };
        self.points.iter().flat_map(move |point| point.rows.iter().flat_map(move |row| of_row(point, row)))
    }
}

/// Measures uniform keys, all granted. At every point the systems under test take turns.
pub(crate) async fn measure(arguments: &Arguments, venues: &Venues, run: &str) -> anyhow::Result<Vec<Curve>> {
    let arguments = arguments.of_growth();
    ensure!(arguments.engines.contains(&Server::Postgres), "growth is measured on PostgreSQL: say --engines postgres");
    let mut turns = Turns::new(&arguments, venues, run);
    let workload = Workload::named("uniform")?;
    let max_keys = arguments.keys();
    let usual_keys = USUAL_KEYS.min(max_keys);
    let scene = Scene::new(workload, run, usual_keys);

    let mut by_tasks =
        Curve { by: "tasks".into(), beside: format!("{usual_keys} keys, one process"), points: Vec::new() };
    for at in TASKS {
        let rows = turns.measure_scene(&systems(usual_keys), &scene, at as usize).await?;
        by_tasks.points.push(Point { at, rows });
    }
    let beside = format!("{usual_keys} keys, {TASKS_OF_A_PROCESS} tasks in each");
    let mut by_processes = Curve { by: "processes".into(), beside, points: Vec::new() };
    for at in PROCESSES {
        let scene = Scene { processes: at, ..scene.clone() };
        let rows = turns.measure_scene(&systems(usual_keys), &scene, TASKS_OF_A_PROCESS).await?;
        by_processes.points.push(Point { at, rows });
    }
    // Comes last, in ascending order, so that each point reuses the buckets of the previous one.
    let tasks = arguments.headline();
    let mut by_keys = Curve { by: "keys".into(), beside: format!("{tasks} tasks, one process"), points: Vec::new() };
    for at in KEYS.into_iter().filter(|&keys| keys <= max_keys) {
        let rows = turns.measure_scene(&systems(at), &Scene::new(workload, run, at), tasks).await?;
        by_keys.points.push(Point { at, rows });
    }
    Ok(vec![by_tasks, by_keys, by_processes])
}

fn systems(keys: u32) -> Vec<System> {
    let redis = System { kind: Kind::Redis, server: Some(Server::Redis) };
    let ours = System { kind: Kind::Tollgate, server: Some(Server::Postgres) };
    if keys <= MOST_IN_REDIS { vec![redis, ours] } else { vec![ours] }
}

const TASKS: [u32; 7] = [1, 4, 16, 64, 256, 1024, 4096];
const KEYS: [u32; 6] = [1, 100, 10_000, 100_000, 1_000_000, 10_000_000];
const PROCESSES: [u32; 5] = [1, 2, 4, 8, 16];
const USUAL_KEYS: u32 = 100_000;
/// Redis holds all keys in memory, and each key has to be sent to it.
pub(crate) const MOST_IN_REDIS: u32 = 1_000_000;
