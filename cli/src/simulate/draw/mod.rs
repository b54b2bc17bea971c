//! A picture of runs side by side: requests above, tokens below, on the same time axis.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::run::Run;
use super::traffic::Traffic;

mod requests;
mod style;
mod tokens;

use style::labelled;

/// Draws the runs with their titles, all over the same span. The span ends when the last waiting request is granted.
pub(crate) async fn svg(traffic: &Traffic, runs: &mut [(String, Run)]) -> anyhow::Result<String> {
    let end = runs.iter().filter_map(|(_, run)| run.last_use()).fold(traffic.end, i64::max);
    for (_, run) in &mut *runs {
        run.idle_until(end).await?;
    }
    let panels = runs.iter().map(|(title, run)| Panel { title, run, begin: traffic.begin, end });
    draw(&panels.collect::<Vec<_>>())
}

fn draw(panels: &[Panel<'_>]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let columns = panels.len().max(1);
        let width = if columns == 1 { 760 } else { 600 };
        let size = (u32::try_from(columns * width)?, 400);
        let whole = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        whole.fill(&WHITE)?;
        // All panels have the same vertical scale.
        let top = panels.iter().map(requests::top).fold(0.0, f64::max);
        for (panel, area) in panels.iter().zip(whole.split_evenly((1, columns))) {
            let area = area.titled(panel.title, ("sans-serif", 20))?;
            let (above, below) = area.split_vertically(if panel.is_sparse() { 120 } else { 170 });
            requests::draw(&above, panel, top)?;
            tokens::draw(&below, panel)?;
        }
        whole.present()?;
    }
    let titles: Vec<_> = panels.iter().map(|panel| panel.title).collect();
    let counts: String = panels.iter().map(Panel::counts).collect();
    let description = format!("{counts}Above: the requests and their outcomes over time. Below: the tokens left.");
    Ok(labelled(&svg, &format!("Requests under {}", titles.join(" and ")), &description))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A run and its visible span, in nanoseconds since 1970.
struct Panel<'a> {
    title: &'a str,
    run: &'a Run,
    begin: i64,
    end: i64,
}

impl Panel<'_> {
    /// The numbers of the panel in words.
    fn counts(&self) -> String {
        let Self { title, run, .. } = self;
        let granted = run.requests.iter().filter(|request| request.used_at().is_some()).count();
        let (requests, unit) = (run.requests.len(), self.unit().0);
        let duration = label(self.x(self.end));
        format!(
            "{title}: {requests} requests in {duration} {unit}, {granted} granted and {} denied. ",
            requests - granted
        )
    }

    /// Whether the picture shows each request by itself.
    fn is_sparse(&self) -> bool {
        self.run.requests.len() <= 100
    }

    /// An empty chart of the span.
    fn chart<'a, 'b>(&self, area: &'a Area<'b>, bottom: f64, top: f64) -> anyhow::Result<Chart<'a, 'b>> {
        let mut builder = ChartBuilder::on(area);
        builder
            .margin(6)
            .margin_right(20)
            .set_label_area_size(LabelAreaPosition::Bottom, 40)
            .set_label_area_size(LabelAreaPosition::Left, 70);
        Ok(builder.build_cartesian_2d(0.0..self.x(self.end), bottom..top)?)
    }

    /// Writes a text in a chart, at fractions of its width and height from the upper left.
    fn text(&self, chart: &mut Chart<'_, '_>, text: &str, at: (f64, f64), color: RGBColor) -> anyhow::Result<()> {
        let height = chart.y_range();
        let place = (self.x(self.end) * at.0, height.end - (height.end - height.start) * at.1);
        chart.draw_series([Text::new(text.to_owned(), place, ("sans-serif", 16).into_font().color(&color))])?;
        Ok(())
    }

    /// The position of a time on the axis.
    fn x(&self, at: i64) -> f64 {
        float(at - self.begin) / float(self.unit().1)
    }

    /// The unit of the time axis, and its nanoseconds.
    fn unit(&self) -> (&'static str, i64) {
        let duration = self.end - self.begin;
        let fits = |unit: &&(&str, i64)| duration >= 10 * unit.1;
        *UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0])
    }
}

fn line(chart: &mut Chart<'_, '_>, points: Vec<(f64, f64)>, color: RGBColor, width: u32) -> anyhow::Result<()> {
    chart.draw_series([PathElement::new(points, color.stroke_width(width))])?;
    Ok(())
}

/// The label of a value on an axis.
fn label(figure: f64) -> String {
    let text = format!("{figure:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

#[expect(clippy::cast_precision_loss, reason = "no picture is that fine")]
fn float(n: i64) -> f64 {
    n as f64
}

const UNITS: [(&str, i64); 5] = [
    ("milliseconds", 1_000_000),
    ("seconds", 1_000_000_000),
    ("minutes", 60_000_000_000),
    ("hours", 3_600_000_000_000),
    ("days", 86_400_000_000_000),
];
