//! Logarithmic axes whose ticks do not overlap.

use std::ops::Range;

use plotters::coord::combinators::{LogCoord, WithKeyPoints};
use plotters::prelude::*;

/// An axis with at most `most` ticks.
pub(super) fn logarithmic(range: Range<f64>, most: f64) -> WithKeyPoints<LogCoord<f64>> {
    let ticks = ticks(&range, most);
    range.log_scale().with_key_points(ticks)
}

/// Ticks at 1, 2 and 5 of each power of ten, or at fewer numbers if these are too many.
fn ticks(range: &Range<f64>, most: f64) -> Vec<f64> {
    let (first, last) = (range.start.log10().floor(), range.end.log10().ceil());
    // 2 and 5 are 0.4 of a power apart, and 1 and 5 are 0.7 apart.
    let powers = (range.end / range.start).log10();
    let digits: &[f64] = if powers / 0.3 <= most { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let step = if powers > most { 2.0 } else { 1.0 };
    let mut ticks = Vec::new();
    let mut power = first;
    while power <= last {
        ticks.extend(digits.iter().map(|digit| digit * 10_f64.powf(power)).filter(|tick| range.contains(tick)));
        power += step;
    }
    ticks
}

/// A number in four characters or so: `742k`, `9.6M`, `28.1k`, `0.15`.
pub(super) fn number(figure: f64) -> String {
    let (figure, unit) = match figure {
        millions if millions >= 999_500.0 => (millions / 1e6, "M"),
        thousands if thousands >= 999.5 => (thousands / 1e3, "k"),
        few => (few, ""),
    };
    let text = match figure {
        large if large >= 99.95 => format!("{large:.0}"),
        middle if middle >= 0.995 => format!("{middle:.1}"),
        small if small >= 0.01 => format!("{small:.2}"),
        tiny => format!("{tiny:.5}"),
    };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_at_most_as_many_as_fit() {
        assert_eq!(ticks(&(0.8..30.0), 8.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(ticks(&(4e3..2e7), 8.0), [1e4, 1e5, 1e6, 1e7]);
        for (end, most) in [(10.0, 4.0), (1e3, 8.0), (1e5, 13.0), (1e7, 5.0)] {
            let ticks = ticks(&(0.9..end), most);
            let apart = ticks.windows(2).map(|two| (two[1] / two[0]).log10()).fold(f64::INFINITY, f64::min);
            assert!(ticks.len() >= 2 && apart >= 0.29 * (end / 0.9_f64).log10() / most / 0.3, "{ticks:?} of {end}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (figure, text) in [
            (742_000.0, "742k"),
            (9_588_000.0, "9.6M"),
            (28_100.0, "28.1k"),
            (999_800.0, "1M"),
            (1000.0, "1k"),
            (10.0, "10"),
            (100.0, "100"),
            (0.15, "0.15"),
            (0.0, "0"),
        ] {
            assert_eq!(number(figure), text);
        }
    }
}
