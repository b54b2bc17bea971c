//! A row of dots for each system under test. The axis is logarithmic, because the systems differ by factors.

use std::collections::BTreeMap;

use plotters::prelude::*;

use super::axis::{self, number};
use super::ratios::ByWorkload;
use super::style::{FONT, GREY, PALE, color, labelled, marks};
use crate::statistics::{Row, Statistics};
use crate::workload::WORKLOADS;

/// The label of a row, and its values.
type Dots<'a> = (&'a str, Vec<f64>);

/// Draws the decisions per second of each system under test.
pub(crate) fn throughput(workload: &str, rows: &[Row], tasks: usize) -> anyhow::Result<String> {
    let dots = |row: &Row| vec![row.median(|statistics| statistics.per_second)];
    let title = format!("{workload}: decisions a second, {tasks} tasks");
    draw(&title, "decisions a second", &of(rows, tasks, dots), |system, _| color(system))
}

/// Draws the median, p99 and p99.9 of each system under test.
pub(crate) fn latency(workload: &str, rows: &[Row], tasks: usize) -> anyhow::Result<String> {
    let dots = |row: &Row| {
        let part = |of: fn(&Statistics) -> f64| row.median(of) / 1e3;
        vec![part(|statistics| statistics.p50), part(|statistics| statistics.p99), part(|statistics| statistics.p999)]
    };
    let axis = "milliseconds: circle p50, triangle p99, cross p99.9";
    draw(&format!("{workload}: latency, {tasks} tasks"), axis, &of(rows, tasks, dots), |system, _| color(system))
}

/// Draws the ratios of tollgate's decisions per second to those of Redis, with a row for each workload.
pub(crate) fn ratios(by_engine: &BTreeMap<String, ByWorkload>) -> anyhow::Result<String> {
    let of = |workload: &str| {
        let ratio = |engine: &str| by_engine.get(engine)?.get(workload).copied().flatten();
        ENGINES.iter().map(|engine| ratio(engine).unwrap_or(0.0)).collect()
    };
    let rows: Vec<Dots<'_>> = WORKLOADS.iter().map(|workload| (workload.name, of(workload.name))).collect();
    let rows: Vec<_> = rows.into_iter().filter(|(_, ratios)| ratios.iter().any(|ratio| *ratio > 0.0)).collect();
    let axis = format!("decisions a second ÷ those of Redis: {}", ENGINES.join(" / "));
    draw("Decisions a second, tollgate ÷ Redis", &axis, &rows, |_, place| {
        color(&format!("tollgate@{}", ENGINES.get(place).unwrap_or(&"")))
    })
}

fn of(rows: &[Row], tasks: usize, dots: impl Fn(&Row) -> Vec<f64>) -> Vec<Dots<'_>> {
    rows.iter().filter(|row| row.tasks == tasks).map(|row| (row.system.as_str(), dots(row))).collect()
}

fn draw(title: &str, unit: &str, rows: &[Dots<'_>], color: impl Fn(&str, usize) -> RGBColor) -> anyhow::Result<String> {
    let values = || rows.iter().flat_map(|(_, dots)| dots).copied().filter(|figure| *figure > 0.0);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let range = if most > 0.0 {
        // Leaves room for the longest text right of the last dot.
        let longest = rows.iter().map(|(_, dots)| words(dots).len()).max().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "a few characters")]
        let room = LETTER * longest as f64 + 15.0;
        let start = least / 1.5;
        start..most * (most / start).powf(room / (WIDTH - room))
    } else {
        0.1..1.0
    };
    let count = i32::try_from(rows.len())?;
    let height = u32::try_from(110 + 26 * rows.len())?;

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (820, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .caption(title, (FONT, 20))
            .x_label_area_size(50)
            .y_label_area_size(200)
            .build_cartesian_2d(axis::logarithmic(range, WIDTH / 45.0), (0..(count - 1).max(0)).into_segmented())?;
        let name = |place: &SegmentValue<i32>| match place {
            SegmentValue::CenterOf(row) => name(rows, count, *row),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(PALE)
            .x_label_formatter(&|figure| number(*figure))
            .x_desc(format!("{unit}, logarithmic"))
            .y_labels(rows.len())
            .y_label_formatter(&name)
            .label_style((FONT, 16))
            .draw()?;
        for (row, (label, dots)) in (0..).zip(rows) {
            let row = SegmentValue::CenterOf(count - 1 - row);
            for (place, &figure) in dots.iter().enumerate().filter(|(_, figure)| **figure > 0.0) {
                marks(&mut chart, place, [(figure, row.clone())], color(label, place))?;
            }
            let end = dots.iter().copied().fold(0.0, f64::max).max(least);
            let style = (FONT, 16).into_font().color(&GREY);
            let label = EmptyElement::at((end, row)) + Text::new(words(dots), (9, -7), style);
            chart.draw_series([label])?;
        }
        area.present()?;
    }
    let rows = rows.iter().map(|(label, dots)| format!("{label} {}", words(dots)));
    let description = format!("Rows of dots, in {unit}: {}.", rows.collect::<Vec<_>>().join(", "));
    Ok(labelled(&svg, title, &description))
}

/// Returns the label of a row. The first row is at the top.
fn name(rows: &[Dots<'_>], count: i32, row: i32) -> String {
    let place = usize::try_from(count - 1 - row).ok();
    place.and_then(|place| rows.get(place)).map_or_else(String::new, |(system, _)| (*system).to_owned())
}

fn words(dots: &[f64]) -> String {
    dots.iter().map(|figure| number(*figure)).collect::<Vec<_>>().join(" / ")
}

const ENGINES: [&str; 4] = ["postgres", "mysql", "mariadb", "sqlite"];

/// The width of the plot in pixels.
const WIDTH: f64 = 600.0;

/// The width of a digit in pixels.
const LETTER: f64 = 8.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_of_the_last_dot_is_not_cut() {
        for (least, most) in [(1.0, 1.0), (1.5, 2.5), (0.12, 8_400.0), (61.0, 1_234_567.0)] {
            let statistics = Statistics {
                per_second: most,
                p50: 1e3 * least,
                p99: 1e3 * most,
                p999: 1e3 * most,
                ..Statistics::default()
            };
            let rows =
                ["a", "b"].map(|system| Row { system: system.to_owned(), tasks: 4, repeats: vec![statistics.clone()] });
            for svg in [throughput("hot", &rows, 4), latency("hot", &rows, 4)] {
                let svg = svg.expect("a chart");
                let labels = svg.split("<text x=\"").skip(1).filter(|label| label.contains("start"));
                let ends = labels.map(|label| {
                    let (place, rest) = label.split_once('"').expect("a place");
                    let text = rest.split(">\n").nth(1).and_then(|text| text.split('\n').next()).expect("a text");
                    place.parse::<f64>().expect("pixels") + 8.0 * f64::from(u32::try_from(text.len()).expect("few"))
                });
                let ends: Vec<_> = ends.collect();
                assert!(ends.len() == 2 && ends.iter().all(|end| *end <= 820.0), "{ends:?} of {most}");
            }
        }
    }
}
