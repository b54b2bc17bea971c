use std::collections::BTreeMap;

use serde::Serialize;

use crate::statistics::Measured;

/// tollgate's decisions per second divided by those of others, by workload. `null` if not measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Ratios {
    /// On each engine, to the bare statement that does the least work of such a batch: [`floor`].
    #[serde(rename = "shares_of_the_floor")]
    pub(crate) floor: BTreeMap<String, ByWorkload>,
    /// On PostgreSQL, to Redis as users run it.
    #[serde(rename = "ratios_to_redis")]
    pub(crate) redis: ByWorkload,
    /// On each engine, to Redis as users run it.
    #[serde(rename = "ratios_to_redis_by_engine")]
    pub(crate) redis_by_engine: BTreeMap<String, ByWorkload>,
    /// On PostgreSQL at each number of tasks, to Redis as users run it.
    #[serde(rename = "ratios_to_redis_by_tasks")]
    pub(crate) redis_by_tasks: BTreeMap<usize, ByWorkload>,
    /// A Redis client that merges and pipelines, to Redis as users run it.
    #[serde(rename = "ratios_of_redis_pipelined")]
    pub(crate) pipelined: ByWorkload,
    /// To a bare UPDATE on the same engine.
    #[serde(rename = "ratios_to_bare_update")]
    pub(crate) bare_update: BTreeMap<String, ByWorkload>,
    /// On PostgreSQL, to rate-limiter-flexible on the same engine.
    #[serde(rename = "ratios_to_rate_limiter_flexible")]
    pub(crate) flexible: ByWorkload,
    /// In this process, to `governor`.
    #[serde(rename = "ratios_to_governor")]
    pub(crate) governor: ByWorkload,
}

pub(crate) type ByWorkload = BTreeMap<String, Option<f64>>;

impl Ratios {
    pub(crate) fn new(measured: &[Measured], headline: usize) -> Self {
        let mut this = Self { redis: LISTED.map(|workload| (workload.to_owned(), None)).into(), ..Self::default() };
        for measured in measured {
            let exact = measured.workload.to_owned();
            let tasks = measured.shown(headline);
            for row in &measured.rows {
                let peer = |name: &str| {
                    measured
                        .rows
                        .iter()
                        .find(|other| other.tasks == row.tasks && other.system.split('@').next() == Some(name))
                };
                if let Some((engine, leases)) = ours(&row.system) {
                    // Reports both, with and without leases, if both are measured.
                    let both = measured.row(&format!("tollgate@{engine}"), row.tasks).is_some();
                    let workload = if leases && both { format!("{exact}_leased") } else { exact.clone() };
                    let ratio = peer("redis").and_then(|redis| row.ratio(redis));
                    if engine == HEADLINE {
                        this.redis_by_tasks.entry(row.tasks).or_default().insert(workload.clone(), ratio);
                    }
                    if row.tasks != tasks {
                        continue;
                    }
                    if engine == HEADLINE {
                        this.redis.insert(workload.clone(), ratio);
                        if let Some(flexible) = peer("rate-limiter-flexible") {
                            this.flexible.insert(workload.clone(), row.ratio(flexible));
                        }
                    }
                    this.redis_by_engine.entry(engine.to_owned()).or_default().insert(workload.clone(), ratio);
                    if let Some(bare) = measured.row(&format!("{}@{engine}", floor(measured.workload)), tasks) {
                        this.floor.entry(engine.to_owned()).or_default().insert(workload.clone(), row.ratio(bare));
                    }
                    if let Some(bare) = measured.row(&format!("bare-update@{engine}"), tasks) {
                        let ratio = row.ratio(bare);
                        this.bare_update.entry(engine.to_owned()).or_default().insert(workload, ratio);
                    }
                } else if row.tasks == tasks {
                    let ratio_to = |name: &str| peer(name).and_then(|peer| row.ratio(peer));
                    match row.system.split('@').next() {
                        Some("tollgate-memory") => drop(this.governor.insert(exact.clone(), ratio_to("governor"))),
                        Some("redis-pipelined") => drop(this.pipelined.insert(exact.clone(), ratio_to("redis"))),
                        _ => {}
                    }
                }
            }
        }
        this
    }
}

/// Returns the system whose batches do the least work of a server for a workload: a statement that returns what a decision
/// needs, if it is measured.
fn floor(workload: &str) -> &'static str {
    match workload {
        "uniform" | "five_limits" => "answered-batches",
        "denied" => "bare-reads",
        _ => "bare-batches",
    }
}

/// Returns the engine if the system is tollgate on one, and whether it leases.
fn ours(system: &str) -> Option<(&str, bool)> {
    let (name, engine) = system.split_once('@')?;
    ["tollgate", "tollgate-leased"].contains(&name).then_some((engine, name == "tollgate-leased"))
}

const HEADLINE: &str = "postgres";
const LISTED: [&str; 6] = ["uniform", "hot", "zipf", "denied", "leased", "five_limits"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Row, Statistics};

    #[test]
    fn leased_value_is_shown_beside_exact_value() {
        let rows = [
            ("redis", 100.0),
            ("tollgate@postgres", 200.0),
            ("tollgate-leased@postgres", 900.0),
            ("bare-batches@postgres", 400.0),
        ];
        let rows = rows.map(|(system, per_second)| Row {
            system: system.to_owned(),
            tasks: 256,
            repeats: vec![Statistics { per_second, ..Statistics::default() }],
        });
        let ratios = Ratios::new(&[Measured { workload: "attack", rows: rows.into(), ..Measured::default() }], 256);
        for of in [&ratios.redis, &ratios.redis_by_engine["postgres"], &ratios.redis_by_tasks[&256]] {
            assert_eq!((of["attack"], of["attack_leased"]), (Some(2.0), Some(9.0)));
        }
        assert_eq!(ratios.floor["postgres"]["attack"], Some(0.5));
    }
}
