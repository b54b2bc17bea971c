//! One picture: the requests above, the tokens below, over the same axis of time.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::run::{Asked, END};

pub(crate) fn svg(title: &str, asked: &[Asked], tokens: &[(i64, u64)]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let whole = SVGBackend::with_string(&mut svg, (760, 400)).into_drawing_area();
        whole.fill(&WHITE)?;
        let whole = whole.titled(title, ("sans-serif", 20))?;
        let (above, below) = whole.split_vertically(120);
        requests(&above, asked)?;
        amounts(&below, asked, tokens)?;
        whole.present()?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// When each request came, and where it went.
fn requests(area: &Area<'_>, asked: &[Asked]) -> anyhow::Result<()> {
    let mut chart = chart(area, 3.5)?;
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
    for request in asked {
        let came = (seconds(request.at), 3.0);
        let (went, color) = match request.acts {
            Some(acts) => ((seconds(acts), 2.0), GREEN),
            None => ((came.0, 1.0), RED),
        };
        line(&mut chart, &[came, went], PALE, 1)?;
        chart.draw_series([Circle::new(came, 2, GREY.filled())])?;
        match request.acts {
            Some(_) => drop(chart.draw_series([Circle::new(went, 3, color.filled())])?),
            None => drop(chart.draw_series([Cross::new(went, 3, color.stroke_width(2))])?),
        }
    }
    Ok(())
}

/// How many were granted so far, and how many tokens are left.
fn amounts(area: &Area<'_>, asked: &[Asked], tokens: &[(i64, u64)]) -> anyhow::Result<()> {
    let mut chart = chart(area, 22.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(PALE)
        .label_style(("sans-serif", 15))
        .x_desc("seconds")
        .draw()?;

    let mut acts: Vec<i64> = asked.iter().filter_map(|request| request.acts).collect();
    acts.sort_unstable();
    let granted = (0_u64..).zip(std::iter::once(0).chain(acts)).map(|(n, at)| (at, n));
    line(&mut chart, &steps(granted), BLUE, 2)?;
    line(&mut chart, &steps(tokens.iter().copied()), AMBER, 2)?;
    text(&mut chart, "granted so far", (0.4, 20.5), BLUE)?;
    text(&mut chart, "tokens left", (0.4, 18.0), AMBER)
}

fn chart<'a, 'b>(area: &'a Area<'b>, top: f64) -> anyhow::Result<Chart<'a, 'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(6)
        .margin_right(20)
        .set_left_and_bottom_label_area_size(30)
        .set_label_area_size(LabelAreaPosition::Left, 60);
    Ok(builder.build_cartesian_2d(0.0..seconds(END), 0.0..top)?)
}

/// A stairway through values that hold from a time on.
fn steps(values: impl Iterator<Item = (i64, u64)>) -> Vec<(f64, f64)> {
    #[expect(clippy::cast_precision_loss, reason = "a handful of tokens")]
    let mut values = values.map(|(at, tokens)| (seconds(at), tokens as f64));
    let mut points: Vec<(f64, f64)> = values.next().into_iter().collect();
    for (at, value) in values {
        let before = points.last().expect("there is a first one").1;
        if (value - before).abs() > 0.5 {
            points.extend([(at, before), (at, value)]);
        }
    }
    points.extend(points.last().map(|&(_, last)| (seconds(END), last)));
    points
}

fn line(chart: &mut Chart<'_, '_>, points: &[(f64, f64)], color: RGBColor, width: u32) -> anyhow::Result<()> {
    chart.draw_series([PathElement::new(points.to_vec(), color.stroke_width(width))])?;
    Ok(())
}

fn text(chart: &mut Chart<'_, '_>, text: &str, at: (f64, f64), color: RGBColor) -> anyhow::Result<()> {
    chart.draw_series([Text::new(text.to_owned(), at, ("sans-serif", 16).into_font().color(&color))])?;
    Ok(())
}

fn seconds(ms: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "some seconds")]
    let ms = ms as f64;
    ms / 1000.0
}

const AMBER: RGBColor = RGBColor(214, 137, 16);
const BLUE: RGBColor = RGBColor(31, 78, 140);
const GREEN: RGBColor = RGBColor(34, 139, 60);
const GREY: RGBColor = RGBColor(90, 90, 90);
const PALE: RGBColor = RGBColor(222, 222, 222);
const RED: RGBColor = RGBColor(192, 40, 40);
