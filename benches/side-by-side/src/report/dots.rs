use plotters::prelude::*;

use super::style::{FONT, GREY, PALE, color};
use crate::figures::{Figures, Measured, Row};

/// Draws the decisions per second of each system under test.
pub(crate) fn throughput(measured: &Measured, tasks: usize) -> anyhow::Result<String> {
    let title = format!("{}: thousand decisions a second, {tasks} tasks", measured.workload);
    let bar = |row: &Row| {
        let figure = row.median(|figures| figures.per_second) / 1e3;
        (row.system.clone(), vec![(figure, 1.0)])
    };
    draw(&title, &measured.rows.iter().filter(|row| row.tasks == tasks).map(bar).collect::<Vec<_>>())
}

/// Draws the median, p99 and p99.9 of each system under test. Higher percentiles are paler.
pub(crate) fn latency(measured: &Measured, tasks: usize) -> anyhow::Result<String> {
    let title = format!("{}: latency in ms, p50, p99 and p99.9, {tasks} tasks", measured.workload);
    let bar = |row: &Row| {
        let part = |of: fn(&Figures) -> f64, opacity| (row.median(of) / 1e3, opacity);
        let parts = vec![
            part(|figures| figures.p999, 0.25),
            part(|figures| figures.p99, 0.5),
            part(|figures| figures.p50, 1.0),
        ];
        (row.system.clone(), parts)
    };
    draw(&title, &measured.rows.iter().filter(|row| row.tasks == tasks).map(bar).collect::<Vec<_>>())
}

/// Draws bars, the longest part first. The axis is logarithmic, because the systems under test differ by factors.
fn draw(title: &str, bars: &[(String, Vec<(f64, f64)>)]) -> anyhow::Result<String> {
    let figures = || bars.iter().flat_map(|(_, parts)| parts).map(|part| part.0).filter(|figure| *figure > 0.0);
    let (least, most) = (figures().fold(f64::INFINITY, f64::min), figures().fold(0.0, f64::max));
    let range = if most > 0.0 { least / 2.0..most * (least / most).powf(-0.35).max(4.0) } else { 0.1..1.0 };
    let start = range.start;
    let count = i32::try_from(bars.len())?;
    let height = u32::try_from(90 + 26 * bars.len())?;

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (820, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .caption(title, (FONT, 18))
            .x_label_area_size(30)
            .y_label_area_size(220)
            .build_cartesian_2d(range.log_scale(), (0..count).into_segmented())?;
        let name = |place: &SegmentValue<i32>| match place {
            SegmentValue::CenterOf(row) => name(bars, count, *row),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(PALE)
            .y_labels(bars.len())
            .y_label_formatter(&name)
            .label_style((FONT, 14))
            .draw()?;
        for (row, (system, parts)) in (0..).zip(bars) {
            let row = count - 1 - row;
            let (low, high) = (SegmentValue::Exact(row), SegmentValue::Exact(row + 1));
            for &(figure, opacity) in parts.iter().filter(|(figure, _)| *figure > 0.0) {
                let style = color(system).mix(opacity).filled();
                let mut bar = Rectangle::new([(start, low.clone()), (figure, high.clone())], style);
                bar.set_margin(3, 3, 0, 0);
                chart.draw_series([bar])?;
            }
            let longest = parts.first().map_or(0.0, |part| part.0);
            let text = parts.iter().rev().map(|part| number(part.0)).collect::<Vec<_>>().join(" / ");
            let style = (FONT, 13).into_font().color(&GREY);
            let at = (longest.max(start), SegmentValue::CenterOf(row));
            let label = EmptyElement::at(at) + Text::new(format!(" {text}"), (2, -7), style);
            chart.draw_series([label])?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// Returns the label of a row. The first bar is at the top.
fn name(bars: &[(String, Vec<(f64, f64)>)], count: i32, row: i32) -> String {
    let place = usize::try_from(count - 1 - row).ok();
    place.and_then(|place| bars.get(place)).map(|(system, _)| system.clone()).unwrap_or_default()
}

fn number(figure: f64) -> String {
    match figure {
        large if large >= 100.0 => format!("{large:.0}"),
        middle if middle >= 1.0 => format!("{middle:.1}"),
        small if small >= 0.01 => format!("{small:.3}"),
        tiny => format!("{tiny:.5}"),
    }
}
