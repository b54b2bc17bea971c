use anyhow::ensure;
use plotters::prelude::*;

use super::panel::{self, growth, legend};
use super::style::{is_plain, labelled};
use crate::statistics::{Measured, Row};

/// Draws decisions per second by concurrent tasks.
pub(crate) fn scaling(measured: &Measured) -> anyhow::Result<String> {
    let mut systems: Vec<&str> = Vec::new();
    for row in &measured.rows {
        // The many lines of the plain colour would hide the others.
        if !systems.contains(&row.system.as_str()) && !is_plain(&row.system) {
            systems.push(&row.system);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a few thousand tasks")]
    let point = |row: &Row| (row.tasks as f64, row.median(|statistics| statistics.per_second));
    let line = |system| {
        let own = measured.rows.iter().filter(|row| row.system == system).map(point);
        (system, own.filter(|point| point.1 > 0.0).collect::<Vec<_>>())
    };
    let series: Vec<_> = systems.into_iter().map(line).collect();
    ensure!(series.iter().any(|(_, line)| !line.is_empty()), "nothing of '{}' could be measured", measured.workload);

    let title = format!("{}: decisions a second by tasks", measured.workload);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (820, 460)).into_drawing_area();
        area.fill(&WHITE)?;
        let (plot, names) = area.split_horizontally(600);
        growth(&plot, &title, ("tasks", "decisions a second"), &series)?;
        legend(&names, &series)?;
        area.present()?;
    }
    Ok(labelled(&svg, &title, &panel::description("tasks", &series)))
}
