use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::style::{FONT, PALE, color};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Lines with their labels.
pub(super) type Series<'a> = [(&'a str, Vec<(f64, f64)>)];

/// Draws growth with two logarithmic axes, so that proportional growth is a straight line.
pub(super) fn growth(area: &Area<'_>, title: &str, by: &str, series: &Series<'_>) -> anyhow::Result<()> {
    let ((few, many), (least, most)) = (ends(series, |point| point.0), ends(series, |point| point.1));
    let (x, y) = ((few / 1.2..many * 1.2).log_scale(), (least / 1.5..most * 1.5).log_scale());
    draw(area, title, by, (x, y), series)
}

/// Draws a value over time. The axis starts at 0, so that a constant value looks constant.
pub(super) fn course(area: &Area<'_>, title: &str, by: &str, series: &Series<'_>) -> anyhow::Result<()> {
    let ((_, last), (_, most)) = (ends(series, |point| point.0), ends(series, |point| point.1));
    draw(area, title, by, (0.0..last.max(1.0), 0.0..(most * 1.2).max(1.0)), series)
}

fn draw<X, Y>(area: &Area<'_>, title: &str, by: &str, (x, y): (X, Y), series: &Series<'_>) -> anyhow::Result<()>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(title, (FONT, 18))
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .x_labels(8)
        .x_label_formatter(&|figure| short(*figure))
        .x_desc(by)
        .label_style((FONT, 14))
        .draw()?;
    for (name, points) in series {
        let color = color(name);
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
    }
    Ok(())
}

pub(super) fn legend(area: &Area<'_>, series: &Series<'_>) -> anyhow::Result<()> {
    for (place, (name, _)) in (0..).zip(series) {
        let height = 50 + 22 * place;
        area.draw(&Rectangle::new([(4, height), (20, height + 10)], color(name).filled()))?;
        area.draw(&Text::new((*name).to_owned(), (26, height - 2), (FONT, 14)))?;
    }
    Ok(())
}

/// Shortens numbers, because ten million does not fit on the axis.
fn short(figure: f64) -> String {
    match figure {
        millions if millions >= 1e6 => format!("{}M", millions / 1e6),
        thousands if thousands >= 1e3 => format!("{}k", thousands / 1e3),
        few => format!("{}", (few * 100.0).round() / 100.0),
    }
}

fn ends(series: &Series<'_>, of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let figures = || series.iter().flat_map(|(_, points)| points).map(of);
    (figures().fold(f64::INFINITY, f64::min), figures().fold(0.0, f64::max))
}
