use plotters::prelude::*;

use super::style::{FONT, PALE, color};
use crate::figures::Measured;

/// How decisions a second grow with the tasks that ask.
pub(crate) fn scaling(measured: &Measured) -> anyhow::Result<String> {
    #[expect(clippy::cast_precision_loss, reason = "a few thousand tasks")]
    let point = |row: &crate::figures::Row| (row.tasks as f64, row.median(|figures| figures.per_second) / 1e3);
    let points: Vec<(f64, f64)> = measured.rows.iter().map(point).filter(|point| point.1 > 0.0).collect();
    let ends = |of: fn(&(f64, f64)) -> f64| {
        let figures = || points.iter().map(of);
        (figures().fold(f64::INFINITY, f64::min), figures().fold(0.0, f64::max))
    };
    let (few, many) = ends(|point| point.0);
    let (least, most) = ends(|point| point.1);
    if points.is_empty() {
        anyhow::bail!("nothing of '{}' could be measured", measured.workload);
    }

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (820, 460)).into_drawing_area();
        area.fill(&WHITE)?;
        let (plot, legend) = area.split_horizontally(600);
        let mut chart = ChartBuilder::on(&plot)
            .margin(10)
            .caption(format!("{}: thousand decisions a second by tasks", measured.workload), (FONT, 18))
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d((few / 1.2..many * 1.2).log_scale(), (least / 1.5..most * 1.5).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(PALE)
            .x_desc("tasks")
            .label_style((FONT, 14))
            .draw()?;
        let mut contestants: Vec<&str> = Vec::new();
        for row in &measured.rows {
            // What reads nothing but a constant bends for no reason of interest here.
            if !contestants.contains(&row.contestant.as_str()) && !row.contestant.starts_with("select-1") {
                contestants.push(&row.contestant);
            }
        }
        for (place, contestant) in (0..).zip(contestants) {
            let own = measured.rows.iter().filter(|row| row.contestant == contestant).map(point);
            let own: Vec<(f64, f64)> = own.filter(|point| point.1 > 0.0).collect();
            let color = color(contestant);
            chart.draw_series(own.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
            chart.draw_series(LineSeries::new(own, color.stroke_width(2)))?;
            let height = 50 + 22 * place;
            legend.draw(&Rectangle::new([(4, height), (20, height + 10)], color.filled()))?;
            legend.draw(&Text::new(contestant.to_owned(), (26, height - 2), (FONT, 14)))?;
        }
        area.present()?;
    }
    Ok(svg)
}
