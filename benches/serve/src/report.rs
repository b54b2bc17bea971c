use std::fmt::Write as _;
use std::thread;

use crate::arguments::Arguments;
use crate::statistics::{Measured, Row, spread};
use crate::system::System;
use crate::workload::Workload;

/// Formats the measurements as Markdown.
pub(crate) fn markdown(arguments: &Arguments, all: &[Measured]) -> String {
    let mut text = String::new();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let load = arguments.load();
    let _ = writeln!(
        text,
        "{} tasks over {} connections; client, servers and databases share {cores} cores. Medians of {} repeats of {} s, \
         the least and the most in brackets. Answers for a core: for each second of processor time of the server, \
         without the client and the database.",
        load.tasks,
        arguments.connections(),
        arguments.repeats(),
        load.time.as_secs_f64()
    );
    for measured in all {
        workload(&mut text, measured);
    }
    let faults: Vec<(System, String)> = all.iter().flat_map(Measured::faults).collect();
    if !faults.is_empty() {
        let _ = writeln!(text, "\n## Broken rules\n");
        for (_, fault) in faults {
            let _ = writeln!(text, "- {fault}");
        }
    }
    text
}

fn workload(text: &mut String, measured: &Measured) {
    let workload = measured.workload;
    let is_paced = workload == Workload::Paced;
    let beside = if is_paced { "p50 − in-process, ms" } else { "÷ tollgate" };
    let _ = writeln!(
        text,
        "\n## {}: {}\n\nKeys: {}; limit: {} a day.\n\n\
         | system | answers/s | {beside} | p50 ms | p99 ms | answers/s for a core |\n|---|---|---|---|---|---|",
        workload.name(),
        workload.about(),
        measured.keys,
        workload.requests_per_day(),
    );
    for row in &measured.rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row.system,
            cell(row.numbers(|run| Some(run.per_second)), 0),
            cell(beside_values(measured, row, is_paced), 2),
            cell(row.numbers(|run| Some(run.p50)), 2),
            cell(row.numbers(|run| Some(run.p99)), 2),
            cell(row.numbers(|run| run.per_core), 0),
        );
    }
}

/// Returns how a row compares to that of the other system in each repeat.
fn beside_values(measured: &Measured, row: &Row, is_paced: bool) -> Vec<f64> {
    let other = measured.row(if is_paced { System::InProcess } else { System::Tollgate });
    match other {
        None => Vec::new(),
        Some(other) if is_paced => row.beside(other, |run, other| run.p50 - other.p50),
        Some(other) => row.beside(other, |run, other| run.per_second / other.per_second),
    }
}

fn cell(values: Vec<f64>, decimals: usize) -> String {
    spread(values).map_or_else(
        || "–".to_owned(),
        |(median, least, most)| format!("{median:.decimals$} ({least:.decimals$}–{most:.decimals$})"),
    )
}
