use std::fmt::Write as _;

use serde::Serialize;

use crate::goals::{Figure, GOALS, Goal};
use crate::statistics::{Measured, Row};
use crate::waiters::Waited;

/// A goal and its results.
#[derive(Debug, Serialize)]
pub(crate) struct Judged {
    pub(crate) workload: &'static str,
    pub(crate) goal: String,
    /// The result on each measured engine.
    pub(crate) outcomes: Vec<Outcome>,
    /// Whether the goal is met on all engines. `null` if none was measured.
    pub(crate) met: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    /// The engine, if the system has one.
    pub(crate) on: Option<&'static str>,
    /// `None` if a run broke the rules or the value is unknown.
    pub(crate) measured: Option<f64>,
    pub(crate) met: bool,
}

/// The results of a run so far.
pub(crate) struct Run<'a> {
    pub(crate) measured: &'a [Measured],
    pub(crate) waiters: &'a [Waited],
    /// The number of tasks in the headline.
    pub(crate) headline: usize,
}

impl Run<'_> {
    pub(crate) fn judge(&self) -> Vec<Judged> {
        GOALS.iter().map(|goal| self.judge_one(goal)).collect()
    }

    fn judge_one(&self, goal: &Goal) -> Judged {
        let engines = goal.on.iter().map(|server| Some(server.name()));
        let engines: Vec<_> = if goal.on.is_empty() { vec![None] } else { engines.collect() };
        let outcomes: Vec<Outcome> = engines.into_iter().filter_map(|on| self.outcome(goal, on)).collect();
        let met = (!outcomes.is_empty()).then(|| outcomes.iter().all(|outcome| outcome.met));
        Judged { workload: goal.workload, goal: goal.to_string(), outcomes, met }
    }

    /// Returns `None` if the system under test was not measured.
    fn outcome(&self, goal: &Goal, on: Option<&'static str>) -> Option<Outcome> {
        let name = on.map_or_else(|| goal.of.to_owned(), |on| format!("{}@{on}", goal.of));
        let measured = match goal.figure {
            Figure::Late | Figure::CallsOfEach | Figure::Inversions => {
                let waited = self.waiters.iter().find(|waited| waited.system == name)?;
                of_waiters(goal.figure, waited)
            }
            figure => {
                let measured = self.workload(goal.workload)?;
                let row = measured.row(&name, self.tasks(goal, measured))?;
                // A row that broke the rules counts nothing, and neither does its latency.
                if row.is_sound() { value(figure, measured, row, on) } else { None }
            }
        };
        Some(Outcome { on, measured, met: measured.is_some_and(|figure| goal.bound.holds(figure)) })
    }

    fn workload(&self, name: &str) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.workload == name)
    }

    fn tasks(&self, goal: &Goal, measured: &Measured) -> usize {
        goal.tasks.unwrap_or_else(|| measured.shown(self.headline))
    }
}

fn value(figure: Figure, measured: &Measured, row: &Row, on: Option<&str>) -> Option<f64> {
    match figure {
        Figure::Speed(other) => row.ratio(peer(measured, other, on, row.tasks)?),
        Figure::P50(other) => row.ratio_of(peer(measured, other, on, row.tasks)?, |repeat| repeat.p50),
        Figure::CallsByTasks => {
            let calls = |row: &Row| row.median_of(|repeat| Some(repeat.calls? * repeat.per_second));
            let own = || measured.rows.iter().filter(|other| other.system == row.system);
            let (fewest, most) = (own().min_by_key(|row| row.tasks)?, own().max_by_key(|row| row.tasks)?);
            let sound = most.tasks > fewest.tasks && most.is_sound() && fewest.is_sound();
            if sound { Some(calls(most)? / calls(fewest)?) } else { None }
        }
        Figure::DenialsPerCall => row.median_of(|repeat| {
            #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
            let (denied, all) = (repeat.denied as f64, (repeat.granted + repeat.denied) as f64);
            let calls = repeat.calls? * all;
            (calls > 0.0).then(|| denied / calls)
        }),
        Figure::Unfairness => row.median_of(|repeat| repeat.unfairness),
        Figure::Late | Figure::CallsOfEach | Figure::Inversions => None,
    }
}

/// Returns the row of another system, on the same engine if it has one.
fn peer<'a>(measured: &'a Measured, name: &str, on: Option<&str>, tasks: usize) -> Option<&'a Row> {
    let beside = on.and_then(|on| measured.row(&format!("{name}@{on}"), tasks));
    beside.or_else(|| measured.row(name, tasks))
}

fn of_waiters(figure: Figure, waited: &Waited) -> Option<f64> {
    match figure {
        Figure::Late => Some(waited.late_p99),
        Figure::CallsOfEach => waited.calls,
        #[expect(clippy::cast_precision_loss, reason = "some thousand waiters")]
        _ => Some(waited.inversions as f64),
    }
}

pub(super) fn markdown(text: &mut String, goals: &[Judged]) {
    let _ = writeln!(text, "\n## Goals\n\n| workload | goal | measured | met? |\n|---|---|---|---|");
    for judged in goals {
        let cells: Vec<String> = judged.outcomes.iter().map(Outcome::cell).collect();
        let cells = if cells.is_empty() { "–".to_owned() } else { cells.join(", ") };
        let _ = writeln!(text, "| {} | {} | {cells} | {} |", judged.workload, judged.goal, judged.verdict());
    }
}

impl Outcome {
    fn cell(&self) -> String {
        let on = self.on.map_or_else(String::new, |on| format!("{on} "));
        let measured = self.measured.map_or_else(|| "no figure".to_owned(), digits);
        format!("{on}{measured}")
    }
}

impl Judged {
    fn verdict(&self) -> String {
        let (met, missed): (Vec<_>, Vec<_>) = self.outcomes.iter().partition(|outcome| outcome.met);
        match (met.is_empty(), missed.is_empty()) {
            (true, true) => "not measured".to_owned(),
            (false, true) => "yes".to_owned(),
            (true, false) => "no".to_owned(),
            (false, false) => {
                let on: Vec<&str> = met.iter().filter_map(|outcome| outcome.on).collect();
                format!("only on {}", on.join(", "))
            }
        }
    }
}

/// Returns as many digits as are meaningful for repeats that differ by tenths.
fn digits(figure: f64) -> String {
    let decimals = if figure < 0.1 {
        4
    } else if figure < 10.0 {
        2
    } else {
        0
    };
    format!("{figure:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Statistics;

    fn row(system: &str, per_second: f64) -> Row {
        let statistics = Statistics { per_second, ..Statistics::default() };
        Row { system: system.to_owned(), tasks: 256, repeats: vec![statistics] }
    }

    fn judged(rows: Vec<Row>) -> Vec<Judged> {
        let measured = Measured { workload: "uniform", rows, ..Measured::default() };
        let judged = Run { measured: &[measured], waiters: &[], headline: 256 }.judge();
        judged.into_iter().filter(|judged| judged.workload == "uniform").collect()
    }

    #[test]
    fn share_of_the_floor_meets_its_goal_or_misses_it() {
        let floor = || row("answered-batches@postgres", 100.0);
        let fast = judged(vec![floor(), row("tollgate@postgres", 75.0)]);
        assert_eq!((fast[0].met, fast[0].outcomes[0].cell()), (Some(true), "postgres 0.75".to_owned()), "{fast:?}");
        let slow = judged(vec![floor(), row("tollgate@postgres", 74.0)]);
        assert_eq!(slow[0].met, Some(false), "{slow:?}");
        assert_eq!(slow[1].met, None, "MySQL was not measured: {slow:?}");
    }

    #[test]
    fn failed_run_meets_no_goal() {
        let mut broken = row("tollgate@postgres", 0.0);
        broken.repeats[0].fault = Some("over-granted".to_owned());
        let judged = judged(vec![row("answered-batches@postgres", 100.0), broken]);
        assert_eq!(judged[0].met, Some(false), "{judged:?}");
    }
}
