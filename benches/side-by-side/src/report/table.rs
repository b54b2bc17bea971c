use std::fmt::Write as _;

use super::{Report, goals};
use crate::statistics::{Measured, Row, median};

/// Formats the report for readers.
pub(crate) fn markdown(report: &Report) -> String {
    let mut text = String::new();
    let machine = &report.machine;
    let _ = writeln!(
        text,
        "{}, {} cores, {}, Linux {}; client and servers share them.\n",
        machine.processor, machine.cores, machine.memory, machine.kernel
    );
    let _ = writeln!(text, "{}.\n", report.versions.join(", "));
    let _ = writeln!(
        text,
        "Medians of {} repeats of {} s, the least and the most in brackets; all contestants take turns in each repeat.\n",
        report.repeats, report.seconds
    );
    if report.delay_us > 0 {
        let _ = writeln!(text, "Everything takes {} µs longer, each way.\n", report.delay_us);
    }
    floors(&mut text, report);
    headline(&mut text, report);
    goals::markdown(&mut text, &report.goals);
    for measured in &report.measured {
        workload(&mut text, measured, report.tasks);
    }
    waiters(&mut text, report);
    neighbours(&mut text, report);
    if !report.faults.is_empty() {
        let _ = writeln!(text, "\n## Faults: these runs count nothing\n");
        for fault in &report.faults {
            let _ = writeln!(text, "- {fault}");
        }
    }
    text
}

/// Writes which share of the server's least work tollgate reaches, if a floor was measured.
fn floors(text: &mut String, report: &Report) {
    let engines = &report.ratios.floor;
    if engines.is_empty() {
        return;
    }
    let names: Vec<&str> = engines.keys().map(String::as_str).collect();
    let _ = writeln!(
        text,
        "Decisions a second ÷ a bare statement for the same batch, {} tasks: `answered-batches` for `uniform` and \
         `five_limits`, `bare-reads` for `denied`, otherwise `bare-batches`:\n\n| workload | {} |\n|---|{}",
        report.tasks,
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for measured in &report.measured {
        let share = |engine: &&str| engines.get(*engine)?.get(measured.workload).copied().flatten();
        if names.iter().any(|engine| share(engine).is_some()) {
            let cells: Vec<String> = names.iter().map(|engine| cell(share(engine), 2)).collect();
            let _ = writeln!(text, "| {} | {} |", measured.workload, cells.join(" | "));
        }
    }
    text.push('\n');
}

/// Writes how many times as fast as Redis tollgate is.
fn headline(text: &mut String, report: &Report) {
    let engines = &report.ratios.redis_by_engine;
    let names: Vec<&str> = engines.keys().map(String::as_str).collect();
    let _ = writeln!(
        text,
        "Decisions a second ÷ the `redis` crate as users run it, {} tasks; tollgate on each engine, and Redis by a client \
         that merges and pipelines:\n\n| workload | {} | `redis-pipelined` |\n|---|{}",
        report.tasks,
        names.join(" | "),
        "---|".repeat(names.len() + 1)
    );
    for measured in &report.measured {
        let ratio = |engine: &str| engines.get(engine)?.get(measured.workload).copied().flatten();
        let cells: Vec<String> = names.iter().map(|engine| cell(ratio(engine), 2)).collect();
        let pipelined = report.ratios.pipelined.get(measured.workload).copied().flatten();
        let _ = writeln!(text, "| {} | {} | {} |", measured.workload, cells.join(" | "), cell(pipelined, 2));
    }
}

fn workload(text: &mut String, measured: &Measured, headline: usize) {
    let _ = writeln!(
        text,
        "\n## {}: {}\n\nKeys: {}; commits: {}.\n",
        measured.workload, measured.about, measured.keys, measured.commits
    );
    let mut tasks: Vec<usize> = measured.rows.iter().map(|row| row.tasks).collect();
    tasks.dedup();
    let shown = measured.shown(headline);
    let columns: Vec<String> = tasks.iter().map(|tasks| format!("thousand/s, {tasks} tasks")).collect();
    let _ = writeln!(
        text,
        "| contestant | {} | p50 / p99 / p99.9 ms, {shown} tasks | client µs | server µs | calls |\n|---|{}---|---|---|---|",
        columns.join(" | "),
        "---|".repeat(columns.len())
    );
    for row in measured.rows.iter().filter(|row| row.tasks == shown) {
        let rows = tasks.iter().map(|&tasks| measured.row(&row.system, tasks));
        let speeds: Vec<String> = rows.map(|row| row.map_or_else(|| "–".to_owned(), speed)).collect();
        let unfairness = row.median_of(|statistics| statistics.unfairness);
        let latency = |of: fn(&crate::statistics::Statistics) -> f64| row.median(of) / 1000.0;
        let _ = writeln!(
            text,
            "| {}{} | {} | {:.2} / {:.2} / {:.2} | {:.2} | {} | {} |",
            row.system,
            unfairness.map(|ratio| format!(", busiest ÷ idlest process {ratio:.2}")).unwrap_or_default(),
            speeds.join(" | "),
            latency(|statistics| statistics.p50),
            latency(|statistics| statistics.p99),
            latency(|statistics| statistics.p999),
            row.median(|statistics| statistics.client_cpu),
            cell(row.median_of(|statistics| statistics.server_cpu), 2),
            cell(row.median_of(|statistics| statistics.calls), 4),
        );
    }
    if let Some(free) = measured.row("no-limiter", shown) {
        let rows = measured.rows.iter().filter(|row| row.tasks == shown);
        let shares: Vec<String> = rows.map(|row| format!("{} {}", row.system, cell(row.ratio(free), 3))).collect();
        let _ = writeln!(text, "\nOf what is served without a limiter: {}.", shares.join(", "));
    }
    written(text, measured, shown);
    for absent in &measured.absent {
        let _ = writeln!(text, "\nNot measured: {absent}.");
    }
}

/// Writes the write-ahead log on PostgreSQL, by system under test.
fn written(text: &mut String, measured: &Measured, shown: usize) {
    let of_row = |row: &Row| {
        let wal = row.median_of(|statistics| statistics.wal_per_grant)?;
        // Without updates, the share is unknown.
        let hot = row.median_of(|statistics| statistics.hot_share).map(|share| format!(", {:.1} % HOT", 100.0 * share));
        Some(format!("{} {wal:.0}{}", row.system, hot.unwrap_or_default()))
    };
    let rows: Vec<String> = measured.rows.iter().filter(|row| row.tasks == shown).filter_map(of_row).collect();
    if !rows.is_empty() {
        let _ = writeln!(
            text,
            "\nBytes of WAL for a grant, and the share of updates that touched no index: {}.",
            rows.join("; ")
        );
    }
}

fn waiters(text: &mut String, report: &Report) {
    let Some(first) = report.waiters.first() else { return };
    let _ = writeln!(
        text,
        "\n## waiters: {} wait for one key at {}/s\n\n\
         | contestant | late p50 / p99 ms | inversions | calls for each |\n|---|---|---|---|",
        first.waiters, first.a_second
    );
    for waited in &report.waiters {
        let _ = writeln!(
            text,
            "| {} | {:.2} / {:.2} | {} | {} |",
            waited.system,
            waited.late_p50,
            waited.late_p99,
            waited.inversions,
            cell(waited.calls, 4)
        );
    }
}

fn neighbours(text: &mut String, report: &Report) {
    if report.neighbours.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n## neighbours: pgbench on the same server, 4 clients, beside so many decisions a second\n\n\
         | beside | made/s | transactions/s | ÷ alone | p99 ms |\n|---|---|---|---|---|"
    );
    for beside in &report.neighbours {
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.0} | {:.2} | {:.2} |",
            beside.name(),
            beside.made,
            median(beside.tps.iter().copied()),
            beside.of_alone,
            median(beside.p99.iter().copied())
        );
    }
}

pub(super) fn speed(row: &Row) -> String {
    let (least, most) = row.spread(|statistics| statistics.per_second);
    let median = row.median(|statistics| statistics.per_second);
    format!("{:.1} ({:.1}–{:.1})", median / 1e3, least / 1e3, most / 1e3)
}

pub(super) fn cell(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or_else(|| "–".to_owned(), |figure| format!("{figure:.decimals$}"))
}
