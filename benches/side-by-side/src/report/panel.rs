use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::axis::{self, number};
use super::style::{FONT, PALE, color, marks};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Lines with their labels.
pub(super) type Series<'a> = [(&'a str, Vec<(f64, f64)>)];

/// Draws growth with two logarithmic axes, so that proportional growth is a straight line.
pub(super) fn growth(area: &Area<'_>, title: &str, (x, y): (&str, &str), series: &Series<'_>) -> anyhow::Result<()> {
    let ((few, many), (least, most)) = (ends(series, |point| point.0), ends(series, |point| point.1));
    let (width, height) = area.dim_in_pixel();
    let across = axis::logarithmic(few / 1.2..many * 1.2, f64::from(width) / 45.0);
    let up = axis::logarithmic(least / 1.5..most * 1.5, f64::from(height) / 40.0);
    draw(area, title, (x, &format!("{y}, logarithmic")), (across, up), series)
}

/// Draws a value over time. The axis starts at 0, so that a constant value looks constant.
pub(super) fn course(area: &Area<'_>, (x, y): (&str, &str), series: &Series<'_>) -> anyhow::Result<()> {
    let ((_, last), (_, most)) = (ends(series, |point| point.0), ends(series, |point| point.1));
    let ranges = (RangedCoordf64::from(0.0..last.max(1.0)), RangedCoordf64::from(0.0..(most * 1.2).max(1.0)));
    draw(area, y, (x, y), ranges, series)
}

fn draw<X, Y>(
    area: &Area<'_>,
    title: &str,
    (across, up): (&str, &str),
    (x, y): (X, Y),
    series: &Series<'_>,
) -> anyhow::Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(title, (FONT, 20))
        .x_label_area_size(50)
        .y_label_area_size(70)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .x_labels(8)
        .x_label_formatter(&|figure| number(*figure))
        .y_labels(8)
        .y_label_formatter(&|figure| number(*figure))
        .x_desc(across)
        .y_desc(up)
        .label_style((FONT, 16))
        .draw()?;
    for (place, (name, points)) in series.iter().enumerate() {
        let color = color(name);
        marks(&mut chart, place, points.iter().copied(), color)?;
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
    }
    Ok(())
}

pub(super) fn legend(area: &Area<'_>, series: &Series<'_>) -> anyhow::Result<()> {
    let (width, height) = area.dim_in_pixel();
    let mut chart = ChartBuilder::on(area).build_cartesian_2d(0..i32::try_from(width)?, i32::try_from(height)?..0)?;
    for (place, (name, _)) in series.iter().enumerate() {
        let height = 50 + 24 * i32::try_from(place)?;
        marks(&mut chart, place, [(12, height)], color(name))?;
        chart.draw_series([Text::new((*name).to_owned(), (24, height - 7), (FONT, 16))])?;
    }
    Ok(())
}

/// The points in words.
pub(super) fn description(by: &str, series: &Series<'_>) -> String {
    let line = |(name, points): &(&str, Vec<(f64, f64)>)| {
        let points = points.iter().map(|(at, figure)| format!("{} {by} {}", number(*at), number(*figure)));
        format!("{name}: {}.", points.collect::<Vec<_>>().join(", "))
    };
    series.iter().map(line).collect::<Vec<_>>().join(" ")
}

fn ends(series: &Series<'_>, of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let statistics = || series.iter().flat_map(|(_, points)| points).map(of);
    (statistics().fold(f64::INFINITY, f64::min), statistics().fold(0.0, f64::max))
}
