//! The chart of requests: one by one, or as counts per time bin if there are many.

use plotters::prelude::*;

use super::super::run::{RequestOutcome, SimulatedRequest};
use super::style::{DENIED, GRANTED, GREY, PALE};
use super::{Area, Panel, label, line};

/// The height of the chart in its units.
pub(super) fn top(panel: &Panel<'_>) -> f64 {
    if panel.is_sparse() {
        return 3.5;
    }
    panel.time_bins().iter().map(|bin| bin.came.max(bin.used + bin.denied)).fold(0.0, f64::max) * 1.35
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
    for request in &panel.run.requests {
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
    let mut came = Vec::new();
    for TimeBin { available_at, right, came: requests, used, denied } in panel.time_bins() {
        let bars = [(0.0, used, GRANTED.filled()), (used, used + denied, DENIED.stroke_width(1))];
        let bars = bars.into_iter().filter(|(from, to, _)| to > from);
        chart.draw_series(bars.map(|(from, to, style)| Rectangle::new([(available_at, from), (right, to)], style)))?;
        came.extend([(available_at, requests), (right, requests)]);
    }
    line(&mut chart, came, GREY, 1)?;
    panel.text(&mut chart, "asked", (0.02, 0.03), GREY)?;
    panel.text(&mut chart, "granted, filled", (0.13, 0.03), GRANTED)?;
    panel.text(&mut chart, "denied, open", (0.36, 0.03), DENIED)
}

/// Requests per unit of time, within one bin of the time axis.
struct TimeBin {
    available_at: f64,
    right: f64,
    came: f64,
    used: f64,
    denied: f64,
}

impl Panel<'_> {
    fn time_bins(&self) -> Vec<TimeBin> {
        let duration = self.end - self.begin;
        let length = bin_length(duration, self.run.requests.len(), self.unit().1);
        // The last bin takes what is left of the span.
        let count = usize::try_from(duration / length).unwrap_or(1).max(1);
        let edge =
            |n: usize| self.x(self.begin.saturating_add(length.saturating_mul(n.try_into().unwrap_or(i64::MAX))));
        let mut time_bins: Vec<_> = (0..count)
            .map(|n| (edge(n), if n + 1 == count { self.x(self.end) } else { edge(n + 1) }))
            .map(|(available_at, right)| TimeBin { available_at, right, came: 0.0, used: 0.0, denied: 0.0 })
            .collect();
        let place = |at: i64| usize::try_from((at - self.begin) / length).unwrap_or(0).min(count - 1);
        for &SimulatedRequest { arrival, outcome } in &self.run.requests {
            let came = place(arrival.at);
            let one = |bin: &TimeBin| 1.0 / (bin.right - bin.available_at);
            time_bins[came].came += one(&time_bins[came]);
            match outcome {
                RequestOutcome::Granted(at) => time_bins[place(at)].used += one(&time_bins[place(at)]),
                RequestOutcome::Denied | RequestOutcome::Never => time_bins[came].denied += one(&time_bins[came]),
            }
        }
        time_bins
    }
}

/// The length of a time bin in nanoseconds: 1, 2 or 5 of a decimal part of the unit, so that the bins of a steady rate are equal.
/// Bins hold about five requests or more, so that one more does not change the rate by much.
fn bin_length(duration: i64, requests: usize, unit: i64) -> i64 {
    let most = i64::try_from(requests / MIN_REQUESTS_IN_BIN).unwrap_or(MAX_BINS).clamp(1, MAX_BINS);
    let powers = std::iter::successors(Some(unit / 1_000_000), |power| power.checked_mul(10));
    let mut lengths = powers.flat_map(|power| [1, 2, 5].map(|times| power.saturating_mul(times)));
    lengths.find(|length| duration / length <= most).unwrap_or(duration)
}

const MAX_BINS: i64 = 120;
const MIN_REQUESTS_IN_BIN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_of_steady_traffic_are_equal() {
        let (second, minute) = (1_000_000_000, 60_000_000_000);
        for (duration, requests, unit, expected) in [
            // 5/s, 10/s, 1000/s and 3/s for a minute, and 2/s for an hour.
            (minute, 300, second, second),
            (minute, 600, second, second / 2),
            (minute, 60_000, second, second / 2),
            (minute, 180, second, 2 * second),
            (60 * minute, 7200, minute, minute / 2),
            (1_000_000, 5000, 1_000_000, 10_000),
            (i64::MAX, 101, 86_400 * second, 10_000 * 86_400 * second),
        ] {
            let length = bin_length(duration, requests, unit);
            assert_eq!(length, expected, "{requests} in {duration} ns");
        }
    }
}
