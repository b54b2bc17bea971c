use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

/// Returns the colour of a system under test, which is the same in every chart. tollgate is blue or green; the others are not.
pub(crate) fn color(system: &str) -> RGBColor {
    let (name, server) = system.split_once('@').unwrap_or((system, ""));
    match (name, server) {
        ("tollgate" | "tollgate-leased", "postgres") => RGBColor(0x08, 0x30, 0x6b),
        ("tollgate" | "tollgate-leased", "mysql") => RGBColor(0x21, 0x71, 0xb5),
        ("tollgate" | "tollgate-leased", "mariadb") => RGBColor(0x1b, 0x7f, 0x73),
        ("tollgate" | "tollgate-leased", _) => RGBColor(0x5a, 0x6f, 0xcb),
        ("tollgate-memory", _) => RGBColor(0x14, 0x3d, 0x66),
        ("redis", _) => RGBColor(0xc9, 0x6a, 0x00),
        ("redis-pipelined", _) => RGBColor(0xa0, 0x52, 0x2d),
        ("redis-cell", _) => RGBColor(0x8c, 0x51, 0x0a),
        ("no-limiter", _) => RGBColor(0x33, 0x33, 0x33),
        ("governor", _) => RGBColor(0x8a, 0x6d, 0x3b),
        ("rate-limiter-flexible", _) => RGBColor(0x6a, 0x8a, 0x2a),
        _ => PLAIN,
    }
}

/// Whether the system is included only for comparison.
pub(crate) fn is_plain(system: &str) -> bool {
    color(system) == PLAIN
}

/// Draws points as circles, triangles or crosses, by the place of their series. So a reader needs no colours.
pub(super) fn marks<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    place: usize,
    points: impl IntoIterator<Item = (X::ValueType, Y::ValueType)>,
    color: RGBColor,
) -> anyhow::Result<()>
where
    X: Ranged<ValueType: 'static>,
    Y: Ranged<ValueType: 'static>,
{
    let points = points.into_iter();
    match place % 3 {
        0 => drop(chart.draw_series(points.map(|point| Circle::new(point, 4, color.filled())))?),
        1 => drop(chart.draw_series(points.map(|point| TriangleMarker::new(point, 5, color.filled())))?),
        _ => drop(chart.draw_series(points.map(|point| Cross::new(point, 4, color.stroke_width(2))))?),
    }
    Ok(())
}

/// Adds a title and a description, which screen readers read.
pub(super) fn labelled(svg: &str, title: &str, description: &str) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
    let (tag, rest) = svg.split_once('>').unwrap_or((svg, ""));
    let tag = tag.replacen("<svg ", "<svg role=\"img\" ", 1);
    format!("{tag}>\n<title>{}</title>\n<desc>{}</desc>{rest}", escaped(title), escaped(description))
}

const PLAIN: RGBColor = RGBColor(0x76, 0x76, 0x76);

pub(crate) const FONT: &str = "sans-serif";
pub(crate) const PALE: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
pub(crate) const GREY: RGBColor = RGBColor(0x55, 0x55, 0x55);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_color_stands_out_from_the_ground() {
        let systems = ["tollgate@postgres", "tollgate@mysql", "tollgate@mariadb", "tollgate@sqlite", "tollgate-memory"];
        let others = ["redis", "redis-pipelined", "redis-cell", "no-limiter", "governor", "rate-limiter-flexible", "x"];
        for system in systems.into_iter().chain(others) {
            assert!(contrast(color(system), WHITE) >= 3.0, "{system}");
        }
        assert!(contrast(color("tollgate@postgres"), color("redis")) >= 3.0);
        assert!((contrast(BLACK, WHITE) - 21.0).abs() < 0.01);
    }

    #[test]
    fn title_and_description_are_escaped() {
        let svg = labelled("<svg width=\"1\">\n<rect/>\n</svg>", "a < b", "b & c");
        assert_eq!(
            svg,
            "<svg role=\"img\" width=\"1\">\n<title>a &lt; b</title>\n<desc>b &amp; c</desc>\n<rect/>\n</svg>"
        );
    }

    /// The ratio of two colours' luminances, as WCAG 2.2 defines it.
    fn contrast(one: RGBColor, other: RGBColor) -> f64 {
        let part = |byte: u8| match f64::from(byte) / 255.0 {
            low if low <= 0.04045 => low / 12.92,
            high => ((high + 0.055) / 1.055).powf(2.4),
        };
        let luminance = |RGBColor(red, green, blue)| 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        one.max(other) / one.min(other)
    }
}
