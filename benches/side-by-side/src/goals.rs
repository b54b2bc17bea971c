//! The goals of a run. The report judges them.

use std::fmt;

use crate::server::Server::{self, Mariadb, Mysql, Postgres, Postgres15, Sqlite};

/// A value of a run, and its bound.
#[derive(Debug)]
pub(crate) struct Goal {
    pub(crate) workload: &'static str,
    pub(crate) of: &'static str,
    /// The servers on which the goal is judged. Empty if the system under test has no server.
    pub(crate) on: &'static [Server],
    pub(crate) figure: Figure,
    /// The number of tasks. Default: that of the headline.
    pub(crate) tasks: Option<usize>,
    pub(crate) bound: Bound,
}

/// The value to judge. Compares systems on the same engine, if they have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Decisions per second ÷ those of another.
    Speed(&'static str),
    /// The median of the latency ÷ that of another, repeat by repeat.
    P50(&'static str),
    /// Calls of the store per second at the most tasks ÷ those at the fewest.
    CallsByTasks,
    DenialsPerCall,
    /// Decisions of the busiest process ÷ those of the idlest.
    Unfairness,
    /// For waiting callers: the delay beyond the scheduled time in milliseconds, store calls per caller, and grants out
    /// of order.
    Late,
    CallsOfEach,
    Inversions,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    pub(crate) fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(least) => figure >= least,
            Self::AtMost(most) => figure <= most,
        }
    }
}

use Bound::{AtLeast, AtMost};
use Figure::{CallsByTasks, CallsOfEach, DenialsPerCall, Inversions, Late, P50, Speed, Unfairness};

const ALL: &[Server] = &[Postgres, Postgres15, Mysql, Mariadb, Sqlite];
/// Servers that count calls.
const SERVERS: &[Server] = &[Postgres, Postgres15, Mysql, Mariadb];
const POSTGRES: &[Server] = &[Postgres, Postgres15];
const NONE: &[Server] = &[];

/// First the shares of the floor: of the bare statement that does the least work for a workload's answers.
pub(crate) static GOALS: [Goal; 29] = [
    goal("uniform", "tollgate", POSTGRES, Speed("answered-batches"), None, AtLeast(0.75)),
    goal("uniform", "tollgate", &[Mysql], Speed("answered-batches"), None, AtLeast(0.9)),
    goal("uniform", "tollgate", &[Mariadb, Sqlite], Speed("answered-batches"), None, AtLeast(0.8)),
    goal("hot", "tollgate", &[Postgres, Postgres15, Sqlite], Speed("bare-batches"), None, AtLeast(0.85)),
    goal("hot", "tollgate", &[Mysql, Mariadb], Speed("bare-batches"), None, AtLeast(0.75)),
    goal("zipf", "tollgate", ALL, Speed("bare-batches"), None, AtLeast(0.55)),
    goal("denied", "tollgate", ALL, Speed("bare-reads"), None, AtLeast(0.65)),
    goal("five_limits", "tollgate", ALL, Speed("answered-batches"), None, AtLeast(0.55)),
    goal("processes", "tollgate", ALL, Speed("bare-batches"), None, AtLeast(0.7)),
    goal("first_use", "tollgate", ALL, Speed("bare-batches"), None, AtLeast(0.5)),
    goal("low_load", "tollgate", POSTGRES, P50("bare-update"), Some(1), AtMost(1.25)),
    goal("low_load", "tollgate", ALL, P50("tollgate-unbatched"), Some(1), AtMost(1.05)),
    goal("low_load", "tollgate", ALL, P50("tollgate-unbatched"), Some(4), AtMost(1.05)),
    goal("attack", "tollgate", SERVERS, CallsByTasks, None, AtMost(1.2)),
    goal("leased", "tollgate-leased", ALL, Speed("governor"), None, AtLeast(0.5)),
    goal("processes", "tollgate", ALL, Unfairness, None, AtMost(1.5)),
    goal("sync_hot", "tollgate", ALL, Speed("bare-update"), None, AtLeast(20.0)),
    goal("sync_uniform", "tollgate", ALL, Speed("bare-update"), None, AtLeast(5.0)),
    goal("waiters", "tollgate", ALL, Late, None, AtMost(2.0)),
    goal("waiters", "tollgate", SERVERS, CallsOfEach, None, AtMost(0.05)),
    goal("waiters", "tollgate", ALL, Inversions, None, AtMost(0.0)),
    goal("http", "tollgate-memory", NONE, Speed("no-limiter"), Some(64), AtLeast(0.97)),
    goal("http", "tollgate-memory", NONE, Speed("no-limiter"), Some(256), AtLeast(0.97)),
    goal("http_hot", "tollgate-memory", NONE, Speed("no-limiter"), Some(64), AtLeast(0.97)),
    goal("http_hot", "tollgate-memory", NONE, Speed("no-limiter"), Some(256), AtLeast(0.97)),
    // A lease is for keys with frequent requests.
    goal("http_hot", "tollgate-leased", ALL, Speed("no-limiter"), Some(64), AtLeast(0.97)),
    goal("http_hot", "tollgate-leased", ALL, Speed("no-limiter"), Some(256), AtLeast(0.97)),
    goal("http_attack", "tollgate", SERVERS, DenialsPerCall, Some(64), AtLeast(50.0)),
    goal("http_attack", "tollgate", SERVERS, DenialsPerCall, Some(256), AtLeast(50.0)),
];

const fn goal(
    workload: &'static str,
    of: &'static str,
    on: &'static [Server],
    figure: Figure,
    tasks: Option<usize>,
    bound: Bound,
) -> Goal {
    Goal { workload, of, on, figure, tasks, bound }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, ", self.of)?;
        match self.figure {
            Speed(other) => write!(f, "decisions a second ÷ `{other}`"),
            P50(other) => write!(f, "p50 ÷ `{other}`"),
            CallsByTasks => f.write_str("calls a second, most ÷ fewest tasks"),
            DenialsPerCall => f.write_str("denials ÷ calls"),
            Unfairness => f.write_str("busiest ÷ idlest process"),
            Late => f.write_str("late by p99 ms"),
            CallsOfEach => f.write_str("calls ÷ waiters"),
            Inversions => f.write_str("out of order"),
        }?;
        match self.bound {
            AtLeast(least) => write!(f, " ≥ {least}"),
            AtMost(most) => write!(f, " ≤ {most}"),
        }?;
        self.tasks.map_or(Ok(()), |tasks| write!(f, ", {tasks} tasks"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::System;
    use crate::workload::Workload;

    #[test]
    fn every_goal_is_about_systems_of_its_workload() {
        for goal in GOALS.iter().filter(|goal| goal.workload != "waiters") {
            let all = System::all(Workload::named(goal.workload).unwrap(), ALL);
            let takes_part = |name: &str| all.iter().any(|one| one.to_string().split('@').next() == Some(name));
            assert!(takes_part(goal.of), "{goal}");
            if let Speed(other) | P50(other) = goal.figure {
                assert!(takes_part(other), "{goal}");
            }
        }
    }
}
