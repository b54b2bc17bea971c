//! Colours and texts of a picture. Granted and denied differ by shape, too: filled and open.

use plotters::prelude::*;

pub(super) const GREY: RGBColor = RGBColor(90, 90, 90);
pub(super) const PALE: RGBColor = RGBColor(222, 222, 222);
pub(super) const GRANTED: RGBColor = RGBColor(8, 48, 107);
pub(super) const DENIED: RGBColor = RGBColor(201, 106, 0);
pub(super) const TOKENS: RGBColor = RGBColor(10, 145, 135);

/// Adds a title and a description, which screen readers read.
pub(super) fn labelled(svg: &str, title: &str, description: &str) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
    let (tag, rest) = svg.split_once('>').unwrap_or((svg, ""));
    let tag = tag.replacen("<svg ", "<svg role=\"img\" ", 1);
    format!("{tag}>\n<title>{}</title>\n<desc>{}</desc>{rest}", escaped(title), escaped(description))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_distinguishable_from_the_ground_and_each_other() {
        for (name, color) in [("granted", GRANTED), ("denied", DENIED), ("tokens", TOKENS), ("asked", GREY)] {
            assert!(contrast(color, WHITE) >= 3.0, "{name}: {:.2}", contrast(color, WHITE));
        }
        for (name, color) in [("denied", DENIED), ("tokens", TOKENS)] {
            assert!(contrast(color, GRANTED) >= 3.0, "{name}: {:.2}", contrast(color, GRANTED));
        }
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
