use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plotters::prelude::*;

use super::machine::Machine;
use super::panel;
use super::style::labelled;
use super::table::{cell, speed};
use crate::growth::{Curve, MOST_IN_REDIS};
use crate::statistics::Row;

/// Writes `growth.json`, `growth.md` and `growth.svg`, and returns the table.
pub(crate) fn write(curves: &[Curve], directory: &Path) -> anyhow::Result<String> {
    let text = markdown(curves);
    fs::write(directory.join("growth.json"), serde_json::to_string_pretty(curves)?)?;
    fs::write(directory.join("growth.md"), &text)?;
    fs::write(directory.join("growth.svg"), chart(curves)?)?;
    Ok(text)
}

fn markdown(curves: &[Curve]) -> String {
    let mut text = "# Growth: all keys alike, all granted\n".to_owned();
    let cores = Machine::this().cores;
    for curve in curves {
        let _ = writeln!(
            text,
            "\n## By {}; {}\n\n| {} | contestant | thousand/s | p50 / p99 ms | decisions a call | client µs | server µs | of {cores} cores busy |\n|---|---|---|---|---|---|---|---|",
            curve.by, curve.beside, curve.by
        );
        for point in &curve.points {
            for row in &point.rows {
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {:.2} / {:.2} | {} | {:.2} | {} | {} |",
                    point.at,
                    row.system,
                    speed(row),
                    row.median(|statistics| statistics.p50) / 1e3,
                    row.median(|statistics| statistics.p99) / 1e3,
                    cell(row.median_of(|statistics| statistics.calls.filter(|&calls| calls > 0.0).map(f64::recip)), 1),
                    row.median(|statistics| statistics.client_cpu),
                    cell(row.median_of(|statistics| statistics.server_cpu), 2),
                    cell(busy(row), 2),
                );
            }
        }
        let _ = writeln!(text);
        for (system, points) in lines(curve) {
            if let Some((at, most)) = points.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)) {
                let at_most = curve.points.iter().find(|point| f64::from(point.at) >= at);
                let row = at_most.and_then(|point| point.rows.iter().find(|row| row.system == system));
                let _ = writeln!(
                    text,
                    "- `{system}` has its most at {at} {}: {:.1} thousand/s, with {} of {cores} cores busy.",
                    curve.by,
                    most / 1e3,
                    cell(row.and_then(busy), 2)
                );
            }
        }
    }
    let _ = writeln!(
        text,
        "\n`redis` is not asked about more than {MOST_IN_REDIS} keys: each would have to be sent to it."
    );
    text
}

/// Returns how many processors client and server keep busy.
fn busy(row: &Row) -> Option<f64> {
    row.median_of(|statistics| Some((statistics.client_cpu + statistics.server_cpu?) * statistics.per_second / 1e6))
}

/// Returns decisions per second of each system under test.
fn lines(curve: &Curve) -> Vec<(&str, Vec<(f64, f64)>)> {
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for point in &curve.points {
        for row in &point.rows {
            let figure = row.median(|statistics| statistics.per_second);
            if figure <= 0.0 {
                continue;
            }
            let dot = (f64::from(point.at), figure);
            match lines.iter_mut().find(|(name, _)| *name == row.system) {
                Some((_, line)) => line.push(dot),
                None => lines.push((&row.system, vec![dot])),
            }
        }
    }
    lines
}

pub(super) fn chart(curves: &[Curve]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1280, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let (plots, names) = area.split_horizontally(1080);
        for (plot, curve) in plots.split_evenly((1, curves.len().max(1))).iter().zip(curves) {
            let series = lines(curve);
            if !series.is_empty() {
                panel::growth(plot, &format!("by {}", curve.by), (&*curve.by, "decisions a second"), &series)?;
            }
        }
        if let Some(curve) = curves.first() {
            panel::legend(&names, &lines(curve))?;
        }
        area.present()?;
    }
    let parts = curves.iter().map(|curve| panel::description(&curve.by, &lines(curve)));
    Ok(labelled(&svg, "Decisions a second by tasks, keys and processes", &parts.collect::<Vec<_>>().join(" ")))
}
