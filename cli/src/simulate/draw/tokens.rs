//! The chart of available tokens. With few requests, also shows the tokens granted so far on the same scale.

use plotters::prelude::*;

use super::style::{GRANTED, PALE, TOKENS};
use super::{Area, Panel, float, label, line};

pub(super) fn draw(area: &Area<'_>, panel: &Panel<'_>) -> anyhow::Result<()> {
    let tokens = || panel.run.tokens.iter().map(|(_, tokens)| *tokens);
    let requests =
        panel.run.requests.iter().fold(0_i64, |requests, one| requests.saturating_add_unsigned(one.arrival.cost));
    let most = float(tokens().max().unwrap_or(0).max(if panel.is_sparse() { requests } else { 1 }));
    let least = float(tokens().min().unwrap_or(0).min(0));
    // Leaves room for the labels above the curves, also if most of the height is below zero.
    let mut chart = panel.chart(area, least * 1.1, most + 0.2 * (most - least))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .y_labels(6)
        .x_label_formatter(&|x| label(*x))
        .y_label_formatter(&|y| label(*y))
        .label_style(("sans-serif", 15))
        .x_desc(panel.unit().0)
        .draw()?;
    line(&mut chart, panel.steps(panel.run.tokens.iter().copied()), TOKENS, 2)?;
    panel.text(&mut chart, "tokens left", (0.02, 0.03), TOKENS)?;
    if panel.is_sparse() {
        let mut used: Vec<(i64, u64)> = panel
            .run
            .requests
            .iter()
            .filter_map(|requests| Some((requests.used_at()?, requests.arrival.cost)))
            .collect();
        used.sort_unstable();
        let so_far = used.iter().scan(0_i64, |so_far, (at, cost)| {
            *so_far = so_far.saturating_add_unsigned(*cost);
            Some((*at, *so_far))
        });
        line(&mut chart, panel.steps(std::iter::once((panel.begin, 0)).chain(so_far)), GRANTED, 2)?;
        panel.text(&mut chart, "granted so far", (0.2, 0.03), GRANTED)?;
    }
    Ok(())
}

impl Panel<'_> {
    /// The points of a step line through values that each hold from a time on.
    fn steps(&self, values: impl Iterator<Item = (i64, i64)>) -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut before = None;
        for (at, value) in values {
            if before != Some(value) {
                points.extend(before.map(|before| (self.x(at), float(before))));
                points.push((self.x(at), float(value)));
                before = Some(value);
            }
        }
        points.extend(before.map(|last| (self.x(self.end), float(last))));
        points
    }
}
