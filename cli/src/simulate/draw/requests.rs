//! The chart of requests: one by one, or as counts per time bin if there are many.

use plotters::prelude::*;

use super::super::run::{RequestOutcome, SimulatedRequest};
use super::style::{DENIED, GRANTED, GREY, PALE};
use super::{Area, Panel, float, label, line};

/// The height of the chart in its units.
pub(super) fn top(panel: &Panel<'_>) -> f64 {
    if panel.is_sparse() {
        return 3.5;
    }
    panel.time_bins().iter().map(|moment| moment.came.max(moment.used + moment.denied)).fold(0.0, f64::max) * 1.35
}

pub(super) fn draw(area: &Area<'_>, panel: &Panel<'_>, top: f64) -> anyhow::Result<()> {
    if panel.is_sparse() { each(area, panel) } else { many(area, panel, top) }
}

/// Draws a line for each request, from its arrival to its outcome.
fn each(area: &Area<'_>, panel: &Panel<'_>) -> anyhow::Result<()> {
    let mut chart = panel.chart(area, 0.0, 3.5)?;
    let labels = |y: &f64| match y.round() {
        3.0 => "asked".to_owned(),
        2.0 => "granted".to_owned(),
        1.0 => "denied".to_owned(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .disable_x_axis()
        .y_labels(4)
        .y_label_formatter(&labels)
        .label_style(("sans-serif", 15))
        .draw()?;
    for request in &panel.run.asked {
        let came = (panel.x(request.arrival.at), 3.0);
        let went = request.used_at().map_or((came.0, 1.0), |at| (panel.x(at), 2.0));
        line(&mut chart, vec![came, went], PALE, 1)?;
        chart.draw_series([Circle::new(came, 2, GREY.filled())])?;
        match request.used_at() {
            Some(_) => drop(chart.draw_series([Circle::new(went, 3, GRANTED.filled())])?),
            None => drop(chart.draw_series([Cross::new(went, 3, DENIED.stroke_width(2))])?),
        }
    }
    Ok(())
}

/// Draws the number of arrivals, grants and denials in each time bin: grants as filled bars, and denials as open bars above them.
fn many(area: &Area<'_>, panel: &Panel<'_>, top: f64) -> anyhow::Result<()> {
    let mut chart = panel.chart(area, 0.0, top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .disable_x_axis()
        .y_labels(4)
        .y_label_formatter(&|y| label(*y))
        .y_desc(format!("per {}", panel.unit().0.trim_end_matches('s')))
        .label_style(("sans-serif", 15))
        .draw()?;
    let time_bins = panel.time_bins();
    let x = |moment: usize| panel.x(panel.end) * float(moment.try_into().unwrap_or(i64::MAX)) / float(BINS);
    let mut came = Vec::new();
    for (n, moment) in time_bins.iter().enumerate() {
        let (left, right, used) = (x(n), x(n + 1), moment.used);
        let bars = [(0.0, used, GRANTED.filled()), (used, used + moment.denied, DENIED.stroke_width(1))];
        let bars = bars.into_iter().filter(|(from, to, _)| to > from);
        chart.draw_series(bars.map(|(from, to, style)| Rectangle::new([(left, from), (right, to)], style)))?;
        came.extend([(left, moment.came), (right, moment.came)]);
    }
    line(&mut chart, came, GREY, 1)?;
    panel.text(&mut chart, "asked", (0.02, 0.03), GREY)?;
    panel.text(&mut chart, "granted, filled", (0.13, 0.03), GRANTED)?;
    panel.text(&mut chart, "denied, open", (0.36, 0.03), DENIED)
}

/// Requests per unit of time, within one bin.
#[derive(Clone, Copy, Default)]
struct TimeBin {
    came: f64,
    used: f64,
    denied: f64,
}

impl Panel<'_> {
    fn time_bins(&self) -> Vec<TimeBin> {
        let mut time_bins = vec![TimeBin::default(); usize::try_from(BINS).expect("a hundred or so")];
        let lasts = i128::from((self.end - self.begin).max(1));
        let place = |at: i64| {
            let place = i128::from(at - self.begin) * i128::from(BINS) / lasts;
            usize::try_from(place.clamp(0, i128::from(BINS) - 1)).expect("a moment")
        };
        let one = float(BINS) / self.x(self.end);
        for &SimulatedRequest { arrival, answer } in &self.run.asked {
            let came = place(arrival.at);
            time_bins[came].came += one;
            match answer {
                RequestOutcome::Granted(at) => time_bins[place(at)].used += one,
                RequestOutcome::Denied | RequestOutcome::Never => time_bins[came].denied += one,
            }
        }
        time_bins
    }
}

/// The number of bins in the span.
const BINS: i64 = 120;
