use std::fmt;

use crate::load::Round;

/// A line of the table: medians, with the minimum and the maximum in brackets.
pub(crate) struct Line<'a> {
    connections: u32,
    keys: usize,
    rounds: &'a [Round],
}

impl<'a> Line<'a> {
    pub(crate) const HEADER: &'static str = "\
        | connections | keys | bare UPDATE | granted | denied | granted ÷ bare | denied ÷ bare | five limits ÷ granted | \
        window ÷ granted |\n\
        |---|---|---|---|---|---|---|---|---|";

    pub(crate) fn new(connections: u32, keys: usize, rounds: &'a [Round]) -> Self {
        Self { connections, keys, rounds }
    }

    fn cost(&self, of: impl Fn(&Round) -> f64) -> String {
        match self.connections {
            1 => spread(self.rounds.iter().map(of), 0) + " µs",
            _ => spread(self.rounds.iter().map(|round| 1e3 / of(round)), 1) + " k/s",
        }
    }

    /// Returns the ratio in each round, so that a slow round does not distort it.
    fn ratio(&self, of: impl Fn(&Round) -> f64, to: impl Fn(&Round) -> f64) -> String {
        spread(self.rounds.iter().map(|round| of(round) / to(round)), 2)
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, keys, .. } = self;
        let (bare, granted, denied) =
            (self.cost(|round| round.bare), self.cost(|round| round.granted), self.cost(|round| round.denied));
        let dearer = self.ratio(|round| round.granted, |round| round.bare);
        let denied_dearer = self.ratio(|round| round.denied, |round| round.bare);
        let five = self.ratio(|round| round.five, |round| round.granted);
        let window = self.ratio(|round| round.window, |round| round.granted);
        write!(
            f,
            "| {connections} | {keys} | {bare} | {granted} | {denied} | {dearer} | {denied_dearer} | {five} | {window} |"
        )
    }
}

fn spread(statistics: impl Iterator<Item = f64>, decimals: usize) -> String {
    let mut statistics: Vec<f64> = statistics.collect();
    statistics.sort_unstable_by(f64::total_cmp);
    let (least, median, most) = (statistics[0], statistics[statistics.len() / 2], statistics[statistics.len() - 1]);
    format!("{median:.decimals$} ({least:.decimals$}–{most:.decimals$})")
}
